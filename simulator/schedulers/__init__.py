"""Scheduling policies. The table names them; a policy of one's own needs no entry."""

from simulator.schedulers.base import Scheduler
from simulator.schedulers.chunked import Chunked
from simulator.schedulers.continuous import Continuous
from simulator.schedulers.prefill_first import PrefillFirst
from simulator.schedulers.repeating import unchanged_steps
from simulator.schedulers.static import COLLECT_PRESETS, Static

__all__ = [
    "BATCHING",
    "COLLECT_PRESETS",
    "Chunked",
    "Continuous",
    "PrefillFirst",
    "Scheduler",
    "Static",
    "unchanged_steps",
]

BATCHING: dict[str, type[Scheduler]] = {
    "static": Static,
    "continuous": Continuous,
    "prefill_first": PrefillFirst,
    "chunked": Chunked,
}
