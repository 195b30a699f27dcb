"""What vLLM's server prints at start-up: KV blocks and engine arguments, for the scenario of a measured run.

Known are "# GPU blocks: 7438" (older engines), "GPU KV cache size: 119,008 tokens" (V1), and arguments as
name=value or 'name': value, in which form vLLM logs those that are not defaults; of several, the last counts.
"""

from __future__ import annotations

import re
from pathlib import Path

from simulator.errors import InputError

MAX_BYTES = 64 * 2**20
BLOCK_SIZE = 16  # vLLM's default on CUDA
BLOCKS = re.compile(r"# GPU blocks:\s*([\d,]+)|num_gpu_blocks(?: is|=|:)\s*([\d,]+)")
TOKENS = re.compile(r"GPU KV cache size:\s*([\d,]+)\s*tokens")
WHOLE = ("max_num_seqs", "max_num_batched_tokens", "block_size", "max_model_len")
ALSO = {"max_seq_len": "max_model_len"}  # as the engine's own configuration calls it
FLAGS = ("enable_prefix_caching", "async_scheduling")


def read_server_log(path: Path) -> dict[str, object]:
    """Return what the log tells, under the names of `MeasuredRun.engine`; InputError if it tells nothing."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise InputError(f"{path}: larger than {MAX_BYTES >> 20} MiB: give the part printed at start-up")
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    found: dict[str, object] = {}
    for name in (*WHOLE, *ALSO):
        values = re.findall(rf"\b{name}\b['\"]?\s*[=:]\s*(\d+)", text)
        if values:
            found.setdefault(ALSO.get(name, name), int(values[-1]))
    for name in FLAGS:
        values = re.findall(rf"\b{name}\b['\"]?\s*[=:]\s*(True|False)", text)
        if values:
            found[name] = values[-1] == "True"
    blocks = [int((a or b).replace(",", "")) for a, b in BLOCKS.findall(text)]
    tokens = [int(value.replace(",", "")) for value in TOKENS.findall(text)]
    size = found.get("block_size", BLOCK_SIZE)
    if blocks:
        found["num_gpu_blocks"] = blocks[-1]
    elif tokens and isinstance(size, int) and size > 0:
        found["num_gpu_blocks"] = tokens[-1] // size
    if not found:
        raise InputError(
            f"{path}: no line of vLLM's start-up is known ('# GPU blocks', 'GPU KV cache size', arguments)"
        )
    return found
