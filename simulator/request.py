"""A request and what the engine knows of it: two objects, so that no policy can see the truth.

`Request` is what a client sends, with the true output length that only the executor may read.
`Sequence` is what the engine keeps: two counters, a few facts the client gave, and the blocks it holds.
The counters are those of vLLM V1 (`num_computed` catches up with `num_tokens`), so chunked prefill,
prefix hits, decoding and recomputation after a preemption need no further state.
Left out: token ids (the executor keeps them) and LoRA, images and structured output.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from simulator.decode_group import DecodeGroup
    from simulator.kv.block_pool import Run

HashRange = tuple[int, int]
"""Block hashes as integers, `lo` up to but not including `hi`: consecutive blocks of one prefix."""


class Claim(NamedTuple):
    """Blocks of a memory tier that a sequence needs and nothing may overwrite."""

    tier: int  # index, the fastest first
    hashes: Many[int]  # in prefix order
    num_unhashed: int = 0  # blocks that no hash names, a partly filled last one among them


@dataclass(frozen=True, slots=True)
class Request:
    """One request as its client sends it. Lengths in tokens, times in seconds from the run's start.

    `num_output` is the truth: how long the answer would become if nothing cut it. Policies never see it.
    `max_tokens` is what the client asks for at most. `block_hashes` names the prompt's full blocks that
    other requests may share, as ranges in prefix order; blocks beyond them belong to this request alone.
    Its client leaves `timeout` after the arrival; its first token is late `ttft_limit` after it (the SLO's).
    `predicted_len` is what a predictor says of the answer, in tokens; it may be wrong. `session` names the
    conversation whose turn it is, if any.
    """

    id: str
    arrival: float
    num_prompt: int
    num_output: int
    max_tokens: int
    block_hashes: tuple[HashRange, ...] = ()
    priority: int = 0
    tenant: str = ""
    timeout: float | None = None
    ttft_limit: float | None = None
    predicted_len: float | None = None
    session: str = ""

    def __post_init__(self) -> None:
        if self.num_prompt < 1 or self.num_output < 1 or self.max_tokens < 1:
            raise ValueError(
                f"request {self.id!r}: num_prompt, num_output and max_tokens must be >= 1, "
                f"got {self.num_prompt}, {self.num_output}, {self.max_tokens}"
            )
        if not 0.0 <= self.arrival < float("inf"):
            raise ValueError(f"request {self.id!r}: arrival must be finite and >= 0, got {self.arrival}")


class Sequence:
    """What the engine knows of a request: all that a policy may read.

    While a sequence decodes in the scheduler's `DecodeGroup`, `num_computed` is `offset + group.steps`:
    one increment of the group moves every member. Elsewhere the counters are stored.
    `num_output` counts a token from the moment its computation is scheduled, as vLLM's placeholders do;
    between two steps that is the number of tokens already sampled.
    """

    __slots__ = (
        "_computed",
        "_output",
        "arrival",
        "block_size",
        "cached",
        "claims",
        "deadline",
        "enqueued",
        "group",
        "hash_private_from",
        "hash_ranges",
        "id",
        "index",
        "joined_with",
        "limit",
        "lost",
        "max_tokens",
        "num_draft",
        "num_hashed",
        "num_preemptions",
        "num_prompt",
        "offset",
        "order",
        "predicted_len",
        "priority",
        "runs",
        "slots",
        "speculates",
        "state",
        "swapped",
        "tenant",
    )

    def __init__(
        self,
        id: str,
        num_prompt: int,
        max_tokens: int,
        *,
        index: int = 0,
        arrival: float = 0.0,
        priority: int = 0,
        tenant: str = "",
        deadline: float | None = None,
        predicted_len: float | None = None,
        hash_ranges: list[HashRange] | None = None,
        hash_private_from: int = 0,
    ) -> None:
        self.id = id
        self.index = index  # row of the request in its workload; the recorder's key
        self.arrival = arrival
        self.num_prompt = num_prompt
        self.max_tokens = max_tokens
        self.priority = priority
        self.tenant = tenant
        self.deadline = deadline  # s; when the first token is due by the SLO
        self.predicted_len = predicted_len  # tokens of the answer, by a predictor that may be wrong
        self.hash_ranges: list[HashRange] = hash_ranges or []  # hash of every block known so far
        self.hash_private_from = hash_private_from  # block index from which nobody else has these hashes
        self.limit = max_tokens  # outputs at which it stops by length; the scheduler caps it by max_model_len
        self.enqueued = 0  # place in the queue of a FCFS scheduler
        self.order = 0  # place in `running`: the how-manieth admission it was
        self.num_preemptions = 0
        self.block_size = 1  # of the memory it lives in; the scheduler says
        self.joined_with = 0  # tokens that were cached when it began to run
        self.state = "waiting"  # waiting | fetching | running | parked | finished
        self.group: DecodeGroup | None = None
        self.offset = 0
        self._computed = 0
        self._output = 0
        self.runs: list[
            list[Run | int]
        ] = []  # held blocks that are hashed or shared: [run, number of blocks]
        self.num_hashed = 0  # blocks covered by `runs`
        self.lost = 0  # most tokens it had computed when it was preempted; those below are computed again
        self.cached: int | None = None  # tokens fetched or hit, until its next chunk reports them
        self.speculates = False  # decodes by verifying draft tokens, so it is not in a decode group
        self.num_draft = 0  # draft tokens to verify in its next step
        self.slots = 0  # under speculation: most token slots it was given; rejected drafts return no blocks
        self.swapped = 0  # tokens whose KV a tier keeps for it
        self.claims: Many[Claim] = ()  # what it has in the tiers: swapped out, or being fetched

    @property
    def num_computed(self) -> int:
        """Tokens whose KV is computed or scheduled to be."""
        group = self.group
        return self._computed if group is None else self.offset + group.steps

    @property
    def num_output(self) -> int:
        """Output tokens sampled, or being sampled by a scheduled step."""
        group = self.group
        return self._output if group is None else self.offset + group.steps + 1 - self.num_prompt

    @property
    def num_tokens(self) -> int:
        """Prompt and output tokens."""
        return self.num_prompt + self.num_output

    @property
    def num_blocks(self) -> int:
        """Blocks that it holds, shared ones included."""
        return -(-max(self.num_computed, self.slots) // self.block_size)

    @property
    def is_decode(self) -> bool:
        return self.group is not None or self.speculates

    def __repr__(self) -> str:
        return f"Sequence({self.id!r}, {self.num_computed}/{self.num_tokens} tokens, {self.state})"
