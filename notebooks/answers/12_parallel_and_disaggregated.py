# %% [markdown]
# Answers to `12_parallel_and_disaggregated`.

# %%
from collections import Counter

from simulator import simulate
from simulator.specs import get_model

# %% [markdown]
# **Exercise 1.** It comes within a point of news of this moment, with news that is up to ten seconds old;
# the router without it has next to none within the SLO. What has ended since is missing from all counts,
# and about equally from all: requests are alike on average, and four full replicas end about as many. A
# router needs to know who has *more*, not how many there are.


# %%
class OwnCounts:
    def __init__(self):
        self.sent, self.told = Counter(), None

    def __call__(self, request, replicas, ctx):
        told = [(each.index, each.num_outstanding, each.free_blocks) for each in replicas]
        if told != self.told:  # new signals, which count what was sent before
            self.sent, self.told = Counter(), told
        where = min(range(len(told)), key=lambda i: told[i][1] + self.sent[told[i][0]])
        self.sent[told[where][0]] += 1
        return where


def chat(router, delay, seed):
    keys = {"cluster.replicas": 4, "cluster.signal_delay_s": delay, "workload.num_requests": 1200}
    keys |= {"workload.arrivals": {"kind": "poisson", "rate": 28}}
    run = simulate("chat-a100", router=router, set=keys, seed=seed, bottleneck=False, progress=False)
    return 100 * run.summary["servetwin"]["attainment"]


cases = {"now": ("least_outstanding", 0), "old": ("least_outstanding", 10), "own counts": (OwnCounts, 10)}
within = {name: [chat(*case, seed) for seed in range(3)] for name, case in cases.items()}
print(within)
assert max(within["old"]) < 5
assert all(abs(own - now) < 1.5 for own, now in zip(within["own counts"], within["now"], strict=True))

# %% [markdown]
# **Exercise 2.** Three and one, with 87 % within the SLO against 73 to 77 % of chunks; two and two are
# behind them, and one and three serve next to nobody. All of the KV arrives at the one decode replica: 10
# prompts a second of some 270 MB are 2.7 GB/s. But at 6 GB/s it is behind chunks already, and at 12 ahead. A
# link at half its load is a queue all the same, since long prompts come in a row, and an answer of 29
# tokens with a limit of 25 ms has no room for it: a wait of 100 ms alone adds 4 ms to its TPOT.


# %%
def code(keys, seed):
    keys = {"workload.arrivals": {"kind": "poisson", "rate": 10}, "workload.num_requests": 1000} | keys
    run = simulate(
        "code-a100", set={"slo.tpot_ms": 25} | keys, seed=seed, bottleneck=False, progress=False
    ).summary["servetwin"]
    return 100 * run["attainment"]


def split(prefill, bandwidth=50):
    pools = {"prefill": {"count": prefill}, "decode": {"count": 4 - prefill}}
    return {"cluster.disaggregation": pools | {"link": {"bandwidth_gb_s": bandwidth}}}


ways = {"chunks": {"cluster.replicas": 4}, "1P:3D": split(1), "2P:2D": split(2), "3P:1D": split(3)}
ways |= {f"3P:1D, {bandwidth} GB/s": split(3, bandwidth) for bandwidth in (3, 6, 12)}
found = {name: [code(keys, seed) for seed in range(2)] for name, keys in ways.items()}
print(found)
arriving = 10 * 2048 * get_model("llama-3.1-8b").kv_bytes_per_token() / 1e9
print(f"{arriving:.1f} GB/s arrive")
for one, other in (("3P:1D", "chunks"), ("chunks", "2P:2D"), ("2P:2D", "1P:3D")):
    assert min(found[one]) > max(found[other])
assert max(found["3P:1D, 6 GB/s"]) < min(found["chunks"]) < min(found["3P:1D, 12 GB/s"])
assert 2.6 < arriving < 2.75
