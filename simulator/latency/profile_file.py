"""Read profiles: JSON files that hold what was measured on one GPU, with a section per model.

Times in a file are microseconds per layer, as its keys say (`layer_us`); `calibrate fit` writes it. A file
is data from outside: it is parsed and checked field by field, never executed, and a time under what the
GPU's peaks allow, or a hundred times above, is refused as a mistaken unit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from simulator.errors import InputError, suggest
from simulator.latency.base import Floats
from simulator.latency.checked_json import Section, read_json
from simulator.latency.graphs import padded
from simulator.latency.grid import DecodeGrid
from simulator.latency.mixed_file import read_mixed
from simulator.latency.prefill_file import read_prefill
from simulator.latency.profile import MAX_ROWS, MAX_TOKENS, Errors, Host, Profile
from simulator.latency.reach import Reach
from simulator.latency.roofline import A100, Efficiency, Roofline
from simulator.specs.hardware import Hardware
from simulator.specs.models import Model, dtype_bits

SCHEMA = 1
SHIPPED = Path(__file__).resolve().parents[1] / "profiles"
SHAPE = ("num_layers", "hidden_size", "num_heads", "num_kv_heads", "head_dim", "intermediate_size")
US = 1e-6
UNVERIFIED = "mixed steps: additive, unverified; chunks after a prefix: unverified"
"""Neither was measured on A100 by the engine that the profile is fitted from. Vidur's chunks (32/4 heads, an
older kernel) take about twice the prediction even without a prefix, and agree in shape with attention that
does not skip the masked half, s * (kv + s): no test of a current kernel."""


def read_profile(path: Path) -> Section:
    """Read a profile file and check its schema; InputError in one line for anything else."""
    file = read_json(path, "a profile")
    schema = file.integer("schema")
    if schema != SCHEMA:
        why = "newer than" if schema > SCHEMA else "not"
        raise InputError(f"{path}: schema {schema} is {why} {SCHEMA}, which this version of servetwin reads")
    return file


def shipped_profiles() -> dict[str, Path]:
    """Return the profiles that come with servetwin, by name."""
    return {path.stem: path for path in sorted(SHIPPED.glob("*.json"))}


def describe_profile(path: Path) -> str:
    """Return one line for a listing: GPU, models, date."""
    file = read_profile(path)
    degrees: dict[str, list[str]] = {}
    for section in _section_names(file):
        name, _, tp = section.partition("/tp")
        degrees.setdefault(name, []).append(tp or "1")
    models = (f"{name} (TP {', '.join(tps)})" if tps != ["1"] else name for name, tps in degrees.items())
    return f"{file.text('hardware')}, {file.text('date')}: {', '.join(models)}"


def load_profile(source: str | Path, model: str | Model) -> Profile:
    """Load what a profile says of one model. `source` is a shipped profile's name or a path.

    A `Model` is found by its shape, whatever its name; a name must be in the file.
    """
    return profile_of(read_profile(profile_path_of(source)), model)


def profile_path_of(source: str | Path) -> Path:
    """Return the file of a shipped profile's name or of a path; InputError for what is neither."""
    path = shipped_profiles().get(str(source), Path(source))
    if path.suffix != ".json":
        raise InputError(
            f"profile {str(source)[:80]!r}: not a .json file{suggest(source, shipped_profiles())}"
        )
    return path


def profile_of(file: Section, model: str | Model) -> Profile:
    """Build one model's profile from a file that was read; InputError names the field that is wrong."""
    names = _section_names(file)
    if isinstance(model, str):
        if model not in names:
            raise InputError(f"{file.place}: holds no model {model[:60]!r}{suggest(model, names)}")
        return _profile(file, model, names[model])
    for name in sorted(names, key=lambda name: name != model.name):
        if same_shape(_model(file, names[name]), model):
            return _profile(file, name, names[name])
    raise InputError(
        f"{file.place}: holds no model of the shape of {model.name!r}; it holds {', '.join(names)}"
    )


def best_profile(gpu: Hardware, model: Model) -> Profile | None:
    """Return the shipped profile that was measured on this GPU for a model of this shape, if any."""
    path = best_profile_path(gpu, model)
    return None if path is None else load_profile(path, model)


def best_profile_path(gpu: Hardware, model: Model) -> Path | None:
    """Return the file of `best_profile`."""
    for path in shipped_profiles().values():
        file = read_profile(path)
        if file.text("hardware") != gpu.name:
            continue
        if any(same_shape(_model(file, target), model) for target in _section_names(file).values()):
            return path
    return None


def same_shape(measured: Model, asked: Model) -> bool:
    """Say whether times measured for one model hold for another: same matrices, same dtype, no extras."""
    plain = asked.moe is None and asked.mla is None and asked.quantization is None
    plain = plain and dtype_bits(asked.dtype) == dtype_bits(measured.dtype) and asked.gated_mlp
    plain = plain and asked.sliding_window is None
    return plain and all(getattr(measured, f) == getattr(asked, f) for f in (*SHAPE, "vocab_size"))


def _section_names(file: Section) -> dict[str, str]:
    """Return model names and the section that holds each; an alias shares another's."""
    names = {name: name for name in file.section("models").fields}
    aliases = Section(file.fields.get("aliases", {}), f"{file.place}: aliases")
    for alias in aliases.fields:
        target = aliases.text(alias)
        if target not in names:
            raise InputError(f"{aliases.place}: {alias[:60]!r} points to no model{suggest(target, names)}")
        names[alias] = target
    return names


def _model(file: Section, name: str) -> Model:
    shape = file.section("models").section(name).section("shape")
    layers, hidden, heads, kv_heads, head_dim, inner = (shape.integer(field) for field in SHAPE)
    vocab = shape.integer("vocab_size")
    dtype = shape.text("dtype") if "dtype" in shape.fields else "bfloat16"
    try:
        return Model(name, layers, hidden, heads, kv_heads, head_dim, inner, vocab, MAX_TOKENS, dtype)
    except ValueError as error:
        raise InputError(f"{shape.place}: {error}") from None


def _profile(file: Section, name: str, target: str) -> Profile:
    section = file.section("models").section(target)
    roofline = _roofline(file, section, _model(file, target))
    host = file.section("host")
    dense = _dense(file, section, roofline)
    rows, head = _polyline(section.section("head"), "rows", "us")
    heads = continued(np.arange(MAX_ROWS + 1), rows, head, roofline.head)
    heads[0] = 0.0  # no sampled row, no head
    decode, reach_kv = _decode(section, roofline)
    prefill = read_prefill(section, roofline)
    error = section.section("held_out_error").number("step", 0, 10)
    profile = Profile(
        name=f"{Path(file.place).stem}: {name}",
        provenance=_provenance(file, section, host, error),
        error=error,
        host=Host(host.number("per_step_us") * US, host.number("per_seq_us") * US),
        dense=dense,
        head=heads,
        decode=decode,
        prefill=prefill.terms,
        prefill_factor=prefill.factor,
        roofline=roofline,
        reach=Reach(
            section.section("layer").numbers("tokens")[-1], rows[-1], prefill.longest, decode.batch, reach_kv
        ),
        errors=_errors(file, section),
        notes=tuple(section.texts("notes")),
        kernels=_kernels(file),
        mixed=read_mixed(section, roofline.model.num_layers),
    )
    if "gpu_scale" in file.fields:  # written by `calibrate tune`
        profile = profile.with_gpu_scale(file.number("gpu_scale", 0.1, 10))
    _check_physics(profile, section.place)
    return profile


def _kernels(file: Section) -> str | None:
    """Return whose kernels were timed: what the file says, else its sources; None if it names neither."""
    if "kernels" in file.fields:
        return file.text("kernels")
    sources = file.fields.get("sources")
    names = (
        [Section(each, f"{file.place}: sources").text("name") for each in sources]
        if isinstance(sources, list)
        else []
    )
    return ", ".join(names) or None


def _roofline(file: Section, section: Section, model: Model) -> Roofline:
    peaks, fitted = file.section("peaks"), file.section("efficiency")
    given = {name: fitted.number(name) for name in A100._fields if name in fitted.fields}
    efficiency = Efficiency(**{**A100._asdict(), **given})
    size = section.number("element_bytes", 0.25, 8) if "element_bytes" in section.fields else 2.0
    flops, bandwidth = peaks.number("flops", 1), peaks.number("hbm_bandwidth", 1)
    return Roofline(flops, bandwidth, model, size, size, efficiency)


def _polyline(section: Section, key: str, value: str) -> tuple[Floats, Floats]:
    at = section.numbers(key, rising=True)
    return at, section.numbers(value, len(at)) * US


def _dense(file: Section, section: Section, roofline: Roofline) -> Floats:
    """Return the seconds of all layers by tokens: between knots a line, beyond them the roofline."""
    knots, layer = _polyline(section.section("layer"), "tokens", "us")
    graphs = file.section("graphs")
    sizes = [int(size) for size in graphs.numbers("sizes", rising=True)]
    tokens = np.arange(MAX_TOKENS + 1)
    computed = padded(tokens, sizes)
    seconds = continued(computed, knots, layer, roofline.layer)
    eager = np.where(tokens > sizes[-1], graphs.number("eager_us") * US, 0.0)
    once: Floats = roofline.once(computed)
    if "once" in section.fields:  # measured: what comes once a step, before and after the layers
        terms = section.section("once")
        once = np.asarray(US * (terms.number("constant_us") + terms.number("per_token_us") * computed))
    return roofline.model.num_layers * seconds + once + eager


def continued(
    at: NDArray[np.int64], knots: Floats, seconds: Floats, formula: Callable[[ArrayLike], Floats]
) -> Floats:
    """Interpolate between knots, and go on beyond them by the roofline's increments.

    They are scaled so that the roofline's rise over the last doubling is the measured one, which keeps an
    affine law affine; but by no more than a factor of two from its level, where noise would decide.
    """
    last, half = knots[-1], max(knots[0], knots[-1] / 2)
    level = seconds[-1] / formula(last)
    rise = seconds[-1] - np.interp(half, knots, seconds)
    gain = np.clip(rise / (formula(last) - formula(half)), level / 2, level * 2)
    beyond = seconds[-1] + gain * (formula(np.maximum(at, last)) - formula(last))
    return np.where(at > last, beyond, np.interp(at, knots, seconds))


def _decode(section: Section, roofline: Roofline) -> tuple[DecodeGrid, Floats]:
    grid = section.section("decode_attention")
    batch, kv = grid.numbers("batch", rising=True), grid.numbers("kv", rising=True)
    layer = grid.table("us", len(batch), len(kv)) * US
    if np.any(np.diff(layer, axis=1) < 0):
        raise InputError(f"{grid.place}: us must not fall along kv")
    return DecodeGrid(batch, kv, roofline.model.num_layers * layer), grid.numbers("longest_kv", len(batch))


def _errors(file: Section, section: Section) -> Errors:
    held_out, host = section.section("held_out_error"), file.section("host")
    between = file.number("source_disagreement", 0, 10)
    dense, decode, prefill = (
        math.hypot(held_out.number(term, 0, 10), between) for term in ("dense", "decode", "prefill")
    )
    return Errors(dense, decode, prefill, host.number("relative_error", 0, 10))


def _provenance(file: Section, section: Section, host: Section, error: float) -> str:
    return (
        f"{Path(file.place).name}: {file.text('summary')}; held-out error of a step {100 * error:.1f} %; "
        f"{file.text('accuracy')}; host {host.number('per_step_us') / 1e3:g} ms + "
        f"{host.number('per_seq_us'):g} us a sequence, {host.text('kind')}; {_mixed_steps(file, section)}"
    )


def _mixed_steps(file: Section, section: Section) -> str:
    """Return what is known of mixed steps and of chunks after a prefix."""
    if "mixed_steps" in file.fields:
        return file.text("mixed_steps")
    if "mixed_attention" not in section.fields:
        return UNVERIFIED
    error = section.section("held_out_error").number("mixed", 0, 10)
    return f"mixed steps: measured, held-out error of their attention {100 * error:.1f} %"


def _check_physics(profile: Profile, place: str) -> None:
    """Refuse a profile that beats the GPU's peaks, or whose smallest step takes 100 times as long."""
    roofline, grid = profile.roofline, profile.decode
    model = roofline.model
    weights = model.num_layers * sum(n * k for n, k in model.layer_gemms())
    tokens = np.arange(1, len(profile.dense))
    memory = weights * roofline.weight_bytes / roofline.bandwidth
    compute = 2 * weights * tokens / roofline.flops
    if np.any(profile.dense[1:] < 0.99 * np.maximum(memory, compute)) or profile.dense[1] > 100 * memory:
        raise InputError(
            f"{place}: layer: one token takes {profile.dense[1] * 1e3:.3g} ms, where the weights "
            f"alone take {memory * 1e3:.3g} ms at the peak: under physics or 100 times above; "
            "is the unit microseconds?"
        )
    per_token = model.num_layers * roofline.kv_token_bytes / roofline.bandwidth
    if np.any(grid.seconds < 0.99 * per_token * grid.batch[:, None] * grid.kv):
        raise InputError(f"{place}: decode_attention: us beats the peak bandwidth; is the unit microseconds?")
