"""What a policy function may look at besides the sequence it judges."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from simulator.errors import SimulatorError
from simulator.latency.base import Features, StepFeatures
from simulator.request import Sequence

if TYPE_CHECKING:
    from simulator.schedulers.base import Scheduler


class Context:
    """A read-only view of the scheduler's state, passed to every policy function."""

    __slots__ = ("_scheduler", "evicted_key", "now")

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.now = 0.0  # seconds since the run's start, at the current call of schedule or add
        self.evicted_key: Any = 0.0  # key of the cached block evicted last

    @property
    def free_blocks(self) -> int:
        return self._scheduler.kv.num_free

    @property
    def num_blocks(self) -> int:
        return self._scheduler.kv.pool.num_blocks

    @property
    def waiting(self) -> Iterable[Sequence]:
        """Waiting sequences in the order of the queue."""
        return self._scheduler.waiting

    @property
    def running(self) -> Iterable[Sequence]:
        """Running sequences in the order of admission."""
        return self._scheduler.running

    def cached_tokens(self, seq: Sequence) -> int:
        """Tokens of a waiting sequence that the prefix cache holds now."""
        kv = self._scheduler.kv
        return kv.lookup(seq).num_blocks * kv.block_size

    def weight(self, tenant: str) -> float:
        """A tenant's share beside the others', 1 unless given."""
        return self._scheduler.weights.get(tenant, 1.0)

    def step_time(self, step: Features) -> float:
        """Predict how long a step takes, s; a `Batch` and `StepFeatures` describe one.

        SimulatorError if the scheduler was made without a latency model.
        """
        latency = self._scheduler.latency
        if latency is None:
            raise SimulatorError("this policy asks for ctx.step_time, but the scheduler has no latency model")
        return latency.step_time(step)

    def recompute_time(self, num_tokens: int, start: int) -> float:
        """Predict what it takes to compute tokens again behind `start` others, s.

        It is their share of a chunk there that fills the token budget.
        """
        budget = self._scheduler.max_num_batched_tokens
        return self.step_time(StepFeatures.prefill([(budget, start)])) * num_tokens / budget
