"""What host offload is worth to the sessions of coding agents, by the bandwidth of the link to the host.

    python benchmarks/offload.py TRACE --rates 0.002,0.004,0.006 --figure docs/offload.png

TRACE holds sessions with prefix ids (kv-cache-tester's form). They start by a Poisson process, another one
for each seed; all else is `agentic-a100`. Prints a Markdown table for each rate. A figure as .svg or .png
needs kaleido and Chrome or Chromium, as .html nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.stats import t as student

from simulator import Result, simulate
from simulator.experiments.compare_plots import line_style
from simulator.experiments.figure_style import new_figure
from simulator.metrics.tables import Floats

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

BANDWIDTHS = (0.5, 1, 2, 5, 10, 25, 50, 100, 200)  # GB/s a direction: a disk, PCIe 3 to 6, NVLink-C2C
NONE, ENDLESS = "none", "GPU without limit"
MANY_BLOCKS = 10**7
COLUMNS = {
    "hit": "hit rate",
    "median": "TTFT median",
    "mean": "TTFT mean",
    "p99": "TTFT P99",
    "ratio": "TTFT mean, times that of none",
    "slo": "within SLO",
    "speed": "output tok/s",
    "stall": "steps held back",
    "wait": "waiting for fetches",
    "out": "copied out",
    "back": "fetched",
}
PANELS: dict[str, tuple[str, dict[str, object]]] = {
    "mean": ("mean TTFT (s, log scale)", {"type": "log", "dtick": 1, "autorange": True}),
    "hit": ("hit rate", {"tickformat": ".0%", "range": [0, 1.02]}),
    "stall": ("steps held back (s, log scale)", {"type": "log", "dtick": 1, "autorange": True}),
}


class Job(NamedTuple):
    """One run: `link` is a bandwidth in GB/s, or `NONE` or `ENDLESS`."""

    trace: str
    rate: float  # sessions/s
    link: float | str
    host_gib: float
    seed: int


class Outcome(NamedTuple):
    """What a run gave: seconds, shares, tokens."""

    hit: float
    median: float
    mean: float
    p99: float
    slo: float
    speed: float
    stall: float
    wait: float
    out: float
    back: float


def run(job: Job) -> Outcome:
    """Simulate one run."""
    host = {"name": "host", "capacity_gib": job.host_gib, "bandwidth_gb_s": job.link}
    changes: dict[str, object] = {
        "workload.trace": job.trace,
        "workload.arrivals.rate": job.rate,
        "kv.tiers": [host] if isinstance(job.link, float) else [],
        "kv.num_gpu_blocks_override": MANY_BLOCKS if job.link == ENDLESS else None,
    }
    return outcome(simulate("agentic-a100", set=changes, seed=job.seed, bottleneck=False, progress=False))


def outcome(result: Result) -> Outcome:
    """Sum up; a hit is a prompt token that was not computed, found on the GPU or fetched."""
    summary: dict[str, Any] = result.summary
    own = summary["servetwin"]
    done = result.requests[result.requests.status == "completed"]
    return Outcome(
        hit=done.num_cached.sum() / done.num_prompt.sum(),
        median=summary["median_ttft_ms"] / 1e3,
        mean=summary["mean_ttft_ms"] / 1e3,
        p99=summary["p99_ttft_ms"] / 1e3,
        slo=own["attainment"] * own["injected"] / own["completed"],
        speed=summary["output_throughput"],
        stall=own["offload_stall_s"],
        wait=own["fetch_wait_s"],
        out=own["offloaded_tokens"],
        back=own["fetched_tokens"],
    )


def ratio(values: Sequence[float], base: Sequence[float]) -> str:
    """Return the geometric mean of values / base and its 95 % interval over the pairs (Student's t)."""
    logs = np.log(np.divide(values, base))
    if len(logs) < 2:
        return f"{np.exp(logs[0]):.2g}"
    half = student.ppf(0.975, len(logs) - 1) * logs.std(ddof=1) / len(logs) ** 0.5
    low, middle, high = np.exp([logs.mean() - half, logs.mean(), logs.mean() + half])
    return f"{middle:.2g} ({low:.2g} to {high:.2g})"


def cell(key: str, values: Sequence[float]) -> str:
    """Return the middle one of the seeds' values, and for latencies the lowest and the highest."""
    middle = float(np.median(values))
    if key in ("median", "mean", "p99"):
        low, half, high = (
            f"{x:.3g}" if x < 1000 else f"{x:,.0f}" for x in (min(values), middle, max(values))
        )
        return f"{half} ({low} to {high}) s"
    if key in ("hit", "slo"):
        return f"{middle:.1%}"
    if key in ("out", "back"):
        return f"{middle / 1e6:.1f} M" if middle else "-"
    return f"{middle:.1f}" if key == "speed" else f"{middle:,.0f} s" if middle else "-"


def table(found: dict[float | str, list[Outcome]]) -> str:
    """Return the Markdown table of one rate, one row a link."""
    lines = [["link, GB/s", *COLUMNS.values()], ["---"] * (1 + len(COLUMNS))]
    for link, outcomes in found.items():
        columns = {key: [getattr(each, key) for each in outcomes] for key in Outcome._fields}
        cells = {key: cell(key, values) for key, values in columns.items()}
        cells["ratio"] = "1" if link == NONE else ratio(columns["mean"], [each.mean for each in found[NONE]])
        lines.append([str(link if isinstance(link, str) else f"{link:g}"), *(cells[key] for key in COLUMNS)])
    return "\n".join(f"| {' | '.join(row)} |" for row in lines)


def figure(by_rate: dict[float, dict[float | str, list[Outcome]]]) -> Figure:
    """Draw each of `PANELS` against bandwidth, a column a rate: all seeds in pale, the middle one in full."""
    titles = [f"{rate:g} sessions/s" for rate in by_rate]
    fig = new_figure(
        len(PANELS),
        len(by_rate),
        height=720,
        subplot_titles=titles,
        shared_yaxes="rows",
        vertical_spacing=0.08,
    )
    fig.update_layout(width=960, margin={"t": 84}, legend={"y": 1.06})
    for row, (key, (title, axis)) in enumerate(PANELS.items(), start=1):
        for col, found in enumerate(by_rate.values(), start=1):
            links = [link for link in found if isinstance(link, float)]
            offload = np.array([[getattr(each, key) for each in found[link]] for link in links])
            _draw(fig, row, col, 2, "host offload", links, offload)
            for i, name in enumerate((NONE, ENDLESS) if key != "stall" else ()):
                level = np.array([[getattr(each, key) for each in found[name]]] * 2)
                _draw(fig, row, col, i, name, [min(links), max(links)], level)
            fig.update_xaxes(type="log", tickvals=links, row=row, col=col)
        fig.update_yaxes(**axis, row=row).update_yaxes(title_text=title, row=row, col=1)
    return fig.update_xaxes(title_text="link (GB/s, log scale)", row=len(PANELS))


def _draw(fig: Figure, row: int, col: int, i: int, name: str, xs: list[float], every: Floats) -> None:
    from plotly.graph_objects import Scatter

    style = line_style(i) | ({"dash": "dash"} if name in (NONE, ENDLESS) else {})
    for seed in every.T:
        pale = Scatter(x=xs, y=seed, mode="lines", line=style | {"width": 1}, opacity=0.3, showlegend=False)
        fig.add_trace(pale, row, col)
    words = {"name": name, "legendgroup": name, "showlegend": row == col == 1, "mode": "lines"}
    fig.add_trace(Scatter(x=xs, y=np.median(every, axis=1), line=style, **words), row, col)


def measure(jobs: Iterable[Job], workers: int) -> dict[float, dict[float | str, list[Outcome]]]:
    """Run all jobs and sort what they gave by rate and link."""
    every = list(jobs)
    found: dict[float, dict[float | str, list[Outcome]]] = {}
    with ProcessPoolExecutor(workers) as pool:
        outcomes = map(run, every) if workers == 1 else pool.map(run, every)
        for job, each in zip(every, outcomes, strict=True):
            found.setdefault(job.rate, {}).setdefault(job.link, []).append(each)
    return found


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("trace")
    parser.add_argument("--rates", default="0.002,0.004,0.006", help="sessions/s")
    parser.add_argument("--bandwidths", default=",".join(map(str, BANDWIDTHS)), help="GB/s")
    parser.add_argument("--host-gib", type=float, default=256.0)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--figure", type=Path, help=".svg, .png or .html")
    asked = parser.parse_args(words)
    links: list[float | str] = [NONE, ENDLESS, *map(float, asked.bandwidths.split(","))]
    rates = [float(rate) for rate in asked.rates.split(",")]
    seeds = range(asked.seeds)
    jobs = [
        Job(asked.trace, rate, link, asked.host_gib, s) for rate in rates for link in links for s in seeds
    ]
    found = measure(jobs, asked.workers)
    for rate, outcomes in found.items():
        print(f"\n{rate:g} sessions/s, a host of {asked.host_gib:g} GiB, {asked.seeds} seeds\n")
        print(table(outcomes))
    if asked.figure is not None:
        save = figure(found).write_html if asked.figure.suffix == ".html" else figure(found).write_image
        save(asked.figure)


if __name__ == "__main__":
    main()
