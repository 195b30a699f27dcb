"""The latency model of a tensor-parallel group: the profile of one rank, and what its ranks tell each other.

All ranks are alike and a step ends when all are done, so a group takes what one rank takes, plus
communication. A rank is found in a profile by its shape, as any model is. Left out: ranks that run apart,
the worker processes' own host time.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from simulator.latency.all_reduce import AllReduce, all_reduce_of, estimated
from simulator.latency.estimate import grouped
from simulator.latency.profile import Profile
from simulator.latency.profile_file import (
    best_profile,
    load_profile,
    profile_path_of,
    read_profile,
    shipped_profiles,
)
from simulator.latency.quantised import quantised
from simulator.specs.hardware import Hardware
from simulator.specs.models import Model
from simulator.specs.ranks import rank_of


def group_profile(
    hardware: Hardware,
    model: Model,
    tensor_parallel_size: int,
    source: str | Path | None = None,
    kv_dtype: str = "auto",
) -> Profile | None:
    """Return a model's profile on a group: of the file `source`, else the shipped one, else None.

    Profiles are of plain models: quantised weights and another KV type are derived from them (`quantised`).
    """
    rank = plain_rank(model, tensor_parallel_size)
    profile = best_profile(hardware, rank) if source is None else load_profile(source, rank)
    if profile is None:
        return None
    profile = quantised(profile, hardware, rank_of(model, tensor_parallel_size), kv_dtype)
    if tensor_parallel_size == 1:
        return profile
    return grouped(profile, _all_reduce(hardware, tensor_parallel_size, source))


def pair_of(hardware: Hardware, source: str | Path | None = None) -> AllReduce:
    """Return the all-reduce of two linked GPUs, found as a group's is."""
    return _all_reduce(hardware, 2, source)


def plain_rank(model: Model, tensor_parallel_size: int) -> Model:
    """Return one rank of a model as profiles know it: without quantisation."""
    return replace(rank_of(model, tensor_parallel_size), quantization=None)


def _all_reduce(hardware: Hardware, gpus: int, source: str | Path | None) -> AllReduce:
    """Return the all-reduce of the profile's file, else of this GPU's shipped one, else an estimate."""
    if source is not None:
        files = [read_profile(profile_path_of(source))]
    else:
        shipped = (read_profile(path) for path in shipped_profiles().values())
        files = [file for file in shipped if file.text("hardware") == hardware.name]
    found = (all_reduce_of(file, gpus) for file in files)
    return next((each for each in found if each is not None), None) or estimated(hardware, gpus)
