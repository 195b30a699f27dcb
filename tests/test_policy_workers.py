"""Policies of the user's in worker processes: the same run there as here."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import joblib
import pytest
from pseudo_notebook import notebook

from simulator.config.axes import split_objects
from simulator.config.build import Policies
from simulator.config.loading import load_scenario
from simulator.config.policies import files_named
from simulator.config.run import Run, run_scenario
from simulator.config.scenario import Scenario
from simulator.errors import ConfigError
from simulator.experiments.run_folder import save_run

BUSY = {"workload.arrivals.rate": 9.0, "kv.num_gpu_blocks_override": 49}
NOTEBOOK = """
from simulator import Scheduler
from simulator.schedulers import unchanged_steps

MOST = 3

def shortest(seq, ctx):
    return seq.num_prompt * MOST

class Few(Scheduler):
    def __init__(self, kv, **settings):
        super().__init__(kv, **settings | {"max_num_seqs": MOST})

    def schedule(self, now):
        batch = self.open_batch(now)
        self.take_running(batch)
        if not batch.preempted:
            self.admit(batch)
        return self.commit(batch)

    def steady_steps(self, batch, limit):
        return unchanged_steps(self, batch, limit)

class Fair:
    def __init__(self, cost):
        self.cost = cost
        self.tokens = {}

    def key(self, seq, ctx):
        return self.tokens.get(seq.id, 0.0), seq.num_prompt

    def served(self, seq, n):
        self.tokens[seq.id] = self.tokens.get(seq.id, 0.0) + n * self.cost

class Bounded:
    def __init__(self, most=2):
        self.most = most

    def __call__(self, seq, ctx):
        return "admit" if len(list(ctx.running)) < self.most else "wait"

def broken(seq, ctx):
    return seq.nope
"""


def chosen(changes: dict[str, object]) -> tuple[Scenario, Policies]:
    """Resolve changes, Python objects among them, as a command or a notebook does."""
    names, objects = split_objects({**BUSY, **changes})
    scenario = load_scenario("tiny-cpu").with_(**names)
    return scenario, Policies(**objects, trusted=files_named(names.values())).reading(scenario)


def made(scenario: Scenario, policies: Policies) -> tuple[int, Run]:
    return os.getpid(), run_scenario(scenario, policies=policies)


def everything(run: Run) -> Any:
    return json.dumps(run.summary), run.requests.finish.tolist(), run.policies.files


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Scenario, Policies]]:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text("def longest(seq, ctx):\n    return seq.num_prompt\n")
    nb = notebook(NOTEBOOK)
    jobs: list[dict[str, object]] = [
        {"scheduler.order": nb.shortest, "scheduler.victim": "mine.py:longest"},
        {"scheduler.batching": nb.Few, "scheduler.admission": [nb.Bounded(1), {"queue_limit": 30}]},
        {"scheduler.order": nb.Fair(2.0), "kv.eviction": lambda block, ctx: block.created},
        {"scheduler.order": nb.broken},
    ]
    return [chosen(changes) for changes in jobs]


def test_a_worker_makes_the_same_run(
    work: list[tuple[Scenario, Policies]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    *good, bad = work
    here = [made(*job)[1] for job in good]
    Path("mine.py").write_text("raise SystemExit('edited since')")
    monkeypatch.chdir("/")  # the file's content travels, not only its name
    with joblib.Parallel(n_jobs=2) as workers:
        there = workers(joblib.delayed(made)(*job) for job in good)
        rule = r"^scheduler\.order: broken \(line \d+\): AttributeError: .* in step 0 at \d\.\d\d\d s$"
        with pytest.raises(ConfigError, match=rule):
            workers([joblib.delayed(made)(*bad)])
    assert {pid for pid, _ in there}.isdisjoint({os.getpid()})
    assert [everything(run) for _, run in there] == [everything(run) for run in here]
    monkeypatch.chdir(tmp_path)
    for name, run in (("here", here[0]), ("there", there[0][1])):
        save_run(run, Path(name), report=False)
    for path in Path("here").iterdir():
        assert path.read_bytes() == Path("there", path.name).read_bytes()
    assert {path.name for path in Path("here").glob("*.py")} == {"mine.py", "shortest.py"}
