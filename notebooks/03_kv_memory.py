# %% [markdown]
# # 3. KV memory
#
# **Goal.** Say how large the KV cache of a model is and how many requests fit beside its weights; why
# it is handed out in blocks; what a block table and copy-on-write are; how memory limits the batch and
# with it the throughput; and what prefix caching saves.
#
# Twenty minutes to read, ten seconds to run, no GPU. Notebook 1 explains blocks and TTFT, notebook 2
# why a server wants a large batch.

# %%
from dataclasses import replace

import numpy as np
import pandas as pd

from simulator import Workload, compare, kv_size, load_profile, simulate
from simulator.experiments.compare_plots import COLORS
from simulator.experiments.figure_style import new_figure
from simulator.experiments.private_figure import PrivateFigure
from simulator.kv.by_hand import BlockTables
from simulator.kv.size import max_requests
from simulator.latency.base import StepFeatures
from simulator.specs import get_model
from simulator.workload import generate
from simulator.workload.trace_blocks import TraceBlocks


def draw(series, x, y):
    figure = PrivateFigure(new_figure(height=360)).update_xaxes(title=x).update_yaxes(title=y)
    for color, (name, (xs, ys)) in zip(COLORS, series.items(), strict=False):
        figure.add_scatter(x=xs, y=ys, name=name, line={"color": color}, mode="lines")
    return figure


# %% [markdown]
# ## How large is a token?
#
# Every layer keeps a key and a value of every token, so that later tokens can attend to it. A key is
# one vector per *KV head*:
#
# ```
# bytes per token = 2 (key and value) x layers x KV heads x head dim x bytes per number
# ```
#
# - **MHA**, multi-head attention: every query head has a KV head of its own.
# - **GQA**, grouped-query attention: some query heads share one. **MQA**: all of them share one.
# - **MLA**, multi-head latent attention (DeepSeek): a layer keeps one compressed vector per token, from
#   which the keys and values of all heads are computed again, and a short one for positions. The 2 and
#   the KV heads drop out of the formula: layers x (512 + 64) x bytes per number.
#
# The number of *query* heads is not in it. To use it all the same is the usual mistake, and makes
# Llama-3.1 four times too large.

# %%
models = [get_model(name) for name in ("llama-2-7b", "llama-3.1-8b", "qwen2.5-7b", "llama-3.1-70b")]
models += [get_model("mistral-7b"), get_model("deepseek-v3")]
sizes = pd.DataFrame({"attention": [m.attention for m in models]}, index=[m.name for m in models])
sizes["layers"] = [m.num_layers for m in models]
sizes["query heads"] = [m.num_heads for m in models]
sizes["KV heads"] = ["-" if m.mla else m.num_kv_heads for m in models]
sizes["KiB per token"] = [m.kv_bytes_per_token() / 2**10 for m in models]
sizes["GiB at 32,768 tokens"] = [m.kv_bytes(2**15) / 2**30 for m in models]
sizes.round(2)

# %% [markdown]
# All numbers are 16 bits wide. Four of these models have 7 or 8 billion parameters, and yet Llama-2
# keeps nine times as much per token as Qwen2.5. DeepSeek-V3, with 671 billion, keeps about half as much
# as the 8 billion of Llama-3.1. Mistral's first version attends to the last 4,096 tokens only, so a long
# request does not grow beyond them.
#
# What sharing saves: give Llama-3.1-8B other KV heads, and DeepSeek-V3 the keys of 192 and values of 128
# numbers that its 128 heads really use. (Such models do not exist; a model is trained for its heads.)

# %%
llama, deepseek = get_model("llama-3.1-8b"), get_model("deepseek-v3")
heads = {f"{n} KV heads": replace(llama, num_kv_heads=n) for n in (32, 8, 1)}
fits = {name: kv_size(model, "a100-80gb-sxm", context=4096) for name, model in heads.items()}
unfolded = deepseek.num_layers * deepseek.num_heads * (192 + 128) * 2
print(f"DeepSeek-V3 without MLA: {unfolded / deepseek.kv_bytes_per_token():.0f} times as much per token")
pd.DataFrame({name: [s.bytes_per_token, s.tokens, s.requests] for name, s in fits.items()}).set_axis(
    ["bytes per token", "tokens that fit", "requests of 4,096 tokens"]
)

# %% [markdown]
# ## From the card to requests
#
# What is left of a GPU for KV: a share of its memory, less the weights, less what a step needs for its
# activations.

# %%
size = fits["8 KV heads"]
print("\n".join(size.lines()))

# %% [markdown]
# Three places where this goes wrong on paper:
#
# 1. **GB and GiB.** A GiB is 7.4 % more than a GB. The "80 GB" card has 79.25 GiB, which are 85.09 GB.
#    Read the pool's 55.45 GiB as GB and 7 requests of 110 are gone.
# 2. **The reserve is assumed.** vLLM measures it at start-up and prints the number of blocks it found.
#    Against three engines' own numbers this formula gave 3 to 27 % too few. Where you have vLLM's
#    number, give it as `kv.num_gpu_blocks_override`.
# 3. **Per GPU or altogether.** Under tensor parallelism each GPU has a part of the heads.

# %%
misread = max_requests(int(size.pool_bytes / 2**30 * 1e9), size.bytes_per_token, 4096)
print(f"{size.requests} requests of 4,096 tokens; with GiB taken for GB, {misread}")

# %%
groups = [("llama-3.1-70b", gpus) for gpus in (2, 4, 8, 16)] + [("deepseek-v3", gpus) for gpus in (8, 16)]
ranks = [kv_size(model, "h200", tensor_parallel_size=gpus) for model, gpus in groups]
tensor = pd.DataFrame(groups, columns=["model", "GPUs"])
tensor["bytes per token and GPU"] = [each.bytes_per_token for each in ranks]
tensor["weights per GPU (GB)"] = [each.weight_bytes / 1e9 for each in ranks]
tensor["tokens the group holds"] = [each.tokens for each in ranks]
tensor.round(1)

# %% [markdown]
# From 2 to 4 H200s the 70B model gains not twice but 3.1 times the tokens: each GPU also has fewer
# weights to keep. From 8 to 16 it gains only 7 %. There are 8 KV heads, so with 16 GPUs every head lies
# on two of them, and a token takes as much of each as before. MLA's one vector cannot be split at all:
# each GPU keeps it whole, and what DeepSeek gains from 8 to 16 comes from the weights alone.
#
# ## Why blocks?
#
# Nobody knows how long an answer will become. Before 2023, servers therefore reserved one contiguous
# piece per request, large enough for the longest: `max_model_len` tokens. Kwon et al. (PagedAttention,
# SOSP 2023) measured that of the memory so reserved only 20 to 38 % ever held a token.
#
# Blocks take memory as it is needed. Only the last block of a request is partly empty, on average by
# half. And any free block is as good as any other, so that no holes remain between pieces.
#
# We can run both. A block of `max_model_len` tokens *is* a contiguous reservation. Two thousand requests
# at once, prompts of 300 and answers of 200 tokens on average, 4,096 at most; 20 GB for KV, as the 40
# GB version of this card has, and more seats than it can fill.

# %%
small = {"schema": 1, "name": "memory", "model": {"max_model_len": 4096}}
small["kv"] = {"gpu_memory_utilization": 0.46}
small["scheduler"] = {"max_num_seqs": 1024}
lengths = {"kind": "exponential", "prompt": 300, "output": 200}
small["workload"] = {"arrivals": {"kind": "all_at_once"}, "lengths": lengths, "num_requests": 2000}
block_sizes = [1, 4, 16, 64, 256, 1024, 4096]
blocks = compare(small, {str(n): {"kv.block_size": n} for n in block_sizes}, metric="output_throughput")


def column(runs, key):
    return [each.summary["servetwin"][key] for each in runs.results.values()]


paging = pd.DataFrame({"wasted": column(blocks, "kv_waste_paged")}, index=block_sizes)
paging["half a block each"] = [(n - 1) / (n - 1 + 2 * 500) for n in block_sizes]
paging["most at once"] = [each.steps.num_running.max() for each in blocks.results.values()]
paging["output tokens/s"] = blocks.table.output_throughput.to_numpy().round()
paging["mean TPOT (ms)"] = blocks.table.mean_tpot_ms.to_numpy().round(1)
paging.rename_axis("block size").round(3)

# %% [markdown]
# **Reserved in one piece, 87 % of the memory holds nothing; in blocks of 16, 1.6 %. The same card runs
# 432 instead of 36 requests at once and makes 2.0 times the tokens.** Twelve times the batch is worth
# only a factor of two: in a batch of hundreds most of a step goes into what each request brings along,
# its own keys and values to read and its own prompt to compute. And each answer grows four times
# slower.
#
# The waste of paging needs no simulation: half a block per request, beside the 500 tokens that a
# request holds on average. (300 of its prompt, and 200 of its answer: an exponential answer is on
# average as long so far as it will still become.) Only blocks longer than most requests break the rule.
#
# What is reserved, and what of it holds tokens:

# %%
lines = {}
for n, how in ((4096, "contiguous"), (16, "paged")):
    steps = blocks.results[str(n)].steps
    lines[f"{how}, reserved"] = steps.start, steps.used_blocks * (n * size.bytes_per_token / 1e9)
    lines[f"{how}, holding tokens"] = steps.start, steps.kv_tokens * (size.bytes_per_token / 1e9)
draw(lines, "time since the run's start (s)", "KV memory (GB)")

# %% [markdown]
# Contiguous: nearly all is reserved until the very end, and an eighth of it is used. (vLLM keeps one
# block unused, the null block; here that is a whole slot.) Paged: the two lines nearly lie on each
# other, and the work is done in half the time.
#
# The result of *any* run says what contiguous reservation would have wasted on the same requests, as
# `kv_waste_contiguous`. It depends on `max_model_len` more than on anything else:

# %%
longest = {n: {"model.max_model_len": n} for n in (8192, 16384, 131072)}
waste = compare("chat-a100", {f"{n:,}": change for n, change in longest.items()})
keys = ["kv_waste_paged", "kv_waste_contiguous", "rejected"]
pd.DataFrame({key: column(waste, key) for key in keys}, index=waste.table.index).round(3)

# %% [markdown]
# ### Which block size?
#
# The table knows a reason against large blocks and none against small ones: 16, vLLM's default, costs
# 0.5 % of the throughput that blocks of a single token have. The reasons against small ones are not in
# the model, where no step takes longer for them. On a GPU the attention kernel looks up where each block
# lies and reads it in one piece, and short pieces are read slowly (Kwon et al., section 7.2). With blocks
# of one token, the table of a request would be as long as the request.
#
# A second reason against large blocks comes with prefix caching, below.
#
# ## Block tables and copy-on-write
#
# Blocks of a request lie anywhere. Its *block table* says where: entry *i* is the number of the block
# that holds its tokens *i* x 4 to *i* x 4 + 3, if a block has four.
#
# ```
# parent, 10 tokens         table     block 2  [t0 t1 t2 t3]
#                           2 5 0     block 5  [t4 t5 t6 t7]
#                                     block 0  [t8 t9 -  - ]
# ```
#
# Two tables may name the same block. That makes a second answer to the same prompt cheap: *fork* the
# table and count, for each block, how many tables hold it. Full blocks never change again and can stay
# shared. Who writes into a partly filled block that others hold copies it first: *copy-on-write*, as an
# operating system does with the pages of a forked process.
#
# By hand, in a pool of eight blocks. The table shows the count of each block in turn:

# %%
pages, log = BlockTables(num_blocks=8, block_size=4), {}


def note(what):
    log[what] = {"used": pages.num_used} | pages.holders()


pages.add("parent", 10)
note("parent has 10 tokens")
pages.fork("parent", "child")
note("fork")
pages.append("child")
note("child writes a token")
pages.append("parent")
note("parent writes a token")
pages.free("child")
note("child ends")
pages.free("parent")
note("parent ends")
pd.DataFrame(log.values(), index=log).fillna("-")

# %% [markdown]
# - The fork takes no block: every count becomes 2.
# - The child's token goes into the third block, which both hold. It gets a copy, and the count of the
#   original falls to 1. The two full blocks stay shared.
# - So the parent's token needs no copy any more.
# - The child's end frees only what nobody else holds: its copy.
#
# With 8 tokens instead of 10 there is nothing to copy, as the last block is full; and in a full pool
# the write is refused and changes nothing:

# %%
even = BlockTables(num_blocks=8, block_size=4)
even.add("parent", 8)
even.fork("parent", "child")
even.append("child")
full = BlockTables(num_blocks=3, block_size=4)
full.add("parent", 10)
full.fork("parent", "child")
print(f"8 tokens, then one: {even.num_used} blocks, {even.holders()}")
print(f"no block free: written {full.append('child')}, {full.num_used} blocks, {full.holders()}")

# %% [markdown]
# What it saves: eight answers of 200 tokens to one prompt of 1,000.

# %%
samples = BlockTables(num_blocks=1000, block_size=16)
samples.add("0", 1000)
for name in "1234567":
    samples.fork("0", name)
for name in "01234567":
    samples.append(name, 200)
print(f"forked: {samples.num_used} blocks; each on its own: {8 * -(-1200 // 16)}")

# %% [markdown]
# vLLM's present scheduler, which this simulator follows, does not fork. It takes a request for eight
# answers as eight requests, and lets its prefix cache find the full blocks of the prompt. The 8 tokens
# in the partly filled block are computed by each:

# %%
prompt = TraceBlocks(np.zeros(8, int), np.full(8, 1000 // 16), np.arange(9), block_size=16)
eight = Workload(np.zeros(8), np.full(8, 1000), np.full(8, 200), blocks=prompt)
for is_on in (True, False):
    run = simulate("chat-a100", workload=eight, set={"kv.enable_prefix_caching": is_on}, bottleneck=False)
    computed = run.steps.prefill_tokens.sum()
    print(f"caching {is_on}: {run.steps.used_blocks.max()} blocks, {computed:,} prompt tokens computed")

# %% [markdown]
# The same 166 blocks, and 1,056 prompt tokens computed where 1,000 would do and 8,000 would be without
# sharing. Those 56 tokens are what vLLM pays for having no copy-on-write to take care of.
#
# ## Memory limits the batch, the batch the throughput
#
# The two thousand requests again, with ever more memory, once with 16 bits a number and once with 8
# (`fp8`). The third curve is computed without any run. A request holds 500 tokens on average, so memory
# gives the batch; the price list of notebook 2 gives a step that decodes so many; and since one in 200
# decodes is the last of its answer, each step also pays batch / 200 of a prompt of 300 tokens.

# %%
shares = [0.23, 0.24, 0.25, 0.27, 0.3, 0.35, 0.42, 0.5, 0.65, 0.92]
changes = {str(share): {"kv.gpu_memory_utilization": share} for share in shares}
half = {name: change | {"kv.kv_cache_dtype": "fp8"} for name, change in changes.items()}
wide, narrow = (compare(small, each, metric="output_throughput") for each in (changes, half))
pool = np.array(column(wide, "num_gpu_blocks")) * (size.block_bytes / 1e9)
profile, prompt = load_profile("a100-80gb-sxm", llama), StepFeatures.prefill([(300, 0)])


def by_price(gigabytes):
    batch = int(gigabytes * 1e9 / (500 * size.bytes_per_token))
    step = profile.step_time(StepFeatures.decode([500] * batch))
    return batch / (step + batch / 200 * profile.step_time(prompt))


speeds = {"16 bits": wide.table.output_throughput, "8 bits": narrow.table.output_throughput}
curves = {name: (pool, speed) for name, speed in speeds.items()}
curves["16 bits, by the price list"] = pool[:-2], np.array([by_price(each) for each in pool[:-2]])
draw(curves, "memory for KV (GB)", "output tokens/s").update_yaxes(rangemode="tozero")

# %%
capacity = pd.DataFrame({"KV memory (GB)": pool}, index=wide.table.index.rename("utilisation"))
took = [each.steps.end - each.steps.start for each in wide.results.values()]
batch = [np.average(r.steps.num_running, weights=w) for r, w in zip(wide.results.values(), took, strict=True)]
capacity["mean batch"] = batch
capacity["output tokens/s"] = wide.table.output_throughput
capacity["preempted"] = wide.table.num_preemptions.astype(int)
capacity["mean TPOT (ms)"] = wide.table.mean_tpot_ms
capacity["extrapolated steps"] = column(wide, "extrapolated_share")
capacity.round({"extrapolated steps": 2} | dict.fromkeys(capacity, 1))

# %% [markdown]
# **The first 7 GB bring 2,934 tokens a second, the next 17 another 913, and 36 more on top of that only
# 106.** At first one more in the batch is nearly free, as the step waits for the weights anyway. Then
# its own reading and its prompt cost as much as it brings, and the curve is flat. Up to 24 GB the price
# list is right to within 4 %. Some of that is luck: it prices every prompt as if it had a step of its
# own, which is too much, and knows neither preemptions nor the beginning and end of the run.
#
# Three more things in the table:
#
# - What memory buys is paid in TPOT. From 7 to 60 GB each answer comes four times slower.
# - A short memory does not only mean a small batch. In the smallest pool the 2,000 requests were
#   preempted 1,112 times, and computed again what they had lost.
# - Of over 128 decodes with contexts as long as these, the profile has no measurements. So the flat part
#   rests on extrapolation; the steep part, up to 7 GB, does not.
#
# vLLM's default of 256 seats, with all the memory there is:

# %%
seats = compare(small, {"256 seats": {"kv.gpu_memory_utilization": 0.92, "scheduler.max_num_seqs": 256}})
seats.table[["output_throughput", "mean_tpot_ms", "num_preemptions"]].round(1)

# %% [markdown]
# 95 % of the throughput at less than half the TPOT. For requests as short as these an A100-80GB has more
# memory than it can use. Of requests of 8,000 tokens only 56 fit, and memory binds again.
#
# ### Half the bytes
#
# With 8 bits a number the same memory holds twice the tokens, and a decode reads half as much of them. The
# first helps where memory is short, and nowhere else: it moves the curve to half the memory. The second
# helps a little everywhere. Over five seeds, each with other requests:

# %%
fewer = {**small, "workload": {**small["workload"], "num_requests": 1000}}
short = {"24 %, 16 bits": changes["0.24"], "24 %, fp8": half["0.24"]}
ample = {"92 %, 16 bits": changes["0.92"], "92 %, fp8": half["0.92"]}
made = [compare({**fewer, "seed": n}, short | ample).table.output_throughput for n in range(5)]
gains = [[one["24 %, fp8"] / one["24 %, 16 bits"], one["92 %, fp8"] / one["92 %, 16 bits"]] for one in made]
gains = pd.DataFrame(gains, columns=["fp8 / 16 bits at 24 %", "at 92 %"]).rename_axis("seed")
gains.round(2)

# %% [markdown]
# A factor of 1.63 to 1.70 with 1.7 GB, and 1.08 to 1.09 with 60, where only the reading is left. The profile
# was measured in 16 bits; what it says of 8 is derived by the bytes that are read (notebook 13), and every
# such result says so in its notes. A real 8-bit cache also costs something to convert, and changes the
# answers a little. Neither is modelled here.
#
# ## What prefix caching saves
#
# Blocks of a finished request are kept until somebody needs the room. A later prompt that begins with
# the same tokens takes them over and computes only the rest. It is a fork from a parent that may already
# have ended; and as only full blocks are shared, nothing is ever copied.
#
# Let every chat request carry the same system prompt of 1,024 tokens, and send the same thousand requests
# at different rates. The trace's ids say what prompts have in common: here 128 ids of 8 tokens each.
# Whatever follows is a request's own.


# %%
def chats(rate, system=1024, seed=0, n=1000):
    drawn = generate({"kind": "poisson", "rate": 5}, {"kind": "table", "name": "azure-conv"}, n, seed=seed)
    common = TraceBlocks(np.zeros(n, int), np.full(n, system // 8), np.arange(n + 1), block_size=8)
    return replace(drawn, num_prompt=drawn.num_prompt + system, blocks=common).scaled(rate / 5)


def serve(workload, **kv):
    keys = {f"kv.{key}": value for key, value in kv.items()}
    return simulate("chat-a100", workload=workload, set=keys, bottleneck=False)


rates, runs = [1, 2, 3, 4, 5, 5.5], {}
for name, is_on in (("without", False), ("with prefix caching", True)):
    runs[name] = [serve(chats(rate), enable_prefix_caching=is_on) for rate in rates]
medians = {name: (rates, [run.summary["median_ttft_ms"] for run in each]) for name, each in runs.items()}
figure = draw(medians, "requests/s", "median TTFT (ms, log scale)")
figure.update_yaxes(type="log", tickvals=[100, 200, 500, 1000, 2000])

# %%
rows = {
    (name, rate): run.summary for name, each in runs.items() for rate, run in zip(rates, each, strict=True)
}
cached = pd.DataFrame({key: summary | summary["servetwin"] for key, summary in rows.items()}).T
cached = cached[["prefix_hit_rate", "median_ttft_ms", "p99_ttft_ms", "mean_tpot_ms", "kv_usage_mean"]]
cached.astype(float).round(3)

# %%
system = 1e3 * profile.step_time(StepFeatures.prefill([(1024, 0)]))
print(f"the system prompt alone, by the price list: {system:.0f} ms")

# %% [markdown]
# The hit rate is the share of prompt tokens found in the cache: 51.4 %, all system prompts but the
# first. What that is worth depends on the load:
#
# - At 1 request a second the median TTFT falls by 63 ms. That is the price of the system prompt.
# - At 5 it falls by 331, from 435 to 104 ms, since the system prompts of others are not computed either
#   and the queue behind them is gone. Mean TPOT falls from 87 to 32 ms, as fewer steps carry a prompt.
# - At 5.5 the server without caching is full, with a P99 of 8 s. With it, it has room.
# - Memory in use falls from 47 to 10 %. Partly because the system prompt lies there once, mostly because
#   requests leave earlier.
#
# Five seeds at 4 requests a second, as ratios, with caching over without:

# %%
ratios, keys = {}, ["median_ttft_ms", "p99_ttft_ms", "mean_tpot_ms"]
for seed in range(5):
    on, off = (serve(chats(4, seed=seed), enable_prefix_caching=is_on).summary for is_on in (True, False))
    ratios[seed] = {key: on[key] / off[key] for key in keys}
ratios = pd.DataFrame(ratios).T.rename_axis("seed")
ratios.round(2)

# %% [markdown]
# The median TTFT is 0.36 to 0.38 times as long, and every other number agrees in sign.
#
# ### Only whole blocks
#
# A system prompt of 1,000 tokens, at 4 requests a second, and blocks of different sizes:

# %%
found = {n: serve(chats(4, system=1000), block_size=n) for n in (16, 64, 256, 512, 1024)}
whole = pd.DataFrame({"cached tokens": {n: run.requests.num_cached.median() for n, run in found.items()}})
whole["median TTFT (ms)"] = {n: run.summary["median_ttft_ms"] for n, run in found.items()}
whole.rename_axis("block size").round(1)

# %% [markdown]
# This is the second reason against large blocks: those of 512 share half of the prompt, and those of
# 1,024 nothing at all.
#
# ### Nothing in common, and nearly everything
#
# At one end `chat-a100`, where no two prompts begin alike. At the other `agentic-a100`: coding agents,
# each turn of which sends its whole history again, 74,000 tokens on average, and waits for the answer
# before the next.

# %%
switch = {"with prefix caching": {}, "without": {"kv.enable_prefix_caching": False}}
loads = {load: compare(load, switch) for load in ("chat-a100", "agentic-a100")}
tables = {load: each.table.assign(hit_rate=column(each, "prefix_hit_rate")) for load, each in loads.items()}
agents = pd.concat(tables)[["hit_rate", "median_ttft_ms", "p99_ttft_ms", "mean_tpot_ms", "attainment"]]
agents.round(3)

# %% [markdown]
# Where there is nothing to share, caching changes no number at all: it costs nothing here. (On a real
# server hashing the prompts takes some CPU time.) The agents could not be served without it: the median
# TTFT would be 24 s instead of 0.19 s. Their P99 with caching is 16 s all the same. Who has to wait?

# %%
server = loads["agentic-a100"].results["with prefix caching"]
ttft = server.requests.first_token - server.requests.arrival
share = server.requests.num_cached / server.requests.num_prompt
for which, rows in (("over 90 %", share > 0.9), ("less than half", share < 0.5)):
    first = server.requests.id[rows].str.endswith(".0").sum()
    print(f"{which} cached: {rows.sum()} turns, {first} of them first ones, TTFT {ttft[rows].median():.2f} s")

# %%
endless = compare("agentic-a100", {"a million": {"kv.num_gpu_blocks_override": 10**6}})
both = {f"{size.num_gpu_blocks:,}": server, "a million": endless.results["a million"]}
own = pd.DataFrame({name: run.summary["servetwin"] for name, run in both.items()}).T
own[["evicted_blocks", "prefix_hit_rate"]].astype(float).round(4).rename_axis("KV blocks")

# %% [markdown]
# The turns whose history is not in the cache: each agent's first, and now and then one that rewrites
# what was said before. Cached blocks were overwritten too, 73,418 of them, but with room for a million
# the hit rate is the same: next to nobody came back for those. Notebook 4 takes memory away until that
# is no longer so, and asks which blocks should go.
#
# ## What to take along
#
# 1. KV bytes per token follow from layers, *KV* heads and head dim, and differ by a factor of nine among
#    models of the same size. Say GB or GiB, and per GPU or altogether.
# 2. Contiguous reservation wastes by the distance between the longest request and the usual one. Paging
#    wastes half a block per request.
# 3. Memory gives the batch, the batch the throughput, until a request costs as much time as it brings
#    tokens. Beyond, more memory buys next to nothing, and fewer bits a little.
# 4. Prefix caching saves the computation of what is shared. Under load the queue multiplies what that is
#    worth.
#
# **What to believe.** Sizes are arithmetic on published model configurations, except for the reserve.
# Decisions about blocks are vLLM's. Step times come from a profile fitted to public kernel timings of an
# A100, off by 2.5 % on kernels held out of the fit and no better than about ±10 % in absolute time; they
# depend neither on the block size nor on the KV type. A chunk after a cached prefix is priced at about
# half of what another public source measured. Which of them is right is not known, so the 0.17 s of the
# agents may be 0.3 s. That leaves it far from 23 s.
#
# ## Exercises
#
# Predict first, then run. Answers are in `answers/03_kv_memory.py`.
#
# **Exercise 1.** You have sixteen H100-80GB and want to serve `llama-3.1-70b`: as eight servers of two
# GPUs, four of four, two of eight, or one of sixteen. Which holds the most tokens of KV in all? Derive
# the differences from the weights. Why does the last step go the other way?
#
# **Exercise 2.** Instead of a slot of 4,096 tokens, reserve for each request what its client asked for:
# `scheduler.admission: [reserve_output]` admits a request only if prompt + `max_tokens` of all who run
# would fit. Nobody is ever preempted then. On the 20 GB of this notebook, how many requests run at once
# if clients ask for 2,048 tokens (`workload.max_tokens`), 1,024 or 512? Predict it from the length of a
# mean prompt, check it, and compare throughput with paging. What do clients who ask for 512 lose?
