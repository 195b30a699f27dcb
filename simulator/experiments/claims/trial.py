"""Servers on the same requests, for one number that is made of all of them, with an interval.

Replications say how far other requests move a number, draws of the latency model's errors how far the model
may be off; both are paired over the servers, so that what they share cancels, and their half-widths add in
quadrature (`tournament.paired`). What `compare` does for differences of one metric, for any function of
the metrics of several servers: a ratio, a share, a sum. Left out: several numbers at once; each interval
is for one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

from simulator.config.build import NO_POLICIES, Machine, build_machine
from simulator.config.build_workload import build_workload
from simulator.config.run import Run
from simulator.config.scenario import Scenario
from simulator.experiments.claims.claim import Case, Number
from simulator.experiments.claims.told import told
from simulator.experiments.jobs import Job, Values, numbers, serve_all
from simulator.experiments.model_draws import source_name
from simulator.experiments.replications import seed_of
from simulator.experiments.tournament.paired import difference
from simulator.latency.recomputing import Recomputing
from simulator.latency.uncertainty import draw_deviates, error_terms
from simulator.workload.workload import Workload


@dataclass(frozen=True)
class Trial:
    """Metrics by server: one entry a replication, and one a draw on the requests of the first."""

    servers: Mapping[Hashable, Scenario]
    replications: Mapping[Hashable, Sequence[Values]]
    draws: Mapping[Hashable, Sequence[Values]]
    no_kv_cache: frozenset[Hashable] = frozenset()
    requests: str = ""  # where they are not the scenarios'

    def as_priced(self) -> Trial:
        """Return the trial with prices taken as exact: its intervals hold the requests' chance alone."""
        return replace(self, draws=dict.fromkeys(self.draws, ()))

    def number(self, of: Callable[[Mapping[Hashable, Values]], float]) -> Number:
        """Return a number made of the metrics of all servers, with its combined interval."""
        values, drawn = _by_index(self.replications, of), _by_index(self.draws, of)
        found = difference(values, [value - values[0] for value in drawn], margin=0.0)
        assert found is not None, "a trial has two replications or more"
        return Number(found.mean, found.combined.low, found.combined.high, found.combined.level)

    def value(self, metric: str, server: Hashable) -> Number:
        """Return a metric of one server."""
        return self.number(lambda servers: servers[server][metric])

    def ratio(self, metric: str, server: Hashable, over: Hashable) -> Number:
        """Return a metric of one server over that of another on the same requests."""
        return self.number(lambda servers: servers[server][metric] / servers[over][metric])

    def case(self, when: str, metric: str, server: Hashable, over: Hashable | None = None) -> Case:
        """Return a server's metric, or its ratio over another's, as the case of a claim."""
        if over is None:
            return Case(when, self.value(metric, server), self._told(server))
        return Case(when, self.ratio(metric, server, over), self._told(server, over))

    def case_of(
        self, when: str, of: Callable[[Mapping[Hashable, Values]], float], *servers: Hashable
    ) -> Case:
        """Return a number made of the metrics of several servers as the case of a claim."""
        return Case(when, self.number(of), self._told(*servers))

    def _told(self, *names: Hashable) -> str:
        """Say what was run, with what the scenarios do not say."""
        said = told([self.servers[name] for name in names])
        said += ", computing each context again" if names[0] in self.no_kv_cache else ""
        said += ", which computes each context again" if self.no_kv_cache & set(names[1:]) else ""
        return f"{said}; requests: {self.requests}" if self.requests else said


def serve_trial(
    servers: Mapping[Hashable, Scenario],
    *,
    replications: int,
    n_model_draws: int,
    workload: Callable[[int], Workload] | None = None,
    no_kv_cache: Sequence[Hashable] = (),
    measure: Callable[[Run], Values] = numbers,
    workers: int = -1,
) -> Trial:
    """Let every server serve the same requests, so many times over, and under so many draws.

    All are priced alike: by the roofline, if no profile covers one of them. `workload` makes a replication's
    requests of its seed, where scenarios cannot say them; `no_kv_cache` names servers that compute each
    token's context again. `measure` is what `jobs.serve` takes; `workers` are processes, -1 one a core.
    """
    priced = alike(servers)
    jobs: list[Job] = []
    for name, scenario in priced.items():
        machine = _machine(scenario, name in no_kv_cache)
        plain = [_job(scenario, machine, index, workload) for index in range(replications)]
        source = source_name(scenario, machine)
        drawn = draw_deviates(error_terms(machine.latency), n_model_draws, scenario.seed, source)
        jobs += plain + [plain[0]._replace(deviates=(deviates,)) for deviates in drawn]
    found = serve_all(jobs, workers, measure=measure)
    each = replications + n_model_draws
    rows = {name: found[i * each : (i + 1) * each] for i, name in enumerate(priced)}
    return Trial(
        priced,
        {name: row[:replications] for name, row in rows.items()},
        {name: row[replications:] for name, row in rows.items()},
        frozenset(no_kv_cache),
        "" if workload is None else jobs[0].workload.source,
    )


def alike(servers: Mapping[Hashable, Scenario]) -> dict[Hashable, Scenario]:
    """Price all by the roofline if their times come from several sources: those would differ, too."""
    sources = {source_name(each, build_machine(each)) for each in servers.values()}
    if len(sources) == 1:
        return dict(servers)
    return {name: each.with_(**{"latency.kind": "roofline"}) for name, each in servers.items()}


def _machine(scenario: Scenario, without_cache: bool) -> Machine:
    machine = build_machine(scenario)
    return replace(machine, latency=Recomputing(machine.latency)) if without_cache else machine


def _job(scenario: Scenario, machine: Machine, index: int, workload: Callable[[int], Workload] | None) -> Job:
    seeded = scenario.with_(seed=seed_of(scenario.seed, index))
    made = build_workload(seeded, machine.max_model_len) if workload is None else workload(seeded.seed)
    return Job(seeded, NO_POLICIES, machine, made)


def _by_index(
    rows: Mapping[Hashable, Sequence[Values]], of: Callable[[Mapping[Hashable, Values]], float]
) -> list[float]:
    num = len(next(iter(rows.values())))
    return [of({name: row[i] for name, row in rows.items()}) for i in range(num)]
