"""Derive `simulator/workload/tables/agentic.json` from recorded sessions of coding agents.

    python scripts/fit_session_table.py agentic_coding_sessions.jsonl.xz

The sessions are those of https://github.com/callanjfox/kv-cache-tester (Apache-2.0), one a line. What is
kept: of each session the leading requests that fit a context of 131,072 tokens; of these, quantiles. Sessions
are put into classes by their number of turns and first prompt, each with quantiles of turns, first prompt and
growth; outputs, steps of the context, think and server times are quantiles over all turns, and so is what is
kept of the prefix when a turn rewrites its history. Left out: sub-agents (sessions with any, 2 %), sessions
that repeat another one. No record of a request is kept.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from fit_workload_tables import dump

from simulator.workload.replay import session_numbers
from simulator.workload.tables import TABLES
from simulator.workload.traces import read_trace
from simulator.workload.workload import Workload

CONTEXT = 131_072  # tokens; prompt and output
TURN_GROUPS, FIRST_GROUPS = 5, 4
P = [0, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1]  # of the classes
P_ALL = [0, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 0.98, 0.99, 0.995, 1]
REWRITTEN = 4  # blocks; so many lost of the turn before are more than a rounded end


def leading_parts(workload: Workload) -> list[np.ndarray]:
    """Return the rows of each plain session up to the first that does not fit, without repeats."""
    assert workload.session is not None
    assert workload.follows is not None
    number = session_numbers(workload.session)
    forked = set()
    for side in workload.follows.T:
        rows, count = np.unique(side, return_counts=True)
        forked |= set(number[rows[count > 1]].tolist())
    order = np.argsort(number, kind="stable")
    parts, seen = [], set()
    for rows in np.split(order, np.flatnonzero(np.diff(number[order])) + 1):
        prompt, output = workload.num_prompt[rows], workload.num_output[rows]
        key = (prompt.tobytes(), output.tobytes())
        fits = prompt + output <= CONTEXT
        if number[rows[0]] not in forked and key not in seen and fits[0]:
            parts.append(rows[: len(rows) if fits.all() else int(np.argmin(fits))])
        seen.add(key)
    return parts


def fit(workload: Workload) -> dict[str, object]:
    """Return the table."""
    assert workload.blocks is not None
    assert workload.think is not None
    assert workload.api_time is not None
    parts, prompt = leading_parts(workload), workload.num_prompt
    before, after = (np.concatenate([part[s] for part in parts]) for s in (slice(None, -1), slice(1, None)))
    turns = np.array([len(part) for part in parts])
    first, growth = (np.array([f(prompt[part]) for part in parts]) for f in (lambda x: x[0], _growth))
    hits, blocks = workload.blocks.hit_blocks(), workload.blocks.num_ids
    rewritten = blocks[before] - hits[after] > REWRITTEN
    classes = _classes(turns, first)
    rows = np.concatenate(parts)
    api = workload.api_time[rows]
    step = prompt[after] - prompt[before] - workload.num_output[before]
    return {
        "name": "agentic",
        "source": "Coding agent sessions, callanjfox/kv-cache-tester",
        "licence": "Apache-2.0",
        "attribution": f"kv-cache-tester authors; {len(parts)} sessions, {len(rows)} requests, aggregated",
        "sessions": {
            "context": CONTEXT,
            "p": P,
            "turns": [quantiles(turns[classes == c], P) for c in range(classes.max() + 1)],
            "first": [quantiles(first[classes == c], P) for c in range(classes.max() + 1)],
            "growth": [quantiles(growth[classes == c], P) for c in range(classes.max() + 1)],
            "bend": round(_bend([prompt[part] for part in parts]), 3),
            "p_all": P_ALL,
            "output": quantiles(workload.num_output[rows], P_ALL),
            "step": quantiles(np.maximum(step, 0), P_ALL),
            "think_s": quantiles(workload.think[after], P_ALL, 2),
            "api_s": quantiles(api[~np.isnan(api)], P_ALL, 2),
            "rewrite_probability": round(float(rewritten.mean()), 5),
            "kept": quantiles((hits[after] / blocks[before])[rewritten], P, 4),
        },
    }


def _growth(prompt: np.ndarray) -> int:
    return max(int(prompt.max() - prompt[0]), 0)


def _bend(prompts: list[np.ndarray]) -> float:
    """Return b such that the mean context is that of growth * (share of the session)^b; below 1 early."""
    longer = [p for p in prompts if len(p) > 1 and _growth(p)]
    share = sum((p - p[0]).sum() for p in longer) / sum(_growth(p) * (len(p) - 1) for p in longer)
    return float(1 / share - 1)


def _classes(turns: np.ndarray, first: np.ndarray) -> np.ndarray:
    """Put sessions into groups of equal size by turns, and each of these into groups by first prompt."""
    group = _rank(turns) * TURN_GROUPS // len(turns)
    classes = np.empty(len(turns), np.int64)
    for g in range(TURN_GROUPS):
        inside = np.flatnonzero(group == g)
        classes[inside] = g * FIRST_GROUPS + _rank(first[inside]) * FIRST_GROUPS // len(inside)
    return classes


def _rank(x: np.ndarray) -> np.ndarray:
    rank = np.empty(len(x), np.int64)
    rank[np.argsort(x, kind="stable")] = np.arange(len(x))
    return rank


def quantiles(x: np.ndarray, p: list[float], digits: int = 0) -> list[float]:
    """Return the quantiles of x, the highest moved so that lines between them keep the mean."""
    law, weight = np.quantile(x, p), np.diff(p) / 2
    rest = (weight * law[:-1]).sum() + (weight[:-1] * law[1:-1]).sum()
    law[-1] = np.clip((x.mean() - rest) / weight[-1], law[-2], x.max())
    return [round(float(value), digits) if digits else round(float(value)) for value in law]


if __name__ == "__main__":
    (TABLES / "agentic.json").write_text(dump(fit(read_trace(Path(sys.argv[1])))), encoding="utf-8")
