"""Two runs side by side; of a model and a machine, how far apart they are and why.

Every metric, and the first decision in which the runs part. Where the first run was measured, its own noise
(from repeated runs) stands beside each error, the error of step times is given by kind of step, and each
error is split: the measured run is simulated again at its own times (`resimulate`), so that

    model - measured = (model - resimulated: timing) + (resimulated - measured: decisions).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from simulator.config.build import NO_POLICIES, Policies, build_machine
from simulator.engine.clients import Progress
from simulator.errors import SimulatorError
from simulator.experiments.diff_labels import is_measured, is_simulated, kernel_label, labels, own
from simulator.experiments.diff_result import Diff, MetricChange, Resimulated
from simulator.experiments.divergence import find_divergence
from simulator.experiments.resimulate import resimulate
from simulator.experiments.run_folder import SavedRun
from simulator.experiments.step_errors import KindError, StepTimes, by_kind, step_times
from simulator.latency.profile import Profile
from simulator.workload.workload import Workload

OWN = (
    "attainment",
    "num_preemptions",
    "prefix_hit_rate",
    "kv_usage_mean",
    "oldest_wait_s",
    "jain_service",
    "jain_latency",
)
QUIET = "median_e2el_ms"
QUIET_PERCENT = (
    5.0  # two runs of a machine that differ by more in QUIET: it was disturbed, and nothing is shown
)
UNKNOWN_NOISE = "noise floor unknown: measure the first run again and name that run with --repeat"


def diff(
    a: SavedRun,
    b: SavedRun,
    *,
    repeats: Sequence[SavedRun] = (),
    split: bool | None = None,
    policies: Policies = NO_POLICIES,
    workload: Workload | None = None,
    progress: Progress | None = None,
) -> Diff:
    """Compare two runs: all numbers of their summaries, their decisions, and the reasons of the error.

    A measured run comes first: if only `b` was measured, the two change places. `repeats` are other runs of
    a's scenario on the same machine. `split` splits the error into timing and decisions, and prices a's steps
    with b's latency model; None does so where a was measured and b was not. `policies` are b's, `workload`
    is what a served, if its scenario does not say.
    """
    notes = []
    if is_measured(b) and not is_measured(a):
        a, b = b, a
        notes.append("the second run was measured: the first is compared with it")
    is_model = is_measured(a) and not is_measured(b)
    names = ("measured", "model") if is_model else ("A", "B")
    actors = ("machine", "model") if is_model else names
    notes += labels(a, b, actors)
    steps: tuple[KindError, ...] = ()
    times = again = None
    new: dict[str, object] = {}
    if split or (split is None and is_model and a.known_scenario is not None):
        try:
            times, told = _prices(a, b)
            notes += told
            steps = () if times is None else by_kind(times)
            again, new = _resimulated(a, b, actors[0], policies, workload, progress)
        except SimulatorError as error:
            if split:
                raise
            notes.append(f"the error is not split: {error}")
    notes += _about_noise(a, repeats, is_model)
    parting, num_steps = None, None
    if a.decisions is not None and b.decisions is not None:
        num_steps = len(a.decisions), len(b.decisions)
        parting = find_divergence(a, b, actors)
    changes = tuple(_changes(a, b, repeats, new))
    return Diff(changes, num_steps, parting, names, tuple(notes), steps, times, again)


def figures(summary: Mapping[str, object]) -> dict[str, object]:
    """Return a summary's values: vLLM's keys, and those of ours that a run is judged by."""
    ours = summary.get("servetwin")
    return {**summary, **{name: ours[name] for name in OWN if isinstance(ours, dict) and name in ours}}


def _prices(a: SavedRun, b: SavedRun) -> tuple[StepTimes | None, list[str]]:
    """Price a's steps with the latency model of b, if b is a simulation; and say whose kernels these are."""
    if a.steps is None or not is_simulated(b):
        return None, []
    latency = build_machine(b.scenario).latency
    timed = latency.kernels if isinstance(latency, Profile) else None
    label = kernel_label(own(a).get("kernels"), timed, latency.provenance)
    return step_times(a.steps, latency), [label] if label else []


def _resimulated(
    a: SavedRun,
    b: SavedRun,
    name: str,
    policies: Policies,
    workload: Workload | None,
    progress: Progress | None,
) -> tuple[Resimulated, dict[str, object]]:
    run = resimulate(a, b.scenario, policies=policies, workload=workload, progress=progress)
    assert run.log is not None, "decisions are logged"
    saved = SavedRun(run.scenario, run.summary, run.requests, run.steps, run.log.lines)
    parting = None if a.decisions is None else find_divergence(a, saved, (name, "re-simulated"))
    reach = run.own["resimulated"]
    assert isinstance(reach, dict)
    return Resimulated(reach, len(run.steps), parting), figures(run.summary)


def _about_noise(a: SavedRun, repeats: Sequence[SavedRun], is_model: bool) -> list[str]:
    """Say what is wrong with the repeated runs, or that there are none."""
    if not repeats:
        return [UNKNOWN_NOISE] if is_model else []
    found = []
    for number, each in enumerate(repeats, start=1):
        name = "the repeat" if len(repeats) == 1 else f"repeat {number}"
        found += labels(a, each, ("the first run", name))
        percent = _change(QUIET, a.summary.get(QUIET), each.summary.get(QUIET)).percent
        if percent is not None and abs(percent) > QUIET_PERCENT:
            found.append(
                f"machine not quiet: {name} differs by {percent:+.1f} % in {QUIET}, "
                f"limit {QUIET_PERCENT:g} %; the comparison is inconclusive"
            )
    return found


def _changes(
    a: SavedRun, b: SavedRun, repeats: Sequence[SavedRun], again: Mapping[str, object]
) -> list[MetricChange]:
    one, other = figures(a.summary), figures(b.summary)
    others = [figures(each.summary) for each in repeats]
    found = []
    for name in one:
        if name in other and (_is_number(one[name]) or _is_number(other[name])):
            apart = [_change(name, one[name], each.get(name)).percent for each in others]
            known = [abs(each) for each in apart if each is not None]
            noise = max(known) if known else None
            found.append(_change(name, one[name], other[name], noise, _as_float(again.get(name))))
    return found


def _change(
    name: str, a: object, b: object, noise: float | None = None, again: float | None = None
) -> MetricChange:
    one, other = _as_float(a), _as_float(b)
    percent = None
    if one is not None and other is not None:
        percent = 0.0 if one == other else (100 * (other / one - 1) if one else None)
    return MetricChange(name, one, other, percent, noise, again)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _as_float(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None
