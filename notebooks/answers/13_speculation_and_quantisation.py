# %% [markdown]
# Answers to `13_speculation_and_quantisation`.

# %%
from itertools import groupby

from simulator import load_profile, simulate
from simulator.latency.drafting import DraftingStep
from simulator.speculative import expected_tokens, same_rate

profile = load_profile("a100-80gb-sxm", "llama-3.1-8b")
POOR = {"method": "ngram", "num_speculative_tokens": 5, "acceptance": 0.4}
TABLE = "num_speculative_tokens_per_batch_size"


def price(n, k):
    return profile.step_time(DraftingStep.verifying(n, 1000 * n, 1000, k))


def gain(n, k, a):
    return expected_tokens(same_rate(a, k)) * price(n, 0) / price(n, k)


def serve(speculative, seed):
    load = {"workload.arrivals": {"kind": "poisson", "rate": 6}, "workload.num_requests": 400}
    keys = load | {"speculative": speculative}
    return simulate("chat-a100", set=keys, seed=seed, bottleneck=False, progress=False).summary


# %% [markdown]
# **Exercise 1.** Twelve ranges: five drafts up to a batch of 10, one from 86 on, and in between not
# always falling, since a step's time has edges where a kernel takes another tile. Mean TPOT is that of
# `auto` to within 0.2 % in each of three seeds, and 35 to 36 % below that without drafts: at a known
# acceptance a table is enough. What `auto` adds is that nobody has to know it.

# %%
best = {n: max(range(6), key=lambda k: gain(n, k, 0.4)) for n in range(1, 257)}
table = [[(group := list(ns))[0], group[-1], k] for k, ns in groupby(best, key=best.get)]
print(table)
ratios, saved = [], []
for seed in range(3):
    by_table, auto = (serve(POOR | {TABLE: each}, seed)["mean_tpot_ms"] for each in (table, "auto"))
    ratios.append(by_table / auto)
    saved.append(100 - 100 * by_table / serve(None, seed)["mean_tpot_ms"])
print(f"TPOT, times that of auto: {ratios}; below that without drafts: {saved} %")
assert len(table) == 12
assert [table[0][2], table[-1][2]] == [5, 1]
assert max(abs(ratio - 1) for ratio in ratios) < 0.002

# %% [markdown]
# **Exercise 2.** Drafts bring 1.8 times and INT8 1.2 times, and both together 2.0 times, not 2.2, let
# alone 3.75. Neither number that the colleague quotes is for 32 clients, and the two spend the same idle
# arithmetic.

# %%
GOOD = {"speculative": POOR | {"num_speculative_tokens": 3, "acceptance": 0.8}}
INT8 = {"model.quantization": "int8"}


def crowd(clients, keys):
    load = {"workload.arrivals": {"kind": "closed_loop", "clients": clients}}
    load |= {"workload.lengths": {"kind": "constant", "prompt": 800, "output": 200}} | keys
    load |= {"workload.num_requests": 8 + 3 * clients, "scheduler.max_num_seqs": 1024}
    return simulate("chat-a100", set=load, bottleneck=False, progress=False).summary["output_throughput"]


plain, drafts, int8, both = (crowd(32, keys) for keys in ({}, GOOD, INT8, GOOD | INT8))
print(f"drafts {drafts / plain:.2f}, INT8 {int8 / plain:.2f}, both {both / plain:.2f}")
assert max(drafts, int8) < both < drafts * int8 / plain
assert both / plain < 3.75
