"""What limits a server: run the same requests with twice of one thing at a time and see what helps.

What raises the share of requests within the SLO most is the bottleneck; if nothing does, what raises output
throughput; if nothing does that either, the arrivals are all there is to serve.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace

from simulator.config.build import build_machine
from simulator.config.run import Run, run_scenario
from simulator.config.scenario import Scenario
from simulator.latency.base import LatencyModel

MIN_ATTAINMENT_GAIN = 0.005
"""Smallest rise of attainment that counts, as a share of requests; any change of timing brings less."""
MIN_THROUGHPUT_GAIN = 0.02
"""Smallest rise of output throughput that counts, relative."""

ARRIVALS = "arrivals"


@dataclass(frozen=True, slots=True)
class Doubling:
    """One run with twice of something. `attainment` and `output_throughput` (tok/s) are that run's."""

    what: str
    attainment: float
    output_throughput: float
    attainment_gain: float  # absolute
    throughput_gain: float  # relative


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """The answer and the runs behind it."""

    name: str  # a key of DOUBLINGS, or "arrivals"
    reason: str
    doublings: tuple[Doubling, ...]

    def to_dict(self) -> dict[str, object]:
        return {"name": self.name, "reason": self.reason, "rows": [asdict(row) for row in self.doublings]}


def _blocks(scenario: Scenario, latency: LatencyModel, run: Run) -> tuple[Scenario, LatencyModel]:
    doubled = 2 * run.machine.kv.usable_blocks + 1
    return scenario.with_(**{"kv.num_gpu_blocks_override": doubled}), latency


def _seats(scenario: Scenario, latency: LatencyModel, run: Run) -> tuple[Scenario, LatencyModel]:
    seats = 2 * scenario.scheduler.max_num_seqs
    tokens = max(seats, scenario.scheduler.max_num_batched_tokens)
    keys = {"scheduler.max_num_seqs": seats, "scheduler.max_num_batched_tokens": tokens}
    return scenario.with_(**keys), latency


def _budget(scenario: Scenario, latency: LatencyModel, run: Run) -> tuple[Scenario, LatencyModel]:
    tokens = 2 * scenario.scheduler.max_num_batched_tokens
    return scenario.with_(**{"scheduler.max_num_batched_tokens": tokens}), latency


def _flops(scenario: Scenario, latency: LatencyModel, run: Run) -> tuple[Scenario, LatencyModel]:
    return scenario, latency.scaled(flops=2.0)


def _bandwidth(scenario: Scenario, latency: LatencyModel, run: Run) -> tuple[Scenario, LatencyModel]:
    return scenario, latency.scaled(bandwidth=2.0)


DOUBLINGS: dict[str, Callable[[Scenario, LatencyModel, Run], tuple[Scenario, LatencyModel]]] = {
    "KV blocks": _blocks,
    "max_num_seqs": _seats,
    "max_num_batched_tokens": _budget,
    "FLOP/s": _flops,
    "memory bandwidth": _bandwidth,
}


def find_bottleneck(run: Run) -> Bottleneck:
    """Rerun a run's requests with twice of each thing in `DOUBLINGS` and name what helped most."""
    rows = tuple(_doubled(run))
    by_attainment = max(rows, key=lambda row: (row.attainment_gain, row.throughput_gain))
    if by_attainment.attainment_gain >= MIN_ATTAINMENT_GAIN:
        gain = 100 * by_attainment.attainment_gain
        return Bottleneck(
            by_attainment.what, f"twice as much brings {gain:.1f} % more requests within the SLO", rows
        )
    by_throughput = max(rows, key=lambda row: row.throughput_gain)
    if by_throughput.throughput_gain >= MIN_THROUGHPUT_GAIN:
        gain = 100 * by_throughput.throughput_gain
        return Bottleneck(by_throughput.what, f"twice as much brings {gain:.1f} % more output tokens/s", rows)
    return Bottleneck(ARRIVALS, "twice of nothing helps: the server keeps up with what arrives", rows)


def _doubled(run: Run) -> Iterator[Doubling]:
    attainment, throughput = figures(run)
    for what, double in DOUBLINGS.items():
        scenario, latency = double(run.scenario, run.machine.latency, run)
        machine = run.machine if scenario.kv == run.scenario.kv else build_machine(scenario)
        doubled = run_scenario(
            scenario,
            policies=run.policies,
            machine=replace(machine, latency=latency),
            workload=run.workload,
        )
        now, tokens = figures(doubled)
        gain = tokens / throughput - 1.0 if throughput else 0.0
        yield Doubling(what, now, tokens, now - attainment, gain)


def figures(run: Run) -> tuple[float, float]:
    """Return a run's attainment (0..1) and output throughput (tok/s)."""
    attainment, throughput = run.own["attainment"], run.summary["output_throughput"]
    assert isinstance(throughput, float)
    return (attainment if isinstance(attainment, float) else 0.0), throughput
