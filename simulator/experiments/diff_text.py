"""A comparison of two runs as lines of text."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulator.experiments.diff_result import Diff, MetricChange

STEP_TITLES = ("kind of step", "count", "measured (ms)", "model (ms)", "MAPE", "bias")


def diff_text(found: Diff) -> str:
    """Return the notes, the metrics, the step times by kind, and where the decisions part."""
    lines = [f"Note: {note}" for note in found.notes]
    titles, rows = metric_rows(found)
    lines.append(f"{titles[0]:<28}" + "".join(f"{title:>14}" for title in titles[1:3]) + _cells(titles[3:]))
    for name, a, b, *rest in rows:
        lines.append(f"{name:<28}{a:>14}{b:>14}{_cells(rest)}".rstrip())
    if found.steps:
        lines += ["", f"{STEP_TITLES[0]:<14}" + "".join(f"{title:>15}" for title in STEP_TITLES[1:])]
        for kind, *numbers in step_rows(found):
            lines.append(f"{kind:<14}" + "".join(f"{number:>15}" for number in numbers))
    return "\n".join([*lines, *decision_lines(found)])


def metric_rows(found: Diff) -> tuple[list[str], list[list[str]]]:
    """Return the titles and rows of the metrics' table; columns that nothing fills are left out."""
    is_split, has_noise = found.resimulated is not None, any(m.noise is not None for m in found.metrics)
    titles = ["metric", *found.names, "error" if found.names[1] == "model" else "change"]
    titles += ["timing", "decisions"] if is_split else []
    titles += ["noise", ""] if has_noise else []
    return titles, [_row(change, is_split, has_noise) for change in found.metrics]


def _row(change: MetricChange, is_split: bool, has_noise: bool) -> list[str]:
    cells = [change.name, number(change.a), number(change.b), percent(change.percent)]
    if is_split:
        cells += [percent(change.share(part)) for part in (change.timing, change.decisions)]
    if has_noise:
        noise = "" if change.noise is None else f"{change.noise:.2f}%"
        cells += [noise, "within noise" if change.is_within_noise else ""]
    return cells


def step_rows(found: Diff) -> list[list[str]]:
    """Return the rows under STEP_TITLES."""
    return [
        [
            each.kind,
            f"{each.count:,}",
            f"{each.measured_ms:,.3f}",
            f"{each.model_ms:,.3f}",
            f"{each.mape:.1f}%",
            percent(each.bias),
        ]
        for each in found.steps
    ]


def decision_lines(found: Diff) -> list[str]:
    """Return where the decisions part, and where they do once the measured times are given."""
    if found.num_steps is None:
        lines = ["decisions: not compared (run both with --log decisions)"]
    elif found.divergence is None:
        lines = [f"decisions: identical in all {found.num_steps[0]:,} steps"]
    else:
        lines = found.divergence.lines(found.actors)
    again = found.resimulated
    if again is None:
        return lines
    told = again.reach["told"]
    assert isinstance(told, list)
    lines.append(f"at the times of {found.actors[0]}, the policies of {found.actors[1]}:")
    if again.divergence is not None:
        parting = again.divergence.lines((found.actors[0], "re-simulated"))
    elif found.num_steps is None:
        parting = ["decisions: not compared"]
    else:
        parting = [f"decisions: identical in all {again.num_steps:,} steps"]
    return [*lines, *(f"  {line}" for line in [*parting, *told])]


def number(value: float | None) -> str:
    """Return a metric's value, "n/a" for none."""
    if value is None:
        return "n/a"
    return f"{value:,.2f}" if abs(value) >= 1 or value == 0 else f"{value:.4f}"


def percent(value: float | None) -> str:
    """Return a change in percent, nothing for none."""
    return "" if value is None else f"{value:+.2f}%"


def _cells(cells: list[str]) -> str:
    return "".join(f"{cell:>14}" if cell == "within noise" else f"{cell:>11}" for cell in cells)
