"""Orders that share the server fairly among tenants, by charging each for the tokens it is served.

Each counts in tokens per weight, so a tenant of weight 2 gets twice the service of one of weight 1 while both
have work waiting. Inside a tenant requests go in order of arrival (`by_tenant`: only the oldest of each is
asked for its key).
"""

from __future__ import annotations

from typing import Any

from simulator.request import Sequence
from simulator.schedulers.context import Context


class VirtualCounters:
    """Least served tenant first, by virtual token counters (VTC; Sheng et al., OSDI 2024, algorithm 2).

    A tenant that comes back after a pause starts at the smallest counter of those that wait: what it did not
    use is not saved up. Of equals, whose last turn is longest ago.
    """

    by_tenant = True
    prompt_cost, output_cost = 1.0, 2.0  # a prompt and an output token; the paper's weights

    def __init__(self) -> None:
        self._counters: dict[str, float] = {}
        self._weights: dict[str, float] = {}
        self._last = ""  # tenant that left the queue last
        self._turns: dict[str, int] = {}  # number of each tenant's last turn

    def joined(self, seq: Sequence, ctx: Context) -> None:
        """Lift the counter of a tenant that had nothing waiting."""
        tenant, counters = seq.tenant, self._counters
        self._weights[tenant] = ctx.weight(tenant)
        waiting = ctx.waiting_tenants
        if tenant not in waiting:
            others = waiting or {self._last}
            lifted = min(counters.get(other, 0.0) for other in others)
            counters[tenant] = max(counters.get(tenant, 0.0), lifted)

    def key(self, seq: Sequence, ctx: Context) -> Any:
        return self._counters.get(seq.tenant, 0.0), self._turns.get(seq.tenant, 0)

    def served(self, seq: Sequence, n: int) -> None:
        """Charge a tenant for n tokens of a sequence."""
        cost = self.output_cost if seq.is_decode else self.prompt_cost
        if not seq.is_decode:
            self._last = seq.tenant
            self._turns[seq.tenant] = max(self._turns.values(), default=0) + 1
        charged = self._counters.get(seq.tenant, 0.0)
        self._counters[seq.tenant] = charged + n * cost / self._weights.get(seq.tenant, 1.0)


class DeficitRoundRobin:
    """Tenants in turn, a quantum of tokens each a round (DRR; Shreedhar and Varghese, SIGCOMM 1995).

    A tenant is in the round whose quanta it has used up so far. What it is served beyond a quantum counts
    against the next ones (surplus round robin), since nobody knows an answer's length before.
    """

    by_tenant = True
    quantum = 2048  # tokens; far below a usual prompt, one request would use up many rounds

    def __init__(self) -> None:
        self._served: dict[str, float] = {}  # tokens per weight
        self._weights: dict[str, float] = {}
        self._places: dict[str, int] = {}  # of the tenants in the ring
        self._round = 0  # in which the last admission was made

    def joined(self, seq: Sequence, ctx: Context) -> None:
        """Let a tenant that had nothing waiting begin in the round of the day: nothing is saved up."""
        tenant = seq.tenant
        self._places.setdefault(tenant, len(self._places))
        self._weights[tenant] = ctx.weight(tenant)
        if tenant not in ctx.waiting_tenants:
            begun = float(self._round * self.quantum)
            self._served[tenant] = max(self._served.get(tenant, 0.0), begun)

    def key(self, seq: Sequence, ctx: Context) -> Any:
        return self._round_of(seq.tenant), self._places.get(seq.tenant, 0)

    def served(self, seq: Sequence, n: int) -> None:
        if not seq.is_decode:
            self._round = max(self._round, self._round_of(seq.tenant))
        self._served[seq.tenant] = self._served.get(seq.tenant, 0.0) + n / self._weights.get(seq.tenant, 1.0)

    def _round_of(self, tenant: str) -> int:
        return int(self._served.get(tenant, 0.0) // self.quantum)
