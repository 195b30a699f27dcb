"""A scheduler driven by hand, step by step, on real token ids: what tests and recordings need.

engine = Stepper(usable_blocks=10)
engine.submit("A", prompt(64), max_tokens=2)
engine.step()["scheduled"]                     [["A", 64]]
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import count
from typing import Any

from conformance import Player

from simulator.batch import Batch
from simulator.request import Sequence
from simulator.schedulers.base import Scheduler
from simulator.schedulers.chunked import Chunked

DEFAULTS: dict[str, Any] = {
    "block_size": 16,
    "usable_blocks": 1000,
    "max_num_seqs": 16,
    "max_num_batched_tokens": 512,
    "max_model_len": 4096,
    "enable_prefix_caching": True,
    "scheduling_policy": "fcfs",
    "long_prefill_token_threshold": 0,
    "watermark": 0.0,
    "scheduler_reserve_full_isl": True,
}
_fresh = count(1_000_000)


def prompt(n: int) -> list[int]:
    """Return n token ids that no other prompt has."""
    return [next(_fresh) for _ in range(n)]


class Listed(Chunked):
    """`chunked` without the decode group's short cut: every step walks what runs, one by one."""

    def _decodes_are_first(self, batch: Batch) -> bool:
        return False


class Stepper(Player):
    """A scheduler, its token ids, and the steps taken so far. Keywords are vLLM's settings.

    `sample` gives the next token of a sequence from its tokens so far; a fresh one by default.
    """

    def __init__(
        self,
        policy: type[Scheduler] = Chunked,
        sample: Callable[[list[int]], int] = lambda tokens: next(_fresh),
        **config: Any,
    ) -> None:
        config = DEFAULTS | config
        config["num_gpu_blocks"] = config["usable_blocks"] + 1
        super().__init__(config, policy)
        self.config = config
        self.sample = sample
        self.steps: list[dict[str, Any]] = []
        self.stop_at: dict[str, int] = {}  # tokens of a sequence with which its answer ends
        self.batch: Batch | None = None

    def submit(
        self,
        id: str,
        tokens: list[int],
        max_tokens: int = 100,
        priority: int = 0,
        num_output: int | None = None,
    ) -> None:
        """Enqueue a request at the step about to be taken; its output number `num_output` is a stop token."""
        now = float(len(self.steps))
        row = {"id": id, "prompt": tokens, "max_tokens": max_tokens, "priority": priority, "arrival": now}
        self.add(row)
        if num_output is not None:
            self.stop_at[id] = len(tokens) + num_output

    def step(self) -> dict[str, Any]:
        """Schedule, execute and learn once; return the decisions as a recording has them."""
        scheduler = self.scheduler
        before = set(scheduler.running)
        self.batch = scheduler.schedule(float(len(self.steps)))
        decided = self.decisions(self.batch, before)
        assert self.batch.num_tokens == sum(n for _, n in decided["scheduled"])
        scheduler.check()
        decided |= self.execute(self.batch)
        scheduler.check()
        self.steps.append(decided)
        return decided

    def execute(self, batch: Batch) -> dict[str, Any]:
        """Sample what the batch samples and let the scheduler learn it."""
        return self.learn_samples(batch, self.samplers(batch))

    def learn_samples(self, batch: Batch, samplers: list[str]) -> dict[str, Any]:
        sampled = {id: [self.sample(self.tokens[id])] for id in samplers}
        stopped = [id for id in samplers if len(self.tokens[id]) + 1 >= self.stop_at.get(id, sys.maxsize)]
        return {"sampled": sampled} | self.learn(batch, sampled, stopped)

    def run(self, limit: int = 10_000) -> list[dict[str, Any]]:
        """Step until nothing runs or waits; return all steps taken so far."""
        while self.scheduler.running or self.scheduler.waiting.head() is not None:
            assert len(self.steps) < limit, "the scheduler makes no progress"
            self.step()
        return self.steps

    def abort(self, id: str) -> None:
        """Remove a request in whatever state it is."""
        self.scheduler.remove(self.live[id])

    def lookup(self, tokens: list[int]) -> int:
        """Count the blocks of a prompt that are cached, were one more token to follow."""
        probe = Sequence("probe", len(tokens) + 1, 1)
        self.ids.extend(probe.hash_ranges, 0, tokens)
        return self.scheduler.kv.lookup(probe).num_blocks

    def rows(self, id: str) -> int:
        """Count the tokens scheduled for a sequence over all steps."""
        return sum(dict(step["scheduled"]).get(id, 0) for step in self.steps)

    @property
    def used(self) -> int:
        return self.scheduler.kv.num_used


class AsyncStepper(Stepper):
    """Decides a step before the last one's results are in (rule 8.4)."""

    _pending: tuple[Batch, list[str]] | None = None

    def execute(self, batch: Batch) -> dict[str, Any]:
        """Let the scheduler learn the batch before this one; tokens of what has ended are dropped."""
        pending, self._pending = self._pending, (batch, self.samplers(batch))
        if pending is None:
            return {"sampled": {}, "finished": [], "free_blocks_after": self.scheduler.kv.num_free}
        alive = [id for id in pending[1] if self.live[id].state != "finished"]
        return self.learn_samples(pending[0], alive)
