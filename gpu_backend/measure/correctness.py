"""Is what runs on this device right? Kernels against float64, sampling against the CPU, graphs against eager.

Attention in every type and backend that runs here; the INT8 product against its exact dequantisation; the
write of K and V within attention's cases. On the CPU the cases are small, and there is no graph.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from gpu_backend.attention.choose import NAMES, choose_attention
from gpu_backend.attention.reference import TOLERANCES, Case, attention_error
from gpu_backend.measure.bench import Bench
from gpu_backend.measure.engine_graphs import EngineGraphs
from gpu_backend.measure.facts import why_not
from gpu_backend.measure.layer_counts import LAYERS
from gpu_backend.measure.parts import FAILED, PASSED, Result, Skip
from gpu_backend.measure.points import Point
from gpu_backend.quant import quantize_linear
from gpu_backend.sampling import SamplingParams, sample

SKEWED = [1 + 8191 * i * i // 63**2 for i in range(64)]  # 1 to 8,192 tokens, mostly short
CASES = {
    "one long decode": Case([8192]),
    "decodes": Case(SKEWED, dummies=8),
    "windowed decodes": Case([8192, 100, 4096], window=1024),
    "chunks": Case(chunks=[(2048, 2048), (512, 8192), (1, 300)]),
    "mixed": Case([700, 8000, 16], [(300, 300), (64, 4096), (4, 1000)], padding=12),
    "windowed chunks": Case([9], [(1024, 3000)], window=512),
    "group of 7": Case([3000], [(200, 900)], heads=28, kv_heads=4),
    "head of 64": Case([3000], [(200, 900)], heads=32, kv_heads=8, head_dim=64),
}
SMALL_CASES = {
    "decodes": Case([5, 40, 170, 1], heads=4, kv_heads=2, head_dim=16),
    "chunks": Case(chunks=[(48, 48), (9, 130)], heads=4, kv_heads=2, head_dim=16),
    "mixed": Case([5, 40, 17], [(9, 30), (16, 16)], heads=4, kv_heads=2, head_dim=16, window=19, padding=2),
    "group of 7": Case([100], [(20, 90)], heads=7, kv_heads=1, head_dim=64),
}
INT8_ROWS = (1, 16, 17, 65)
SAMPLED_ROWS = 48
MOST_UNLIKE = 1  # sampled tokens that may differ from the CPU's: its logarithms may, in the last place


@dataclass(frozen=True, slots=True)
class Verdict:
    """One comparison: the largest error found and what is allowed."""

    what: str
    error: float
    allowed: float

    @property
    def is_right(self) -> bool:
        return self.error <= self.allowed  # nan is not


def check_kernels(device: torch.device) -> Result:
    """Compare attention, INT8 product and sampling; the part fails if any is off."""
    is_cuda = device.type == "cuda"
    verdicts = []
    skipped = {}
    for name in NAMES[1:]:
        reason = why_not(name, device)
        if reason is not None:
            skipped[name] = reason
            continue
        types = _types(name, is_cuda)
        verdicts += [each for dtype in types for each in attention_verdicts(name, device, dtype)]
    verdicts += [int8_verdict(device, rows, dtype) for rows in INT8_ROWS for dtype in _int8_types(is_cuda)]
    verdicts.append(sampler_verdict(device))
    wrong = [each for each in verdicts if not each.is_right]
    told = f"{len(verdicts)} comparisons with float64 and the CPU, {len(wrong)} wrong"
    if wrong:
        told += f": {wrong[0].what}, error {wrong[0].error:.3g}, allowed {wrong[0].allowed:.3g}"
    return {
        "status": FAILED if wrong else PASSED,
        "told": told,
        "verdicts": [[each.what, f"{each.error:.3g}", f"{each.allowed:.3g}"] for each in verdicts],
        "cannot_run": skipped,
    }


def _types(attention: str, is_cuda: bool) -> list[torch.dtype]:
    if not is_cuda:
        return [torch.float32]
    return [torch.bfloat16, torch.float16] + ([] if attention == "varlen" else [torch.float32])


def _int8_types(is_cuda: bool) -> list[torch.dtype]:
    return [torch.bfloat16, torch.float16] if is_cuda else [torch.float32, torch.bfloat16]


def attention_verdicts(name: str, device: torch.device, dtype: torch.dtype) -> list[Verdict]:
    """Hold a backend to float64 on every case."""
    backend = choose_attention(name, device, dtype=dtype)
    cases = CASES if device.type == "cuda" else SMALL_CASES
    kind = str(dtype).removeprefix("torch.")
    return [
        Verdict(f"{name} {kind}, {what}", attention_error(backend, case, dtype, device), TOLERANCES[dtype])
        for what, case in cases.items()
    ]


def int8_verdict(device: torch.device, rows: int, dtype: torch.dtype) -> Verdict:
    """Compare the INT8 product with its weight dequantised in float64; half of attention's tolerance."""
    generator = torch.Generator(device).manual_seed(0)
    inputs, channels = (4096, 14336) if device.type == "cuda" else (256, 384)
    x = torch.randn((rows, inputs), generator=generator, dtype=dtype, device=device)
    weight = torch.randn((channels, inputs), generator=generator, dtype=dtype, device=device)
    linear = quantize_linear(weight)
    truth = x.double() @ (linear.weight.double() * linear.scale.double()[:, None]).T
    error = float((linear(x).double() - truth).abs().max() / truth.abs().max())
    what = f"int8 {str(dtype).removeprefix('torch.')}, {rows} rows"
    return Verdict(what, error, TOLERANCES[dtype] / 2)


def sampler_verdict(device: torch.device) -> Verdict:
    """Count the rows whose token is another in a batch on the device than alone on the CPU."""
    logits = 4 * torch.randn((SAMPLED_ROWS, 1000), generator=torch.Generator().manual_seed(0))
    kinds = [{}, {"temperature": 0.8}, {"temperature": 1.0, "top_k": 50}, {"temperature": 1.2, "top_p": 0.9}]
    params = [SamplingParams(seed=i, **kinds[i % len(kinds)]) for i in range(SAMPLED_ROWS)]  # type: ignore[arg-type]
    together = sample(logits.to(device), params, list(range(SAMPLED_ROWS))).tolist()
    alone = [int(sample(logits[i : i + 1], [params[i]], [i])) for i in range(SAMPLED_ROWS)]
    unlike = sum(a != b for a, b in zip(together, alone, strict=True))
    return Verdict("sampled tokens unlike the CPU's", unlike, MOST_UNLIKE if device.type == "cuda" else 0)


@torch.inference_mode()
def check_graphs(bench: Bench) -> Result:
    """Capture a forward pass on contexts of one token, replay it on long ones, compare with eager."""
    if bench.device.type != "cuda":
        raise Skip("CUDA graphs need CUDA")
    if bench.attention.name == "sdpa":
        raise Skip("sdpa plans on the host and cannot be captured")
    graphs = EngineGraphs.of(bench)
    if graphs is not None:
        return compare_graphs(bench, graphs)
    context = min(1024, bench.config.max_model_len, bench.most_kv // 8)
    positions, inputs = bench.inputs(Point("step", tuple(range(context - 7, context + 1))))
    ids = torch.arange(len(positions), device=bench.device)

    def forward() -> torch.Tensor:
        return bench.decoder.forward(ids, positions, bench.kv, inputs, bench.attention)

    eager, lens = forward().clone(), inputs.decode_lens.clone()
    inputs.decode_lens.fill_(1)
    forward()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = forward()
    inputs.decode_lens.copy_(lens)
    graph.replay()
    return _like_eager(
        bench, out, eager, f"a captured step of 8 decodes, replayed on {context} tokens of context"
    )


@torch.inference_mode()
def compare_graphs(bench: Bench, graphs: EngineGraphs) -> Result:
    """Replay the engine's own graphs on steps of 1 to 13 decodes, padded ones too; compare with eager."""
    layers, context = max(LAYERS), min(1024, bench.config.max_model_len, bench.most_kv // 16)
    replayed, eager = [], []
    for size in (1, 3, 8, 13):
        point = Point("step", tuple(range(context - size + 1, context + 1)))
        numbers, tables = graphs.inputs(point)
        replayed.append(bench.decoder.head(graphs.graphs(layers).run(numbers, tables)))
        ids, positions, slots, lens = (torch.from_numpy(row).to(bench.device) for row in numbers)
        _, inputs = bench.inputs(point)
        own = replace(
            inputs,
            slots=slots,
            decode_lens=lens.to(torch.int32),
            decode_tables=torch.from_numpy(tables).to(bench.device),
        )
        hidden = bench.first(layers).forward(ids, positions, bench.kv, own, bench.attention)
        eager.append(bench.decoder.head(hidden))
    told = f"the engine's graphs on 1, 3, 8 and 13 decodes of up to {context} tokens"
    return _like_eager(bench, torch.cat(replayed), torch.cat(eager), told)


def _like_eager(bench: Bench, replayed: torch.Tensor, eager: torch.Tensor, what: str) -> Result:
    gap = float((replayed.double() - eager.double()).abs().max() / eager.double().abs().max())
    is_right = gap <= TOLERANCES[bench.dtype]  # 0 unless the library chooses another product under capture
    told = f"{what}: off by {gap:.3g} of the largest"
    return {"status": PASSED if is_right else FAILED, "told": told, "difference": gap}
