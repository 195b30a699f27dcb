"""What a run leaves behind: one row per request and one row per step, as columns.

Memory grows with requests and steps, never with tokens: the moment of each token follows from the
step clock. Times in seconds from the run's start, NaN where something never happened.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

COMPLETED, REJECTED, ABORTED, UNFINISHED = range(4)
STATUS = ("completed", "rejected", "aborted", "unfinished")


@dataclass(slots=True)
class RequestTable:
    """One row per request that reached the server, in order of arrival there."""

    id: list[str]
    arrival: Floats
    num_prompt: Ints
    num_output: Ints  # tokens actually generated
    status: Ints  # index into STATUS
    reason: list[str]  # stop | length | why it was rejected or aborted | ""
    scheduled: Floats  # start of the first step that computed a token of it
    first_token: Floats
    finish: Floats  # end of the step that sampled its last token; the moment of an abort or rejection
    num_cached: Ints  # prompt tokens found in the prefix cache, or a tier, at the first admission
    num_preemptions: Ints
    priority: Ints
    tenant: list[str]
    client_queue: Floats = field(
        default_factory=lambda: np.zeros(0)
    )  # waited at the client before it was sent
    pre_delay: Floats = field(default_factory=lambda: np.zeros(0))  # passed between the client and the server

    def __post_init__(self) -> None:
        for name in ("client_queue", "pre_delay"):
            if not len(getattr(self, name)):
                setattr(self, name, np.zeros(len(self)))

    def __len__(self) -> int:
        return len(self.arrival)


@dataclass(slots=True)
class StepTable:
    """One row per engine step, in order of its start; the counters are the replica's after `schedule`.

    A step begins with its decision and includes its `stall`: its forward pass starts that much later.
    """

    start: Floats
    end: Floats
    num_tokens: Ints  # rows of the step
    num_seqs: Ints
    num_sampled: Ints  # rows of the head: a sequence that samples has one, and one for each of its drafts
    num_decodes: Ints
    decode_kv: Ints
    decode_kv_max: Ints
    prefill_tokens: Ints
    prefill_work: Floats
    prefill_kv_max: Ints
    num_running: Ints
    num_waiting: Ints
    used_blocks: Ints  # blocks that a running sequence holds, or one whose blocks are being fetched
    kv_tokens: Ints  # tokens whose KV lies in blocks of running sequences, shared ones counted per sequence
    num_preempted: Ints  # sequences preempted in this step
    evicted_blocks: Ints  # cached blocks overwritten in this step
    stall: Floats = field(default_factory=lambda: np.zeros(0))  # s that it waited for copies out of the GPU
    draft_tokens: Ints = field(default_factory=lambda: np.zeros(0, np.int64))  # verified, placeholders too
    accepted_tokens: Ints = field(default_factory=lambda: np.zeros(0, np.int64))  # of them, kept
    replica: Ints = field(default_factory=lambda: np.zeros(0, np.int64))  # that made the step, from 0

    def __post_init__(self) -> None:
        if not len(self.stall):
            self.stall = np.zeros(len(self))
        for name in ("draft_tokens", "accepted_tokens", "replica"):
            if not len(getattr(self, name)):
                setattr(self, name, np.zeros(len(self), np.int32))

    @property
    def num_replicas(self) -> int:
        """Replicas up to the last one that made a step; at least 1."""
        return int(self.replica.max(initial=0)) + 1

    @property
    def output_tokens(self) -> Ints:
        """Tokens that each step added to answers; of drafts, those that were kept."""
        return self.num_sampled - self.draft_tokens + self.accepted_tokens

    def __len__(self) -> int:
        return len(self.start)


def merged(tables: Sequence[StepTable]) -> StepTable:
    """Return the steps of several replicas as one table, in order of their start."""
    columns = {
        each.name: np.concatenate([getattr(table, each.name) for table in tables])
        for each in fields(StepTable)
        if each.name != "replica"
    }
    replica = np.repeat(np.arange(len(tables)), [len(table) for table in tables])
    order = np.lexsort((replica, columns["start"]))
    return StepTable(**{name: column[order] for name, column in columns.items()}, replica=replica[order])


def of_replica(steps: StepTable, replica: int) -> StepTable:
    """Return the steps that one replica made."""
    rows = steps.replica == replica
    return StepTable(**{each.name: getattr(steps, each.name)[rows] for each in fields(StepTable)})


def columns_of(table: RequestTable | StepTable) -> list[str]:
    """Return the names of the columns that a reader is shown: `replica` only where there are several."""
    alone = isinstance(table, StepTable) and table.num_replicas == 1
    return [each.name for each in fields(table) if not (alone and each.name == "replica")]
