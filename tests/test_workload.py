"""The workload's columns, its changes, its figures, and prefix ids as block hashes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.config.build import build_machine
from simulator.config.loading import load_scenario
from simulator.config.run import run_scenario
from simulator.config.scenario import Scenario
from simulator.errors import ConfigError
from simulator.request import Request
from simulator.workload import Workload, describe, generate, read_trace
from simulator.workload.trace_blocks import MAX_HASH, TraceBlocks

POISSON = {"kind": "poisson", "rate": 5.0}
LENGTHS = {"kind": "exponential", "prompt": 500, "output": 50}


def make(arrival: list[float], **columns: object) -> Workload:
    n = len(arrival)
    given = {"num_prompt": np.full(n, 100), "num_output": np.full(n, 10)} | columns
    return Workload(np.array(arrival), **given)  # type: ignore[arg-type]


def with_ids(ids: list[list[int]], num_prompt: list[int], block: int = 512) -> Workload:
    offsets = np.cumsum([0, *(len(x) for x in ids)])
    blocks = TraceBlocks.of_ids(np.array([i for x in ids for i in x], np.int64), offsets, block)
    return make([float(i) for i in range(len(ids))], num_prompt=np.array(num_prompt), blocks=blocks)


def hashes(w: Workload) -> list[list[int]]:
    return [[h for lo, hi in r.block_hashes for h in range(lo, hi)] for r in w.requests]


def cached_tokens(w: Workload) -> list[int]:
    """What an unlimited cache gives each request; the last prompt token is always computed."""
    seen: set[int] = set()
    out = []
    for request, named in zip(w.requests, hashes(w), strict=True):
        full = (request.num_prompt - 1) // w.block_size
        hit = next((i for i, h in enumerate(named[:full]) if h not in seen), len(named[:full]))
        out.append(hit * w.block_size)
        seen.update(named)
    return out


def test_requests_are_made_on_demand_from_the_columns() -> None:
    w = make(
        [0.0, 2.0],
        max_tokens=np.array([7, 0]),
        tenants=["a", "b"],
        ids=["x", "y"],
        timeout=np.array([3, np.nan]),
    )
    assert w.requests[1] == Request("y", 2.0, 100, 10, 2048, tenant="b")
    assert list(w.requests) == [Request("x", 0.0, 100, 10, 7, tenant="a", timeout=3.0), w.requests[-1]]
    assert w.requests[:1] == [w.requests[0]]
    with pytest.raises(IndexError):
        w.requests[2]


@pytest.mark.parametrize(
    ("arrival", "columns"),
    [
        ([1.0, 0.0], {}),
        ([-1.0], {}),
        ([0.0, np.inf], {}),
        ([0.0], {"num_output": np.array([0])}),
        ([0.0], {"num_prompt": np.array([1, 2])}),
        ([0.0], {"ids": ["a", "b"]}),
    ],
)
def test_impossible_columns_are_refused(arrival: list[float], columns: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"arrival|rows|num_prompt"):
        make(arrival, **columns)


def test_a_window_keeps_its_rows_and_starts_at_0() -> None:
    w = make([0.0, 1.0, 2.0, 3.0], ids=list("abcd"), priority=np.arange(4))
    part = w.window(1.0, 2.0)
    assert (part.arrival.tolist(), part.ids, part.priority.tolist()) == ([0.0, 1.0], ["b", "c"], [1, 2])
    assert w.window(1.0, limit=1).ids == ["b"]
    with pytest.raises(ConfigError, match="no request between 9 s and inf s"):
        w.window(9.0)


def test_a_window_keeps_prefix_ids_with_their_requests() -> None:
    w = with_ids([[0], [0, 1], [0, 1, 2]], [512, 1024, 1536])
    part = w.window(1.0).with_blocks(512)
    assert hashes(part) == [[0, 1], [0, 1, 2]]


def test_scaling_time_keeps_the_cv_and_the_timeouts() -> None:
    w = generate({"kind": "gamma", "rate": 5.0, "cv": 3.0}, LENGTHS, 500)
    fast = w.scaled(2.0)
    assert fast.arrival == pytest.approx(w.arrival / 2)
    assert fast.info()["cv"] == pytest.approx(w.info()["cv"])
    timed = make([0.0, 4.0], timeout=np.array([1.0, 1.0])).scaled(2.0)
    assert timed.timeout is not None
    assert timed.timeout.tolist() == [1.0, 1.0]
    with pytest.raises(ConfigError, match="rate_scale"):
        w.scaled(0)


@given(seed=st.integers(0, 99), stamps=st.lists(st.integers(0, 20), min_size=1, max_size=50))
def test_spreading_delays_each_row_by_less_than_the_stamp_and_keeps_the_order(
    seed: int, stamps: list[int]
) -> None:
    w = make([3.0 * s for s in sorted(stamps)])
    spread = w.spread(3000, np.random.default_rng(seed))
    delay = spread.arrival - w.arrival
    assert (delay >= 0).all()
    assert (delay < 3.0).all()


def test_max_tokens_is_the_value_given_else_the_traces_else_2048_and_fits_the_model() -> None:
    w = make([0.0, 0.0, 0.0], max_tokens=np.array([0, 50, 9000]), num_prompt=np.array([100, 100, 4090]))
    assert w.with_max_tokens(None, 4096).max_tokens.tolist() == [2048, 50, 6]
    assert w.with_max_tokens(300, 4096).max_tokens.tolist() == [300, 300, 6]
    assert w.with_max_tokens(None, 1000).max_tokens.tolist() == [900, 50, 1]  # refused by the server
    long = make([0.0], num_output=np.array([5000])).with_max_tokens(None, 10_000)
    assert long.max_tokens.tolist() == [2048]  # never the true length
    with pytest.raises(ConfigError, match="max_tokens"):
        w.with_max_tokens(0, 4096)


def test_the_same_seed_gives_the_same_workload_and_lengths_do_not_move_arrivals() -> None:
    one, same, other = (generate(POISSON, LENGTHS, 50, seed) for seed in (1, 1, 2))
    longer = generate(POISSON, {**LENGTHS, "output": 99}, 50, 1)
    assert one.arrival.tolist() == same.arrival.tolist() == longer.arrival.tolist()
    assert one.num_output.tolist() == same.num_output.tolist() != longer.num_output.tolist()
    assert one.arrival.tolist() != other.arrival.tolist()
    root = np.random.SeedSequence(1)
    assert [generate(POISSON, LENGTHS, 50, root).arrival.tolist() for _ in range(2)] == [
        one.arrival.tolist()
    ] * 2


@pytest.mark.parametrize(
    ("arrivals", "words"),
    [
        ({"kind": "poison", "rate": 1}, "arrivals.kind: unknown kind 'poison'; did you mean poisson"),
        ({"rate": 1}, "arrivals.kind"),
        ({"kind": "poisson"}, "poisson needs rate"),
        ({"kind": "poisson", "rat": 1}, "arrivals.rat: poisson has no such key; did you mean rate"),
        ({"kind": "poisson", "rate": "fast"}, "cannot use"),
        ({"kind": "poisson", "rate": [1]}, "arrivals"),
    ],
)
def test_bad_generator_settings_are_named(arrivals: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        generate(arrivals, LENGTHS, 5)


def test_info_of_a_hand_made_workload() -> None:
    info = make([0.0, 0.0, 30.0, 90.0, 130.0]).info()
    assert (info["num_requests"], info["span"], info["mean_rate"]) == (5, 130.0, 4 / 130)
    assert info["peak_rate"] == {"1s": 2.0, "10s": 0.2, "60s": 3 / 60}
    assert info["equal_time_neighbours"] == 1
    assert info["idc_60s"] == pytest.approx(1 / 2)  # whole bins hold 3 and 1
    assert info["cv"] == pytest.approx(np.std([0, 30, 60, 40]) / 32.5)
    assert info["prefix"] is None


def test_info_of_next_to_nothing() -> None:
    for w in (make([]), make([0.0]), make([0.0, 0.0])):
        info = w.info()
        assert (info["cv"], info["idc_60s"], info["mean_rate"]) == (None, None, None)
        assert "requests" in describe(w)


# README of the traces: span, rate, peaks in 1/10/60 s, CV, CV 10 min, IDC, equal neighbours, hits
PUBLISHED = {
    "azure_llm_2023_code.csv.gz": (3435.9, 2.566, (67, 32.7, 10.53), 13.15, 11.16, 164, 0, None),
    "azure_llm_2023_conv.csv.gz": (3501.7, 5.530, (16, 9.8, 8.45), 1.094, 1.053, 16.1, 0, None),
    "mooncake_conversation_trace.jsonl.gz": (
        3537.0,
        3.401,
        (28, 6.7, 4.12),
        3.03,
        3.09,
        2.89,
        10_851,
        (36.6, 37.4),
    ),
    "mooncake_synthetic_trace.jsonl.gz": (
        1022.0,
        3.906,
        (13, 5.5, 4.55),
        1.011,
        1.010,
        1.19,
        11,
        (64.0, 65.1),
    ),
}
PUBLISHED_LENGTHS = {
    "azure_llm_2023_code.csv.gz": ((2047.8, 1469, 5188, 7436, 3, 7437), (27.9, 13, 55, 251, 6, 1899)),
    "azure_llm_2023_conv.csv.gz": ((1154.7, 1020, 2735, 4142, 2, 14050), (211.1, 129, 424, 601, 7, 1000)),
    "mooncake_conversation_trace.jsonl.gz": (
        (12035, 6909, 27367, 85400, 891, 126195),
        (342.6, 350, 597, 1119, 1, 2000),
    ),
    "mooncake_synthetic_trace.jsonl.gz": (
        (15326, 11587, 38611, 66456, 13, 191378),
        (149.1, 69, 389, 768, 1, 893),
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_info_reproduces_the_published_figures(name: str, shared_data: Path) -> None:
    info = read_trace(shared_data / "traces" / name).info()
    span, rate, peaks, cv, cv_10min, idc, equal, hits = PUBLISHED[name]
    assert info["span"] == pytest.approx(span, abs=0.06)
    assert info["mean_rate"] == pytest.approx(rate, abs=0.0006)
    assert list(info["peak_rate"].values()) == pytest.approx(peaks, abs=0.006)
    assert info["cv"] == pytest.approx(cv, abs=0.006)
    assert info["cv_10min"] == pytest.approx(cv_10min, abs=0.006)
    assert info["idc_60s"] == pytest.approx(idc, rel=0.003)
    assert info["equal_time_neighbours"] == equal
    for spread, published in zip((info["prompt"], info["output"]), PUBLISHED_LENGTHS[name], strict=True):
        assert list(spread.values()) == pytest.approx(published, rel=1e-3, abs=0.5)
    if hits:
        assert info["prefix"] is not None
        got = info["prefix"]["hit_share_blocks"], info["prefix"]["hit_share_tokens"]
        assert [100 * share for share in got] == pytest.approx(hits, abs=0.06)


def test_the_mooncake_traces_have_the_published_blocks(shared_data: Path) -> None:
    for name, distinct, covered in (("conversation", 182_790, 118), ("synthetic", 43_924, 213)):
        prefix = read_trace(shared_data / "traces" / f"mooncake_{name}_trace.jsonl.gz").info()["prefix"]
        assert prefix is not None
        assert (prefix["distinct_blocks"], prefix["covered_requests"]) == (distinct, covered)


def test_consecutive_ids_become_one_range_of_hashes() -> None:
    w = with_ids([[3, 4, 5], [3, 4, 9]], [1536, 1536]).with_blocks(16)
    assert w.requests[0].block_hashes == ((3 * 32, 6 * 32),)
    assert w.requests[1].block_hashes == ((3 * 32, 5 * 32), (9 * 32, 10 * 32))


def test_only_full_blocks_of_the_prompt_are_named() -> None:
    w = with_ids([[0, 1], [7]], [512 + 40, 15]).with_blocks(16)
    assert w.requests[0].block_hashes == ((0, 32 + 2),)
    assert w.requests[1].block_hashes == ()


def test_ar_08_only_full_mooncake_blocks_are_shared() -> None:
    w = with_ids([[46, 47]] * 3, [655, 672, 655]).with_blocks(512)
    assert cached_tokens(w) == [0, 512, 512]
    prefill = [r.num_prompt - hit for r, hit in zip(w.requests, cached_tokens(w), strict=True)]
    assert prefill == [655, 160, 143]


def test_a_partly_filled_last_block_is_shared_only_at_the_same_length() -> None:
    w = with_ids([[46, 47]] * 3, [655, 672, 655]).with_blocks(16)
    assert cached_tokens(w) == [0, 512, 512 + 128]


def test_ids_of_full_blocks_alone_need_no_last_one() -> None:
    w = with_ids([[0, 1], [0, 1]], [64 * 2 + 50, 64 * 2 + 50], block=64).with_blocks(16)
    assert w.requests[0].block_hashes == ((0, 8),)
    assert cached_tokens(w) == [0, 128]


@pytest.mark.parametrize("block_size", [16, 48, 100, 512, 700, 1024])
def test_shared_tokens_hit_at_any_block_size(block_size: int) -> None:
    w = with_ids([[0, 1, 2, 3], [0, 1, 2, 9], [5, 6]], [2000, 2000, 700]).with_blocks(block_size)
    assert cached_tokens(w) == [0, 3 * 512 // block_size * block_size, 0]
    assert [len(h) for h in hashes(w)] == [n // block_size for n in (2000, 2000, 700)]


def test_unchained_ids_do_not_hit_behind_another_prefix() -> None:
    w = with_ids([[1, 2], [3, 2], [2, 1], [1, 2]], [1024] * 4).with_blocks(512)
    assert cached_tokens(w) == [0, 0, 0, 512]
    assert len({h for row in hashes(w) for h in row}) == 6


def test_huge_and_negative_ids_stay_below_private_hashes() -> None:
    w = with_ids([[2**62, -5], [2**62, 7]], [1024, 1024]).with_blocks(16)
    assert cached_tokens(w) == [0, 512]
    assert all(0 <= h < MAX_HASH for row in hashes(w) for h in row)


@given(
    prompts=st.lists(
        st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=5), st.integers(1, 64)),
        min_size=1,
        max_size=12,
    ),
    block_size=st.sampled_from([1, 8, 16, 24, 64, 80, 128]),
)
def test_hashes_agree_with_a_cache_that_compares_contents(
    prompts: list[tuple[list[int], int]], block_size: int
) -> None:
    """Ids stand for block contents here; a block's true name is everything up to its end."""
    block = 64
    lengths = [(len(ids) - 1) * block + last for ids, last in prompts]
    w = with_ids([ids for ids, _ in prompts], lengths, block).with_blocks(block_size)
    names: dict[int, object] = {}
    by_content: dict[object, int] = {}
    for (ids, _), length, named in zip(prompts, lengths, hashes(w), strict=True):
        assert len(named) == length // block_size
        for i, h in enumerate(named):
            covering = ((i + 1) * block_size - 1) // block
            partial = length if (covering + 1) * block > length else 0
            content = (tuple(ids[: covering + 1]), partial, i)
            assert names.setdefault(h, content) == content
            assert by_content.setdefault(content, h) == h


def test_reading_and_generating_import_no_pandas_and_no_scipy_stats() -> None:
    code = """
import sys
from simulator.workload import generate
name = "azure-code"
generate({"kind": "profile", "name": name}, {"kind": "table", "name": name}, 50).info()
sys.exit(bool({"pandas", "scipy.stats", "scipy.optimize"} & set(sys.modules)))
"""
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[1]).returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "trace", "limit"), [("chat-a100", "conv", 0.10), ("code-a100", "code", 0.20)]
)
def test_generated_load_queues_like_the_trace_it_was_fitted_to(
    name: str, trace: str, limit: float, shared_data: Path
) -> None:
    """TTFT p50 and p99, as the median of seeds 0 to 9, against the same number of rows of the trace."""
    scenario = load_scenario(name)
    machine = build_machine(scenario)

    def ttft(scenario: Scenario) -> np.ndarray:
        requests = run_scenario(scenario, machine=machine).requests
        return np.nanpercentile(requests.first_token - requests.arrival, [50, 99])

    path = str(shared_data / "traces" / f"azure_llm_2023_{trace}.csv.gz")
    rows = {"workload.trace": path, "workload.limit": scenario.workload.num_requests}
    drawn = np.median([ttft(scenario.with_(seed=seed)) for seed in range(10)], axis=0)
    assert drawn == pytest.approx(ttft(scenario.with_(**rows)), rel=limit)
