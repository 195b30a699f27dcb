"""Batches in flight: under pipeline parallelism the next is decided while others are being computed.

As in vLLM, a sequence whose next token is under way is passed over (rule 3.6), and the next chunk of a prompt
may be scheduled behind the one that is under way. So those that decode are several groups, one for each
batch in flight and one of those that are ready, which is `scheduler.decodes`. A group departs with its batch
and is ready again when that lands. A victim may have a token under way, which counts when it comes; until
then nobody is admitted. (vLLM may readmit it before.)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from simulator.batch import Batch
from simulator.decode_group import DecodeGroup
from simulator.request import Sequence

if TYPE_CHECKING:
    from simulator.schedulers.base import Scheduler


class Departure(NamedTuple):
    """What leaves with a batch: its group, the group's number, and who is new in it.

    New are sequences whose prompt is done with this batch (`sampled`), and `back` are those that were in
    another group before.
    """

    group: DecodeGroup
    lane: int
    sampled: list[Sequence]
    back: list[Sequence]


class Flight:
    """The decode groups of a scheduler with several batches in flight."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._lanes: dict[DecodeGroup, int] = {scheduler.decodes: 0}
        self._spare: list[DecodeGroup] = []
        self._moved: dict[Sequence, None] = {}  # changed groups and have not been scheduled since
        self.flying: dict[Batch, None] = {}
        self.limbo: dict[Sequence, Batch] = {}  # preempted while that batch computes a token of theirs
        scheduler.flight = self

    @property
    def groups(self) -> Iterable[DecodeGroup]:
        """All groups, the ready one and empty ones among them."""
        return self._lanes

    def depart(self, batch: Batch) -> Departure:
        """Let a batch that was just decided leave, with those it gives a token."""
        scheduler = self._scheduler
        ready = scheduler.decodes
        sampled = [chunk.seq for chunk in batch.chunks if chunk.samples]
        joined = [seq for seq in sampled if seq.group is ready]
        if not batch.num_decodes and ready.size > len(joined):
            group = self._fresh()  # the policy leaves all decodes out of this batch
            _move(joined, group)
        else:
            group = ready
            scheduler.decodes = self._fresh()
            left = [seq for seq in batch.postponed if seq.group is ready]
            _move(left, scheduler.decodes)
            self._moved.update(dict.fromkeys(left))
        batch.group = group
        self.flying[batch] = None
        back: list[Sequence] = []
        if self._moved:
            ending = set(batch.ending)
            back = [seq for seq in self._moved if seq.group is group or seq in ending]
            for seq in back:
                del self._moved[seq]
        return Departure(group, self._lanes[group], sampled, back)

    def land(self, batch: Batch) -> list[Sequence]:
        """Make the sequences of a batch that is done ready again; return those that changed their group."""
        scheduler = self._scheduler
        group, ready = batch.group, scheduler.decodes
        assert group is not None, "it departed"
        del self.flying[batch]
        self.limbo = {seq: other for seq, other in self.limbo.items() if other is not batch}
        if not group.size:
            self._spare.append(group)
            return []
        if not ready.size:
            scheduler.decodes = group
            self._spare.append(ready)
            return []
        less, more = (ready, group) if ready.size < group.size else (group, ready)
        moved = [seq for seq in scheduler.running if seq.group is less]
        _move(moved, more)
        scheduler.decodes = more
        self._spare.append(less)
        self._moved.update(dict.fromkeys(moved))
        return moved

    def hold(self, seq: Sequence) -> None:
        """Note a victim about to lose its blocks: if a token of it is under way, that is waited for."""
        for batch in self.flying:
            if (seq.group is not None and seq.group is batch.group) or seq in batch.ending:
                self.limbo[seq] = batch

    def kv_tokens(self, batch: Batch) -> int:
        """Count the computed tokens of sequences that other batches are computing."""
        groups = sum(group.kv_sum for group in self._lanes if group is not self._scheduler.decodes)
        ending = (seq for each in self.flying if each is not batch for seq in each.ending)
        return groups + sum(seq._computed for seq in ending if seq.state == "running")

    def _fresh(self) -> DecodeGroup:
        if self._spare:
            return self._spare.pop()
        group = DecodeGroup(self._scheduler.kv.block_size)
        self._lanes[group] = len(self._lanes)
        return group


def _move(seqs: list[Sequence], group: DecodeGroup) -> None:
    for seq in seqs:
        assert seq.group is not None, "it decodes"
        seq.group.leave(seq)
        group.join(seq)
