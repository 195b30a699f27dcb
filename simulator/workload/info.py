"""A workload in numbers: rate, burstiness, lengths, what an unlimited prefix cache would hit.

Definitions: CV is the standard deviation of the gaps over their mean (1 for a Poisson process); `cv_10min`
the median of the CV within aligned 600 s windows of more than 50 requests, which leaves slow drift out; a
peak rate the largest count in aligned bins over the bin's width; IDC the variance over the mean of the
counts in whole 60 s bins (1 for Poisson). Percentiles interpolate linearly. A prefix block hits if it and all
blocks before it were in an earlier request; the last block counts too, though only partly filled.
Of sessions, arrivals are the recorded ones; see `session_info` for the rest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

import numpy as np
from numpy.typing import NDArray

from simulator.workload.session_info import SessionInfo, session_info, session_rows

if TYPE_CHECKING:
    from simulator.workload.workload import Workload

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

BINS = (1, 10, 60)  # s, for peak rates
CV_WINDOW = 600.0  # s
CV_MIN_COUNT = 50  # requests that a window must exceed to give a CV


class Spread(TypedDict):
    """Mean, percentiles and range of a length, in tokens."""

    mean: float
    p50: float
    p90: float
    p99: float
    min: int
    max: int


class PrefixInfo(TypedDict):
    """What is shared. Shares are of all ids and of all prompt tokens, with an unlimited cache."""

    block_size: int
    blocks: int
    distinct_blocks: int
    hit_share_blocks: float
    hit_share_tokens: float
    covered_requests: int  # every id of the prompt was seen before


class Info(TypedDict):
    """See the module. Times in seconds, rates per second; None where the sample is too small."""

    source: str
    num_requests: int
    span: float
    mean_rate: float | None
    peak_rate: dict[str, float]  # by bin width: "1s", "10s", "60s"
    cv: float | None
    cv_10min: float | None
    idc_60s: float | None
    equal_time_neighbours: int
    prompt: Spread
    output: Spread
    prefix: PrefixInfo | None
    sessions: SessionInfo | None
    skipped: dict[str, int]
    notes: list[str]


def workload_info(workload: Workload) -> Info:
    """Compute `Workload.info()`."""
    t = workload.arrival - (workload.arrival[0] if len(workload) else 0.0)
    span = float(t[-1]) if len(t) else 0.0
    cvs = [cv for w in _windows(t) if len(w) > CV_MIN_COUNT and (cv := _cv(w)) is not None]
    hits = None if workload.blocks is None else workload.blocks.hit_blocks()
    return {
        "source": workload.source,
        "num_requests": len(workload),
        "span": span,
        "mean_rate": (len(workload) - 1) / span if span > 0 else None,
        "peak_rate": {f"{b}s": float(_counts(t, b).max(initial=0)) / b for b in BINS},
        "cv": _cv(t),
        "cv_10min": float(np.median(cvs)) if cvs else None,
        "idc_60s": _idc(t, 60.0),
        "equal_time_neighbours": int((np.diff(t) == 0).sum()),
        "prompt": _spread(workload.num_prompt),
        "output": _spread(workload.num_output),
        "prefix": None if hits is None else _prefix(workload, hits),
        "sessions": session_info(workload, hits),
        "skipped": dict(workload.skipped),
        "notes": list(workload.notes),
    }


def describe(workload: Workload) -> str:
    """Return `info()` as a table for people."""
    i = workload.info()
    rows = [
        ("source", i["source"]),
        ("requests", f"{i['num_requests']:,}"),
        ("span", f"{i['span']:,.1f} s"),
        ("rate, mean", f"{_number(i['mean_rate'])} /s"),
        ("rate, peak in 1 / 10 / 60 s", " / ".join(_number(r) for r in i["peak_rate"].values()) + " /s"),
        ("gap CV (1 = Poisson)", f"{_number(i['cv'])}; within 10 min {_number(i['cv_10min'])}"),
        ("IDC in 60 s (1 = Poisson)", _number(i["idc_60s"])),
        ("equal-time neighbours", f"{i['equal_time_neighbours']:,}"),
    ]
    for name, s in (("prompt", i["prompt"]), ("output", i["output"])):
        quantiles = " / ".join(f"{x:,.0f}" for x in (s["p50"], s["p90"], s["p99"]))
        rows.append((f"{name} tokens, mean", f"{s['mean']:,.1f} in {s['min']:,}..{s['max']:,}"))
        rows.append((f"{name} tokens, p50 / p90 / p99", quantiles))
    if p := i["prefix"]:
        rows.append(
            (f"prefix blocks of {p['block_size']}", f"{p['blocks']:,}, distinct {p['distinct_blocks']:,}")
        )
        hits = f"{p['hit_share_blocks']:.1%} of blocks, {p['hit_share_tokens']:.1%} of tokens"
        rows.append(("hits, unlimited cache", hits))
    rows += [] if i["sessions"] is None else session_rows(i["sessions"])
    rows += [("skipped", f"{count:,} rows: {reason}") for reason, count in i["skipped"].items()]
    rows += [("note", note) for note in i["notes"]]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


def _number(x: float | None) -> str:
    return "-" if x is None else f"{x:.4g}"


def _counts(t: Floats, width: float) -> Ints:
    """Count sorted arrivals in the aligned bins that are not empty."""
    return np.diff(np.flatnonzero(np.diff(t // width, prepend=-1.0, append=np.inf)))


def _windows(t: Floats) -> list[Floats]:
    return np.split(t, np.flatnonzero(np.diff(t // CV_WINDOW)) + 1)


def _cv(t: Floats) -> float | None:
    gaps = np.diff(t)
    mean = gaps.mean() if len(gaps) else 0.0
    return float(gaps.std() / mean) if mean > 0 else None


def _idc(t: Floats, width: float) -> float | None:
    num_bins = int(t[-1] // width) if len(t) else 0
    counts = _counts(t[t < num_bins * width], width)
    if num_bins < 2:
        return None
    mean = counts.sum() / num_bins
    return float((counts**2).sum() / num_bins - mean**2) / float(mean)


def _spread(x: Ints) -> Spread:
    if not len(x):
        return {"mean": 0.0, "p50": 0.0, "p90": 0.0, "p99": 0.0, "min": 0, "max": 0}
    p50, p90, p99 = np.percentile(x, [50, 90, 99]).tolist()
    return {
        "mean": float(x.mean()),
        "p50": p50,
        "p90": p90,
        "p99": p99,
        "min": int(x.min()),
        "max": int(x.max()),
    }


def _prefix(workload: Workload, hits: Ints) -> PrefixInfo | None:
    blocks = workload.blocks
    if blocks is None or not len(blocks.lo):
        return None
    counts = blocks.num_ids
    hit_tokens = np.minimum(hits * blocks.block_size, workload.num_prompt)
    return {
        "block_size": blocks.block_size,
        "blocks": int(counts.sum()),
        "distinct_blocks": blocks.num_distinct,
        "hit_share_blocks": float(hits.sum() / counts.sum()),
        "hit_share_tokens": float(hit_tokens.sum() / workload.num_prompt.sum()),
        "covered_requests": int(((hits == counts) & (counts > 0)).sum()),
    }
