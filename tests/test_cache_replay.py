"""Cache replay: exact numbers of public traces; what the command prints, writes and refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import servetwin
from hypothesis import given, settings
from hypothesis import strategies as st

import simulator
from simulator import CacheResult, ConfigError, InputError, Workload, load_trace, replay_cache
from simulator.experiments.cache_accesses import Accesses
from simulator.experiments.cache_replay import CacheReplay
from simulator.experiments.cache_replay import replay_cache as replay
from simulator.experiments.cache_report import cache_html
from simulator.kv.eviction import EVICTIONS
from simulator.workload.trace_blocks import TraceBlocks


def workload(prompts: list[list[int]], lengths: list[int] | None = None, block_size: int = 16) -> Workload:
    """Make requests with these prefix ids; a prompt fills its blocks unless its length is given."""
    offsets = np.cumsum([0, *(len(ids) for ids in prompts)])
    blocks = TraceBlocks.of_ids(np.array([i for p in prompts for i in p], np.int64), offsets, block_size)
    tokens = np.array(lengths or [len(ids) * block_size for ids in prompts], np.int64)
    return Workload(
        arrival=np.arange(len(prompts), dtype=np.float64),
        num_prompt=tokens,
        num_output=np.ones(len(prompts), np.int64),
        blocks=blocks,
        source="toy.jsonl",
    )


def rates(found: CacheReplay, eviction: str) -> list[float]:
    """Hit rates by capacity, in percent to one digit."""
    return [round(100 * found.hit_rate(p), 1) for p in found.points if p.eviction == eviction]


@pytest.mark.parametrize(
    ("trace", "vllm_rules", "unlimited", "lru"),
    [
        pytest.param(
            *("conversation", False, 36.6, {1_000: 4.5, 10_000: 21.2, 50_000: 35.5, 100_000: 36.4}),
            marks=pytest.mark.slow,
        ),
        ("conversation", False, 36.6, {10_000: 21.2}),
        ("synthetic", False, 64.0, {1_000: 8.4, 10_000: 42.4, 50_000: 64.0}),
        ("conversation", True, 36.6, {10_000: 21.5}),
        ("synthetic", True, 63.8, {10_000: 43.4}),
    ],
)
def test_lru_on_mooncake_traces(
    shared_data: Path, trace: str, vllm_rules: bool, unlimited: float, lru: dict[int, float]
) -> None:
    """Hit shares that were computed independently of this package (README of the trace collection)."""
    mooncake = load_trace(shared_data / "traces" / f"mooncake_{trace}_trace.jsonl.gz")
    found = replay(mooncake, ["lru"], list(lru), vllm_rules=vllm_rules)
    assert rates(found, "lru") == list(lru.values())
    assert round(100 * found.hit_rate(found.unlimited), 1) == unlimited
    assert all(best >= plain for best, plain in zip(rates(found, "belady"), lru.values(), strict=True))


def test_tokens_of_an_unlimited_cache(shared_data: Path) -> None:
    mooncake = load_trace(shared_data / "traces" / "mooncake_conversation_trace.jsonl.gz")
    found = replay(mooncake, [], [200_000])
    assert found.num_distinct == 182_790
    assert round(found.unlimited.hit_tokens / found.num_tokens, 3) == 0.374
    assert found.points[0][2:] == found.unlimited[2:]


@pytest.mark.slow
def test_sessions_of_an_agent_hit_almost_always(shared_data: Path) -> None:
    accesses = Accesses.of(load_trace(shared_data / "traces" / "agentic_coding_sessions.jsonl.xz"))
    assert round(accesses.unlimited_hits().sum() / accesses.num_blocks.sum(), 3) == 0.963


def test_only_full_blocks_hit_under_vllms_rules_and_never_the_whole_prompt() -> None:
    w = workload([[0, 1, 2], [0, 1, 2], [0, 1]], lengths=[40, 40, 32])
    plain, ruled = (replay(w, [], [10], vllm_rules=rules).unlimited for rules in (False, True))
    assert (plain.hit_blocks, plain.hit_tokens) == (3 + 2, 40 + 32)
    assert (ruled.hit_blocks, ruled.hit_tokens) == (2 + 1, 32 + 16)
    assert replay(w, [], [10], vllm_rules=True).num_blocks == 8


def test_smaller_blocks_split_the_ids_of_a_trace() -> None:
    found = replay(workload([[0, 1], [0, 2]], block_size=32), [], [100], block_size=16)
    assert (found.num_blocks, found.num_distinct, found.unlimited.hit_blocks) == (8, 6, 2)


def test_ids_that_are_not_chained_are_told_apart() -> None:
    """Block 5 after 0 and block 5 after 1 are two blocks; so are the two of one prompt."""
    found = replay(workload([[0, 5], [1, 5], [5, 5]]), [], [100])
    assert found.unlimited.hit_blocks == 0
    assert found.num_distinct == 6


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 5), max_size=5), min_size=1, max_size=12).filter(any),
    st.integers(1, 16),
    st.sampled_from([None, 8, 16, 24]),
    st.booleans(),
)
def test_hits_lie_between_none_and_those_of_a_cache_without_limit(
    prompts: list[list[int]], short: int, block_size: int | None, vllm_rules: bool
) -> None:
    lengths = [max(16 * len(ids) - short + 1, 1) for ids in prompts]
    w = workload(prompts, lengths)
    found = replay(w, tuple(EVICTIONS), [0, 1, 3, 1000], block_size, vllm_rules=vllm_rules)
    best = {p.capacity: p.hit_blocks for p in found.points if p.eviction == "belady"}
    assert all(0 <= p.hit_blocks <= best[p.capacity] <= found.unlimited.hit_blocks for p in found.points)
    assert all(0 <= p.hit_tokens <= found.num_tokens for p in found.points)
    assert {p.hit_blocks for p in found.points if p.capacity == 1000} == {found.unlimited.hit_blocks}
    assert {p.hit_blocks for p in found.points if p.capacity == 0} == {0}
    assert found == replay(w, tuple(EVICTIONS), [0, 1, 3, 1000], block_size, vllm_rules=vllm_rules)


def test_the_gap_is_measured_from_lru_to_belady() -> None:
    loop = workload([[2 * i] for i in (0, 1, 2)] * 4)  # the worst case of LRU

    def mru(block: Any, ctx: Any) -> float:
        return -block.last_used

    rows = {row["eviction"]: row for row in replay(loop, {"newest": mru}, [2]).rows()}
    assert list(rows) == ["lru", "newest", "belady"]
    assert (rows["lru"]["hit_rate"], rows["belady"]["hit_rate"]) == (0, 5 / 12)
    assert (rows["lru"]["gap_closed"], rows["newest"]["gap_closed"]) == (0.0, 1.0)
    assert rows["lru"]["gap_to_belady"] == 5 / 12
    assert {row["gap_closed"] for row in replay(loop, [], [3]).rows()} == {None}


def test_a_notebook_gets_a_frame_a_figure_and_a_page(tmp_path: Path) -> None:
    found = replay_cache(workload([[0, 1], [0, 2], [0, 1]]), ["sieve"], [2, 4])
    assert isinstance(found, CacheResult)
    assert found.table.groupby("eviction").size().to_dict() == {"belady": 2, "lru": 2, "sieve": 2}
    assert [trace.name for trace in found.plot().data] == ["lru", "sieve", "belady (bound)"]
    assert "Share of blocks that hit" in found._repr_html_()
    assert sorted(path.name for path in found.save(tmp_path).iterdir()) == ["cache.html", "cache.json"]


@pytest.mark.parametrize(
    ("evictions", "capacities", "block_size", "complaint"),
    [
        (["lur"], [1], None, "kv.eviction: unknown 'lur'; did you mean lru"),
        (["lru"], [-1], None, "capacities: must be whole numbers of blocks >= 0, got -1"),
        (["lru"], [1.5], None, "capacities: .* got 1.5"),
        (["lru"], [], None, "capacities: name at least one"),
        (["lru"], [1], 0, "block_size: must be >= 1"),
        ([3], [1], None, "kv.eviction: 'int' is neither"),
        ([EVICTIONS["sieve"]()], [1], None, "kv.eviction: 'Sieve' is neither"),  # type: ignore[operator, call-arg]
        ({"lru": EVICTIONS["lfu"]}, [1], None, "two evictions are called 'lru'"),
    ],
)
def test_what_cannot_be_replayed_is_told(
    evictions: Any, capacities: Any, block_size: int | None, complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        replay_cache(workload([[0, 1], [0, 1]]), evictions, capacities, block_size)


def test_a_trace_without_prefix_ids_is_refused() -> None:
    bare = Workload(np.zeros(1), np.ones(1, np.int64), np.ones(1, np.int64), source="azure.csv")
    with pytest.raises(InputError, match="has no prefix ids"):
        replay_cache(bare)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    rows = [
        {
            "timestamp": i * 1000,
            "input_length": 1500,
            "output_length": 1,
            "hash_ids": [0, 2 * k + 1, 2 * k + 2],
        }
        for i, k in enumerate([0, 1, 0, 2, 1, 0])
    ]
    path = tmp_path / "<b>toy.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_the_command_prints_and_writes(trace: Path, tmp_path: Path) -> None:
    done = servetwin(
        "cache", trace, "--eviction", "lfu,sieve", "--capacity-blocks", "3,5", "-o", tmp_path / "o"
    )
    assert done.code == 0, done
    assert "18 blocks of 512 tokens" in done.out
    assert [line.split()[0] for line in done.out.splitlines()[4:8]] == ["lru", "lfu", "sieve", "belady"]
    assert "bounds this replay alone" in done.out
    saved = json.loads((tmp_path / "o" / "cache.json").read_text())
    assert {(p["eviction"], p["capacity_blocks"]) for p in saved["points"]} >= {("lfu", 3), ("belady", 5)}
    page = (tmp_path / "o" / "cache.html").read_text()
    assert "<b>toy" not in page
    assert "&lt;b&gt;toy" in page


def test_json_is_all_there_is_on_stdout(trace: Path, tmp_path: Path) -> None:
    done = servetwin("cache", trace, "--json", "--quiet", "-o", tmp_path / "o")
    assert json.loads(done.out) == json.loads((tmp_path / "o" / "cache.json").read_text())
    assert done.err == ""


def test_an_eviction_of_a_notebook_is_told_as_one_of_a_file(trace: Path) -> None:
    def broken(block: simulator.Block, ctx: Any) -> Any:
        return ctx.nothing

    with pytest.raises(ConfigError, match=r"^kv\.eviction: mine \(.*\.py:\d+\): AttributeError: ") as caught:
        replay_cache(load_trace(trace), {"mine": broken, "lfu": EVICTIONS["lfu"]}, [4])
    assert isinstance(caught.value.__cause__, AttributeError)


def test_evictions_from_a_users_file(trace: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "def newest(block, ctx):\n    return -block.last_used\n\n"
        "def broken(block, ctx):\n    return ctx.nothing\n\n"
        "class Half:\n    def evict(self, ctx): ...\n\n"
        "class Stack:\n"
        "    def __init__(self):\n        self.blocks = []\n"
        "    def hit(self, block, ctx):\n        self.blocks.remove(block)\n"
        "    def release(self, block, ctx):\n        self.blocks.append(block)\n"
        "    def evict(self, ctx):\n"
        "        return self.blocks.pop(next(i for i, b in enumerate(self.blocks) if not b.pinned))\n"
    )
    args = ("cache", trace, "--capacity-blocks", "4", "-o", tmp_path / "o", "--eviction")
    done = servetwin(*args, f"{file}:newest,{file}:Stack")
    assert done.code == 0, done
    assert f"{file}:Stack" in done.out
    told = servetwin(*args, f"{file}:broken").complaint
    assert told.startswith(f"kv.eviction: broken ({file}:5): AttributeError")
    told = servetwin(*args, f"{file}:Half").complaint
    assert told.endswith(f"Half in {file} has no release(block, ctx), no hit(block, ctx)")
    assert "has no 'nwest'; did you mean newest?" in servetwin(*args, f"{file}:nwest").complaint


@pytest.mark.parametrize("given", ["1,x", "-5", "", "1e9", "²", "9" * 400])
def test_capacities_that_are_none(trace: Path, given: str, tmp_path: Path) -> None:
    done = servetwin("cache", trace, f"--capacity-blocks={given}", "-o", tmp_path / "o")
    assert done.complaint.startswith("--capacity-blocks ")


def test_the_same_replay_gives_the_same_page() -> None:
    w = workload([[0, 1], [0, 2], [0, 1]])
    assert cache_html(replay(w, ["slru"], [0, 2])) == cache_html(replay(w, ["slru"], [0, 2]))
