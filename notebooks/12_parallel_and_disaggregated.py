# %% [markdown]
# # 12. More than one GPU
#
# **Goal.** Say what to do with four GPUs. Four servers behind a router, and which router? One server whose
# model is cut into four, and in which direction? Or some that compute prompts and others that decode? And
# know, for each of them, when the answer turns around.
#
# One idea: **what is shared can be waited for, and what is split can be unevenly full.** Every section
# below is about where one of the two begins to cost.
#
# Twenty minutes to read, half a minute to run, no GPU. All times are simulated on a CPU: they come from a
# profile fitted to public kernel timings of an A100, or from the roofline where the text says so. Notebook
# 2 explains steps and chunks, notebook 4 prefixes, notebook 11 the intervals.

# %%
from collections import Counter

import numpy as np
import pandas as pd
from scipy.stats import t as student

from simulator import compare, load_scenario, simulate
from simulator.experiments.compare_plots import COLORS
from simulator.experiments.figure_style import new_figure
from simulator.experiments.private_figure import PrivateFigure


def draw(series, x, y, **axis):
    figure = PrivateFigure(new_figure(height=360)).update_xaxes(title=x, **axis).update_yaxes(title=y)
    for color, (name, (xs, ys)) in zip(COLORS, series.items(), strict=False):
        figure.add_scatter(x=list(xs), y=list(ys), name=name, line={"color": color}, mode="lines+markers")
    return figure


def quick(scenario, keys, seed=0, **more):
    return simulate(scenario, set=keys, seed=seed, bottleneck=False, progress=False, **more)


SHARES = ("attainment", "prefix_hit_rate", "bubble_share")  # in percent


def table(runs, names):
    every = {name: run.summary | run.summary["servetwin"] for name, run in runs.items()}
    rows = {at: [(100 if key in SHARES else 1) * all_[key] for key in names] for at, all_ in every.items()}
    return pd.DataFrame(rows, list(names.values())).T


def interval(values):
    half = student.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / len(values) ** 0.5
    return np.mean(values), half


# %% [markdown]
# ## One queue or four
#
# Before GPUs, the oldest question about several servers: should customers wait in one queue for whichever
# is free, or choose a queue at once? For Poisson arrivals and exponential service theory knows both. One
# queue for `c` servers is M/M/c (Erlang's C formula), and customers sent at random make `c` queues M/M/1.
#
# A toy server shows whether the simulator agrees. Each step takes 20 ms whatever is in it, and answers have
# 50 tokens on average, so a *seat* is a server with a service time of a second. Four replicas with one seat
# each are four queues, one replica with four seats is one. All of them are busy 70 % of the time:

# %%
SERVERS, LOAD, TOKENS, NUM = 4, 0.7, 50, 1500


def erlang_c(servers, load):  # mean wait, in service times
    blocked = 1.0
    for i in range(1, servers + 1):
        blocked = servers * load * blocked / (i + servers * load * blocked)
    return blocked / (1 - load * (1 - blocked)) / (servers * (1 - load))


def wait(replicas, seats, router, seed):
    toy = {"model": {"name": "tiny-llama-28m", "max_model_len": None}, "hardware": {"gpu": "cpu-1core"}}
    toy |= {"kv": {"num_gpu_blocks_override": 200_000}, "scheduler": {"max_num_seqs": seats}}
    toy |= {"latency": {"kind": "linear", "coefficients": {"constant": 1 / TOKENS}}}
    load = {"arrivals": {"kind": "poisson", "rate": LOAD * SERVERS}, "num_requests": NUM}
    load |= {"lengths": {"kind": "exponential", "prompt": 1, "output": TOKENS}, "max_tokens": 100_000}
    toy |= {"workload": load, "cluster": {"replicas": replicas, "router": router}}
    served = quick(toy, {}, seed).requests
    return (served.scheduled - served.arrival)[NUM // 10 :].mean()


ROUTERS = ["random", "round_robin", "power_of_two", "least_outstanding"]
kinds = {f"four queues, {name}": (4, 1, name) for name in ROUTERS} | {"one queue": (1, 4, "random")}
theory = {"four queues, random": erlang_c(1, LOAD), "one queue": erlang_c(4, LOAD)}
found = {
    name: [*interval([wait(*kind, seed) for seed in range(4)]), theory.get(name)]
    for name, kind in kinds.items()
}
waits = pd.DataFrame(found, ["mean wait (s)", "±", "theory"]).T.astype(float)
waits.round(2)

# %% [markdown]
# The ends agree with theory: 2.19 ± 0.33 s against 2.33, and 0.36 against 0.36. The same servers at the same
# load let customers wait six times as long if each has its own queue and nobody looks. In between lies what
# a router can do. Taking turns halves the wait. The better of two drawn at random (`power_of_two`) brings it
# to a third, and the shortest of all (`least_outstanding`) comes near the single queue.
#
# So routing matters a lot? With one seat. An LLM server has `max_num_seqs` of them, 256 by default. Erlang's
# formula for four queues against one at a load of 0.95, for more and more seats each:
# %%
seats = [1, 4, 16, 64, 256]
pooled = {n: [erlang_c(n, 0.95), erlang_c(4 * n, 0.95)] for n in seats}
pooled = pd.DataFrame(pooled, ["four queues", "one queue"]).T.rename_axis("seats a replica")
pooled.round(3)

# %% [markdown]
# With 256 seats a request waits 0.02 service times in a queue of its own, with a load of 95 %. Whoever comes
# in joins the batch. What is left to be uneven is not the wait but the *speed*: a fuller batch takes longer
# a step, and a long prompt holds up everybody in its step.
#
# ## A router for chat
#
# Chat on four A100s, 30 requests a second, which is near what they can carry within the SLO (TTFT of 500 ms,
# TPOT of 50 ms). Five replications, mean TTFT in ms:


# %%
def chat(rate, num=1600, **cluster):
    keys = {f"cluster.{key}": value for key, value in ({"replicas": 4} | cluster).items()}
    keys |= {"workload.arrivals": {"kind": "poisson", "rate": rate}, "workload.num_requests": num}
    return load_scenario("chat-a100").with_(**keys)


candidates = {name: {"cluster.router": name} for name in ("least_outstanding", "round_robin", "random")}
routed = compare(chat(30, 600), candidates, metric="mean_ttft_ms", replications=5)
VERDICT = ["mean", "difference", "sampling_low", "sampling_high", "verdict"]
routed.frame[VERDICT].round(1)

# %% [markdown]
# Random costs 27 %, for sure. Between taking turns and the fewest requests under way nothing is decided:
# five runs do not tell, and whoever wants to know must run more. It is the picture above: a rule that keeps
# numbers even is most of it, and which rule is the rest.
#
# ## Old news
#
# A router in front of real servers does not see a queue. It sees what the servers last said of theirs.
# `cluster.signal_delay_s` lets them say it only every so many seconds; in between all numbers stay as they
# were. Chat at 28 a second:

# %%
delays = [0, 0.1, 1, 3, 10]
STALE = ["least_outstanding", "power_of_two", "round_robin", "random"]
stale = {
    (name, delay): quick(chat(28, 1200, router=name, signal_delay_s=delay), {})
    for name in STALE
    for delay in delays
}
attained = table(stale, {"attainment": "within SLO (%)"})["within SLO (%)"]
curves = {name: ([str(delay) for delay in delays], attained[name]) for name in STALE}
draw(curves, "seconds between two signals", "requests within the SLO (%)", type="category")

# %% [markdown]
# **`least_outstanding` falls apart with news that is a second old: 58 % instead of 99 % meet the SLO, and
# with ten seconds none.** Random keeps its 98 %, as it never looked, and so does taking turns. This is how
# ten seconds look, requests in each replica over time:

# %%
stale["least_outstanding", 10].plot("replicas")

# %% [markdown]
# A herd. Whoever was emptiest when the signals came gets *every* request until the next ones, 280 of them,
# while the others run dry. `power_of_two` looks too, but one request seldom looks at the same pair as the
# next, so it gets worse slowly. The usual remedy is that the router counts what it sends itself, which is
# exercise 1. (Without a delay, the default, counts here are of this moment.)
#
# ## Sessions
#
# So far any replica was as good as any other. Now coding agents: a session of 45 turns sends its whole
# history every time, 78,000 tokens on average, of which 96 % were in the turn before. Whoever served that
# one has the KV, and the others have nothing. The bundled scenario `fleet-a100`, eight replicas, 80
# sessions:

# %%
SEEN = ["least_outstanding", "session_affinity", "prefix_affinity"]
fleet = {name: quick("fleet-a100", {"cluster.router": name}) for name in SEEN}
AGENTS = {"prefix_hit_rate": "hits (%)", "median_ttft_ms": "median TTFT (ms)", "p99_ttft_ms": "P99 TTFT (ms)"}
AGENTS |= {"mean_tpot_ms": "mean TPOT (ms)", "attainment": "within SLO (%)", "imbalance": "busiest / mean"}
sessions = table(fleet, AGENTS)
sessions.insert(
    1, "computed (million tokens)", [run.steps.prefill_tokens.sum() / 1e6 for run in fleet.values()]
)
sessions.round(1)

# %% [markdown]
# **The same eight GPUs, the same requests: 24 % within the SLO with the shortest queue, 92 % with
# `prefix_affinity`.** The second column is why. Even by numbers means that a turn goes anywhere, and finds
# its history in 32 % of its tokens instead of 96 %. The rest is computed again: 186 million tokens instead
# of 12. The servers are not slow, they do the same work 16 times.
#
# `session_affinity` hashes a session's name to a replica, which needs no memory at all. But a hash knows no
# load. Where it puts more sessions than memory can hold, hits fall for all of them: on some replicas the
# memory is full to the last block. `prefix_affinity` remembers which prefix it sent where, sends new ones to
# the shortest queue, and gives up a prefix if its replica has far more to do than others.

# %%
fleet["least_outstanding"].plot("replicas")

# %% [markdown]
# Shortest queues: even, and full. The color says how many requests are there; with three or four prompts of
# 78,000 tokens at a time nobody is quick. Now with affinity:

# %%
fleet["prefix_affinity"].plot("replicas")

# %% [markdown]
# Emptier by far, and uneven: the busiest replica works 1.6 times as much as the mean. When a session begins,
# often several replicas have nothing to do at that moment, and the tie goes to the first of them. It counts
# requests, but what stays is a *session*.
#
# ## A router of your own
#
# So count sessions. A router is a function of the request, the replicas that take requests (their `index`,
# `num_outstanding`, `num_running`, `num_waiting`, `free_blocks` as last signalled), and a context with the
# time and a random stream; it returns an index into `replicas`. One that remembers is a class. This one
# sends a session home, and a new one to the replica with the fewest sessions heard of in the last five
# minutes. Half of the fleet, four seeds:


# %%
class FewestSessions:
    def __init__(self):
        self.home = {}  # session -> where, and when it was heard of last

    def __call__(self, request, replicas, ctx):
        places = {replica.index: i for i, replica in enumerate(replicas)}
        where, _ = self.home.get(request.session, (None, 0))
        if where not in places:  # a new session, or its replica is gone
            alive = Counter(at for at, heard in self.home.values() if ctx.now - heard < 300)
            where = min(places, key=lambda index: alive[index])
        self.home[request.session] = where, ctx.now
        return places[where]


half = {"cluster.replicas": 4, "workload.arrivals": {"kind": "poisson", "rate": 0.008}}
half |= {"workload.num_requests": 1800}
routers = {"prefix_affinity": "prefix_affinity", "our own": FewestSessions}
runs = {
    (name, seed): quick("fleet-a100", half, seed, router=router)
    for seed in range(4)
    for name, router in routers.items()
}
own = table(runs, {"attainment": "within SLO (%)", "imbalance": "busiest / mean"}).unstack(0)
own.rename_axis("seed").round(2)

# %%
gained = {key: interval(own[key, "our own"] - own[key, "prefix_affinity"]) for key in own.columns.levels[0]}
for key, (mean, half_width) in gained.items():
    print(f"{key}, difference: {mean:+.2f} ± {half_width:.2f}")

# %% [markdown]
# More even in each of four seeds, and that is beyond chance. Better within the SLO in each of them too, but
# by 1 to 8 points, and four runs leave an interval from -2 to 8. That is not a proof; a run costs a second,
# so get one. `servetwin run fleet-a100 --set cluster.router=my.py:FewestSessions` runs the same class from a
# file.
#
# ## One dies
#
# Machines do. `cluster.outages` says which and when. Chat at 24 a second on four replicas, one of which dies
# after 20 s: what it had goes to the others and starts over, unless `retry` is off. It may come back
# (`back_s`), as a new one with empty caches:

# %%
dies = {"outages": [{"replica": 1, "at_s": 20}]}
back = {"outages": [{"replica": 1, "at_s": 20, "back_s": 50}]}
FATES = {"all live": {}, "one dies": dies, "one dies, no second try": dies | {"retry": False}}
FATES |= {"it comes back": back, "it comes back, power_of_two": back | {"router": "power_of_two"}}
died = {name: quick(chat(24, **keys), {}) for name, keys in FATES.items()}
TOLD = {"completed": "completed", "num_retried": "tried again", "median_ttft_ms": "median TTFT (ms)"}
TOLD |= {"p99_ttft_ms": "P99 TTFT (ms)", "mean_tpot_ms": "mean TPOT (ms)", "attainment": "within SLO (%)"}
deaths = table(died, TOLD)
first = {name: run.requests[run.requests.arrival.between(50, 53)] for name, run in died.items()}
deaths["mean TTFT, 50 to 53 s (ms)"] = [
    1e3 * (rows.first_token - rows.arrival).mean() for rows in first.values()
]
deaths.round(1)

# %% [markdown]
# - No request is lost: 1,600 complete, 31 of them after a second try. Their first tokens came late, which is
#   the whole difference in P99, 3,928 against 515 ms. Those without a second try are not better off; they
#   are not counted in latencies, only among the aborted, and against the SLO.
# - Three carry what four did: mean TPOT rises from 24.5 to 31.4 ms. That a quarter may be missing has to be
#   in the number of replicas from the start.
# - **When it comes back, things get worse first.** It has no requests, so `least_outstanding` sends it all
#   of them, 24 a second, and in its first three seconds the mean TTFT is 387 ms, against 145 where it stays
#   dead. It is the herd again, without any delay. `power_of_two` has 119.
#
# ## As many as needed
#
# Why pay for four all day? An autoscaler asks every 10 s how many requests are under way a replica, and
# keeps about `target` (32) there. But a new replica has to start, load weights, warm up: `start_delay_s`,
# during which it costs. Chat at 6 requests a second that rises to 24 for two minutes:

# %%
burst = {"workload.arrivals": {"kind": "ramp", "points": [[0, 6], [120, 6], [120, 24], [240, 24], [240, 6]]}}
burst |= {"workload.num_requests": 4200, "cluster.replicas": 2}
scaler = {"min_replicas": 2, "max_replicas": 6}
SCALED = {"always 2": {}, "always 4": {"cluster.replicas": 4}}
for delay in (0, 60, 120):
    SCALED[f"2 to 6, {delay} s"] = {"cluster.autoscaler": scaler | {"start_delay_s": delay}}
SCALED["2 to 6, 60 s, early"] = {"cluster.autoscaler": scaler | {"target": 16}}
scaled = {name: quick("chat-a100", burst | keys) for name, keys in SCALED.items()}
PAID = {"median_ttft_ms": "median TTFT (ms)", "p99_ttft_ms": "P99 TTFT (ms)", "attainment": "within SLO (%)"}
scale = table(scaled, PAID | {"gpu_seconds": "GPU seconds"})
scale.round(0).astype(int)

# %% [markdown]
# With no delay an autoscaler is wonderful. **With 60 s, half the burst, it saves 9 % of the GPU seconds of
# four replicas and meets the SLO for 60 % of the requests instead of 99 %; with 120 s it costs more than
# four and has hardly done more than two.** The new ones stand ready when the burst is over. A lower target
# asks earlier and gets 73 %, at the price of four.

# %%
scaled["2 to 6, 60 s"].plot("replicas")

# %% [markdown]
# Replicas 2 to 5 open at 190 s. By then some 700 requests are with the first two, and stay there: a router
# does not move what it has sent. Autoscaling is for the hours of a day. Bursts of minutes need room that is
# there.
#
# ## One server from four GPUs
#
# The other use of four GPUs is one model on all of them. *Tensor parallelism* (TP) cuts every layer: each
# GPU reads a quarter of the weights, and two all-reduces a layer put the pieces together. *Pipeline
# parallelism* (PP) puts a quarter of the layers on each: a token passes through all four one after the
# other, and four batches can be on the way at once, if there are four. Chat at 6 requests a second, over
# NVLink (300 GB/s) and PCIe (32 GB/s). Times in ms; only the roofline prices both cards, so all are the
# roofline's here. The last column is another run, with all requests there at once:

# %%
LINKS = {"NVLink": "a100-80gb-sxm", "PCIe": "a100-80gb-pcie"}
CUTS = {"TP4": (4, 1), "TP2 x PP2": (2, 2), "PP4": (1, 4)}
SIZES = ("parallel.tensor_parallel_size", "parallel.pipeline_parallel_size")
WAYS = {name: dict(zip(SIZES, cut, strict=True)) for name, cut in CUTS.items()}
WAYS["4 replicas"] = {"parallel.tensor_parallel_size": 1, "cluster.replicas": 4}
QUANTILES = [10, 25, 50, 75, 90, 95, 97, 98, 99, 99.5, 99.9]
six = {"workload.arrivals": {"kind": "poisson", "rate": 6}, "workload.num_requests": 300}
six |= {"latency.kind": "roofline", "run.percentiles": QUANTILES}
full = six | {"workload.arrivals": {"kind": "all_at_once"}}
TOKEN = {"median_ttft_ms": "median TTFT", "p99_ttft_ms": "P99 TTFT", "median_itl_ms": "median ITL"}
TOKEN |= {"p99_itl_ms": "P99 ITL", "mean_tpot_ms": "mean TPOT"}


def divided(keys):
    cases = {(link, way): {"hardware.gpu": LINKS[link]} | WAYS[way] for link in LINKS for way in WAYS}
    return {at: quick("low-latency-a100", keys | each) for at, each in cases.items()}


shared = divided(six)
ways = table(shared, TOKEN)
ways["bubbles (%)"] = [100 * run.summary["servetwin"].get("bubble_share", 0) for run in shared.values()]
ways["requests/s, if all at once"] = table(divided(full), {"request_throughput": ""})
ways.round(1)


# %% [markdown]
# The tail of the gaps, over NVLink:


# %%
def gaps(run):
    return [run.summary[f"p{q}_itl_ms"] for q in QUANTILES], [100 - q for q in QUANTILES]


X, Y = "gap between two tokens (ms, log scale)", "longer gaps (%, log scale)"
tails = {"tickvals": [5, 10, 20, 50, 100, 200, 500], "type": "log"}
figure = draw({way: gaps(shared["NVLink", way]) for way in WAYS}, X, Y, **tails)
figure.update_yaxes(type="log", tickvals=[0.1, 1, 10, 100])

# %% [markdown]
# - **A stage makes no token quicker.** Whatever is cut, a token of PP4 goes through all 32 layers, one GPU
#   at a time, and pays the host and the sends at each stage: a median gap of 20.8 ms, against 13.6 on a GPU
#   of its own and 7.0 with TP4. The curve of PP4 lies to the right of all others, tail included.
# - **Bubbles.** 26 % of the time of its stages, while anything was under way, nothing was in them: batches
#   are not equally long, and the stage behind a long one waits.
# - **What a pipeline saves is communication**, so it pays where that is dear. Over PCIe the all-reduces of a
#   prompt's chunk take longer than its matrices, and TP4's P99 of TTFT is 970 ms against PP4's 252. Its
#   median gap is still the shorter one.
# - **If the model fits on one GPU, four replicas need no link at all.** Over PCIe they are best in
#   everything but the gap of TP2 x PP2 (13.3 against 14.2 ms) and the P99 of TTFT, and when all is full they
#   carry 18 requests a second. What TP4 buys with its NVLink is latency: half the median TTFT, half the gap.
#
# Beyond chance? Three replications, P99 of ITL over NVLink:

# %%
base = load_scenario("low-latency-a100").with_(**six | {"workload.num_requests": 200})
candidates = {way: WAYS[way] for way in ("TP4", "PP4", "4 replicas")}
judged = compare(base, candidates, metric="p99_itl_ms", replications=3)
judged.frame[VERDICT].round(1)

# %% [markdown]
# Both lose. So *pipeline parallelism for stable low latency*, as one reads, is wrong with NVLink; over PCIe
# it holds for the first token. `docs/pipeline.md` judges it for two models, two loads and ten seeds, and
# finds the same with the A100's profile in place of the roofline.
#
# ## Prompts here, answers there
#
# One thing has disturbed gaps in every section: a prompt's chunk in the step. So let some GPUs compute
# prompts only, and others decode only (DistServe, Splitwise). Then no decode ever waits for a chunk. The
# price: KV must travel, and two pools are half a pooled queue each. Chat at 16 a second on four replicas,
# with prompts in chunks of 2,048 or 512, or split into `P` and `D`, over 50 GB/s unless it says otherwise.
# The SLO's TPOT is 25 ms here; times in ms:


# %%
def split(prefill, decode, **keys):
    return {"cluster.disaggregation": {"prefill": {"count": prefill}, "decode": {"count": decode}} | keys}


def link(bandwidth):
    return {"link": {"bandwidth_gb_s": bandwidth}}


sixteen = {"workload.arrivals": {"kind": "poisson", "rate": 16}, "workload.num_requests": 1000}
sixteen |= {"run.percentiles": QUANTILES, "slo.tpot_ms": 25}
FOUR = {f"chunked {n}": {"cluster.replicas": 4, "scheduler.max_num_batched_tokens": n} for n in (2048, 512)}
FOUR |= {f"{n}P:{4 - n}D": split(n, 4 - n) for n in (1, 2, 3)}
FOUR |= {f"2P:2D, {bandwidth} GB/s": split(2, 2, **link(bandwidth)) for bandwidth in (3, 1)}
pools = {name: quick("chat-a100", sixteen | keys) for name, keys in FOUR.items()}
parted = table(pools, TOKEN | {"p99_tpot_ms": "P99 TPOT", "attainment": "within SLO (%)"})
parted.round(1)

# %%
chosen = ["chunked 2048", "chunked 512", "2P:2D", "2P:2D, 3 GB/s"]
figure = draw({name: gaps(pools[name]) for name in chosen}, X, Y, **tails)
figure.update_yaxes(type="log", tickvals=[0.1, 1, 10, 100])

# %% [markdown]
# - **The gaps become even.** P99 of ITL is 18.4 ms with two and two, against 104 and 43 ms with chunks. The
#   curve falls like a wall. Smaller chunks buy some of that, for a longer TTFT.
# - The median gets worse, 16.9 against 15.3 ms: two GPUs decode what four did, so batches are twice as
#   large.
# - **A wrong split is worse than none.** One prefill GPU cannot take 16 prompts a second: 48 % meet the SLO.
# - **Mind the percentile.** With 1 GB/s P99 of ITL is the best but one in the table, and 7 % meet the SLO.
#   The KV travels between the first and the second token, and that is one gap of 211: a P99 over gaps does
#   not see it. TPOT is an average over a request, and has it. At 3 GB/s it is the last bend of the curve.
#
# What travelled, in GB, and how long each transfer took from decision to end:

# %%
moved = {name: run.summary["servetwin"].get("transfers") for name, run in pools.items()}
moved = pd.DataFrame({name: each for name, each in moved.items() if each}, ["gb", "mean_ms", "p99_ms"]).T
moved.round(1)

# %% [markdown]
# 118 GB for 1,000 prompts are 118 MB each, at 131,072 bytes a token. 16 a second for two decode replicas are
# 0.95 GB/s each. With 1 GB/s that is a load of 95 % if both ends are always busy, which they are not: a
# transfer needs its sender and its receiver at one time. So transfers pile up, 17 s on average. With 3 GB/s
# it is 78 ms, of which the bytes alone are half, and with 50 GB/s it is 3.
#
# Is two and two better than chunks, beyond chance? P99 of TPOT in ms:

# %%
base = load_scenario("chat-a100").with_(**sixteen | {"workload.num_requests": 400})
candidates = {name: FOUR[name] for name in ("chunked 512", "2P:2D")}
better = compare(base, candidates, metric="p99_tpot_ms", replications=3)
better.frame[VERDICT].round(1)

# %% [markdown]
# A win in the metric that disaggregation is about. In throughput it is none: with a TPOT limit of 50 ms four
# chunked replicas carry a quarter more chat than two and two. `docs/disaggregation.md` has goodput for both
# limits, and the bandwidth at which the two are equal, with intervals.
#
# Short answers are another matter. Code completion has 29 tokens an answer, so the second token's gap is a
# good part of it. 8 requests a second, three prefill and one decode replica:

# %%
SENT = {"chunked 2048": {"cluster.replicas": 4}, "3P:1D, 50 GB/s": split(3, 1)}
SENT |= {"3P:1D, 5 GB/s": split(3, 1, **link(5)), "by layer": split(3, 1, **link(5), layerwise=True)}
SENT |= {"first token by decode": split(3, 1, **link(5), first_token="decode")}
eight = sixteen | {"workload.arrivals": {"kind": "poisson", "rate": 8}, "workload.num_requests": 600}
sent = {name: quick("code-a100", eight | keys) for name, keys in SENT.items()}
coded = table(sent, TOKEN | {"p99_tpot_ms": "P99 TPOT", "attainment": "within SLO (%)"})
coded["transfer"] = [run.summary["servetwin"].get("transfers", {}).get("mean_ms") for run in sent.values()]
coded.astype(float).round(1)

# %% [markdown]
# - With 50 GB/s splitting beats chunks: P99 of TPOT is 22 instead of 71 ms. With 5 GB/s it is worse than
#   chunks: a transfer takes 126 ms on average and lies in a mean over 29 tokens.
# - Sent layer by layer while the prompt is still being computed, most of it is hidden.
# - Or it is counted elsewhere. vLLM's example proxies let the decode replica give the first token
#   (`first_token: decode`). The wait is the same, but now it is TTFT: 254 instead of 121 ms in the median,
#   and P99 of ITL falls to 15.7. Compare two systems only if they count alike.
#
# ## What to take along
#
# 1. Seats pool. With hundreds of them, queues hardly matter, and any router that keeps counts even is good,
#    unless its counts are old: then it makes a herd.
# 2. Where requests have a past, go where it is. For the agents that was worth 68 points.
# 3. A replica that dies costs its share and a second try. One that comes back, or starts late, is no help at
#    once.
# 4. TP buys latency if the link is fast, PP a first token if it is slow, replicas throughput.
# 5. Disaggregation buys even gaps. It needs a split that fits the load, and a link that carries its bytes at
#    far less than full load.
#
# **What to believe.** No cluster was measured. Step times come from public data of one GPU, links are line
# rates with a latency, and a router takes no time. The agents' histories are longer than anything that was
# timed: 92 % of the steps of `fleet-a100` lie outside the measured range; `docs/limits.md` says what that
# leaves out and whom it favours, and `docs/cluster.md` has every key used here. Tables without an interval
# are one run each: before you rely on a small difference in one, give it other seeds and a verdict.
#
# ## Exercises
#
# **Exercise 1.** The herd again: chat at 28 a second, four replicas, news every ten seconds. Write a router
# that sends to the fewest requests by the last signals *plus* what it has sent there itself since. How near
# does it come to news of this moment? It does not see what has ended since; why does that do so little harm?
#
# **Exercise 2.** Code completion at 10 requests a second on four GPUs, and a TPOT limit of 25 ms. Which
# split has the most within the SLO, and does it beat chunks? Then predict from bytes how slow a link of the
# best one may be, and look where it falls behind chunks. Why so much earlier?
#
# Answers: `answers/12_parallel_and_disaggregated.py`.
