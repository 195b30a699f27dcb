"""Paged attention by our own Triton kernels: the default on CUDA. Untested on hardware.

The host reads no value of the device and chooses every grid from what it knows at capture: a decode's splits
follow from the width of the block tables, not from the contexts of the moment. A captured graph therefore
serves any contexts that its tables can hold, and does bit for bit what an eager step with tables of the
same width does. The first launch of a shape compiles: warm up before capture.
"""

from __future__ import annotations

from functools import lru_cache, partial

import torch
from torch import Tensor

from gpu_backend.attention.base import AttentionInputs
from gpu_backend.kernels.paged_attention import Sequences, attend_pages
from gpu_backend.kernels.write_kv import write_kv

SKEWED = 4  # splits that a full batch of decodes still gets, so that one long context holds up the rest less


@lru_cache
def num_sms_of(device: torch.device) -> int:
    """Count the streaming multiprocessors; 1 on the CPU, where the interpreter runs one program at a time."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count) if device.type == "cuda" else 1


class TritonPaged:
    """`min_split`: tokens that a split reads at least, 4 tiles; a choice that no measurement backs yet."""

    name = "triton"

    def __init__(self, *, num_sms: int | None = None, min_split: int = 256) -> None:
        self.num_sms = num_sms
        self.min_split = min_split

    def write(self, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, slots: Tensor) -> None:
        """Put k and v into the pages at `slots`."""
        write_kv(k, v, keys, values, slots)

    def attend(
        self,
        q: Tensor,
        keys: Tensor,
        values: Tensor,
        inputs: AttentionInputs,
        *,
        scale: float,
        window: int | None = None,
    ) -> Tensor:
        """Return the attention of every row; padding rows come back as 0."""
        check_layout(q, keys, values)
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        first = inputs.num_decodes
        last = first + sum(chunk.num_tokens for chunk in inputs.chunks)
        out[last:].zero_()
        attend = partial(
            attend_pages,
            scale=scale,
            window=window,
            num_sms=self.num_sms or num_sms_of(q.device),
            min_split=self.min_split,
        )
        if first:
            longest = inputs.decode_tables.shape[1] * keys.shape[1]
            tables = inputs.decode_tables[:first]  # the runner's tables may have more rows
            decodes = Sequences(tables, inputs.decode_lens, None, 1, longest, SKEWED)
            attend(out[:first], q[:first], keys, values, decodes)
        if inputs.chunks:
            rows = max(chunk.num_tokens for chunk in inputs.chunks)
            longest = max(chunk.context for chunk in inputs.chunks)
            tables = inputs.chunk_tables[: len(inputs.chunks)]
            chunks = Sequences(tables, inputs.chunk_lens, inputs.chunk_starts, rows, longest)
            attend(out[first:last], q[first:last], keys, values, chunks)
        return out


def check_layout(q: Tensor, keys: Tensor, values: Tensor) -> None:
    """Raise ValueError for what the kernels' address arithmetic does not cover."""
    if q.stride(2) != 1 or keys.stride(3) != 1 or keys.stride() != values.stride():
        raise ValueError("heads must be contiguous, and pages of K and V laid out alike")
