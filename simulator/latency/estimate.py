"""A profile of what nobody measured: the roofline, laid out in the same tables.

Left out: everything that `roofline` leaves out, tile edges above all.
"""

from __future__ import annotations

import numpy as np

from simulator.latency.all_reduce import AllReduce, communication, estimated
from simulator.latency.graphs import graph_sizes, padded
from simulator.latency.grid import DecodeGrid
from simulator.latency.profile import MAX_BATCH, MAX_ROWS, MAX_TOKENS, Errors, Host, Profile
from simulator.latency.quantised import ratio_errors
from simulator.latency.roofline import Roofline
from simulator.specs.hardware import Hardware
from simulator.specs.models import Model
from simulator.specs.ranks import rank_of

ASSUMED_HOST = Host(per_step=1.5e-3, per_seq=4.4e-6)
"""Assumed, not measured: 1.5 ms a step brings an A100 to the 75-80 tok/s that vLLM users report at one
stream; 4.4 us a sequence is what BLIS trained on vLLM (quoted in the latency model, section 2)."""

ESTIMATE_ERRORS = Errors(dense=0.15, decode=0.2, prefill=0.25, host=0.3)
"""Assumed for an estimate: held-out errors of the roofline forms (section 3), and sources that disagree.

On the A100 its levels are +2 to +4 %, -22 to +11 % and +10 to +20 % of the profile's (dense, decode, prefill
of three 7-8B models)."""


def estimate(
    hardware: Hardware,
    model: Model,
    kv_dtype: str = "auto",
    host: Host = ASSUMED_HOST,
    tensor_parallel_size: int = 1,
    expert_parallel: bool = False,
) -> Profile:
    """Price a model on a GPU, or on a group, from peaks and shapes; every step is marked as extrapolated."""
    model = rank_of(model, tensor_parallel_size, expert_parallel=expert_parallel)
    roofline = Roofline.of(hardware, model, kv_dtype)
    batch, kv = np.array([1.0, MAX_BATCH]), np.array([1.0, roofline.efficiency.kv_tile, 2**17])
    attention = model.num_layers * roofline.decode_attention(batch[:, None], kv[None, :])
    profile = Profile(
        name=f"roofline: {model.name} on {hardware.name}",
        provenance=f"estimated: roofline of {hardware.name} with A100 efficiencies, not measured; "
        f"host {host.per_step * 1e3:g} ms a step assumed",
        error=None,
        host=host,
        dense=roofline.dense(padded(np.arange(MAX_TOKENS + 1), graph_sizes())),
        head=roofline.head(np.arange(MAX_ROWS + 1)),
        decode=DecodeGrid(batch, kv, attention),
        prefill=roofline.prefill_attention(),
        roofline=roofline,
        reach=None,
        errors=ESTIMATE_ERRORS,
        ratio_errors=ratio_errors(model, kv_dtype),
    )
    return (
        grouped(profile, estimated(hardware, tensor_parallel_size)) if tensor_parallel_size > 1 else profile
    )


def grouped(rank: Profile, all_reduce: AllReduce) -> Profile:
    """Add a group's communication to the price list of one of its ranks."""
    tokens = padded(np.arange(len(rank.dense)), graph_sizes())
    return rank.grouped(communication(all_reduce, rank.roofline.model, tokens, np.arange(len(rank.head))))
