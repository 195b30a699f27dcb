"""The first parts of `servetwin gpu check` where only PyTorch, NumPy, Triton and safetensors are installed.

python -m gpu_backend.measure DIR
"""

from __future__ import annotations

import sys

from gpu_backend.measure.check import FIRST_PARTS, PARTS, check
from simulator.errors import SimulatorError


def main() -> int:
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        print("usage: python -m gpu_backend.measure DIR", file=sys.stderr)
        return 2
    parts = {name: PARTS[name] for name in FIRST_PARTS}
    try:
        book = check(sys.argv[1], parts=parts, tell=lambda name, result: print(name, result["told"]))
    except SimulatorError as error:
        print(error, file=sys.stderr)
        return 2
    return 1 if book.failed else 0


if __name__ == "__main__":
    sys.exit(main())
