"""How long a run must be, so that its end does not flatter a rate that the server cannot hold.

At a rate (1 + e) times what a server can do its queue grows, and after N requests the wait is e * N / rate.
As long as that is below the limit T of a latency, requests are still within the SLO: the first T * rate / e.
They must be fewer than the attainment's share of all, which asks for N >= T * rate / (e * attainment),
with e the search's tolerance. Drawn workloads are drawn that long; of a trace it is only said.
"""

from __future__ import annotations

import math

from simulator.config.scenario import Scenario
from simulator.config.tenants import tenant_limits
from simulator.experiments.capacity.answer import Answer
from simulator.experiments.replications import FEWEST_REQUESTS

MOST_REQUESTS = 20_000
"""A workload is not drawn longer than that; what is lacking then is said."""


def longest_limit(scenario: Scenario) -> float:
    """Return the longest time that a request may take until its first token or its end, in seconds.

    0 if only TPOT has a limit, which does not feel the queue.
    """
    limits = [scenario.slo.seconds(), *tenant_limits(scenario).values()]
    return max((each[name] for each in limits for name in ("ttft", "e2el") if name in each), default=0.0)


def wanted_requests(answer: Answer) -> int:
    """Return how many requests a run at the capacity should have."""
    wanted = FEWEST_REQUESTS
    if answer.at is not None and (offered := answer.at.of("injected", "span")) is not None:
        limit = longest_limit(answer.loads.base)
        wanted = max(wanted, math.ceil(limit * offered.value / (answer.tolerance * answer.target)))
    return wanted


def longer(scenario: Scenario, wanted: int) -> Scenario:
    """Return a scenario whose drawn workload has at least so many requests, within reason."""
    section = scenario.workload
    num = max(section.num_requests, min(wanted, MOST_REQUESTS))
    if section.trace is not None or num == section.num_requests:
        return scenario
    return scenario.with_(**{"workload.num_requests": num})


def unseen_overload(answer: Answer) -> float | None:
    """Return up to which overload, relative, runs are too short to show; None if they show the tolerance."""
    if answer.at is None or not answer.at.values:
        return None
    num = min(v["injected"] for v in answer.at.values)
    wanted = wanted_requests(answer)
    return answer.tolerance * wanted / num if num and num < wanted else None
