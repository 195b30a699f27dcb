"""What speculative decoding proposed and what came of it, in a run."""

from __future__ import annotations

from array import array
from collections import Counter

import numpy as np

from simulator.batch import ONE_TOKEN, Batch, StepResult
from simulator.metrics.tables import Ints, StepTable


class Verifications:
    """Collect them; a draft is one verification, and placeholders (rule 3.17) are none."""

    def __init__(self) -> None:
        self._accepted: Counter[int] = Counter()  # accepted drafts -> verifications
        self._drafted: Counter[int] = Counter()  # verified drafts -> verifications
        self._more: Counter[int] = Counter()  # request -> tokens beyond the first of each step
        self._steps = array("q")  # (step, draft rows, tokens beyond the first of each) one after the other

    def learnt(self, batch: Batch, result: StepResult, step: int) -> None:
        """Note what a step brought, before the scheduler learns it."""
        sampled, total = result.sampled or {}, 0
        for chunk in batch.chunks:
            if not chunk.samples:
                continue
            seq = chunk.seq
            num_tokens, num_accepted = sampled.get(seq, ONE_TOKEN)
            if chunk.is_decode and chunk.num_draft:
                self._drafted[chunk.num_draft] += 1
                self._accepted[num_accepted] += 1
            more = min(num_tokens, seq.limit - seq.num_output) - 1
            if more:
                self._more[seq.index] += more
                total += more
        if batch.num_drafts:
            self._steps.extend((step, batch.num_drafts, total))

    def more_output(self, num_requests: int) -> Ints:
        """Return the tokens of each request beyond one in every step that gave it any."""
        found = np.zeros(num_requests, np.int64)
        for index, n in self._more.items():
            found[index] = n
        return found

    def lose(self, index: int) -> None:
        """Forget what a request got that starts over elsewhere."""
        self._more.pop(index, None)

    def add_to(self, steps: StepTable) -> None:
        """Put the drafts and accepted tokens of each step into the table of those that have ended."""
        step, drafted, accepted = np.asarray(self._steps, dtype=np.int64).reshape(-1, 3).T
        steps.draft_tokens[step] = drafted
        steps.accepted_tokens[step] = accepted
        steps.num_tokens += steps.draft_tokens

    def join(self, other: Verifications) -> None:
        """Add another replica's drafts and what became of them."""
        self._drafted.update(other._drafted)
        self._accepted.update(other._accepted)

    def summary(self) -> dict[str, object]:
        """Return vLLM's keys; rates are null where nothing was drafted.

        `acceptance_rate` is in percent, `acceptance_length` counts the token that the model adds, and the
        rates by position are shares of all drafts. Accepted tokens beyond an answer's end count.
        """
        num_drafts = sum(self._drafted.values())
        drafted = sum(n * times for n, times in self._drafted.items())
        accepted = sum(n * times for n, times in self._accepted.items())
        longest = max(self._drafted, default=0)
        reached = [sum(t for n, t in self._accepted.items() if n > i) for i in range(longest)]
        return {
            "spec_decode_acceptance_rate": 100 * accepted / drafted if drafted else None,
            "spec_decode_acceptance_length": 1 + accepted / num_drafts if num_drafts else None,
            "spec_decode_num_drafts": num_drafts,
            "spec_decode_draft_tokens": drafted,
            "spec_decode_accepted_tokens": accepted,
            "spec_decode_per_position_acceptance_rates": [n / num_drafts for n in reached],
        }
