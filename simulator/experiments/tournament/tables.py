"""A tournament's tables: as cells, as text, as a data frame, as LaTeX, as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulator.experiments.metric_cells import ACCURACY, COLUMNS, cell
from simulator.experiments.tournament.paired import LEVEL, SHARES, Difference, t_interval
from simulator.experiments.tournament.rounds import ALL, SETTLED
from simulator.experiments.tournament.standing import Standing
from simulator.experiments.tournament.words import bounds_text, difference_text, lead, verdict_lines

if TYPE_CHECKING:
    import pandas as pd

_TEX = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "~": "\\textasciitilde{}",
    "^": "\\textasciicircum{}",
    "\\": "\\textbackslash{}",
    "<": "\\textless{}",
    ">": "\\textgreater{}",
    "|": "\\textbar{}",
    "\n": " ",
}


def cells(standing: Standing) -> tuple[list[str], list[list[str]]]:
    """Return titles and rows: metric and interval, difference and intervals, verdict, turning factor."""
    metric, drawn = standing.metric, standing.draws is not None
    model = ["model", "combined"] if drawn else []
    titles = ["candidate", COLUMNS.get(metric, metric), "95 % interval", "difference", "sampling"]
    rows = []
    base = standing.mean(standing.contest.baseline, metric)
    for name in standing.names:
        found, own = standing.differences.get(name), standing.estimate(name, metric)
        interval = "n/a" if own is None else interval_text(metric, own.low, own.high)
        row = [name, cell(metric, standing.mean(name, metric)), interval]
        if name == standing.contest.baseline:
            row += ["", "", *("" for _ in model), "baseline", ""]
        else:
            row += [*_moved(metric, found, base, drawn), standing.verdicts[name], _factor(standing, name)]
        rows.append(row)
    return [*titles, *model, "verdict", "turns at"], rows


def interval_text(metric: str, low: float, high: float) -> str:
    """Return an interval as text; of a share only what lies between 0 and 1, though Student's goes beyond.

    >>> interval_text("attainment", 0.204, 1.349)
    '20.4% to 100.0%'
    """
    if metric in SHARES:
        low, high = max(low, 0.0), min(high, 1.0)
    return f"{cell(metric, low)} to {cell(metric, high)}"


def _moved(metric: str, found: Difference | None, base: float | None, drawn: bool) -> list[str]:
    if found is None:
        return ["n/a"] * (4 if drawn else 2)
    shown = [found.sampling, found.model, found.combined] if drawn else [found.sampling]
    return [difference_text(metric, found.mean, base), *(bounds_text(metric, each, base) for each in shown)]


def _factor(standing: Standing, name: str) -> str:
    turning = (standing.turning or {}).get(name)
    if turning is None:
        return ""
    return "never" if turning.factor is None else f"x {turning.factor:.3f}"


def mean_cells(standing: Standing) -> tuple[list[str], list[list[str]]]:
    """Return the means over replications of the metrics that matter, a row a candidate."""
    scored = any(standing.mean(name, ACCURACY) is not None for name in standing.names)
    columns = COLUMNS | ({ACCURACY: ACCURACY} if scored else {})
    rows = [[name, *(cell(key, standing.mean(name, key)) for key in columns)] for name in standing.names]
    return ["mean over replications", *columns.values()], rows


def text(standing: Standing, outcome: str) -> str:
    """Return both tables, what was done, who is best, and each verdict."""
    tables = [aligned(*mean_cells(standing)), aligned(*cells(standing))]
    told = [*lead(standing), *verdict_lines(standing), outcome]
    return "\n\n".join([*tables, "\n".join(told)])


def aligned(titles: list[str], rows: list[list[str]]) -> str:
    """Return a table as text, the first column left, the others right."""
    widths = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
    return "\n".join(
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip()
        for row in (titles, *rows)
    )


def latex(standing: Standing) -> str:
    """Return the table of verdicts for a paper; it needs the package booktabs."""
    titles, rows = cells(standing)
    kinds = "l" + "r" * (len(titles) - 1)
    body = [" & ".join(map(_escaped, row)) + r" \\" for row in rows]
    notes = [f"% {line}" for line in lead(standing)]
    head = " & ".join(map(_escaped, titles)) + r" \\"
    lines = [rf"\begin{{tabular}}{{{kinds}}}", r"\toprule", head, r"\midrule", *body, r"\bottomrule"]
    return "\n".join([*notes, *lines, r"\end{tabular}", ""])


def _escaped(value: str) -> str:
    return "".join(_TEX.get(sign, sign) for sign in value)


def frame(standing: Standing) -> pd.DataFrame:
    """Return one row per candidate: mean, difference, their bounds, verdict, turning factor; NaN: none."""
    import pandas as pd

    rows = []
    for name in standing.names:
        own, found = standing.estimate(name, standing.metric), standing.differences.get(name)
        turning = (standing.turning or {}).get(name)
        row: dict[str, object] = {
            "candidate": name,
            "mean": standing.mean(name, standing.metric),
            "low": own and own.low,
            "high": own and own.high,
            "difference": found and found.mean,
        }
        for what in ("sampling", "model", "combined"):
            interval = getattr(found, what, None)
            row[f"{what}_low"] = interval and interval.low
            row[f"{what}_high"] = interval and interval.high
        row["verdict"] = standing.verdicts.get(name, "baseline")
        row["turns_at"] = turning and turning.factor
        rows.append(row)
    made = pd.DataFrame(rows).set_index("candidate")
    return made.astype({name: "float64" for name in made.columns if name != "verdict"})


def replications(standing: Standing) -> pd.DataFrame:
    """Return the numbers of every candidate in every replication, the index (candidate, replication)."""
    import pandas as pd

    served = {name: pd.DataFrame(rows) for name, rows in standing.rounds.values.items()}
    return pd.concat(served, names=["candidate", "replication"])


def with_sampling(standing: Standing, rows: object) -> list[dict[str, object]]:
    """Return rows of candidates as JSON with sampling intervals of every metric and of its difference."""
    assert isinstance(rows, list), "rows of candidates"
    found = []
    for row in rows:
        name = row["candidate"]
        metrics = dict.fromkeys(metric for values in standing.rounds.values[name] for metric in values)
        own = {metric: standing.estimate(name, metric) for metric in metrics}
        moved = dict(row.get("difference", {}))
        for metric in metrics:
            between = t_interval(standing.pairs(name, metric))
            interval = None if between is None else between.to_dict()
            moved[metric] = {**moved.get(metric, {}), "sampling_interval": interval}
        intervals = {metric: each.to_dict() for metric, each in own.items() if each is not None}
        found.append({**row, "sampling_interval": intervals, "difference": moved})
    return found


def to_dict(standing: Standing) -> dict[str, object]:
    """Return all of it as JSON, every replication's numbers included."""
    contest, rounds = standing.contest, standing.rounds
    return {
        "replications": rounds.num,
        "kind": contest.replications.kind,
        "words": contest.replications.words(rounds.num),
        "stopped_by": rounds.stopped_by,
        "is_repeatable": rounds.stopped_by in ("asked", SETTLED, ALL),
        "warmup": contest.warmup,
        "warmup_words": contest.warmup_words(),
        "metric": standing.metric,
        "baseline": contest.baseline,
        "level": LEVEL,
        "best": standing.best,
        "verdicts": {name: _verdict(standing, name) for name in contest.others},
        "values": rounds.values,
    }


def _verdict(standing: Standing, name: str) -> dict[str, object]:
    found, turning = standing.differences[name], (standing.turning or {}).get(name)
    return {
        "verdict": standing.verdicts[name],
        "difference": None if found is None else found.mean,
        "sampling_interval": None if found is None else found.sampling.to_dict(),
        "model_interval": None if found is None or found.model is None else found.model.to_dict(),
        "combined_interval": None
        if found is None
        else {"low": found.combined.low, "high": found.combined.high, "level": found.combined.level},
        "margin": None if found is None else found.margin,
        "turning": None if turning is None else turning.to_dict(),
    }
