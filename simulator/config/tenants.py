"""What a scenario's tenants change: whose requests they are, their weights, the limits they are judged by.

A tenant's own SLO replaces the scenario's, limit by limit; what it does not name stays the scenario's.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from simulator.config.scenario import Scenario
from simulator.config.workload_section import SLO_KEYS
from simulator.metrics.summary import Slo
from simulator.metrics.tables import Floats
from simulator.workload.tenants import Tenant
from simulator.workload.workload import Workload


def tenants_of(scenario: Scenario) -> list[Tenant]:
    """Return the tenants as the workload wants them."""
    return [Tenant(one.name, one.share, one.priority) for one in scenario.workload.tenants or ()]


def tenant_weights(scenario: Scenario) -> dict[str, float]:
    """Return the weights that fair orders see; 1 for tenants that are not named."""
    return {tenant.name: tenant.weight for tenant in scenario.workload.tenants or ()}


def tenant_limits(scenario: Scenario) -> dict[str, dict[str, float]]:
    """Return the limits (s, by metric) of each tenant that has an SLO of its own."""
    found = {}
    for tenant in scenario.workload.tenants or ():
        if tenant.slo is not None:
            found[tenant.name] = scenario.slo.model_copy(update=tenant.slo).seconds()
    return found


def slo_of(scenario: Scenario, tenants: list[str]) -> Slo:
    """Return the limits (s, by metric) of requests of these tenants: a number, or one per request."""
    common, own = scenario.slo.seconds(), tenant_limits(scenario)
    if not own:
        return common
    limits: dict[str, float | Floats] = {}
    for name in (key.removesuffix("_ms") for key in SLO_KEYS):
        rest = common.get(name, np.inf)
        by_tenant = {tenant: slo.get(name, np.inf) for tenant, slo in own.items()}
        if min(rest, *by_tenant.values()) < np.inf:
            limits[name] = np.array([by_tenant.get(tenant, rest) for tenant in tenants], np.float64)
    return limits


def with_deadlines(scenario: Scenario, workload: Workload) -> Workload:
    """Return the workload with the time to first token that each request's SLO allows."""
    limit = slo_of(scenario, workload.tenants or [""] * len(workload)).get("ttft")
    if limit is None:
        return replace(workload, ttft_limit=None)
    column = np.broadcast_to(np.asarray(limit, np.float64), len(workload))
    return replace(workload, ttft_limit=np.where(column < np.inf, column, np.nan))
