"""Simulate a recorded run again at its own times: what would the policies have decided, had time been right?

Two things are pinned to the record: when each request reached the server and when its client gave up, and
how long each step took (`engine/recorded`). Sessions, closed loops and limits on concurrency become open
arrivals, since their requests came when they came. What is left is decisions: where policies and memory agree
with the recorded run's, so does every line of the log. The error of a model splits in two by it:
model - resimulated is its timing, resimulated - recorded its decisions.
Left out: the wait at the client (`client_queue` is 0).
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from simulator.config.build import NO_POLICIES, Policies
from simulator.config.build_workload import build_workload, client_plan
from simulator.config.run import Run, run_scenario
from simulator.config.scenario import Scenario
from simulator.engine.clients import ClientPlan, Progress
from simulator.engine.decisions import Decision
from simulator.engine.observer import Observer
from simulator.engine.oracle import SimulatedExecutor
from simulator.engine.recorded import RecordedExecutor
from simulator.errors import InputError
from simulator.experiments.run_folder import SavedRun, load_run, printable
from simulator.metrics.tables import ABORTED, COMPLETED, Floats, RequestTable
from simulator.schedulers.base import Scheduler
from simulator.specs import get_model
from simulator.workload.workload import Workload


def resimulate(
    recorded: SavedRun | str | Path,
    scenario: Scenario | None = None,
    *,
    policies: Policies = NO_POLICIES,
    workload: Workload | None = None,
    observers: Sequence[Observer] = (),
    progress: Progress | None = None,
) -> Run:
    """Simulate a run again with its arrivals and step times as recorded, and what its speculation accepted.

    `scenario` gives policies, memory and the latency model for steps beyond the record, by default the run's
    own; `workload` is what the recorded run served, if its scenario does not say. The result's
    summary["servetwin"]["resimulated"] tells how far the record reached. InputError without steps.csv.
    """
    run = recorded if isinstance(recorded, SavedRun) else load_run(recorded)
    if run.steps is None:
        raise InputError(f"{run.scenario.name}: has no steps.csv; a run is re-simulated from --log all")
    pinned, plan = pin(run, _served(run.scenario) if workload is None else workload)
    played: list[RecordedExecutor] = []

    def make_executor(scheduler: Scheduler, simulated: SimulatedExecutor) -> RecordedExecutor:
        assert run.steps is not None, "looked at above"
        played.append(RecordedExecutor(simulated, run.steps, run.decisions))
        return played[-1]

    scenario = scenario or run.scenario
    if scenario.speculative is not None and run.acceptance is not None:
        scenario = scenario.with_(**{"speculative.acceptance": str(run.acceptance)})
    again = run_scenario(
        scenario,
        policies=policies,
        observers=observers,
        workload=pinned,
        plan=plan,
        decisions=True,
        progress=progress,
        make_executor=make_executor,
    )
    again.summary["num_prompts"] = run.summary.get("num_prompts")  # some may never have been sent
    again.own["resimulated"] = _reach(played[-1])
    return again


def pin(run: SavedRun, workload: Workload) -> tuple[Workload, ClientPlan]:
    """Return the requests that reached the server as an open loop, and clients that give up when they did.

    InputError if the workload is not what the run served.
    """
    table = run.requests
    rows = _rows(table, workload)
    arrival = table.arrival
    clients = client_plan(run.scenario, workload)
    if clients.follows is not None or clients.max_concurrency is not None:
        arrival = _after_answers(table)
    sent = np.array(list(map(addend, arrival.tolist(), table.pre_delay.tolist())))
    order = _order(sent, table, run.decisions)
    taken = workload.take(rows[order], sent[order])
    aborted = table.status == ABORTED
    stays = np.where(aborted, list(map(addend, table.finish.tolist(), table.arrival.tolist())), np.nan)
    timed_out = aborted & (np.array(table.reason) == "timeout")
    # An answer cut at its limit would have gone on: one token more is as good as the truth.
    known = table.num_output + (np.array(table.reason) == "length")
    truth = np.where(table.status == COMPLETED, known, workload.num_output[rows])
    names = workload.requests.ids
    pinned = replace(
        taken,
        ids=[names[row] for row in rows[order].tolist()],
        num_output=truth[order].astype(np.int64),
        timeout=np.where(timed_out, stays, np.nan)[order],
        follows=None,
        think=None,
        closed_loop=None,
        pre_delay=None,
        cancel_after=None,
        needs_starts="",
    )
    plan = ClientPlan(
        pre_delay=table.pre_delay[order] if table.pre_delay.any() else None,
        cancel_after=np.where(timed_out, np.nan, stays)[order],
    )
    return pinned, plan


def addend(total: float, other: float) -> float:
    """Return x with x + other == total to the bit, where there is one near total - other; never negative.

    >>> addend(0.3, 0.1) + 0.1
    0.3
    """
    x = total - other
    near = (x, math.nextafter(x, math.inf), math.nextafter(x, -math.inf))
    return max(next((each for each in near if each + other == total), x), 0.0)


def _served(scenario: Scenario) -> Workload:
    longest = scenario.model.max_model_len or get_model(scenario.model.name).max_model_len
    return build_workload(scenario, longest)


def _rows(table: RequestTable, workload: Workload) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the workload's row of each request in the table."""
    places: defaultdict[str, deque[int]] = defaultdict(deque)
    for row, name in enumerate(workload.requests.ids):
        places[printable(name)].append(row)
    rows = []
    for i, name in enumerate(map(printable, table.id)):
        row = places[name].popleft() if places[name] else -1
        if row < 0 or workload.num_prompt[row] != table.num_prompt[i]:
            raise InputError(
                f"requests.csv: request {name[:60]!r} of {table.num_prompt[i]} prompt tokens is not in the "
                "workload of the run's scenario; the run served another one"
            )
        rows.append(row)
    return np.array(rows, dtype=np.int64)


def _after_answers(table: RequestTable) -> Floats:
    """Return the arrivals, those at the very moment of an answer just after it.

    Such a request was sent because of the answer, when the next step was decided already.
    """
    follows = np.isin(table.arrival, table.finish)
    return np.where(follows, np.nextafter(table.arrival, np.inf), table.arrival)


def _order(sent: Floats, table: RequestTable, log: list[Decision] | None) -> list[int]:
    """Return the rows in the order in which they were sent; of equal moments, as they were admitted."""
    seen: dict[str, tuple[int, int]] = {}
    for decision in log or ():
        for place, (name, _, _) in enumerate(decision["chunks"]):
            seen.setdefault(printable(name), (decision["step"], place))
    never = (2**62, 0)
    keys = [
        (s, a, seen.get(printable(name), never))
        for s, a, name in zip(sent.tolist(), table.arrival.tolist(), table.id, strict=True)
    ]
    return sorted(range(len(keys)), key=keys.__getitem__)


def _reach(executor: RecordedExecutor) -> dict[str, object]:
    """Say how far the recorded step times reached."""
    told = []
    if executor.num_unlike:
        told.append(
            f"after step {executor.last_alike} the steps are unlike the recorded ones, whose durations are "
            "played by kind of step from there on"
        )
    first = executor.first_predicted
    if first is not None:
        told.append(
            f"no recorded duration was left for {executor.num_predicted:,} steps, after step {first[0] - 1} "
            f"at {first[1]:.3f} s; they took what the latency model predicts"
        )
    return {
        "last_alike": executor.last_alike,
        "num_unlike": executor.num_unlike,
        "num_played": executor.num_played,
        "num_predicted": executor.num_predicted,
        "first_predicted": None if first is None else first[0],
        "told": told,
    }
