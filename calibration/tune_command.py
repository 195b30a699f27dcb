"""What `calibrate tune` does once its arguments are read: read, tune, tell, write the profile."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from calibration.measured import MeasuredRun, read_measured
from calibration.profile_out import write_profile
from calibration.rerun import scenario_of
from calibration.server_log import read_server_log
from calibration.tune import Figure, Tuned, tune
from calibration.write import HostTerms, host_json, layout
from simulator.errors import ConfigError
from simulator.latency.checked_json import Section
from simulator.latency.profile_file import profile_of, read_profile, shipped_profiles
from simulator.specs.shipped_models import get_model

TUNED_ERROR = 0.1  # relative error of tuned host terms, assumed: half of a run cannot tell them finer


def run_tune(
    profile: str,
    bench: Path,
    out: Path,
    changes: Mapping[str, object],
    *,
    log: Path | None = None,
    trace: Path | None = None,
    skip: int = 1,
) -> Iterator[str]:
    """Tune, yield the lines to print, and write the profile at the end."""
    if out.suffix != ".json":
        raise ConfigError(f"--out {out}: a profile is a .json file")
    path = shipped_profiles().get(profile, Path(profile))
    file = read_profile(path)
    run = read_measured(bench, trace)
    if log is not None:
        run = replace(run, engine=run.engine | read_server_log(log))
    gpu = file.text("hardware")
    asked = changes.get("hardware.gpu", gpu)
    if asked != gpu:
        raise ConfigError(f"--hardware {asked}: the profile {path.name} is of {gpu}")
    changes = {**changes, "hardware.gpu": gpu}
    model = get_model(scenario_of(run, changes).model.name)
    priced = profile_of(file, model)
    if run.engine.get("num_gpu_blocks") is None and "kv.num_gpu_blocks_override" not in changes:
        yield "  KV blocks are derived, not the server's: give --log, or --set kv.num_gpu_blocks_override=N"
    tuned = tune(run, priced, changes, skip)
    yield from told(run, tuned, skip)
    text = layout(tuned_json(file, priced.name.rpartition(": ")[2], run, tuned)) + "\n"
    write_profile(text, out, [model])
    yield f"wrote {out}"


def told(run: MeasuredRun, tuned: Tuned, skip: int) -> Iterator[str]:
    """Yield what a person should know of a tuning."""
    terms = tuned.terms
    yield (
        f"tuned on {tuned.num_fitted} requests of the first half of {run.name} in {tuned.num_simulations} "
        f"simulations ({skip} cold left out): host {terms.per_step * 1e3:.3f} ms a step + "
        f"{terms.per_seq * 1e6:.1f} us a sequence, GPU times x {terms.gpu_scale:.3f}"
    )
    yield f"held out: the second half, {tuned.num_held_out} requests; seconds and error"
    yield f"  {'':10}{'measured':>10}{'before':>10}{'':9}{'after':>10}"
    for before, after in zip(tuned.before, tuned.after, strict=True):
        yield (
            f"  {after.name:10}{after.measured:10.4f}{before.simulated:10.4f}{before.error:+9.1%}"
            f"{after.simulated:10.4f}{after.error:+9.1%}"
        )
    for note in run.notes:
        yield f"  {note}"


def tuned_json(file: Section, name: str, run: MeasuredRun, tuned: Tuned) -> dict[str, object]:
    """Return the profile's contents with the one model, the terms and where they come from."""
    aliases = Section(file.fields.get("aliases", {}), file.place)
    section = aliases.text(name) if name in aliases.fields else name
    where = f"tuned on {run.name}, {tuned.num_fitted} requests of its first half"
    host = HostTerms(tuned.terms.per_step, tuned.terms.per_seq, "tuned", where, TUNED_ERROR)
    before = file.number("gpu_scale", 0.1, 10) if "gpu_scale" in file.fields else 1.0
    return {
        **file.fields,
        "summary": f"{file.text('summary')}; {where}",
        "host": host_json(host),
        "gpu_scale": round(before * tuned.terms.gpu_scale, 5),
        "tuned": {
            "on": run.name,
            "requests": tuned.num_fitted,
            "held_out_requests": tuned.num_held_out,
            "simulations": tuned.num_simulations,
            "before": _errors(tuned.before),
            "after": _errors(tuned.after),
        },
        "aliases": {name: section} if name != section else {},
        "models": {section: file.section("models").get(section)},
    }


def _errors(figures: list[Figure]) -> dict[str, float]:
    return {figure.name: round(figure.error, 4) for figure in figures}
