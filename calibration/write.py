"""Write a profile as JSON that a person can read: microseconds, one line per list of numbers.

The same fit gives the same bytes: the date is that of the data's snapshot, never the clock's.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from calibration import aiconfigurator, vidur
from calibration.checks import Checked
from calibration.fit import ENGINES, ModelFit
from calibration.fit_all_reduce import AllReduceFit
from simulator.latency.base import Floats
from simulator.latency.estimate import ASSUMED_HOST
from simulator.latency.graphs import graph_sizes
from simulator.latency.prefill import PrefillFactor
from simulator.latency.prefill_file import RESIDUAL
from simulator.latency.profile_file import SCHEMA, SHAPE
from simulator.specs.hardware import Hardware

Json = dict[str, object]

ACCURACY = "public sources disagree by 7-20 % about the same GPU: no better than about +-10 % absolute"
SOURCE_DISAGREEMENT = (
    0.10  # relative; AIConfigurator against Vidur on the same shapes, latency model section 1
)


class HostTerms(NamedTuple):
    """What the CPU adds to a step, in seconds, and where that is from."""

    per_step: float
    per_seq: float
    kind: str  # assumed | fitted | tuned
    source: str
    relative_error: float = 0.3  # an assumption about an assumption


ASSUMED = HostTerms(
    *ASSUMED_HOST,
    "assumed",
    "assumed, not measured: 1.5 ms a step gives the 75-80 tok/s that vLLM users report for one stream; "
    "4.4 us a sequence is BLIS's constant trained on vLLM (quoted)",
)
KNOWN = {  # engine prefix of a row's source: repository, commit, licence
    "vidur": (vidur.REPO, vidur.COMMIT, vidur.LICENCE),
    **dict.fromkeys(ENGINES, (aiconfigurator.REPO, aiconfigurator.COMMIT, aiconfigurator.LICENCE)),
}


def profile_json(
    fits: Sequence[ModelFit],
    checked: Checked,
    hardware: Hardware,
    host: HostTerms = ASSUMED,
    groups: Sequence[AllReduceFit] = (),
) -> str:
    """Return the whole file. Models of equal shape share one section, through `aliases`."""
    roofline = fits[0].roofline
    models: Json = {}
    aliases: Json = {}
    for fitted in fits:
        section = _model(fitted)
        twin = next((name for name, other in models.items() if other == section), None)
        if twin is None:
            models[fitted.model.name] = section
        else:
            aliases[fitted.model.name] = twin
    devices = sorted({t.device for t in checked.timings})  # "a100": Vidur does not say which
    profile: Json = {
        "schema": SCHEMA,
        "hardware": hardware.name,
        "summary": f"fitted by `servetwin calibrate fit` from kernel timings of {', '.join(devices)}, bf16",
        "accuracy": ACCURACY,
        "date": aiconfigurator.SNAPSHOT,
        "sources": _sources(checked, fits, groups),
        "rows": {
            "read": checked.read,
            "passed": len(checked.timings),
            "rejected": [row._asdict() for row in checked.rejected],
        },
        "source_disagreement": SOURCE_DISAGREEMENT,
        "peaks": {"flops": hardware.flops, "hbm_bandwidth": hardware.hbm_bandwidth},
        "efficiency": {
            name: float(f"{value:.4g}")
            for name, value in roofline.efficiency._asdict().items()
            if name.startswith(("gemm", "compute", "bandwidth", "sharpness", "elementwise"))
        },
        "host": host_json(host),
        "graphs": {"sizes": graph_sizes(), "eager_us": 0.0, "source": "vLLM V1 capture sizes up to 512"},
        **(
            {"all_reduce": {str(group.fitted.gpus): _all_reduce(group) for group in groups}} if groups else {}
        ),
        "aliases": aliases,
        "models": models,
    }
    return layout(profile) + "\n"


def host_json(host: HostTerms) -> Json:
    """Return the host terms as a profile holds them."""
    return {
        "per_step_us": round(host.per_step * 1e6, 3),
        "per_seq_us": round(host.per_seq * 1e6, 3),
        "relative_error": host.relative_error,
        "kind": host.kind,
        "source": host.source,
    }


def _all_reduce(group: AllReduceFit) -> Json:
    fitted = group.fitted
    lines = {name: getattr(fitted, name) for name in ("one_shot", "two_shot", "nccl")}
    against = [f"{value:+.0%} against {name}" for name, value in group.opinions.items()]
    return {
        "source": f"all-reduce of {fitted.source}",
        "second_opinions": f"large messages {', '.join(against)}" if against else "none",
        "residual": round(group.residual, 4),
        "error": round(fitted.error, 4),
        **{f"{name}_us": float(f"{line.latency * 1e6:.4g}") for name, line in lines.items()},
        **{f"{name}_gb_s": float(f"{line.bandwidth / 1e9:.4g}") for name, line in lines.items()},
    }


def _sources(checked: Checked, fits: Sequence[ModelFit], groups: Sequence[AllReduceFit]) -> list[Json]:
    used = {(op, source) for fitted in fits for op, source in fitted.used}
    used |= {("all_reduce", group.fitted.source) for group in groups}
    rows: dict[tuple[str, str], int] = {}
    for t in checked.timings:
        if (t.op, t.source) in used:
            rows[t.source, t.op] = rows.get((t.source, t.op), 0) + 1
    found: list[Json] = []
    for source in sorted({name for name, _ in rows}):
        repo, commit, licence = KNOWN.get(source.split(" ")[0], ("given by the user", "", ""))
        counts = {op: count for (name, op), count in sorted(rows.items()) if name == source}
        found.append({"name": source, "repo": repo, "commit": commit, "licence": licence, "rows": counts})
    return found


def _model(fitted: ModelFit) -> Json:
    model, grid, errors = fitted.model, fitted.decode, fitted.errors
    constant, per_seq, per_token, per_work = (value * 1e6 for value in fitted.prefill)
    reach = np.where(np.isfinite(grid.measured), grid.kv, 0).max(axis=1)
    return {
        "shape": {name: getattr(model, name) for name in (*SHAPE, "vocab_size")},
        "notes": fitted.notes,
        "held_out_error": {name: round(value, 4) for name, value in errors._asdict().items()},
        "held_out": {
            "random_fifth_median_worst": {
                name: [round(error, 4) for error in fifth.error] for name, fifth in fitted.fifths.items()
            },
            "left_out_mean_worst": {
                f"{each.term}, {each.axis}, {each.how}": [round(each.mean, 4), round(each.worst, 4) + 0.0]
                for each in fitted.axes  # + 0.0: an error of nothing has no sign
            },
        },
        "second_opinions": [
            {"source": name, "level": round(level, 4), "between_knots": between and round(between, 4)}
            for name, level, between in fitted.opinions
        ],
        "layer": {"tokens": _whole(fitted.layer.tokens), "us": _us(fitted.layer.seconds)},
        "head": {"rows": _whole(np.array(fitted.head_rows)), "us": _us(np.array(fitted.head))},
        "decode_attention": {
            "batch": _whole(grid.batch),
            "kv": _whole(grid.kv),
            "longest_kv": _whole(reach),
            "us": [_us(row) for row in grid.seconds],
        },
        "prefill_attention": {
            "longest": fitted.longest_prefill,
            "constant_us": float(f"{constant:.5g}"),
            "per_seq_us": float(f"{per_seq:.5g}"),
            "per_token_us": float(f"{per_token:.5g}"),
            "per_work_us": float(f"{per_work:.5g}"),
            **_residual(fitted.factor),
        },
    }


def _residual(factor: PrefillFactor | None) -> Json:
    if factor is None:
        return {}
    rows = [[round(value, 4) for value in row] for row in factor.factor.tolist()]
    axes = {"tokens": _whole(factor.tokens), "chunks": _whole(factor.chunks)}
    return {RESIDUAL: axes | {"factor": rows}}


def _whole(values: Floats) -> list[int]:
    return [int(value) for value in values.tolist()]


def _us(seconds: Floats) -> list[float]:
    return [round(value * 1e6, 2) for value in seconds.tolist()]


def layout(value: object, indent: str = "") -> str:
    """Return JSON with objects and lists of lists over several lines, and lists of numbers on one."""
    deeper = indent + " "
    if isinstance(value, dict) and value:
        parts = [f"{json.dumps(key)}: {layout(item, deeper)}" for key, item in value.items()]
        return "{\n" + ",\n".join(deeper + part for part in parts) + f"\n{indent}}}"
    if isinstance(value, list) and any(isinstance(item, dict | list | str) for item in value):
        parts = [layout(item, deeper) for item in value]
        return "[\n" + ",\n".join(deeper + part for part in parts) + f"\n{indent}]"
    return json.dumps(value)
