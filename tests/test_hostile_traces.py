"""Traces that nobody meant well: one clear line and code 2, or rows counted as skipped; nothing hangs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import Outcome, servetwin

from simulator.api import load_run
from simulator.workload.traces.lines import MAX_LINE

HEAD = "arrived_at,num_prefill_tokens,num_decode_tokens\n"
GOOD = "1,10,5\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def replay(name: str, content: str | bytes, *args: object) -> Outcome:
    Path(name).write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    return servetwin("run", "tiny-cpu", "--no-report", "-o", "out", "--trace", name, *args)


def own() -> dict[str, object]:
    own = json.loads(Path("out/summary.json").read_text())["servetwin"]
    assert isinstance(own, dict)
    return own


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("0,-5,3", "prompt < 1"),
        ("0,0,3", "prompt < 1"),
        ("0,5,-3", "output < 1"),
        ("0,nan,3", "prompt is not a whole number"),
        ("0,Infinity,3", "prompt is not a whole number"),
        ("0,1e9,3", "prompt is not a whole number"),
        ("0,2.5,3", "prompt is not a whole number"),
        ("0,1000000000000,3", "prompt + output > 10,000,000 tokens"),
        ("0,5,1000000000000", "prompt + output > 10,000,000 tokens"),
        (f"0,{'9' * 400},3", "prompt is not a whole number"),
        ("nan,5,3", "arrival is not finite"),
        ("inf,5,3", "arrival is not finite"),
        ("soon,5,3", "arrival is no time"),
        ("1e300,5,3", "arrival is out of range"),
        (",5,3", "arrival is missing"),
        ("0", "row is too short"),
        ("x" * (MAX_LINE + 1), "line longer than 10 MiB"),
    ],
)
def test_se_05_a_hostile_row_is_skipped_and_counted(row: str, reason: str) -> None:
    made = replay("t.csv", f"{HEAD}{row}\n{GOOD}")
    assert made.code == 0, made.err
    assert own()["skipped"] == {reason: 1}
    assert f"Rows skipped: {{'{reason}': 1}}" in made.out
    assert own()["completed"] == 1


def test_a_trace_without_one_good_row_is_refused() -> None:
    message = "t.csv: no row can be a request: skipped 1 of 1 rows: prompt < 1 (first at line 2)"
    assert replay("t.csv", f"{HEAD}0,-5,3\n").complaint == message
    assert replay("t.csv", HEAD).complaint == "t.csv: no row can be a request: the file has none"
    assert not Path("out").exists()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n\n\n",
        b"a,b\n1,2\n",
        b"\x00" * 1000,
        bytes(range(256)) * 50,
        b"[" * 100_000,
        b"{" * 100_000,
        b'{"timestamp": 1, "input_length": ',
        b"x" * (MAX_LINE + 1),
        b'"' + b"y" * 200_000 + b'",2,3\n',
        HEAD.encode() + b'"' + b"y" * 200_000 + b'",2,3\n',
    ],
    ids=["empty", "blank", "columns", "nul", "binary", "[[[", "{{{", "cut", "long", "long name", "long cell"],
)
def test_a_file_that_is_no_trace_is_refused_in_one_line(content: bytes) -> None:
    complaint = replay("t.csv", content).complaint
    assert complaint.startswith("t.csv")
    assert len(complaint) < 1000


@pytest.mark.parametrize("name", ["t.csv.gz", "t.csv.xz"])
def test_a_file_that_is_not_compressed_as_its_name_says_is_refused(name: str) -> None:
    assert replay(name, HEAD + GOOD).complaint.startswith(f"{name}: cannot be read: ")


def test_what_the_server_cannot_hold_is_rejected_and_counted() -> None:
    rows = "0,511,1\n0,512,1\n0,5000,1\n0,500,9999\n"
    made = replay("t.csv", HEAD + rows, "--set", "kv.num_gpu_blocks_override=33")
    assert made.code == 0
    assert own()["rejected_by_reason"] == {"prompt >= max_model_len": 2}
    assert (own()["completed"], own()["stopped_by_length"]) == (2, 1)
    made = replay("t.csv", HEAD + rows, "--set", "kv.num_gpu_blocks_override=3")
    assert "Rejected: 4 " in made.out
    assert own()["rejected_by_reason"] == {
        "needs more KV blocks than there are": 2,
        "prompt >= max_model_len": 2,
    }


def test_hostile_ids_are_kept_visible_and_escaped() -> None:
    ids = [
        "<script>x()</script>",
        "a\nb",
        "a\rb",
        "=cmd()",
        "x" * 9999,
        "\x1b[2J",
        'q",',
        "../../x",
        "\0",
        "ü",
    ]
    rows = [{"timestamp": 1, "input_length": 50, "output_length": 9, "id": each} for each in ids]
    Path("t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    made = servetwin("run", "tiny-cpu", "--trace", "t.jsonl", "--log", "all", "-o", "out")
    assert made.code == 0, made.err
    visible = [each if each.isprintable() else ascii(each)[1:-1] for each in ids]
    assert load_run("out").requests["id"].tolist() == visible
    assert "<script>x()" not in Path("out/report.html").read_text(encoding="utf-8")
    assert servetwin("diff", "out", "out").code == 0


def test_half_a_character_in_an_id_is_no_crash() -> None:
    row = '{"timestamp": 1, "input_length": 50, "output_length": 9, "id": "\\ud800"}'
    assert replay("t.jsonl", row, "--log", "all").code == 0
    assert load_run("out").summary["completed"] == 1


def test_a_request_after_years_costs_no_memory() -> None:
    assert replay("t.csv", f"{HEAD}0,10,5\n300000000,10,5\n").code == 0
    assert own()["completed"] == 2
