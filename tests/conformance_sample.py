"""Record decisions of our own scheduler in the format that `conformance.py` replays.

    python tests/conformance_sample.py > tests/data/conformance_sample.jsonl

Random small cases over every setting the format knows. What they hold is our word and not vLLM's: a
change of any decision shows in them, but they cannot say which side is right.
"""

from __future__ import annotations

import json
import random
from typing import Any

from stepper import Stepper

VOCABULARY = 90
NUM_CASES = 5


def settings(rng: random.Random) -> dict[str, Any]:
    """Draw an engine's settings; pools are so small that preemptions happen."""
    return {
        "block_size": rng.choice([4, 8]),
        "usable_blocks": rng.randint(14, 24),
        "max_num_seqs": rng.choice([3, 6]),
        "max_num_batched_tokens": rng.choice([16, 32]),
        "max_model_len": 48,
        "enable_prefix_caching": rng.random() < 0.8,
        "scheduling_policy": rng.choice(["fcfs", "priority"]),
        "long_prefill_token_threshold": rng.choice([0, 6]),
        "watermark": rng.choice([0.0, 0.1]),
        "scheduler_reserve_full_isl": rng.random() < 0.5,
    }


def record(seed: int, num_steps: int = 30) -> dict[str, Any]:
    """Drive our scheduler with random requests and tokens; return the case."""
    rng = random.Random(seed)
    config = settings(rng)
    engine = Stepper(sample=lambda tokens: rng.randrange(VOCABULARY), **config)
    prefixes = [[rng.randrange(VOCABULARY) for _ in range(24)] for _ in range(2)]
    arrivals = []
    for _ in range(num_steps):
        arrivals.append([arrival(rng, prefixes, engine) for _ in range(rng.choice([0, 0, 0, 1, 2]))])
        engine.step()
    steps = [
        {"step": number, "arrivals": new, **step}
        for number, (new, step) in enumerate(zip(arrivals, engine.steps, strict=True))
    ]
    head = {"engine": "servetwin", "tier": "self-made", "seed": seed}
    return {"config": head | engine.config, "steps": steps}


def arrival(rng: random.Random, prefixes: list[list[int]], engine: Stepper) -> dict[str, Any]:
    """Submit one random request, which may share a prefix with others; return its record."""
    shared = rng.choice(prefixes)[: rng.choice([0, 8, 16, 24])]
    tokens = shared + [rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 8))]
    id = f"r{len(engine.live):02d}"
    engine.submit(id, tokens, rng.randint(1, 24), rng.randint(0, 2))
    seq = engine.live[id]
    return {
        "id": id,
        "prompt": tokens,
        "max_tokens": seq.max_tokens,
        "priority": seq.priority,
        "arrival": seq.arrival,
    }


if __name__ == "__main__":
    for seed in range(NUM_CASES):
        print(json.dumps(record(seed), separators=(",", ":")))
