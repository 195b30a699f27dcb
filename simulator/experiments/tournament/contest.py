"""What is played: which requests a replication has, and what each candidate does with them.

Warm-up: a server that starts empty is quicker than one that has run for long. Where the load is steady its
first completions are left out by MSER-5 (White, Cobb and Spratt, WSC 2000): the longest cut that any
candidate's plain run asks for, the same for all candidates and replications. A cut of its own for every run
leaves out other requests of each and loses part of the pairing. Loads without a steady state (traces,
everything at once, a ramp, a profile of the day) keep all their requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from simulator.config.run import Run
from simulator.config.scenario import Scenario
from simulator.errors import ConfigError
from simulator.experiments.jobs import FEW_STEPS, Job, Values, numbers
from simulator.experiments.replications import SEEDS, Replications
from simulator.metrics.summary import latencies
from simulator.metrics.warmup import WarmUp

STEADY = ("poisson", "gamma", "deterministic", "mmpp", "closed_loop")
"""Arrivals whose law does not change over the run."""


@dataclass
class Contest:
    """Candidates as their plain runs hold them, and the replications that all of them serve."""

    runs: Mapping[str, Run]
    baseline: str
    replications: Replications
    warmup: WarmUp

    @classmethod
    def of(cls, runs: Mapping[str, Run], baseline: str, wanted: int | None) -> Contest:
        """Prepare a contest; ConfigError if the candidates do not replay one and the same trace."""
        base = runs[baseline]
        for name, run in runs.items():
            if run.scenario.workload.trace != base.scenario.workload.trace:
                raise ConfigError(
                    f"replications: {name!r:.80} has another workload.trace than the baseline; "
                    "replications are drawn from one source of requests"
                )
        made = Replications.of(base.scenario, base.machine.max_model_len, wanted)
        return cls(runs, baseline, made, common_warmup(runs, base.scenario))

    @property
    def others(self) -> list[str]:
        """The candidates that are compared with the baseline."""
        return [name for name in self.runs if name != self.baseline]

    def job(self, name: str, index: int, pace: float = 1.0) -> Job:
        """Return what a candidate does in a replication."""
        run = self.runs[name]
        scenario = self.replications.scenario(run.scenario, index).with_(**{"run.warmup": self.warmup})
        workload = self.replications.workload(run.scenario, run.machine.max_model_len, index)
        return Job(scenario, run.policies, run.machine, workload, pace=pace)

    def known(self, name: str, index: int) -> Values | None:
        """Return the numbers of a replication that is the plain run, None of any other."""
        run = self.runs[name]
        is_plain = self.replications.kind == SEEDS and index == 0 and run.scenario.run.warmup == self.warmup
        return numbers(run) if is_plain else None

    def workers(self, num: int, num_jobs: int) -> int:
        """Return how many processes are worth their start for some jobs: one, or one a core (-1)."""
        mean = sum(len(run.steps) for run in self.runs.values()) / len(self.runs)
        return num if num else 1 if mean * num_jobs <= FEW_STEPS else -1

    def warmup_words(self) -> str:
        """Say what was left out as warm-up."""
        if self.warmup == "none":
            trace = self.replications.kind != SEEDS
            arrivals = self.runs[self.baseline].scenario.workload.arrivals.get("kind")
            if trace or arrivals not in STEADY:
                return f"no warm-up left out ({'a trace' if trace else 'this load'} has no steady state)"
            return "no warm-up left out (MSER-5 found none)"
        if isinstance(self.warmup, dict):
            return f"the first {self.warmup['requests']:,} completions of each left out as warm-up"
        if self.warmup == "auto":
            return "the warm-up of each left out by MSER-5"
        return f"the first {100 * float(self.warmup):g} % of each left out as warm-up"


def common_warmup(runs: Mapping[str, Run], base: Scenario) -> WarmUp:
    """Return the warm-up rule of all replications: as given, else MSER-5 where the load is steady."""
    given, trace = base.run.warmup, base.workload.trace is not None
    if given not in ("none", "auto") or (trace and given == "auto"):
        return given
    arrivals = base.workload.arrivals
    is_steady = arrivals.get("kind") in STEADY and arrivals.get("rate") != float("inf")
    if trace or not (is_steady or given == "auto"):
        return "none"
    longest = max(_mser5(run) for run in runs.values())
    return {"requests": longest} if longest else "none"


def _mser5(run: Run) -> int:
    return len(latencies(run.requests).rows) - len(latencies(run.requests, "auto").rows)
