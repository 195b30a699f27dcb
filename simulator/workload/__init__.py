"""What clients send: arrivals, lengths, prefixes; generated, or read from a trace."""

from simulator.workload.arrivals import ARRIVALS
from simulator.workload.generate import generate
from simulator.workload.info import describe
from simulator.workload.lengths import LENGTHS
from simulator.workload.requests import DEFAULT_MAX_TOKENS
from simulator.workload.traces import FORMATS, read_trace, write_trace
from simulator.workload.workload import Workload

__all__ = [
    "ARRIVALS",
    "DEFAULT_MAX_TOKENS",
    "FORMATS",
    "LENGTHS",
    "Workload",
    "describe",
    "generate",
    "read_trace",
    "write_trace",
]
