"""The first decision in which two runs part, with what stood around it and why, as far as the logs tell.

Decisions are compared without their times. Free blocks are compared as used ones where the two runs have
pools of different sizes: else they would part in their first step.
"""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import wrap

import numpy as np
from numpy.typing import NDArray

from simulator.engine.decisions import Decision
from simulator.experiments.diff_labels import NUM_KEYS, changed_keys, listed, own
from simulator.experiments.run_folder import SavedRun
from simulator.metrics.tables import ABORTED, REJECTED, Floats

MOST = 3  # requests named in a sentence
WIDTH = 108  # characters of a line
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first step whose decisions differ; a or b is None where that run has no such step.

    `words` say what differs and `causes` why, in sentences; `before` is the step before it, of either run.
    """

    step: int
    fields: tuple[str, ...]
    a: Decision | None
    b: Decision | None
    before: tuple[Decision, Decision] | None = None
    words: tuple[str, ...] = ()
    causes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, object]:
        return {
            "step": self.step,
            "fields": self.fields,
            "a": self.a,
            "b": self.b,
            "before": self.before,
            "words": self.words,
            "causes": self.causes,
        }

    def lines(self, names: tuple[str, str]) -> list[str]:
        """Return the context as lines: both runs before and in the step, what differs, and why."""
        found = [f"decisions: first difference in step {self.step} ({', '.join(self.fields)})"]
        if self.before is not None:
            found += [f"  step {self.step - 1}, decided alike: {step_words(self.before[0])}"]
            found += [_state(name, step) for name, step in zip(names, self.before, strict=True)]
        for name, decision in zip(names, (self.a, self.b), strict=True):
            if decision is None:
                found.append(f"  step {self.step}, {name}: there is none, the run is over")
                continue
            found += [f"  step {self.step}, {name}: {step_words(decision)}", _state(name, decision)]
        told = [f"differs: {each}" for each in self.words]
        told += [f"cause: {each}" for each in self.causes or ("not found in the logs",)]
        for each in told:
            found += wrap(each, WIDTH, initial_indent="  ", subsequent_indent="    ")
        return found


def first_divergence(a: list[Decision], b: list[Decision], more_blocks: int = 0) -> Divergence | None:
    """Return the first step in which two logs decide differently; times do not count.

    `more_blocks` is how many more blocks the pool of `b` has.
    """
    for step, (one, other) in enumerate(zip(a, b, strict=False)):
        same = {**other, "free_blocks": other["free_blocks"] - more_blocks}
        if {**one, "t": 0.0} == {**same, "t": 0.0}:
            continue
        keys = dict.fromkeys([*one, *other])
        fields = tuple(key for key in keys if key != "t" and one.get(key) != same.get(key))
        return Divergence(step, fields, one, other)
    if len(a) == len(b):
        return None
    step = min(len(a), len(b))
    longer = (a if len(a) > len(b) else b)[step]
    return Divergence(
        step, ("steps",), longer if len(a) > len(b) else None, longer if len(b) > len(a) else None
    )


def find_divergence(a: SavedRun, b: SavedRun, names: tuple[str, str]) -> Divergence | None:
    """Return where two logged runs part, with context and likely causes; None if they do not."""
    logs = a.decisions or [], b.decisions or []
    blocks = [number for run in (a, b) if isinstance(number := own(run).get("usable_blocks"), int)]
    more = blocks[1] - blocks[0] if len(blocks) == 2 else 0
    parting = first_divergence(*logs, more)
    if parting is None:
        return None
    step = parting.step
    words = () if parting.a is None or parting.b is None else _words(parting.a, parting.b, names)
    causes = [*_arrivals(a, b, step, names), *_leavings(a, b, step, names)]
    if not causes and more:
        causes.append(f"{names[0]} has {blocks[0]:,} usable blocks, {names[1]} {blocks[1]:,}")
    keys = changed_keys(a.scenario, b.scenario, ("scheduler.", "kv.", "model."))
    if not causes and keys:
        causes.append(f"the scenarios differ in {listed(keys, NUM_KEYS)}")
    if not causes and parting.a and parting.b and _cached_differ(parting.a, parting.b):
        causes.append("the prefix caches held different blocks, though all decisions before were alike")
    return Divergence(
        step,
        parting.fields,
        parting.a,
        parting.b,
        (logs[0][step - 1], logs[1][step - 1]) if step else None,
        tuple(words),
        tuple(causes),
    )


def step_words(decision: Decision) -> str:
    """Say what a step computes, in a line."""
    chunks = [f"{name} tokens {start} to {start + n}" for name, n, start in decision["chunks"]]
    parts = [f"{decision['decodes']} decodes"]
    parts += [f"prompts {listed(chunks, MOST)}"] if chunks else []
    parts += [f"preempted {listed(decision['preempted'], MOST)}"] if decision["preempted"] else []
    parts += [f"finished {listed(decision['finished'], MOST)}"] if decision["finished"] else []
    return "; ".join(parts)


def _state(name: str, decision: Decision) -> str:
    running, waiting, free = (decision[key] for key in ("running", "waiting", "free_blocks"))
    return f"    {name}: at {decision['t']:.4f} s, {running} running, {waiting} waiting, {free} blocks free"


def _words(a: Decision, b: Decision, names: tuple[str, str]) -> list[str]:
    """Say in words what differs between two versions of a step."""
    found = [*_chunk_words(a, b, names)]
    for name, x, y in ((names[0], a, b), (names[1], b, a)):
        for verb, mine, others in (
            ("preempted", x["preempted"], y["preempted"]),
            ("ended", x["finished"], y["finished"]),
        ):
            ids = [each for each in mine if each not in others]
            if ids:
                found.append(f"only {name} {verb} {listed(ids, MOST)}")
    if a["decodes"] != b["decodes"]:
        found.append(f"{names[0]} decoded for {a['decodes']} requests, {names[1]} for {b['decodes']}")
    for word, one_has, other_has in (
        ("running", a["running"], b["running"]),
        ("waiting", a["waiting"], b["waiting"]),
    ):
        if one_has != other_has:
            found.append(f"{word}: {names[0]} {one_has}, {names[1]} {other_has}")
    if a.get("moves") != b.get("moves"):
        found.append(f"transfers: {names[0]} {a.get('moves', [])}, {names[1]} {b.get('moves', [])}")
    return found or [f"free blocks: {names[0]} {a['free_blocks']}, {names[1]} {b['free_blocks']}"]


def _chunk_words(a: Decision, b: Decision, names: tuple[str, str]) -> list[str]:
    one, other = ({name: (n, start) for name, n, start in each["chunks"]} for each in (a, b))
    found = []
    for request in dict.fromkeys([*one, *other]):
        if one.get(request) == other.get(request):
            continue
        if request in one and request in other:
            if a["cached"].get(request) != b["cached"].get(request):
                hits = [each["cached"].get(request, 0) for each in (a, b)]
                found.append(
                    f"{names[0]} admitted request {request} with {hits[0]} cached tokens, "
                    f"{names[1]} with {hits[1]}"
                )
            else:
                (n, start), (m, begin) = one[request], other[request]
                found.append(
                    f"of request {request} {names[0]} computed tokens {start} to {start + n}, "
                    f"{names[1]} {begin} to {begin + m}"
                )
            continue
        name, (n, start) = (names[0], one[request]) if request in one else (names[1], other[request])
        found.append(f"only {name} computed tokens {start} to {start + n} of request {request}")
    return found[:MOST] + ([f"and {len(found) - MOST} other chunks"] if len(found) > MOST else [])


def _cached_differ(a: Decision, b: Decision) -> bool:
    both = {name for name, _, _ in a["chunks"]} & {name for name, _, _ in b["chunks"]}
    return any(a["cached"].get(name) != b["cached"].get(name) for name in both)


def _arrivals(a: SavedRun, b: SavedRun, step: int, names: tuple[str, str]) -> list[str]:
    """Name the requests that one run had seen when it decided the step, and the other had not."""
    came = [
        _moments(run.requests.id, run.requests.arrival, run.requests.status != REJECTED) for run in (a, b)
    ]
    return _seen_by_one(came, [_begun(a), _begun(b)], step, names, "arrived")


def _leavings(a: SavedRun, b: SavedRun, step: int, names: tuple[str, str]) -> list[str]:
    """Name the requests whose clients had gone in one run alone."""
    left = [_moments(run.requests.id, run.requests.finish, run.requests.status == ABORTED) for run in (a, b)]
    return _seen_by_one(left, [_begun(a), _begun(b)], step, names, "was given up")


def _moments(ids: list[str], at: Floats, counts: Bools) -> dict[str, float]:
    return {ids[i]: float(at[i]) for i in np.flatnonzero(counts)}


def _seen_by_one(
    when: list[dict[str, float]], begun: list[Floats], step: int, names: tuple[str, str], verb: str
) -> list[str]:
    """Say what happened before one run decided the step, and in the other after it; seconds by request."""
    if any(step >= len(times) for times in begun):
        return []
    seen = [
        {name for name, at in each.items() if at <= times[step]}
        for each, times in zip(when, begun, strict=True)
    ]
    ids = sorted(seen[0] ^ seen[1], key=lambda name: min(each.get(name, np.inf) for each in when))
    found = []
    for request in ids[:MOST]:
        told = [
            _seen(name, each.get(request), times, step)
            for name, each, times in zip(names, when, begun, strict=True)
        ]
        found.append(f"request {request} {verb} {', and '.join(told)}")
    return found + ([f"and {len(ids) - MOST} more that only one had seen"] if len(ids) > MOST else [])


def _seen(name: str, at: float | None, begun: Floats, step: int) -> str:
    if at is None:
        return f"never in {name}"
    if at <= begun[step]:
        return f"at {at:.4f} s, before step {step} of {name} ({begun[step]:.4f} s)"
    first = int(np.searchsorted(begun, at))
    seen = f"seen in step {first}" if first < len(begun) else "never seen"
    return f"at {at:.4f} s, after step {step} of {name} ({begun[step]:.4f} s; {seen})"


def _begun(run: SavedRun) -> Floats:
    return np.array([decision["t"] for decision in run.decisions or ()])
