"""One step with few and with many sequences running: its cost must not grow with their number."""

from __future__ import annotations

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from simulator.batch import NOTHING_ENDED
from simulator.kv.block_manager import BlockManager
from simulator.request import Sequence
from simulator.schedulers import Chunked


def running(num_seqs: int) -> Chunked:
    """Return a scheduler with that many decodes under way."""
    scheduler = Chunked(BlockManager(200_000), max_num_seqs=256, max_model_len=10**6)
    for i in range(num_seqs):
        scheduler.add(Sequence(f"r{i}", 7 * i % 50 + 1, 10**5))
    while scheduler.prefills or scheduler.waiting.size:
        scheduler.update(scheduler.schedule(0.0), NOTHING_ENDED, 0.0)
    return scheduler


@pytest.mark.parametrize("num_seqs", [16, 256])
def test_step(num_seqs: int, benchmark: BenchmarkFixture) -> None:
    scheduler = running(num_seqs)

    def step() -> None:
        scheduler.update(scheduler.schedule(0.0), NOTHING_ENDED, 0.0)

    benchmark.pedantic(step, rounds=5, iterations=2000, warmup_rounds=1)
