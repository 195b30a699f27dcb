"""Write an engine's fit as a profile, with its own errors: the file of `write`, from one set of timings."""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np

from calibration.engine_errors import Compared, TermError, compare_steps, compare_terms, summarise
from calibration.engine_mixed import compare_mixed, mixed_grid
from calibration.engine_timings import element_size
from calibration.fit_engine import UNPADDED, EngineFit, HostLine
from calibration.write import Json, layout
from simulator.latency.base import Floats
from simulator.latency.checked_json import Section
from simulator.latency.profile_file import SCHEMA, SHAPE, profile_of

UNSETTLED = 0.05  # relative error of the level where no session says how far it drifted
NO_HOST = HostLine(0.0, 0.0, 0.0, "none", "none")


def engine_profile(fit: EngineFit) -> tuple[str, list[Compared], dict[str, TermError]]:
    """Return the profile's text, all that was held out beside its prediction, and the errors by term."""
    bare = fit._replace(host=NO_HOST, sizes=list(UNPADDED))  # a step of the bench is not padded
    draft = profile_of(Section(json.loads(_text(bare, {})), f"fit of {fit.model.name}"), fit.model)
    compared = [*compare_terms(fit), *compare_mixed(fit), *compare_steps(fit, draft)]
    errors = summarise(compared)
    return _text(fit, errors), compared, errors


def _text(fit: EngineFit, errors: Mapping[str, TermError]) -> str:
    rows, settings = fit.rows, fit.rows.settings
    drift = UNSETTLED if settings.drift is None else abs(settings.drift)
    profile: Json = {
        "schema": SCHEMA,
        "hardware": fit.hardware.name,
        "summary": f"measured by `servetwin gpu measure` on {rows.device}, {rows.source}",
        "accuracy": _accuracy(fit, errors),
        "date": settings.date or "unknown",
        "kernels": rows.source,
        "sources": [
            {
                "name": rows.source,
                "repo": "servetwin",
                "commit": f"torch {settings.torch or 'unknown'}",
                "licence": "own measurement",
                "rows": {op: len(found) for op, found in sorted(rows.rows.items())},
            }
        ],
        "measured_on": {
            "device": rows.device,
            "torch": settings.torch,
            "threads": settings.threads,
            "latency": settings.latency,
            "drift": settings.drift,
            "notes": list(settings.notes),
        },
        "rows": {
            "read": rows.read,
            "passed": sum(map(len, rows.rows.values())),
            "rejected": [row._asdict() for row in rows.rejected],
        },
        "source_disagreement": round(drift, 4),
        "mixed_steps": mixed_note(errors),
        "peaks": {"flops": fit.roofline.flops, "hbm_bandwidth": fit.roofline.bandwidth},
        "efficiency": {
            name: float(f"{value:.4g}")
            for name, value in fit.roofline.efficiency._asdict().items()
            if name.startswith(("gemm", "compute", "bandwidth", "sharpness", "elementwise"))
        },
        "host": {
            "per_step_us": _us(fit.host.per_step),
            "per_seq_us": _us(fit.host.per_seq),
            "relative_error": round(max(fit.host.error, drift), 4),
            "kind": fit.host.kind,
            "source": fit.host.source,
        },
        "graphs": {"sizes": fit.sizes, "eager_us": 0.0, "source": "what the engine pads a step's tokens to"},
        "copies": {
            link.op: {"latency_us": _us(link.latency), "bandwidth_gb_s": float(f"{link.bandwidth / 1e9:.4g}")}
            for link in fit.links
        },
        "aliases": {},
        "models": {fit.model.name: _model(fit, errors)},
    }
    return layout(profile) + "\n"


def _accuracy(fit: EngineFit, errors: Mapping[str, TermError]) -> str:
    drift = fit.rows.settings.drift
    moved = "drift of the session unknown" if drift is None else f"drift of the session {drift:+.1%}"
    step = errors.get("step")
    if step is None:
        return f"one machine, one session; no whole steps were measured; {moved}"
    return (
        f"one machine, one session; {step.rows} whole steps held out: median error {step.median:.1%}, "
        f"worst {step.worst:+.1%}; {moved}"
    )


def mixed_note(errors: Mapping[str, TermError]) -> str:
    """Say what is known of batches with decodes and chunks."""
    chunks = "chunks after a prefix: measured"
    joined, steps = errors.get("mixed, joined"), errors.get("mixed step")
    if joined is None:
        return f"mixed steps: additive, unverified; {chunks}"
    whole = f", {steps.mean:.1%} on {steps.rows} whole mixed steps" if steps else ""
    return (
        f"mixed steps: decode and prefill attention less what both pay once, {joined.mean:.1%} off on "
        f"{joined.rows} measured batches, a fifth left out at a time{whole}; {chunks}"
    )


def _model(fit: EngineFit, errors: Mapping[str, TermError]) -> Json:
    grid = fit.decode
    reach = np.where(np.isfinite(grid.measured), grid.kv, 0).max(axis=1)
    return {
        "shape": {name: getattr(fit.model, name) for name in (*SHAPE, "vocab_size", "dtype")},
        "element_bytes": element_size(fit.rows.source),
        "notes": fit.notes,
        "held_out_error": _held_out(errors),
        "held_out": {
            name: {
                "rows": e.rows,
                **{key: round(getattr(e, key), 4) for key in ("mean", "median", "bias", "worst")},
            }
            for name, e in errors.items()
        },
        "once": {"constant_us": _us(fit.once[0]), "per_token_us": float(f"{fit.once[1] * 1e6:.5g}")},
        "layer": {"tokens": _whole(fit.tokens), "us": _list(fit.layer)},
        "head": {"rows": _whole(fit.head_rows), "us": _list(fit.head)},
        "decode_attention": {
            "batch": _whole(grid.batch),
            "kv": _whole(grid.kv),
            "longest_kv": _whole(reach),
            "us": [_list(row) for row in grid.seconds],
        },
        "prefill_attention": {
            "longest": fit.longest_prefill,
            **{f"{name}_us": float(f"{value * 1e6:.5g}") for name, value in fit.prefill._asdict().items()},
        },
        **_mixed(fit),
    }


def _mixed(fit: EngineFit) -> Json:
    """Return the grid of mixed steps under the profile's key, or nothing."""
    grid = mixed_grid(fit)
    if grid is None:
        return {}
    names = ("constant", "per_token", "per_work", "per_decode", "per_kv")
    plane = {f"{name}_us": float(f"{value * 1e6:.5g}") for name, value in zip(names, grid.plane, strict=True)}
    axes = {name: getattr(grid, name) for name in ("chunk", "prefix", "decodes", "kv")}
    rows = grid.seconds.reshape(-1, len(grid.kv))
    form = {**plane, "per_longest_us": 0.0, "power": 1.0}
    return {
        "mixed_attention": {
            **axes,
            "shared_us": _us(grid.shared),
            "us": [_list(row) for row in rows],
            "form": form,
        }
    }


def _held_out(errors: Mapping[str, TermError]) -> Json:
    """Return the errors under the names that a profile is read by; without whole steps the largest term's."""
    names = {"dense": "dense", "decode": "decode attention", "prefill": "prefill attention"}
    names |= {"mixed": "mixed, joined"} if "mixed, joined" in errors else {}
    terms = {
        name: round(errors[term].mean, 4) if term in errors else UNSETTLED for name, term in names.items()
    }
    step = round(errors["step"].mean, 4) if "step" in errors else max(terms.values())
    return {**terms, "step": step}


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 3)


def _whole(values: Floats) -> list[int]:
    return [int(value) for value in values.tolist()]


def _list(seconds: Floats) -> list[float]:
    return [round(value * 1e6, 2) for value in seconds.tolist()]
