# %% [markdown]
# # 4. Prefixes and eviction
#
# **Goal.** Say which tokens of a prompt a server finds in its cache, and which block it drops first when
# memory is short. Judge an eviction policy by a replay, and know what a replay cannot tell. Compute from
# a price list when memory below the GPU pays, and check it.
#
# One idea: **a cached block is a bet that its prefix comes again.** Policies differ in how they bet. A tier
# below the GPU makes it cheap to lose.
#
# Twenty minutes to read, half a minute to run, no GPU. Notebook 3 explains blocks and what caching saves.

# %%
import numpy as np
import pandas as pd
from scipy.stats import t as student

from simulator import load_profile, replay_cache, simulate
from simulator.experiments.compare_plots import COLORS
from simulator.experiments.figure_style import new_figure
from simulator.experiments.private_figure import PrivateFigure
from simulator.kv.by_hand import PrefixCache
from simulator.kv.eviction import lfu, lru
from simulator.latency.base import StepFeatures
from simulator.specs import get_model
from simulator.workload import generate
from simulator.workload.prefixes import with_prefixes


def draw(series, x, y):
    figure = PrivateFigure(new_figure(height=360)).update_xaxes(title=x).update_yaxes(title=y)
    for color, (name, (xs, ys)) in zip(COLORS, series.items(), strict=False):
        figure.add_scatter(x=xs, y=ys, name=name, line={"color": color}, mode="lines+markers")
    return figure


# %% [markdown]
# ## What hits, and what goes
#
# By hand: a pool of eight blocks of four tokens, a character a token, one prompt after the other.

# %%
prompts = ["sys.toolHi! ", "sys.toolHi! ", "sys.toolHi! How?", "sys.toolHi, ok", "Sys.toolHi! "]
prompts += ["One long document.  ", "sys.toolBye!"]
by_lru, by_lfu = PrefixCache(8, eviction=lru), PrefixCache(8, eviction=lfu)
hand = pd.DataFrame([by_lru.serve(prompt) for prompt in prompts], index=[f"'{each}'" for each in prompts])
hand.rename_axis("prompt")

# %% [markdown]
# - **Full blocks only.** The fourth prompt finds `sys.` and `tool`. Its `ok` fills half a block, which is
#   cached for nobody.
# - **Never the whole prompt.** The second prompt is the first again and yet computes four tokens. The
#   answer's first token comes out of computing the prompt's last, so at least that one is computed, and
#   with it its block.
# - **A block is named by all that stands before it.** The fifth prompt differs in its first letter and
#   finds nothing, though `toolHi! ` is there: the keys and values of a token depend on every token before.
#
# The document needs five blocks, and none is free. vLLM's rule is **LRU**, least recently used: of the
# blocks that no running request holds, the one released longest ago goes first, and a request releases its
# blocks *tail first*. So `How?` goes before `Hi! `, and `tool` before `sys.`. Were it the other way round,
# the tail would lie there out of reach, since a prefix ends at its first gap.
#
# Then the last prompt, of the kind that came most often, finds nothing. A document that nobody will ask for
# again has driven out what four of the five prompts before it began with. **LFU**, least frequently used,
# counts hits and makes another bet:

# %%
pd.DataFrame([by_lfu.serve(prompt) for prompt in prompts], index=hand.index).tail(2).rename_axis("prompt")

# %% [markdown]
# `Sys.toolHi! ` goes whole, which nobody had asked for twice, and `sys.tool` stays. LRU bets on who came
# last, LFU on who came often. The others here:
#
# - **FIFO** drops the oldest. A block counts as young as the youngest block behind it, or else a prefix
#   would be lost under its followers.
# - **GDSF** weighs hits by what a block costs to compute again. Blocks deep in a prompt cost more, as their
#   tokens attend to more. And it ages: keys count from that of the block dropped last, so that old ones sink.
# - **decay** is LFU that forgets: after ten minutes uses count half.
# - **SLRU** has two lists. The first hit moves a block from probation to protection.
# - **SIEVE** and **S3-FIFO** keep queues in order of arrival and pass over what was hit meanwhile.
#
# LRU, LFU and the first three of the list are one function each, from a block to a key; the smallest key
# goes first. The last three are small classes.
#
# ## A replay without time
#
# The quickest way to compare bets is to replay the prompts in the order of their arrival, each at once and
# alone. Then one can also tell what the best possible bet is: drop the block whose next use lies furthest
# ahead. That is **Belady**'s rule (1966). No server can follow it, as it needs the future, but it says how
# much there is to win.
#
# A load: a hundred assistants, each with its own system prompt of 500 to 6,000 tokens before the chat
# prompts of notebook 1. The second most popular is asked half as often as the first, the third a third as
# often, and so on (Zipf's law). Blocks have 64 tokens in this notebook instead of 16, to make it quick;
# exercise 2 asks what that changes.

# %%
SYSTEM = np.random.default_rng(4).integers(500, 6000, 100)


def assistants(rate, seed=0, n=800, block=64):
    chats = generate({"kind": "poisson", "rate": rate}, {"kind": "table", "name": "azure-conv"}, n, seed=seed)
    return with_prefixes(chats, np.random.default_rng(seed), SYSTEM, 1 / np.arange(1, 101), block)


card = 2430  # blocks of 64 tokens: 20 GB, what the 40 GB version of an A100 has left for KV
sizes = [card // 4, card // 2, card, 2 * card]
replay = replay_cache(assistants(2), capacities=sizes, block_size=64, vllm_rules=True)
replay.plot()

# %%
about = str(replay).partition("\n")[0]
print(about)
closed = replay.table.pivot(index="capacity_blocks", columns="eviction", values="gap_closed")
closed[["fifo", "gdsf", "sieve", "slru", "lfu", "decay", "s3fifo"]].round(2)

# %% [markdown]
# The dashed line is Belady, LRU and FIFO lie on each other at the bottom, the other six between. The table
# says how much of the way from LRU to Belady each goes.
#
# - With the card's 2,430 blocks LRU finds 52.8 % of the blocks, Belady 66.7 %, and a cache without limit
#   69.9 %. So of all that a limited memory costs, four fifths are a matter of the right bets.
# - S3-FIFO goes 47 % of the way, four others 41 %, GDSF 28 %. What they have in common: a block that was hit
#   stays longer than one that was not. A chat's own tokens are never asked for again, and LRU keeps them as
#   long as it keeps a system prompt.
# - FIFO is LRU here: every chat makes its system prompt young again. And decay is LFU, since the whole load
#   takes seven minutes.
#
# ### Another load, another bet
#
# Coding agents: each turn sends its whole history, and when a session ends, nobody asks for it again.
# Eleven sessions, 450 turns, a cache of 320,000 tokens:


# %%
def agents(rate, seed=0, n=450):
    sessions = {"kind": "sessions", "name": "agentic"}
    return generate({"kind": "poisson", "rate": rate}, sessions, n, seed=seed).replayed("think", 60)


coding = replay_cache(agents(0.008), capacities=[313], block_size=1024, vllm_rules=True).table
coding.set_index("eviction")[["hit_rate", "gap_closed"]].round(3)

# %% [markdown]
# Here nobody beats LRU, and LFU is a disaster: the blocks with most hits belong to sessions that are over.
# Who came last will come again, as long as the session lasts. LRU is close to Belady; what is left to win
# is to know which sessions are over.
#
# And recorded traffic? Of the two traces of Mooncake (FAST'25, Apache-2.0; not in the package), `servetwin
# cache mooncake_conversation_trace.jsonl.gz --capacity-blocks 10000` gives LRU 21.2 %, Belady 36.6 %, and
# nobody in between: FIFO comes next with 21.1, SIEVE and LFU are last with 13.2. On the synthetic one GDSF is
# slightly better than LRU, 43.7 against 42.4 %, and Belady has 61.7. So a better bet than LRU exists where
# popularity lasts. Do not assume that of your traffic: replay it.
#
# ## The same on a server
#
# A replay knows no time. On a server requests run side by side for seconds, and what they hold cannot go,
# whatever the policy says. Answers are cached too and take room. And a miss takes time, so that what comes
# next comes later, or in another order.
#
# Belady's rule loses its meaning with that: it foresees one order, and evictions change the order. It bounds
# the replay and nothing else.
#
# Does the ranking hold? The assistants on the 40 GB card, two requests a second, four seeds, each with other
# requests. Every policy serves the same requests, so all is compared with LRU seed by seed. The table has
# the mean and half of a 95 % interval (Student's t); hits are in points, percent of the prompt tokens, and
# times are multiples of LRU's.

# %%
SERVER = {"chat-a100": {"kv.gpu_memory_utilization": 0.46, "kv.block_size": 64}}
SERVER["agentic-a100"] = {"kv.num_gpu_blocks_override": 5001, "kv.block_size": 64}
POLICIES = ["lru", "gdsf", "sieve", "slru", "lfu", "s3fifo"]
SEEDS = range(4)


def serve(scenario, workload, eviction="lru", more=()):
    keys = SERVER[scenario] | dict(more)
    return simulate(
        scenario, workload=workload, eviction=eviction, set=keys, bottleneck=False, progress=False
    )


def share_found(run):
    return 100 * run.requests.num_cached.sum() / run.requests.num_prompt.sum()


def interval(values):
    half = student.ppf(0.975, len(values) - 1) * values.std() / len(values) ** 0.5
    return f"{values.mean():.2f} ± {half:.2f}"


# %%
timed, loads = {}, {seed: assistants(2, seed) for seed in SEEDS}
for seed in SEEDS:
    for name in POLICIES:
        run = serve("chat-a100", loads[seed], name)
        timed[name, seed] = share_found(run), run.summary["median_ttft_ms"], run.summary["p99_ttft_ms"]
timed = pd.DataFrame(timed, index=["hits", "median TTFT", "P99 TTFT"]).T


def against(base, column, change):
    return change(column, column[base].reindex(column.index, level=1)).groupby(level=0, sort=False)


replays = {s: replay_cache(load, POLICIES, [card], 64, vllm_rules=True).table for s, load in loads.items()}
alone = {s: 100 * table.set_index("eviction").token_hit_rate[POLICIES] for s, table in replays.items()}
alone = pd.DataFrame(alone).stack()
ranks = {"hits, replay": against("lru", alone, pd.Series.sub).agg(interval)}
ranks["hits"] = against("lru", timed.hits, pd.Series.sub).agg(interval)
for key in ("median TTFT", "P99 TTFT"):
    ranks[key] = against("lru", timed[key], pd.Series.div).agg(interval)
pd.DataFrame(ranks)

# %% [markdown]
# **All five beat LRU on the server too, each in every seed.** LFU finds 5.5 points more, about as in the
# replay, and the median TTFT falls by 30 %. Five points are worth so much because what need not be computed
# does not stand in others' way either. For the P99 four seeds are too few to say.
#
# Who of the five is best is another matter. S3-FIFO leads the replay in every seed, by 0.9 points over LFU;
# on the server it has no lead. SIEVE, equal to LFU in the replay, is behind it in every seed. A replay ranks
# roughly.
#
# That the sizes agree is partly luck. What running requests hold is not for the policy to decide, and they
# hold more at a higher rate:
#
# Is every advantage smaller than in the replay because running requests hold memory, about which no policy
# is asked? Then it must shrink with the rate:

# %%
rates, gain = [0.5, 1, 2, 2.5], {}
for rate in rates:
    for seed in SEEDS:
        runs = [serve("chat-a100", assistants(rate, seed), name) for name in ("lru", "lfu")]
        gain[rate, seed] = [*map(share_found, runs), 100 * runs[0].summary["servetwin"]["kv_usage_mean"]]
gain = pd.DataFrame(gain, index=["LRU", "LFU", "held by running requests (%)"]).T
by_rate = gain.groupby(level=0).mean()
draw({name: (rates, by_rate[name]) for name in ("LFU", "LRU")}, "requests/s", "prompt tokens found (%)")

# %%
by_rate["LFU - LRU"] = (gain.LFU - gain.LRU).groupby(level=0).agg(interval)
by_rate.round(1).rename_axis("requests/s")

# %% [markdown]
# From 6.6 points at 0.5 requests a second, the lead of LFU falls to 3.5 at 2.5, where running requests hold
# 67 % of the blocks and the server is at its limit. LFU has less left to decide about. And LRU finds no
# less under load: a popular system prompt is nearly always held by somebody and cannot go. What is wanted
# often is then safe under any policy.
#
# ### When the replay is worth nothing
#
# The coding agents, on a server with 5,000 blocks, 42 GB: once at a rate that it can serve, a session every
# 17 minutes, and once with eight times as many.

# %%
coded, heavy, sessions = {}, {}, {seed: agents(0.008, seed) for seed in SEEDS}
for rate in (0.001, 0.008):
    for seed in SEEDS:
        load = agents(rate, seed)
        again = replay_cache(load, ["lfu"], [5000], 64, vllm_rules=True).table.set_index("eviction")
        for name in ("lru", "lfu"):
            run = heavy[name, seed] = serve("agentic-a100", load, name)
            within = 100 * run.summary["servetwin"]["attainment"]
            coded[rate, name, seed] = 100 * again.token_hit_rate[name], share_found(run), within
coded = pd.DataFrame(coded, index=["hits, replay", "hits", "within SLO (%)"]).T
coded.groupby(level=[0, 1], sort=False).agg(interval).rename_axis(["sessions/s", "eviction"])

# %% [markdown]
# With few sessions the ranking is that of the replay, though LFU loses 2.4 points to LRU and not 11.4. With
# many the replay is wrong about everything. It promises LRU 91 % and LFU 78; the server finds 59 and 60 %,
# the two cannot be told apart, and less than half of the turns meet the SLO (TTFT of 3 s).
#
# Why? A missed history of 65,000 tokens takes 11 s to compute. Meanwhile others wait, sessions last longer,
# more are alive at a time, and the memory holds a smaller part of each: more misses. To see that it is the
# order that did it, let the replay take the turns in the order in which the server began them:


# %%
def as_served(workload, run):
    order = run.requests.sort_values("scheduled")
    rows = pd.Series(range(len(workload)), index=workload.ids)[order.id]
    return workload.take(rows.to_numpy(), order.scheduled.to_numpy())


parts = {}
for seed, load in sessions.items():
    run = heavy["lru", seed]
    one, other = (
        100 * replay_cache(each, [], [5000], 64, vllm_rules=True).table.set_index("eviction").token_hit_rate
        for each in (load, as_served(load, run))
    )
    parts[seed] = [one["lru"], other["lru"], other["belady"], share_found(run)]
titles = ["LRU as recorded", "LRU as served", "Belady as served", "server"]
parts = pd.DataFrame(parts, index=titles).T.rename_axis("seed")
parts.round(1)

# %% [markdown]
# On average LRU finds 91 % in the recorded order, 67 % in the order as served, and 59 % on the server. So the
# order explains three quarters of the difference; the rest is what running requests hold, and answers. And
# in the order as served even Belady's rule would find only 82 %, less than LRU did in the recorded one. What
# is best depends on an order that the policy itself has a hand in.
#
# One more thing that time adds: two requests may compute the same block side by side. vLLM's LRU then keeps
# both copies; under any other policy here there is one, as in SGLang's cache. A key with the order of LRU
# shows what that is worth:


# %%
def last_used(block, ctx):
    return block.last_used


one_copy = share_found(serve("chat-a100", loads[0], last_used))
print(f"found with two copies: {timed.hits['lru', 0]:.3f} %, with one: {one_copy:.3f} %")

# %% [markdown]
# Nothing, on this load. A block can be found as soon as its computation is scheduled (rule 6.4 in
# `docs/vllm_rules.md`), so a request that begins alike finds it even in the same step. What gets a second
# copy is the last block of a prompt that comes again whole.
#
# ## A tier below
#
# The overloaded server does not need a better bet, it needs room. Host memory has plenty: with `kv.tiers`
# what the GPU evicts is copied there, and comes back when a prompt needs it. So losing a bet costs a
# transfer instead of a computation. Which is quicker? Both can be read off the price list: the time to
# compute a prefix, in chunks of 2,048 tokens, and the bytes of its KV. Their quotient is the bandwidth at
# which the two take equally long.

# %%
profile, model = load_profile("a100-80gb-sxm", "llama-3.1-8b"), get_model("llama-3.1-8b")
lengths = pd.Index([512, 2048, 8192, 32768, 65536, 131072], name="tokens")


def seconds(n, chunk=2048):
    pieces = [(min(chunk, n - at), at) for at in range(0, n, chunk)]
    return sum(profile.step_time(StepFeatures.prefill([piece])) for piece in pieces)


prices = pd.DataFrame({"compute (s)": [seconds(n) for n in lengths]}, index=lengths)
prices["KV (GB)"] = lengths * model.kv_bytes_per_token() / 1e9
prices["fetch at 25 GB/s (s)"] = prices["KV (GB)"] / 25
prices["equal at (GB/s)"] = prices["KV (GB)"] / prices["compute (s)"]
prices.round(2)

# %% [markdown]
# Up to some 8,000 tokens 2 GB/s are enough, for long prefixes less, as computing gets slower with length and
# copying does not. An A100 is connected to its host by PCIe 4.0 x16, 32 GB/s by the standard and some 25 in
# practice. So a fetch is 10 to 50 times quicker than computing again.
#
# But fetching is only half of the cost. A block must be copied *out* before it is overwritten, whether it
# comes again or not, and the step that overwrites it waits for that. All who are in the batch wait with it.
# Once is enough: a fetched block stays in the host as well, and its next eviction is free.
#
# The eleven sessions on 5,000 blocks, at 0.008 sessions a second: without a host, with 256 GiB of it behind
# links of different speed, and on a GPU that has room for everything. The table has the middle one of three
# seeds; a hit is a token that was not computed, found on the GPU or fetched.

# %%
host = {"name": "host", "capacity_gib": 256}
links = [0.5, 1, 2, 5, 25, 100]
options = {"none": {}, "room for all": {"kv.num_gpu_blocks_override": 10**6}}
options |= {link: {"kv.tiers": [host | {"bandwidth_gb_s": link}]} for link in links}
COLUMNS = {
    "median_ttft_ms": "median TTFT (s)",
    "mean_ttft_ms": "mean TTFT (s)",
    "p99_ttft_ms": "P99 TTFT (s)",
}
COLUMNS |= {"mean_tpot_ms": "TPOT (ms)", "output_throughput": "tokens/s"}
COLUMNS |= {"offload_stall_s": "steps held back (s)", "fetch_wait_s": "fetching (s)"}
DIGITS = dict(zip(["hits (%)", *COLUMNS.values()], [1, 2, 2, 1, 1, 1, 0, 0], strict=True))


def cost(run):
    every = run.summary | run.summary["servetwin"]
    named = {name: every[key] / (1e3 if "TTFT" in name else 1) for key, name in COLUMNS.items()}
    return {"hits (%)": share_found(run)} | named


offload = {}
for seed in range(3):
    for name, kv in options.items():
        offload[name, seed] = cost(serve("agentic-a100", sessions[seed], "lru", kv))
offload = pd.DataFrame(offload).T
middle = offload.groupby(level=0, sort=False).median().rename_axis("link (GB/s)")
middle.astype(float).round(DIGITS)

# %%
ttft = middle["mean TTFT (s)"]
curves = {"host offload": (links, ttft[links])}
curves |= {name: ([links[0], links[-1]], [ttft[name]] * 2) for name in ("none", "room for all")}
figure = draw(curves, "link to the host (GB/s, log scale)", "mean TTFT (s, log scale)")
figure.update_xaxes(type="log", tickvals=links).update_yaxes(type="log", tickvals=[1, 2, 5, 10, 20, 50])

# %%
ratios = offload["mean TTFT (s)"] / offload["mean TTFT (s)"]["none"].reindex(offload.index, level=1)
ratios.unstack(level=0)[[*options]].round(2).rename_axis("seed")

# %% [markdown]
# - The hits do not depend on the link: 96.0 % with any. It decides when blocks come, not whether.
# - **With 0.5 GB/s the host makes things worse: a mean TTFT of 1.5 to 1.8 times that of no host. With 1
#   GB/s it is half, 0.49 to 0.61 times.** Between the two lies what the price list gives for histories as
#   long as these, 74,000 tokens on average: 0.72 GB/s.
# - With 25 GB/s the mean TTFT is 2.0 instead of 27.3 s, mean TPOT 29 instead of 74 ms, since few steps
#   carry a prompt now, and the tokens per second are those of a GPU with room for everything.
# - More than that brings little. What remains to `room for all` is the fetch itself: 0.4 s for a history at
#   25 GB/s.
#
# Where else does it not pay? Where the GPU has room. The load that the server could serve, with and
# without:

# %%
light = {}
for seed in range(3):
    for name in ("none", 1, 25):
        light[name, seed] = cost(serve("agentic-a100", agents(0.001, seed), "lru", options[name]))
light = pd.DataFrame(light).T.groupby(level=0, sort=False).median().rename_axis("link (GB/s)")
light.astype(float).round(DIGITS)

# %% [markdown]
# 96.0 % of the tokens are found without a host. Nothing is fetched, but the server cannot know that, and
# copies out what it evicts: with 1 GB/s its steps are held back for 164 s in all, and the mean TTFT rises
# by 55 %. With 25 GB/s it is 7 s, which nobody notices. A host is an insurance, and the link sets the
# premium. `docs/offload.md` has the same for a hundred recorded sessions and five seeds.
#
# ## What to take along
#
# 1. A prefix hits in full blocks, up to its first gap, and never as a whole prompt. LRU drops tails first.
# 2. No bet is best everywhere. Counting hits closes two fifths of the gap to Belady where some prefixes stay
#    popular, and is a disaster for sessions that end. Replay your own traffic.
# 3. A replay ranks bets roughly, as long as the server keeps up. In overload the order is another one, and
#    the replay's numbers mean nothing. Belady bounds the replay, not a server.
# 4. Where memory is short, room is worth more than any policy. On this GPU a tier pays from 0.5 to 2 GB/s
#    on, so any PCIe link will do; the link does not change what is found, only what it costs.
#
# **What to believe.** LRU's decisions are vLLM's, which a test replays. The other policies are run by no
# vLLM; their papers' rules are carried over to prefixes, and no server was measured with them. Step times
# come from a profile fitted to public kernel timings of an A100, off by 2.5 % on kernels held out of the fit
# and no better than about ±10 % in absolute time. A chunk after a cached prefix is priced at about half of
# what another public source measured; if that is right, computing a long history again takes twice as long
# and a tier pays from half the bandwidth on. Links are idealised: full bandwidth for any block size, no
# effect on kernels, and a step waits for all that it overwrites, where a server that copies in the
# background would wait less. The loads are drawn; only Mooncake's numbers are of recorded traffic.
#
# ## Exercises
#
# Predict first, then run. Answers are in `answers/04_prefix_and_eviction.py`.
#
# **Exercise 1.** LFU wins with the assistants, LRU with the agents. Write one key function that in the replay
# comes within 2.5 points of the better one on both: 2,430 blocks of 64 tokens and 313 of 1,024. A key sees
# `block.num_hits`, `last_used`, `created`, `depth`, `num_tokens` and `recompute_time`, and `ctx.now`. What
# does yours bet on? Does it still beat LRU on the server?
#
# **Exercise 2.** Blocks of 16 tokens instead of 64, or of 256 or 1,024, in the same bytes. Predict for the
# assistants what a cache without limit finds: whoever is not the first to ask an assistant finds its system
# prompt, less half a block on average. Check it in the replay. Is the smaller block worth it on the server,
# and does it change who beats LRU?
