"""The claims of the README about whole runs, on the real traces where they are at hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from simulator.config.loading import load_scenario
from simulator.config.run import Run, run_scenario

LLAMA_3 = {"model.name": "llama-3-8b", "model.max_model_len": 8192}


def run(name: str, **changes: object) -> Run:
    return run_scenario(load_scenario(name).with_(**changes))


def ttft(made: Run) -> tuple[float, float]:
    p50, p99 = made.summary["p50_ttft_ms"], made.summary["p99_ttft_ms"]
    assert isinstance(p50, float)
    assert isinstance(p99, float)
    return p50, p99


def test_the_azure_conversation_hour_runs_whole(shared_data: Path) -> None:
    trace = str(shared_data / "traces" / "azure_llm_2023_conv.csv.gz")
    made = run("chat-a100", **{"workload.trace": trace}, **LLAMA_3)
    own = made.own
    assert own["injected"] == 19_366
    assert own["injected"] == sum(own[k] for k in ("completed", "rejected", "aborted", "unfinished"))  # type: ignore[misc]
    assert made.summary["total_output_tokens"] == made.requests.num_output.sum()


def test_one_stream_decodes_at_70_to_95_tokens_a_second() -> None:
    made = run(
        "chat-a100",
        **LLAMA_3,
        **{
            "workload.num_requests": 1,
            "workload.arrivals": {"kind": "all_at_once"},
            "workload.lengths": {"kind": "constant", "prompt": 512, "output": 256},
        },
    )
    tpot = made.summary["mean_tpot_ms"]
    assert isinstance(tpot, float)
    assert 70 <= 1e3 / tpot <= 95


def test_smaller_chunks_trade_first_tokens_for_steady_ones() -> None:
    made = [run("chat-a100", **{"scheduler.max_num_batched_tokens": n}) for n in (2048, 1024, 512)]
    itl = [each.summary["p99_itl_ms"] for each in made]
    first = [each.summary["mean_ttft_ms"] for each in made]
    assert itl == sorted(itl, reverse=True)  # type: ignore[type-var]
    assert first == sorted(first)  # type: ignore[type-var]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "file", "num_requests", "bound"),
    [
        ("chat-a100", "azure_llm_2023_conv.csv.gz", 2000, 0.10),
        ("chat-a100", "azure_llm_2023_conv.csv.gz", 19_366, 0.10),
        ("code-a100", "azure_llm_2023_code.csv.gz", 8819, 0.20),
    ],
)
def test_drawn_load_reproduces_the_traces_ttft(
    name: str, file: str, num_requests: int, bound: float, shared_data: Path
) -> None:
    """As the median over seeds 0-9, p50 and p99 of TTFT are the real trace's within the bound."""
    trace = {"workload.trace": str(shared_data / "traces" / file), "workload.limit": num_requests}
    real = ttft(run(name, **trace))
    drawn = [ttft(run(name, **{"workload.num_requests": num_requests, "seed": seed})) for seed in range(10)]
    ratio = np.median(drawn, axis=0) / real
    assert np.all(np.abs(ratio - 1) <= bound), f"TTFT p50 and p99, drawn / real: {ratio}"


@pytest.mark.parametrize("name", ["chat-a100", "code-a100"])
def test_bundled_scenarios_reject_under_one_percent(name: str) -> None:
    own = run(name).own
    assert own["rejected"] < 0.01 * own["injected"]  # type: ignore[operator]
