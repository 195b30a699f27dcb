"""A workload as columns: who asks what, and when.

Columns rather than objects, so that a million requests cost some tens of bytes each; `requests` makes the
`Request` objects one at a time. Every change returns a new workload that shares the columns it left alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from simulator.errors import ConfigError
from simulator.workload.clients import Delay, with_cancel, with_pre_delay
from simulator.workload.info import Info, workload_info
from simulator.workload.predictor import with_predicted_len
from simulator.workload.replay import kept_pairs, replayed, session_numbers, with_session_starts
from simulator.workload.requests import DEFAULT_MAX_TOKENS, Requests
from simulator.workload.tenants import Tenant, with_tenants
from simulator.workload.trace_blocks import TraceBlocks

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

ARRAYS = ("arrival", "num_prompt", "num_output", "max_tokens", "priority")
OPTIONAL_ARRAYS = ("timeout", "ttft_limit", "predicted_len", "think", "api_time", "pre_delay", "cancel_after")
TEXTS = ("ids", "tenants", "session")


def _no_ints() -> Ints:
    return np.zeros(0, np.int64)


@dataclass(frozen=True)
class Workload:
    """Requests in order of arrival, one row each. Times in seconds, lengths in tokens.

    `max_tokens` is 0 where the trace does not give it. `timeout` (seconds from the arrival) is NaN where
    there is none; so is `ttft_limit`, after which the first token is late. `predicted_len` is what a
    predictor says of the answer (tokens). `blocks` are the prefix ids of the trace; they become hashes of
    blocks of `block_size` tokens once that is known (`with_blocks`). `skipped` counts the rows left out, by
    reason.

    Sessions: each pair (p, r) of `follows` makes row r wait for row p < r; r arrives `think[r]` seconds after
    the last of its predecessors completed, and its `arrival` is only when it was recorded. `api_time` is
    how long the recorded server took (NaN unknown), `session` names whose turn it is ("" nobody's).
    `needs_starts` says why the sessions cannot be replayed before `with_session_starts`.

    Clients: a request reaches the server `pre_delay` seconds after its arrival, its client gives up after
    `cancel_after` (NaN never). `closed_loop` = (clients, think_s) has each client send its next request
    think_s after its last answer; arrivals are then all 0.
    """

    arrival: Floats
    num_prompt: Ints
    num_output: Ints
    max_tokens: Ints = field(default_factory=_no_ints)
    priority: Ints = field(default_factory=_no_ints)
    timeout: Floats | None = None
    ids: list[str] | None = None
    tenants: list[str] | None = None
    blocks: TraceBlocks | None = None
    block_size: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    source: str = ""
    notes: tuple[str, ...] = ()
    follows: Ints | None = None
    think: Floats | None = None
    api_time: Floats | None = None
    session: list[str] | None = None
    needs_starts: str = ""
    pre_delay: Floats | None = None
    cancel_after: Floats | None = None
    closed_loop: tuple[int, float] | None = None
    ttft_limit: Floats | None = None
    predicted_len: Floats | None = None

    def __post_init__(self) -> None:
        for name in ("max_tokens", "priority"):
            if not len(getattr(self, name)):
                object.__setattr__(self, name, np.zeros(len(self), np.int64))
        columns = (getattr(self, name) for name in (*ARRAYS, *OPTIONAL_ARRAYS, *TEXTS, "blocks"))
        if any(len(c) != len(self) for c in columns if c is not None):
            raise ValueError(f"every column must have {len(self)} rows, as arrival has")
        if len(self) and not (self.arrival[0] >= 0 and np.isfinite(self.arrival[-1])):
            raise ValueError("arrival must be >= 0 and finite")
        if not (np.diff(self.arrival) >= 0).all():
            raise ValueError("arrival must be sorted")
        if (self.num_prompt < 1).any() or (self.num_output < 1).any():
            raise ValueError("num_prompt and num_output must be >= 1")
        for name in ("think", "pre_delay"):
            column = getattr(self, name)
            if column is not None and not ((column >= 0) & (column < np.inf)).all():
                raise ValueError(f"{name} must be >= 0 and finite")
        if self.follows is not None:
            before, after = self.follows.reshape(-1, 2).T
            if self.think is None or not ((before >= 0) & (before < after) & (after < len(self))).all():
                raise ValueError("follows must be pairs of rows (p, r) with p < r, and think be given")

    def __len__(self) -> int:
        return len(self.arrival)

    @cached_property
    def requests(self) -> Requests:
        """The rows as `Request` objects, made when asked for."""
        return Requests(self)

    @property
    def num_sessions(self) -> int:
        """Sessions, a request without one counting as its own; 0 if the workload knows of none."""
        return 0 if self.session is None else int(session_numbers(self.session).max(initial=-1)) + 1

    def info(self) -> Info:
        """Describe the workload in numbers; see `simulator.workload.info`."""
        return workload_info(self)

    def take(self, rows: Ints, arrival: Floats | None = None) -> Workload:
        """Put row `rows[i]` at row i; a predecessor that is not among them is waited for no longer.

        `arrival`, if given, are the new times of the rows taken.
        """
        changed = {name: getattr(self, name)[rows] for name in ARRAYS}
        changed |= {} if arrival is None else {"arrival": arrival}
        changed |= {n: getattr(self, n)[rows] for n in OPTIONAL_ARRAYS if getattr(self, n) is not None}
        for name in TEXTS:
            if (texts := getattr(self, name)) is not None:
                changed[name] = [texts[i] for i in rows.tolist()]
        if self.blocks is not None:
            changed["blocks"] = self.blocks.take(rows)
        if self.follows is not None:
            changed["follows"] = pairs = kept_pairs(self.follows, rows, len(self))
            waits = np.isin(np.arange(len(rows)), pairs[:, 1])
            changed["think"] = np.where(waits, changed["think"], 0.0)
        return replace(self, **changed)

    def window(
        self, start_s: float = 0.0, duration_s: float | None = None, limit: int | None = None
    ) -> Workload:
        """Keep the arrivals in [start_s, start_s + duration_s), at most `limit`; time 0 is `start_s` then.

        A request whose predecessors fall outside arrives when it was recorded.
        """
        end = np.inf if duration_s is None else start_s + duration_s
        lo, hi = np.searchsorted(self.arrival, [start_s, end]).tolist()
        hi = hi if limit is None else min(hi, lo + limit)
        if hi <= lo:
            raise ConfigError(
                f"workload: no request between {start_s:g} s and {end:g} s (limit {limit}); "
                f"the {len(self)} arrivals reach {self.arrival[-1] if len(self) else 0.0:.6g} s"
            )
        part = self.take(np.arange(lo, hi))
        return replace(part, arrival=part.arrival - start_s)

    def scaled(self, rate_scale: float) -> Workload:
        """Multiply the rate by compressing time: CV stays, bursts get shorter. Timeouts stay as they are.

        So do think times: of sessions, more start per second, and each goes on as before.
        """
        if not 0 < rate_scale < float("inf"):
            raise ConfigError(f"workload.rate_scale: must be > 0 and finite, got {rate_scale}")
        return replace(self, arrival=self.arrival / rate_scale)

    def spread(self, ms: float, rng: np.random.Generator) -> Workload:
        """Delay each arrival by a uniform time below `ms`, for traces whose stamps are that coarse.

        Rows keep their order: within one stamp the true one is unknown, and the file's is causal.
        """
        if not 0 <= ms < float("inf"):
            raise ConfigError(f"workload.spread_ms: must be >= 0 and finite, got {ms}")
        return replace(self, arrival=np.sort(self.arrival + rng.random(len(self)) * (ms / 1000)))

    def replayed(
        self, replay: str = "think", think_cap_s: float | None = 60.0, time_scale: float = 1.0
    ) -> Workload:
        """Settle when the turns of sessions arrive; ConfigError if there are none, or for an unknown word.

        think: `think` seconds (at most `think_cap_s`) after the answer before. timestamp: as recorded,
        answered or not. scaled: as if the recorded server had been 1/`time_scale` times as fast.
        """
        return replayed(self, replay, think_cap_s, time_scale)

    def with_session_starts(self, times: Floats) -> Workload:
        """Let session k, in order of the first arrivals, begin at times[k] (`num_sessions` of them)."""
        return with_session_starts(self, times)

    def with_pre_delay(self, delay: Delay, rng: np.random.Generator) -> Workload:
        """Let requests take this long to reach the server: seconds, or {lognormal: {mean, sigma}}."""
        return with_pre_delay(self, delay, rng)

    def with_cancel(self, fraction: float, after_s: float, rng: np.random.Generator) -> Workload:
        """Let this fraction of the clients, drawn at random, give up `after_s` seconds after arriving."""
        return with_cancel(self, fraction, after_s, rng)

    def with_tenants(self, tenants: Sequence[Tenant], rng: np.random.Generator) -> Workload:
        """Say whose requests these are: by name where the trace does, else drawn by the tenants' shares.

        Priorities that tenants have replace those of the trace. ConfigError for a name that is in no row.
        """
        return with_tenants(self, tenants, rng)

    def with_predicted_len(self, sigma: float, rng: np.random.Generator) -> Workload:
        """Let a predictor say how long answers get: the truth (cut by max_tokens) x exp(sigma N(0, 1)), >= 1.

        Call it once `max_tokens` is settled.
        """
        return with_predicted_len(self, sigma, rng)

    def with_max_tokens(self, max_tokens: int | None, max_model_len: int) -> Workload:
        """Settle what each client asks for at most: this value, else the trace's, else 2,048.

        Capped at the room that the prompt leaves below `max_model_len`; a prompt that leaves none asks
        for 1, and the server refuses it. The true output length plays no part.
        """
        if max_tokens is not None and max_tokens < 1:
            raise ConfigError(f"workload.max_tokens: must be >= 1, got {max_tokens}")
        given = np.where(self.max_tokens > 0, self.max_tokens, DEFAULT_MAX_TOKENS)
        asked = given if max_tokens is None else np.full(len(self), max_tokens, np.int64)
        capped = np.maximum(np.minimum(asked, max_model_len - self.num_prompt), 1)
        return replace(self, max_tokens=capped.astype(np.int64))

    def with_blocks(self, block_size: int) -> Workload:
        """Let the requests carry the hashes of their full blocks of `block_size` tokens."""
        if block_size < 1:
            raise ValueError(f"block_size must be >= 1, got {block_size}")
        return replace(self, block_size=block_size)
