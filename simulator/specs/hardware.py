"""GPUs as a handful of numbers, each with its source.

`memory` is what the CUDA device reports (`torch.cuda.get_device_properties(0).total_memory`), because
that is what vLLM multiplies by `gpu_memory_utilization`. It is 1-6 % below the data sheet's size taken in
GiB and moves by some tens of MiB with driver and ECC. Peaks are the vendor's: what a kernel reaches is the
latency model's business. Left out: clocks, power, topology beyond one link figure per kind.
"""

from __future__ import annotations

from dataclasses import dataclass

from simulator.errors import ConfigError, suggest

GIB = 2**30
MIB = 2**20


@dataclass(frozen=True, slots=True)
class Hardware:
    """One GPU. Bytes, bytes/s and FLOP/s; `flops` is dense bf16 with fp32 accumulation."""

    name: str
    description: str
    memory: int  # bytes, as the device reports
    hbm_bandwidth: float  # bytes/s, peak
    flops: float  # dense bf16 FLOP/s, peak
    flops_int8: float  # dense
    flops_fp8: float | None  # dense; None where the tensor cores have no fp8
    num_sms: int
    l2: int  # bytes
    pcie: float  # bytes/s, one direction
    nvlink: float | None = None  # bytes/s, one direction, all links together; None without NVLink

    def __post_init__(self) -> None:
        for field in ("memory", "hbm_bandwidth", "flops", "flops_int8", "num_sms", "l2", "pcie"):
            if not 0 < getattr(self, field) < float("inf"):
                raise ValueError(f"hardware {self.name!r}: {field} must be > 0, got {getattr(self, field)}")


# Peaks: NVIDIA data sheets; dense, that is half of a figure printed "with sparsity". Link speeds are one
# direction, half of the "bidirectional" figure. The A100 PCIe cards can be bridged in pairs; none is assumed.
_GPUS = (
    Hardware(
        name="a100-40gb-sxm",
        description="NVIDIA A100 SXM4 40 GB",
        memory=42_298_834_944,  # CUDA deviceQuery, bottlerocket-os/bottlerocket#3873
        hbm_bandwidth=1.555e12,  # A100 data sheet
        flops=312e12,  # A100 data sheet
        flops_int8=624e12,  # A100 data sheet
        flops_fp8=None,
        num_sms=108,  # A100 white paper
        l2=40 * MIB,  # A100 white paper
        pcie=32e9,  # PCIe 4.0 x16
        nvlink=300e9,  # A100 data sheet, 600 GB/s in both directions
    ),
    Hardware(
        name="a100-40gb-pcie",
        description="NVIDIA A100 PCIe 40 GB",
        memory=40_326 * MIB,  # torch device properties, NVIDIA A100-PCIE-40GB
        hbm_bandwidth=1.555e12,  # A100 data sheet
        flops=312e12,  # A100 data sheet
        flops_int8=624e12,  # A100 data sheet
        flops_fp8=None,
        num_sms=108,  # A100 white paper
        l2=40 * MIB,  # A100 white paper
        pcie=32e9,  # PCIe 4.0 x16
    ),
    Hardware(
        name="a100-80gb-sxm",
        description="NVIDIA A100 SXM4 80 GB",
        memory=81_151
        * MIB,  # CUDA total as llama.cpp logs it, NVIDIA A100-SXM4-80GB; older drivers 81,251 MiB
        hbm_bandwidth=2.039e12,  # A100 data sheet; aiconfigurator a100_sxm.yaml
        flops=312e12,  # A100 data sheet; aiconfigurator a100_sxm.yaml
        flops_int8=624e12,  # A100 data sheet; aiconfigurator a100_sxm.yaml
        flops_fp8=None,
        num_sms=108,  # A100 white paper
        l2=40 * MIB,  # A100 white paper
        pcie=32e9,  # PCIe 4.0 x16
        nvlink=300e9,  # A100 data sheet, 600 GB/s in both directions
    ),
    Hardware(
        name="a100-80gb-pcie",
        description="NVIDIA A100 PCIe 80 GB",
        memory=85_097_971_712,  # torch total_memory, NVIDIA A100 80GB PCIe, driver 595
        hbm_bandwidth=1.935e12,  # A100 data sheet; aiconfigurator a100_pcie.yaml
        flops=312e12,  # A100 data sheet; aiconfigurator a100_pcie.yaml
        flops_int8=624e12,  # A100 data sheet; aiconfigurator a100_pcie.yaml
        flops_fp8=None,
        num_sms=108,  # A100 white paper
        l2=40 * MIB,  # A100 white paper
        pcie=32e9,  # PCIe 4.0 x16
    ),
    Hardware(
        name="h100-80gb-sxm",
        description="NVIDIA H100 SXM5 80 GB",
        memory=81_089 * MIB,  # torch device properties, NVIDIA H100 80GB HBM3, torch 2.7
        hbm_bandwidth=3.35e12,  # H100 data sheet; aiconfigurator h100_sxm.yaml
        flops=989e12,  # H100 data sheet; aiconfigurator h100_sxm.yaml
        flops_int8=1979e12,  # H100 data sheet
        flops_fp8=1979e12,  # H100 data sheet
        num_sms=132,  # H100 white paper
        l2=50 * MIB,  # torch device properties
        pcie=64e9,  # PCIe 5.0 x16
        nvlink=450e9,  # H100 data sheet, 900 GB/s in both directions
    ),
    Hardware(
        name="h100-80gb-pcie",
        description="NVIDIA H100 PCIe 80 GB",
        memory=81_008 * MIB,  # torch device properties, NVIDIA H100 PCIe
        hbm_bandwidth=2.0e12,  # H100 data sheet
        flops=756e12,  # H100 data sheet
        flops_int8=1513e12,  # H100 data sheet
        flops_fp8=1513e12,  # H100 data sheet
        num_sms=114,  # H100 white paper
        l2=50 * MIB,  # H100 white paper
        pcie=64e9,  # PCIe 5.0 x16
    ),
    Hardware(
        name="h200",
        description="NVIDIA H200 SXM 141 GB",
        memory=143_156 * MIB,  # torch device properties, NVIDIA H200
        hbm_bandwidth=4.8e12,  # H200 data sheet; aiconfigurator h200_sxm.yaml
        flops=989e12,  # H200 data sheet; aiconfigurator h200_sxm.yaml
        flops_int8=1979e12,  # H200 data sheet
        flops_fp8=1979e12,  # H200 data sheet
        num_sms=132,  # torch device properties
        l2=60 * MIB,  # torch device properties
        pcie=64e9,  # PCIe 5.0 x16
        nvlink=450e9,  # H200 data sheet, 900 GB/s in both directions
    ),
    Hardware(
        name="l40s",
        description="NVIDIA L40S 48 GB",
        memory=45_589 * MIB,  # torch device properties, NVIDIA L40S
        hbm_bandwidth=864e9,  # L40S data sheet
        flops=362.05e12,  # L40S data sheet
        flops_int8=733e12,  # L40S data sheet
        flops_fp8=733e12,  # L40S data sheet
        num_sms=142,  # torch device properties
        l2=96 * MIB,  # Ada white paper
        pcie=32e9,  # PCIe 4.0 x16
    ),
    Hardware(
        name="a40",
        description="NVIDIA A40 48 GB",
        memory=45_416 * MIB,  # torch device properties, NVIDIA A40
        hbm_bandwidth=696e9,  # A40 data sheet
        flops=149.7e12,  # A40 data sheet
        flops_int8=299.3e12,  # A40 data sheet
        flops_fp8=None,
        num_sms=84,  # torch device properties
        l2=6 * MIB,  # GA102 white paper
        pcie=32e9,  # PCIe 4.0 x16
    ),
    Hardware(
        name="rtx-4090",
        description="NVIDIA GeForce RTX 4090 24 GB",
        memory=25_250_627_584,  # torch total_memory, LLMServingSim's vLLM run
        hbm_bandwidth=1.008e12,  # Ada white paper
        flops=165.2e12,  # Ada white paper, fp32 accumulation (half of the fp16 rate on GeForce)
        flops_int8=660.6e12,  # Ada white paper
        flops_fp8=330.3e12,  # Ada white paper, fp32 accumulation
        num_sms=128,  # Ada white paper
        l2=72 * MIB,  # torch device properties
        pcie=32e9,  # PCIe 4.0 x16
    ),
    Hardware(
        name="rtx-pro-6000",
        description="NVIDIA RTX PRO 6000 Blackwell Workstation 96 GB",
        memory=97_250 * MIB,  # torch total_memory as printed by a run on the Server Edition
        hbm_bandwidth=1.792e12,  # RTX PRO 6000 Workstation data sheet; the Server Edition has 1.597e12
        flops=503.8e12,  # RTX Blackwell PRO white paper, fp32 accumulation
        flops_int8=1007.6e12,  # RTX Blackwell PRO white paper
        flops_fp8=1007.6e12,  # RTX Blackwell PRO white paper, fp32 accumulation
        num_sms=188,  # RTX Blackwell PRO white paper
        l2=128 * MIB,  # RTX Blackwell PRO white paper
        pcie=64e9,  # PCIe 5.0 x16
    ),
    # No GPU: rounded figures of one core of a 2-core AMD EPYC, implied by timings of a 31 M parameter model.
    Hardware(
        name="cpu-1core",
        description="one CPU core (AMD EPYC, AVX-512), for teaching",
        memory=4 * GIB,  # set aside, not measured
        hbm_bandwidth=1e10,
        flops=1e11,
        flops_int8=1e11,
        flops_fp8=None,
        num_sms=1,
        l2=1 * MIB,
        pcie=1e10,  # a copy within memory
    ),
)
HARDWARE: dict[str, Hardware] = {gpu.name: gpu for gpu in _GPUS}


def get_hardware(name: str) -> Hardware:
    """Return the GPU of this name, letter case aside; ConfigError names the near ones."""
    gpu = HARDWARE.get(name.strip().lower())
    if gpu is None:
        raise ConfigError(f"hardware.gpu: {name[:60]!r} is unknown{suggest(name.lower(), HARDWARE)}")
    return gpu
