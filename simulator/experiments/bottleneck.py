"""What limits a server: run the same requests with twice of one thing at a time and see what helps.

What raises the share of requests within the SLO most is the bottleneck; if nothing does, what raises output
throughput; if nothing does that either, the arrivals are all there is to serve.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

from simulator.config.build import Machine, build_machine
from simulator.config.run import Run, run_scenario
from simulator.config.scenario import Scenario
from simulator.errors import ConfigError

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


Doubled = tuple[Scenario, Machine]


def _blocks(run: Run) -> Doubled:
    doubled = 2 * run.machine.kv.usable_blocks + 1
    scenario = run.scenario.with_(**{"kv.num_gpu_blocks_override": doubled})
    times = run.machine.latency  # of the run, which may be another than the scenario's
    return scenario, build_machine(scenario).with_latency(lambda _: times)


def _seats(run: Run) -> Doubled:
    keys = run.scenario.scheduler
    seats = 2 * keys.max_num_seqs
    tokens = max(seats, keys.max_num_batched_tokens)
    changes = {"scheduler.max_num_seqs": seats, "scheduler.max_num_batched_tokens": tokens}
    return run.scenario.with_(**changes), run.machine


def _budget(run: Run) -> Doubled:
    tokens = 2 * run.scenario.scheduler.max_num_batched_tokens
    return run.scenario.with_(**{"scheduler.max_num_batched_tokens": tokens}), run.machine


def _flops(run: Run) -> Doubled:
    return run.scenario, run.machine.with_latency(lambda latency: latency.scaled(flops=2.0))


def _bandwidth(run: Run) -> Doubled:
    return run.scenario, run.machine.with_latency(lambda latency: latency.scaled(bandwidth=2.0))


def _replicas(run: Run) -> Doubled:
    cluster = run.scenario.cluster
    assert cluster is not None, "it has replicas"
    return run.scenario.with_(**{"cluster.replicas": 2 * cluster.num_replicas}), run.machine


DOUBLINGS: dict[str, Callable[[Run], Doubled]] = {
    "KV blocks": _blocks,
    "max_num_seqs": _seats,
    "max_num_batched_tokens": _budget,
    "FLOP/s": _flops,
    "memory bandwidth": _bandwidth,
}
OF_A_CLUSTER: dict[str, Callable[[Run], Doubled]] = {"replicas": _replicas}


def has_doublings(scenario: Scenario) -> bool:
    """Say whether a scenario has one of each thing that could be doubled."""
    cluster = scenario.cluster
    return cluster is None or (
        isinstance(cluster.replicas, int)
        and cluster.autoscaler is None
        and cluster.disaggregation is None
        and not cluster.outages
    )


def find_bottleneck(run: Run) -> Bottleneck:
    """Rerun a run's requests with twice of each thing in `DOUBLINGS` and name what helped most.

    ConfigError for a cluster whose replicas differ, die, or are as many as an autoscaler says.
    """
    if not has_doublings(run.scenario):
        raise ConfigError("bottleneck: needs replicas that are all alike, with no outages and no autoscaler")
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
    more = {} if run.scenario.cluster is None else OF_A_CLUSTER
    for what, double in (more | DOUBLINGS).items():
        scenario, machine = double(run)
        doubled = run_scenario(scenario, policies=run.policies, machine=machine, workload=run.workload)
        now, tokens = figures(doubled)
        gain = tokens / throughput - 1.0 if throughput else 0.0
        yield Doubling(what, now, tokens, now - attainment, gain)


def figures(run: Run) -> tuple[float, float]:
    """Return a run's attainment (0..1) and output throughput (tok/s)."""
    attainment, throughput = run.own["attainment"], run.summary["output_throughput"]
    assert isinstance(throughput, float)
    return (attainment if isinstance(attainment, float) else 0.0), throughput
