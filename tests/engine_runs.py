"""Small runs for the tests of engine and metrics: schedulers by keywords, random scenarios, a token observer.

The observer is the brute force that the recorder avoids: it watches `schedule`, keeps counters of its own
for every sequence and writes down each token's time. It shares no code with recorder, oracle or decode group.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

from simulator.batch import Batch
from simulator.engine.clients import OPEN_LOOP, ClientPlan
from simulator.engine.decisions import DecisionLog
from simulator.engine.observer import Observer
from simulator.engine.serve import Served, serve
from simulator.kv.block_manager import BlockManager
from simulator.latency.base import Features
from simulator.latency.linear import LinearModel
from simulator.metrics.tables import Ints, RequestTable
from simulator.request import Request, Sequence
from simulator.schedulers import BATCHING, Scheduler
from simulator.schedulers.orders import ORDERS
from simulator.schedulers.preemption import VICTIMS, last_admitted

_KV = ("num_blocks", "block_size", "enable_prefix_caching", "watermark_blocks")
MAX_STEPS = 20_000


class CountingManager(BlockManager):
    """A block manager that counts how often it had to say no."""

    num_refused = 0

    def admit(self, *args: Any, **kwargs: Any) -> bool:
        admitted = super().admit(*args, **kwargs)
        self.num_refused += not admitted
        return admitted

    def allocate(self, seq: Sequence, n: int) -> bool:
        allocated = super().allocate(seq, n)
        self.num_refused += not allocated
        return allocated


class TokenObserver(Scheduler):
    """A policy under watch: when each token of each request appears, who is there, when the engine rests.

    It doubles as the latency model, so that it learns how long each step takes. `budgets` are token budgets
    that the steps take in turn: with a constant one, `Chunked` never leaves a running decode out.
    """

    name, provenance, error = "observed", "a test", None

    def __init__(
        self,
        kv: BlockManager,
        latency: LinearModel,
        requests: list[Request],
        budgets: list[int] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(kv, **settings)
        self.budgets = budgets or [self.max_num_batched_tokens]
        self.latency = latency
        self.target = {
            r.id: min(r.num_output, r.max_tokens, self.max_model_len - r.num_prompt) for r in requests
        }
        self.prompt = {r.id: r.num_prompt for r in requests}
        self.tokens: dict[str, list[float]] = {r.id: [] for r in requests}
        self.first_step: dict[str, float] = {}
        self.preempted: Counter[str] = Counter()
        self.events: list[tuple[float, int, str]] = []  # (time, +1 or -1, request) as it enters and leaves
        self.idle: list[tuple[float, float]] = []
        self.steps: list[tuple[float, float]] = []  # start, end
        self.states: list[tuple[int, int, int, int]] = []  # running, waiting, blocks used, tokens in them
        self._computed: dict[str, int] = {}
        self._rows: list[tuple[Sequence, int]] = []
        self._cached: dict[str, int] = {}
        self._step_start = 0.0

    def add(self, seq: Sequence, now: float = 0.0) -> None:
        super().add(seq, now)
        self.events.append((now, 1, seq.id))

    def open_batch(self, now: float) -> Batch:
        batch = super().open_batch(now)
        batch.budget = self.budgets[len(self.steps) % len(self.budgets)]
        return batch

    def schedule(self, now: float) -> Batch:
        batch = super().schedule(now)
        for seq in batch.preempted:
            self.preempted[seq.id] += 1
            self._computed[seq.id] = 0
        self._rows = batch.rows(self.running)
        self._cached = {chunk.seq.id: chunk.cached for chunk in batch.chunks if chunk.cached is not None}
        self._step_start = now
        assert sum(n for _, n in self._rows) + batch.num_padding == batch.num_tokens
        return batch

    def step_time(self, step: Features) -> float:
        duration = self.latency.step_time(step)
        end = self._step_start + duration
        if self.steps and self._step_start > self.steps[-1][1]:
            self.idle.append((self.steps[-1][1], self._step_start))
        held = sum(seq.num_computed for seq in self.running)
        self.states.append((len(self.running), len(self.waiting), self.kv.num_used, held))
        for seq, n in self._rows:
            id, tokens = seq.id, self.tokens[seq.id]
            self._computed[id] = self._cached.get(id, self._computed.get(id, 0)) + n
            self.first_step.setdefault(id, self._step_start)
            complete = self._computed[id] == self.prompt[id] + len(tokens)
            if complete and len(tokens) < self.target[id]:  # else a row wasted on an answer that has ended
                tokens.append(end)
                if len(tokens) == self.target[id]:
                    self.events.append((end, -1, id))
        self.steps.append((self._step_start, end))
        assert len(self.steps) < MAX_STEPS, "livelock"
        return duration

    def gaps(self, ids: set[str]) -> Counter[float]:
        """Count every inter-token latency of the requests named."""
        found: Counter[float] = Counter()
        for id in ids:
            times = self.tokens[id]
            found.update(b - a for a, b in itertools.pairwise(times))
        return found


OBSERVERS = {
    name: type(f"Observed{policy.__name__}", (TokenObserver, policy), {}) for name, policy in BATCHING.items()
}


class Observed(NamedTuple):
    served: Served
    log: DecisionLog
    table: RequestTable
    observer: TokenObserver
    kv: CountingManager


def observe(
    requests: list[Request],
    *,
    latency: LinearModel,
    batching: str = "chunked",
    horizon: float | None = None,
    async_scheduling: bool = False,
    plan: ClientPlan = OPEN_LOOP,
    observers: Iterable[Observer] = (),
    **settings: Any,
) -> Observed:
    """Serve requests under observation, with every invariant checked after every step."""
    kv = CountingManager(**{key: settings.pop(key) for key in _KV if key in settings})
    observer = OBSERVERS[batching](kv, latency, requests, **settings)
    log = DecisionLog()
    served = serve(
        requests,
        observer,
        observer,  # type: ignore[arg-type]  # of a latency model, the engine calls step_time alone
        async_scheduling=async_scheduling,
        horizon=horizon,
        plan=plan,
        observers=[log, *observers],
        check_invariants=True,
    )
    return Observed(served, log, served.recorder.request_table(requests), observer, kv)


def recorded_gaps(run: Observed, rows: Ints | None = None) -> Counter[float]:
    """Count the inter-token latencies that the recorder gives."""
    values, weights = run.served.recorder.gaps(rows)
    assert (weights > 0).all()
    found: Counter[float] = Counter()
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        found[value] += weight
    return found


def scenarios(*, aborts: bool = True, horizons: bool = False) -> st.SearchStrategy[dict[str, Any]]:
    """Draw keyword arguments of `observe`: tight memory and budgets, equal stamps, every order."""
    return _scenarios(aborts, horizons)


@st.composite
def _scenarios(draw: st.DrawFn, aborts: bool, horizons: bool) -> dict[str, Any]:
    block_size = draw(st.sampled_from([1, 2, 4, 16]))
    order = draw(st.sampled_from(list(ORDERS.values())))
    max_num_seqs = draw(st.sampled_from([6, 5, 4, 3, 2, 1]))
    settings: dict[str, Any] = {
        "block_size": block_size,
        "num_blocks": max(1, draw(st.sampled_from([40, 32, 24, 64])) // block_size),
        "enable_prefix_caching": draw(st.booleans()),
        "watermark_blocks": draw(st.sampled_from([0, 0, 1])),
        "batching": draw(st.sampled_from(["chunked", "chunked", *BATCHING])),
        "order": order,
        "victim": draw(st.sampled_from([None, last_admitted])),
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max_num_seqs + draw(st.sampled_from([0, 0, 1, 2, 4, 16])),
        "budgets": draw(st.none() | st.lists(st.integers(1, 8), min_size=2, max_size=4)),
        "max_model_len": draw(st.sampled_from([60, 30, 20])),
        "long_prefill_token_threshold": draw(st.sampled_from([0, 0, 1, 2, 3, 5, 8])),
        "scheduler_reserve_full_isl": draw(st.booleans()),
        "async_scheduling": draw(st.booleans()),
        "latency": draw(st.sampled_from(LATENCIES)),
        "horizon": draw(st.none() | st.integers(1, 40).map(lambda n: n / 4)) if horizons else None,
    }
    num_requests = draw(st.integers(1, 10))
    rows = draw(st.lists(_request(aborts), min_size=num_requests, max_size=num_requests))
    requests: list[Request] = []
    arrival = 0.0
    for i, (gap, prompt, output, max_tokens, shared, tree, importance, timeout) in enumerate(rows):
        arrival += gap
        full = min(shared, prompt // block_size)
        requests.append(
            Request(
                id=f"r{i}",
                arrival=arrival,
                num_prompt=prompt,
                num_output=output,
                max_tokens=max_tokens,
                block_hashes=((tree, tree + full),) if full else (),
                priority=importance,
                timeout=timeout,
            )
        )
    return dict(requests=requests, **settings)


@st.composite
def loads(draw: st.DrawFn, batching: str, horizons: bool = False) -> dict[str, Any]:
    """Draw keyword arguments of `observe` for one policy: any victim, cancels, collect rules."""
    drawn = draw(scenarios(horizons=horizons))
    victim = draw(st.sampled_from([None, *VICTIMS.values()]))
    drawn |= {
        "batching": batching,
        "order": draw(st.sampled_from(list(ORDERS.values()))),
        "victim": victim,
        "budgets": None,
        "plan": ClientPlan(cancel_after=np.array(draw(_patience(len(drawn["requests"]))))),
    }
    if batching in ("static", "continuous"):
        drawn |= draw(
            st.fixed_dictionaries(
                {"min_batch": st.integers(1, 4), "max_wait": st.sampled_from([0.0, 0.1, 0.25, 1.0])}
            )
        )
    return drawn


def _patience(n: int) -> st.SearchStrategy[list[float]]:
    seconds = st.sampled_from([float("nan")] * 5 + [0.0, 0.1, 0.25, 0.5, 1.0, 2.5])
    return st.lists(seconds, min_size=n, max_size=n)


LATENCIES = [
    LinearModel(constant=0.25),  # binary fractions: arrivals, timeouts and step ends fall together
    LinearModel(constant=0.125, per_token=0.03125),
    LinearModel(constant=0.01, per_token=1e-3, per_kv_token=1e-5),  # rounding at work
]
_GAPS = st.sampled_from([0.0, 0.0, 0.0, 0.125, 0.25, 1.0, 0.1, 0.3])


def _request(aborts: bool) -> st.SearchStrategy[tuple[Any, ...]]:
    timeouts = st.sampled_from([None] * 5 + [0.0, 0.1, 0.25, 0.5, 1.0, 2.5]) if aborts else st.none()
    return st.tuples(
        _GAPS,
        st.integers(1, 24),
        st.sampled_from([16, 13, 10, 7, 4, 3, 2, 1]),
        st.sampled_from([16, 16, 16, 8, 3, 1]),
        st.integers(0, 8),
        st.sampled_from([0, 100]),
        st.integers(0, 2),
        timeouts,
    )
