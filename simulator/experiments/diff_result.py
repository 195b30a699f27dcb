"""What comparing two runs found: each metric with its parts, step times by kind, where decisions part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from simulator.errors import ConfigError, suggest
from simulator.experiments.diff_report import body_html, save_diff
from simulator.experiments.diff_text import diff_text
from simulator.experiments.divergence import Divergence
from simulator.experiments.step_errors import KindError, StepTimes


@dataclass(frozen=True, slots=True)
class MetricChange:
    """One metric of two runs; `percent` is None where it makes no sense.

    `noise` is by how many percent repeated runs differ from a, `resimulated` the metric of run a simulated
    again at its own times; None where that was not asked for.
    """

    name: str
    a: float | None
    b: float | None
    percent: float | None
    noise: float | None = None
    resimulated: float | None = None

    @property
    def is_within_noise(self) -> bool | None:
        """Whether the machine differs as much from itself; None if either is unknown."""
        return None if self.percent is None or self.noise is None else abs(self.percent) <= self.noise

    @property
    def timing(self) -> float | None:
        """The part of b - a that comes from step times, in the metric's unit."""
        return None if self.b is None or self.resimulated is None else self.b - self.resimulated

    @property
    def decisions(self) -> float | None:
        """The part of b - a that comes from deciding otherwise at the same times, in the metric's unit."""
        return None if self.a is None or self.resimulated is None else self.resimulated - self.a

    def share(self, part: float | None) -> float | None:
        """Return a part of the change in percent of a."""
        return None if part is None or not self.a else 100 * part / self.a

    def to_dict(self) -> dict[str, object]:
        found: dict[str, object] = {"a": self.a, "b": self.b, "percent": self.percent}
        if self.noise is not None:
            found |= {"noise_percent": self.noise, "is_within_noise": self.is_within_noise}
        if self.resimulated is not None:
            found["resimulated"] = self.resimulated
            found |= {"timing": self.timing, "decisions": self.decisions}
        return found


@dataclass(frozen=True, slots=True)
class Resimulated:
    """Run a at its own times under the policies of run b: how far the record reached, and where they part."""

    reach: Mapping[str, object]
    num_steps: int
    divergence: Divergence | None


@dataclass(frozen=True, slots=True)
class Diff:
    """What differs between two runs, `names` being what they are called in print.

    `notes` are what must be known beside it. `num_steps` is None unless both have decision logs; `steps` are
    errors of step times by kind, from `times`, and `resimulated` tells of the split; both only where asked.
    """

    metrics: tuple[MetricChange, ...]
    num_steps: tuple[int, int] | None
    divergence: Divergence | None
    names: tuple[str, str] = ("A", "B")
    notes: tuple[str, ...] = ()
    steps: tuple[KindError, ...] = ()
    times: StepTimes | None = None
    resimulated: Resimulated | None = None

    def to_dict(self) -> dict[str, object]:
        again = self.resimulated
        return {
            "names": self.names,
            "notes": self.notes,
            "metrics": {change.name: change.to_dict() for change in self.metrics},
            "steps": [asdict(each) for each in self.steps],
            "num_steps": self.num_steps,
            "divergence": self.divergence and self.divergence.to_dict(),
            "resimulated": again
            and {
                **again.reach,
                "num_steps": again.num_steps,
                "divergence": again.divergence and again.divergence.to_dict(),
            },
        }

    @property
    def actors(self) -> tuple[str, str]:
        """What the runs are called in a sentence."""
        return ("machine" if self.names[0] == "measured" else self.names[0]), self.names[1]

    def text(self) -> str:
        """Return the comparison as aligned lines."""
        return diff_text(self)

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        return body_html(self)

    def save(self, folder: str | Path) -> list[Path]:
        """Write diff.json and diff.html and return their paths."""
        return save_diff(self, Path(folder))

    def over(self, limits: Mapping[str, float]) -> list[str]:
        """Return a line for each metric that changed by more than its limit (percent)."""
        known = {change.name: change for change in self.metrics}
        found = []
        for name, limit in limits.items():
            if name not in known:
                raise ConfigError(f"--limit {name}: no such metric{suggest(name, known)}")
            change = known[name]
            if change.percent is not None and abs(change.percent) > limit:
                found.append(f"{name} changed by {change.percent:+.2f} %, limit {limit:g} %")
        return found
