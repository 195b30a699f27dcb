"""Compile every kernel for a CUDA architecture on a machine without one: `python kernels_compiled.py 90`.

What the interpreter does not see: types that do not agree, too much shared memory, loads that are no longer
copied 16 bytes at a time. The launches are real ones on CPU tensors, stopped before they reach a device.
Prints the shared memory (bytes) and the number of 16-byte copies of each.
"""

from __future__ import annotations

import sys

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from gpu_backend.attention.reference import Case, draw_step
from gpu_backend.attention.triton_paged import TritonPaged
from gpu_backend.kernels.int8_matmul import int8_matmul

CPU = torch.device("cpu")
LONG = 1000  # more than `min_split`: decodes are split
CASES = [
    (Case([LONG], [(100, 100)]), torch.bfloat16),
    (Case([100], [(8, 100)]), torch.bfloat16),
    (Case([LONG], [(100, 100)], window=64), torch.bfloat16),
    (Case([100], [(8, 100)]), torch.float32),
    (Case([100], [(100, 100)], heads=28, kv_heads=4, head_dim=80), torch.float16),
    (Case([100], [(100, 100)], heads=8, kv_heads=4, head_dim=256), torch.bfloat16),
]


class NoDevice:
    """Stands in for the driver of a device of this compute capability."""

    def __init__(self, capability: int) -> None:
        self.capability = capability

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def compile_all(capability: int) -> None:
    driver.set_active(NoDevice(capability))
    run = JITFunction.run

    def compile_only(self, *args, **kwargs):
        kernel = run(self, *args, **{**kwargs, "warmup": True})
        print(self.fn.__name__, kernel.metadata.shared, kernel.asm["ptx"].count("cp.async.cg"))
        assert kernel.asm["cubin"]
        return kernel

    JITFunction.run = compile_only
    backend = TritonPaged(num_sms=108)
    for case, dtype in CASES:
        step = draw_step(case, dtype, CPU)
        backend.write(step.k, step.v, step.keys, step.values, step.inputs.slots)
        backend.attend(step.q, step.keys, step.values, step.inputs, scale=1.0, window=case.window)
    weight, scale = torch.zeros((4096, 512), dtype=torch.int8), torch.ones(4096)
    for rows in (1, 64, 100):
        int8_matmul(torch.zeros((rows, 512), dtype=torch.bfloat16), weight, scale)


if __name__ == "__main__":
    compile_all(int(sys.argv[1]))
