"""What a summary says of a fleet: its replicas one by one, how even their work was, what they cost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from simulator.cluster.members import Member
from simulator.cluster.serve import FleetServed
from simulator.cluster.serve_disaggregated import DisaggregatedServed
from simulator.config.cluster import replica_scenarios
from simulator.config.scenario import Scenario
from simulator.config.served import Part, ServedRun
from simulator.metrics.summary import Latencies
from simulator.metrics.tables import StepTable


def cluster_summary(scenario: Scenario, served: ServedRun, tables: Sequence[StepTable]) -> dict[str, object]:
    """Return the keys that only a fleet's summary has.

    `imbalance` is the most busy replica's steps over their mean, in seconds; 1 is even. GPU-seconds count
    from when a replica was asked for until it is given up, or the last request is over.
    """
    fleet, keys = served.fleet, scenario.cluster
    assert fleet is not None, "it is a fleet"
    assert keys is not None, "its scenario has a cluster"
    rows = [_row(part, steps, fleet.end) for part, steps in zip(served.parts, tables, strict=True)]
    pools = keys.disaggregation
    if pools is not None:
        for row, part in zip(rows, served.parts, strict=True):
            assert part.member is not None, "it is of a fleet"
            row["pool"] = "decode" if part.member.kind else "prefill"
    busy = np.array([row["busy_s"] for row in rows], np.float64)
    return {
        "router": keys.router if pools is None else f"{pools.prefill_router} and {pools.decode_router}",
        "num_replicas": len(rows),
        "num_retried": fleet.num_retried,
        "num_held": fleet.num_held,
        "gpu_seconds": float(sum(member.gpu_seconds(fleet.end) for member in fleet.members)),
        "imbalance": float(busy.max() / busy.mean()) if busy.any() else None,
        **_transfers(fleet),
        "replicas": rows,
    }


def _transfers(fleet: FleetServed) -> dict[str, object]:
    """Say what went from a prefill to a decode pool, and how long that took from decision to end."""
    if not isinstance(fleet, DisaggregatedServed):
        return {}
    seconds = np.array([each.ended - each.decided for each in fleet.transfers])
    total = sum(each.num_bytes for each in fleet.transfers)
    return {
        "transfers": {
            "num_transfers": len(seconds),
            "num_called_off": fleet.num_called_off,
            "num_expired": fleet.num_expired,
            "gb": total / 1e9,
            "mean_ms": 1e3 * float(seconds.mean()) if len(seconds) else None,
            "p99_ms": 1e3 * float(np.percentile(seconds, 99)) if len(seconds) else None,
            "least_ms": 1e3 * float(seconds.min()) if len(seconds) else None,
        }
    }


def _row(part: Part, steps: StepTable, end: float) -> dict[str, object]:
    member, kv = part.member, part.scheduler.kv
    assert member is not None, "it is of a fleet"
    until = end if member.ended is None else member.ended
    busy = float((steps.end - steps.start).sum())
    return {
        "replica": member.index,
        "hardware": member.name,
        "gpus": member.gpus,
        "state": member.state,
        "started_s": member.started,
        "ended_s": member.ended,
        "requests": member.num_received,
        "output_tokens": int(steps.output_tokens.sum()),
        "prefill_tokens": int(steps.prefill_tokens.sum()),
        "busy_s": busy,
        "busy_share": busy / (until - member.started) if until > member.started else None,
        "kv_usage_peak": float(steps.used_blocks.max(initial=0)) / kv.pool.num_blocks,
        "prefix_hit_rate": kv.num_hits / kv.num_queries if kv.num_queries else None,
        "num_preemptions": int(steps.num_preempted.sum()),
    }


def gpu_price(scenario: Scenario, served: ServedRun, measured: Latencies) -> float | None:
    """Return the price of an hour of what a fleet used on average; None if a GPU has no price, or no fleet.

    The average is over the makespan that throughput refers to.
    """
    start, end = measured.window
    if served.fleet is None or end <= start:
        return None
    prices = [each.hardware.price_per_gpu_hour for _, each in replica_scenarios(scenario)]
    total = 0.0
    for member in served.fleet.members:
        price = prices[member.kind]
        if price is None:
            return None
        until = end if member.ended is None else min(member.ended, end)
        total += price * member.gpus * max(0.0, until - max(member.started, start))
    return total / (end - start)


def most_at_once(sizes: Iterable[tuple[int, Member | None]]) -> int:
    """Return the largest sum of the sizes of replicas that were there at one time."""
    changes: list[tuple[float, int]] = []
    for size, member in sizes:
        changes.append((0.0 if member is None else member.started, size))
        if member is not None and member.ended is not None:
            changes.append((member.ended, -size))
    total = most = 0
    for _, change in sorted(changes):  # at one moment what goes is taken off first
        total += change
        most = max(most, total)
    return most
