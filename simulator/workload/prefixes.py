"""Give requests prefixes that others have too, such as the system prompts of many assistants.

Each request draws one of a few prefixes by weight, and its own prompt follows it. What it draws depends on
nothing else (the independent reference model, Coffman and Denning, 1973). Left out: fashions, and prefixes
that are extensions of one another; turns of a session extend each other in `sessions`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from simulator.errors import ConfigError
from simulator.workload.trace_blocks import TraceBlocks
from simulator.workload.workload import Floats, Ints, Workload


def with_prefixes(
    workload: Workload,
    rng: np.random.Generator,
    lengths: Sequence[int],
    weights: Sequence[float],
    block_size: int = 16,
) -> Workload:
    """Put one of the prefixes, `lengths` tokens long, before each prompt, drawn in proportion to `weights`.

    What is shared is known by blocks of `block_size` tokens: of a prefix only its full blocks. ConfigError
    says which argument cannot be used, or that the workload has prefix ids already.
    """
    tokens, shares = np.asarray(lengths, np.int64), np.asarray(weights, np.float64)
    _check(workload, tokens, shares, block_size)
    which = rng.choice(len(tokens), len(workload), p=shares / shares.sum())
    shared = tokens // block_size
    first = np.cumsum(shared) - shared
    num_prompt = workload.num_prompt + tokens[which]
    own = -(-num_prompt // block_size) - shared[which]  # >= 1: a prompt has a token of its own
    fresh = int(shared.sum()) + np.cumsum(own) - own
    lo = np.stack([first[which], fresh], axis=1)
    hi = lo + np.stack([shared[which], own], axis=1)
    is_run = hi > lo
    offsets = np.concatenate([[0], np.cumsum(is_run.sum(axis=1))])
    blocks = TraceBlocks(lo[is_run], hi[is_run], offsets, block_size)
    source = f"{workload.source}, one of {len(tokens)} prefixes each"
    return replace(workload, num_prompt=num_prompt, blocks=blocks, source=source)


def _check(workload: Workload, tokens: Ints, shares: Floats, block_size: int) -> None:
    if workload.blocks is not None:
        raise ConfigError(f"with_prefixes: {workload.source or 'the workload'} has prefix ids already")
    if block_size < 1:
        raise ConfigError(f"with_prefixes: block_size must be >= 1, got {block_size}")
    if tokens.ndim != 1 or tokens.shape != shares.shape or not len(tokens) or (tokens < 0).any():
        raise ConfigError("with_prefixes: lengths must be >= 0 tokens, as many as weights, at least one")
    if not (np.isfinite(shares).all() and (shares >= 0).all() and shares.sum() > 0):
        raise ConfigError("with_prefixes: weights must be >= 0 and finite, and not all 0")
