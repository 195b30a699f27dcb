"""Hold tensor parallelism against measured servers: ratios of prefill and decode times between group sizes.

The measurements are splitwise's (Mutinifni/splitwise-sim 8f99e7d, MIT; Patel et al., ISCA 2024): Llama-2-70B
on A100-80GB, vLLM of early 2024, a cross of 512 tokens x batch and prompt x batch 1. Nothing is fitted on
them but, if asked for, one number: `host_bound` takes the decode time of the smallest step on the largest
group for the time in which the host launches a step's kernels, and leaves that cell out. Compared are
ratios, since engines are years apart. Run: python -m calibration.group_ratios splitwise_perf_model.csv
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import NamedTuple

from simulator.errors import InputError
from simulator.latency.base import StepFeatures
from simulator.latency.group import group_profile
from simulator.latency.profile import Host, Profile
from simulator.specs.hardware import get_hardware
from simulator.specs.shipped_models import get_model

MODEL, GPU = "llama2-70b", "a100-80gb"  # as the file calls them
OUTPUT = 128  # tokens; the only answer length of the whole cross
GROUPS = (2, 4, 8)
PAIRS = ((2, 4), (4, 8), (2, 8))
IMPOSSIBLE = (512, 64)  # its prefill on 2 GPUs is under the FLOP bound: README of the data, caveat 11


class Cell(NamedTuple):
    """Median measured seconds by group size, of `batch` prompts of `prompt` tokens."""

    prompt: int
    batch: int
    prefill: dict[int, float]
    decode: dict[int, float]


class Ratio(NamedTuple):
    """How many times as long the smaller group takes as the larger one."""

    phase: str
    cell: Cell
    groups: tuple[int, int]
    measured: float
    predicted: float

    @property
    def error(self) -> float:
        """Relative error of the prediction."""
        return self.predicted / self.measured - 1


def read_cells(path: Path) -> list[Cell]:
    """Read the cross; InputError if the file is another."""
    times: dict[tuple[int, int], dict[tuple[str, int], list[float]]] = {}
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            try:
                if (row["model"], row["hardware"], int(row["token_size"])) != (MODEL, GPU, OUTPUT):
                    continue
                cell = times.setdefault((int(row["prompt_size"]), int(row["batch_size"])), {})
                for phase, column in (("prefill", "prompt_time"), ("decode", "token_time")):
                    cell.setdefault((phase, int(row["tensor_parallel"])), []).append(float(row[column]) / 1e3)
            except (KeyError, ValueError) as error:
                raise InputError(f"{path}: not splitwise's perf_model.csv: {error}") from None
    return [
        Cell(*key, *({n: median(cell[phase, n]) for n in GROUPS} for phase in ("prefill", "decode")))
        for key, cell in sorted(times.items())
        if key != IMPOSSIBLE
    ]


def profiles() -> dict[int, Profile]:
    """Return the shipped profile of each group size."""
    found = {n: group_profile(get_hardware("a100-80gb-sxm"), get_model("llama-2-70b"), n) for n in GROUPS}
    return {n: profile for n, profile in found.items() if profile is not None}


def host_bound(cells: Sequence[Cell], groups: dict[int, Profile]) -> tuple[list[Cell], dict[int, Profile]]:
    """Return the cells but the first, and profiles of an engine whose host takes that cell's decode time."""
    host = Host(cells[0].decode[GROUPS[-1]], 0.0)
    return list(cells[1:]), {n: replace(group, host=host).overlapped() for n, group in groups.items()}


def ratios(cells: Sequence[Cell], groups: dict[int, Profile]) -> Iterator[Ratio]:
    """Yield every ratio between two group sizes, measured and predicted."""
    for cell in cells:
        steps = {
            "prefill": StepFeatures.prefill([(cell.prompt, 0)] * cell.batch),
            "decode": StepFeatures.decode([cell.prompt + OUTPUT // 2] * cell.batch),
        }
        for phase, step in steps.items():
            measured = cell.prefill if phase == "prefill" else cell.decode
            predicted = {n: group.step_time(step) for n, group in groups.items()}
            for few, many in PAIRS:
                ratio = predicted[few] / predicted[many]
                yield Ratio(phase, cell, (few, many), measured[few] / measured[many], ratio)


def table(found: Sequence[Ratio]) -> Iterator[str]:
    """Yield one line for each phase and cell, and the share of ratios within 20 %."""
    yield "phase    prompt  batch   TP2/TP4 measured, predicted   TP4/TP8            TP2/TP8"
    for first in range(0, len(found), len(PAIRS)):
        row = found[first : first + len(PAIRS)]
        parts = "   ".join(f"{r.measured:5.2f} {r.predicted:5.2f} {r.error:+5.0%}" for r in row)
        yield f"{row[0].phase:8} {row[0].cell.prompt:6} {row[0].cell.batch:6}   {parts}"
    for phase in ("prefill", "decode"):
        errors = sorted(abs(r.error) for r in found if r.phase == phase)
        near = sum(error <= 0.2 for error in errors)
        yield (
            f"{phase}: {near} of {len(errors)} within 20 %, median {median(errors):.0%}, "
            f"worst {errors[-1]:.0%}"
        )


if __name__ == "__main__":
    measured = read_cells(Path(sys.argv[1]))
    print("As shipped (host 1.5 ms a step):", *table(list(ratios(measured, profiles()))), sep="\n")
    fewer, bound = host_bound(measured, profiles())
    print("Host-bound (one number from the first cell):", *table(list(ratios(fewer, bound))), sep="\n")
