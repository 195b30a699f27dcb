"""`make validate-cpu` on recorded numbers: what is void, what passes, what is never a pass."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path

import pytest

pytest.importorskip("torch")

from gpu_backend.measure.cpu_engine import CpuEngine
from gpu_backend.measure.validate import (
    EXIT,
    INCONCLUSIVE,
    METRICS,
    MISSED,
    PASSED,
    POLICIES,
    Summary,
    save,
    validate,
)

REAL = dict(zip(POLICIES, (400.0, 500.0, 900.0), strict=True))  # ms, all metrics alike


def summary(value: float) -> Summary:
    return dict.fromkeys(METRICS, value)


class Recorded:
    """A machine that answers with given factors on REAL, one after the other."""

    def __init__(
        self,
        *,
        canaries: tuple[float, ...] = (1.0,),
        noise: tuple[float, ...] = (1.0,),
        model: dict[str, float],
    ) -> None:
        self.asked: list[str] = []
        self._canaries: Iterator[float] = cycle(canaries)
        self._noise = cycle(noise)
        self._model = model

    def canary(self) -> float:
        self.asked.append("canary")
        return 0.02 * next(self._canaries)

    def calibrate(self) -> list[str]:
        self.asked.append("calibrate")
        return ["calibrated"]

    def replay(self, policy: str) -> Summary:
        self.asked.append(policy)
        return summary(REAL[policy] * next(self._noise))

    def simulate(self, policy: str) -> Summary:
        return summary(self._model[policy])


def verdict(machine: Recorded) -> str:
    return validate(machine, lambda text: None)[-1].verdict


def test_policies_alternate_between_two_canaries() -> None:
    machine = Recorded(model=REAL)
    assert verdict(machine) == PASSED
    assert machine.asked == ["canary", "calibrate", *POLICIES, *POLICIES, "canary"]


def test_a_model_may_err_by_its_goal_and_not_more() -> None:
    assert verdict(Recorded(model={**REAL, "static": 900 * 1.09})) == PASSED
    assert verdict(Recorded(model={**REAL, "static": 900 * 1.11})) == MISSED


def test_a_wrong_ranking_alone_is_a_miss() -> None:
    close = dict(zip(POLICIES, (400.0, 410.0, 900.0), strict=True))

    class Close(Recorded):
        def replay(self, policy: str) -> Summary:
            return summary(close[policy])

    assert verdict(Close(model=close)) == PASSED
    assert verdict(Close(model={**close, "chunked": 415.0})) == MISSED


def test_a_machine_that_is_not_quiet_is_never_a_pass() -> None:
    told: list[str] = []
    moving = Recorded(canaries=(1.0, 1.06), model=REAL)
    made = validate(moving, told.append)
    assert len(made) == 4  # one, and three times again
    assert made[-1].verdict == INCONCLUSIVE
    assert sum("VOID: the canary moved by +6.0%" in text for text in told) == 4
    assert EXIT[INCONCLUSIVE] not in (EXIT[PASSED], EXIT[MISSED])
    shaky = Recorded(noise=(1.0, 1.0, 1.0, 1.06, 1.06, 1.06), model=REAL)
    assert verdict(shaky) == INCONCLUSIVE


def test_steps_that_waited_for_the_core_are_void() -> None:
    class Sharing(Recorded):
        def replay(self, policy: str) -> Summary:
            return {**super().replay(policy), "core_share": 0.8}

    told: list[str] = []
    assert validate(Sharing(model=REAL), told.append, attempts=1)[-1].verdict == INCONCLUSIVE
    assert any("a replay had 80% of its core, limit 87%" in text for text in told)


def test_a_void_attempt_is_made_again_until_it_is_quiet() -> None:
    made = validate(Recorded(canaries=(1.0, 1.2, 1.0, 1.0), model=REAL), lambda text: None)
    assert [each.verdict for each in made] == [INCONCLUSIVE, PASSED]


def test_the_noise_floor_stands_beside_each_error(tmp_path: Path) -> None:
    told: list[str] = []
    made = validate(Recorded(noise=(1.0, 1.0, 1.0, 1.04, 1.04, 1.04), model=REAL), told.append)
    (line,) = [text for text in told if text.startswith("static         median_e2el_ms")]
    assert line.split()[2:] == ["918.0", "900.0", "-2.0%", "3.9%"]
    save(tmp_path / "v" / "validate.json", made)
    saved = json.loads((tmp_path / "v" / "validate.json").read_text())
    assert saved["verdict"] == PASSED
    first = saved["attempts"][0]["metrics"][0]
    assert (first["policy"], first["metric"]) == ("chunked", "median_ttft_ms")
    assert first["error"] == pytest.approx(-2 / 102)


def test_the_engine_replays_what_is_simulated(tmp_path: Path) -> None:
    """The same scenario but for the latency model, and the policy that is asked for."""
    machine = CpuEngine(tmp_path, 2)
    assert machine.canary() > 0
    served = machine.replay("static")
    assert served["completed"] == 2
