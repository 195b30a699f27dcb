"""The load of a run, for a benchmark client: a Mooncake trace of its requests, and what a client cannot do.

Mooncake's jsonl: timestamp (ms), input_length, output_length, hash_ids. vLLM's timed_trace makes a prompt of
its ids alone and stops where they end, so ids must cover every prompt: a prompt of which nothing is known
gets ids that nobody else has, and shares nothing, as in the simulation.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from simulator.config.scenario import Scenario
from simulator.errors import InputError
from simulator.experiments.run_folder import printable
from simulator.experiments.server.setting import Lack, scenario_keys
from simulator.metrics.tables import RequestTable
from simulator.workload.trace_blocks import TraceBlocks
from simulator.workload.traces import write_trace
from simulator.workload.traces.hash_blocks import MOONCAKE_BLOCK
from simulator.workload.workload import Ints, Workload

LOAD_LACKS: dict[str, tuple[object, str]] = {
    "workload.sessions": (
        None,
        "replayed open loop at the times of this run: a client that waits for no answer",
    ),
    "workload.timeout_s": (None, "no client gives up; count late answers by --goodput"),
    "workload.pre_delay_s": (None, "requests are sent when they reached the server; TTFT is unchanged by it"),
    "workload.cancel": (None, "no client cancels: the server computes what was cancelled here"),
    "workload.tenants": (None, "the client knows no tenants: run one client a tenant, or compare the total"),
    "workload.predicted_len": (None, "servers predict no lengths; a gateway must"),
    "run.warmup": ("none", "the client counts all requests; --num-warmups sends others before"),
    "slo.attainment": (None, ""),  # a target for the reader; the client prints requests that met the SLO
}
"""Keys of the load that a client cannot do: the value that needs nothing, and what to do instead."""

IN_LOAD = {
    "workload.trace": "its requests are in the load file",
    "workload.format": "read already",
    "workload.columns": "read already",
    "workload.time_unit": "read already",
    "workload.start_s": "cut already",
    "workload.duration_s": "cut already",
    "workload.limit": "cut already",
    "workload.rate_scale": "in the times of the load file",
    "workload.spread_ms": "in the times of the load file",
    "workload.arrivals": "in the times of the load file",
    "workload.lengths": "in the lengths of the load file",
    "workload.max_concurrency": "--max-concurrency",
    "workload.max_tokens": "caps the output lengths of the load file",
    "workload.num_requests": "--num-prompts",
    "slo.ttft_ms": "--goodput",
    "slo.tpot_ms": "--goodput",
    "slo.e2el_ms": "--goodput",
    "run.percentiles": "--metric-percentiles",
    "run.horizon_s": "what arrives later is not in the load file",
}
"""Keys that the load file and the client's flags hold."""

SIMULATION_ONLY = {
    "schema": "of the scenario file",
    "name": "of the scenario file",
    "seed": "of what is drawn, which is in the load file",
    "hardware.gpu": "the machine to run on; printed above the command",
    "hardware.price_per_gpu_hour": "a price",
    "model.accuracy": "the user's own score",
    "latency.kind": "of the model of a GPU",
    "latency.profile": "of the model of a GPU",
    "latency.coefficients": "of the model of a GPU",
    "run.percentile_method": "vLLM interpolates, as linear does",
}
"""Keys that mean something to a simulation only."""


def load_lacks(scenario: Scenario, workload: Workload) -> list[Lack]:
    """Return what of the load no client does."""
    found = []
    for key, value in scenario_keys(scenario):
        if key in LOAD_LACKS and value != LOAD_LACKS[key][0] and LOAD_LACKS[key][1]:
            found.append(Lack(key, value, LOAD_LACKS[key][1]))
    if workload.follows is not None and scenario.workload.sessions is None:
        found.append(Lack("workload.sessions", None, LOAD_LACKS["workload.sessions"][1]))
    if workload.closed_loop is not None and workload.closed_loop[1] > 0:
        arrivals = scenario.workload.arrivals
        found.append(
            Lack("workload.arrivals", arrivals, "--max-concurrency clients do not think: think_s is 0")
        )
    return found


def sent_load(scenario: Scenario, workload: Workload, requests: RequestTable | None) -> Workload:
    """Return the requests as a client sends them, in order; `requests` are those of a run of the scenario.

    Of sessions and delayed requests the times are those at which they reached the server in the run.
    """
    limit = np.where(workload.max_tokens > 0, workload.max_tokens, workload.num_output)  # 0: none
    output = np.minimum(workload.num_output, limit)
    plain = Workload(workload.arrival, workload.num_prompt, output, blocks=covering(workload))
    if requests is not None and (workload.follows is not None or workload.pre_delay is not None):
        ids = map(str, range(len(workload))) if workload.ids is None else workload.ids
        when = dict(zip(requests.id, requests.arrival.tolist(), strict=True))
        times = np.array([when.get(printable(name), np.nan) for name in ids])
        rows = np.flatnonzero(~np.isnan(times))
        rows = rows[np.argsort(times[rows], kind="stable")]
        plain = plain.take(rows, arrival=times[rows])
    horizon = scenario.run.horizon_s
    return plain if horizon is None else plain.take(np.flatnonzero(plain.arrival < horizon))


def covering(workload: Workload) -> TraceBlocks:
    """Return prefix ids that cover every prompt whole, with fresh ones where the workload has none."""
    blocks, n = workload.blocks, len(workload)
    size = MOONCAKE_BLOCK if blocks is None else blocks.block_size
    had: Ints = np.zeros(n, np.int64) if blocks is None else blocks.num_ids
    needed = -(-workload.num_prompt // size) - had
    fresh = 1 + (int(blocks.hi.max()) if blocks is not None and len(blocks.hi) else 0)
    lo: list[int] = []
    hi: list[int] = []
    offsets = [0]
    for i in range(n):
        if blocks is not None:
            runs = slice(blocks.offsets[i], blocks.offsets[i + 1])
            lo += blocks.lo[runs].tolist()
            hi += blocks.hi[runs].tolist()
        if needed[i] > 0:
            lo.append(fresh)
            fresh += int(needed[i])
            hi.append(fresh)
        offsets.append(len(lo))
    return TraceBlocks(np.array(lo, np.int64), np.array(hi, np.int64), np.array(offsets), size)


def write_load(load: Workload, path: Path) -> None:
    """Write a load as Mooncake's jsonl; InputError if it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_trace(load, path, "mooncake")
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from None
