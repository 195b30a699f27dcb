"""Time the works; `make bench` prints the table and saves it."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture
from work import MOONCAKE, WORKS, Measured, measure

RESULTS = Path(__file__).parent / "results.json"
ROUNDS = {"d": 1}
_rows: dict[str, dict[str, float]] = {}


def alone(work: str, skip: bool) -> Measured:
    """Measure in a process of its own, so that peak memory is this work's."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(measure, (work,), {"skip": skip})


@pytest.mark.parametrize("work", WORKS)
def test_work(work: str, benchmark: BenchmarkFixture) -> None:
    if work == "c" and not MOONCAKE.exists():
        pytest.skip("needs ../shared/data")
    rounds = ROUNDS.get(work, 3)
    taken: list[Measured] = []
    benchmark.pedantic(lambda: taken.append(alone(work, True)), rounds=rounds)
    best = min(taken, key=lambda one: one.total / one.timeout)
    row = best.row()
    if work != "d":
        ticked = alone(work, False)
        row["ticked_over_skipped"] = (ticked.total / ticked.timeout) / (best.total / best.timeout)
    benchmark.extra_info.update(row)
    _rows[work] = row


def test_print_table() -> None:
    columns = ("cpu_s", "us_per_request", "timeouts_per_request", "ticked_over_skipped", "skipped_share")
    columns += ("requests_per_s", "tokens_per_s", "decisions_per_s", "peak_mib")
    print(f"\n{'work':<17}" + "".join(f"{name:>22}" for name in columns))
    for work, row in _rows.items():
        print(f"{work:<17}" + "".join(f"{row.get(name, float('nan')):>22,.2f}" for name in columns))
    RESULTS.write_text(json.dumps(_rows, indent=1) + "\n")
