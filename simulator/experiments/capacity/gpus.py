"""Find the fewest GPUs: how many replicas serve the scenario's own load within its SLO.

Every candidate and every number of replicas serves the same replications of the requests (common random
numbers). Draws of the latency model's error repeat the search on the first few of them; what they find is
moved by what the model as it is asks for on all replications more than on the same few.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from simulator.config.build import NO_POLICIES, Policies
from simulator.config.replicas import MAX_REPLICAS
from simulator.config.scenario import Scenario
from simulator.errors import ConfigError
from simulator.experiments.candidates import Candidate, with_candidate
from simulator.experiments.capacity.around import DRAWN_REPLICATIONS
from simulator.experiments.capacity.find import (
    LENGTHENINGS,
    PLAIN,
    REPLICATIONS,
    SEEDS_DIFFER,
    check_asked,
    judged_machine,
    refuse_keys,
)
from simulator.experiments.capacity.gpus_answer import FleetAnswer
from simulator.experiments.capacity.gpus_found import Fewest
from simulator.experiments.capacity.gpus_load import FleetLoads, may_be_longer, wanted_requests
from simulator.experiments.capacity.gpus_search import search_fewest
from simulator.experiments.capacity.length import longer
from simulator.experiments.capacity.server import Search, Server
from simulator.experiments.jobs import Deviates, Progress
from simulator.experiments.model_draws import draw_kinds
from simulator.experiments.replications import Replications

MOST_GPUS = MAX_REPLICAS
"""The largest `--max-gpus`: one GPU in each of the most replicas that a cluster may have."""
LONGER = 1.1
"""Requests drawn, relative to what is wanted: longer runs ask for a little more."""
ALIKE = {"replicas", "router", "signal_delay_s", "retry"}
"""Keys of a cluster whose replicas are all alike and there all the time."""
REPLICAS_SEARCHED = {"cluster.replicas": "--max-gpus searches the number of replicas"}


def find_fewest(
    scenario: Scenario,
    candidates: Mapping[str, Candidate] | None = None,
    *,
    max_gpus: int,
    attainment: float | None = None,
    replications: int | None = None,
    n_model_draws: int = 0,
    policies: Policies = NO_POLICIES,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Fewest:
    """Find the fewest replicas that serve the scenario's load within its SLO, with at most `max_gpus` GPUs.

    `attainment` None is the scenario's. `workers` are processes, None as many as pay; the result does not
    depend on them. ConfigError says what cannot be used.
    """
    check_asked(attainment, replications, n_model_draws)
    checked_gpus(max_gpus)
    refuse_keys(candidates, SEEDS_DIFFER | REPLICAS_SEARCHED)
    target = scenario.slo.attainment if attainment is None else attainment
    alike: dict[str, object] = {} if scenario.cluster is not None else {"cluster": {"replicas": 1}}
    base = scenario.with_(**{"slo.attainment": target, "run.horizon_s": None, **alike})
    num = replications or REPLICATIONS
    server = Server(workers, progress)
    found = Fewest(base, {}, _common(base, num), num, target, max_gpus, n_model_draws)
    for left in reversed(range(LENGTHENINGS + 1)):
        before = found.answers
        found.answers = {}
        for name, candidate in (candidates or {PLAIN: {}}).items():
            _enter(found, name, *with_candidate(found.base, candidate, policies))
        _serve(found, server, before)
        given = _longer(found.base, found)
        if given is found.base or not left:
            break
        found.base, found.replications = given, _common(given, num)
    _serve(found, server, found.answers, curve=True)
    if scenario.run.horizon_s is not None:
        found.notes.append("run.horizon_s is left out: every request is served to its end")
    found.notes += _length_notes(base, found)
    if n_model_draws:
        _draw_errors(found, server)
    return found


def _serve(found: Fewest, server: Server, starts: Mapping[str, FleetAnswer], *, curve: bool = False) -> None:
    """Search all candidates, each from where it ended before."""
    begin = {name: each.replicas for name, each in starts.items()}
    num = found.num_replications
    server.serve(
        [
            _search(found, each, num, start=begin.get(each.name), curve=curve)
            for each in found.answers.values()
        ]
    )


def _longer(scenario: Scenario, found: Fewest) -> Scenario:
    """Return a scenario whose drawn workload is as long as the answers ask for; itself if it is."""
    answers = found.answers.values()
    wanted = max(wanted_requests(each.loads.base, each.at, found.target) for each in answers)
    if not may_be_longer(scenario) or wanted <= scenario.workload.num_requests:
        return scenario
    return longer(scenario, math.ceil(LONGER * wanted))


def checked_gpus(max_gpus: int) -> int:
    """Return it if so many GPUs can be searched; ConfigError else."""
    if isinstance(max_gpus, bool) or not isinstance(max_gpus, int) or not 1 <= max_gpus <= MOST_GPUS:
        raise ConfigError(f"--max-gpus: must be 1 to {MOST_GPUS:,}, got {max_gpus!r:.40}")
    return max_gpus


def _common(scenario: Scenario, num: int) -> Replications:
    return Replications.of(scenario, judged_machine(scenario, 0).max_model_len, num)


def _enter(found: Fewest, name: str, scenario: Scenario, policies: Policies) -> None:
    """Add a candidate; ConfigError if its replicas are not alike, or one has too many GPUs."""
    keys = scenario.cluster
    assert keys is not None, "it was given one"
    other = sorted(keys.model_dump(exclude_defaults=True).keys() - ALIKE)
    if other or not isinstance(keys.replicas, int):
        which = f"cluster.{other[0]}" if other else "cluster.replicas with kinds"
        raise ConfigError(f"--max-gpus: counts replicas that are alike and always there; leave out {which}")
    machine = judged_machine(scenario, found.num_draws)
    loads = FleetLoads(scenario, machine.max_model_len, found.replications, found.num_replications)
    answer = FleetAnswer(name, loads, found.target, 0)
    answer.most = found.max_gpus // answer.gpus_each
    if not answer.most:
        whose = "" if name == PLAIN else f"{name}: "
        raise ConfigError(f"--max-gpus {found.max_gpus}: {whose}one replica has {answer.gpus_each} GPUs")
    found.answers[name] = answer
    found.policies[name], found.machines[name] = policies.reading(scenario), machine


def _search(
    found: Fewest,
    answer: FleetAnswer,
    num: int,
    *,
    start: int | None = None,
    curve: bool = True,
    deviates: Deviates | None = None,
) -> Search:
    keys = answer.loads.base.cluster
    assert keys is not None, "it was given one"
    asks: Iterator[Sequence[int]] = search_fewest(
        answer.met, start or keys.num_replicas, answer.most, curve=curve
    )
    name = answer.name
    return Search(answer, asks, num, found.policies[name], found.machines[name], deviates)


def _draw_errors(found: Fewest, server: Server) -> None:
    """Repeat the searches under draws of the models' errors, and keep the numbers of replicas."""
    few = min(DRAWN_REPLICATIONS, found.num_replications)
    searches: dict[str, list[tuple[FleetAnswer, Search]]] = {}
    for name, answer in found.answers.items():
        if answer.replicas is None:
            continue
        machine = found.machines[name]
        draws = draw_kinds(answer.loads.base, machine, found.num_draws, found.base.seed)
        searches[name] = []
        for deviates in (None, *draws):
            again = FleetAnswer(name, answer.loads, found.target, answer.most)
            asks = _search(found, again, few, start=answer.replicas, curve=False, deviates=deviates)
            searches[name].append((again, asks))
    server.serve([each for several in searches.values() for _, each in several])
    for name, several in searches.items():
        answer = found.answers[name]
        beyond = answer.most + 1
        plain, *drawn = (each.replicas or beyond for each, _ in several)
        moved = (answer.replicas or beyond) - plain
        answer.drawn = [n if n == beyond else min(max(1, n + moved), beyond) for n in drawn]


def _length_notes(asked: Scenario, found: Fewest) -> list[str]:
    """Say how long the runs are, where that is not what was asked for or not enough."""
    notes, num = [], found.base.workload.num_requests
    if found.base.workload != asked.workload:
        notes.append(
            f"{num:,} requests drawn a replication instead of {asked.workload.num_requests:,}, so that a "
            "growing queue shows before the run ends, and the empty start weighs little"
        )
    for name, answer in found.answers.items():
        if answer.at is None:
            continue
        have = min(v["injected"] for v in answer.at.values)
        wanted = wanted_requests(answer.loads.base, answer.at, found.target)
        if have < wanted and may_be_longer(answer.loads.base):
            whose = f"{name}: " if len(found.answers) > 1 else ""
            notes.append(
                f"{whose}runs of {have:,.0f} requests are short, {wanted:,} are wanted: the number of GPUs "
                "may be too low"
            )
    return notes
