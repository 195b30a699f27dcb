"""Traces: one reader a format, found by the file's header or keys and never by guessing.

A csv format is one line of column names in `csv_rows.CSV_FORMATS`; any other is one function. Both give
`Rows`, which checks every row. To add a format, add its line to `FORMATS`; the first that matches wins.
"""

from simulator.workload.traces.read import FORMATS, Format, read_trace
from simulator.workload.traces.write import write_trace

__all__ = ["FORMATS", "Format", "read_trace", "write_trace"]
