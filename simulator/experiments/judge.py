"""Put a run's verdict and bottleneck into its summary."""

from __future__ import annotations

from simulator.config.run import Run
from simulator.experiments.bottleneck import find_bottleneck, has_doublings
from simulator.experiments.verdict import verdict

QUICK_STEPS = 60_000
"""A run of at most so many steps, some two seconds, is rerun for its bottleneck unasked. Steps rather than
seconds, so that the same run gives the same result on any machine."""


def judge(run: Run, bottleneck: bool | None = None) -> None:
    """Add `verdict` and `bottleneck` to a run's summary; None looks for it where that is quick.

    A run that served nobody has no bottleneck: twice of nothing stays nothing.
    """
    found = None
    quick = len(run.steps) <= QUICK_STEPS and has_doublings(run.scenario)
    if run.own["completed"] and (bottleneck or (bottleneck is None and quick)):
        found = find_bottleneck(run)
    run.own["bottleneck"] = None if found is None else found.to_dict()
    run.own["verdict"] = verdict(run.own, found)
