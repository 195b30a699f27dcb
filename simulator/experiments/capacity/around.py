"""What a capacity depends on: the latency model's error, and what the server runs out of beyond it."""

from __future__ import annotations

from simulator.config.run import run_scenario
from simulator.experiments.bottleneck import find_bottleneck, has_doublings
from simulator.experiments.capacity.answer import FOUND, Answer
from simulator.experiments.capacity.crossing import crossing_of
from simulator.experiments.capacity.found import Found
from simulator.experiments.capacity.point import Point
from simulator.experiments.capacity.search import CLOSE, search
from simulator.experiments.capacity.server import Search, Server
from simulator.experiments.judge import QUICK_STEPS
from simulator.experiments.model_draws import draw_kinds

DRAWN_REPLICATIONS = 3
"""Of the replications, those that every draw of the model's error is served again."""
DRAWN_STEP = 1.1
"""Factor between the rates that bracket a draw's capacity, which is near the plain one."""


def draw_errors(found: Found, server: Server) -> None:
    """Repeat the searches under draws of the models' errors, and keep the capacities."""
    few = min(DRAWN_REPLICATIONS, found.num_replications)
    searches: dict[str, list[tuple[Answer, Search]]] = {}
    for name, answer in found.answers.items():
        if answer.outcome != FOUND or answer.rate is None:
            continue
        searches[name] = []
        machine = found.machines[name]
        for deviates in draw_kinds(answer.loads.base, machine, found.num_draws, found.base.seed):
            again = Answer(name, answer.loads, found.target, found.tolerance)
            asks = search(again.met, answer.rate, found.tolerance, step=DRAWN_STEP, curve=False)
            drawn_search = Search(again, asks, few, found.policies[name], machine, deviates)
            searches[name].append((again, drawn_search))
    server.serve([each for several in searches.values() for _, each in several])
    for name, several in searches.items():
        answer = found.answers[name]
        points = [Point(point.rate, point.values[:few]) for point in answer.points]
        plain = crossing_of(points, found.target, found.tolerance)
        drawn = [crossing_of(each.points, found.target, found.tolerance) for each, _ in several]
        answer.drawn = [(answer.rate or 0.0) * each / plain for each in drawn]


def find_binding(found: Found, name: str) -> None:
    """Find out what would help a candidate most at a rate just beyond its capacity, if that is quick."""
    answer = found.answers[name]
    edge = answer.edge
    if edge is None or not has_doublings(answer.loads.base):
        return
    beyond = [point for point in answer.points if point.rate > edge.met * (1 + CLOSE)]
    if not beyond or beyond[0].values[0]["num_steps"] > QUICK_STEPS:
        return
    answer.pushed = beyond[0].rate
    loads = answer.loads
    run = run_scenario(
        loads.replica(answer.pushed, 0),
        policies=found.policies[name],
        machine=found.machines[name],
        workload=loads.workload(answer.pushed, 0),
    )
    answer.binding = find_bottleneck(run).to_dict()
