"""Run a scenario: build it, serve its workload, sum up what happened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from simulator.config.build import NO_POLICIES, Machine, Policies, build_machine
from simulator.config.build_workload import build_workload, client_plan
from simulator.config.own import own_summary
from simulator.config.policies import suspects
from simulator.config.scenario import Scenario
from simulator.config.server import Server, Timing, make_server
from simulator.config.tenants import slo_of, with_deadlines
from simulator.config.wrong_policies import blaming, searching
from simulator.engine.clients import ClientPlan, Progress
from simulator.engine.decisions import DecisionLog
from simulator.engine.observer import Observer
from simulator.engine.serve import MakeExecutor
from simulator.latency.base import LatencyModel
from simulator.metrics.summary import latencies, summarize
from simulator.metrics.tables import Floats, Ints, RequestTable, StepTable
from simulator.workload.workload import Workload


@dataclass
class Run:
    """A scenario and what came of it. `summary` has vLLM's keys, and ours under "servetwin"."""

    scenario: Scenario
    machine: Machine
    workload: Workload
    requests: RequestTable
    steps: StepTable
    gaps: tuple[Floats, Ints]
    summary: dict[str, object]
    log: DecisionLog | None = None
    policies: Policies = NO_POLICIES  # with the files as they were when the run began

    @property
    def own(self) -> dict[str, object]:
        """Our part of the summary."""
        own = self.summary["servetwin"]
        assert isinstance(own, dict)
        return own


def run_scenario(
    scenario: Scenario,
    *,
    policies: Policies = NO_POLICIES,
    machine: Machine | None = None,
    workload: Workload | None = None,
    plan: ClientPlan | None = None,
    latency: LatencyModel | None = None,
    timing: Timing | None = None,
    decisions: bool = False,
    observers: Sequence[Observer] = (),
    progress: Progress | None = None,
    check_invariants: bool = False,
    make_executor: MakeExecutor | None = None,
) -> Run:
    """Simulate a scenario from start to end; with `make_executor`, let a real engine do it.

    A machine, workload or clients' plan built before takes the place of the scenario's own. The steps take
    the times of `latency`, or of what `timing` makes of each replica's own; policies see the machine's.
    """
    machine = machine or build_machine(scenario)
    policies = policies.reading(scenario)
    blamed = suspects(policies.files, policies)
    if latency is not None:
        timing = partial(_instead, latency)

    def server() -> Server:
        return make_server(scenario, machine, policies, timing)

    with blaming(blamed):
        first = server()
    workload = build_workload(scenario, machine.max_model_len) if workload is None else workload
    if scenario.kv.enable_prefix_caching:
        workload = workload.with_blocks(scenario.kv.block_size)
    workload = with_deadlines(scenario, workload)
    log = DecisionLog() if decisions else None
    plan = client_plan(scenario, workload) if plan is None else plan

    def checked() -> None:
        server().serve(workload.requests, plan, check_invariants=True)

    with blaming(blamed, scenario), searching(blamed, checked):
        served = first.serve(
            workload.requests,
            plan,
            observers=[*observers, *([log] if log else [])],
            progress=progress,
            check_invariants=check_invariants,
            make_executor=make_executor,
        )
    requests = served.request_table(workload.requests)
    kept = latencies(requests, scenario.run.warmup).rows
    gaps = served.gaps(kept)
    tables = served.step_tables()
    steps = served.together(tables)
    summary = _header(scenario, workload) | summarize(
        requests,
        steps,
        gaps,
        slo=slo_of(scenario, requests.tenant),
        warmup=scenario.run.warmup,
        ranks=scenario.run.percentiles,
        method=scenario.run.percentile_method,
    )
    run = Run(scenario, machine, workload, requests, steps, gaps, summary, log, policies)
    if (verifications := served.verifications()) is not None:
        summary |= verifications.summary()
    summary["servetwin"] = own_summary(run, served, tables)
    return run


def _instead(latency: LatencyModel, _: LatencyModel, kind: int) -> LatencyModel:
    return latency


def _header(scenario: Scenario, workload: Workload) -> dict[str, object]:
    """The keys with which vLLM describes a benchmark; the date is left empty so that equal runs are equal."""
    arrivals = {} if scenario.workload.trace else scenario.workload.arrivals
    rate = "inf" if arrivals.get("kind") == "all_at_once" else arrivals.get("rate")
    return {
        "date": None,
        "endpoint_type": "servetwin",
        "backend": "servetwin",
        "label": scenario.name,
        "model_id": scenario.model.name,
        "tokenizer_id": scenario.model.name,
        "num_prompts": len(workload),
        "request_rate": rate,
        "burstiness": arrivals.get("burstiness", 1.0 if arrivals.get("kind") == "poisson" else None),
        "max_concurrency": scenario.workload.max_concurrency,
    }
