"""What `calibrate fit` does with timings of `servetwin gpu measure`: fit, compare, write, tell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from calibration.engine_errors import TermError
from calibration.engine_timings import Settings, engine_rows, measured_model, settings_beside, source_of
from calibration.fit_engine import EngineFit, fit_engine
from calibration.profile_out import write_profile
from calibration.timings import Timing
from calibration.write_engine import engine_profile, mixed_note
from simulator.errors import ConfigError
from simulator.specs.hardware import Hardware
from simulator.specs.models import Model

HOST_GIB = 16  # of a suggested tier: what it holds is the user's to say


def run_engine_fit(
    timings: Sequence[Timing],
    paths: Sequence[Path],
    out: Path,
    hardware: Hardware,
    models: Sequence[Model],
    chosen: Mapping[str, str],
) -> Iterator[str]:
    """Fit one engine's timings, write the profile, and yield the lines to print."""
    source = source_of(timings, chosen.get("dense"))
    settings = _settings(paths)
    model = measured_model(settings, models, source)
    rows = engine_rows(timings, hardware, settings, model, source)
    fitted = fit_engine(rows, hardware, model)
    text, _, errors = engine_profile(fitted)
    write_profile(text, out, [model])
    yield from engine_report(fitted, errors)
    yield f"wrote {out} ({out.stat().st_size / 1e3:.0f} kB)"


def _settings(paths: Sequence[Path]) -> Settings:
    """Find the settings of the one file, or of the one file in a folder, that has them."""
    files = [f for path in paths for f in (sorted(path.glob("*.csv")) if path.is_dir() else [path])]
    found = [each for each in map(settings_beside, files) if each.shape]
    if len({(each.model, *each.shape.items()) for each in found}) > 1:
        raise ConfigError(
            f"the timings are of {', '.join(each.model for each in found)}: fit them one by one"
        )
    return found[0] if found else Settings({})


def engine_report(fit: EngineFit, errors: Mapping[str, TermError]) -> Iterator[str]:
    """Yield what a person should know of a fit, line by line."""
    rows = fit.rows
    yield f"{rows.read} rows read, {sum(map(len, rows.rows.values()))} configurations used"
    for reason, count, example in rows.rejected:
        yield f"  {count} rows left out: {reason}" + (f" (first: {example})" if example else "")
    yield f"{fit.model.name} on {rows.device}, {rows.source}: held out, absolute error"
    for name, e in errors.items():
        yield f"  {name:<17} {e.rows:>3}  mean {e.mean:6.1%}  median {e.median:6.1%}  worst {e.worst:+7.1%}"
    if "step" not in errors:
        yield "  no whole steps were measured: the largest term's error stands for a step's"
    yield f"{mixed_note(errors)}"
    host = fit.host
    yield f"host: {host.per_step * 1e6:.0f} us + {host.per_seq * 1e6:.1f} us a sequence, {host.kind}"
    for note in (*fit.notes, *rows.settings.notes):
        yield f"note: {note}"
    if fit.links:
        yield f"as a tier of a scenario: {tier_entry(fit)}"


def tier_entry(fit: EngineFit) -> str:
    """Suggest the `kv.tiers` entry of what copying measured: the slower direction counts."""
    slower = min(fit.links, key=lambda link: link.bandwidth)
    latency = max(link.latency for link in fit.links)
    return (
        f"kv: {{tiers: [{{name: host, capacity_gib: {HOST_GIB}, "
        f"bandwidth_gb_s: {slower.bandwidth / 1e9:.3g}, latency_us: {latency * 1e6:.3g}}}]}}"
    )
