"""benchmarks/quantisation.py: tables by load, ratios with intervals, and a figure."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
import quantisation  # noqa: E402


def test_a_ratio_is_of_pairs_and_has_an_interval() -> None:
    assert quantisation.ratio([2.0, 4.0, 8.0], [1.0, 2.0, 4.0]) == pytest.approx((2.0, 2.0, 2.0))
    low, middle, high = quantisation.ratio([1.0, 4.0], [1.0, 1.0])
    assert middle == pytest.approx(2.0)
    assert low * high == pytest.approx(4.0)
    assert high == pytest.approx(2 * np.exp(12.706 * np.log(2)), rel=1e-2)  # Student's t of one degree


def test_tables_and_a_figure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantisation, "ROUNDS", 1)
    figure = tmp_path / "q.html"
    quantisation.main(
        ["--gpus", "A100", "--clients", "1", "--seeds", "2", "--draws", "2", "--figure", str(figure)]
    )
    printed = capsys.readouterr().out
    assert printed.count("### A100, chat") == printed.count("### A100, long answers") == 1
    rows = [line.split(" | ") for line in printed.splitlines() if line.startswith("| 1 ")]
    assert len(rows) == 4  # throughput and TPOT of two loads
    for speed in rows[::2]:
        gains = [int(cell.split()[0]) for cell in speed[2:]]
        int8, int4, fp8, kv, *_ = gains
        assert int4 > int8 == fp8 > 30 > 5 > kv  # one stream: what is read counts
        assert all("[" in cell and "(" in cell for cell in speed[2:])
    assert "int4 + fp8 KV" in figure.read_text(encoding="utf-8")
