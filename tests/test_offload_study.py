"""benchmarks/offload.py: a table by bandwidth, and a figure, of any trace of sessions."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
import offload  # noqa: E402


def trace(folder: Path, num_sessions: int = 6, num_turns: int = 5) -> Path:
    """Write sessions that extend 60,000 tokens: a few of them are more than the GPU holds."""
    path = folder / "sessions.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for s in range(num_sessions):
            turns = [
                {
                    "t": 20.0 * k,
                    "type": "n",
                    "in": 64 * (1800 + 20 * k),
                    "out": 40,
                    "hash_ids": list(range(1800 + 20 * k)),
                    "think_time": 20.0,
                    "api_time": 1.0,
                }
                for k in range(num_turns)
            ]
            file.write(
                json.dumps({"id": str(s), "block_size": 64, "hash_id_scope": "local", "requests": turns})
                + "\n"
            )
    return path


def rows(printed: str) -> list[list[str]]:
    lines = [line for line in printed.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_a_table_a_rate_and_a_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figure = tmp_path / "offload.html"
    words = ["--rates", "0.1", "--bandwidths", "1,50", "--seeds", "2", "--host-gib", "100"]
    offload.main([str(trace(tmp_path)), *words, "--figure", str(figure)])
    head, line, *table = rows(capsys.readouterr().out)
    assert head == ["link, GB/s", *offload.COLUMNS.values()]
    assert line == ["---"] * len(head)
    assert [row[0] for row in table] == ["none", "GPU without limit", "1", "50"]
    columns = dict(zip(head, zip(*table, strict=True), strict=True))
    hits = [float(cell.rstrip("%")) for cell in columns["hit rate"]]
    assert hits[0] < hits[1] == hits[2] == hits[3]  # the host keeps what the GPU alone loses
    assert columns["TTFT mean, times that of none"][0] == "1"
    assert columns["copied out"][:2] == ("-", "-")
    assert columns["fetched"][3].endswith(" M")
    assert "host offload" in figure.read_text(encoding="utf-8")


def test_workers_change_nothing(tmp_path: Path) -> None:
    path = str(trace(tmp_path, 3, 3))
    jobs = [offload.Job(path, 0.1, link, 100.0, seed) for link in ("none", 10.0) for seed in (0, 1)]
    assert offload.measure(jobs, 2) == offload.measure(jobs, 1)


def test_ratios_are_geometric_means_with_students_interval() -> None:
    assert offload.ratio([2.0, 8.0], [1.0, 1.0]).startswith("4 (")
    assert offload.ratio([3.0], [2.0]) == "1.5"
    spread = 2 * np.log(2) / 2**0.5 / 2**0.5 * 12.706  # t of one degree of freedom, 97.5 %
    low, high = (float(word) for word in offload.ratio([2.0, 8.0], [1.0, 1.0])[3:-1].split(" to "))
    assert low == pytest.approx(4 / np.exp(spread), rel=0.05)
    assert high == pytest.approx(4 * np.exp(spread), rel=0.05)


def test_cells() -> None:
    assert offload.cell("p99", [0.5, 1500.0, 20.0]) == "20 (0.5 to 1,500) s"
    assert offload.cell("hit", [0.25, 0.5, 0.75]) == "50.0%"
    assert offload.cell("out", [0.0]) == "-"
    assert offload.cell("back", [2.5e6]) == "2.5 M"
    assert offload.cell("stall", [1234.0]) == "1,234 s"
    assert offload.cell("speed", [41.06]) == "41.1"
