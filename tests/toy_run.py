"""A small queue, computed here, as tables for the tests of plots, report and timeline.

Chunked prefill with a token budget, decodes first, FCFS, preempt the last admitted when blocks run out: not
the product's scheduler, only something whose tables have every kind of row.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from simulator.metrics.tables import COMPLETED, REJECTED, UNFINISHED, RequestTable, StepTable

BLOCK_SIZE = 16


@dataclass(eq=False)
class _Seq:
    index: int
    prompt: int
    output: int
    computed: int = 0
    made: int = 0

    @property
    def missing(self) -> int:
        """Tokens whose KV is not computed yet: the prompt, and after a preemption the answer so far."""
        return self.prompt + self.made - self.computed

    @property
    def blocks(self) -> int:
        return -(-self.computed // BLOCK_SIZE)


class _Server:
    """Chunked prefill under a token budget; preempts the last admitted when blocks run out."""

    def __init__(self, num_blocks: int, max_num_seqs: int, budget: int) -> None:
        self.num_blocks, self.max_num_seqs, self.budget = num_blocks, max_num_seqs, budget
        self.waiting: deque[_Seq] = deque()
        self.running: list[_Seq] = []
        self.cached = 0  # blocks that finished requests left behind

    @property
    def used(self) -> int:
        return sum(seq.blocks for seq in self.running)

    def schedule(self) -> tuple[list[tuple[_Seq, int]], list[_Seq]]:
        """Return (sequence, number of tokens) per row, and the sequences preempted."""
        victims: list[_Seq] = []
        while len(self.running) > 1 and self.used + self._growth() > self.num_blocks:
            victims.append(self.running.pop())
            victims[-1].computed = 0
            self.waiting.appendleft(victims[-1])
        while self.waiting and not victims and len(self.running) < self.max_num_seqs:
            need = self.waiting[0].missing // BLOCK_SIZE + 1
            if self.running and self.used + self._growth() + need > self.num_blocks:
                break
            self.running.append(self.waiting.popleft())
        return self._rows(), victims

    def _rows(self) -> list[tuple[_Seq, int]]:
        rows, room = [], self.budget
        for seq in self.running:
            size = min(seq.missing, room)
            rows.append((seq, size))
            room -= size
        return [row for row in rows if row[1]]

    def _growth(self) -> int:
        """Blocks that the rows of a step may open, at most."""
        return sum(size // BLOCK_SIZE + 1 for _, size in self._rows())

    def execute(self, rows: list[tuple[_Seq, int]], now: float) -> dict[str, float]:
        """Compute the rows; return what the step table records of them, but for preemptions."""
        is_decode = [size == 1 and seq.made > 0 and seq.missing == 1 for seq, size in rows]
        decode_kv = sum(seq.computed + 1 for (seq, _), decode in zip(rows, is_decode, strict=True) if decode)
        chunks = sum(size for (_, size), decode in zip(rows, is_decode, strict=True) if not decode)
        for seq, size in rows:
            seq.computed += size
        tokens, cached = sum(is_decode) + chunks, self.cached
        self.cached = min(cached, max(self.num_blocks - self.used, 0))
        return {
            "start": now,
            "end": now + 0.008 + 1e-4 * tokens + 2e-7 * decode_kv,
            "num_tokens": tokens,
            "num_seqs": len(rows),
            "num_sampled": sum(seq.missing == 0 for seq, _ in rows),
            "num_decodes": sum(is_decode),
            "decode_kv": decode_kv,
            "prefill_tokens": chunks,
            "num_running": len(self.running),
            "num_waiting": len(self.waiting),
            "used_blocks": self.used,
            "kv_tokens": sum(seq.computed for seq in self.running),
            "evicted_blocks": cached - self.cached,
        }


def toy_run(
    n: int = 60,
    *,
    rate: float = 8.0,
    num_blocks: int = 160,
    horizon: float | None = None,
    seed: int = 0,
) -> tuple[RequestTable, StepTable]:
    """Return the tables of a run of n Poisson arrivals; prompts above 2,000 tokens are rejected."""
    requests = _requests(n, rate, seed)
    lengths = requests.num_output.copy()
    requests.num_output[:] = 0
    server, rows = _Server(num_blocks, max_num_seqs=16, budget=256), defaultdict[str, list[float]](list)
    now, coming = 0.0, 0
    while coming < n or server.waiting or server.running:
        if not (server.running or server.waiting):
            now = max(now, float(requests.arrival[coming]))
        if horizon is not None and now >= horizon:
            break
        for i in range(coming, int(np.searchsorted(requests.arrival, now, side="right"))):
            coming = i + 1
            if requests.num_prompt[i] <= 2000:
                server.waiting.append(_Seq(i, int(requests.num_prompt[i]), int(lengths[i])))
            else:
                requests.status[i], requests.finish[i] = REJECTED, requests.arrival[i]
                requests.reason[i] = "prompt too long"
        if not (server.running or server.waiting):
            continue
        batch, victims = server.schedule()
        step = server.execute(batch, now) | {"num_preempted": len(victims)}
        for name, value in step.items():
            rows[name].append(value)
        now = step["end"]
        _update(server, requests, batch, victims, step)
    return requests, step_table(rows)


def _update(
    server: _Server,
    requests: RequestTable,
    batch: list[tuple[_Seq, int]],
    victims: list[_Seq],
    step: dict[str, float],
) -> None:
    for seq in victims:
        requests.num_preemptions[seq.index] += 1
    for seq, _ in batch:
        i = seq.index
        requests.scheduled[i] = np.fmin(requests.scheduled[i], step["start"])
        if seq.missing:
            continue
        seq.made += 1
        requests.num_output[i] = seq.made
        requests.first_token[i] = np.fmin(requests.first_token[i], step["end"])
        if seq.made == seq.output:
            requests.status[i], requests.reason[i], requests.finish[i] = COMPLETED, "length", step["end"]
            server.running.remove(seq)
            server.cached += seq.blocks


def _requests(n: int, rate: float, seed: int) -> RequestTable:
    """Return n requests to which nothing has happened; `num_output` is what they will become."""
    rng = np.random.default_rng(seed)
    scheduled, first_token, finish = np.full((3, n), np.nan)
    return RequestTable(
        id=[f"req-{i:05d}" for i in range(n)],
        arrival=np.cumsum(rng.exponential(1 / rate, n)),
        num_prompt=np.minimum(rng.lognormal(5.0, 0.8, n).astype(np.int64) + 1, 2300),
        num_output=np.minimum(rng.lognormal(3.6, 0.7, n).astype(np.int64) + 1, 300),
        status=np.full(n, UNFINISHED),
        reason=[""] * n,
        scheduled=scheduled,
        first_token=first_token,
        finish=finish,
        num_cached=np.zeros(n, dtype=np.int64),
        num_preemptions=np.zeros(n, dtype=np.int64),
        priority=np.zeros(n, dtype=np.int64),
        tenant=[""] * n,
    )


def step_table(rows: Mapping[str, list[float]]) -> StepTable:
    """Return a step table of the given columns; those not given are 0."""
    floats = ("start", "end", "prefill_work")
    n = len(rows.get("start", []))
    return StepTable(
        **{
            name: np.array(rows.get(name, [0] * n), dtype=np.float64 if name in floats else np.int64)
            for name in StepTable.__slots__
        }
    )


def _doublings(good: float) -> list[dict[str, object]]:
    gains = {"KV blocks": (0.014, 0.002), "max_num_batched_tokens": (0.003, 0.004), "FLOP/s": (0.009, 0.031)}
    return [
        {
            "what": what,
            "attainment": good + more,
            "attainment_gain": more,
            "output_throughput": 470.0 * (1 + faster),
            "throughput_gain": faster,
        }
        for what, (more, faster) in gains.items()
    ]


def toy_summary(requests: RequestTable, steps: StepTable, num_blocks: int = 160) -> dict[str, object]:
    """Return a summary with vLLM's keys and the product's own, near enough to test what shows them."""
    done = requests.status == COMPLETED
    e2el = (requests.finish - requests.arrival)[done] * 1000
    ttft = (requests.first_token - requests.arrival)[done] * 1000
    tpot = (e2el - ttft) / np.maximum(requests.num_output[done] - 1, 1)
    duration = float(np.nanmax(requests.finish) - requests.arrival[0])
    good = float(np.mean((ttft <= 500) & (tpot <= 50)) * done.mean())
    summary: dict[str, object] = {
        "duration": duration,
        "completed": int(done.sum()),
        "failed": int((~done).sum()),
        "request_throughput": done.sum() / duration,
        "request_goodput": good * len(requests) / duration,
        "output_throughput": float(requests.num_output.sum()) / duration,
        "total_token_throughput": float((requests.num_output + requests.num_prompt)[done].sum()) / duration,
    }
    for name, values in {"ttft": ttft, "tpot": tpot, "itl": tpot, "e2el": e2el}.items():
        summary |= {f"mean_{name}_ms": float(values.mean()), f"std_{name}_ms": float(values.std())}
        summary |= {f"median_{name}_ms": float(np.median(values))}
        summary |= {f"p{q}_{name}_ms": float(np.percentile(values, q)) for q in (50, 90, 95, 99)}
    usage = steps.used_blocks / num_blocks
    summary["servetwin"] = {
        "version": "0.1.0",
        "seed": 0,
        "scenario": {
            "schema": 1,
            "name": "chat-a100",
            "model": {"name": "llama-3.1-8b", "max_model_len": 2000},
            "kv": {"block_size": BLOCK_SIZE, "reserve_gib": 2.5, "num_gpu_blocks_override": None},
            "scheduler": {"batching": "chunked", "order": "fcfs"},
            "slo": {"ttft_ms": 500, "tpot_ms": 50, "e2el_ms": None, "attainment": 0.99},
        },
        "provenance": "calibrated: A100-SXM4-80GB, torch 2.13.0, 2026-09-12, 1,840 timings, error 3.1%",
        "profile_error": 0.031,
        "extrapolated_share": 0.042,
        "attainment": good,
        "attainment_target": 0.99,
        "slo": {"ttft_ms": 500.0, "tpot_ms": 50.0, "e2el_ms": None},
        "verdict": f"Misses the SLO: {good:.1%} of requests within TTFT 500 ms and TPOT 50 ms, target 99%.",
        "bottleneck": {"name": "KV blocks", "reason": "", "rows": _doublings(good)},
        "injected": len(requests),
        "completed": int(done.sum()),
        "rejected": int((requests.status == REJECTED).sum()),
        "aborted": 0,
        "unfinished": int((requests.status == UNFINISHED).sum()),
        "rejected_by_reason": {"prompt too long": int((requests.status == REJECTED).sum())},
        "num_preemptions": int(requests.num_preemptions.sum()),
        "kv_usage_mean": float(usage.mean()),
        "kv_usage_peak": float(usage.max()),
        "prefix_hit_rate": 0.0,
        "num_gpu_blocks": num_blocks,
        "block_size": BLOCK_SIZE,
        "skipped": {},
        "notes": [
            f"{num_blocks} KV blocks are derived with 2.5 GiB assumed for activations and CUDA graphs; "
            "kv.num_gpu_blocks_override takes the number vLLM prints at start-up"
        ],
    }
    return summary
