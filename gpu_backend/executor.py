"""The executor that computes: a real model behind the seam that the simulated one serves.

Policies, block counts and the loop are the simulator's own objects. Under the *predicted* clock the model
computes and time passes as the latency model says, so that a run is deterministic and its decisions must be
the simulation's. Under the *wall* clock time is what the device took, with everything between two steps:
deciding, building the batch, sampling, bookkeeping. Answers stop at the lengths of the workload, whatever the
model says, and where `stop_ids` are given (`generate`) at these tokens too.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable
from typing import Literal

import torch
from torch import Tensor

from gpu_backend.block_tables import BlockTables
from gpu_backend.rows import Row, place, rows_of
from gpu_backend.runner import Runner
from gpu_backend.sampling import SamplingParams, sample
from gpu_backend.speculating import Speculator
from gpu_backend.tier_blocks import TierBlocks
from gpu_backend.token_book import TokenIds
from simulator.batch import Batch, Move, Stall, StepResult
from simulator.engine.links import Moved
from simulator.engine.oracle import SimulatedExecutor
from simulator.request import Request, Sequence
from simulator.schedulers.base import Scheduler
from simulator.speculative import Verification

Clock = Literal["wall", "predicted"]
GREEDY = SamplingParams()


class TorchExecutor:
    """Executes batches with a runner. Implements `simulator.engine.executor.Executor`.

    `prompt(request, index)` gives a request's token ids, `sampling(index)` says how its answer is drawn;
    `index` is its row in the workload. `stop_ids` end an answer early. Without `kv_cache` every row computes
    its whole sequence again, as a naive decoder does.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        simulated: SimulatedExecutor,
        runner: Runner,
        prompt: Callable[[Request, int], TokenIds],
        *,
        clock: Clock = "wall",
        sampling: Callable[[int], SamplingParams] = lambda index: GREEDY,
        stop_ids: Collection[int] = (),
        kv_cache: bool = True,
        on_step: Callable[[], object] | None = None,
        speculator: Speculator | None = None,
    ) -> None:
        self.latency = simulated.latency
        self.clock = clock
        self.answers: dict[int, list[int]] = {}  # token ids by the request's index, as it left the engine
        self.num_mended = 0  # tokens computed again because a block counted as cached had no KV
        self._scheduler = scheduler
        self._simulated = simulated
        self._runner = runner
        self._prompt = prompt
        self._sampling = sampling
        self._stop_ids = frozenset(stop_ids)
        self._kv_cache = kv_cache
        self._on_step = on_step
        self._speculator = speculator
        self._tables: BlockTables = runner.tables
        tiers = scheduler.kv.tiers
        self._tiers = None if tiers is None else TierBlocks(tiers, runner.tables, runner.kv)
        scheduler.kv.watch(runner.tables)
        self._began = time.perf_counter()

    def tell(self, seq: Sequence, request: Request) -> None:
        self._simulated.tell(seq, request)
        longest = min(request.num_prompt + request.max_tokens, self._scheduler.max_model_len)
        self._runner.tokens.open(seq, self._prompt(request, seq.index), longest)

    def forget(self, seq: Sequence) -> int:
        true_length = self._simulated.forget(seq)
        if self._speculator is not None:
            self._speculator.forget(seq)
        num_output = min(seq.num_output, true_length)  # a row may have been wasted on it (rule 8.4)
        answer = self._runner.tokens[seq][seq.num_prompt : seq.num_prompt + num_output]
        self.answers[seq.index] = answer.tolist()
        self._runner.tokens.close(seq)
        return true_length

    @property
    def verifications(self) -> list[Verification]:
        """What became of the drafts, for `simulator.speculative.write_log`; empty without speculation."""
        return [] if self._speculator is None else self._speculator.log

    def remaining(self, seq: Sequence) -> int:
        return self._simulated.remaining(seq)

    def steps_before_end(self) -> float:
        return 0.0

    def move(self, moves: Iterable[Move], now: float) -> Moved:
        assert self._tiers is not None, "blocks move only between tiers"
        every = list(moves)
        begin = self._now(now)
        self._tiers.flush()
        for seq in dict.fromkeys(each.seq for each in every if each.direction == "out"):
            if seq is not None:
                self._tiers.swap_out(seq)
        start = self._now(now)
        arrivals = {}
        for seq in dict.fromkeys(each.seq for each in every if each.direction == "in"):
            assert seq is not None, "blocks are fetched for a sequence"
            self._tiers.fetch(seq)
            arrivals[seq] = self._now(now)
        if self.clock == "predicted":
            return self._simulated.move(every, now)
        swaps = any(each.direction == "out" and each.seq is not None for each in every)
        stall = Stall(start - begin, 0.0) if swaps else Stall(0.0, start - begin)
        return Moved(start, stall, arrivals)

    def execute(self, batch: Batch, start: float) -> StepResult:
        if self.clock == "wall":
            self._wait_until(start)
        rows = list(rows_of(batch, self._scheduler))
        self.num_mended += place(rows, self._tables)
        if self._speculator is not None:
            self._speculator.before(batch, rows)
        if not self._kv_cache:
            for row in rows:
                if not row.is_padding:
                    row.start, row.num_tokens = 0, row.end
        if self._tiers is not None:
            self._tiers.flush()
        self._tables.step_begins()
        result = self._compute(batch, rows, start)
        if self._on_step is not None:
            self._on_step()
        return result

    def end_of(self, batch: Batch, start: float) -> float:
        if self.clock == "predicted":
            return self._simulated.end_of(batch, start)
        return max(self._now(start), math.nextafter(start, math.inf))

    def _compute(self, batch: Batch, rows: list[Row], start: float) -> StepResult:
        """Run the model and note the tokens that it gives; say which answers they end."""
        logits = self._runner.run(rows) if rows else None
        if self._speculator is not None and logits is not None:
            return self._speculator.after(batch, rows, logits, self._simulated, self._stop_ids)
        stopped = [] if logits is None else self._sampled(rows, logits)
        result = self._simulated.execute(batch, start)
        return StepResult([*result.stopped, *stopped]) if stopped else result

    def _sampled(self, rows: list[Row], logits: Tensor) -> list[Sequence]:
        """Give each sequence that samples its token; return those that end with it."""
        samplers = [row for row in rows if row.samples]
        params = [self._sampling(row.seq.index) for row in samplers]
        stopped = []
        for row, token in zip(
            samplers, sample(logits, params, [r.end for r in samplers]).tolist(), strict=True
        ):
            self._runner.tokens[row.seq][row.end] = token
            if token in self._stop_ids:
                stopped.append(row.seq)
        return stopped

    def _now(self, predicted: float) -> float:
        """Wait for the device, as a step that samples nothing does not, and return the time of the run."""
        if self.clock == "predicted":
            return predicted
        if self._runner.device.type == "cuda":
            torch.cuda.synchronize(self._runner.device)
        return time.perf_counter() - self._began

    def _wait_until(self, moment: float) -> None:
        """Sleep until a moment of the run: the engine was idle."""
        while (left := moment - (time.perf_counter() - self._began)) > 0:
            time.sleep(left)
