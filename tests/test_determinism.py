"""The same scenario gives the same bytes, whatever the hash seed, the time zone and the working folder."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from command import spawn

from simulator.config.loading import load_scenario
from simulator.config.run import run_scenario

PLACES = [("0", "UTC"), ("1", "Asia/Tokyo"), ("2", "America/New_York")]


def write_trace(path: Path) -> None:
    """Write 60 requests of a few conversations, whose prompts share blocks as Mooncake's do."""
    rng = random.Random(1)
    with path.open("w") as file:
        for i in range(60):
            talk, turns = rng.randrange(4), rng.randrange(1, 6)
            row = {
                "timestamp": 150 * i,
                "input_length": 512 * turns - rng.randrange(512),
                "output_length": rng.randrange(1, 30),
                "hash_ids": [100 * talk + turn for turn in range(turns)],
            }
            file.write(json.dumps(row) + "\n")


def outputs(folder: Path, name: str, *args: object) -> list[dict[str, bytes]]:
    """Run a scenario in each place and return all files it wrote, place by place."""
    written = []
    for hash_seed, zone in PLACES:
        cwd = folder / f"from-{hash_seed}"
        cwd.mkdir()
        made = spawn(
            "run",
            name,
            "-o",
            "out",
            "--log",
            "all",
            *args,
            cwd=cwd,
            env={"PYTHONHASHSEED": hash_seed, "TZ": zone},
        )
        assert made.code == 0, made.err
        written.append({path.name: path.read_bytes() for path in (cwd / "out").iterdir()})
    return written


def test_de_02_a_generated_workload_gives_the_same_bytes_everywhere(tmp_path: Path) -> None:
    one, *others = outputs(tmp_path, "tiny-cpu", "--seed", 7)
    assert others == [one, one]


def test_de_02_a_trace_with_shared_prefixes_gives_the_same_bytes_everywhere(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    write_trace(trace)
    flags = (
        "--trace",
        trace,
        "--set",
        "kv.num_gpu_blocks_override=400",
        "--no-report",
        "--set",
        "workload.spread_ms=300",
    )
    one, *others = outputs(tmp_path, "chat-a100", *flags)
    assert others == [one, one]
    own = json.loads((tmp_path / "from-0" / "out" / "summary.json").read_text())["servetwin"]
    assert own["prefix_cache_hits"] > 0
    assert own["evicted_blocks"] > 0


@pytest.mark.parametrize("key", ["workload.arrivals", "workload.lengths"])
def test_another_seed_gives_another_workload_and_a_policy_does_not(key: str) -> None:
    from simulator.config.build_workload import build_workload
    from simulator.config.loading import load_scenario

    scenario = load_scenario("tiny-cpu")
    same = build_workload(scenario.with_(**{"scheduler.order": "priority"}), 512)
    other = build_workload(scenario.with_(seed=1), 512)
    column = "arrival" if key == "workload.arrivals" else "num_prompt"
    one = getattr(build_workload(scenario, 512), column).tolist()
    assert getattr(same, column).tolist() == one
    assert getattr(other, column).tolist() != one


def test_de_02_the_order_of_keys_in_a_scenario_changes_nothing() -> None:
    def turned(value: object) -> object:
        if isinstance(value, dict):
            return {key: turned(each) for key, each in reversed(value.items())}
        return value

    scenario = load_scenario("tiny-cpu")
    backwards = turned(scenario.to_dict())
    assert isinstance(backwards, dict)
    assert run_scenario(load_scenario(backwards)).summary == run_scenario(scenario).summary
