"""The replay of recorded decisions: it agrees with vLLM, and it notices every kind of deviation."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import conformance
import pytest
from conformance import main, read_cases, replay
from conformance_sample import record

SAMPLE = Path(__file__).parent / "data" / "conformance_sample.jsonl"


@pytest.mark.parametrize(("file", "num_cases"), [("core", 30), ("extended", 30), ("speculative", 15)])
def test_every_decision_is_vllms(
    shared_data: Path, capsys: pytest.CaptureFixture[str], file: str, num_cases: int
) -> None:
    assert main([str(shared_data / "conformance" / f"{file}.jsonl.gz")]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == f"cases {num_cases} steps {160 * num_cases} differences 0"
    assert re.fullmatch(r"aggregate path: \d+\.\d % of steps", second)


def test_the_books_add_up_around_vllms_decisions(shared_data: Path) -> None:
    for file in ("extended", "speculative"):
        cases = list(read_cases(shared_data / "conformance" / f"{file}.jsonl.gz"))
        for case in cases[::3]:
            assert replay(case, check_invariants=True)[0] == []


def test_a_changed_draft_is_noticed(shared_data: Path) -> None:
    case = next(read_cases(shared_data / "conformance" / "speculative.jsonl.gz"))
    number, changed = mutated(case, "draft_tokens_scheduled", drop_one)
    assert [found[1:3] for found in replay(changed)[0]] == [(number, "draft_tokens_scheduled")]


def test_our_own_sample_has_not_changed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(SAMPLE)]) == 0
    assert capsys.readouterr().out.startswith("cases 5 steps 150 differences 0\naggregate path: ")


def test_a_fresh_recording_replays_too() -> None:
    for seed in range(100, 110):
        case = json.loads(json.dumps(record(seed)))
        assert replay(case, check_invariants=True)[0] == []


def swap_first_two(step: dict[str, Any], field: str) -> None:
    step[field][:2] = reversed(step[field][:2])


def one_more(step: dict[str, Any], field: str) -> None:
    key = next(iter(step[field]))
    step[field][key] += 1


def drop_one(step: dict[str, Any], field: str) -> None:
    step[field].pop(next(iter(step[field]))) if isinstance(step[field], dict) else step[field].pop()


def add_one(step: dict[str, Any], field: str) -> None:
    step[field] += 1


def a_token_more(step: dict[str, Any], field: str) -> None:
    step[field][0][1] += 1


def a_stranger(step: dict[str, Any], field: str) -> None:
    step[field].append("stranger")


MUTATIONS: list[tuple[str, Callable[[dict[str, Any], str], None]]] = [
    ("scheduled", swap_first_two),
    ("scheduled", a_token_more),
    ("scheduled", drop_one),
    ("preempted", drop_one),
    ("preempted", a_stranger),
    ("admitted_cached_tokens", one_more),
    ("admitted_cached_tokens", drop_one),
    ("free_blocks", add_one),
    ("held_blocks", one_more),
    ("held_blocks", drop_one),
    ("running", swap_first_two),
    ("running", drop_one),
    ("waiting", swap_first_two),
    ("waiting", drop_one),
    ("sampled", drop_one),
    ("finished", drop_one),
    ("finished", a_stranger),
    ("free_blocks_after", add_one),
]


@pytest.mark.parametrize(("field", "mutate"), MUTATIONS)
def test_a_changed_record_is_noticed(
    field: str,
    mutate: Callable[[dict[str, Any], str], None],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    cases = list(read_cases(SAMPLE))
    number, changed = mutated(cases[1], field, mutate)
    assert replay(changed)[0][0][1:3] == (number, field)
    file = tmp_path / "changed.jsonl"
    file.write_text("\n".join(json.dumps(case) for case in (cases[0], changed)))
    assert main([str(file)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("cases 2 steps 60 differences ")
    assert int(lines[0].split()[-1]) > 0
    assert lines[1].startswith("aggregate path: ")
    assert lines[2] == f"first difference: self-made seed 1, step {number}, field {field}"
    assert lines[3] == f"  recorded {conformance.recorded(changed['steps'][number])[field]}"
    assert lines[4].startswith("  ours     ")


def mutated(
    case: dict[str, Any], field: str, mutate: Callable[[dict[str, Any], str], None]
) -> tuple[int, dict[str, Any]]:
    """Change the first step in which the field has enough in it to be changed."""
    for number, step in enumerate(case["steps"]):
        changed = copy.deepcopy(case)
        try:
            mutate(changed["steps"][number], field)
        except (IndexError, StopIteration):
            continue
        if changed["steps"][number] != step:
            return number, changed
    raise AssertionError(f"no step of the sample can have its {field} changed")


@pytest.mark.parametrize(
    ("setting", "value"), [("usable_blocks", 12), ("max_num_seqs", 1), ("max_num_batched_tokens", 6)]
)
def test_another_limit_is_noticed(setting: str, value: int) -> None:
    case = next(read_cases(SAMPLE))
    assert replay(case)[0] == []
    case["config"][setting] = value
    assert replay(case)[0]


def test_without_a_file_the_tool_says_how_to_call_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "python tests/conformance.py FILE" in capsys.readouterr().out
