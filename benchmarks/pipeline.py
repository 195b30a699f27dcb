"""Pipeline against tensor parallelism at equal GPUs: TTFT and ITL at low and at high load, with intervals.

    python benchmarks/pipeline.py --figure docs/pipeline.png
    python benchmarks/pipeline.py --requests 40 --seeds 2 --only 8b-2-nvlink

All times come from the roofline, the one source that prices every candidate alike. A load is a share of what
the weakest of a group's candidates serves when all requests are there at once. Differences are paired: both
candidates of a pair are sent the same requests.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.stats import t as student

from simulator.config.loading import load_scenario
from simulator.config.run import Run, run_scenario
from simulator.config.scenario import Scenario
from simulator.experiments.compare_plots import line_style
from simulator.experiments.figure_style import new_figure
from simulator.metrics.tables import Floats

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

LOADS = {"low": 0.15, "high": 0.8}  # of the weakest candidate's most requests a second
SATURATING = 400  # requests that are all there at once
GPUS = {"nvlink": "a100-80gb-sxm", "pcie": "a100-80gb-pcie"}
MODELS = {"8b": "llama-3.1-8b", "70b": "llama-3.1-70b"}
METRICS = ("p50_ttft", "p99_ttft", "mean_itl", "p50_itl", "p99_itl", "max_itl", "std_itl", "bubbles")
DRAWN = {"p50_itl": "ITL p50", "p99_itl": "ITL p99", "p50_ttft": "TTFT p50", "p99_ttft": "TTFT p99"}
TABLED = ("p50_ttft", "p99_ttft", "p50_itl", "p99_itl", "std_itl")
PAIRED = ("p99_ttft", "p99_itl", "std_itl")
CONFIDENCE = 0.95
WHOLE = 100  # from here on numbers are shown without decimals


class Group(NamedTuple):
    """GPUs of one kind, how many, and the model on them."""

    model: str
    gpus: int
    link: str

    @property
    def name(self) -> str:
        return f"{self.model}-{self.gpus}-{self.link}"

    @property
    def candidates(self) -> dict[str, tuple[int, int]]:
        """Return ways to use the GPUs: tensor and pipeline parallel size, tensor parallelism alone first."""
        splits = [(self.gpus // stages, stages) for stages in (1, 2, 4) if stages <= self.gpus]
        return {split_name(*split): split for split in splits}


class Job(NamedTuple):
    group: Group
    split: tuple[int, int]
    rate: float | None  # requests/s; None: all at once
    seed: int
    num_requests: int
    kind: str


GROUPS = [Group(m, n, link) for m, n in (("8b", 2), ("8b", 4), ("70b", 4)) for link in GPUS]


def split_name(tensor: int, stages: int) -> str:
    return " x ".join(f"{name}{n}" for name, n in (("TP", tensor), ("PP", stages)) if n > 1)


def scenario_of(job: Job) -> Scenario:
    arrivals = {"kind": "all_at_once"} if job.rate is None else {"kind": "poisson", "rate": job.rate}
    return load_scenario("chat-a100").with_(
        **{
            "seed": job.seed,
            "model.name": MODELS[job.group.model],
            "hardware.gpu": GPUS[job.group.link],
            "parallel.tensor_parallel_size": job.split[0],
            "parallel.pipeline_parallel_size": job.split[1],
            "latency.kind": job.kind,
            "workload.arrivals": arrivals,
            "workload.num_requests": job.num_requests,
        }
    )


def measure(job: Job) -> dict[str, float]:
    """Return a run's metrics: latencies in ms over all requests and all gaps, requests/s, bubbles."""
    run = run_scenario(scenario_of(job))
    return values(run)


def values(run: Run) -> dict[str, float]:
    table = run.requests
    ttft = 1e3 * (table.first_token - table.arrival)
    itl = 1e3 * np.repeat(*run.gaps)
    bubbles = run.own.get("bubble_share", 0.0)
    assert isinstance(bubbles, float)
    return {
        "p50_ttft": float(np.nanpercentile(ttft, 50)),
        "p99_ttft": float(np.nanpercentile(ttft, 99)),
        "mean_itl": float(itl.mean()),
        "p50_itl": float(np.percentile(itl, 50)),
        "p99_itl": float(np.percentile(itl, 99)),
        "max_itl": float(itl.max()),
        "std_itl": float(itl.std()),
        "bubbles": 100 * bubbles,
        "rate": len(table) / float(np.nanmax(table.finish) - table.arrival.min()),
    }


def interval(samples: Floats) -> tuple[float, float, float]:
    """Return the mean and its interval, Student's over replications."""
    mean = float(samples.mean())
    if len(samples) < 2:
        return mean, mean, mean
    error = samples.std(ddof=1) / len(samples) ** 0.5
    half = float(student.ppf((1 + CONFIDENCE) / 2, len(samples) - 1) * error)
    return mean, mean - half, mean + half


class Found(NamedTuple):
    """A group's results: most requests/s of each candidate, and its metrics by load, one a seed."""

    group: Group
    most: dict[str, float]
    rates: dict[str, float]
    samples: dict[tuple[str, str], dict[str, Floats]]  # (load, candidate) -> metric -> values


def study(groups: Sequence[Group], seeds: int, num_requests: int, kind: str, workers: int) -> list[Found]:
    """Measure every candidate of every group, saturated first."""
    with ProcessPoolExecutor(workers) as pool:
        pairs = [(group, name, split) for group in groups for name, split in group.candidates.items()]
        full = [Job(group, split, None, 0, SATURATING, kind) for group, _, split in pairs]
        most: dict[Group, dict[str, float]] = {}
        for (group, name, _), found in zip(pairs, pool.map(measure, full), strict=True):
            most.setdefault(group, {})[name] = found["rate"]
        rates = {
            group: {load: share * min(most[group].values()) for load, share in LOADS.items()}
            for group in groups
        }
        keys = [(*pair, load) for pair in pairs for load in LOADS]
        jobs = [
            Job(group, split, rates[group][load], seed, num_requests, kind)
            for group, _, split, load in keys
            for seed in range(seeds)
        ]
        results = list(pool.map(measure, jobs, chunksize=seeds))
    samples: dict[Group, dict[tuple[str, str], dict[str, Floats]]] = {group: {} for group in groups}
    for i, (group, name, _, load) in enumerate(keys):
        mine = results[i * seeds : (i + 1) * seeds]
        samples[group][load, name] = {m: np.array([each[m] for each in mine]) for m in METRICS}
    return [Found(group, most[group], rates[group], samples[group]) for group in groups]


def table(found: Found) -> str:
    """Return a group's rows: means in ms with their intervals, then factors to the first candidate."""
    first, *_ = found.group.candidates
    words = [column.replace("_", " ") for column in (*TABLED, "bubbles")]
    titles = [
        "load",
        "candidate",
        *words,
        *(f"{column.replace('_', ' ')}, times {first}" for column in PAIRED),
    ]
    lines = [f"| {' | '.join(titles)} |", f"|{'---|' * len(titles)}"]
    for load in LOADS:
        for name, (_, stages) in found.group.candidates.items():
            metrics, base = found.samples[load, name], found.samples[load, first]
            cells = [f"{load}, {found.rates[load]:.2g}/s", name]
            cells += [spread(*interval(metrics[column])) for column in TABLED]
            cells.append(f"{metrics['bubbles'].mean():.0f} %" if stages > 1 else "-")
            cells += ["" if name == first else ratio(metrics[column], base[column]) for column in PAIRED]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def spread(mean: float, low: float, high: float) -> str:
    cells = (f"{each:,.0f}" if abs(each) >= WHOLE else f"{each:.3g}" for each in (mean, low, high))
    return "{} ({} to {})".format(*cells)


def ratio(mine: Floats, base: Floats) -> str:
    """Return by what factor one is larger, the geometric mean over pairs with its interval."""
    mean, low, high = (float(np.exp(each)) for each in interval(np.log(mine / base)))
    return f"x {mean:.2f} ({low:.2f} to {high:.2f})"


def figure(found: Sequence[Found]) -> Figure:
    """Draw, for each group and load, the ITL's median, p99 and largest, and TTFT's median and p99."""
    from plotly.graph_objects import Scatter

    titles = [
        f"{each.group.name}, {load} load ({each.rates[load]:.2g}/s)" for each in found for load in LOADS
    ]
    fig = new_figure(
        len(found), len(LOADS), height=230 * len(found), subplot_titles=titles, vertical_spacing=0.05
    )
    for row, each in enumerate(found, start=1):
        names = list(each.group.candidates)
        for column, load in enumerate(LOADS, start=1):
            for i, (metric, label) in enumerate(DRAWN.items()):
                means, _, highs = zip(
                    *(interval(each.samples[load, name][metric]) for name in names), strict=True
                )
                trace = Scatter(
                    x=names,
                    y=means,
                    error_y={"array": np.subtract(highs, means)},
                    name=label,
                    legendgroup=label,
                    showlegend=row == column == 1,
                    line=line_style(i),
                )
                fig.add_trace(trace, row=row, col=column)
    fig.update_yaxes(type="log", title_text="ms (log scale)")
    return fig.update_layout(legend={"y": 1.02}, width=1000)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--only", help="names of groups, such as 8b-2-nvlink, with commas between")
    parser.add_argument("--kind", default="roofline", choices=("roofline", "profile"))
    parser.add_argument("--figure", type=Path, help=".svg, .png or .html")
    asked = parser.parse_args(words)
    groups = [group for group in GROUPS if asked.only is None or group.name in asked.only.split(",")]
    found = study(groups, asked.seeds, asked.requests, asked.kind, asked.workers)
    for each in found:
        print(f"\n## {each.group.name}\n")
        most = ", ".join(f"{name} {rate:.2f}" for name, rate in each.most.items())
        print(f"Requests/s when all are there at once: {most}.\n")
        print(table(each))
    if asked.figure is not None:
        drawn = figure(found)
        save = drawn.write_html if asked.figure.suffix == ".html" else drawn.write_image
        save(asked.figure)


if __name__ == "__main__":
    main()
