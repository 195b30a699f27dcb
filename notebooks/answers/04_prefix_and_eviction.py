# %% [markdown]
# Answers to `04_prefix_and_eviction`.

# %%
import numpy as np
import pandas as pd

from simulator import replay_cache, simulate
from simulator.workload import generate
from simulator.workload.prefixes import with_prefixes

SYSTEM, POPULAR = np.random.default_rng(4).integers(500, 6000, 100), 1 / np.arange(1, 101)


def assistants(seed, block=64, n=800):
    chats = generate({"kind": "poisson", "rate": 2}, {"kind": "table", "name": "azure-conv"}, n, seed=seed)
    return with_prefixes(chats, np.random.default_rng(seed), SYSTEM, POPULAR, block)


def agents(seed, n=450):
    sessions = {"kind": "sessions", "name": "agentic"}
    return generate({"kind": "poisson", "rate": 0.008}, sessions, n, seed=seed).replayed("think", 60)


def serve(workload, eviction="lru", size=64):
    keys = {"kv.gpu_memory_utilization": 0.46, "kv.block_size": size}
    return simulate("chat-a100", workload=workload, eviction=eviction, set=keys, bottleneck=False).summary


# %% [markdown]
# **Exercise 1.** Bet on whatever was hit at all, and among those on who came last. A block that only its
# first request has used goes first: with the assistants that is every chat's own part. An agent's history
# is hit in the next turn, and from then on the rule is LRU, so that sessions that are over do go.
#
# In the replay it finds 58.5 % with the assistants, as LFU does (LRU: 52.8), and 89.5 % with the agents
# (LRU: 91.4, LFU: 74.4). What it loses there is the newest part of each history, which nobody has hit yet
# and which is needed in the next turn.
#
# On the server it beats LRU in each of three seeds, by 3.6 to 5.6 points, and the median TTFT falls by 16
# to 37 %. (It is SLRU without a limit for the protected list.)


# %%
def seen_again(block, ctx):
    return block.num_hits > 0, block.last_used


rules, found = {"lru": "lru", "lfu": "lfu", "seen again": seen_again}, {}
for name, load, blocks, size in (("assistants", assistants(0), 2430, 64), ("agents", agents(0), 313, 1024)):
    table = replay_cache(load, rules, [blocks], size, vllm_rules=True).table.set_index("eviction")
    found[name] = 100 * table.hit_rate[[*rules]]
found = pd.DataFrame(found)
print(found.round(1).to_string())
assert (found.max() - found.loc["seen again"] < 2.5).all()
assert list(found.assistants.round(1)) == [52.8, 58.5, 58.5]
assert list(found.agents.round(1)) == [91.4, 74.4, 89.5]

gains, ratios = [], []
for seed in range(3):
    plain, own = (serve(assistants(seed), rule) for rule in ("lru", seen_again))
    gains.append(100 * (own["servetwin"]["prefix_hit_rate"] - plain["servetwin"]["prefix_hit_rate"]))
    ratios.append(100 * (own["median_ttft_ms"] / plain["median_ttft_ms"] - 1))
print(f"on the server: {np.round(gains, 1)} points, median TTFT {np.round(ratios)} %")
assert [round(min(gains), 1), round(max(gains), 1)] == [3.6, 5.6]
assert [round(max(ratios)), round(min(ratios))] == [-16, -37]

# %% [markdown]
# **Exercise 2.** A cache without limit finds 70.7 % of the tokens with blocks of 16, 70.3 with 64, 68.6 with
# 256 and 62.6 with 1,024. The rule says 70.7, 70.3, 68.7 and 62.2. It fails a little for large blocks, since
# system prompts shorter than half a block cannot lose so much.
#
# On the server LRU finds 0.3 points more with 16 than with 64, averaged over three seeds, and 1.4 and 6.2
# fewer with 256 and 1,024. The shared part loses half a block, and so does the room, at the end of each
# prompt that is kept. LFU's lead over LRU in the replay is 5 to 6 points with each size. So 16 instead of
# 64 is right, but hardly matters here: system prompts are long. (Reasons against small blocks, slower
# kernels and longer tables, are not in the model.)

# %%
sizes, rows = [16, 64, 256, 1024], {}
which = np.random.default_rng(0).choice(100, 800, p=POPULAR / POPULAR.sum())  # as `with_prefixes` draws
repeated = SYSTEM[which][pd.Series(which).duplicated()]
for size in sizes:
    load, blocks = assistants(0, block=16), 2430 * 64 // size
    table = replay_cache(load, ["lfu"], [blocks, 10**6], size, vllm_rules=True).table
    share = 100 * table.set_index(["eviction", "capacity_blocks"]).token_hit_rate
    rule = 100 * np.maximum(repeated - size / 2, 0).sum() / load.num_prompt.sum()
    served = [serve(assistants(seed, block=16), size=size) for seed in range(3)]
    on_server = 100 * np.mean([each["servetwin"]["prefix_hit_rate"] for each in served])
    rows[size] = [share["lru", 10**6], rule, share["lru", blocks], share["lfu", blocks], on_server]
table = pd.DataFrame(rows, index=["no limit", "by the rule", "lru", "lfu", "lru, server"]).T
print(table.round(1).rename_axis("block size").to_string())
assert list(table["no limit"].round(1)) == [70.7, 70.3, 68.6, 62.6]
assert list(table["by the rule"].round(1)) == [70.7, 70.3, 68.7, 62.2]
assert list((table["lru, server"] - table["lru, server"][64]).round(1)) == [0.3, 0, -1.4, -6.2]
assert (table.lfu - table.lru).between(5, 6).all()
