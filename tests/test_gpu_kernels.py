"""The Triton kernels against float64: interpreted, compiled without a device, and on a device."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from gpu_backend.attention.reference import TOLERANCES, Case, attention_error
from gpu_backend.attention.sdpa import SdpaGather

HERE = Path(__file__).resolve().parent
CPU = torch.device("cpu")
SMALL = Case([5, 40, 17], [(9, 30), (16, 16)], heads=4, kv_heads=2, head_dim=16, window=19, padding=2)


def run_apart(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a process of its own: Triton reads its settings once, when it is first imported."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "TRITON"))}
    settings = {**kept, "PYTHONPATH": str(HERE.parent), **environment}
    return subprocess.run(
        [sys.executable, *command], env=settings, capture_output=True, text=True, cwd=HERE.parent
    )


@pytest.mark.parametrize("case", [SMALL, Case([1, 100], [(70, 90)], heads=7, kv_heads=1, head_dim=64)])
def test_the_reference_agrees_with_torch(case: Case) -> None:
    assert attention_error(SdpaGather(), case, torch.float32, CPU) < TOLERANCES[torch.float32]


def test_the_error_tells_of_a_wrong_write_and_of_a_wrong_result() -> None:
    class Forgetful(SdpaGather):
        def write(self, k, v, keys, values, slots):
            super().write(k[:-1], v[:-1], keys, values, slots[:-1])

    class Unscaled(SdpaGather):
        def attend(self, *args, scale, window=None):
            return super().attend(*args, scale=1.0, window=window)

    whole = Case([40], [(9, 30)], heads=4, kv_heads=2, head_dim=16)
    assert attention_error(Forgetful(), whole, torch.float32, CPU) == float("inf")
    assert attention_error(Unscaled(), whole, torch.float32, CPU) > 0.1


@pytest.mark.parametrize("which", ["not slow", pytest.param("slow", marks=pytest.mark.slow)])
def test_kernels_in_the_interpreter(which: str) -> None:
    pytest.importorskip("triton")
    file = str(HERE / "kernels_interpreted.py")
    command = ("-m", "pytest", file, "-m", which, "-p", "no:cacheprovider", "-p", "no:xdist")
    done = run_apart(*command, TRITON_INTERPRET="1")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("capability", "shared_per_sm"), [(80, 164 << 10), (90, 228 << 10)])
def test_kernels_compile_for_cuda(capability: int, shared_per_sm: int, tmp_path: Path) -> None:
    """Two decodes fit an SM (CUDA C++ programming guide, compute capabilities), and loads are wide."""
    pytest.importorskip("triton")
    done = run_apart(str(HERE / "kernels_compiled.py"), str(capability), TRITON_CACHE_DIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    kernels = [line.split() for line in done.stdout.splitlines()]
    assert {name for name, *_ in kernels} == {"_attend", "_merge_splits", "_write_rows", "_int8_matmul"}
    assert all(int(shared) <= shared_per_sm for _, shared, _ in kernels)
    assert next(int(shared) for name, shared, _ in kernels if name == "_attend") <= shared_per_sm // 2
    assert all(int(wide) > 0 for name, _, wide in kernels if name in ("_attend", "_int8_matmul"))


LENGTHS = [1 + 8191 * i * i // 63**2 for i in range(64)]  # 1 to 8,192 tokens, mostly short
ON_DEVICE = {
    "one long decode": Case([8192]),
    "decodes": Case(LENGTHS, dummies=8),
    "even decodes": Case([1024] * 32),
    "windowed decodes": Case([8192, 100, 4096], window=1024),
    "chunks": Case(chunks=[(2048, 2048), (512, 8192), (1, 300)]),
    "mixed": Case([700, 8000, 16], [(300, 300), (64, 4096), (4, 1000)], padding=12),
    "windowed chunks": Case([9], [(1024, 3000)], window=512),
    "group of 7": Case([3000], [(200, 900)], heads=28, kv_heads=4),
    "head of 64": Case([3000], [(200, 900)], heads=32, kv_heads=8, head_dim=64),
    "head of 80": Case([3000], [(200, 900)], heads=32, kv_heads=32, head_dim=80),
    "head of 256": Case([3000], [(200, 900)], heads=16, kv_heads=8, head_dim=256),
    "large pages": Case([3000], [(200, 900)], block_size=256),
}


@pytest.fixture
def device() -> torch.device:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    return torch.device("cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("name", ON_DEVICE)
def test_attention_on_the_device(name: str, dtype: torch.dtype, device: torch.device) -> None:
    from gpu_backend.attention.triton_paged import TritonPaged

    assert attention_error(TritonPaged(), ON_DEVICE[name], dtype, device) < TOLERANCES[dtype]


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["decodes", "mixed", "windowed chunks", "large pages"])
def test_varlen_on_the_device(name: str, device: torch.device) -> None:
    from gpu_backend.attention.varlen import TorchVarlenPaged, why_unavailable

    case, dtype = ON_DEVICE[name], torch.bfloat16
    reason = why_unavailable(device, case.block_size, dtype)
    if reason is not None:
        pytest.skip(reason)
    assert attention_error(TorchVarlenPaged(), case, dtype, device) < TOLERANCES[dtype]


@pytest.mark.gpu
def test_a_captured_graph_serves_longer_contexts(device: torch.device) -> None:
    """Captured on contexts of 1, replayed on long ones: bit for bit the eager result."""
    from gpu_backend.attention.reference import draw_step
    from gpu_backend.attention.triton_paged import TritonPaged

    step, backend = draw_step(Case([5000, 60, 8000]), torch.bfloat16, device), TritonPaged()

    def attend() -> torch.Tensor:
        return backend.attend(step.q, step.keys, step.values, step.inputs, scale=0.1)

    eager, lens = attend(), step.inputs.decode_lens.clone()
    step.inputs.decode_lens.fill_(1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = attend()
    step.inputs.decode_lens.copy_(lens)
    graph.replay()
    assert torch.equal(out, eager)


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 16, 17, 64, 65, 2048])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_int8_product_on_the_device(rows: int, dtype: torch.dtype, device: torch.device) -> None:
    from gpu_backend.quant import quantize_linear

    generator = torch.Generator(device).manual_seed(0)
    x = torch.randn((rows, 4096), generator=generator, dtype=dtype, device=device)
    linear = quantize_linear(torch.randn((14336, 4096), generator=generator, dtype=dtype, device=device))
    truth = x.double() @ (linear.weight.double() * linear.scale.double()[:, None]).T
    assert float((linear(x) - truth).abs().max()) < TOLERANCES[dtype] / 2 * float(truth.abs().max())
