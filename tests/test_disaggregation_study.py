"""benchmarks/disaggregation.py: goodput by bisection, break-even bandwidths, tables and a figure."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
import disaggregation as study  # noqa: E402


@pytest.mark.parametrize("guess", [None, 0, 6, 7, 10, 40, study.NUM_RATES])
def test_capacity_is_where_the_share_falls_below_the_goal(guess: int | None) -> None:
    assert study.capacity(lambda step: 1 - step / 100, 0.9, guess) == pytest.approx(10)
    assert study.capacity(lambda step: float(step < 7), 0.9, guess) == pytest.approx(6.1)
    assert study.rate_a_gpu(study.capacity(lambda step: 0.5, 0.9, guess)) == 0.0


def test_break_even_is_the_link_from_which_on_it_pays() -> None:
    assert study.break_even([1.0, 4.0], [0.5, 1.5]) == pytest.approx(2.0)
    assert study.break_even([1.0, 4.0, 9.0], [1.2, 0.5, 1.0]) == pytest.approx(9.0), "for good"
    assert study.break_even([1.0, 4.0], [0.5, 0.9]) is None
    assert study.break_even([1.0, 4.0], [1.5, 1.5]) == 0.0


def test_latencies_are_those_of_the_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study, "REQUESTS_A_GPU", 10)
    job = study.Job("code", study.Arm(4, 3), 1)
    served = study.serve(job, 0, 1.0)
    ttft, tpot = study.latencies(served)
    assert len(ttft) == 40
    assert (ttft > 0).all()
    assert len(served.transfers) > 0
    num = np.array([each.num_output for each in study.requests_of("code", 0, 40)])
    late = np.array(served.log.finished_at) - np.array(served.log.arrived_at)
    assert ttft + tpot * (num - 1) == pytest.approx(late)


def test_tables_and_figure(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """From numbers alone: nothing is run that is found."""
    found = {}
    for load in study.LOADS:
        for arm in study.arms(4):
            rate = 10.0 + arm.num_prefill
            found[study.key_of(load, arm)] = [[rate] * 2, [rate * 1.1] * 2]
        for link in study.BANDWIDTHS:
            for layerwise in (False, True):
                arm = study.Arm(4, 3, bandwidth=link, layerwise=layerwise)
                rate = 13.0 if link >= 1.6 else 9.0
                found.setdefault(study.key_of(load, arm), [[rate] * 2, [rate * 1.1] * 2])
    file, page = tmp_path / "found.json", tmp_path / "figure.html"
    file.write_text(json.dumps(found))
    study.main(["--gpus", "4", "--seeds", "2", "--found", str(file), "--figure", str(page)])
    said = capsys.readouterr().out
    assert "| code | 4 | 90% | 50 | 512 | 10.5 (4.1 to 16.9) | 3P:1D | 13.7 (5.4 to 21.9) | 1.30 (" in said
    assert "| code, 3P:1D | 50 | whole | 0.90 | 0.90 | 1.30 |" in said
    assert "| 1.30 | 0.95 (0.95 to 0.95) |" in said
    assert page.stat().st_size > 10_000
