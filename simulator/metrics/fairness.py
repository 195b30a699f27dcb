"""Who got what: the figures of each tenant and each class of priority, and how even they are.

Jain's index (sum x)^2 / (n sum x^2) is 1 where all are equal and 1/n where one has everything (Jain, Chiu and
Hawe, "A quantitative measure of fairness", DEC-TR-301, 1984). Here x is a tenant's service per weight, or its
mean latency per output token. Service counts the tokens of a prompt once its first output token is there, and
every output token (as VTC does: Sheng et al., OSDI 2024, there with prices). Left out: demand. A tenant that
asks for little gets little service, and a run to the end serves all that was asked for, whatever the policy.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from simulator.metrics.percentiles import grouped_percentiles
from simulator.metrics.summary import Bools, Latencies
from simulator.metrics.tables import COMPLETED, REJECTED, Floats, Ints, RequestTable

Column = NDArray[np.generic]

MAX_GROUPS = 1000
"""So many tenants are listed, those with the most requests; a trace may name each of a million users."""


def fairness(
    requests: RequestTable,
    measured: Latencies,
    good: Bools,
    *,
    weights: Mapping[str, float] | None = None,
    has_slo: bool = True,
    end: float | None = None,
    method: str = "linear",
    costs: Floats | None = None,
) -> dict[str, object]:
    """Return figures by tenant and by class, both empty if there is but one, and over all of them.

    `good` says which of the measured requests meet their SLO, `end` (s) is when the run was cut off, `costs`
    what each request cost, if that is known (metrics/cost).
    """
    waits = waited(requests, end)
    names, tenant = _numbered(requests.tenant)
    priorities, priority = np.unique(requests.priority, return_inverse=True)
    figures = _Figures(requests, measured, good, waits, has_slo, method, costs)
    return {
        "num_tenants": len(names),
        "tenants": figures.by(tenant, names),
        "classes": figures.by(priority, [str(value) for value in priorities.tolist()]),
        "jain_service": jain(service(requests, tenant, names, weights or {})),
        "jain_latency": jain(normalised_latency(requests, measured, tenant, len(names))),
        "oldest_wait_s": float(waits.max()) if len(waits) else None,
    }


def jain(x: Floats) -> float | None:
    """Return Jain's index of values >= 0; None for fewer than two, if one is NaN, or if all are 0.

    >>> jain(np.array([7.0, 7.0, 0.0, 0.0]))
    0.5
    """
    if len(x) < 2 or np.isnan(x).any() or not x.any():
        return None
    scaled = x / x.max()
    return float(scaled.sum() ** 2 / (len(x) * (scaled**2).sum()))


def waited(requests: RequestTable, end: float | None = None) -> Floats:
    """Return how long each request waited to be scheduled first, in seconds.

    One that never was waited until it was refused or given up, or until the run's end: `end`, else the last
    moment on record.
    """
    last = np.concatenate([requests.arrival, requests.scheduled, requests.finish, [0.0]])
    cut = float(np.nanmax(last)) if end is None else end
    until = np.where(np.isnan(requests.finish), cut, requests.finish)
    return np.where(np.isnan(requests.scheduled), until, requests.scheduled) - requests.arrival


def service(requests: RequestTable, tenant: Ints, names: list[str], weights: Mapping[str, float]) -> Floats:
    """Return the tokens that each tenant was served, divided by its weight (1 if it has none)."""
    prompt = np.where(requests.num_output > 0, requests.num_prompt, 0)
    tokens = np.bincount(tenant, weights=prompt + requests.num_output, minlength=len(names))
    share: Floats = tokens / np.array([weights.get(name, 1.0) for name in names])
    return share


def normalised_latency(requests: RequestTable, measured: Latencies, tenant: Ints, num: int) -> Floats:
    """Return each tenant's mean end-to-end latency per output token, s; NaN where no request completed.

    A tenant none of whose requests counts, since all were refused or fell into the warm-up, is left out.
    """
    kept = tenant[measured.rows]
    counted = np.bincount(kept, minlength=num)
    sums = np.bincount(kept, weights=measured.e2el / requests.num_output[measured.rows], minlength=num)
    wanted = np.bincount(
        tenant[(requests.status != REJECTED) & (requests.status != COMPLETED)], minlength=num
    )
    there = counted + wanted > 0
    return np.where(counted > 0, sums / np.maximum(counted, 1), np.nan)[there]


class _Figures:
    """The figures of groups of requests, all groups at once."""

    def __init__(
        self,
        requests: RequestTable,
        measured: Latencies,
        good: Bools,
        waits: Floats,
        has_slo: bool,
        method: str,
        costs: Floats | None,
    ) -> None:
        self.requests, self.measured, self.good, self.waits = requests, measured, good, waits
        self.has_slo, self.method, self.costs = has_slo, method, costs

    def by(self, group: Ints, names: list[str]) -> dict[str, dict[str, object]]:
        """Return figures by name, request i being of names[group[i]]; nothing if there is but one group."""
        num = len(names)
        if num < 2:
            return {}
        columns = self._counts(group, num) | self._latencies(group[self.measured.rows], num)
        columns |= self._costs(group, num)
        most = np.sort(np.argsort(-np.bincount(group, minlength=num), kind="stable")[:MAX_GROUPS])
        rows = zip(*(column[most].tolist() for column in columns.values()), strict=True)
        return {
            names[i]: {key: None if x != x else x for key, x in zip(columns, row, strict=True)}
            for i, row in zip(most.tolist(), rows, strict=True)
        }

    def _counts(self, group: Ints, num: int) -> dict[str, Column]:
        requests, kept = self.requests, group[self.measured.rows]
        injected, counted = np.bincount(group, minlength=num), np.bincount(kept, minlength=num)
        completed = np.bincount(group[requests.status == COMPLETED], minlength=num)
        met = np.bincount(kept[self.good], minlength=num)
        tokens = np.bincount(group, weights=requests.num_output, minlength=num)
        start, end = self.measured.window
        per_second = (1.0 / (end - start) if end > start else 0.0) if self.has_slo else np.nan
        oldest = np.zeros(num)
        np.maximum.at(oldest, group, self.waits)
        return {
            "injected": injected,
            "completed": completed,
            "output_tokens": tokens.astype(np.int64),
            "attainment": _ratio(met, injected - (completed - counted)),  # without the warm-up
            "request_goodput": met * per_second,
            "oldest_wait_s": oldest,
        }

    def _costs(self, group: Ints, num: int) -> dict[str, Column]:
        if self.costs is None:
            return {}
        rows = self.measured.rows
        cost = np.bincount(group, weights=self.costs, minlength=num)
        tokens = np.bincount(group[rows], weights=self.requests.num_output[rows], minlength=num)
        share = cost / cost.sum() if cost.any() else np.full(num, np.nan)
        per_million = _ratio(1e6 * cost, tokens.astype(np.int64))
        return {"cost": cost, "cost_share": share, "cost_per_million_output_tokens": per_million}

    def _latencies(self, kept: Ints, num: int) -> dict[str, Column]:
        """Return latencies in ms; `kept` are the groups of the measured requests."""
        measured, counted = self.measured, np.bincount(kept, minlength=num)

        def mean(values: Floats) -> Floats:
            return _ratio(1e3 * np.bincount(kept, weights=values, minlength=num), counted)

        def percentile(values: Floats, rank: float) -> Floats:
            there = ~np.isnan(values)
            return 1e3 * grouped_percentiles(values[there], kept[there], num, rank, self.method)

        return {
            "mean_ttft_ms": mean(measured.ttft),
            "median_ttft_ms": percentile(measured.ttft, 50),
            "p99_ttft_ms": percentile(measured.ttft, 99),
            "p99_tpot_ms": percentile(measured.tpot, 99),
            "mean_e2el_ms": mean(measured.e2el),
        }


def _ratio(part: Column, whole: Ints) -> Floats:
    found = np.full(len(whole), np.nan)
    np.divide(part, whole, out=found, where=whole > 0)
    return found


def _numbered(texts: list[str]) -> tuple[list[str], Ints]:
    """Return the different texts in order, and for each entry which of them it is."""
    names = sorted(set(texts))
    number = {name: i for i, name in enumerate(names)}
    if len(names) < 2:
        return names, np.zeros(len(texts), np.int64)
    return names, np.fromiter((number[text] for text in texts), np.int64, len(texts))
