"""Where speculation helps and where it hurts, by batch size and acceptance.

    python benchmarks/speculation.py --figure docs/speculation.png

A batch of equal requests decodes on one A100-80GB, contexts around 1,000 tokens; what is compared is the
output rate while all of them decode, with drafts and without. Each of 20 draws takes other errors of the
profile (and of the draft model's estimate) and one of five seeds for what is accepted; the interval is the
middle 90 %. Prints a Markdown table for each way to draft. A figure as .svg or .png needs kaleido and Chrome
or Chromium.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from simulator.batch import Batch
from simulator.config.build import build_machine
from simulator.config.loading import load_scenario
from simulator.config.run import run_scenario
from simulator.config.scenario import Scenario
from simulator.experiments.figure_style import new_figure
from simulator.experiments.intervals import interval_of
from simulator.latency.base import LatencyModel
from simulator.latency.drafting import DraftingStep
from simulator.latency.uncertainty import draw_deviates, drawn, error_terms
from simulator.metrics.tables import Floats
from simulator.request import Sequence as Seq
from simulator.schedulers import Scheduler

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
RATES = (0.4, 0.6, 0.8, 0.9)
PROMPT, OUTPUT = 768, 512  # contexts grow from 768 to 1,280 tokens, 1,024 on average
BUDGET = 16384  # all prompts are computed before the first answer ends
NUM_DRAWS, NUM_SEEDS = 20, 5
STRIDE = 4  # of the steps, every fourth is priced by the draws: their sums change slowly
LOOKUP_US = 2.0
"""1.9 s for 5,000 ShareGPT requests (vllm-project/vllm pull request 13365), some 200 output tokens each."""
NGRAM: dict[str, object] = {"method": "ngram", "lookup_us": LOOKUP_US}
SMALL: dict[str, object] = {"method": "draft_model", "draft_model": "llama-3.2-1b"}
AUTO: dict[str, object] = {"num_speculative_tokens": 5, "num_speculative_tokens_per_batch_size": "auto"}
WAYS: dict[str, dict[str, object]] = {
    "n-gram, 3 drafts": NGRAM | {"num_speculative_tokens": 3},
    "n-gram, 5 drafts": NGRAM | {"num_speculative_tokens": 5},
    "n-gram, auto": NGRAM | AUTO,
    "1B model, 3 drafts": SMALL | {"num_speculative_tokens": 3},
    "1B model, 5 drafts": SMALL | {"num_speculative_tokens": 5},
    "1B model, auto": SMALL | AUTO,
}


class Cell(NamedTuple):
    """One way to draft at one batch size and acceptance."""

    way: str
    batch: int
    rate: float


class Gain(NamedTuple):
    """The output rate over that without drafts: as the profile has it, and the middle 90 % of the draws."""

    nominal: float
    low: float
    high: float
    drafts: float  # tokens drafted for a sequence and step, mean

    @property
    def sign(self) -> int:
        """1: helps, -1: hurts, 0: cannot be told."""
        return 1 if self.low > 1 else -1 if self.high < 1 else 0


class Decoding:
    """Notes the steps in which the whole batch decodes and nothing else happens."""

    def __init__(self, batch_size: int) -> None:
        self.batch_size = batch_size
        self.steps: list[tuple[DraftingStep, float]] = []  # what is priced, and when the step begins
        self.num_drafts = 0

    def decided(self, batch: Batch, scheduler: Scheduler, now: float) -> None:
        if batch.num_seqs != self.batch_size or batch.num_decodes != self.batch_size:
            return
        self.num_drafts += batch.num_drafts
        n, kv, longest = batch.num_decodes, batch.decode_kv, batch.decode_kv_max
        step = DraftingStep(
            batch.num_tokens, n, batch.num_sampled, n, kv, longest, num_to_draft=batch.num_to_draft
        )
        self.steps.append((step, now))

    def finished(self, sequences: Iterable[Seq], now: float) -> None:
        pass


def scenario(batch: int, speculative: dict[str, object] | None, seed: int = 0) -> Scenario:
    """Describe a batch of equal requests that are all there at the start."""
    return load_scenario("chat-a100").with_(
        **{
            "name": "speculation",
            "seed": seed,
            "workload.arrivals": {"kind": "all_at_once"},
            "workload.lengths": {"kind": "constant", "prompt": PROMPT, "output": OUTPUT},
            "workload.num_requests": batch,
            "scheduler.max_num_batched_tokens": BUDGET,
            "speculative": speculative,
        }
    )


class Decoded(NamedTuple):
    """Steps of a run in which the whole batch decoded: output tokens a step, and what some steps were."""

    tokens: float
    steps: list[DraftingStep]
    drafts: float


def decode(batch: int, speculative: dict[str, object] | None, seed: int) -> Decoded:
    """Run a batch and keep its decode steps before the first answer ends."""
    noted = Decoding(batch)
    run = run_scenario(scenario(batch, speculative, seed), observers=[noted])
    assert not run.steps.num_preempted.any(), "the batch fits"
    begins = [now for _, now in noted.steps]
    tokens = run.steps.output_tokens[np.searchsorted(run.steps.start, begins)].mean()
    steps = [step for step, _ in noted.steps]
    return Decoded(float(tokens), steps[::STRIDE], noted.num_drafts / len(steps) / batch)


def seconds(latency: LatencyModel, steps: Iterable[DraftingStep]) -> float:
    """Return the mean time of steps."""
    return float(np.mean([latency.step_time(step) for step in steps]))


@lru_cache(len(WAYS) + 1)
def models(way: str | None) -> list[LatencyModel]:
    """Return the latency model, and as many drawn ones; a draw is the same for all ways to draft."""
    keys = None if way is None else WAYS[way] | {"acceptance": 0.5}  # which has no part in the price
    latency = build_machine(scenario(1, keys)).latency
    draws = draw_deviates(error_terms(latency), NUM_DRAWS, seed=0)
    return [latency, *(drawn(latency, deviates) for deviates in draws)]


@lru_cache(len(BATCHES))
def plain_rates(batch: int) -> list[float]:
    """Return tokens a second without drafts, nominal and of each draw."""
    found = decode(batch, None, 0)
    return [found.tokens / seconds(latency, found.steps) for latency in models(None)]


def gain(cell: Cell) -> Gain:
    """Compare one way to draft with none."""
    keys = WAYS[cell.way] | {"acceptance": cell.rate}
    runs = [decode(cell.batch, keys, seed) for seed in range(NUM_SEEDS)]
    nominal, *draws = models(cell.way)
    plain, *others = plain_rates(cell.batch)
    mean = float(np.mean([run.tokens / seconds(nominal, run.steps) for run in runs])) / plain
    drawn_gains = [
        runs[i % NUM_SEEDS].tokens / seconds(latency, runs[i % NUM_SEEDS].steps) / other
        for i, (latency, other) in enumerate(zip(draws, others, strict=True))
    ]
    span = interval_of(drawn_gains)
    assert span is not None, "there are draws"
    return Gain(mean, span.low, span.high, float(np.mean([run.drafts for run in runs])))


def table(way: str, found: dict[Cell, Gain]) -> str:
    """Return the Markdown table of one way to draft, a row a batch size."""
    cells = [cell for cell in found if cell.way == way]
    rates = sorted({cell.rate for cell in cells})
    lines = [["batch", *(f"{100 * rate:.0f} % accepted" for rate in rates)], ["---"] * (1 + len(rates))]
    for batch in sorted({cell.batch for cell in cells}):
        lines.append([str(batch), *(words(way, found[Cell(way, batch, rate)]) for rate in rates)])
    return "\n".join(f"| {' | '.join(row)} |" for row in lines)


def words(way: str, each: Gain) -> str:
    """Return a gain with its interval, bold where it helps, struck where it hurts."""
    mark = {1: "**", -1: "~~", 0: ""}[each.sign]
    drafts = f", {each.drafts:.1f} drafts" if "auto" in way else ""
    return f"{mark}{each.nominal:.2f}{mark} ({each.low:.2f} to {each.high:.2f}){drafts}"


def figure(found: dict[Cell, Gain]) -> Figure:
    """Draw a heat map for each way: colours by the logarithm of the gain, ? where its sign cannot be told."""
    ways = list(dict.fromkeys(cell.way for cell in found))
    across = min(3, len(ways))
    fig = new_figure(
        -(-len(ways) // across),
        across,
        height=760,
        subplot_titles=ways,
        shared_yaxes=True,
        vertical_spacing=0.09,
        horizontal_spacing=0.03,
    )
    for i, way in enumerate(ways):
        fig.add_trace(_heat_map(way, found), i // across + 1, i % across + 1)
    fig.update_layout(width=1100, showlegend=False, margin={"t": 60})
    fig.update_xaxes(type="category", title_text="acceptance", row=-(-len(ways) // across))
    fig.update_yaxes(type="category").update_yaxes(title_text="batch size", col=1)
    return fig


def _heat_map(way: str, found: dict[Cell, Gain]) -> object:
    from plotly.graph_objects import Heatmap

    mine = {cell: each for cell, each in found.items() if cell.way == way}
    rates, batches = sorted({cell.rate for cell in mine}), sorted({cell.batch for cell in mine})
    grid = [[mine[Cell(way, batch, rate)] for rate in rates] for batch in batches]
    levels: Floats = np.log2([[each.nominal for each in row] for row in grid])
    texts = [[f"{each.nominal:.2f}{'' if each.sign else ' ?'}" for each in row] for row in grid]
    return Heatmap(
        x=[f"{100 * rate:.0f} %" for rate in rates],
        y=[str(batch) for batch in batches],
        z=levels,
        text=texts,
        texttemplate="%{text}",
        zmin=-2,
        zmax=2,
        colorscale="RdBu",
        showscale=False,
    )


def measure(cells: Sequence[Cell], workers: int) -> dict[Cell, Gain]:
    """Compute all cells."""
    if workers == 1:
        return {cell: gain(cell) for cell in cells}
    with ProcessPoolExecutor(workers) as pool:
        return dict(zip(cells, pool.map(gain, cells, chunksize=4), strict=True))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--batches", default=",".join(map(str, BATCHES)))
    parser.add_argument("--rates", default=",".join(map(str, RATES)), help="acceptance of a draft")
    parser.add_argument("--ways", default="", help="only ways whose name has this word")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--figure", type=Path, help=".svg, .png or .html")
    asked = parser.parse_args(arguments)
    batches, rates = map(int, asked.batches.split(",")), list(map(float, asked.rates.split(",")))
    ways = [way for way in WAYS if asked.ways in way]
    cells = [Cell(way, batch, rate) for batch in batches for way in ways for rate in rates]
    found = measure(cells, asked.workers)
    for way in ways:
        print(f"\n{way}\n\n{table(way, found)}")
    if asked.figure is not None:
        fig = figure({cell: found[cell] for way in ways for cell in cells if cell.way == way})
        save = fig.write_html if asked.figure.suffix == ".html" else fig.write_image
        save(asked.figure)


if __name__ == "__main__":
    main()
