"""Disaggregation against chunked prefill at equal GPUs: goodput, and the link below which it does not pay.

    python benchmarks/disaggregation.py --found found.json --figure docs/disaggregation.png

Llama-3.1-8B on A100 80 GB, lengths as in the Azure code and conversation traces, Poisson arrivals.
Goodput is the highest rate at which a share of all requests meets the SLO, found by bisection for each seed
over the same requests (arrivals are scaled, lengths kept), so that ratios are paired. What --found FILE has
already is not run again. A figure as .svg or .png needs kaleido and Chrome or Chromium.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

from simulator import load_scenario
from simulator.cluster.routers import ROUTERS
from simulator.cluster.serve import FleetServed, serve_fleet
from simulator.cluster.serve_disaggregated import serve_disaggregated
from simulator.config.build import NO_POLICIES, build_machine
from simulator.config.build_workload import build_workload
from simulator.config.pools import Pools
from simulator.config.server import Cluster, make_server
from simulator.experiments.compare_plots import line_style
from simulator.experiments.figure_style import new_figure
from simulator.request import Request

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

LOADS = {"conversation": "chat-a100", "code": "code-a100"}
TTFT = 0.5  # s
STEP = 1.05  # between the rates that bisection may try
LOWEST, NUM_RATES = 0.5, 64  # requests/s a GPU, and how many steps up from there
REQUESTS_A_GPU = 300
BUDGETS = (512, 2048, 8192)  # chunked prefill's max_num_batched_tokens: the best of them counts
NDR = 50.0  # GB/s: ib-400g
BANDWIDTHS = (0.4, 0.8, 1.6, 3.2, 6.4, 12.5, 50.0)  # GB/s


class Goal(NamedTuple):
    """A share of requests that has its first token in `TTFT` and its others, on average, in `tpot` (s)."""

    tpot: float
    share: float


GOALS = (Goal(0.05, 0.9), Goal(0.025, 0.9))


class Arm(NamedTuple):
    """A way to use GPUs: `num_prefill` of them for prompts alone, or none and all for both."""

    gpus: int
    num_prefill: int
    budget: int = 2048
    bandwidth: float = NDR  # GB/s
    layerwise: bool = False

    @property
    def name(self) -> str:
        if not self.num_prefill:
            return f"chunked {self.budget}"
        return f"{self.num_prefill}P:{self.gpus - self.num_prefill}D" + (" layerwise" * self.layerwise)


class Job(NamedTuple):
    load: str
    arm: Arm
    seeds: int


@cache
def pools_of(load: str, arm: Arm) -> Pools:
    """Return what an arm runs on; all of one GPU type."""
    scenario = load_scenario(LOADS[load]).with_(**{"scheduler.max_num_batched_tokens": arm.budget})
    prefill = max(arm.num_prefill, 1)
    keys = {
        "prefill": {"count": prefill},
        "decode": {"count": max(arm.gpus - prefill, 1)},
        "link": {"bandwidth_gb_s": arm.bandwidth},
        "layerwise": arm.layerwise,
    }
    scenario = scenario.with_(cluster={"disaggregation": keys})
    server = make_server(scenario, build_machine(scenario), NO_POLICIES)
    assert isinstance(server, Cluster)
    assert server.pools is not None
    return server.pools


@cache
def requests_of(load: str, seed: int, num: int) -> Sequence[Request]:
    """Return requests at one a second on average."""
    changes: dict[str, object] = {
        "workload.num_requests": num,
        "workload.arrivals": {"kind": "poisson", "rate": 1.0},
    }
    return build_workload(load_scenario(LOADS[load]).with_(seed=seed, **changes), 16384).requests


def serve(job: Job, seed: int, rate: float) -> FleetServed:
    """Serve a job's requests at so many a second."""
    arm, pools = job.arm, pools_of(job.load, job.arm)
    every = requests_of(job.load, seed, REQUESTS_A_GPU * arm.gpus)
    requests = [replace(each, arrival=each.arrival / rate) for each in every]
    rng = np.random.default_rng(seed)
    if not arm.num_prefill:
        return serve_fleet(requests, pools.prefill[:1] * arm.gpus, ROUTERS["least_outstanding"], rng=rng)
    return serve_disaggregated(
        requests,
        pools.prefill,
        pools.decode,
        pools.link,
        block_bytes=pools.block_bytes,
        num_layers=pools.num_layers,
        rng=rng,
    )


def latencies(served: FleetServed) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return TTFT and TPOT of all requests, s; TPOT is 0 where there is one token."""
    recorders = [member.replica.recorder for member in served.members]
    first = np.fmin.reduce([each.first_token_at for each in recorders])
    num = np.sum([each.num_output for each in recorders], axis=0)
    ttft = first - np.array(served.log.arrived_at)
    return ttft, (np.array(served.log.finished_at) - first) / np.maximum(num - 1, 1)


def capacity(share_at: Callable[[int], float], share: float, guess: int | None = None) -> float:
    """Return in steps up to which rate so many meet the goal, in proportion between two; -inf if none.

    A `guess` near it saves runs.
    """
    low, high, reach = 0, NUM_RATES, 2
    if guess is not None and share_at(guess) >= share:
        low, high = guess, min(guess + reach, NUM_RATES)
        while high < NUM_RATES and share_at(high) >= share:
            reach *= 2
            low, high = high, min(high + reach, NUM_RATES)
    elif guess is not None:
        low, high = max(guess - reach, 0), guess
        while low > 0 and share_at(low) < share:
            reach *= 2
            low, high = max(low - reach, 0), low
    if share_at(low) < share:
        return -math.inf
    while high - low > 1:
        middle = (low + high) // 2
        if share_at(middle) >= share:
            low = middle
        else:
            high = middle
    above, below = share_at(low), share_at(high)
    return low + (above - share) / (above - below)


def rate_a_gpu(step: float) -> float:
    """Return the rate of a step, requests/s a GPU.

    >>> rate_a_gpu(-math.inf)
    0.0
    """
    return float(LOWEST * STEP**step)


def goodput(job: Job) -> list[list[float]]:
    """Return the goodput of a job's arm under each goal, requests/s of all GPUs: for each seed."""
    found: list[list[float]] = []
    steps: list[float | None] = [None] * len(GOALS)
    for seed in range(job.seeds):

        @cache
        def at(step: int, seed: int = seed) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
            return latencies(serve(job, seed, job.arm.gpus * rate_a_gpu(step)))

        for i, goal in enumerate(GOALS):

            def share_at(step: int, goal: Goal = goal, at: Any = at) -> float:
                return float(np.mean((at(step)[0] <= TTFT) & (at(step)[1] <= goal.tpot)))

            before = steps[i]
            guess = None if before is None or before < 0 else round(before)
            steps[i] = capacity(share_at, goal.share, guess)
        found.append([job.arm.gpus * rate_a_gpu(step) for step in steps if step is not None])
    return found


def arms(gpus: int) -> list[Arm]:
    """Return what is compared; of more than four GPUs, what four have left in the running."""
    if gpus <= 4:
        return [*(Arm(gpus, 0, budget) for budget in BUDGETS), *(Arm(gpus, n) for n in range(1, gpus))]
    ratios = range(gpus // 2, gpus - gpus // 4 + 1)
    return [*(Arm(gpus, 0, budget) for budget in BUDGETS[:2]), *(Arm(gpus, n) for n in ratios)]


Found = dict[str, list[list[float]]]
"""By load and arm: for each seed, the goodput of each goal."""


def key_of(load: str, arm: Arm) -> str:
    return json.dumps([load, *arm])


def measure(found: Found, jobs: Iterable[Job], workers: int, file: Path | None) -> None:
    """Run what is not found yet."""
    missing = [job for job in jobs if key_of(job.load, job.arm) not in found]
    with ProcessPoolExecutor(workers) as pool:
        for job, each in zip(missing, pool.map(goodput, missing), strict=True):
            found[key_of(job.load, job.arm)] = each
            if file is not None:
                file.write_text(json.dumps(found), encoding="utf-8")


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return mean and 95 % interval (Student's t)."""
    mean, n = float(np.mean(values)), len(values)
    half = float(student.ppf(0.975, n - 1) * np.std(values, ddof=1) / n**0.5) if n > 1 else math.nan
    return mean, mean - half, mean + half


def ratio(values: Sequence[float], base: Sequence[float]) -> str:
    """Return the geometric mean of the pairs' ratios and its interval."""
    if not all(values) or not all(base):
        return "-"
    low, middle, high = (math.exp(x) for x in sorted(interval(np.log(np.divide(values, base)).tolist())))
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def seeds_of(found: Found, load: str, arm: Arm, goal: int) -> list[float]:
    """Return an arm's goodput under a goal, a value a seed; nothing if it was not run."""
    return [seed[goal] for seed in found.get(key_of(load, arm), ())]


def best(found: Found, load: str, gpus: int, goal: int, split: bool) -> tuple[Arm, list[float]]:
    """Return the arm of one kind with the highest mean goodput, and its goodput for each seed."""
    of_goal = {arm: seeds_of(found, load, arm, goal) for arm in arms(gpus) if bool(arm.num_prefill) == split}
    return max(
        ((arm, values) for arm, values in of_goal.items() if values),
        key=lambda pair: float(np.mean(pair[1])),
    )


def goodput_table(found: Found, gpus: Sequence[int]) -> str:
    """Return the Markdown table of the best arms and their ratio, a row a load, goal and number of GPUs."""
    lines = [
        "| lengths | GPUs | share | TPOT, ms | chunked, budget | req/s | disaggregated | req/s | ratio |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for load in LOADS:
        for n in gpus:
            for i, goal in enumerate(GOALS):
                one, base = best(found, load, n, i, split=False)
                other, values = best(found, load, n, i, split=True)
                cells = [load, str(n), f"{goal.share:.0%}", f"{goal.tpot * 1e3:g}", str(one.budget)]
                cells += [rate_of(base), other.name, rate_of(values), ratio(values, base)]
                lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def rate_of(values: Sequence[float]) -> str:
    """Return a mean rate and its interval."""
    if not any(values):
        return "none" if values else "-"
    mean, low, high = interval(values)
    return f"{mean:.1f} ({low:.1f} to {high:.1f})"


def arm_table(found: Found, gpus: int, goal: int) -> str:
    """Return the Markdown table of every arm's goodput under one goal."""
    lines = ["| | " + " | ".join(LOADS) + " |", "| --- |" + " --- |" * len(LOADS)]
    for arm in arms(gpus):
        cells = [rate_of(seeds_of(found, load, arm, goal)) for load in LOADS]
        lines.append(f"| {arm.name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def break_even(links: Sequence[float], ratios: Sequence[float]) -> float | None:
    """Return the bandwidth at which a ratio reaches 1 for good, between two links in proportion of logs."""
    for i in range(len(links) - 1, -1, -1):
        if ratios[i] < 1:
            if i == len(links) - 1:
                return None
            part = (1 - ratios[i]) / (ratios[i + 1] - ratios[i])
            return float(links[i] * (links[i + 1] / links[i]) ** part)
    return 0.0


def link_jobs(found: Found, gpus: int, seeds: int) -> list[Job]:
    """Return the runs of the best disaggregated arm of each load and goal over slower links."""
    jobs: list[Job] = []
    for load in LOADS:
        for arm in dict.fromkeys(best(found, load, gpus, i, split=True)[0] for i in range(len(GOALS))):
            wanted = [
                arm._replace(bandwidth=link, layerwise=on) for link in BANDWIDTHS for on in (False, True)
            ]
            jobs += [Job(load, each, seeds) for each in wanted]
    return jobs


def link_curve(
    found: Found, load: str, gpus: int, goal: int, layerwise: bool
) -> list[tuple[float, list[float]]]:
    """Return for each bandwidth the ratio of the best arm to the best chunked one, a value a seed."""
    arm, _ = best(found, load, gpus, goal, split=True)
    _, base = best(found, load, gpus, goal, split=False)
    curve = []
    for link in BANDWIDTHS:
        values = seeds_of(found, load, arm._replace(bandwidth=link, layerwise=layerwise), goal)
        if values:
            curve.append((link, np.divide(values, base[: len(values)]).tolist()))
    return curve


def link_table(found: Found, gpus: int) -> str:
    """Return the Markdown table of goodput in times of the best chunked arm's, by bandwidth."""
    heads = ["lengths", "TPOT, ms", "sent", *(f"{link:g}" for link in BANDWIDTHS), "break-even, GB/s"]
    lines = [f"| {' | '.join(heads)} |", "| --- |" + " --- |" * (len(heads) - 1)]
    for load in LOADS:
        for i, goal in enumerate(GOALS):
            arm, _ = best(found, load, gpus, i, split=True)
            for layerwise in (False, True):
                curve = link_curve(found, load, gpus, i, layerwise)
                means = {link: f"{np.mean(values):.2f}" for link, values in curve}
                cells = [f"{load}, {arm.name}", f"{goal.tpot * 1e3:g}", "by layer" if layerwise else "whole"]
                cells += [*(means.get(link, "") for link in BANDWIDTHS), _break_even_cell(curve)]
                lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _break_even_cell(curve: list[tuple[float, list[float]]]) -> str:
    """Return the mean break-even over the seeds and its range."""
    if not curve:
        return "-"
    links = [link for link, _ in curve]
    seeds = range(min(len(values) for _, values in curve))
    each = [break_even(links, [values[seed] for _, values in curve]) for seed in seeds]
    middle = break_even(links, [float(np.mean(values)) for _, values in curve])
    if middle is None:
        return "never" if links[-1] == BANDWIDTHS[-1] else f"> {links[-1]:g}"
    known = [value for value in each if value is not None]
    many = "" if len(known) == len(each) else f", never in {len(each) - len(known)} of {len(each)} seeds"
    return f"{middle:.2g} ({min(known):.2g} to {max(known):.2g}{many})"


def figure(found: Found, gpus: int) -> Figure:
    """Draw goodput by arm, and its ratio to the best chunked arm by bandwidth: a column a load."""
    from plotly.graph_objects import Bar, Scatter

    fig = new_figure(2, len(LOADS), height=760, subplot_titles=list(LOADS), vertical_spacing=0.16)
    fig.update_layout(width=960, margin={"t": 96}, legend={"y": 1.1}, barmode="group")
    for col, load in enumerate(LOADS, start=1):
        for i, goal in enumerate(GOALS):
            name = f"TPOT {goal.tpot * 1e3:g} ms"
            style = line_style(i)
            words = {"name": name, "legendgroup": name, "showlegend": col == 1}
            stats = [interval(seeds_of(found, load, arm, i)) for arm in arms(gpus)]
            fig.add_trace(
                Bar(
                    x=[arm.name for arm in arms(gpus)],
                    y=[mean for mean, _, _ in stats],
                    error_y={"array": [high - mean for mean, _, high in stats]},
                    marker_color=style["color"],
                    **words,
                ),
                1,
                col,
            )
            for layerwise in (False, True):
                curve = link_curve(found, load, gpus, i, layerwise)
                means = [float(np.mean(values)) for _, values in curve]
                dash = {"dash": "dot"} if layerwise else {}
                label = f"{name}, {'layer by layer' if layerwise else 'whole prompts'}"
                words = {"name": label, "legendgroup": label, "showlegend": col == 1, "mode": "lines"}
                fig.add_trace(
                    Scatter(x=[link for link, _ in curve], y=means, line=style | dash, **words), 2, col
                )
        fig.add_hline(y=1, line={"width": 1}, row=2, col=col)
        fig.update_yaxes(title_text="goodput (req/s), 90 %" if col == 1 else None, row=1, col=col)
        fig.update_yaxes(title_text="times the best chunked" if col == 1 else None, row=2, col=col)
        fig.update_xaxes(
            type="log", title_text="link (GB/s, log scale)", tickvals=BANDWIDTHS[::2], row=2, col=col
        )
    return fig


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--gpus", default="4,8")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--found", type=Path, help="the numbers, as json: read if there, and written")
    parser.add_argument("--show", action="store_true", help="only show what --found has")
    parser.add_argument("--figure", type=Path, help=".svg, .png or .html")
    asked = parser.parse_args(words)
    gpus = [int(n) for n in asked.gpus.split(",")]
    found: Found = {}
    if asked.found is not None and asked.found.exists():
        found = json.loads(asked.found.read_text(encoding="utf-8"))
    for n in [] if asked.show else gpus:
        jobs = [Job(load, arm, asked.seeds) for load in LOADS for arm in arms(n)]
        measure(found, jobs, asked.workers, asked.found)
        if n == gpus[0]:
            measure(found, link_jobs(found, n, asked.seeds), asked.workers, asked.found)
    print(goodput_table(found, gpus))
    for n in gpus:
        print(f"\n{n} GPUs, 90 %, TPOT 50 ms\n\n{arm_table(found, n, 0)}")
        print(f"\n{n} GPUs, 90 %, TPOT 25 ms\n\n{arm_table(found, n, 1)}")
    print(f"\nbreak-even, {gpus[0]} GPUs\n\n{link_table(found, gpus[0])}")
    if asked.figure is not None:
        fig = figure(found, gpus[0])
        save = fig.write_html if asked.figure.suffix == ".html" else fig.write_image
        save(asked.figure)


if __name__ == "__main__":
    main()
