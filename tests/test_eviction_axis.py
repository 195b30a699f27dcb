"""`kv.eviction` as a key of a scenario: names, files, Python objects, and how their mistakes are told."""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path
from typing import Any

import pytest
from command import servetwin

from simulator.api import compare, simulate
from simulator.config.build import NO_POLICIES, build_machine
from simulator.config.build_scheduler import build_scheduler
from simulator.config.loading import load_scenario
from simulator.errors import ConfigError, SimulatorError
from simulator.experiments.run_folder import load_run
from simulator.kv.block_manager import BlockManager
from simulator.kv.cached_block import Block
from simulator.kv.eviction import EVICTIONS
from simulator.kv.eviction_queues import Sieve
from simulator.latency.linear import LinearModel
from simulator.schedulers.chunked import Chunked

SOURCE = """\
def newest(block, ctx):
    return -block.last_used


class Stack:
    def __init__(self):
        self.blocks = []

    def hit(self, block, ctx):
        self.blocks.remove(block)

    def release(self, block, ctx):
        self.blocks.append(block)

    def evict(self, ctx):
        return self.blocks.pop(next(i for i, b in enumerate(self.blocks) if not b.pinned))


class Blind(Stack):
    def evict(self, ctx):
        return self.blocks.pop(0) if ctx.now < 10 else self.blocks.pop()


def broken(block, ctx):
    return block.age  # line 25


def nan(block, ctx):
    return float("nan")
"""


SCENARIO = """\
model: {name: llama-3.1-8b, max_model_len: 4096}
kv: {num_gpu_blocks_override: 401, eviction: lfu}
latency: {kind: linear, coefficients: {constant: 0.01, per_token: 0.0001}}
workload: {trace: trace.jsonl, format: mooncake}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a policy file and a scenario whose trace has prefixes."""
    monkeypatch.chdir(tmp_path)
    rng = random.Random(5)
    rows = []
    for i in range(60):
        ids = [rng.randint(0, 1), 10 + rng.randint(0, 8), 100 + i, 1000 + i]
        row = {"timestamp": 400 * i, "input_length": 1800, "output_length": 9, "hash_ids": ids}
        rows.append(json.dumps(row) + "\n")
    Path("trace.jsonl").write_text("".join(rows))
    Path("mine.py").write_text(SOURCE)
    Path("s.yaml").write_text(SCENARIO)
    return tmp_path


def run_command(*args: object, out: str = "out") -> dict[str, Any]:
    outcome = servetwin("run", "s.yaml", "--no-report", "--quiet", "-o", out, *args)
    assert outcome == (0, "", ""), outcome
    own: Any = load_run(out).summary["servetwin"]
    return dict(own)


def key(value: str) -> tuple[str, str]:
    return ("--set", f"kv.eviction={value}")


@pytest.mark.usefixtures("folder")
def test_every_eviction_runs_and_hits_by_its_own_lights() -> None:
    hits = {name: run_command(*key(name))["prefix_cache_hits"] for name in EVICTIONS}
    assert hits["lfu"] > hits["lru"]
    assert len(set(hits.values())) >= 4
    assert run_command()["prefix_cache_hits"] == hits["lfu"]  # what the scenario names
    result = simulate("s.yaml", eviction="lru", bottleneck=False)
    assert result.summary["servetwin"]["prefix_cache_hits"] == hits["lru"]


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("name", sorted(EVICTIONS))
def test_the_same_seed_gives_the_same_bytes(name: str) -> None:
    for out in ("a", "b"):
        run_command(*key(name), out=out)
    for file in ("summary.json", "requests.csv"):
        assert Path("a", file).read_bytes() == Path("b", file).read_bytes()


def test_a_file_is_resolved_trusted_and_copied_like_any_policy(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_command(*key("mine.py:newest"))
    assert Path("out/mine.py").read_text() == SOURCE
    digest = hashlib.sha256(SOURCE.encode()).hexdigest()
    lines = Path("out/scenario.yaml").read_text().splitlines()
    assert lines[0] == f"# mine.py sha256 {digest}"
    assert "  eviction: mine.py:newest" in lines
    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    again = ("run", folder / "out", "--no-report", "--quiet", "-o", "again")
    refused = servetwin(*again).complaint
    assert refused.startswith("kv.eviction: ")
    assert refused.endswith(
        "is code in a file; name it on the command line, or read it and pass --trust (in Python trust=True)"
    )
    assert servetwin(*again, "--trust").code == 0
    assert Path("again/requests.csv").read_bytes() == (folder / "out/requests.csv").read_bytes()


@pytest.mark.usefixtures("folder")
def test_a_function_or_class_of_ones_own_is_the_policy() -> None:
    def newest(block: Block, ctx: Any) -> float:
        return -block.last_used

    def requests(eviction: Any) -> Any:
        return simulate("s.yaml", eviction=eviction, bottleneck=False).requests

    assert requests(newest).equals(requests("mine.py:newest"))
    assert not requests(newest).equals(requests("lru"))
    assert requests(Sieve).equals(requests("sieve"))
    assert not requests("mine.py:Stack").equals(requests("sieve"))
    own = simulate("s.yaml", eviction=Sieve, bottleneck=False).summary["servetwin"]
    assert own["scenario"]["kv"]["eviction"] == "sieve"
    with pytest.raises(ConfigError, match=r"^kv\.eviction: int is not a function of"):
        simulate("s.yaml", eviction=3)  # type: ignore[arg-type]


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ("lur", "kv.eviction: unknown 'lur'; did you mean lru?, or file.py:name"),
        ("belady", "kv.eviction: unknown 'belady'; known: "),
        ("mine.py:newst", "kv.eviction: mine.py has no 'newst'; did you mean newest?"),
        (
            "mine.py:broken",
            "kv.eviction: broken (mine.py:25): AttributeError: 'Block' object has no attribute 'age' in ",
        ),
        ("mine.py:nan", "kv.eviction: nan gave a block (depth "),
        ("mine.py:Blind", "kv.eviction: Blind.evict returned a block with followers (depth "),
    ],
)
def test_a_mistake_is_told_in_one_line(value: str, complaint: str) -> None:
    told = servetwin("run", "s.yaml", "--no-report", "--quiet", "-o", "out", *key(value)).complaint
    assert told.startswith(complaint)
    assert not Path("out").exists()


@pytest.mark.usefixtures("folder")
def test_check_list_and_compare_know_evictions() -> None:
    assert servetwin("check", "s.yaml", *key("gdsf")).code == 0
    assert servetwin("check", "s.yaml", *key("gdfs")).complaint.startswith("kv.eviction: unknown 'gdfs'; did")
    listed = json.loads(servetwin("list", "policies", "--json").out)["policies"]["eviction"]
    assert list(listed["entries"]) == list(EVICTIONS)
    told = servetwin(
        "compare", "s.yaml", "--vary", "kv.eviction=lru,lfu,mine.py:newest", "-o", "out", "--quiet"
    )
    assert told.code == 0, told
    found = compare(
        "s.yaml", {name: {"kv.eviction": name} for name in ("lru", "lfu")}, metric="prefix_hit_rate"
    )
    assert found.winner == "lfu"


def test_a_price_without_a_latency_model_is_refused() -> None:
    scheduler = Chunked(BlockManager(4, 16))
    with pytest.raises(SimulatorError, match="no latency model"):
        scheduler.ctx.recompute_time(16, 0)


def test_a_block_costs_its_share_of_a_full_chunk_behind_what_comes_before() -> None:
    latency = LinearModel(constant=0.5, per_token=0.25, per_prefill_work=0.125)
    scheduler = Chunked(BlockManager(4, 16), latency=latency, max_num_batched_tokens=8, max_num_seqs=8)
    step = 0.5 + 8 * 0.25 + 0.125 * 8 * (32 + 4)
    assert scheduler.ctx.recompute_time(2, 32) == step * 2 / 8


@pytest.mark.parametrize("gpu", ["a100-80gb-sxm", "h100-80gb-sxm"])
def test_prices_rise_with_depth(gpu: str) -> None:
    """So that a run's key, its last block's, is the highest of its blocks'."""
    scenario = load_scenario("chat-a100").with_(**{"hardware.gpu": gpu})
    scheduler = build_scheduler(scenario, build_machine(scenario), NO_POLICIES)
    prices = [scheduler.ctx.recompute_time(16, start) for start in range(0, 16_384, 16)]
    assert prices == sorted(prices)
