"""Orders and victim rules at odds with each other: everybody still gets on.

Two prompts of 14 tokens, a token each a step, in 16 blocks of a token: both start, neither fits beside the
other. Whoever is further is preempted by the rule below whenever memory is full, for ever.
"""

from __future__ import annotations

import pytest

from simulator.engine.serve import serve
from simulator.kv.block_manager import BlockManager
from simulator.latency.linear import LinearModel
from simulator.request import Request
from simulator.schedulers import preempting
from simulator.schedulers.base import Scheduler
from simulator.schedulers.chunked import Chunked
from simulator.schedulers.preemption import first_admitted

TWO = [Request(f"r{i}", 0.0, 14, 2, 2) for i in range(2)]


def scheduler() -> Scheduler:
    kv = BlockManager(16, 1, enable_prefix_caching=False)
    return Chunked(
        kv,
        victim=first_admitted,
        max_num_seqs=2,
        max_num_batched_tokens=2,
        long_prefill_token_threshold=1,
        scheduler_reserve_full_isl=False,
    )


def test_a_livelock_is_broken_counted_and_both_complete() -> None:
    made = scheduler()
    served = serve(TWO, made, LinearModel(0.25), check_invariants=True)
    assert list(served.recorder.num_output) == [2, 2]
    assert made.num_livelocks == 1
    assert preempting.VAIN_PREEMPTIONS <= sum(served.recorder.num_preemptions) < 80


def test_without_the_rule_neither_would_ever_get_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simulator.schedulers.base.VAIN_PREEMPTIONS", 10**9)
    made = scheduler()
    served = serve(TWO, made, LinearModel(0.25), horizon=2000.0)
    assert list(served.recorder.num_output) == [0, 0]
    assert sum(served.recorder.num_preemptions) > 1000
