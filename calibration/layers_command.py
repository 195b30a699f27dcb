"""What `calibrate fit` does with tables that hold a model's own layers, mixed attention among them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from calibration.checks import DEVICES, check
from calibration.fit_layers import fit_layers
from calibration.held_out_layers import SEEDS, LayerErrors, held_out_layers
from calibration.llmservingsim import SOURCE, named_model
from calibration.profile_out import write_profile
from calibration.timings import Timing
from calibration.write import HostTerms
from calibration.write_layers import NO_HOST, layers_json
from simulator.errors import ConfigError
from simulator.specs.hardware import Hardware
from simulator.specs.shipped_models import get_model


def has_layers(timings: Sequence[Timing], hardware: Hardware) -> bool:
    """Say whether a GPU's timings hold whole layers from one source, mixed attention among them."""
    return any(t.source == SOURCE and t.device in DEVICES.get(hardware.name, ()) for t in timings)


def run_layers_fit(
    timings: Sequence[Timing],
    paths: Sequence[Path],
    out: Path,
    hardware: Hardware,
    models: Sequence[str],
    host: HostTerms | None = None,
) -> Iterator[str]:
    """Fit, write the profile, and yield the lines to print."""
    if len(models) > 1:
        raise ConfigError(f"--model: these tables hold one model's layers, got {', '.join(models)[:80]}")
    model = get_model(models[0]) if models else named_model(paths)
    checked = check((t for t in timings if t.source == SOURCE), hardware)
    fitted = fit_layers(checked.timings, hardware, model)
    errors = held_out_layers(fitted)
    write_profile(layers_json(fitted, errors, checked, hardware, host or NO_HOST), out, [model])
    yield f"{checked.read} rows read, {len(checked.timings)} configurations used"
    for reason, rows, example in [*checked.rejected, *fitted.rejected]:
        yield f"  {rows} rows left out: {reason}" + (f" (first: {example})" if example else "")
    yield from _errors(errors)
    yield from (f"    {note}" for note in fitted.notes)
    yield f"wrote {out} ({out.stat().st_size / 1e3:.0f} kB)"


def _errors(e: LayerErrors) -> Iterator[str]:
    yield f"held-out error, mean, a random fifth left out; median (worst) of {len(SEEDS)} draws:"
    yield f"  dense by tokens {e.dense:.1%}; whole mixed step {e.step:.1%}"
    yield f"  decode attention, a KV column left out: grid {e.decode:.1%}, line {e.decode_linear:.1%}"
    for name, all_rows, few in (("grid", e.mixed, e.mixed_few), ("form", e.form, e.form_few)):
        yield (
            f"  mixed attention by the {name}: {few.median:.1%} ({few.worst:.1%}) to 64 decodes, "
            f"{all_rows.median:.1%} ({all_rows.worst:.1%}) all"
        )
