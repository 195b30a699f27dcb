"""The timings that `servetwin gpu measure` wrote: rows of one engine, what its settings say, what is wrong.

A row of layered work has `seconds` a layer and `fixed` once a step, both from passes of few and of many
layers: fixed + layers * seconds. That difference amplifies noise, so the longer pass is what is believed
here (see `whole`). Left out: rows of other engines in the same files, and tables of bare kernels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from calibration.checks import BEATS, DEVICES, Rejected, describe, suspect_the_unit
from calibration.timings import Timing
from simulator.errors import ConfigError, InputError, suggest
from simulator.latency.checked_json import Section, read_json
from simulator.latency.profile import MAX_TOKENS
from simulator.latency.profile_file import SHAPE
from simulator.specs.hardware import Hardware
from simulator.specs.models import Model, dtype_bits
from simulator.specs.shipped_models import MODELS

LAYERED = ("dense", "decode_attention", "prefill_attention", "mixed_attention", "skewed_attention")
MANY = 4  # layers of the longer pass, where no settings say otherwise
TYPES = ("float32", "bfloat16", "float16")
CPU_PEAKS = (512e9, 2e11)
"""FLOP/s and bytes/s that no core exceeds: two AVX-512 units of 16 fp32 at 4 GHz do 256 GFLOP/s, and the
inner caches give some 200 GB/s. `cpu-1core` has typical figures instead, which real rows do beat."""


class Settings(NamedTuple):
    """What the file beside the timings says of how they were made; all empty without it."""

    shape: dict[str, int]
    model: str = ""
    torch: str = ""
    threads: int | None = None
    latency: str = ""
    many: int = MANY
    padded_to: tuple[int, ...] = ()
    padded_beyond: int = 0
    date: str = ""
    drift: float | None = None
    notes: tuple[str, ...] = ()


class EngineRows(NamedTuple):
    """What passed, by operation, one row per configuration; what did not, by reason."""

    source: str
    device: str
    settings: Settings
    rows: dict[str, list[Timing]]
    rejected: list[Rejected]
    read: int

    def of(self, op: str) -> list[Timing]:
        """Return the rows of one operation, the smallest first."""
        return sorted(self.rows.get(op, []), key=lambda t: t[4:])

    @property
    def on_cpu(self) -> bool:
        return "/cpu/" in self.source


def settings_beside(path: Path) -> Settings:
    """Read `x.settings.json` beside `x.csv`; empty settings where there is none."""
    beside = path.with_suffix(".settings.json")
    if not beside.exists():
        return Settings({})
    file = read_json(beside, "settings of timings")
    told = file.section("settings")
    layers, threads = told.fields.get("layers"), told.fields.get("threads")
    session = _last_session(file)
    return Settings(
        shape={name: told.integer(name) for name in (*SHAPE, "vocab_size") if name in told.fields},
        model=_text(told, "model"),
        torch=_text(told, "torch"),
        threads=threads if isinstance(threads, int) else None,
        latency=_text(told, "latency"),
        many=int(told.numbers("layers", rising=True)[-1]) if layers else MANY,
        padded_to=tuple(int(x) for x in told.numbers("padded_to")) if "padded_to" in told.fields else (),
        padded_beyond=told.integer("padded_beyond") if "padded_beyond" in told.fields else 0,
        date=_text(session, "ended")[:10],
        drift=session.number("drift", -1) if session.fields.get("drift") is not None else None,
        notes=tuple(session.texts("notes")) if "notes" in session.fields else (),
    )


def _last_session(file: Section) -> Section:
    """Return the last session that ended; drift is the worst of all of them."""
    sessions = file.fields.get("sessions")
    found = [each for each in sessions if isinstance(each, dict)] if isinstance(sessions, list) else []
    ended = [each for each in found if each.get("ended")]
    place = f"{file.place}: sessions"
    if not ended:
        return Section({}, place)
    drifts = [each["drift"] for each in ended if isinstance(each.get("drift"), int | float)]
    return Section({**ended[-1], "drift": max(drifts, key=abs, default=None)}, place)


def _text(section: Section, key: str) -> str:
    return section.text(key) if section.fields.get(key) is not None else ""


def engine_rows(
    timings: Sequence[Timing], hardware: Hardware, settings: Settings, model: Model, source: str
) -> EngineRows:
    """Sort the rows of one engine by operation, and drop what is impossible; InputError if none is left."""
    groups: dict[Timing, list[Timing]] = {}
    reasons: Counter[str] = Counter()
    impossible: Counter[str] = Counter()
    examples: dict[str, str] = {}
    for t in timings:
        reason = _fault(t, hardware, model, source)
        if reason:
            reasons[reason] += 1
            impossible[t.op] += reason.startswith(BEATS)
            examples.setdefault(reason, describe(t))
        else:
            groups.setdefault(t._replace(seconds=0.0, fixed=0.0), []).append(t)
    suspect_the_unit(groups, impossible)
    rows: dict[str, list[Timing]] = {}
    for key, alike in groups.items():
        seconds, fixed = (median(getattr(t, name) for t in alike) for name in ("seconds", "fixed"))
        rows.setdefault(key.op, []).append(key._replace(seconds=seconds, fixed=fixed))
    rejected = [Rejected(reason, count, examples[reason]) for reason, count in sorted(reasons.items())]
    repeats = sum(len(alike) - 1 for alike in groups.values())
    if repeats:
        rejected.append(Rejected("repeats its configuration (the median is kept)", repeats, ""))
    if not groups:
        why = "; ".join(f"{count} rows {reason}" for reason, count in sorted(reasons.items()))
        raise InputError(f"nothing to fit for {hardware.name}: {why}; the rows say {timings[0].device!r}")
    return EngineRows(source, next(iter(groups)).device, settings, rows, rejected, len(timings))


def source_of(timings: Sequence[Timing], chosen: str | None) -> str:
    """Return the engine whose rows are fitted: the chosen one, or the only one that has dense rows."""
    known = sorted({t.source for t in timings if t.op == "dense"})
    if chosen is None and len(known) > 1:
        raise ConfigError(f"the timings are of {', '.join(known)}: choose one with --source dense=NAME")
    found = [name for name in known if chosen in (None, name.lower())]
    if not found:
        raise ConfigError(f"--source dense={str(chosen)[:60]}: no such rows{suggest(str(chosen), known)}")
    return found[0]


def _fault(t: Timing, hardware: Hardware, model: Model, source: str) -> str:
    names = (hardware.name, *DEVICES.get(hardware.name, ()))
    if not any(t.device.startswith(f"{name}:") or t.device.endswith(name) for name in names):
        return f"measured on another device than {hardware.name}"
    if t.source != source:
        return f"from another engine than {source}"
    flops, bandwidth = peaks_of(hardware)
    work, moved = _work(t, model, element_size(source))
    if t.seconds + t.fixed < work / flops:
        return f"{BEATS} of {flops / 1e12:g} TFLOP/s"
    if t.seconds + t.fixed < moved / bandwidth:
        return f"{BEATS} of {bandwidth / 1e12:g} TB/s"
    return ""


def _work(t: Timing, model: Model, size: float) -> tuple[float, float]:
    """Return the FLOPs that a row must do and the bytes that it must move; a layer's, or a whole step's."""
    weights = sum(n * k for n, k in model.layer_gemms())
    if t.op == "dense":
        return 2.0 * t.m * weights, size * weights
    if t.op in ("step", "graph_step"):
        return 2.0 * t.m * weights * model.num_layers, size * weights * model.num_layers
    if t.op == "head":
        n, k = model.head_gemm()
        return 2.0 * t.batch * n * k, size * n * k
    if t.op == "decode_attention":
        return 0.0, 2.0 * size * t.batch * t.kv * t.kv_heads * model.head_dim
    if t.op == "prefill_attention":
        return 4.0 * t.batch * t.tokens * (t.kv + t.tokens / 2) * t.heads * model.head_dim, 0.0
    return 0.0, 0.0


def element_size(source: str) -> float:
    """Return the bytes of a number that these kernels read, by their name."""
    return next((dtype_bits(name) / 8 for name in TYPES if name in source), 2.0)


def peaks_of(hardware: Hardware) -> tuple[float, float]:
    """Return the FLOP/s and bytes/s that no row may beat."""
    return CPU_PEAKS if hardware.name.startswith("cpu") else (hardware.flops, hardware.hbm_bandwidth)


def measured_model(settings: Settings, wanted: Sequence[Model], source: str) -> Model:
    """Return the model that was measured; ConfigError where it is another than the one that is asked for."""
    shape, name = settings.shape, settings.model
    if len(wanted) > 1 or (not wanted and not shape):
        raise ConfigError(f"--model: name the one model that was measured{f', {name}' if name else ''}")
    model = wanted[0] if wanted else MODELS.get(name)
    if model is None:
        dtype = next((dtype for dtype in TYPES if dtype in source), "bfloat16")
        layers, hidden, heads, kv_heads, head_dim, inner = (shape[field] for field in SHAPE)
        vocab = shape["vocab_size"]
        model = Model(
            Path(name).stem, layers, hidden, heads, kv_heads, head_dim, inner, vocab, MAX_TOKENS, dtype
        )
    for field, value in shape.items():
        own = getattr(model, field)
        if own != value:
            raise ConfigError(f"--model {model.name}: timings of {name}, {field} {value}, not {own}")
    return model


def whole(rows: Sequence[Timing], settings: Settings, layers: int, per_token: float = 0.0) -> list[Timing]:
    """Return the rows with `seconds` of all layers, and `fixed` the part of it that comes once a step.

    The once is the median over the rows, plus `per_token` for each of their tokens, since a row's own is a
    difference of two long passes; the layers are what the longer pass took beside it.
    """
    if not rows:
        return []
    constant = max(median(t.fixed - per_token * t.m for t in rows), 0.0)
    found = []
    for t in rows:
        longer = t.fixed + settings.many * t.seconds
        once = min(constant + per_token * t.m, longer / 2)
        layer = (longer - once) / settings.many
        found.append(t._replace(seconds=once + layers * layer, fixed=once))
    return found
