"""What a policy function may look at besides the sequence it judges."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from simulator.errors import SimulatorError
from simulator.latency.base import Features, StepFeatures
from simulator.request import Sequence
from simulator.schedulers.service import service

if TYPE_CHECKING:
    from simulator.schedulers.base import Scheduler


NUM_PRICES = 2**16
"""Prices of chunks that are remembered: a victim rule asks for those of all running sequences each time."""


class Context:
    """A read-only view of the scheduler's state, passed to every policy function."""

    __slots__ = ("_prefill_time", "_scheduler", "_truth", "arriving", "evicted_key", "now")

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._prefill_time = lru_cache(NUM_PRICES)(self._price_prefill)
        self._truth: Callable[[Sequence], int] | None = None
        self.now = 0.0  # seconds since the run's start, at the current call of schedule or add
        self.arriving = False  # whether an admission rule is asked about an arrival, not about the head
        self.evicted_key: Any = 0.0  # key of the cached block evicted last

    @property
    def free_blocks(self) -> int:
        return self._scheduler.kv.num_free

    @property
    def num_blocks(self) -> int:
        return self._scheduler.kv.pool.num_blocks

    @property
    def waiting(self) -> Iterable[Sequence]:
        """Waiting sequences, in no particular order."""
        return self._scheduler.waiting.members()

    @property
    def waiting_tenants(self) -> set[str]:
        """Tenants of which something waits."""
        return self._scheduler.waiting.tenants()

    @property
    def num_waiting(self) -> int:
        return self._scheduler.waiting.size

    @property
    def running(self) -> Iterable[Sequence]:
        """Running sequences in the order of admission, then those whose blocks are being fetched."""
        scheduler = self._scheduler
        return [*scheduler.running, *scheduler.fetching] if scheduler.fetching else scheduler.running

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold this many tokens."""
        return self._scheduler.kv.blocks_for(num_tokens)

    def most_blocks(self, seq: Sequence) -> int:
        """Blocks that a sequence comes to hold if its answer gets as long as `max_tokens` allows."""
        scheduler = self._scheduler
        longest = seq.num_prompt + seq.limit - 1 + scheduler.spare_slots
        return self.blocks_for(min(longest, scheduler.max_model_len))

    def cached_tokens(self, seq: Sequence) -> int:
        """Tokens of a waiting sequence that the prefix cache holds now."""
        kv = self._scheduler.kv
        return kv.lookup(seq).num_blocks * kv.block_size

    def shared_tokens(self, seq: Sequence) -> int:
        """Tokens of a running sequence in blocks that others hold too: losing it does not free them."""
        return self._scheduler.kv.shared_blocks(seq) * self._scheduler.kv.block_size

    def service(self, tenant: str) -> int:
        """Tokens computed for a tenant so far, prompt and output."""
        return service(self._scheduler, tenant)

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

    def prefill_time(self, num_tokens: int, start: int) -> float:
        """Predict a step that only computes so many tokens behind `start` others and samples one, s."""
        return self._prefill_time(num_tokens, start)

    def _price_prefill(self, num_tokens: int, start: int) -> float:
        return self.step_time(StepFeatures.prefill([(num_tokens, start)]))

    def recompute_time(self, num_tokens: int, start: int) -> float:
        """Predict what it takes to compute tokens again behind `start` others, s.

        It is their share of a chunk there that fills the token budget.
        """
        budget = self._scheduler.max_num_batched_tokens
        return self.prefill_time(budget, start) * num_tokens / budget

    def oracle_remaining(self, seq: Sequence) -> int:
        """The output tokens that a sequence will really still get: the side door of oracles.

        SimulatorError unless a simulation opened it, which it does for policies whose name ends in `_oracle`.
        """
        if self._truth is None:
            raise SimulatorError(
                "ctx.oracle_remaining tells what no server knows; only a policy named ..._oracle may ask"
            )
        return self._truth(seq)

    def open_oracle(self, truth: Callable[[Sequence], int]) -> None:
        """Let policies ask for the truth; for the engine, never for a policy."""
        self._truth = truth


class Watched:
    """A context that notes whether its reader looked at anything that changes while a sequence waits."""

    __slots__ = ("_ctx", "was_read")

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self.was_read = False

    def __getattr__(self, name: str) -> Any:  # whatever a context has
        if name not in ("num_blocks", "blocks_for", "weight", "oracle_remaining"):
            self.was_read = True
        return getattr(self._ctx, name)
