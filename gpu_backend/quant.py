"""INT8 weights: symmetric, one scale per output channel; activations keep their type.

w ~ q * s with s = max|w| / 127 over a row, so no weight moves by more than s / 2 (as in LLM.int8(), Dettmers
et al. 2022, section 2.1, without its outliers). Memory halves against 16 bits and, where reading weights
bounds a step on CUDA, so should time (not measured); on the CPU they are dequantised in every call. Embedding
and head stay as they are.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from gpu_backend.model import Decoder, Linear

LARGEST = 127  # -128 is not used: symmetric
PACKED_ROWS = 8  # measured, 512 x 1408 in bf16 on one AVX512 core: torch's int8 kernel wins up to 4..16 rows


@dataclass(slots=True)
class Int8Linear:
    """x (weight * scale)^T + bias, in x's type."""

    weight: Tensor  # (out, in) int8
    scale: Tensor  # (out,) float32
    bias: Tensor | None = None  # (out,)

    def __call__(self, x: Tensor) -> Tensor:
        """Map (..., in) to (..., out)."""
        rows = x.reshape(-1, x.shape[-1])
        if x.is_cuda:
            from gpu_backend.kernels.int8_matmul import int8_matmul

            out = int8_matmul(rows, self.weight, self.scale, self.bias)
        else:
            out = self._on_cpu(rows)
        return out.view(*x.shape[:-1], -1)

    def _on_cpu(self, x: Tensor) -> Tensor:
        """Multiply by torch's int8 kernel where it is the faster one: few rows in bf16, measured."""
        if x.dtype == torch.bfloat16 and len(x) <= PACKED_ROWS and hasattr(torch, "_weight_int8pack_mm"):
            out = torch._weight_int8pack_mm(x, self.weight, self.scale.to(x.dtype))
            return out if self.bias is None else out + self.bias
        return F.linear(x, (self.weight * self.scale[:, None]).to(x.dtype), self.bias)


def quantize_linear(weight: Tensor, bias: Tensor | None = None) -> Int8Linear:
    """Round a weight (out, in) to int8. A row of zeros gets scale 1."""
    largest = weight.abs().amax(dim=1).float()
    scale = torch.where(largest > 0, largest / LARGEST, 1.0)
    rounded = (weight.float() / scale[:, None]).round_().clamp_(-LARGEST, LARGEST)
    return Int8Linear(rounded.to(torch.int8).contiguous(), scale, bias)


def quantize_decoder(decoder: Decoder) -> None:
    """Exchange the layers' projections for INT8 ones in place, one by one, so that memory only falls."""
    for layer, name, projection in decoder.projections():
        if isinstance(projection, Linear):
            setattr(layer, name, quantize_linear(projection.weight, projection.bias))
