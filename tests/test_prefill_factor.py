"""The factor on prefill attention: what it reads, what it never does, and what a fit finds of it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibration.fit_prefill import fit_prefill_residual
from calibration.timings import Timing
from simulator.errors import InputError
from simulator.latency.base import StepFeatures
from simulator.latency.prefill import PrefillFactor, PrefillPrice
from simulator.latency.profile_file import SHIPPED, load_profile
from simulator.latency.roofline import PrefillTerms, Roofline
from simulator.specs.hardware import get_hardware
from simulator.specs.shipped_models import get_model

LINE = PrefillTerms(10e-6, 1e-6, 20e-9, 0.1e-9, 0.0)
LENGTHS, CHUNKS = np.array([16.0, 64.0, 256.0, 1024.0]), np.array([1.0, 4.0, 16.0])
SMOOTH = np.array([[1.0, 1.1, 1.0], [1.1, 1.2, 1.0], [1.3, 1.1, 1.0], [1.2, 1.0, 1.0]])
TRUTH = Roofline.of(get_hardware("a100-80gb-sxm"), get_model("llama-3-8b"))


def price(factor: np.ndarray, peak: float = 0.0, line: PrefillTerms = LINE) -> PrefillPrice:
    return PrefillPrice(line, PrefillFactor(LENGTHS, CHUNKS, factor), peak)


def seconds(found: PrefillPrice, chunks: int, length: float, prefix: float = 0.0) -> float:
    return found.seconds(chunks, int(chunks * length), chunks * length * (prefix + length / 2), 0)


def ratio(found: PrefillPrice, chunks: int, length: float) -> float:
    return seconds(found, chunks, length) / seconds(PrefillPrice(LINE, None, 0.0), chunks, length)


def test_the_factor_is_read_at_the_mean_length_and_the_number_of_chunks() -> None:
    found = price(SMOOTH)
    assert ratio(found, 4, 64) == pytest.approx(1.2)
    assert ratio(found, 1, 160) == pytest.approx(1.2)  # half-way between 64 and 256
    assert ratio(found, 2, 64) == pytest.approx(np.sqrt(1.1 * 1.2))  # half-way between 1 and 4 in logs
    assert ratio(found, 1, 5) == pytest.approx(1.0)
    assert ratio(found, 1, 90_000) == pytest.approx(1.2)
    assert ratio(found, 900, 64) == pytest.approx(1.0)


def test_a_step_without_chunks_is_priced_all_the_same() -> None:
    assert price(SMOOTH).seconds(0, 64, 0.0, 0) > 0


tables = st.lists(st.floats(0.2, 5.0), min_size=12, max_size=12).map(
    lambda cells: np.array(cells).reshape(4, 3)
)


@settings(max_examples=200)
@given(
    factor=tables,
    chunks=st.integers(1, 40),
    length=st.integers(1, 3000),
    more=st.integers(1, 500),
    prefix=st.integers(0, 50_000),
)
def test_longer_chunks_never_cost_less_whatever_the_table_says(
    factor: np.ndarray, chunks: int, length: int, more: int, prefix: int
) -> None:
    found = price(factor)
    longer = seconds(found, chunks, length + more, prefix)
    assert longer >= (1 - 1e-12) * seconds(found, chunks, length, prefix)


@settings(max_examples=100)
@given(factor=tables, chunks=st.integers(1, 40), length=st.integers(1, 3000), prefix=st.integers(0, 50_000))
def test_pairs_never_beat_the_peak_and_nothing_is_below_the_least_terms(
    factor: np.ndarray, chunks: int, length: int, prefix: int
) -> None:
    peak = 0.6 * LINE.per_work
    found = price(factor, peak)
    pairs = chunks * length * (prefix + length / 2)
    assert seconds(found, chunks, length, prefix) >= peak * pairs
    least = PrefillPrice(found.least(), None, 0.0)
    assert seconds(found, chunks, length, prefix) >= (1 - 1e-12) * seconds(least, chunks, length, prefix)


def row(batch: int, tokens: int, seconds: float, heads: int = 32) -> Timing:
    return Timing(
        "prefill_attention", seconds, "mine 1", "gpu", batch=batch, tokens=tokens, heads=heads, kv_heads=8
    )


def waves(heads: int) -> list[Timing]:
    """A GPU that takes 1.3 times the line where a wave is half empty, which depends on the heads."""
    rows = []
    for b in (1, 2, 4, 8):
        for s in (64, 128, 256, 512, 1024, 2048):
            line = 10e-6 + heads / 32 * (1e-6 * b + 20e-9 * b * s + 0.1e-9 * b * s * s / 2)
            slow = 1.3 if b * s * heads == 256 * 32 else 1.0
            rows.append(row(b, s, slow * line, heads))
    return rows


def test_a_fit_finds_the_waves_of_each_head_configuration() -> None:
    rows = [*waves(32), *waves(16)]
    fit = fit_prefill_residual(rows, TRUTH)
    assert fit.seconds(rows) == pytest.approx([t.seconds for t in rows], rel=1e-3)
    between = fit.factor({(32, 8): 0.5, (16, 8): 0.5})
    assert between is not None
    assert between.factor[2, 0] == pytest.approx(
        np.sqrt(1.3), rel=0.05
    )  # 256 tokens of one: slow with 32 heads


def test_a_cell_that_nobody_measured_lies_between_its_neighbours() -> None:
    rows = waves(32)
    gone = next(i for i, t in enumerate(rows) if (t.batch, t.tokens) == (2, 512))
    fit = fit_prefill_residual(rows[:gone] + rows[gone + 1 :], TRUTH)
    assert fit.seconds([rows[gone]])[0] == pytest.approx(rows[gone].seconds, rel=0.05)


def test_rows_of_one_length_or_one_batch_leave_the_line_alone() -> None:
    fit = fit_prefill_residual([t for t in waves(32) if t.batch == 2], TRUTH)
    assert fit.factor({(32, 8): 1.0}) is None


def changed(tmp_path: Path, change: dict[str, object] | None) -> Path:
    """The shipped A100 profile with another residual in Llama-3-8B's section, or with none."""
    file = json.loads((SHIPPED / "a100-80gb-sxm.json").read_text(encoding="utf-8"))
    line = file["models"]["llama-3-8b"]["prefill_attention"]
    if change is None:
        del line["residual"]
    else:
        line["residual"] |= change
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(file), encoding="utf-8")
    return path


def test_a_profile_without_a_residual_is_the_line(tmp_path: Path) -> None:
    old = load_profile(changed(tmp_path, None), "llama-3-8b")
    new = load_profile("a100-80gb-sxm", "llama-3-8b")
    assert old.prefill_factor is None
    assert old.least_prefill == old.prefill == new.prefill
    one, many = (StepFeatures.prefill([(256, 0)] * n) for n in (1, 16))
    rises = [new.step_time(step) - old.step_time(step) for step in (one, many)]
    assert rises[0] > 0
    decode = StepFeatures.decode([100, 900])
    assert new.step_time(decode) == old.step_time(decode)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"chunks": [1, 1, 2]}, "chunks must start at 1 or more and rise"),
        ({"factor": [[1.0, 1.0]]}, "factor must have 16 rows"),
        ({"factor": [[9.0] * 9] * 16}, "factor must be between 0.2 and 5"),
        ({"chunks": [1, 2, 4, 8, 16, 32, 64, 128, 10**6]}, "chunks must end at 4096 or before"),
    ],
)
def test_a_residual_that_cannot_be_is_refused(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    with pytest.raises(InputError, match=f"residual.*{message}"):
        load_profile(changed(tmp_path, change), "llama-3-8b")
