"""What holds for every policy of every table, alone and combined: a new entry is tested without a new test.

Conservation: requests, blocks and aggregates add up after every step. Progress: everybody is served in a
bounded number of steps. Determinism: the same run twice is the same run. Skipping moves no time by a bit.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, get_args

import numpy as np
import pytest
from pairwise import pairwise

from simulator.engine.clients import ClientPlan
from simulator.engine.serve import Served, serve
from simulator.kv.block_manager import BlockManager
from simulator.kv.eviction import EVICTIONS
from simulator.kv.tiers import Tier, Tiers
from simulator.latency.linear import LinearModel
from simulator.metrics.tables import ABORTED, COMPLETED, REJECTED
from simulator.request import Request
from simulator.schedulers import BATCHING
from simulator.schedulers.admission import ADMISSIONS
from simulator.schedulers.orders import ORDERS
from simulator.schedulers.preempting import Preemption
from simulator.schedulers.preemption import VICTIMS
from simulator.schedulers.speculating import Speculation
from simulator.speculative import ByRate

AXES: dict[str, Sequence[str]] = {
    "batching": list(BATCHING),
    "order": list(ORDERS),
    "victim": ["null", *VICTIMS],
    "preemption": get_args(Preemption),
    "eviction": list(EVICTIONS),
}
PLAIN = {
    "batching": "chunked",
    "order": "fcfs",
    "victim": "null",
    "preemption": "recompute",
    "eviction": "lru",
}
RULES: dict[str, list[Any]] = {
    "reserve_output": [ADMISSIONS["reserve_output"]],
    "shed_late": [ADMISSIONS["shed_late"]],
    "queue_limit": [ADMISSIONS["queue_limit"](3)],  # type: ignore[call-arg, arg-type]  # a class
    "token_bucket": [ADMISSIONS["token_bucket"](300.0, 400.0)],  # type: ignore[call-arg, arg-type]
}
LONGEST = 300.0  # seconds; the loads below need 10 to 30, a step takes at least 0.05
CLOCK = LinearModel(constant=0.05, per_token=0.003, per_kv_token=1e-4)
PATIENCE = ClientPlan(cancel_after=np.where(np.arange(16) % 7 == 5, 2.0, np.nan))


@functools.cache
def load(seed: int) -> tuple[Request, ...]:
    """Sixteen requests in a burst: shared prefixes, three priorities, two tenants, one that gives up."""
    rng = np.random.default_rng(seed)
    requests = []
    arrival = 0.0
    for i in range(16):
        arrival += float(rng.choice([0.0, 0.25, 0.4, 1.1]))
        num_prompt, num_output = int(rng.integers(3, 60)), int(rng.integers(1, 40))
        shared = min(int(rng.integers(0, 10)), num_prompt // 4)
        family = 1000 * int(rng.integers(0, 3))
        requests.append(
            Request(
                f"r{i}",
                arrival,
                num_prompt,
                num_output,
                num_output + int(rng.integers(0, 8)),
                block_hashes=((family, family + shared),) if shared else (),
                priority=int(rng.integers(0, 3)),
                tenant=str(rng.choice(["loud", "loud", "meek"])),
                timeout=None if i % 5 else 6.0,
            )
        )
    return tuple(requests)


def run(
    combination: dict[str, str],
    seed: int,
    rules: Sequence[Any] = (),
    speculation: Speculation | None = None,
    **how: Any,
) -> Served:
    """Serve a load in memory for a third of it, so that there is preemption, eviction and waiting."""
    victim, preemption = combination["victim"], combination["preemption"]
    tiers = [
        Tier("host", 24, bytes_per_block=1, bandwidth=100.0, latency=0.01, offload=True),
        Tier("nvme", 16, bytes_per_block=1, bandwidth=20.0, latency=0.02, offload=True),
    ]
    kv = BlockManager(
        32,
        4,
        eviction=EVICTIONS[combination["eviction"]],
        tiers=None if preemption == "recompute" else Tiers(tiers),
    )
    scheduler = BATCHING[combination["batching"]](
        kv,
        order=ORDERS[combination["order"]],
        victim=None if victim == "null" else VICTIMS[victim],
        preemption=preemption,
        admission=rules,
        weights={"loud": 1.0, "meek": 2.0},
        max_num_seqs=5,
        max_num_batched_tokens=24,
        max_model_len=120,
        speculation=speculation,
    )
    if speculation is not None:
        acceptance = ByRate([0.8, 0.5], np.random.SeedSequence(seed))
        how = {"async_scheduling": False, "acceptance": acceptance} | how
    how = {"async_scheduling": seed % 2 == 1, "horizon": LONGEST} | how
    return serve(load(seed), scheduler, CLOCK, plan=PATIENCE, **how)


def tables(served: Served, seed: int) -> list[Any]:
    recorder = served.recorder
    parts = [recorder.step_table(), recorder.request_table(load(seed))]
    return [getattr(table, field.name) for table in parts for field in fields(table)] + list(recorder.gaps())


def assert_holds(combination: dict[str, str], seed: int, rules: Sequence[Any] = (), **how: Any) -> None:
    skipped = run(combination, seed, rules, **how)
    ticked = run(
        combination, seed, rules, check_invariants=True, **how
    )  # looks at every step, so none is skipped
    assert ticked.recorder.num_skipped == 0
    for mine, theirs in zip(tables(skipped, seed), tables(ticked, seed), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    again = run(combination, seed, rules, **how)
    for mine, theirs in zip(tables(skipped, seed), tables(again, seed), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    for served in (skipped, ticked):
        assert_conserved(served, seed)


def assert_conserved(served: Served, seed: int) -> None:
    """Everybody got what it asked for, or its client left, or a rule turned it away; no block is held."""
    scheduler, table = served.scheduler, served.recorder.request_table(load(seed))
    assert not scheduler.running
    assert not scheduler.waiting.size
    assert not scheduler.fetching
    assert scheduler.kv.num_used == sum(seq.num_blocks for seq in scheduler.padding)
    for i, request in enumerate(load(seed)):
        assert table.status[i] in (COMPLETED, ABORTED, REJECTED)
        if table.status[i] == COMPLETED:
            assert table.num_output[i] == request.num_output
            assert table.finish[i] >= table.first_token[i] > table.scheduled[i] >= request.arrival
        if table.status[i] == REJECTED:
            assert table.reason[i].startswith(("shed by", "needs more"))


@pytest.mark.parametrize("combination", pairwise(AXES), ids=lambda c: "-".join(c.values()))
def test_every_pair_of_policies_keeps_the_books_and_gets_on(combination: dict[str, str]) -> None:
    for seed in (0, 5):
        assert_holds(combination, seed)


@pytest.mark.parametrize("combination", pairwise(AXES), ids=lambda c: "-".join(c.values()))
def test_every_pair_of_policies_keeps_the_books_with_drafts(combination: dict[str, str]) -> None:
    for seed, speculation in ((0, Speculation.by_ngram(2)), (5, Speculation.by_draft_model(2))):
        assert_holds(combination, seed, speculation=speculation)


@pytest.mark.slow
@pytest.mark.parametrize("batching", BATCHING)
@pytest.mark.parametrize("order", ORDERS)
def test_the_full_product_of_all_tables(batching: str, order: str) -> None:
    rest = [AXES[axis] for axis in ("victim", "preemption", "eviction")]
    for i, (victim, preemption, eviction) in enumerate(itertools.product(*rest)):
        combination = dict(zip(AXES, (batching, order, victim, preemption, eviction), strict=True))
        assert_holds(combination, i % 11)  # eleven loads, of which the odd ones schedule asynchronously


@pytest.mark.parametrize("batching", BATCHING)
@pytest.mark.parametrize("rule", ADMISSIONS)
def test_every_admission_rule_keeps_the_books(batching: str, rule: str) -> None:
    assert_holds(PLAIN | {"batching": batching}, 0, RULES[rule])


def test_the_loads_are_hard_enough_to_tell_policies_apart() -> None:
    plain = run(PLAIN, 0)
    assert plain.recorder.step_table().num_preempted.sum() >= 3
    assert plain.scheduler.kv.pool.num_evicted > 10
    assert plain.scheduler.kv.num_hits > 0
    finishes = {tuple(run(PLAIN | {"order": order}, 0).recorder.finished_at) for order in ORDERS}
    assert len(finishes) >= len(ORDERS) - 2
