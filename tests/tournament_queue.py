"""An M/M/1 queue as a scenario: two orders with equal means, and one that is 3 % quicker."""

from __future__ import annotations

from simulator.config.loading import load_scenario
from simulator.config.scenario import Scenario
from simulator.experiments.compare import Comparison, compare
from simulator.request import Sequence
from simulator.schedulers.context import Context

MEAN_PROMPT = 300  # tokens, a second of service; the longest of a million fits into 4,096
LOAD = 0.7
METRIC = "mean_e2el_ms"


def lifo(seq: Sequence, ctx: Context) -> float:
    """Serve who came last; nobody who has begun is interrupted, as there is one seat."""
    return -seq.arrival


def queue(seed: int, num_requests: int = 1000) -> Scenario:
    """One seat, one output token, a time per prompt token: a server with exponential service times."""
    return load_scenario(
        {
            "name": "mm1",
            "seed": seed,
            "model": {"name": "tiny-llama-28m", "max_model_len": None},
            "hardware": {"gpu": "cpu-1core"},
            "kv": {"num_gpu_blocks_override": 20_001, "enable_prefix_caching": False},
            "scheduler": {"max_num_seqs": 1, "max_num_batched_tokens": 200_000},
            "latency": {"kind": "linear", "coefficients": service(1.0)},
            "workload": {
                "arrivals": {"kind": "poisson", "rate": LOAD},
                "lengths": {"kind": "exponential", "prompt": MEAN_PROMPT, "output": 1},
                "max_tokens": 1,
                "num_requests": num_requests,
            },
        }
    )


def service(factor: float) -> dict[str, float]:
    return {"constant": 0.0, "per_token": factor / MEAN_PROMPT}


def orders(seed: int, quick: float | None = None, num_requests: int = 1000) -> Comparison:
    """Compare FCFS with LIFO, and with LIFO whose steps take `quick` times as long."""
    candidates: dict[str, dict[str, object]] = {"fcfs": {}, "lifo": {"scheduler.order": lifo}}
    if quick is not None:
        candidates["quick"] = {"scheduler.order": lifo, "latency.coefficients": service(quick)}
    return compare(queue(seed, num_requests), candidates, metric=METRIC)
