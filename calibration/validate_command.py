"""What `calibrate validate` does once its arguments are read: simulate, print, draw."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from calibration.measured import read_measured
from calibration.validate import LATENCIES, RANKS, Figure, Validation, profile_for, validate
from simulator.errors import InputError

TITLES = {"ttft": "TTFT", "tpot": "TPOT", "e2el": "E2E", "queue": "queue"}


def run_validate(
    source: str,
    measured: Path,
    *,
    trace: Path | None = None,
    blocks: int | None = None,
    warmup: int = 0,
    fit_constant: bool = False,
) -> list[Validation]:
    """Validate a profile; with `fit_constant` the unfitted result comes first, the fitted one second."""
    run = read_measured(measured, trace)
    profile, gpu = profile_for(source, run)
    found = [validate(run, profile, gpu, blocks=blocks, warmup=warmup)]
    if fit_constant:
        found.append(validate(run, profile, gpu, blocks=blocks, warmup=warmup, fit_constant=True))
    return found


def validation_json(found: Validation) -> dict[str, object]:
    """Return what `--json` prints: every figure, measured and simulated, and what they rest on."""
    return {
        "measured_run": found.measured.name,
        "profile": found.profile.name,
        "provenance": found.profile.provenance,
        "worst_error": found.worst,
        "constant_per_step_ms": 1e3 * found.constant,
        "warmup": found.warmup,
        "metrics": {
            name: {"measured": each.measured, "simulated": each.simulated, "error": each.error}
            for name, each in found.metrics.items()
        },
        "notes": list(found.notes),
        "scenario": found.run.scenario.to_dict(),
    }


def lines(found: Validation) -> Iterator[str]:
    """Yield the table that a person reads."""
    yield f"{found.measured.name}: {len(found.measured)} requests; {found.profile.name}"
    if found.constant:
        yield f"one constant of {1e3 * found.constant:.3f} ms a step, fitted on this run's mean TPOT alone"
    else:
        yield "no parameter fitted on this run"
    yield f"{'':8}{'':8}{'measured':>14}{'simulated':>14}{'error':>9}"
    for name in (*LATENCIES, "queue"):
        for rank in ("mean", *RANKS):
            each = found.metrics[f"{rank}_{name}_ms"]
            sides = f"{_ms(each.measured):>14}{_ms(each.simulated):>14}"
            yield f"{TITLES[name]:8}{rank:8}{sides}{_share(each):>9}"
    for name, each in found.metrics.items():
        if not name.endswith("_ms"):
            sides = f"measured {_number(each.measured):>9}   simulated {_number(each.simulated):>9}"
            yield f"{name.replace('_', ' '):20}{sides}{_share(each):>9}"
    yield f"worst of the fifteen: {found.worst:.2%}"
    yield from (f"note: {note}" for note in found.notes)


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:,.2f} ms"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.4g}"


def _share(each: Figure) -> str:
    return "" if each.error is None else f"{each.error:+.1%}"


def save_validation(found: list[Validation], folder: Path) -> list[Path]:
    """Write validation.json (of the last one) and validate.html; InputError if it cannot be."""
    from calibration.validate_report import validation_html

    files = {
        "validation.json": json.dumps(validation_json(found[-1]), indent=1) + "\n",
        "validate.html": validation_html(found),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise InputError(f"{folder}: cannot be written: {error.strerror}") from None
    return [folder / name for name in files]
