"""Static batching: fill a batch, run it until its slowest member ends, begin again.

What a plain `model.generate` over a list of prompts does, with the collect rule of batching servers (start
when so many wait or the oldest has waited so long). A finished row stays in the batch as padding and keeps
its memory until all have ended; its client has the answer at its own last token. Prompts are computed whole,
as many a step as the token budget takes. Left out: padding of prompts to the longest.
"""

from __future__ import annotations

from simulator.batch import Batch
from simulator.schedulers.admission import SHED, WAIT
from simulator.schedulers.admitting import asked_as_head
from simulator.schedulers.base import Scheduler
from simulator.schedulers.fetching import begin_fetch, find_fetch
from simulator.schedulers.repeating import unchanged_steps

COLLECT_PRESETS = {"realtime": (4, 50.0), "offline": (16, 200.0)}
"""Collect rules by name: min_batch, max_wait_ms."""


class Static(Scheduler):
    """Collect a batch whose prompt + max_tokens fit, run it to its slowest member (plain `generate`)."""

    keeps_finished = True

    def schedule(self, now: float) -> Batch:
        batch = self.open_batch(now)
        if self.running or self.fetching:
            self.held_by = "batch"
        else:
            self._end_batch()
            if self.collected(now):
                self._fill(batch)
        if self.fetching:
            return self.commit(batch)  # it starts when the last of it has come
        if self.prefills:
            self._take_prompts(batch)
        else:
            self.take_decodes(batch)
            batch.add_padding([seq.num_computed + 1 for seq in self.padding] if batch else [])
        return self.commit(batch)

    def steady_steps(self, batch: Batch, limit: float) -> int:
        return unchanged_steps(self, batch, limit)

    def _end_batch(self) -> None:
        for seq in self.padding:
            self.kv.release(seq, seq.num_computed)
        self.padding.clear()

    def _fill(self, batch: Batch) -> None:
        """Seat sequences from the head of the queue while the memory they may come to need is there."""
        reserved = 0
        while (seq := self.waiting.head()) is not None:
            verdict = asked_as_head(self, seq)
            if verdict == WAIT:
                self.held_by = "rule"
                return
            if verdict == SHED:
                continue
            longest = seq.num_prompt + seq.limit + self.spare_slots
            reserved += self.kv.blocks_for(min(longest, self.max_model_len))
            if len(self.running) + len(self.fetching) == self.max_num_seqs:
                self.held_by = "seats"
                return
            if reserved > self.kv.pool.num_blocks and (self.running or self.fetching):
                self.held_by = "blocks"
                return
            hit = self.kv.lookup(seq)
            if fetch := find_fetch(self, seq, hit):
                begin_fetch(self, batch, seq, hit, fetch)
                continue
            admitted = self.kv.admit(seq, hit, 0, must_fit=0, watermark=False)
            assert admitted, "taking cached blocks needs no room beyond them"
            self.start(seq, hit.num_blocks * self.kv.block_size)

    def _take_prompts(self, batch: Batch) -> None:
        """Compute whole prompts while the budget lasts; one that exceeds it runs alone."""
        for seq in list(self.prefills):
            start = seq.num_computed
            n = seq.num_tokens - start
            if n > batch.budget and batch:
                return
            if n > batch.budget:
                self.count_oversized(seq)
            allocated = self.kv.allocate(seq, n)
            assert allocated, "a batch starts only if its prompts and answers fit"
            batch.add_chunk(seq, n, start, cached=start)
