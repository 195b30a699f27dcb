"""Two runs side by side: every metric, and the first decision in which they part."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from simulator.engine.decisions import Decision
from simulator.errors import ConfigError, suggest
from simulator.experiments.run_folder import SavedRun

OWN = (
    "attainment",
    "num_preemptions",
    "prefix_hit_rate",
    "kv_usage_mean",
    "oldest_wait_s",
    "jain_service",
    "jain_latency",
)


@dataclass(frozen=True, slots=True)
class MetricChange:
    """One metric of two runs; `percent` is None where it makes no sense."""

    name: str
    a: float | None
    b: float | None
    percent: float | None


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first step whose decisions differ; a or b is None where that run has no such step."""

    step: int
    fields: tuple[str, ...]
    a: Decision | None
    b: Decision | None


@dataclass(frozen=True, slots=True)
class Diff:
    """What differs between two runs. `num_steps` is None unless both have decision logs."""

    metrics: tuple[MetricChange, ...]
    num_steps: tuple[int, int] | None
    divergence: Divergence | None

    def to_dict(self) -> dict[str, object]:
        metrics = {
            change.name: {"a": change.a, "b": change.b, "percent": change.percent} for change in self.metrics
        }
        parting = self.divergence
        return {
            "metrics": metrics,
            "num_steps": self.num_steps,
            "divergence": parting
            and {"step": parting.step, "fields": parting.fields, "a": parting.a, "b": parting.b},
        }

    def text(self) -> str:
        """Return the comparison as aligned lines."""
        lines = [f"{'metric':<28}{'A':>14}{'B':>14}{'change':>10}"]
        for change in self.metrics:
            percent = "" if change.percent is None else f"{change.percent:+.2f}%"
            lines.append(f"{change.name:<28}{_number(change.a):>14}{_number(change.b):>14}{percent:>10}")
        if self.num_steps is None:
            lines.append("decisions: not compared (run both with --log decisions)")
        elif self.divergence is None:
            lines.append(f"decisions: identical in all {self.num_steps[0]:,} steps")
        else:
            parting = self.divergence
            lines.append(f"decisions: first difference in step {parting.step} ({', '.join(parting.fields)})")
            lines.append(f"  A: {json.dumps(parting.a)}")
            lines.append(f"  B: {json.dumps(parting.b)}")
        return "\n".join(lines)

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


def diff(a: SavedRun, b: SavedRun) -> Diff:
    """Compare two runs: all numbers of their summaries, and their decisions where both logged them."""
    one, other = figures(a.summary), figures(b.summary)
    names = [name for name in one if name in other and (_is_number(one[name]) or _is_number(other[name]))]
    metrics = tuple(_change(name, one[name], other[name]) for name in names)
    if a.decisions is None or b.decisions is None:
        return Diff(metrics, None, None)
    return Diff(metrics, (len(a.decisions), len(b.decisions)), first_divergence(a.decisions, b.decisions))


def figures(summary: Mapping[str, object]) -> dict[str, object]:
    """Return a summary's values: vLLM's keys, and those of ours that a run is judged by."""
    own = summary.get("servetwin")
    return {**summary, **{name: own[name] for name in OWN if isinstance(own, dict) and name in own}}


def first_divergence(a: list[Decision], b: list[Decision]) -> Divergence | None:
    """Return the first step in which two logs decide differently; times do not count."""
    for step, (one, other) in enumerate(zip(a, b, strict=False)):
        fields = tuple(key for key in one if key != "t" and one[key] != other.get(key))  # type: ignore[literal-required]
        if fields:
            return Divergence(step, fields, one, other)
    if len(a) != len(b):
        step = min(len(a), len(b))
        longer = (a if len(a) > len(b) else b)[step]
        return Divergence(
            step, ("steps",), longer if len(a) > len(b) else None, longer if len(b) > len(a) else None
        )
    return None


def _change(name: str, a: object, b: object) -> MetricChange:
    one, other = _as_float(a), _as_float(b)
    percent = None
    if one is not None and other is not None:
        percent = 0.0 if one == other else (100 * (other / one - 1) if one else None)
    return MetricChange(name, one, other, percent)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _as_float(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _number(value: float | None) -> str:
    if value is None:
        return "n/a"
    return f"{value:,.2f}" if abs(value) >= 1 or value == 0 else f"{value:.4f}"
