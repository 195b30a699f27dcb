"""Tenants: whose request it is, and how important.

A trace that names tenants keeps its own; else each request gets one by chance, in given shares. The turns
of a session belong to one tenant, so that of sessions the shares are those of sessions. Which requests
share a prefix stays as it was, across tenants too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from simulator.errors import ConfigError, suggest
from simulator.workload.replay import session_numbers

if TYPE_CHECKING:
    from simulator.workload.workload import Workload

Ints = NDArray[np.int64]

HERE = "workload.tenants"
MAX_NAMES = 10_000
"""A trace may name a million users; so many are looked through for a near name."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """One tenant. `share` None: an equal part. `priority` None: the trace's, else 0; lower is first."""

    name: str
    share: float | None = None
    priority: int | None = None


def with_tenants(workload: Workload, tenants: Sequence[Tenant], rng: np.random.Generator) -> Workload:
    """See `Workload.with_tenants`."""
    names = [tenant.name for tenant in tenants]
    if workload.tenants is None:
        which = _drawn(workload, tenants, rng)
        named = replace(workload, tenants=[names[i] for i in which.tolist()])
    else:
        which = _matched(workload.tenants, workload.source, tenants)
        named = workload
    given = {i: tenant.priority for i, tenant in enumerate(tenants) if tenant.priority is not None}
    priority = workload.priority.copy()
    for i, value in given.items():
        priority[which == i] = value
    return replace(named, priority=priority) if given else named


def _drawn(workload: Workload, tenants: Sequence[Tenant], rng: np.random.Generator) -> Ints:
    """Draw a tenant, by its place in the list, for every session or request without one."""
    shares = [tenant.share for tenant in tenants if tenant.share is not None]
    if shares and len(shares) < len(tenants):
        missing = next(tenant.name for tenant in tenants if tenant.share is None)
        raise ConfigError(f"{HERE}: give a share to every tenant or to none; {missing!r} has none")
    parts = np.array(shares or [1.0] * len(tenants))
    if not (np.isfinite(parts) & (parts >= 0)).all() or not parts.max(initial=0.0) > 0:
        raise ConfigError(f"{HERE}: shares must be >= 0, finite, and one > 0, got {parts.tolist()}")
    ladder = np.cumsum(parts / parts.max())
    if workload.session is None:
        whose, n = np.arange(len(workload)), len(workload)
    else:
        whose = session_numbers(workload.session)
        n = int(whose.max(initial=-1)) + 1
    drawn: Ints = np.searchsorted(ladder, rng.random(n) * ladder[-1], side="right")[whose]
    return drawn


def _matched(column: list[str], source: str, tenants: Sequence[Tenant]) -> Ints:
    """Find the tenants of a trace by name; -1 for those that are not in the list."""
    known = set(column)
    for tenant in tenants:
        if tenant.name not in known:
            near = suggest(tenant.name, sorted(known - {""})[:MAX_NAMES])
            raise ConfigError(f"{HERE}: {source} has no tenant {tenant.name!r:.80}{near:.300}")
        if tenant.share is not None:
            raise ConfigError(
                f"{HERE}: {source} says whose each request is, so {tenant.name!r:.80} cannot have a share "
                f"of them, got share {tenant.share:g}"
            )
    place = {tenant.name: i for i, tenant in enumerate(tenants)}
    return np.array([place.get(name, -1) for name in column], np.int64)
