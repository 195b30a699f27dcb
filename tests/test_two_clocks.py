"""Two clocks, one policy: a model that computes and a model of its time decide and finish alike.

Under the predicted clock the CPU engine computes every token through the paged KV that the scheduler's
decisions give it, while time passes as the latency model says. Decisions, block counts, preemptions, hits and
times must equal the simulation's to the bit, and the tokens those of a plain decoder without batch or block.
"""

# ruff: noqa: E402  (imports follow what skips the file where they are missing)
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from hypothesis import strategies as st
from quick_and_slow import few_or_many

from gpu_backend.engine import Engine
from gpu_backend.naive import generate
from simulator import EVICTIONS, ORDERS, VICTIMS, simulate
from simulator.schedulers import BATCHING
from simulator.speculative import write_log

CONFIG = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 61,
    "max_position_embeddings": 128,
    "torch_dtype": "float32",
}
BUSY: dict[str, Any] = {
    "schema": 1,
    "name": "two-clocks",
    "model": {"max_model_len": 120},
    "hardware": {"gpu": "cpu-1core"},
    "kv": {"num_gpu_blocks_override": 33, "block_size": 4},
    "scheduler": {"max_num_seqs": 6, "max_num_batched_tokens": 24},
    "latency": {
        "kind": "linear",
        "coefficients": {"constant": 0.05, "per_token": 0.003, "per_kv_token": 1e-4},
    },
    "workload": {
        "arrivals": {"kind": "poisson", "rate": 6.0},
        "lengths": {"kind": "uniform", "prompt": [3, 60], "output": [1, 30]},
        "max_tokens": 40,
        "num_requests": 14,
    },
}
SWAP = [{"name": "host", "capacity_gib": 2e-5, "bandwidth_gb_s": 1e-4, "latency_us": 10000}]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = tmp_path_factory.mktemp("model") / "config.json"
    path.write_text(json.dumps(CONFIG))
    return str(path)


def both(scenario: dict[str, Any], changes: dict[str, object]) -> tuple[Any, Any, Engine]:
    engine = Engine(scenario, device="cpu", clock="predicted", set=changes)
    return engine.replay(progress=False), simulate(scenario, set=changes, progress=False), engine


def assert_alike(machine: Any, simulated: Any) -> None:
    for table in ("decisions", "requests", "steps"):
        mine, theirs = getattr(machine, table), getattr(simulated, table)
        assert mine.equals(theirs), f"{table} differ"
    theirs, mine = simulated.summary, machine.summary
    assert [key for key in theirs if key != "servetwin" and theirs[key] != mine[key]] == []
    counted = (
        "num_preemptions",
        "prefix_cache_hits",
        "evicted_blocks",
        "recomputed_tokens",
        "swapped_tokens",
    )
    for key in counted:
        assert mine["servetwin"].get(key) == theirs["servetwin"].get(key)


def answers(engine: Engine) -> dict[int, list[int]]:
    assert engine.executor is not None
    return engine.executor.answers


def assert_plain_tokens(engine: Engine, result: Any) -> None:
    """Every answer is what a decoder without batch, block or cache says to the same prompt."""
    run = result._run
    done = result.requests["status"] == "completed"
    for index in np.flatnonzero(done)[:5]:
        request = run.workload.requests[index]
        answer = answers(engine)[index]
        prompt = engine.prompt(request, int(index))
        assert answer == generate(engine.decoder, prompt, len(answer), kv_cache=False), request.id
        assert len(answer) == min(request.num_output, request.max_tokens)


@pytest.mark.parametrize("batching", BATCHING)
@pytest.mark.parametrize("is_async", [False, True])
def test_every_batching_policy_decides_alike_on_both_clocks(
    model: str, batching: str, is_async: bool
) -> None:
    changes: dict[str, object] = {
        "model.name": model,
        "scheduler.batching": batching,
        "scheduler.async_scheduling": is_async,
    }
    machine, simulated, engine = both(BUSY, changes)
    assert_alike(machine, simulated)
    assert_plain_tokens(engine, machine)
    if batching != "static":  # which reserves and never preempts
        assert machine.summary["servetwin"]["num_preemptions"] > 0


@pytest.mark.parametrize("preemption", ["recompute", "swap", "auto"])
def test_tokens_survive_preemption_swap_and_offload(model: str, preemption: str) -> None:
    changes: dict[str, object] = {"model.name": model, "scheduler.preemption": preemption, "kv.tiers": SWAP}
    machine, simulated, engine = both(BUSY, changes)
    assert_alike(machine, simulated)
    assert_plain_tokens(engine, machine)
    own = machine.summary["servetwin"]
    assert own["num_preemptions"] > 0
    if preemption == "swap":
        assert own["swapped_tokens"] > 0


def test_prefix_hits_compute_nothing_twice_and_change_no_token(model: str, tmp_path: Path) -> None:
    """Turns of a conversation share blocks by the hashes of a trace."""
    rows = []
    for i in range(12):
        length = 16 + 4 * (i % 5)
        ids = [100 * (i % 3) + block for block in range(length // 4)]
        row = {"timestamp": 150 * i, "input_length": length, "output_length": 6, "hash_ids": ids}
        rows.append(row | ({} if i else {"block_size": 4}))
    trace = tmp_path / "turns.jsonl"
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    changes: dict[str, object] = {
        "model.name": model,
        "workload.trace": str(trace),
        "workload.format": "mooncake",
        "kv.block_size": 4,
    }
    scenario = {key: value for key, value in BUSY.items() if key != "workload"}
    machine, simulated, engine = both(scenario, changes)
    assert_alike(machine, simulated)
    assert machine.summary["servetwin"]["prefix_cache_hits"] > 0
    assert_plain_tokens(engine, machine)


@few_or_many(8, 40, data=st.data())
def test_random_scenarios_decide_alike_on_both_clocks(model: str, data: st.DataObject) -> None:
    changes: dict[str, object] = {
        "model.name": model,
        "seed": data.draw(st.integers(0, 10**6)),
        "scheduler.batching": data.draw(st.sampled_from(list(BATCHING))),
        "scheduler.order": data.draw(st.sampled_from(list(ORDERS))),
        "scheduler.victim": data.draw(st.sampled_from([None, *VICTIMS])),
        "scheduler.preemption": data.draw(st.sampled_from(["recompute", "swap", "auto"])),
        "scheduler.max_num_batched_tokens": data.draw(st.sampled_from([8, 24, 64])),
        "scheduler.async_scheduling": data.draw(st.booleans()),
        "kv.num_gpu_blocks_override": data.draw(st.sampled_from([20, 33, 100])),
        "kv.eviction": data.draw(st.sampled_from(list(EVICTIONS))),
        "kv.enable_prefix_caching": data.draw(st.booleans()),
        "kv.tiers": SWAP,
        "workload.arrivals": {"kind": data.draw(st.sampled_from(["all_at_once", "poisson"])), "rate": 9.0},
        "workload.cancel": data.draw(st.sampled_from([None, {"fraction": 0.3, "after_s": 1.0}])),
    }
    if changes["workload.arrivals"]["kind"] == "all_at_once":  # type: ignore[index]
        changes["workload.arrivals"] = {"kind": "all_at_once"}
    machine, simulated, engine = both(BUSY, changes)
    assert_alike(machine, simulated)
    assert_plain_tokens(engine, machine)


def test_what_a_tier_counts_and_never_got_is_computed_again_after_the_fetch(model: str) -> None:
    """A block that its owner lost before it was computed goes on to the tier, and is fetched steps later."""
    changes: dict[str, object] = {
        "model.name": model,
        "seed": 872498,
        "scheduler.batching": "prefill_first",
        "scheduler.order": "deficit_round_robin",
        "scheduler.victim": "fewest_blocks",
        "kv.num_gpu_blocks_override": 60,
        "kv.tiers": SWAP,
        "workload.cancel": {"fraction": 0.3, "after_s": 1.0},
        "speculative": SPECULATION,
    }
    engine = Engine(BUSY, device="cpu", clock="predicted", set=changes)
    machine = engine.replay(progress=False)
    assert machine.summary["servetwin"]["mended_tokens"] > 0
    assert_plain_tokens(engine, machine)


def test_the_naive_decoder_gives_the_same_tokens_with_and_without_a_cache(model: str) -> None:
    engine = Engine(BUSY, device="cpu", clock="predicted", set={"model.name": model})
    prompt = np.arange(19) % 61
    with_cache = generate(engine.decoder, prompt, 12)
    assert with_cache == generate(engine.decoder, prompt, 12, kv_cache=False)
    assert len(set(with_cache)) > 3  # not one token for ever


@pytest.mark.parametrize("max_num_seqs", [1, 6])  # one by one, or with rows of padding
def test_an_engine_without_a_cache_computes_everything_again_and_answers_alike(
    model: str, max_num_seqs: int
) -> None:
    changes: dict[str, object] = {
        "model.name": model,
        "scheduler.batching": "static",
        "scheduler.max_num_seqs": max_num_seqs,
        "kv.num_gpu_blocks_override": 120,
        "workload.arrivals": {"kind": "all_at_once"},
        "workload.num_requests": 4,
    }
    cached = Engine(BUSY, device="cpu", clock="predicted", set=changes)
    naive = Engine(BUSY, device="cpu", clock="predicted", set=changes, kv_cache=False)
    assert_alike(naive.replay(progress=False), cached.replay(progress=False))
    assert answers(naive) == answers(cached)


def test_swapping_two_entries_of_a_block_table_changes_the_tokens(model: str) -> None:
    """The engine reads the blocks of its tables: two sequences' tables exchanged give other answers."""
    tokens = []
    for swaps in (False, True):
        engine = Engine(BUSY, device="cpu", clock="predicted", set={"model.name": model})
        make = engine._executor

        def swapping(*args: Any, make: Any = make, swaps: bool = swaps) -> Any:
            executor = make(*args)
            run = executor._runner.run

            def meddled(rows: Any) -> Any:
                tables, size = executor._tables, executor._tables.block_size
                long = [row.seq for row in rows if row.start >= 2 * size]
                if swaps and len(long) >= 2:
                    one, other = tables.of(long[0]), tables.of(long[1])
                    one[0], other[0] = other[0].copy(), one[0].copy()
                return run(rows)

            executor._runner.run = meddled
            return executor

        engine._executor = swapping  # type: ignore[method-assign]
        engine.replay(progress=False)
        tokens.append(answers(engine))
    assert tokens[0] != tokens[1]


def test_a_draft_model_equal_to_its_target_is_always_right(model: str) -> None:
    """Same weights, greedy: every draft is accepted, but where blocks of its KV were lost to a preemption."""
    keys = {"method": "draft_model", "num_speculative_tokens": 3, "acceptance": 1.0, "draft_model": model}
    changes: dict[str, object] = {
        "model.name": model,
        "kv.num_gpu_blocks_override": 120,
        "speculative": keys,
    }
    engine = Engine(BUSY, device="cpu", clock="predicted", set=changes)
    machine = engine.replay(progress=False)
    assert_plain_tokens(engine, machine)
    assert machine.summary["spec_decode_acceptance_rate"] == 100.0
    assert_alike(machine, simulate(BUSY, set=changes, progress=False))


def test_a_bad_draft_model_costs_steps_and_no_token(model: str, tmp_path: Path) -> None:
    small = tmp_path / "config.json"
    small.write_text(json.dumps(CONFIG | {"num_hidden_layers": 1, "hidden_size": 16}))
    keys = {"method": "draft_model", "num_speculative_tokens": 2, "acceptance": 0.3}
    changes: dict[str, object] = {
        "model.name": model,
        "speculative": keys | {"draft_model": str(small)},
    }
    engine = Engine(BUSY, device="cpu", clock="predicted", set=changes)
    machine = engine.replay(progress=False)
    assert machine.summary["servetwin"]["num_preemptions"] > 0
    assert_plain_tokens(engine, machine)
    assert machine.summary["spec_decode_acceptance_rate"] < 60.0


SPECULATION: dict[str, Any] = {"method": "ngram", "num_speculative_tokens": 3, "acceptance": 0.5}


@pytest.mark.parametrize("batching", BATCHING)
@pytest.mark.parametrize("num_blocks", [33, 120])
def test_speculation_changes_no_token_and_its_log_reproduces_the_run(
    model: str, batching: str, num_blocks: int, tmp_path: Path
) -> None:
    """What the engine accepted, fed back as a log, gives the simulation the engine's very steps."""
    changes: dict[str, object] = {
        "model.name": model,
        "scheduler.batching": batching,
        "kv.num_gpu_blocks_override": num_blocks,
        "speculative": SPECULATION,
    }
    engine = Engine(BUSY, device="cpu", clock="predicted", set=changes)
    machine = engine.replay(progress=False)
    assert_plain_tokens(engine, machine)
    assert machine.summary["spec_decode_accepted_tokens"] > 20
    log = tmp_path / "acceptance.csv"
    assert engine.executor is not None
    write_log(log, engine.executor.verifications)
    fed = changes | {"speculative": SPECULATION | {"acceptance": str(log)}}
    assert_alike(machine, simulate(BUSY, set=fed, progress=False))


LENGTHS = "num_speculative_tokens_per_batch_size"


@pytest.mark.parametrize("lengths", [[[1, 2, 3], [3, 4, 1], [5, 6, 0]], "auto"])
@pytest.mark.parametrize("drafter", ["ngram", "draft_model"])
def test_a_number_of_drafts_that_changes_is_decided_alike_on_both_clocks(
    model: str, drafter: str, lengths: object, tmp_path: Path
) -> None:
    """The engine proposes as many as the scheduler says, and both learn the same from what is accepted."""
    small = tmp_path / "config.json"
    small.write_text(json.dumps(CONFIG | {"num_hidden_layers": 1, "hidden_size": 16}))
    drafting = SPECULATION | {"method": drafter, LENGTHS: lengths}
    if drafter == "draft_model":
        drafting |= {"draft_model": str(small)}
    changes: dict[str, object] = {"model.name": model, "speculative": drafting}
    engine = Engine(BUSY, device="cpu", clock="predicted", set=changes)
    machine = engine.replay(progress=False)
    assert_plain_tokens(engine, machine)
    assert engine.executor is not None
    rows = engine.executor.verifications
    assert len({row.drafted for row in rows}) > 1
    write_log(tmp_path / "acceptance.csv", rows)
    fed = changes | {"speculative": drafting | {"acceptance": str(tmp_path / "acceptance.csv")}}
    assert_alike(machine, simulate(BUSY, set=fed, progress=False))


def test_a_log_has_what_was_proposed_to_a_request_that_was_given_up(model: str, tmp_path: Path) -> None:
    """Its drafts had cost it a block, and so its place: a simulation must know of them."""
    changes: dict[str, object] = {
        "model.name": model,
        "seed": 3,
        "kv.num_gpu_blocks_override": 26,
        "workload.cancel": {"fraction": 0.3, "after_s": 1.0},
    }
    speculation = {"speculative": SPECULATION}
    engine = Engine(BUSY, device="cpu", clock="predicted", set=changes | speculation)
    machine = engine.replay(progress=False)
    assert engine.executor is not None
    write_log(tmp_path / "acceptance.csv", engine.executor.verifications)
    fed = {"speculative": SPECULATION | {"acceptance": str(tmp_path / "acceptance.csv")}}
    assert_alike(machine, simulate(BUSY, set=changes | fed, progress=False))
