"""What a benchmark's result file tells, whichever tool wrote it: aggregates under vLLM's keys, and requests.

Nothing is filled in here: what a file does not have is absent. Names are mapped by meaning, not by spelling:
AIPerf's and GuideLLM's "inter token latency" is one mean a request, which vLLM calls TPOT.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from simulator.metrics.tables import COMPLETED, Floats, Ints, RequestTable


@dataclass(frozen=True)
class MeasuredRows:
    """One row a request that was sent; times in seconds, NaN where the file does not have them.

    `gaps` are the times between tokens of the completed requests, pooled; None if the file has none.
    """

    ids: list[str]
    arrival: Floats
    num_prompt: Ints
    num_output: Ints
    ttft: Floats
    e2e: Floats
    status: Ints
    reason: list[str]
    gaps: Floats | None = None

    def __len__(self) -> int:
        return len(self.arrival)

    @property
    def has_times(self) -> bool:
        """Whether it is known when each request was sent."""
        return bool(len(self)) and not np.isnan(self.arrival).any()

    def in_order(self) -> MeasuredRows:
        """Return the rows in order of arrival, which runs from 0; as they are if that is not known."""
        if not self.has_times:
            return self
        found = self.take(np.argsort(self.arrival, kind="stable"))
        return replace(found, arrival=found.arrival - found.arrival[0])

    def take(self, rows: Ints) -> MeasuredRows:
        """Put row `rows[i]` at row i; the gaps are kept as they are, since they are pooled."""
        return replace(
            self,
            ids=[self.ids[i] for i in rows.tolist()],
            arrival=self.arrival[rows],
            num_prompt=self.num_prompt[rows],
            num_output=self.num_output[rows],
            ttft=self.ttft[rows],
            e2e=self.e2e[rows],
            status=self.status[rows],
            reason=[self.reason[i] for i in rows.tolist()],
        )

    def table(self) -> RequestTable:
        """Return the rows as a run's table; what only a scheduler knows is NaN."""
        unknown = np.full(len(self), np.nan)
        arrival = np.zeros(len(self)) if not self.has_times else self.arrival
        done = self.status == COMPLETED
        return RequestTable(
            id=self.ids,
            arrival=arrival,
            num_prompt=self.num_prompt,
            num_output=self.num_output,
            status=self.status,
            reason=self.reason,
            scheduled=unknown,
            first_token=np.where(done, arrival + self.ttft, np.nan),
            finish=arrival + self.e2e,
            num_cached=unknown,  # counts that nobody noted
            num_preemptions=unknown,
            priority=unknown,
            tenant=[""] * len(self),
        )


@dataclass(frozen=True)
class Told:
    """One result as its file tells it: `stated` under vLLM's keys, `rows` if it has requests.

    `is_complete` says whether the rows are all requests behind the aggregates; `tool` is the program's name,
    `backend` the server it measured, as far as the file says.
    """

    tool: str
    file: str
    backend: str
    stated: dict[str, object]
    rows: MeasuredRows | None = None
    is_complete: bool = True
    notes: tuple[str, ...] = field(default=())
