"""Scheduling policies. The tables name them; a policy of one's own needs no entry."""

from simulator.schedulers.base import Scheduler
from simulator.schedulers.chunked import Chunked

__all__ = ["BATCHING", "Chunked", "Scheduler"]

BATCHING: dict[str, type[Scheduler]] = {"chunked": Chunked}
