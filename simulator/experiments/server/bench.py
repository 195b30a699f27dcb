"""The benchmark client's command: `vllm bench serve` on the load file, or drawing the arrivals anew.

The client speaks OpenAI's protocol, so it measures SGLang too. SGLang's own client replays a Mooncake trace
without its prompt lengths; it is given for drawn loads of constant lengths alone.
"""

from __future__ import annotations

from simulator.config.scenario import Scenario
from simulator.workload.workload import Workload

PORTS = {"vllm": 8000, "sglang": 30000}
BACKENDS = {"vllm": "vllm", "sglang": "openai"}


def bench_argv(server: str, model: str, scenario: Scenario, load: Workload, path: str) -> list[str]:
    """Return the command that sends a load file's requests at their times."""
    argv = ["vllm", "bench", "serve", "--backend", BACKENDS[server], "--model", model]
    argv += ["--base-url", f"http://127.0.0.1:{PORTS[server]}"]
    argv += ["--dataset-name", "timed_trace", "--dataset-path", path, "--num-prompts", str(len(load))]
    assert load.blocks is not None, "made to cover the prompts"
    argv += ["--timed-trace-chunk-hash-size", str(load.blocks.block_size)]
    argv += ["--timed-trace-sec-multiplier", "0.001", "--ignore-eos", "--disable-shuffle"]
    clients = scenario.workload.arrivals.get("clients") if scenario.workload.trace is None else None
    if clients is not None:
        argv += ["--no-self-timed", "--request-rate", "inf", "--max-concurrency", str(clients)]
    else:
        argv += ["--self-timed"]
    if scenario.workload.max_concurrency is not None:
        argv += ["--max-concurrency", str(scenario.workload.max_concurrency)]
    return argv + _measures(scenario)


def _measures(scenario: Scenario) -> list[str]:
    """Return the flags that make the client print what the simulation prints."""
    ranks = ",".join(f"{rank:g}" for rank in scenario.run.percentiles if 0 < rank < 100) or "99"
    argv = ["--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", ranks]
    limits = scenario.slo.seconds()
    if limits:
        argv += ["--goodput", *(f"{name}:{1e3 * limit:g}" for name, limit in limits.items())]
    return [*argv, "--save-result", "--save-detailed", "--result-filename", "measured.json"]


def drawn_argv(server: str, model: str, scenario: Scenario, bench: list[str]) -> list[str] | None:
    """Return the command that draws the arrivals anew, None for a load that no client draws."""
    arrivals = scenario.workload.arrivals
    rate = arrivals.get("rate")
    kinds = {"poisson": 1.0, "gamma": _burstiness(arrivals), "deterministic": float("inf")}
    if scenario.workload.trace is not None or arrivals.get("kind") not in (*kinds, "all_at_once"):
        return None
    scaled = f"{float(rate) * scenario.workload.rate_scale:g}" if isinstance(rate, int | float) else "inf"
    if server == "sglang" and arrivals["kind"] in ("poisson", "all_at_once"):
        lengths = scenario.workload.lengths
        if lengths.get("kind") == "constant":
            return _sglang(model, scenario, scaled)
    argv = [each for each in bench if each not in ("--self-timed", "--no-self-timed")]
    argv[argv.index("--ignore-eos") : argv.index("--ignore-eos")] = [
        "--no-self-timed",
        "--request-rate",
        scaled,
    ]
    if scaled != "inf" and (shape := kinds[arrivals["kind"]]) is not None:
        argv += ["--burstiness", f"{shape:g}"]
    return [*argv, "--seed", str(scenario.seed % 2**32)]


def _burstiness(arrivals: dict[str, object]) -> float | None:
    """Return vLLM's burstiness, the shape of the gaps' gamma distribution: 1 / CV^2."""
    given, cv = arrivals.get("burstiness"), arrivals.get("cv")
    if isinstance(given, int | float):
        return float(given)
    return 1.0 / float(cv) ** 2 if isinstance(cv, int | float) and cv > 0 else None


def _sglang(model: str, scenario: Scenario, rate: str) -> list[str]:
    lengths = scenario.workload.lengths
    argv = ["python", "-m", "sglang.bench_serving", "--backend", "sglang", "--model", model]
    argv += ["--dataset-name", "random-ids", "--random-input-len", str(lengths["prompt"])]
    argv += ["--random-output-len", str(lengths["output"]), "--random-range-ratio", "1"]
    argv += ["--num-prompts", str(scenario.workload.num_requests), "--request-rate", rate]
    if scenario.workload.max_concurrency is not None:
        argv += ["--max-concurrency", str(scenario.workload.max_concurrency)]
    return [
        *argv,
        "--seed",
        str(scenario.seed % 2**32),
        "--output-file",
        "measured.jsonl",
        "--output-details",
    ]
