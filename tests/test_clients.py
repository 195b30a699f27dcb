"""What clients do besides sending: look something up first, and give up."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from simulator.errors import ConfigError
from simulator.workload import Workload, generate


def workload(n: int) -> Workload:
    return generate({"kind": "all_at_once"}, {"kind": "constant", "prompt": 10, "output": 1}, n)


def rng() -> np.random.Generator:
    return np.random.default_rng(3)


def test_a_delay_before_the_server_is_fixed_or_lognormal_with_its_mean() -> None:
    fixed = workload(3).with_pre_delay(0.2, rng())
    assert fixed.pre_delay is not None
    assert fixed.pre_delay.tolist() == [0.2] * 3
    drawn = workload(20_000).with_pre_delay({"lognormal": {"mean": 0.2, "sigma": 0.5}}, rng())
    assert drawn.pre_delay is not None
    assert drawn.pre_delay.mean() == pytest.approx(0.2, rel=0.02)
    assert np.log(drawn.pre_delay).std() == pytest.approx(0.5, rel=0.02)


def test_a_fraction_of_the_clients_gives_up() -> None:
    w = workload(10_000).with_cancel(0.1, 5.0, rng())
    assert w.cancel_after is not None
    assert (w.cancel_after == 5.0).mean() == pytest.approx(0.1, abs=0.01)
    assert np.isnan(w.cancel_after).sum() + (w.cancel_after == 5.0).sum() == 10_000
    none, all_of_them = (workload(5).with_cancel(f, 1.0, rng()).cancel_after for f in (0.0, 1.0))
    assert none is not None
    assert all_of_them is not None
    assert np.isnan(none).all()
    assert (all_of_them == 1.0).all()


@pytest.mark.parametrize(
    "delay",
    [
        -1,
        float("nan"),
        "soon",
        {"normal": {}},
        {"lognormal": {"mean": 1}},
        {"lognormal": {"mean": 1, "sigma": -1}},
    ],
)
def test_delays_that_cannot_be_are_named(delay: Any) -> None:  # Any: as a scenario may have it
    with pytest.raises(ConfigError, match=r"workload.pre_delay_s"):
        workload(1).with_pre_delay(delay, rng())


@pytest.mark.parametrize(("fraction", "after_s"), [(1.5, 1), (-0.1, 1), (0.5, -1), (0.5, float("inf"))])
def test_cancels_that_cannot_be_are_named(fraction: float, after_s: float) -> None:
    with pytest.raises(ConfigError, match=r"workload.cancel"):
        workload(1).with_cancel(fraction, after_s, rng())


def test_a_closed_loop_is_told_to_the_engine() -> None:
    lengths = {"kind": "constant", "prompt": 10, "output": 1}
    w = generate({"kind": "closed_loop", "clients": 8, "think_s": 2}, lengths, 20)
    assert w.closed_loop == (8, 2.0)
    assert not w.arrival.any()
    assert generate({"kind": "poisson", "rate": 1}, lengths, 20).closed_loop is None
