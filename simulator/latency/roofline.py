"""What the hardware's peaks and a model's shapes say about a step, before anything is measured.

A GEMM takes c0 + (tc^p + tb^p)^(1/p): a soft maximum of compute time tc = flops / (e_c * peak) and memory
time tb = bytes / (e_b * bandwidth). Four numbers, fitted on 9,240 A100 GEMMs, 9 % mean error on unseen
shapes and the best of the forms tried at extrapolating (servetwin's latency model, section 3.1). Decode
attention reads its KV at e_b of the bandwidth, never less than one KV tile a sequence; prefill attention
does its FLOPs at e_a of the peak. Left out: tile edges (up to 43 % at 128 -> 129 tokens), communication,
sliding windows, the sampler; of quantised weights the work of unpacking them, and of fp8 that of rounding
activations.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from simulator.latency.base import Floats
from simulator.latency.experts import expert_load
from simulator.specs.hardware import Hardware
from simulator.specs.models import Model, dtype_bits, weight_bits


class Efficiency(NamedTuple):
    """How much of the peaks real kernels reach; times in seconds, the rest fractions of a peak.

    Fitted on A100-SXM4-80GB with bf16 (AIConfigurator 095f58a: vLLM 0.14.0; elementwise: Vidur 7d47513),
    and assumed elsewhere.
    """

    gemm_overhead: float = 5.7e-6  # c0, per GEMM
    compute: float = 0.846  # e_c
    bandwidth: float = 0.765  # e_b
    sharpness: float = 1.61  # p
    elementwise_overhead: float = 27e-6  # norms, rope, activation and adds of one layer, at few tokens
    elementwise_bandwidth: float = 0.495
    attention_overhead: float = 12e-6  # per layer and launch
    attention_compute: float = 0.56  # e_a, prefill
    attention_per_token_head: float = 1.2e-9  # softmax and output of prefill, per token and query head
    kv_tile: int = 128  # tokens: a shorter context costs as much


A100 = Efficiency()


class PrefillTerms(NamedTuple):
    """Prefill attention of all layers: constant + sums, never under per_kv * longest context. Seconds."""

    constant: float
    per_seq: float
    per_token: float
    per_work: float
    per_kv: float


@dataclass(frozen=True, slots=True)
class Roofline:
    """One model on one GPU: peaks in FLOP/s (of the dense dtype) and bytes/s, and bytes per element."""

    flops: float
    bandwidth: float
    model: Model
    weight_bytes: float = 2.0
    kv_bytes: float = 2.0
    efficiency: Efficiency = A100
    head_bytes: float | None = None  # None: `weight_bytes`; quantisation leaves the head as it is
    layer_flops: float | None = None  # peak of the layers' GEMMs; None: `flops`

    @classmethod
    def of(cls, hardware: Hardware, model: Model, kv_dtype: str = "auto") -> Roofline:
        """Describe a model on a GPU."""
        own = dtype_bits(model.dtype) / 8
        return cls(hardware.flops, hardware.hbm_bandwidth, model, own, own).stored(hardware, model, kv_dtype)

    def stored(self, hardware: Hardware, model: Model, kv_dtype: str = "auto") -> Roofline:
        """Return the same shapes and peaks with weights in the types of `model`, and KV in this one.

        Integer weights meet 16-bit activations at the 16-bit peak, whatever the GPU. So do fp8 weights on a
        GPU without fp8 tensor cores (vLLM's Marlin kernels); on one with them activations are fp8 too, at
        its peak.
        """
        found = self
        if model.quantization is not None:
            has_fp8 = model.quantization.startswith("fp8") and hardware.flops_fp8 is not None
            faster = (hardware.flops_fp8 or 0.0) / hardware.flops if has_fp8 else 1.0
            found = replace(
                self,
                weight_bytes=weight_bits(model.quantization) / 8,
                head_bytes=self.weight_bytes,
                layer_flops=self.flops * faster,
            )
        if kv_dtype == "auto":
            return found
        return replace(found, kv_bytes=model.kv_bytes_per_token(kv_dtype) / model.kv_bytes_per_token("fp8"))

    def soft_max(self, flops: ArrayLike, num_bytes: ArrayLike, peak: float | None = None) -> Floats:
        """Return the seconds of one kernel that does these FLOPs and moves these bytes."""
        e = self.efficiency
        compute = np.asarray(flops) / (e.compute * (peak or self.layer_flops or self.flops))
        memory = np.asarray(num_bytes) / (e.bandwidth * self.bandwidth)
        p = e.sharpness
        seconds: Floats = e.gemm_overhead + (compute**p + memory**p) ** (1 / p)
        return seconds

    def gemm(self, m: ArrayLike, n: int, k: int) -> Floats:
        """Return the seconds of C[m, n] = A[m, k] B[k, n], B being the weights of a layer."""
        rows = np.asarray(m, dtype=np.float64)
        return self.soft_max(2 * rows * n * k, self.weight_bytes * n * k + 2 * rows * (n + k))

    def elementwise(self, m: ArrayLike) -> Floats:
        """Return the seconds of one layer's norms, rope, activation and residual adds on m tokens."""
        moved = 2 * np.asarray(m, dtype=np.float64) * self.elementwise_width
        e = self.efficiency
        return np.hypot(e.elementwise_overhead, moved / (e.elementwise_bandwidth * self.bandwidth))

    @property
    def elementwise_width(self) -> int:
        """Elements that one token reads and writes outside GEMMs and attention, in one layer."""
        m = self.model
        norms_and_adds = 2 * (2 + 3) * m.hidden_size
        return norms_and_adds + 2 * (m.num_heads + m.num_kv_heads) * m.head_dim + 3 * m.intermediate_size

    def layer(self, m: ArrayLike) -> Floats:
        """Return the seconds of everything but attention in one layer, for m tokens.

        In a mixture of experts a batch reads the weights of the experts that its tokens chose; where experts
        are spread over GPUs, this is the one with most to do.
        """
        rows = np.asarray(m, dtype=np.float64)
        gemms, moe = self.model.layer_gemms(), self.model.moe
        seconds = self.elementwise(rows)
        if moe:
            gemms, expert = gemms[: -2 * moe.experts_per_token], gemms[-2:]
            routed, active = expert_load(moe, rows)
            for n, k in expert:
                moved = self.weight_bytes * active * n * k + 2 * routed * (n + k)
                seconds = seconds + self.soft_max(2 * routed * n * k, moved)
        for n, k in gemms:
            seconds = seconds + self.gemm(rows, n, k)
        return seconds

    def once(self, m: ArrayLike) -> Floats:
        """Return the seconds of the embedding and the final norm of m tokens."""
        moved = 2 * np.asarray(m, dtype=np.float64) * 4 * self.model.hidden_size
        return np.asarray(moved / (self.efficiency.elementwise_bandwidth * self.bandwidth))

    def dense(self, m: ArrayLike) -> Floats:
        """Return the seconds of all layers without attention, with embedding and final norm."""
        return self.model.num_layers * self.layer(m) + self.once(m)

    def head(self, rows: ArrayLike) -> Floats:
        """Return the seconds of the logits of this many sampled rows; no rows cost nothing."""
        sampled = np.asarray(rows, dtype=np.float64)
        n, k = self.model.head_gemm()
        width = self.weight_bytes if self.head_bytes is None else self.head_bytes
        logits = self.soft_max(2 * sampled * n * k, width * n * k + 2 * sampled * (n + k), self.flops)
        return np.where(sampled > 0, logits, 0.0)

    @property
    def kv_token_bytes(self) -> float:
        """Bytes of one token's keys and values in one layer."""
        model = self.model
        return model.kv_bytes_per_token("fp8") / model.num_layers * self.kv_bytes

    def decode_attention(self, batch: ArrayLike, kv: ArrayLike) -> Floats:
        """Return the seconds of one layer's decode attention for sequences of `kv` tokens each."""
        e = self.efficiency
        tokens = np.asarray(batch, dtype=np.float64) * np.maximum(kv, e.kv_tile)
        return e.attention_overhead + tokens * self.kv_token_bytes / (e.bandwidth * self.bandwidth)

    @property
    def pair_flops(self) -> int:
        """FLOPs of QK and PV for one query and one key, all heads of one layer."""
        value_dim = self.model.mla.v_head_dim if self.model.mla else self.model.head_dim
        return 2 * self.model.num_heads * (self.model.head_dim + value_dim)

    @property
    def pair_seconds(self) -> float:
        """Seconds of one query-key pair in all layers at the peak FLOP/s."""
        return self.model.num_layers * self.pair_flops / self.flops

    def prefill_attention(self) -> PrefillTerms:
        """Return the terms of all layers."""
        e = self.efficiency
        per_layer = PrefillTerms(
            constant=e.attention_overhead,
            per_seq=0.0,
            per_token=e.attention_per_token_head * self.model.num_heads,
            per_work=self.pair_flops / (e.attention_compute * self.flops),
            per_kv=self.kv_token_bytes / self.bandwidth,
        )
        return PrefillTerms(*(self.model.num_layers * term for term in per_layer))

    def with_efficiency(self, efficiency: Efficiency) -> Roofline:
        """Return the same roofline with other efficiencies."""
        return replace(self, efficiency=efficiency)

    def for_model(self, model: Model) -> Roofline:
        """Return the roofline of another model on the same GPU."""
        return replace(self, model=model)

    def scaled(self, flops: float, bandwidth: float) -> Roofline:
        """Return the same model on a GPU with this many times the peaks."""
        layers = None if self.layer_flops is None else self.layer_flops * flops
        return replace(
            self, flops=self.flops * flops, bandwidth=self.bandwidth * bandwidth, layer_flops=layers
        )
