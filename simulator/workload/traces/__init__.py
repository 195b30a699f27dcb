"""Traces: one reader a format, found by the file's header or keys and never by guessing.

A format of named columns is one line in `csv_rows`; any other is one function. Both give `Rows`, which checks
every row. To add a format, add its line to `formats.FORMATS`; the first that matches wins.
"""

from simulator.workload.traces.formats import FORMATS, Format
from simulator.workload.traces.read import read_trace
from simulator.workload.traces.write import write_trace

__all__ = ["FORMATS", "Format", "read_trace", "write_trace"]
