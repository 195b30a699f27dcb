# %% [markdown]
# Answers to `10_policy_exploration`. The first cell is what the notebook has: the traffic and the scenario.

# %%
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

from simulator import capacity, compare, load_scenario

folder = Path(tempfile.mkdtemp())
rng = np.random.default_rng(10)
times = np.sort(rng.uniform(0, 480, 2400)).round(3)
is_long = rng.random(len(times)) < 0.15
prompts = np.where(is_long, rng.lognormal(8.4, 0.3, len(times)), rng.lognormal(6.2, 0.9, len(times)))
answers = rng.lognormal(5.0, 0.7, len(times))
rows = {"at": times, "in": prompts.astype(int).clip(1, 12_000), "out": answers.astype(int).clip(1, 1500)}
pd.DataFrame(rows).to_csv(folder / "traffic.csv", index=False)
scenario = load_scenario("chat-a100").with_(
    **{
        "name": "traffic",
        "workload.trace": str(folder / "traffic.csv"),
        "workload.columns": {"arrival": "at", "prompt": "in", "output": "out"},
        "workload.time_unit": "s",
        "workload.max_tokens": 2048,
        "slo": {"ttft_ms": 500, "tpot_ms": 50, "attainment": 0.95},
    }
)
candidates = {
    "as it is": {},
    "budget 1024": {"scheduler.max_num_batched_tokens": 1024},
    "budget 4096": {"scheduler.max_num_batched_tokens": 4096},
    "async": {"scheduler.async_scheduling": True},
    "prefill first": {"scheduler.batching": "prefill_first"},
    "short prompts first": {"scheduler.order": "sjf_prompt"},
}

# %% [markdown]
# **Exercise 1.** With half the time to the first token fewer requests make it whatever one does, and the
# order gains a little more: it is about who waits. The winner is the same.

# %%
tight = compare(scenario, candidates, slo={"ttft": 250, "tpot": 50}, replications=3)
loose = compare(scenario, candidates, replications=3)
print(tight.frame[["mean", "difference", "verdict"]])
assert tight.frame["mean"].max() < loose.frame["mean"].max()
assert tight.frame["mean"].idxmax() == loose.frame["mean"].idxmax() == "short prompts first"
assert tight.frame.difference["short prompts first"] > loose.frame.difference["short prompts first"]

# %% [markdown]
# **Exercise 2.** The order decides who waits, asynchronous scheduling makes every step shorter: different
# things, so both gains are there at once, about their sum. In capacity too the two together carry most.

# %%
both = {"both": {"scheduler.order": "sjf_prompt", "scheduler.async_scheduling": True}}
seven = compare(scenario, candidates | both, replications=3)
gain = seven.frame.difference
print(gain[["async", "short prompts first", "both"]])
assert gain["both"] > max(gain["async"], gain["short prompts first"])

carried = capacity(
    scenario, {"as it is": {}, "async": candidates["async"]} | both, replications=3, tolerance=0.05
)
print(carried.table.rate)
assert carried.winner == "both"
