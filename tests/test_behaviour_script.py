"""scripts/behaviour.py: what two records differ in is named, down to the key or the line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "behaviour.py"


def diff(before: Path, after: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), "diff", str(before), str(after)]
    return subprocess.run(command, capture_output=True, text=True)


def written(folder: Path, summary: dict[str, object], log: str) -> Path:
    (folder / "run").mkdir(parents=True)
    (folder / "run" / "summary.json").write_text(json.dumps(summary))
    (folder / "run" / "decisions.jsonl").write_text(log)
    return folder


def test_equal_records_do_not_differ(tmp_path: Path) -> None:
    records = [written(tmp_path / name, {"a": 1}, "1\n") for name in ("before", "after")]
    assert (diff(*records).stdout, diff(*records).returncode) == ("no difference\n", 0)


def test_a_difference_names_its_key_and_its_line(tmp_path: Path) -> None:
    before = written(tmp_path / "before", {"servetwin": {"hits": 3, "seed": 0}}, "same\nold\n")
    after = written(tmp_path / "after", {"servetwin": {"hits": 0, "seed": 0}}, "same\nnew\n")
    done = diff(before, after)
    assert done.returncode == 1
    assert "1 values\n    servetwin.hits: 3 -> 0" in done.stdout
    assert "decisions.jsonl: line 2" in done.stdout


def test_a_file_of_one_record_only_is_named(tmp_path: Path) -> None:
    before = written(tmp_path / "before", {}, "")
    after = written(tmp_path / "after", {}, "")
    (after / "run" / "more.csv").write_text("x\n")
    assert diff(before, after).stdout == f"run/more.csv: only in {after}\n"
