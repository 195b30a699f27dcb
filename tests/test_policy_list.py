"""`servetwin list policies`: every entry of every table in a line, with where it comes from."""

from __future__ import annotations

import json
from typing import get_args

import pytest
from command import servetwin

from simulator.config.axes import AXES
from simulator.config.scenario import Scenario
from simulator.experiments.policy_list import OWN, all_choices, describe, policies_as_dict
from simulator.schedulers.preempting import Preemption

ENTRIES = [(axis, name) for axis, each in all_choices().items() for name in each.entries]


@pytest.mark.parametrize(("axis", "name"), ENTRIES)
def test_every_policy_says_in_a_sentence_what_it_does(axis: str, name: str) -> None:
    what, source = all_choices()[axis].entries[name]
    assert len(what) > 15
    assert what[0].isupper()
    assert what.count("(") == what.count(")")
    assert source


def test_the_list_has_a_line_for_each_policy_and_one_for_ones_own() -> None:
    lines = servetwin("list", "policies").out.splitlines()
    assert [line.split()[0] for line in lines if line.startswith("  ")] == [
        name
        for axis in all_choices().values()
        for name in (*axis.entries, *(["file.py:name"] if axis.own else []))
    ]
    (default,) = [line for line in lines if line.startswith("  lru ")]
    assert default.endswith("Least recently released first, of one sequence the tail first "
                            "(vLLM; rules 7.1 to 7.3) [default]")  # fmt: skip
    assert "victim (scheduler.victim; default null: last_admitted, under priority least_important)" in lines
    assert sum(line.endswith("[default]") for line in lines) == 4  # batching, order, preemption, eviction


def test_the_list_as_json_holds_the_same() -> None:
    found = json.loads(servetwin("list", "policies", "--json").out)["policies"]
    assert found == policies_as_dict()
    assert list(found) == ["batching", "order", "victim", "preemption", "admission", "eviction", "router"]
    assert found["eviction"]["entries"]["sieve"]["source"] == "NSDI 2024, alg. 1"
    assert found["order"]["default"] == "fcfs"
    assert [name for name, axis in found.items() if axis["own"] is None] == ["preemption"]
    assert list(found["preemption"]["entries"]) == list(get_args(Preemption))


def test_a_new_entry_of_a_table_appears_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def oldest(seq: object, ctx: object) -> float:
        """Oldest first, in 1.5 of two ways (Doe, J. (ed.), 2026). Nothing else (at all)."""
        return 0.0

    def plain(seq: object, ctx: object) -> float:
        return 0.0

    monkeypatch.setitem(AXES["scheduler.victim"].table, "oldest", oldest)  # type: ignore[arg-type]
    monkeypatch.setitem(AXES["scheduler.victim"].table, "plain", plain)  # type: ignore[arg-type]
    lines = servetwin("list", "policies").out.splitlines()
    (line,) = [line for line in lines if line.startswith("  oldest ")]
    assert line.split(maxsplit=1)[1] == "Oldest first, in 1.5 of two ways (Doe, J. (ed.), 2026)"
    assert describe(plain.__doc__) == describe("") == ("", OWN)
    assert describe("Odd :-)") == ("Odd :-)", OWN)


def test_every_axis_has_a_key_of_the_scenario() -> None:
    for axis in AXES.values():
        axis.value(Scenario())
