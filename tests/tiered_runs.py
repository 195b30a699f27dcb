"""Runs with memory tiers for the tests: round numbers by hand, random ones with everything at once."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from simulator.engine.clients import OPEN_LOOP
from simulator.engine.decisions import Decision, DecisionLog
from simulator.engine.serve import Served, serve
from simulator.kv.block_manager import BlockManager
from simulator.kv.eviction import EVICTIONS, Eviction, lru
from simulator.kv.tiers import Tier, Tiers
from simulator.latency.base import LatencyModel
from simulator.latency.linear import LinearModel
from simulator.request import Request
from simulator.schedulers import BATCHING
from simulator.schedulers.orders import ORDERS
from simulator.schedulers.preemption import VICTIMS

BLOCK = 4  # tokens
SECOND = LinearModel(constant=1.0)  # every forward pass takes a second
LATENCIES: list[LatencyModel] = [
    LinearModel(constant=0.25),  # round numbers: arrivals fall on step boundaries
    LinearModel(constant=0.1, per_token=0.01, per_kv_token=1e-4, host=0.03, per_seq=0.001),
]


def tier(num_blocks: int, blocks_per_s: float = 4.0, *, name: str = "host", **settings: Any) -> Tier:
    """Return a tier whose link moves so many blocks a second."""
    return Tier(name, num_blocks, bytes_per_block=1000, bandwidth=1000.0 * blocks_per_s, **settings)


def run_tiered(
    requests: list[Request],
    tiers: list[Tier],
    *,
    num_blocks: int,
    batching: str = "chunked",
    block_size: int = BLOCK,
    latency: LatencyModel = SECOND,
    enable_prefix_caching: bool = True,
    eviction: Eviction = lru,
    engine: dict[str, Any] | None = None,
    **settings: Any,
) -> Served:
    """Serve requests on a pool of `num_blocks` above tiers; `engine` are keywords of `serve`."""
    kv = BlockManager(
        num_blocks,
        block_size,
        enable_prefix_caching=enable_prefix_caching,
        tiers=Tiers(tiers) if tiers else None,
        eviction=eviction,
    )
    scheduler = BATCHING[batching](
        kv, latency=latency, **{"max_num_seqs": 8, "max_num_batched_tokens": 64} | settings
    )
    return serve(requests, scheduler, latency, **(engine or {}))


def logged(requests: list[Request], tiers: list[Tier], **settings: Any) -> tuple[Served, list[Decision]]:
    """Serve requests with a decision log, every invariant checked after every step."""
    log = DecisionLog()
    engine = {"observers": [log], "check_invariants": True} | settings.pop("engine", {})
    return run_tiered(requests, tiers, engine=engine, **settings), log.lines


@st.composite
def tiered_loads(draw: st.DrawFn, batching: str, *, aborts: bool) -> dict[str, Any]:
    """Draw keyword arguments of `run_tiered`: small pools, shared prefixes, one or two tiers, any policy."""
    block_size = draw(st.sampled_from([1, 4]))
    preemption = draw(st.sampled_from(["recompute", "swap", "swap", "auto"]))
    tiers = [
        tier(
            draw(st.sampled_from([2, 8, 30, 200])),
            draw(st.sampled_from([1.0, 8.0, 60.0, 1e6])),
            name=name,
            latency=draw(st.sampled_from([0.0, 0.25, 0.07])),
            offload=draw(st.sampled_from([True, True, False])),
        )
        for name in draw(st.sampled_from([["host"], ["host", "nvme"]]))
    ]
    seats = draw(st.integers(1, 6))
    num_tokens = 40  # of a request at most; the pool holds one
    return {
        "requests": draw(_requests(block_size, num_tokens, aborts)),
        "tiers": tiers,
        "batching": batching,
        "block_size": block_size,
        "num_blocks": draw(st.sampled_from([44, 52, 70, 120])) // block_size,
        "latency": draw(st.sampled_from(LATENCIES)),
        "enable_prefix_caching": draw(st.sampled_from([True, True, True, False])),
        "preemption": preemption,
        "eviction": draw(st.sampled_from([lru, lru, *EVICTIONS.values()])),
        "order": draw(st.sampled_from(list(ORDERS.values()))),
        "victim": draw(st.sampled_from([None, *VICTIMS.values()])) if aborts else None,
        "max_num_seqs": seats,
        "max_num_batched_tokens": seats + draw(st.sampled_from([0, 4, 16, 60])),
        "max_model_len": num_tokens,
        "scheduler_reserve_full_isl": draw(st.booleans()) if aborts else True,
    }


@st.composite
def _requests(draw: st.DrawFn, block_size: int, longest: int, aborts: bool) -> list[Request]:
    clock, made = 0.0, []
    for i in range(draw(st.integers(1, 12))):
        clock += draw(st.sampled_from([0.0, 0.0, 0.25, 1.0, 0.3, 5.0]))
        prompt = draw(st.integers(1, longest - 4))
        shared = draw(st.integers(0, prompt // block_size))
        family = 1000 * draw(st.integers(0, 3))
        made.append(
            Request(
                f"r{i}",
                clock,
                prompt,
                draw(st.integers(1, 20)),
                draw(st.sampled_from([1, 5, 20])),
                block_hashes=((family, family + shared),) if shared else (),
                priority=i % 3,
                timeout=draw(st.sampled_from([None, None, 0.5, 3.0])) if aborts else None,
            )
        )
    return made


OUTSIDE = st.fixed_dictionaries(
    {
        "async_scheduling": st.booleans(),
        "horizon": st.sampled_from([None, None, 2.5, 7.0]),
        "plan": st.just(OPEN_LOOP),
    }
)
"""Keywords of `serve`."""


def prefix(family: int, num_blocks: int = 4) -> tuple[tuple[int, int], ...]:
    """Return the hashes of a prompt's shared blocks."""
    return ((family, family + num_blocks),)


Line = tuple[float, float, float, dict[str, Any]]


def told(served: Served, log: list[Decision]) -> list[Line]:
    """Return each step's decision, start of its forward pass, end, and what it did; counts left out."""
    table = served.recorder.step_table()
    kept = ("chunks", "decodes", "preempted", "moves", "finished")
    return [
        (
            line["t"],
            line["t"] + float(table.stall[i]),
            float(table.end[i]),
            {key: line[key] for key in kept if line.get(key)},  # type: ignore[literal-required]
        )
        for i, line in enumerate(log)
    ]


def lost(served: Served, block_size: int = BLOCK) -> dict[str, object]:
    """Return what preemption and tiers cost, without what is zero."""
    summary = served.recorder.transfers.summary(served.recorder.step_table(), block_size)
    return {name: value for name, value in summary.items() if value}


def assert_empty(served: Served) -> None:
    """Nothing is held: no GPU block, no room in a tier, no sequence anywhere."""
    scheduler = served.scheduler
    assert scheduler.kv.num_used == 0
    assert [*scheduler.running, *scheduler.fetching, *scheduler.waiting] == []
    for memory in [] if scheduler.kv.tiers is None else scheduler.kv.tiers.memories:
        assert not memory.claimed
        assert memory.num_reserved == 0
