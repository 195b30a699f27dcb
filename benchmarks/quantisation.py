"""What narrower weights and a narrower KV cache do to throughput, TPOT and capacity at an SLO.

    python benchmarks/quantisation.py --figure docs/quantisation.png
    python benchmarks/quantisation.py --capacity

Llama-3.1-8B on A100 and H100, a fixed number of clients that always have a request under way. Seeds draw the
requests, the same for every candidate; a ratio's 95 % interval is Student's t on its logarithms over seeds.
The model interval draws the errors of the profile and of the derived ratios, common where they are common.
Prints Markdown tables. A figure as .svg or .png needs kaleido and Chrome or Chromium, as .html nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.stats import t as student

from simulator import capacity, load_scenario
from simulator.config.build import NO_POLICIES, Machine, build_machine
from simulator.config.build_workload import build_workload
from simulator.config.scenario import Scenario
from simulator.experiments.compare_plots import line_style
from simulator.experiments.figure_style import new_figure
from simulator.experiments.jobs import Job, Values, serve
from simulator.latency.uncertainty import draw_deviates, error_terms

if TYPE_CHECKING:
    import pandas as pd
    from plotly.graph_objects import Figure

GPUS = {"A100": "a100-80gb-sxm", "H100": "h100-80gb-sxm"}
PLAIN = "16 bits"
CANDIDATES: dict[str, dict[str, object]] = {
    PLAIN: {},
    "int8": {"model.quantization": "int8"},
    "int4": {"model.quantization": "int4"},
    "fp8": {"model.quantization": "fp8"},
    "fp8 KV": {"kv.kv_cache_dtype": "fp8"},
    "fp8 + fp8 KV": {"model.quantization": "fp8", "kv.kv_cache_dtype": "fp8"},
    "int4 + fp8 KV": {"model.quantization": "int4", "kv.kv_cache_dtype": "fp8"},
}
LOADS: dict[str, dict[str, object]] = {
    "chat": {"kind": "table", "name": "azure-conv"},  # 1,155 prompt and 211 output tokens on average
    "long answers": {"kind": "uniform", "prompt": [64, 192], "output": [512, 1536]},
}
CLIENTS = (1, 4, 16, 64, 128, 256)
ROUNDS = 6
"""Requests a client sends; at the end the last ones run in a smaller batch."""
DRAWS = 19
"""Draws of the errors: all they span is a 90 % interval."""
SLOS = {"TTFT 500, TPOT 50 ms": {"ttft": 500, "tpot": 50}, "TTFT 500, TPOT 20 ms": {"ttft": 500, "tpot": 20}}
CLAIM = (0.3, 0.5)
"""More throughput by INT8, as a popular article has it."""
SPEED, TPOT = "output_throughput", "mean_tpot_ms"


class Cell(NamedTuple):
    """One candidate at one load: values by seed, and ratios to plain by draw of the errors."""

    speed: list[float]
    tpot: list[float]
    drawn: list[float]  # output tok/s over plain's, per draw


Found = dict[tuple[str, str, int], dict[str, Cell]]  # by GPU, load, clients


def scenario_of(gpu: str, load: str, clients: int, seed: int) -> Scenario:
    """Return the plain scenario of a cell."""
    return load_scenario("chat-a100").with_(
        **{
            "seed": seed,
            "hardware.gpu": GPUS[gpu],
            "workload.arrivals": {"kind": "closed_loop", "clients": clients},
            "workload.lengths": LOADS[load],
            "workload.num_requests": ROUNDS * clients if clients > 1 else 4 * ROUNDS,
        }
    )


def run(
    base: Scenario, machine: Machine, keys: dict[str, object], deviates: dict[str, float] | None
) -> Values:
    scenario = base.with_(**keys)
    workload = build_workload(scenario, machine.max_model_len)
    return serve(Job(scenario, NO_POLICIES, machine, workload, None if deviates is None else (deviates,)))


def measure(gpu: str, load: str, clients: int, seeds: int, draws: int) -> dict[str, Cell]:
    """Run every candidate on the same requests."""
    plain = scenario_of(gpu, load, clients, 0)
    machines = {name: build_machine(plain.with_(**keys)) for name, keys in CANDIDATES.items()}
    terms = sorted({term for each in machines.values() for term in error_terms(each.latency)})
    deviates = draw_deviates(terms, draws, seed=0, source=gpu)
    found = {}
    for name, keys in CANDIDATES.items():
        machine = machines[name]
        values = [run(scenario_of(gpu, load, clients, seed), machine, keys, None) for seed in range(seeds)]
        drawn = [run(plain, machine, keys, z)[SPEED] for z in deviates]
        found[name] = Cell([each[SPEED] for each in values], [each[TPOT] for each in values], drawn)
    base = found[PLAIN].drawn
    return {
        name: each._replace(drawn=[mine / theirs for mine, theirs in zip(each.drawn, base, strict=True)])
        for name, each in found.items()
    }


def ratio(values: Sequence[float], base: Sequence[float]) -> tuple[float, float, float]:
    """Return low, geometric mean and high of values / base, 95 %, over the pairs."""
    logs = np.log(np.divide(values, base))
    half = student.ppf(0.975, len(logs) - 1) * logs.std(ddof=1) / len(logs) ** 0.5 if len(logs) > 1 else 0.0
    low, middle, high = np.exp([logs.mean() - half, logs.mean(), logs.mean() + half]).tolist()
    return low, middle, high


def tables(found: Found) -> Iterator[str]:
    """Yield two Markdown tables for each GPU and load, by clients: changes of throughput and of TPOT."""
    others = [name for name in CANDIDATES if name != PLAIN]
    for (gpu, load), sizes in _pages(found).items():
        cells = [found[gpu, load, clients] for clients in sizes]
        speeds = [f"{np.mean(each[PLAIN].speed):,.0f} tok/s" for each in cells]
        tpots = [f"{np.mean(each[PLAIN].tpot):.1f} ms" for each in cells]
        yield f"\n### {gpu}, {load}\n\nOutput tokens per second:\n"
        gains = [[_speed(each[name], each[PLAIN]) for name in others] for each in cells]
        yield _markdown(["clients", PLAIN, *others], sizes, speeds, gains)
        yield "\nMean TPOT:\n"
        gains = [[_percent(ratio(each[name].tpot, each[PLAIN].tpot)[1]) for name in others] for each in cells]
        yield _markdown(["clients", PLAIN, *others], sizes, tpots, gains)


def _speed(cell: Cell, plain: Cell) -> str:
    low, middle, high = map(_percent, ratio(cell.speed, plain.speed))
    model = f" [{_percent(min(cell.drawn))} to {_percent(max(cell.drawn))}]" if cell.drawn else ""
    return f"{middle} % ({low} to {high}){model}"


def _percent(factor: float) -> str:
    """Return a factor as a change in per cent, without the sign of a zero."""
    return f"{round(100 * (factor - 1)):+d}".replace("+0", "0")


def _markdown(head: list[str], sizes: list[int], plain: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head)]
    lines += [[str(n), first, *row] for n, first, row in zip(sizes, plain, rows, strict=True)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _pages(found: Found) -> dict[tuple[str, str], list[int]]:
    pages: dict[tuple[str, str], list[int]] = {}
    for gpu, load, clients in found:
        pages.setdefault((gpu, load), []).append(clients)
    return pages


def figure(found: Found) -> Figure:
    """Draw the gain in output tokens/s over 16 bits against the clients, and where +30 to +50 % lies."""
    from plotly.graph_objects import Scatter

    pages = _pages(found)
    fig = new_figure(
        2,
        2,
        height=720,
        subplot_titles=[f"{gpu}, {load}" for gpu, load in pages],
        shared_yaxes="all",
        vertical_spacing=0.12,
        horizontal_spacing=0.05,
    )
    fig.update_layout(width=960, margin={"t": 96}, legend={"y": 1.1})
    for place, ((gpu, load), sizes) in enumerate(pages.items()):
        row, col = place // 2 + 1, place % 2 + 1
        for i, name in enumerate(name for name in CANDIDATES if name != PLAIN):
            cells = [(found[gpu, load, n][name], found[gpu, load, n][PLAIN]) for n in sizes]
            bounds = np.array([ratio(mine.speed, theirs.speed) for mine, theirs in cells]) - 1
            spread = {"array": bounds[:, 2] - bounds[:, 1], "arrayminus": bounds[:, 1] - bounds[:, 0]}
            trace = Scatter(
                x=sizes,
                y=bounds[:, 1],
                error_y={"type": "data", **spread, "thickness": 1},
                line=line_style(i),
                name=name,
                legendgroup=name,
                showlegend=place == 0,
                mode="lines+markers",
            )
            fig.add_trace(trace, row, col)
        fig.add_hrect(
            y0=CLAIM[0], y1=CLAIM[1], fillcolor="#888", opacity=0.15, line_width=0, row=row, col=col
        )
        fig.update_xaxes(type="log", tickvals=sizes, row=row, col=col)
    fig.update_yaxes(tickformat="+.0%", rangemode="tozero")
    fig.update_yaxes(title_text="output tok/s, over 16 bits", col=1)
    return fig.update_xaxes(title_text="clients (log scale)", row=2)


def capacities(gpus: Sequence[str], replications: int, tolerance: float) -> Iterator[str]:
    """Yield a Markdown table a GPU: the rate at which 99 % of the chat load meets each SLO."""
    for gpu in gpus:
        keys = {"hardware.gpu": GPUS[gpu], "workload.arrivals": {"kind": "poisson", "rate": 4.0}}
        base = load_scenario("chat-a100").with_(**keys, **{"workload.lengths": LOADS["chat"]})
        given = {"replications": replications, "tolerance": tolerance, "progress": False, "workers": 1}
        frames = [capacity(base, CANDIDATES, slo=slo, **given).table for slo in SLOS.values()]
        lines = [["weights, KV", *SLOS], ["---"] * (1 + len(SLOS))]
        lines += [[name, *(_capacity(frame.loc[name]) for frame in frames)] for name in CANDIDATES]
        yield f"\n### {gpu}\n"
        yield "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _capacity(row: pd.Series[float]) -> str:
    if row["rate"] is None or np.isnan(row["rate"]):
        return "none"
    text = f"{row['rate']:.2f} req/s ({row['low']:.2f} to {row['high']:.2f})"
    if np.isnan(row["difference"]):
        return text
    change, low, high = (row[f"difference{which}"] for which in ("", "_low", "_high"))
    return f"{text}: {change:+.2f} ({low:+.2f} to {high:+.2f})"


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--gpus", default=",".join(GPUS))
    parser.add_argument("--clients", default=",".join(map(str, CLIENTS)))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--draws", type=int, default=DRAWS, help="of the profile's errors; 0 = none")
    parser.add_argument("--capacity", action="store_true", help="find capacities at the SLOs instead")
    parser.add_argument("--replications", type=int, default=5, help="of each rate of --capacity")
    parser.add_argument("--tolerance", type=float, default=0.02, help="of --capacity")
    parser.add_argument("--figure", type=Path, help=".svg, .png or .html")
    asked = parser.parse_args(words)
    gpus = asked.gpus.split(",")
    if asked.capacity:
        for text in capacities(gpus, asked.replications, asked.tolerance):
            print(text, flush=True)
        return
    sizes = [int(text) for text in asked.clients.split(",")]
    found = {
        (gpu, load, clients): measure(gpu, load, clients, asked.seeds, asked.draws)
        for gpu in gpus
        for load in LOADS
        for clients in sizes
    }
    print("\n".join(tables(found)))
    if asked.figure is not None:
        drawn = figure(found)
        if asked.figure.suffix == ".html":
            drawn.write_html(asked.figure, include_plotlyjs=True, config={"displayModeBar": False})
        else:
            drawn.write_image(asked.figure, scale=2)


if __name__ == "__main__":
    main()
