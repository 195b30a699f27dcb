"""Paired tournaments: candidates served the same replications, differences with intervals, verdicts.

`contest` says what a replication is and what a candidate does in it; `paired` is the statistics of a
difference; `rounds` adds replications until verdicts are possible; `turning` asks how much timing error would
turn a verdict; `standing` is what came of it, `words`, `tables`, `figures` and `page` show it.
"""
