"""Speculative decoding: proposals by n-gram lookup, and their exact verification.

The tokens emitted have the law of plain sampling from the target, whatever was proposed (Leviathan, Kalman
and Matias, ICML 2023, section 2.3 and appendix A.1; Chen et al., 2023, algorithm 2). All randomness comes
from (seed, position), so it does not depend on batching. The proposer is vLLM V1's prompt lookup.
Left out: trees of drafts, and acceptance rules that change the law.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpu_backend import counter_hash
from gpu_backend.sampling import SamplingParams, Stream, draw, keys_of, restrict, sample


def propose_ngram(tokens: Sequence[int] | NDArray[np.int64], max_n: int, min_n: int, k: int) -> list[int]:
    """Propose the up to k tokens that followed an earlier occurrence of the sequence's last n tokens.

    n is the largest of min_n .. max_n that occurs earlier; of its occurrences the first counts, as in vLLM,
    and it may overlap the end of the sequence. O(len) comparisons.

    >>> propose_ngram([1, 2, 3, 4, 2, 3], max_n=3, min_n=2, k=4)
    [4, 2, 3]
    """
    if not 1 <= min_n <= max_n:
        raise ValueError(f"min_n must be in 1 .. max_n, got min_n {min_n} and max_n {max_n}")
    ids = np.asarray(tokens, np.int64)
    ends = np.arange(1, len(ids))  # where an occurrence may end, exclusively
    found = 0
    while found < max_n:
        longer = ends[ends > found]
        longer = longer[ids[longer - found - 1] == ids[-found - 1]] if len(longer) else longer
        if not len(longer):
            break
        ends, found = longer, found + 1
    if found < min_n:
        return []
    proposal: list[int] = ids[ends[0] : ends[0] + k].tolist()
    return proposal


def verify(
    logits: Tensor,
    drafts: Sequence[int],
    draft_probs: Tensor | None,
    params: SamplingParams,
    position: int,
) -> list[int]:
    """Verify one sequence's drafts; see `verify_all`. Logits are (1 + drafts, vocab)."""
    return verify_all(logits, [drafts], draft_probs, [params], [position])[0]


def verify_all(
    logits: Tensor,
    drafts: Sequence[Sequence[int]],
    draft_probs: Tensor | None,
    params: Sequence[SamplingParams],
    positions: Sequence[int],
) -> list[list[int]]:
    """Return the tokens that each sequence emits: its accepted drafts and one more, 1 .. drafts + 1 of them.

    `logits` are the target's, float32: for each sequence a row per draft, that which decides about it, and
    one for the token after them all. `positions` are those of each sequence's first draft.
    `draft_probs`, (all drafts, vocab), are the distributions that the drafts were drawn from, with
    `Stream.DRAFT`; None if they are no random choice, as those of `propose_ngram`.
    """
    rows = [
        _Row(params[i], positions[i] + j, draft)
        for i, proposed in enumerate(drafts)
        for j, draft in enumerate([*proposed, None])
    ]
    if draft_probs is None or all(each.is_greedy for each in params):  # then p is 0 or 1: equal tokens pass
        return _verify_fixed(logits, drafts, rows)
    return _verify_drawn(logits, drafts, draft_probs, rows)


class _Row(NamedTuple):
    """One row of the target's logits."""

    params: SamplingParams
    position: int  # of the token that it decides about
    draft: int | None  # what is proposed there; None in the row after all drafts of a sequence


def _verify_fixed(logits: Tensor, drafts: Sequence[Sequence[int]], rows: list[_Row]) -> list[list[int]]:
    """Sample as without drafts, and stop at the first token that the draft did not foresee.

    This accepts a draft x with probability p(x) and else leaves p without x, which is the rule for q(x) = 1.
    So the tokens are those of plain decoding one by one, at any temperature.
    """
    tokens = sample(logits, [row.params for row in rows], [row.position for row in rows]).tolist()
    foreseen = [token == row.draft for token, row in zip(tokens, rows, strict=True)]
    lasts = _last_rows(drafts, foreseen)
    return [[*proposed[:n], tokens[last]] for proposed, (n, last) in zip(drafts, lasts, strict=True)]


def _verify_drawn(
    logits: Tensor, drafts: Sequence[Sequence[int]], draft_probs: Tensor, rows: list[_Row]
) -> list[list[int]]:
    """Accept a draft x with probability min(1, p(x) / q(x)); at the first failure draw from max(p - q, 0)."""
    target = restrict(logits, [row.params for row in rows])
    lasts = _last_rows(drafts, _accepted(target, draft_probs, rows))
    deciding = target[[last for _, last in lasts]]
    failed = [i for i, (_, last) in enumerate(lasts) if rows[last].draft is not None]
    if failed:
        q = draft_probs[[lasts[i].row - i for i in failed]]  # i sequences before have a row without draft
        rest = (deciding[failed].softmax(-1) - q).clamp_(min=0.0)
        some = rest.sum(-1, keepdim=True) > 0  # else p = q but for rounding
        deciding[failed] = torch.where(some, rest.log(), deciding[failed])
    ends = draw(deciding, _keys([rows[last] for _, last in lasts], Stream.TARGET, logits.device)).tolist()
    return [[*proposed[:n], end] for proposed, (n, _), end in zip(drafts, lasts, ends, strict=True)]


def _accepted(target: Tensor, draft_probs: Tensor, rows: list[_Row]) -> list[bool]:
    """Decide about the draft of each row as if those before it were accepted; False where there is none."""
    accepted = [False] * len(rows)
    tested = [r for r, row in enumerate(rows) if row.draft is not None]
    if tested:
        tokens = torch.tensor([[rows[r].draft] for r in tested], device=target.device)
        p, q = target[tested].softmax(-1).gather(1, tokens), draft_probs.gather(1, tokens)
        keys = _keys([rows[r] for r in tested], Stream.ACCEPT, target.device)
        for r, passed in zip(tested, (counter_hash.uniforms(keys, 1) * q < p)[:, 0].tolist(), strict=True):
            accepted[r] = passed
    return accepted


def _keys(rows: list[_Row], stream: Stream, device: torch.device) -> Tensor:
    return keys_of([row.params for row in rows], [row.position for row in rows], stream, device)


class _Last(NamedTuple):
    """Where a sequence's step ends."""

    num_accepted: int
    row: int  # the row whose token is not a draft


def _last_rows(drafts: Sequence[Sequence[int]], accepted: list[bool]) -> list[_Last]:
    """Find each sequence's first row that is not accepted. That after its drafts never is."""
    lasts, first = [], 0
    for proposed in drafts:
        row = accepted.index(False, first)
        lasts.append(_Last(row - first, row))
        first += len(proposed) + 1
    return lasts
