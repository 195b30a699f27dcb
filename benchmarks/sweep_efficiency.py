"""How much of two cores a sweep uses: the runs' own CPU time beside what the whole command took.

    python benchmarks/sweep_efficiency.py [--workers 2] [--points 24] [--requests 20000]

Every run takes about a second or more. Three numbers: the time of all runs one after another in one process
(their CPU time, which other work on the machine does not change); the wall time of `simulator.sweep` with so
many worker processes; and that of an empty machine by reckoning: CPU time of the workers / their number +
what the parent computes. Efficiency is the first / (workers x wall). On a machine that others use the wall
time is too long, and only the CPU times tell something.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import simulator
from simulator.experiments.sweep.plan import read_plan
from simulator.experiments.sweep.points import build_sweep
from simulator.experiments.sweep.tasks import run_task


def plan(points: int, requests: int) -> dict[str, Any]:
    """Return a sweep of the chat scenario over the number of sequences."""
    base = simulator.load_scenario("chat-a100").with_(**{"workload.num_requests": requests})
    step = 512 // points
    return {"base": base, "vary": {"scheduler.max_num_seqs": [step * (i + 1) for i in range(points)]}}


def one_after_another(sweep: dict[str, Any]) -> list[float]:
    """Return the CPU seconds of every run, made in this process."""
    seconds = []
    for point in build_sweep(read_plan(sweep)).points:
        begin = time.process_time()
        outcome = run_task(point.task(0, 1))
        seconds.append(time.process_time() - begin)
        assert outcome.error is None, outcome.error
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--points", type=int, default=24)
    parser.add_argument("--requests", type=int, default=20_000)
    given = parser.parse_args()
    sweep = plan(given.points, given.requests)
    alone = one_after_another(sweep)
    before, begin, mine = _children(), time.perf_counter(), time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        simulator.sweep(sweep, Path(folder), workers=given.workers, progress=False)
    wall, mine = time.perf_counter() - begin, time.process_time() - mine
    from joblib.externals.loky import get_reusable_executor

    get_reusable_executor().shutdown(wait=True)  # or their CPU time is not counted yet
    workers = _children() - before
    serial = sum(alone)
    found = {
        "runs": given.points,
        "seconds_per_run": {"mean": serial / given.points, "least": min(alone), "most": max(alone)},
        "serial_cpu_s": serial,
        "wall_s": wall,
        "workers_cpu_s": workers,
        "parent_cpu_s": mine,
        "efficiency": serial / (given.workers * wall),
        "efficiency_by_cpu": serial / (workers + given.workers * mine),
        "load_average": os.getloadavg()[0],
    }
    print(json.dumps(found, indent=1))


def _children() -> float:
    """Return the CPU seconds of the processes that were waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
