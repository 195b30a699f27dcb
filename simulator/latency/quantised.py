"""A profile measured at 16 bits, priced at another width of weights or KV by the ratio of two rooflines.

    dense[m]        x roofline at the new weights / roofline at the measured ones, at m tokens
    decode[b, kv]   x the same for the KV that decode attention reads, at each cell of the grid
    mixed           its part by tokens that decodes read moves as their bytes do

What a GPU reaches of its peaks, tile edges and host time stay as measured, so that a quantised and a plain
run differ in nothing else. Head and embeddings stay (vLLM's AWQ, GPTQ and FP8 leave them in 16 bits), and so
does prefill attention. Nothing about the quantised kernels is measured here: the profile's error is unknown.
Left out: unpacking weights (MARLIN, Frantar et al. 2024, hides it below some 50 rows, and loses about 10 % to
16 bits beyond 1,000), rounding activations to fp8, other attention kernels for a quantised KV cache.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from simulator.latency.graphs import graph_sizes, padded
from simulator.latency.grid import DecodeGrid
from simulator.latency.profile import Profile
from simulator.latency.roofline import Roofline
from simulator.specs.hardware import Hardware
from simulator.specs.models import Model

WEIGHTS, KV_CACHE = "weights", "kv_cache"
RATIO_ERRORS = {WEIGHTS: 0.15, KV_CACHE: 0.2}
"""Assumed: a ratio of two estimates errs as one estimate of that term does (`ESTIMATE_ERRORS`)."""
SHOWN = (1, 64, 2048)
"""Tokens of the steps whose ratio the provenance names: one stream, a batch, a full budget."""


def ratio_errors(model: Model, kv_dtype: str) -> dict[str, float]:
    """Return the relative errors that other widths of weights and KV bring, by term."""
    moved = {WEIGHTS: model.quantization is not None, KV_CACHE: kv_dtype != "auto"}
    return {term: RATIO_ERRORS[term] for term, is_moved in moved.items() if is_moved}


def quantised(profile: Profile, hardware: Hardware, model: Model, kv_dtype: str = "auto") -> Profile:
    """Return what a profile measured for the plain `model` says of its quantisation and KV type, one rank's.

    The profile itself where `model` and `kv_dtype` ask for nothing else than was measured.
    """
    errors = ratio_errors(model, kv_dtype)
    if not errors:
        return profile
    old = profile.roofline
    new = old.stored(hardware, model, kv_dtype)
    found = replace(
        profile,
        name=f"{profile.name}, derived",
        error=None,
        roofline=new,
        ratio_errors=errors,
    )
    if WEIGHTS in errors:
        found = _other_weights(found, old, new, str(model.quantization))
    if KV_CACHE in errors:
        found = _other_kv(found, old, new, kv_dtype)
    told = "; ".join(found.derived)
    return replace(found, provenance=f"{profile.provenance}; derived by rooflines, not measured: {told}")


def _other_weights(profile: Profile, old: Roofline, new: Roofline, quantization: str) -> Profile:
    tokens = padded(np.arange(len(profile.dense)), graph_sizes())
    ratio = new.dense(tokens) / old.dense(tokens)
    ratios, sizes = (
        ", ".join(texts) for texts in zip(*((f"{ratio[m]:.2f}", f"{m:,}") for m in SHOWN), strict=True)
    )
    how = f"{quantization} weights"
    if new.layer_flops is not None and new.layer_flops > new.flops:
        how += f", computed at {new.layer_flops / new.flops:.3g} times the 16-bit FLOP/s"
    return replace(
        profile,
        dense=profile.dense * ratio,
        derived=(*profile.derived, f"{how} (dense layers x {ratios} at {sizes} tokens)"),
    )


def _other_kv(profile: Profile, old: Roofline, new: Roofline, kv_dtype: str) -> Profile:
    grid = profile.decode
    batch, kv = grid.batch[:, None], grid.kv[None, :]
    ratio = new.decode_attention(batch, kv) / old.decode_attention(batch, kv)
    seconds = np.maximum.accumulate(grid.seconds * ratio, axis=1)  # a flat stretch must not fall
    bytes_read = new.kv_bytes / old.kv_bytes
    what = f"{kv_dtype} KV cache (reading the KV of decodes x {ratio.min():.2f} to {ratio.max():.2f})"
    return replace(
        profile,
        decode=DecodeGrid(grid.batch, grid.kv, seconds),
        mixed=None if profile.mixed is None else profile.mixed.with_kv(bytes_read),
        derived=(*profile.derived, what),
    )
