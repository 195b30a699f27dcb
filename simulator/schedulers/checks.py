"""What must hold after every step, for tests and for the end of every run."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulator.batch import Batch
    from simulator.decode_group import DecodeGroup
    from simulator.schedulers.base import Scheduler


def check(scheduler: Scheduler) -> None:
    """Raise AssertionError unless blocks, references and aggregates add up."""
    scheduler.kv.check([*scheduler.running, *scheduler.padding, *scheduler.fetching, *scheduler.parked])
    if scheduler.kv.tiers is not None:
        elsewhere = [*scheduler.fetching, *scheduler.waiting]
        scheduler.kv.tiers.check(claim for seq in elsewhere for claim in seq.claims)
    for group in [scheduler.decodes] if scheduler.flight is None else scheduler.flight.groups:
        _check_group(scheduler, group)
    assert not (scheduler.decodes.size and scheduler.speculation), "under speculation nobody is in the group"
    assert len(scheduler.waiting) == sum(1 for _ in scheduler.waiting.members()), "waiting count"
    for seq in scheduler.waiting.members():
        assert not seq.runs, f"{seq!r} waits and holds blocks"
    for seq in (*scheduler.running, *scheduler.padding):
        assert not seq.claims, f"{seq!r} runs and holds blocks of a tier"


def _check_group(scheduler: Scheduler, group: DecodeGroup) -> None:
    members = [seq for seq in scheduler.running if seq.group is group]
    assert group.size == len(members), f"{group.size} != {len(members)} decodes"
    assert group.kv_sum == sum(seq.num_computed for seq in members), "sum of the decodes' tokens"
    assert group.kv_max == max((seq.num_computed for seq in members), default=0), "longest decode"
    opening = sum(seq.num_computed % scheduler.kv.block_size == 0 for seq in members)
    assert group.num_opening == opening, f"{group.num_opening} != {opening} decodes open a block"


def check_committed(batch: Batch) -> None:
    """Raise AssertionError if the tokens of a batch that `schedule` returned are not counted as computed."""
    for chunk in batch.chunks:
        assert chunk.seq.num_computed > chunk.start, "schedule(now) must return self.commit(batch)"
