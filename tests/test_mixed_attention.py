"""Attention of steps that prefill: the measured grid, the form beyond it, and how a profile uses them."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibration.fit_mixed import Rows, fit_form, fit_mixed, grid_axes, predict, predict_form
from simulator.errors import InputError
from simulator.latency.base import StepFeatures
from simulator.latency.checked_json import Section
from simulator.latency.mixed import Mixed, MixedForm
from simulator.latency.profile import Profile
from simulator.latency.profile_file import SHIPPED, load_profile, profile_of

FORM = MixedForm(6e-6, 4e-8, 1e-10, 1e-6, 9e-9, 3e-8, 2.0)
AXES = ((16.0, 64.0, 256.0), (0.0, 128.0, 1024.0), (0.0, 1.0, 8.0, 32.0), (16.0, 512.0, 2048.0))
RTX = ("rtx4090", "rtxpro6000")


def step(chunks: list[tuple[int, int]], kv_lens: list[int]) -> StepFeatures:
    """Describe a mixed step of chunks given as (length, tokens before it) and decodes."""
    prefill, decode = StepFeatures.prefill(chunks), StepFeatures.decode(kv_lens)
    both = (a + b for a, b in zip(prefill, decode, strict=True))
    return StepFeatures._make(both)


@cache
def shipped(name: str) -> Profile:
    return load_profile(name, "llama-3.1-8b")


def cells(axes: tuple[tuple[float, ...], ...] = AXES) -> Rows:
    """Return every cell of a grid, priced by the form."""
    at = [c.ravel() for c in np.meshgrid(*axes, indexing="ij")]
    rows = Rows._make([*at, np.zeros(at[0].size)])
    return rows._replace(seconds=predict_form(FORM, rows))


def grid() -> Mixed:
    return Mixed(AXES, cells().seconds.reshape([len(axis) for axis in AXES]), FORM)


def test_a_cell_of_the_grid_is_its_measurement_and_between_cells_is_the_mean() -> None:
    rng = np.random.default_rng(0)
    table = rng.random((3, 3, 4, 3)) + 1
    mixed = Mixed(AXES, table, FORM)
    assert mixed.seconds(step([(64, 128)], [512] * 8)) == pytest.approx(table[1, 1, 2, 1])
    assert mixed.seconds(step([(256, 1024)], [2048] * 32)) == pytest.approx(table[2, 2, 3, 2])
    half = mixed.seconds(step([(64, 128)], [1280] * 8))
    assert half == pytest.approx((table[1, 1, 2, 1] + table[1, 1, 2, 2]) / 2)
    half = mixed.seconds(step([(160, 0)], [512] * 20))
    assert half == pytest.approx(table[1:3, 0, 2:4, 1].mean())
    assert mixed.seconds(step([(8, 0)], [16])) == pytest.approx(table[0, 0, 1, 0])  # flat below the grid


def test_several_chunks_count_as_one_of_their_work() -> None:
    mixed = grid()
    one = mixed.seconds(step([(128, 0)], [512] * 8))
    four = mixed.seconds(step([(64, 0)] * 4, [512] * 8))  # 4 * 64^2 / 2 = 128^2 / 2
    assert four == pytest.approx(one)
    assert four < mixed.seconds(step([(256, 0)], [512] * 8))


def test_beyond_the_grid_time_goes_on_without_a_jump_and_never_falls() -> None:
    mixed = grid()
    edge = mixed.seconds(step([(256, 1024)], [2048] * 32))
    assert mixed.seconds(step([(256, 1025)], [2048] * 32)) == pytest.approx(edge, rel=0.01)
    assert mixed.seconds(step([(256, 1024)], [2049] * 32)) == pytest.approx(edge, rel=0.01)
    for longer in (
        [mixed.seconds(step([(256, kv)], [100] * 8)) for kv in range(1024, 20_000, 997)],
        [mixed.seconds(step([(256, 0)], [100] * n)) for n in range(32, 400, 31)],
        [mixed.seconds(step([(s, 0)], [100] * 8)) for s in range(256, 9000, 777)],
        [mixed.seconds(step([(64, 0)], [kv] * 8)) for kv in range(2048, 90_000, 7001)],
    ):
        assert np.all(np.diff(longer) > 0)


def test_a_missing_cell_is_filled_from_its_neighbours() -> None:
    rows = cells()
    rows = rows.take(rows.decodes > 0)
    gap = (rows.chunk == 64) & (rows.prefix == 128) & (rows.decodes == 8) & (rows.kv == 512)
    gap |= (rows.chunk == 16) & (rows.prefix == 0) & (rows.decodes == 1) & (rows.kv == 16)
    alone = rows.take((rows.decodes == 1) & (rows.kv == 16))
    alone = alone._replace(decodes=np.zeros(9), kv=np.zeros(9))
    alone = alone._replace(seconds=predict_form(FORM, alone))
    kept = Rows._make(np.concatenate(pair) for pair in zip(rows.take(~gap), alone, strict=True))
    mixed = fit_mixed(kept, AXES)
    assert predict(mixed, rows.take(gap)) == pytest.approx(rows.take(gap).seconds, rel=0.05)


def test_the_form_is_found_again() -> None:
    axes = tuple(tuple(float(2**i) for i in range(4, 12)) for _ in range(4))
    rows = cells(axes)
    found = fit_form(rows)
    assert predict_form(found, rows) == pytest.approx(rows.seconds, rel=0.01)
    assert found.power == pytest.approx(FORM.power, rel=0.05)


def test_the_grid_takes_the_values_measured_together_over_the_widest_range() -> None:
    rows = cells(((16.0, 64.0, 256.0), (0.0, 16.0, 1024.0), (1.0, 8.0), (16.0, 512.0)))
    extra = cells(((24.0, 48.0, 100.0, 180.0), (0.0, 512.0, 700.0, 900.0), (1.0, 8.0), (16.0, 512.0)))
    both = Rows._make(np.concatenate(pair) for pair in zip(rows, extra, strict=True))
    assert grid_axes(both) == ((16, 64, 256), (0, 16, 1024), (0, 1, 8), (16, 512))


@pytest.mark.parametrize("name", RTX)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_shipped_mixed_step_is_positive_and_takes_no_less_than_its_kv_must(
    name: str, data: st.DataObject
) -> None:
    profile = shipped(name)
    chunks = data.draw(
        st.lists(st.tuples(st.integers(1, 4000), st.integers(0, 30_000)), min_size=1, max_size=4)
    )
    kv_lens = data.draw(st.lists(st.integers(1, 40_000), max_size=200))
    each = step(chunks, kv_lens)
    seconds = profile.step_time(each)
    weights = profile.dense[1]
    assert 0.5 * weights < seconds < 1e3
    assert np.isfinite(seconds)
    assert seconds == profile.step_time(each)


@pytest.mark.parametrize("name", RTX)
def test_pure_decode_steps_are_untouched_by_the_grid_and_bitwise_as_one_by_one(name: str) -> None:
    profile = load_profile(name, "llama-3.1-8b")
    added = replace(profile, mixed=None)
    start = StepFeatures.decode([100, 900, 2000])
    many = profile.decode_times(start, 50)
    for i, seconds in enumerate(many):
        each = start._replace(decode_kv=start.decode_kv + 3 * i, decode_kv_max=start.decode_kv_max + i)
        assert profile.step_time(each) == seconds == added.step_time(each)
    mixed = step([(512, 0)], [1000] * 100)
    assert profile.step_time(mixed) > 1.02 * added.step_time(mixed)  # decode loses split-KV beside a prefill


def test_what_lies_beyond_the_grid_is_marked() -> None:
    profile = load_profile("rtx4090", "llama-3.1-8b")
    steps = [
        step([(512, 0)], [1000] * 100),
        step([(512, 0)], [1000] * 200),
        step([(512, 17_000)], [1000] * 8),
        StepFeatures.decode([1000] * 200),
    ]
    table = {name: np.array([getattr(s, name) for s in steps]) for name in StepFeatures._fields}
    assert profile.extrapolated(table).tolist() == [False, True, True, False]


def test_the_grid_moves_with_the_gpu_and_with_a_drawn_error() -> None:
    profile = load_profile("rtx4090", "llama-3.1-8b")
    mixed = step([(512, 0)], [1000] * 100)

    def attention(each: Profile) -> float:
        assert each.mixed is not None
        return each.mixed.seconds(mixed)

    base = attention(profile)
    assert attention(profile.scaled(2, 2)) == pytest.approx(base / 2)
    assert base / 2 < attention(profile.scaled(2, 1)) < base
    beyond = step([(512, 20_000)], [1000] * 100)
    assert profile.scaled(2, 2).mixed.seconds(beyond) == pytest.approx(profile.mixed.seconds(beyond) / 2)  # type: ignore[union-attr]
    assert len({attention(each) for each in profile.draws(4)}) == 4


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("prefix", [16, 32], "prefix must start at 0 and rise"),
        ("decodes", [0, 8, 8], "decodes must start at 0 and rise"),
        ("chunk", [16, 16], "must start at 1 or more and rise"),
        ("us", [[1.0, 2.0]], "us must have"),
        ("form", {}, "lacks 'constant_us'"),
    ],
)
def test_a_corrupt_grid_is_refused_in_one_line(field: str, value: object, why: str) -> None:
    text = json.loads((SHIPPED / "rtx4090.json").read_text())
    broken = copy.deepcopy(text)
    broken["models"]["llama-3.1-8b"]["mixed_attention"][field] = value
    with pytest.raises(InputError, match=f"mixed_attention.*{why}"):
        profile_of(Section(broken, "mine.json"), "llama-3.1-8b")


def test_a_time_of_zero_in_the_grid_is_refused() -> None:
    text = json.loads((SHIPPED / "rtx4090.json").read_text())
    text["models"]["llama-3.1-8b"]["mixed_attention"]["us"][3][0] = 0.0
    with pytest.raises(InputError, match="mixed_attention: us must be > 0"):
        profile_of(Section(text, str(Path("mine.json"))), "llama-3.1-8b")


def test_the_provenance_says_what_is_known_of_mixed_steps() -> None:
    assert "mixed steps: measured" in load_profile("rtx4090", "llama-3.1-8b").provenance
    assert "additive, unverified" in load_profile("a100-80gb-sxm", "llama-3.1-8b").provenance
