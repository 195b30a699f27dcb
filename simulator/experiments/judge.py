"""Put a run's verdict and bottleneck into its summary."""

from __future__ import annotations

from simulator.config.build import Policies
from simulator.config.run import Run
from simulator.experiments.bottleneck import find_bottleneck
from simulator.experiments.verdict import verdict

QUICK_STEPS = 60_000
"""A run of at most so many steps, some two seconds, is rerun for its bottleneck unasked. Steps rather than
seconds, so that the same run gives the same result on any machine."""


def judge(run: Run, policies: Policies, bottleneck: bool | None = None) -> None:
    """Add `verdict` and `bottleneck` to a run's summary; None looks for it where that is quick."""
    found = None
    if bottleneck or (bottleneck is None and len(run.steps) <= QUICK_STEPS):
        found = find_bottleneck(run, policies)
    run.own["bottleneck"] = None if found is None else found.to_dict()
    run.own["verdict"] = verdict(run.own, found)
