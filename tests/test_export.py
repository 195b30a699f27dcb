"""Settings and load go to a server: every key accounted for, flags spelled right, the load the run's own."""

from __future__ import annotations

import dataclasses
import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import servetwin

from simulator.config.build import build_machine
from simulator.config.loading import bundled_scenarios, load_scenario
from simulator.config.run import run_scenario
from simulator.config.scenario import Scenario
from simulator.errors import ConfigError
from simulator.experiments.run_folder import save_run
from simulator.experiments.server.export import RULES, Export, command, export
from simulator.experiments.server.load import IN_LOAD, LOAD_LACKS, SIMULATION_ONLY, covering
from simulator.experiments.server.setting import model_id, scenario_keys, settings
from simulator.schedulers import BATCHING
from simulator.schedulers.orders import ORDERS
from simulator.workload.trace_blocks import TraceBlocks
from simulator.workload.traces import read_trace
from simulator.workload.workload import Workload

FLAGS = {
    "vllm": "max-model-len dtype tensor-parallel-size pipeline-parallel-size "
    "enable-expert-parallel block-size gpu-memory-utilization "
    "num-gpu-blocks-override kv-cache-dtype enable-prefix-caching max-num-seqs "
    "max-num-batched-tokens enable-chunked-prefill "
    "long-prefill-token-threshold scheduler-reserve-full-isl watermark async-scheduling "
    "scheduling-policy max-num-queued-reqs kv-offloading-size speculative-config data-parallel-size",
    "sglang": "model-path context-length dtype tp-size pp-size ep-size page-size "
    "mem-fraction-static max-total-tokens "
    "kv-cache-dtype disable-radix-cache radix-eviction-policy max-running-requests chunked-prefill-size "
    "max-prefill-tokens enable-mixed-chunk schedule-policy enable-priority-scheduling retraction-policy "
    "max-queued-requests enable-hierarchical-cache hicache-size speculative-algorithm "
    "speculative-num-draft-tokens speculative-draft-model-path speculative-num-steps speculative-eagle-topk "
    "dp-size",
}
"""Flags that these servers have, by the version that is named."""

OTHER: dict[str, Any] = {  # a value of each server key that is not its default
    "model.dtype": "float16",
    "model.quantization": "int8",
    "model.max_model_len": 4096,
    "parallel.tensor_parallel_size": 2,
    "parallel.pipeline_parallel_size": 2,
    "parallel.expert_parallel": True,
    "parallel.expert_skew": 0.5,
    "kv.block_size": 32,
    "kv.gpu_memory_utilization": 0.8,
    "kv.num_gpu_blocks_override": 5000,
    "kv.reserve_gib": 4.0,
    "kv.kv_cache_dtype": "fp8",
    "kv.enable_prefix_caching": False,
    "kv.eviction": "gdsf",
    "kv.tiers": [{"name": "host", "capacity_gib": 64, "bandwidth_gb_s": 25}],
    "scheduler.batching": "prefill_first",
    "scheduler.order": "priority",
    "scheduler.victim": "most_blocks",
    "scheduler.admission": [{"queue_limit": {"limit": 500}}],
    "scheduler.max_num_seqs": 64,
    "scheduler.max_num_batched_tokens": 1024,
    "scheduler.long_prefill_token_threshold": 512,
    "scheduler.scheduler_reserve_full_isl": False,
    "scheduler.watermark": 0.01,
    "scheduler.async_scheduling": True,
    "speculative": {"method": "ngram", "num_speculative_tokens": 3, "acceptance": 0.7},
    "cluster": {"replicas": 2, "router": "round_robin"},
}
BASE = load_scenario("chat-a100")
EXPERTS = {"model.name": "mixtral-8x7b", "parallel.tensor_parallel_size": 2}
NEEDS = {"parallel.expert_parallel": EXPERTS, "parallel.expert_skew": EXPERTS}
"""What must be set for a key to be allowed."""


def base_of(key: str) -> Scenario:
    return BASE.with_(**NEEDS.get(key, {}))


POISSON = BASE.with_(
    **{
        "workload.arrivals": {"kind": "poisson", "rate": 4.0},
        "workload.lengths": {"kind": "constant", "prompt": 600, "output": 20},
        "workload.num_requests": 30,
    }
)


def serve(server: str, scenario: Scenario) -> tuple[list[str], dict[str, str]]:
    argv, lacks = settings(scenario, build_machine(scenario), RULES[server])
    return argv, {each.key: each.instead for each in lacks}


# Every key.


def test_every_scenario_key_is_exported_harmless_or_listed() -> None:
    keys = {key for key, _ in scenario_keys(BASE)}
    tables = [set(RULES["vllm"]), set(LOAD_LACKS), set(IN_LOAD), set(SIMULATION_ONLY)]
    assert set.union(*tables) == keys, "say in experiments/server what a server does with the new key"
    assert sum(map(len, tables)) == len(keys), "a key is accounted for twice"
    assert set(RULES["sglang"]) == set(RULES["vllm"])


@pytest.mark.parametrize("server", RULES)
@pytest.mark.parametrize("key", OTHER)
def test_a_changed_key_changes_the_command_or_is_listed(server: str, key: str) -> None:
    base = base_of(key)
    argv, lacks = serve(server, base.with_(**{key: OTHER[key]}))
    assert (argv, lacks) != serve(server, base) or key in lacks


@pytest.mark.parametrize("server", RULES)
def test_every_flag_is_one_the_server_has(server: str) -> None:
    known = {f"--{flag}" for flag in FLAGS[server].split()}
    known |= {f"--no-{flag[2:]}" for flag in known}
    for key in OTHER:
        argv, _ = serve(server, base_of(key).with_(**{key: OTHER[key]}))
        assert {each for each in argv if each.startswith("--")} <= known


@pytest.mark.parametrize("server", RULES)
def test_every_policy_is_a_flag_or_a_line(server: str) -> None:
    for key, table, own in (("batching", BATCHING, "chunked"), ("order", ORDERS, "fcfs")):
        for name in table:
            argv, lacks = serve(server, BASE.with_(**{f"scheduler.{key}": name}))
            is_same = (argv, lacks) == serve(server, BASE)
            assert is_same == (name == own), name


def test_vllm_flags_are_those_that_differ_and_those_that_depend_on_the_gpu() -> None:
    argv, lacks = serve("vllm", BASE)
    assert argv == [
        *("--max-model-len", "16384", "--max-num-seqs", "256"),
        *("--max-num-batched-tokens", "2048", "--no-async-scheduling"),
    ]
    assert set(lacks) == {"kv.reserve_gib"}
    argv, lacks = serve("vllm", BASE.with_(**{"scheduler.async_scheduling": True}))
    assert "--async-scheduling" in argv


def test_priorities_of_sglang_run_the_other_way() -> None:
    changed = BASE.with_(**{"scheduler.order": "priority"})
    assert "lower = sooner" in serve("vllm", changed)[1]["scheduler.order"]
    assert "send it negated" in serve("sglang", changed)[1]["scheduler.order"]


def test_a_tier_is_gib_of_all_ranks_for_vllm_and_gb_a_rank_for_sglang() -> None:
    changed = BASE.with_(**{"kv.tiers": OTHER["kv.tiers"], "parallel.tensor_parallel_size": 2})
    argv, _ = serve("vllm", changed)
    assert argv[argv.index("--kv-offloading-size") + 1] == "128"
    argv, _ = serve("sglang", changed)
    assert argv[argv.index("--hicache-size") + 1] == "69"


def test_speculation_has_each_servers_own_counts() -> None:
    """vLLM counts drafts, SGLang the last known token too; a table of lengths is vLLM's, `auto` nobody's."""
    keys = OTHER["speculative"]
    table = [[1, 16, 3], [17, 256, 0]]
    lengths = "num_speculative_tokens_per_batch_size"
    argv, lacks = serve("vllm", BASE.with_(speculative=keys | {lengths: table}))
    assert json.loads(argv[argv.index("--speculative-config") + 1]) == {
        "method": "ngram",
        "num_speculative_tokens": 3,
        "prompt_lookup_max": 5,
        "prompt_lookup_min": 1,
        lengths: table,
    }
    assert "auto" not in lacks["speculative"]
    argv, lacks = serve("vllm", BASE.with_(speculative=keys | {lengths: "auto"}))
    assert lengths not in argv[argv.index("--speculative-config") + 1]
    assert "vLLM has tables" in lacks["speculative"]
    for own in (keys, keys | {"method": "draft_model", "draft_model": "llama-3.2-1b"}):
        argv, lacks = serve("sglang", BASE.with_(speculative=own | {lengths: table}))
        assert argv[argv.index("--speculative-num-draft-tokens") + 1] == "4"
        assert lengths in lacks["speculative"]
    assert argv[argv.index("--speculative-num-steps") + 1] == "3"


def test_sglangs_memory_fraction_gives_the_simulated_pool() -> None:
    machine = build_machine(BASE)
    argv, _ = serve("sglang", BASE)
    share = float(argv[argv.index("--mem-fraction-static") + 1])
    pool = share * machine.kv.memory_bytes - machine.kv.weight_bytes
    assert pool / machine.kv.block_bytes == pytest.approx(machine.kv.num_gpu_blocks, rel=0.01)


@pytest.mark.parametrize("name", ["llama-3.1-8b", "qwen3-8b", "deepseek-v3"])
def test_a_shipped_model_has_its_hugging_face_id(name: str) -> None:
    assert "/" in model_id(name)[0]
    assert model_id(name)[1] == ""


def test_a_model_without_a_checkpoint_is_a_placeholder_that_says_so() -> None:
    found = export("vllm", "tiny-cpu")
    assert found.serve[:3] == ["vllm", "serve", "YOUR-MODEL"]
    assert any("no checkpoint" in note for note in found.notes)


# The load.


def test_the_load_file_is_the_runs_requests_and_covers_every_prompt(tmp_path: Path) -> None:
    out = tmp_path / "load.jsonl"
    found = export("vllm", POISSON, out=out)
    run = run_scenario(POISSON)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert all(set(row) == {"timestamp", "input_length", "output_length", "hash_ids"} for row in rows)
    assert [row["timestamp"] for row in rows] == pytest.approx((1e3 * run.workload.arrival).tolist())
    size = int(found.bench[found.bench.index("--timed-trace-chunk-hash-size") + 1])
    assert size == 512
    assert all(len(row["hash_ids"]) == -(-row["input_length"] // size) for row in rows)
    ids = [each for row in rows for each in row["hash_ids"]]
    assert len(set(ids)) == len(ids)  # nothing is shared that the run did not share
    again = run_scenario(POISSON, workload=read_trace(out).with_max_tokens(None, 16384))
    assert again.requests.num_output.tolist() == run.requests.num_output.tolist()


@pytest.mark.parametrize("size", [64, 512])
def test_shared_prefixes_keep_their_ids_and_block_size(size: int, tmp_path: Path) -> None:
    trace = tmp_path / "t.jsonl"
    ids = [[7, 8, 5], [7, 9]]
    lengths = [2 * size + 9, 2 * size]
    rows = [
        {"timestamp": 500 * i, "input_length": n, "output_length": 3, "hash_ids": each, "block_size": size}
        for i, (n, each) in enumerate(zip(lengths, ids, strict=True))
    ]
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = export("vllm", BASE.with_(**{"workload.trace": str(trace)}), out=tmp_path / "load.jsonl")
    written = [json.loads(line) for line in (tmp_path / "load.jsonl").read_text().splitlines()]
    assert [row["hash_ids"] for row in written] == ids
    assert found.bench[found.bench.index("--timed-trace-chunk-hash-size") + 1] == str(size)


def test_ids_that_end_before_the_prompt_are_completed_with_fresh_ones() -> None:
    known = TraceBlocks.of_ids(np.array([7, 8, 7, 9]), np.array([0, 2, 4, 4]), 64)  # floor(prompt / 64) each
    lengths = np.array([137, 128, 20])
    found = covering(Workload(np.zeros(3), lengths, np.ones(3, np.int64), blocks=known))
    assert [found.of(i) for i in range(3)] == [[7, 8, 11], [7, 9], [12]]


def test_sessions_are_sent_at_the_times_of_the_run() -> None:
    scenario = load_scenario("agentic-a100").with_(**{"workload.num_requests": 40})
    found = export("vllm", scenario)
    run = run_scenario(scenario)
    assert found.load.arrival == pytest.approx(np.sort(run.requests.arrival))
    assert any(each.key == "workload.sessions" for each in found.no_counterpart)


def test_a_drawn_load_has_its_rate_and_burstiness() -> None:
    drawn = export("vllm", POISSON).drawn
    assert drawn is not None
    assert drawn[drawn.index("--request-rate") + 1] == "4"
    assert drawn[drawn.index("--burstiness") + 1] == "1"
    assert "--no-self-timed" in drawn
    assert "--self-timed" not in drawn
    bursty = POISSON.with_(**{"workload.arrivals": {"kind": "gamma", "rate": 4.0, "cv": 2.0}})
    drawn = export("vllm", bursty).drawn
    assert drawn is not None
    assert drawn[drawn.index("--burstiness") + 1] == "0.25"
    other = export("sglang", POISSON).drawn
    assert other is not None
    assert other[:3] == ["python", "-m", "sglang.bench_serving"]
    assert other[other.index("--random-input-len") + 1] == "600"
    assert export("vllm", BASE.with_(**{"workload.num_requests": 20})).drawn is None


def test_closed_loop_clients_are_a_limit_on_concurrency() -> None:
    arrivals = {"kind": "closed_loop", "clients": 3, "think_s": 1.0}
    found = export("vllm", POISSON.with_(**{"workload.arrivals": arrivals}))
    assert found.bench[found.bench.index("--max-concurrency") + 1] == "3"
    assert "--no-self-timed" in found.bench
    assert any("do not think" in each.instead for each in found.no_counterpart)


def test_limits_and_percentiles_are_the_runs() -> None:
    bench = export("vllm", POISSON.with_(**{"slo.e2el_ms": 2500.0, "run.percentiles": [50, 99.9]})).bench
    at = bench.index("--goodput")
    assert bench[at + 1 : at + 4] == ["ttft:500", "tpot:50", "e2el:2500"]
    assert bench[bench.index("--metric-percentiles") + 1] == "50,99.9"


# What is printed.


def test_the_numbers_to_expect_are_those_of_the_folder(tmp_path: Path) -> None:
    run = run_scenario(POISSON)
    save_run(run, tmp_path / "run", report=False)
    done = servetwin("export", "vllm", tmp_path / "run", "--json", "--quiet", "-o", tmp_path / "l.jsonl")
    assert done.code == 0
    found = json.loads(done.out)
    assert found["expect"]["p99_ttft_ms"] == run.summary["p99_ttft_ms"]
    assert found["expect"]["step_error"] == run.machine.latency.error
    assert found["serve"][:3] == ["vllm", "serve", "meta-llama/Llama-3.1-8B"]
    assert found["no_counterpart"][0]["key"] == "kv.reserve_gib"
    assert (tmp_path / "l.jsonl").exists()


def test_a_comparisons_winner_is_exported(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    args = ["compare", "tiny-cpu", "--vary", "scheduler.max_num_seqs=2,8", "-o", folder, "--no-report"]
    assert servetwin(*args, "--quiet").code == 0
    texts = [servetwin("export", "vllm", each, "--quiet").out for each in (folder, folder / "winner")]
    assert texts[0] == texts[1]
    assert "--max-num-seqs" in texts[0]


@pytest.mark.parametrize("name", bundled_scenarios())
@pytest.mark.parametrize("server", RULES)
def test_every_bundled_scenario_gives_a_command_that_a_shell_reads(server: str, name: str) -> None:
    scenario = load_scenario(name).with_(**{"workload.num_requests": 20})
    found = export(server, scenario)
    for argv in (found.serve, found.bench):
        assert shlex.split(command(argv).replace("\\\n", "")) == argv  # as a shell reads a line's end
    shown = found.text()
    assert "\nvllm bench serve" in shown
    json.dumps(found.to_dict(), allow_nan=False)


def test_a_policy_in_a_file_is_not_run_without_trust(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def mine(seq, ctx):\n    return -seq.num_prompt\n")
    text = POISSON.to_yaml().replace("order: fcfs", "order: mine.py:mine")
    (tmp_path / "s.yaml").write_text(text)
    found = export("vllm", tmp_path / "s.yaml")
    assert found.expect == {}
    assert any("--trust" in note for note in found.notes)
    assert any(
        each.key == "scheduler.order" and "--scheduler-cls" in each.instead for each in found.no_counterpart
    )
    trusted = json.loads(servetwin("export", "vllm", tmp_path / "s.yaml", "--trust", "--json", "--quiet").out)
    assert trusted["expect"]["mean_ttft_ms"] > 0


def test_mistakes_are_answered_in_one_line(tmp_path: Path) -> None:
    assert "did you mean vllm" in servetwin("export", "vlm", "tiny-cpu").complaint
    assert "no such file, run folder" in servetwin("export", "vllm", "tiny-cpuu").complaint
    (tmp_path / "file").write_text("")
    assert "cannot write" in servetwin("export", "vllm", "tiny-cpu", "-o", tmp_path / "file" / "l").complaint
    with pytest.raises(ConfigError, match="unknown server"):
        export("tgi", "tiny-cpu")


def test_hostile_names_cannot_break_out_of_a_command(tmp_path: Path) -> None:
    base = export("vllm", POISSON)
    name = "x; rm -rf / #\x1b[31m"
    found: Export = dataclasses.replace(base, name=name, serve=["vllm", "serve", name])
    assert "\x1b" not in found.text()
    assert shlex.split(command(found.serve)) == found.serve
