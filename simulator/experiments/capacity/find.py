"""Find capacities: all searches go on side by side, and what they ask for is served together.

Every candidate, rate and draw of the latency model's error sees the same replications (common random
numbers). Model draws repeat the search on the first few of them; their capacities are taken relative to that
of the profile as it is on the same few, so that what is left is the model's error alone.
"""

from __future__ import annotations

from collections.abc import Mapping

from simulator.config.build import NO_POLICIES, Machine, Policies, build_machine
from simulator.config.scenario import Scenario
from simulator.config.tenants import tenant_limits
from simulator.errors import ConfigError
from simulator.experiments.candidates import Candidate, with_candidate
from simulator.experiments.capacity.answer import Answer
from simulator.experiments.capacity.around import draw_errors, find_binding
from simulator.experiments.capacity.found import Found
from simulator.experiments.capacity.length import longer, unseen_overload, wanted_requests
from simulator.experiments.capacity.loads import Loads
from simulator.experiments.capacity.point import TOLERANCE
from simulator.experiments.capacity.search import search
from simulator.experiments.capacity.server import Search, Server
from simulator.experiments.jobs import Progress
from simulator.experiments.model_draws import check_drawable, checked_draws
from simulator.experiments.replications import FEWEST_REQUESTS, Replications

REPLICATIONS = 10
"""Replications where nobody says how many."""
LENGTHENINGS = 2
"""So often a search begins anew with more requests."""
PLAIN = "scenario"
"""Name of the only candidate where nothing is varied."""
SMALLEST_TOLERANCE, LARGEST_TOLERANCE = 0.001, 0.5
LARGEST_RATE = 1e6
"""Requests per second, or sessions; no server takes so many, and far beyond floats overflow."""
MOST_REPLICATIONS = 10_000
SEEDS_DIFFER = {"seed": "every replication has a seed of its own"}
SET_BY_SEARCH = dict.fromkeys(
    ("workload.arrivals.rate", "workload.rate_scale"),
    "the rate is what is searched; --max-gpus N counts GPUs at given rates",
)
"""Keys that no candidate may change, and why."""


def find_capacity(
    scenario: Scenario,
    candidates: Mapping[str, Candidate] | None = None,
    *,
    attainment: float | None = None,
    rates: tuple[float, float] | None = None,
    tolerance: float = TOLERANCE,
    replications: int | None = None,
    n_model_draws: int = 0,
    policies: Policies = NO_POLICIES,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Found:
    """Find the highest rate at which the share `attainment` of all requests meets the scenario's SLO.

    `attainment` None is the scenario's. `rates` bounds the search. `workers` are processes, None as many as
    pay; the result does not depend on them. ConfigError says what cannot be used.
    """
    check_asked(attainment, replications, n_model_draws)
    _check(rates, tolerance)
    refuse_keys(candidates, SET_BY_SEARCH | SEEDS_DIFFER)
    notes = []
    if scenario.run.horizon_s is not None:
        notes.append("run.horizon_s is left out: every request is served to its end, at any rate")
    target = scenario.slo.attainment if attainment is None else attainment
    base = scenario.with_(**{"slo.attainment": target, "run.horizon_s": None})
    num = replications or REPLICATIONS
    server = Server(workers, progress)
    wanted = FEWEST_REQUESTS
    for _ in range(LENGTHENINGS + 1):
        given = longer(base, wanted)
        common = Replications.of(given, build_machine(given).max_model_len, num)
        found = Found(given, {}, common, num, target, tolerance, rates, n_model_draws, notes=[*notes])
        for name, candidate in (candidates or {PLAIN: {}}).items():
            _enter(found, name, *with_candidate(given, candidate, policies))
        server.serve([_plain_search(found, name) for name in found.answers])
        wanted = max(map(wanted_requests, found.answers.values()))
        if longer(given, wanted) is given:
            break
    found.notes += _length_notes(base, found)
    if n_model_draws:
        draw_errors(found, server)
    for name in found.answers:
        find_binding(found, name)
    return found


def _enter(found: Found, name: str, scenario: Scenario, policies: Policies) -> None:
    """Add a candidate; ConfigError if it has no capacity that could be looked for."""
    machine = judged_machine(scenario, found.num_draws)
    loads = Loads(scenario, machine.max_model_len, found.replications, found.num_replications)
    found.answers[name] = Answer(name, loads, found.target, found.tolerance)
    found.policies[name], found.machines[name] = policies.reading(scenario), machine


def _length_notes(asked: Scenario, found: Found) -> list[str]:
    """Say how long the runs are, where that is not what was asked for or not enough."""
    notes, num = [], found.base.workload.num_requests
    if found.base.workload != asked.workload:
        notes.append(
            f"{num:,} requests drawn a replication instead of {asked.workload.num_requests:,}, so that a "
            f"server overloaded by {100 * found.tolerance:g} % shows it before the run ends"
        )
    for name, answer in found.answers.items():
        unseen = unseen_overload(answer)
        if unseen is not None:
            whose = f"{name}: " if len(found.answers) > 1 else ""
            notes.append(
                f"{whose}the runs are too short to show an overload below {100 * unseen:.0f} %: the capacity "
                "may be that much too high"
            )
    return notes


def judged_machine(scenario: Scenario, num_draws: int) -> Machine:
    """Return what a candidate runs on; ConfigError without an SLO, or if errors cannot be drawn."""
    if not (scenario.slo.seconds() or any(tenant_limits(scenario).values())):
        raise ConfigError(
            "capacity: the scenario has no SLO, so every load meets it; give one, such as --slo ttft:500"
        )
    machine = build_machine(scenario)
    if num_draws:
        check_drawable(machine)  # refused before anything runs
    return machine


def _check(rates: tuple[float, float] | None, tolerance: float) -> None:
    if not SMALLEST_TOLERANCE <= tolerance <= LARGEST_TOLERANCE:
        raise ConfigError(
            f"--tolerance: must be {SMALLEST_TOLERANCE:g} to {LARGEST_TOLERANCE:g}, got {tolerance:g}"
        )
    if rates is not None and not 0 < rates[0] < rates[1] <= LARGEST_RATE:
        raise ConfigError(
            f"--rates: must be LOW:HIGH with 0 < LOW < HIGH <= {LARGEST_RATE:g}, "
            f"got {rates[0]:g}:{rates[1]:g}"
        )


def check_asked(attainment: float | None, replications: int | None, n_model_draws: int) -> None:
    """Refuse what no search for capacity can use."""
    if attainment is not None and not 0 < attainment <= 1:
        raise ConfigError(f"--attainment: must be a share above 0 and at most 1, got {attainment:g}")
    if replications is not None and not 1 <= replications <= MOST_REPLICATIONS:
        raise ConfigError(f"--replications: must be 1 to {MOST_REPLICATIONS:,}, got {replications}")
    checked_draws(n_model_draws)


def refuse_keys(candidates: Mapping[str, Candidate] | None, why: Mapping[str, str]) -> None:
    """Refuse candidates that change a key which the search sets by itself; `why` says it by key."""
    for candidate in (candidates or {}).values():
        keys = candidate if isinstance(candidate, Mapping) else {}
        for key in why:
            if key in keys:
                raise ConfigError(f"capacity: {key} cannot be varied: {why[key]}")


def _plain_search(found: Found, name: str) -> Search:
    answer = found.answers[name]
    low, high = found.range or (None, None)
    start = answer.loads.own_rate if found.range is None else high or 1.0
    asks = search(answer.met, start, found.tolerance, low=low, high=high)
    return Search(answer, asks, found.num_replications, found.policies[name], found.machines[name])
