"""Read Vidur's mlp.csv (microsoft/vidur, MIT): every kernel of a layer but attention, by tokens.

Times are milliseconds by that project's convention, fp16, at 1 us resolution; "a100" does not say whether SXM
or PCIe. Its GEMMs serve as a second opinion, its elementwise kernels as the only public ones. They are
not fused as a current engine fuses them. Left out: tensor-parallel rows, other GPUs' all-reduce.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

from calibration.timings import Timing, seconds_of
from simulator.errors import InputError

REPO = "microsoft/vidur"
COMMIT = "7d47513363ec447a741ac5e47241580b47724fbf"
SNAPSHOT = "2026-11-29"
LICENCE = "MIT, (c) Microsoft"
SOURCE = "vidur 7d47513"
# the layer's kernels and how often each runs in it
ELEMENTWISE = {"input_layernorm": 1, "post_attention_layernorm": 1, "attn_rope": 1, "mlp_act": 1, "add": 2}
GEMMS = ("attn_pre_proj", "attn_post_proj", "mlp_up_proj", "mlp_down_proj")


def read_vidur(path: Path) -> Iterator[Timing]:
    """Read the rows that ran on one GPU; InputError names the line."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = csv.DictReader(file)
        for column in ("n_head", "n_kv_head", "n_embd", "n_expanded_embd", "num_tokens"):
            if column not in (rows.fieldnames or []):
                raise InputError(f"{path}: not Vidur's mlp.csv: lacks the column {column!r}")
        try:
            for row in rows:
                if row.get("num_tensor_parallel_workers", "1") == "1":
                    yield from _layer(row, f"{path}:{rows.line_num}")
        except (csv.Error, UnicodeDecodeError, KeyError) as error:
            raise InputError(f"{path}: not Vidur's mlp.csv: {error}") from None


def _layer(row: dict[str, str], place: str) -> Iterator[Timing]:
    heads, kv_heads, hidden, inner, tokens = (
        _whole(row[name], f"{place}: {name}")
        for name in ("n_head", "n_kv_head", "n_embd", "n_expanded_embd", "num_tokens")
    )
    head_dim, device = hidden // heads, row.get("device", "a100")

    def median(op: str) -> float:
        return seconds_of(row[f"time_stats.{op}.median"], "ms", f"{place}: {op}")

    rope = (heads + kv_heads) * head_dim
    attention = [(rope + kv_heads * head_dim, hidden), (hidden, heads * head_dim)]
    shapes = [*attention, (2 * inner, hidden), (hidden, inner)]
    for op, (n, k) in zip(GEMMS, shapes, strict=True):
        yield Timing("gemm", median(op), SOURCE, device, m=tokens, n=n, k=k)
    width = 2 * (2 + 3) * hidden + 2 * rope + 3 * inner  # as Roofline.elementwise_width
    small = sum(times * median(op) for op, times in ELEMENTWISE.items())
    yield Timing("elementwise", small, SOURCE, device, m=tokens, n=width)


def _whole(text: str, place: str) -> int:
    try:
        value = int(float(text))
    except (ValueError, OverflowError):
        value = 0
    if value < 1:
        raise InputError(f"{place} must be a whole number >= 1, got {text[:40]!r}")
    return value
