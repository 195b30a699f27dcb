"""A replica that only computes prompts, and one that goes on from there: the two halves of disaggregation.

A prefill replica parks a sequence that has its first token: its blocks stay until they have been sent. A
decode replica takes it in as one whose prompt's KV lies elsewhere; its scheduler decides when there is room,
gives it blocks and asks for what its own prefix cache lacks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from simulator.batch import NO_STALL, Batch
from simulator.engine.admission import make_sequence
from simulator.engine.links import Moved
from simulator.engine.replica import Replica
from simulator.kv.remote import lies_elsewhere, remote_tier
from simulator.request import Request, Sequence
from simulator.schedulers.preempting import give_claims_back

SENT = "sent"  # why a parked sequence leaves


class PrefillReplica(Replica):
    """Computes prompts. `hands_over` is asked of each sequence that ends whether it goes on elsewhere."""

    hands_over: Callable[[Sequence], bool]
    gives_first = True
    """Whether the first token is its own; if not, the decode replica samples it once more."""

    def __init__(self, *args: Any, **more: Any) -> None:  # those of Replica
        super().__init__(*args, **more)
        self.scheduler.parks = True

    def let_go(self, seq: Sequence) -> None:
        """Free a parked sequence's blocks at the next step boundary."""
        if seq.state == "parked" and seq not in self._aborts:
            self._aborts[seq] = self.env.now, SENT
            self._rouse()

    def _finish(self, seq: Sequence, now: float) -> None:
        if seq.state == "parked":
            if self.hands_over(seq):
                self.recorder.discard(seq)
                if not self.gives_first:
                    self.recorder.lose(seq)
                return
            self.scheduler.remove(seq)
        super()._finish(seq, now)

    def _apply_aborts(self) -> None:
        for seq in [seq for seq, (_, reason) in self._aborts.items() if reason == SENT]:
            when, _ = self._aborts.pop(seq)
            for observer in self.observers:
                observer.finished([seq], when)
            self.scheduler.remove(seq, self.now)
            self.executor.forget(seq)
        super()._apply_aborts()


class DecodeReplica(Replica):
    """Goes on with sequences whose prompts were computed elsewhere.

    `pull` is told which sequence needs how many blocks from there, and from when on they may be written (s).
    """

    pull: Callable[[Sequence, int, float], None]

    def __init__(self, *args: Any, **more: Any) -> None:  # those of Replica
        super().__init__(*args, **more)
        self._remote = remote_tier(self.scheduler.kv)
        self._asked: dict[Sequence, tuple[float, float]] = {}  # when, and when what the tiers have is there

    def receive_parked(
        self, index: int, request: Request, parked: Sequence, has_first: bool = True
    ) -> Sequence:
        """Take in a request whose prompt's KV `parked` holds on its replica.

        It has its first token; if not, the prompt's last token is computed once more, as in vLLM.
        """
        self.catch_up()
        scheduler = self.scheduler
        seq = make_sequence(index, request, scheduler, self._private, self.env.now)
        seq.arrival, seq.deadline = parked.arrival, parked.deadline
        seq._output = int(has_first)
        lies_elsewhere(scheduler.kv, self._remote, seq, seq.num_prompt - (not has_first))
        self._take_in(seq, request, self.env.now)
        if seq.state == "finished":  # an admission rule has turned it away
            give_claims_back(scheduler, seq)
        return seq

    def arrived(self, seq: Sequence, moment: float) -> None:
        """Note that what a sequence needed from elsewhere is there."""
        decided, local = self._asked.pop(seq)
        self._fetches.begin(Moved(moment, NO_STALL, {seq: max(moment, local)}), decided)

    def _move(self, batch: Batch, now: float) -> float:
        remote = {move.seq: move.num_blocks for move in batch.moves if move.tier == self._remote}
        moved = self.executor.move((move for move in batch.moves if move.tier != self._remote), now)
        if moved.start > now:
            batch.stall = moved.stall
        for seq, num_blocks in remote.items():
            assert seq is not None, "blocks are fetched for a sequence"
            self._asked[seq] = now, moved.arrivals.pop(seq, now)
            self.pull(seq, num_blocks, moved.start)
        if moved.arrivals:
            self._fetches.begin(moved, now)
        return moved.start

    def _apply_aborts(self) -> None:
        for seq in self._aborts:
            self._asked.pop(seq, None)
        super()._apply_aborts()
