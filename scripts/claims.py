"""Run notebook 14 and write what it found: docs/claims.md, every claim with number, interval and scenario."""

from __future__ import annotations

import contextlib
import io
import runpy
from pathlib import Path

from simulator.experiments.claims.page import page

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOK, PAGE = ROOT / "notebooks" / "14_claims.py", ROOT / "docs" / "claims.md"


def main() -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        names = runpy.run_path(str(NOTEBOOK))
    PAGE.write_text(page(names["ledger"]), encoding="utf-8")
    print(f"{PAGE.relative_to(ROOT)}: {len(names['ledger'])} claims")


if __name__ == "__main__":
    main()
