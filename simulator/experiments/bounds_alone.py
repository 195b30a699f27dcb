"""How long each request takes at least, whoever else is served, and when it can arrive at the earliest.

Claim: from its arrival, a request needs at least the least steps (`Prices`) in which the prompt tokens
outside its best cached prefix are computed, and then those of one token after another. The best cached prefix
is what all requests that arrived before it have in common with it, in a cache that forgets nothing (full
blocks, never the whole prompt: vLLM's rules 6.1 and 6.3). Blocks beyond it that it hits all the same were
computed after its arrival, for a request that came later, so the steps that computed them count too; and no
two tokens of a sequence come from one step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulator.engine.clients import ClientPlan
from simulator.experiments.bounds_prices import Prices
from simulator.experiments.bounds_work import between
from simulator.latency.base import Floats
from simulator.metrics.tables import Ints
from simulator.workload.trace_blocks import TraceBlocks
from simulator.workload.workload import Workload


@dataclass(frozen=True)
class Prefixes:
    """The hashed blocks of a workload's prompts, full ones only; `blocks` is None without prefix caching."""

    num_rows: int
    block_size: int
    blocks: TraceBlocks | None

    @classmethod
    def of(cls, workload: Workload, block_size: int, is_cached: bool) -> Prefixes:
        """Read a workload's prefixes as a cache with blocks of `block_size` tokens knows them."""
        if not is_cached or workload.blocks is None:
            return cls(len(workload), block_size, None)
        found = workload.blocks.ranges(workload.num_prompt, block_size)
        blocks = TraceBlocks(found.lo, found.hi, found.offsets, block_size)
        return cls(len(workload), block_size, blocks)

    def seen(self, order: Ints) -> Ints:
        """Return, per row of the workload, the leading blocks that rows before it in `order` have too."""
        found = np.zeros(self.num_rows, np.int64)
        if self.blocks is not None and len(order):
            found[order] = self.blocks.take(order).hit_blocks()
        return found

    def shared(self) -> Ints:
        """Return, per row, the leading blocks that other rows have too."""
        if self.blocks is None or not self.num_rows:
            return np.zeros(self.num_rows, np.int64)
        return self.blocks.shared_blocks()

    def hits(self, blocks: Ints, num_prompt: Ints) -> Ints:
        """Return the tokens of so many leading blocks that may hit: a prompt's last token is computed."""
        return np.minimum(blocks, (num_prompt - 1) // self.block_size) * self.block_size


@dataclass(frozen=True)
class Alone:
    """Least seconds of requests: to the first output token, and from it to the last."""

    ttft: Floats
    decode: Floats

    @classmethod
    def of(
        cls, prices: Prices, decodes: Floats, num_cached: Ints, num_prompt: Ints, num_output: Ints
    ) -> Alone:
        """Price requests that find `num_cached` tokens; the j-th output token reads prompt + j - 1 tokens.

        `decodes` are `prices.decodes` up to the longest of the requests.
        """
        last = num_prompt + num_output
        return cls(prices.prompts(num_cached, num_prompt), between(decodes, num_prompt + 1, last))

    @property
    def e2el(self) -> Floats:
        return self.ttft + self.decode


def earliest_arrivals(workload: Workload, plan: ClientPlan, e2el: Floats) -> Floats:
    """Return when each request can reach the server at the earliest, s: no client ever waits for a place.

    `e2el` are least seconds at the server, 0 for requests that may end at once. A request that follows others
    comes when each of them can be done and its client has thought.
    """
    at = workload.arrival.astype(np.float64)
    delay = np.zeros(len(at)) if plan.pre_delay is None else plan.pre_delay
    if plan.follows is None or plan.think is None:
        return at + delay
    at = at.copy()
    pairs = plan.follows[np.argsort(plan.follows[:, 1], kind="stable")]
    done = np.zeros(len(at))  # when all predecessors can be done; rows before a row are settled
    for before, row in pairs.tolist():
        done[row] = max(done[row], at[before] + delay[before] + e2el[before])
        at[row] = done[row] + plan.think[row]
    return at + delay


def places_limit(plan: ClientPlan, e2el: Floats) -> float | None:
    """Return how long clients with so many places take at least, s; None if nothing limits them.

    A request holds a place for its time at the server, `e2el` at least, and in a closed loop for the client's
    pause after it, except for the last request of each place.
    """
    if plan.max_concurrency is None:
        return None
    pauses = max(0, len(e2el) - plan.max_concurrency)
    return (float(e2el.sum()) + (plan.pause or 0.0) * pauses) / plan.max_concurrency
