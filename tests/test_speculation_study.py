"""benchmarks/speculation.py: a table by batch size and acceptance, and a figure."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))
import speculation
from speculation import Cell, Gain

from simulator.speculative import expected_tokens, same_rate


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"PROMPT": 64, "OUTPUT": 40, "NUM_DRAWS": 19, "NUM_SEEDS": 1}.items():
        monkeypatch.setattr(speculation, name, value)
    speculation.plain_rates.cache_clear()
    speculation.models.cache_clear()


def test_a_gain_is_tokens_a_step_over_the_price_of_a_step() -> None:
    """64 sequences with 3 drafts: the formula's tokens, and an interval that holds the nominal value."""
    cell = Cell("n-gram, 3 drafts", 64, 0.8)
    found = speculation.gain(cell)
    assert found.low < found.nominal < found.high
    assert found.drafts == 3.0
    keys = speculation.WAYS[cell.way] | {"acceptance": cell.rate}
    plain, drafted = (speculation.decode(64, each, 0) for each in (None, keys))
    assert plain.tokens == 64
    assert drafted.tokens / 64 == pytest.approx(expected_tokens(same_rate(0.8, 3)), abs=0.15)
    price = speculation.models(cell.way)[0]
    times = [speculation.seconds(price, run.steps) for run in (plain, drafted)]
    assert found.nominal == pytest.approx(drafted.tokens / 64 * times[0] / times[1], rel=0.05)


def test_the_tables_and_the_figure(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    figure = tmp_path / "f.html"
    asked = ["--batches", "1,128", "--rates", "0.4,0.9", "--ways", "n-gram", "--figure", str(figure)]
    speculation.main(asked)
    printed = capsys.readouterr().out
    lines = printed.splitlines()
    assert [line for line in lines if line.startswith("n-gram")] == [
        way for way in speculation.WAYS if "n-gram" in way
    ]
    assert lines.count("| batch | 40 % accepted | 90 % accepted |") == 3
    five = lines.index("n-gram, 5 drafts")
    assert lines[five + 4].startswith("| 1 | **1.")
    assert lines[five + 5].startswith("| 128 | ~~0.")
    assert ", 5.0 drafts" in lines[lines.index("n-gram, auto") + 4]
    assert "n-gram, auto" in figure.read_text()


def test_a_gain_says_whether_it_can_be_told() -> None:
    assert [Gain(1.1, low, high, 3.0).sign for low, high in ((1.01, 1.2), (0.9, 1.2), (0.7, 0.9))] == [
        1,
        0,
        -1,
    ]
