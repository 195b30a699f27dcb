"""Write a profile that was fitted to measured layers: the file of `write`, with a grid of mixed steps."""

from __future__ import annotations

from collections import Counter

import numpy as np

from calibration import llmservingsim
from calibration.checks import Checked
from calibration.fit_layers import LayerFit
from calibration.held_out_layers import LayerErrors
from calibration.write import HostTerms, Json, host_json, layout
from simulator.latency.base import Floats
from simulator.latency.graphs import graph_sizes
from simulator.latency.mixed import Mixed, MixedForm
from simulator.latency.profile_file import SCHEMA, SHAPE
from simulator.specs.hardware import Hardware

ACCURACY = "one source, one GPU, every layer measured: no second source to disagree"
NO_HOST = HostTerms(
    0.0,
    0.0,
    kind="none",
    source="not measured: with async scheduling vLLM's host works beside the GPU, and nothing is added",
)
KNOWN = {llmservingsim.SOURCE: (llmservingsim.REPO, llmservingsim.COMMIT, llmservingsim.LICENCE)}
OPS = ("dense", "embedding", "head", "sampler", "decode_attention", "prefill_attention", "mixed_attention")
DIGITS = 4  # significant, of a time in the mixed grid


def layers_json(
    fit: LayerFit, errors: LayerErrors, checked: Checked, hardware: Hardware, host: HostTerms = NO_HOST
) -> str:
    """Return the whole file."""
    devices = sorted({t.device for t in checked.timings})
    rejected = [*checked.rejected, *fit.rejected]
    profile: Json = {
        "schema": SCHEMA,
        "hardware": hardware.name,
        "summary": f"fitted by `servetwin calibrate fit` from layer timings of {', '.join(devices)}, bf16",
        "accuracy": ACCURACY,
        "date": llmservingsim.SNAPSHOT,
        "kernels": "vLLM 0.19.0",
        "sources": _sources(checked),
        "rows": {
            "read": checked.read,
            "passed": len(checked.timings) - sum(row.rows for row in fit.rejected),
            "rejected": [row._asdict() for row in rejected],
        },
        "source_disagreement": 0.0,
        "peaks": {"flops": hardware.flops, "hbm_bandwidth": hardware.hbm_bandwidth},
        "efficiency": {},  # beyond the tables: those of A100
        "host": host_json(host),
        "graphs": {"sizes": graph_sizes(), "eager_us": 0.0, "source": "vLLM V1 capture sizes up to 512"},
        "aliases": {},
        "models": {fit.model.name: _model(fit, errors)},
    }
    return layout(profile) + "\n"


def _sources(checked: Checked) -> list[Json]:
    rows = Counter((t.source, t.op) for t in checked.timings if t.op in OPS)
    found: list[Json] = []
    for source in sorted({name for name, _ in rows}):
        repo, commit, licence = KNOWN.get(source, ("given by the user", "", ""))
        counts = {op: count for (name, op), count in sorted(rows.items()) if name == source}
        found.append({"name": source, "repo": repo, "commit": commit, "licence": licence, "rows": counts})
    return found


def _model(fit: LayerFit, errors: LayerErrors) -> Json:
    model, grid = fit.model, fit.decode
    reach = np.where(np.isfinite(grid.measured), grid.kv, 0).max(axis=1)
    constant, per_seq, per_token, per_work = (float(f"{value * 1e6:.5g}") for value in fit.prefill)
    terms = ("dense", "decode", "decode_linear", "prefill", "step")
    return {
        "shape": {name: getattr(model, name) for name in (*SHAPE, "vocab_size")},
        "notes": fit.notes,
        "held_out_error": {
            **{name: round(getattr(errors, name), 4) for name in terms},
            "mixed": round(errors.mixed.median, 4),
        },
        "layer": {"tokens": _whole(fit.tokens), "us": _us(fit.layer)},
        "head": {"rows": _whole(fit.head_rows), "us": _us(fit.head)},
        "decode_attention": {
            "batch": _whole(grid.batch),
            "kv": _whole(grid.kv),
            "longest_kv": _whole(reach),
            "us": [_us(row) for row in grid.seconds],
        },
        "prefill_attention": {
            "longest": fit.longest_prefill,
            "constant_us": constant,
            "per_seq_us": per_seq,
            "per_token_us": per_token,
            "per_work_us": per_work,
        },
        "mixed_attention": _mixed(fit.mixed, errors),
    }


def _mixed(mixed: Mixed, errors: LayerErrors) -> Json:
    names = ("mixed", "mixed_few", "form", "form_few")
    labels = ("grid", "grid, at most 64 decodes", "form", "form, at most 64 decodes")
    chunk, prefix, decodes, kv = (_whole(np.array(axis)) for axis in mixed.axes)
    return {
        "held_out_error": {
            label: {key: round(value, 4) for key, value in getattr(errors, name)._asdict().items()}
            for label, name in zip(labels, names, strict=True)
        },
        "form": {
            **{
                f"{name}_us": float(f"{1e6 * getattr(mixed.form, name):.{DIGITS}g}")
                for name in MixedForm._fields[:-1]
            },
            "power": float(f"{mixed.form.power:.{DIGITS}g}"),
        },
        "chunk": chunk,
        "prefix": prefix,
        "decodes": decodes,
        "kv": kv,
        "us": [[float(f"{1e6 * value:.{DIGITS}g}") for value in row] for row in _rows(mixed.table)],
    }


def _rows(table: Floats) -> list[list[float]]:
    rows: list[list[float]] = table.reshape(-1, table.shape[-1]).tolist()
    return rows


def _whole(values: Floats) -> list[int]:
    return [int(value) for value in values.tolist()]


def _us(seconds: Floats) -> list[float]:
    return [round(value * 1e6, 2) for value in seconds.tolist()]
