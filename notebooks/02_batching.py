# %% [markdown]
# # 2. Batching
#
# **Goal.** Explain from the hardware why a batch is nearly free, and up to where. Then three
# consequences, each with numbers and the reason: continuous batching against static, prefill first
# against chunked prefill, and what the size of a chunk trades for what.
#
# Twenty minutes to read, a few seconds to run, no GPU. Notebook 1 explains TTFT, TPOT and ITL.

# %%
import numpy as np
import pandas as pd

from simulator import compare, load_profile
from simulator.experiments.compare_plots import COLORS
from simulator.experiments.figure_style import new_figure
from simulator.experiments.private_figure import PrivateFigure
from simulator.latency.base import StepFeatures
from simulator.specs import get_hardware, get_model


def draw(series, x, y):
    figure = PrivateFigure(new_figure(height=360)).update_xaxes(title=x).update_yaxes(title=y)
    for color, (name, (xs, ys)) in zip(COLORS, series.items(), strict=False):
        figure.add_scatter(x=xs, y=ys, name=name, line={"color": color}, mode="lines")
    return figure


# %% [markdown]
# ## Two kinds of work on one machine
#
# A GPU has two speeds: how many operations it does a second, and how many bytes it reads from its
# memory. An A100-80GB does 312 TFLOP/s and reads 2.04 TB/s. Work that does few operations per byte, its
# *arithmetic intensity*, waits for memory; work that does many waits for arithmetic. The two meet at
# 312 / 2.04 = 153 FLOP per byte, the *ridge*.
#
# A pass of the model multiplies every token with all weights: two operations per weight and token. The
# weights are read once per pass, however many tokens take part. Attention adds two products for each
# pair of a token and one it attends to, and reads the keys and values of the latter.

# %%
model, gpu = get_model("llama-3.1-8b"), get_hardware("a100-80gb-sxm")
profile = load_profile("a100-80gb-sxm", model)
layers = model.num_layers * sum(n * k for n, k in model.layer_gemms())  # weights, each used for every token
head = int(np.prod(model.head_gemm()))  # weights, used where a token is sampled
pair = model.num_layers * profile.roofline.pair_flops  # FLOPs of one token attending to one other
token_kv = model.kv_bytes_per_token()


def flops(step):
    attended = step.decode_kv + step.prefill_work
    return 2 * (layers * step.num_tokens + head * step.num_sampled) + pair * attended


def moved(step):
    return 2 * (layers + head) + token_kv * (step.decode_kv + step.num_tokens)


# %% [markdown]
# The profile is a price list: how long a step takes, fitted from kernel timings. Put a few steps beside
# what they do: *n* decodes, each with a context of 1,000 tokens, and prompts of *n* tokens.

# %%
context = 1000
decodes = {f"{n} decodes": StepFeatures.decode([context] * n) for n in (1, 8, 64, 256)}
prompts = {f"prompt of {n:,}": StepFeatures.prefill([(n, 0)]) for n in (16, 128, 512, 2048)}
work = pd.Series(decodes | prompts, dtype=object)


def milliseconds(steps):
    return np.array([1e3 * profile.step_time(step) for step in steps])


costs = pd.DataFrame({"ms": milliseconds(work)}, index=work.index)
costs["us/token"] = 1e3 * costs.ms / work.map(lambda step: step.num_tokens)
costs["FLOP/byte"] = work.map(flops) / work.map(moved)
costs["TFLOP/s"] = work.map(flops) / costs.ms / 1e9
costs.astype(float).round(1)

# %% [markdown]
# One decode takes 13.3 ms and does one operation per byte: the GPU reads 15 GB to make a single token,
# and uses 0.4 % of its arithmetic. 64 decodes take 19.4 ms. 64 times the tokens for 1.5 times the time:
# while a step waits for memory, further tokens ride along.
#
# A prompt of 2,048 tokens takes 130 ms and 63 us a token, at three quarters of the peak: here
# arithmetic is what it waits for, and twice the tokens take twice the time. A prompt has its batch
# built in.
#
# Where is the knee?

# %%
tokens = np.unique(np.geomspace(1, 4096, 80).astype(int))
few = tokens[tokens <= 512]
kinds = {
    "prompt of n tokens": (tokens, milliseconds(StepFeatures.prefill([(n, 0)]) for n in tokens)),
    "n decodes, context 1,000": (few, milliseconds(StepFeatures.decode([1000] * n) for n in few)),
    "n decodes, context 100": (few, milliseconds(StepFeatures.decode([100] * n) for n in few)),
}
figure = draw(kinds, "tokens in the step, n (log scale)", "step time (ms, log scale)")
figure.update_xaxes(type="log", dtick=1).update_yaxes(type="log", tickvals=[10, 20, 50, 100, 200])

# %% [markdown]
# All curves start flat, at the time it takes to read the weights: 15 GB are 7.4 ms at full bandwidth;
# kernels do not reach all of it, and the host adds 1.5 ms. Prompts bend upwards between 100 and 200
# tokens, where the ridge is. Decodes bend earlier and more gently, because each brings a context of its
# own that nobody shares: 131 MB at 1,000 tokens. The small stairs are real: matrix kernels work in
# tiles, and a started tile is paid in full.
#
# The same as a *roofline*: how fast a step computes, by its intensity, labelled with its number of
# tokens. No step can be above the roof.

# %%
roof = np.array([0.5, gpu.flops / gpu.hbm_bandwidth, 2e4])
lines = {"the GPU's peaks": (roof, np.minimum(gpu.flops, roof * gpu.hbm_bandwidth) / 1e12)}
for name, part in (("decodes", costs.loc[list(decodes)]), ("prompts", costs.loc[list(prompts)])):
    lines[name] = part["FLOP/byte"], part["TFLOP/s"]
figure = draw(lines, "arithmetic intensity (FLOP/byte, log scale)", "TFLOP/s (log scale)")
for name, steps in (("decodes", decodes), ("prompts", prompts)):
    counts = [f"{step.num_tokens:,}" for step in steps.values()]
    marks = {"mode": "lines+markers+text", "text": counts, "textposition": "bottom right"}
    figure.update_traces(marks, selector={"name": name})
figure.update_xaxes(type="log", dtick=1).update_yaxes(type="log", dtick=1)

# %% [markdown]
# Batching moves decodes along the slope, each step more work for nearly the same reading. But they
# never arrive at the ridge. Each decode adds 15.5 GFLOP and, with a context of its own, 131 MB to read.
# The quotient is a limit for any number of them:

# %%
limit = (2 * (layers + head) + pair * context) / (token_kv * context)
print(f"ridge: {gpu.flops / gpu.hbm_bandwidth:.0f} FLOP/byte")
print(f"decodes of context {context:,}, however many: below {limit:.0f} FLOP/byte")

# %% [markdown]
# **So:** decodes want company, and waste a GPU without it. Prompts do not need it, and hold up whoever
# shares their step. All that follows comes from these two sentences.
#
# ## Static against continuous
#
# *Static* batching is what `model.generate` over a list of prompts does: collect a batch, run it until
# its slowest member is done, collect the next. *Continuous* batching chooses anew at every step: who is
# done leaves, who waits takes the seat (Orca, 2022). *Prefill first* and *chunked* are continuous too
# and differ in how prompts and decodes share steps; they get their own section.
#
# A thousand requests at once, which is what an offline job looks like. Lengths are mixed: prompts and
# answers exponential, 300 and 200 tokens on average. No policy knows how long an answer will become,
# only that the client asked for 2,048 tokens at most.

# %%
NAMES = ("static", "continuous", "prefill_first", "chunked")
POLICIES = {name: {"scheduler.batching": name} for name in NAMES}


def load(arrivals, lengths, num_requests, seed=0):
    workload = {"arrivals": arrivals, "lengths": lengths, "num_requests": num_requests}
    return {"schema": 1, "name": "batching", "seed": seed, "workload": workload}


exponential = {"kind": "exponential", "prompt": 300, "output": 200}
burst = compare(load({"kind": "all_at_once"}, exponential, 1000), POLICIES, metric="output_throughput")
speed = burst.table.output_throughput
burst.table[["output_throughput"]].assign(against_static=speed / speed["static"]).round(2)

# %% [markdown]
# **Continuous batching gives 4.1 times the output of static**, on the same GPU, for the same requests.
# The reason shows in a count of the requests that still want tokens:

# %%
runs = {name: burst.results[name].steps for name in ("static", "continuous")}
draw({name: (s.start, s.num_running) for name, s in runs.items()}, "time (s)", "requests that want tokens")

# %% [markdown]
# A static batch starts full and drains. Most of its time belongs to a handful of long answers, and they
# pay for a full batch all along: rows that are done stay in it as padding, computed and thrown away.
# Continuous batching gives a free seat away at once and drains only at the very end.

# %%
decoding = runs["static"][runs["static"].prefill_tokens == 0]
useful = decoding.num_running.sum() / decoding.num_decodes.sum()
print(f"static: {useful:.0%} of the decoded rows were wanted, the rest was padding")
print(
    f"largest batch: static {decoding.num_decodes.max()}, continuous {runs['continuous'].num_running.max()}"
)

# %% [markdown]
# Of all rows that static decoded, 14 % were wanted. There is a second reason, memory. A static batch
# cannot preempt, so it must reserve what its members may come to need: 300 + 2,048 tokens each on
# average, though they use 500. That fills the memory with 194 requests where 256 seats were there.
# Continuous batching takes a block when it needs one and preempts in the worst case.
#
# ### It depends on the lengths
#
# How much of the factor is general? Give all 64 seats, so that memory binds nobody, and vary only the
# lengths:

# %%
LENGTHS = {
    "all equal": {"kind": "constant", "prompt": 300, "output": 200},
    "uniform": {"kind": "uniform", "prompt": [50, 550], "output": [10, 390]},
    "Azure chat": {"kind": "table", "name": "azure-conv"},
    "exponential": exponential,
    "lognormal": {
        "kind": "lognormal",
        "prompt": {"mean": 300, "sigma": 1},
        "output": {"mean": 200, "sigma": 1},
    },
}
seats = {name: {**POLICIES[name], "scheduler.max_num_seqs": 64} for name in ("static", "continuous")}
bursts = {name: compare(load({"kind": "all_at_once"}, law, 1000), seats) for name, law in LENGTHS.items()}
mixed = pd.DataFrame({name: each.table.output_throughput for name, each in bursts.items()}).T
mixed.assign(factor=mixed.continuous / mixed.static).round(2)

# %% [markdown]
# With equal lengths there is nothing to win: a batch that ends together needs no refilling. The factor
# grows with the spread of the answers, because a batch lasts as long as its longest. Chat lengths as
# Azure recorded them give twice the output, heavier tails four times. So quote the factor only together
# with the lengths.
#
# ### When requests trickle in
#
# Servers that batch statically do not wait for a full batch. Two usual rules: *realtime* starts when 4
# requests wait or the oldest has waited 50 ms, *offline* when 16 wait or after 200 ms.

# %%
chat = LENGTHS["Azure chat"]
rules = {"continuous": POLICIES["continuous"]}
for rule in ("realtime", "offline"):
    rules[f"static, {rule}"] = {**POLICIES["static"], "scheduler.min_batch": rule}
seldom, often = (compare(load({"kind": "poisson", "rate": rate}, chat, 300), rules) for rate in (0.1, 2))
waits = {"0.1 requests/s": seldom.table, "2 requests/s": often.table}
pd.concat(waits)[["median_ttft_ms", "p99_ttft_ms"]].round()

# %% [markdown]
# One request every ten seconds: the median TTFT carries the 50 or the 200 ms of the rule, and the P99
# over 5 s comes from requests that arrived while another was answered. At 2 requests a second that is
# everybody: TTFT is seconds, and the rule no longer matters, because who comes while a batch runs waits
# for its slowest member anyway. A timeout bounds the wait for company. It cannot bound the wait for the
# batch before.
#
# ## Prefill first against chunked
#
# Serving engines no longer batch statically. What they differ in is how prompts and decodes share
# steps:
#
# - **prefill_first** (vLLM's V0): if a prompt waits and fits, compute prompts, and nothing else;
#   decodes have the steps in between.
# - **continuous**: every decode, and beside them whole prompts.
# - **chunked** (vLLM's V1; Sarathi-Serve, 2024): every decode first, then as much of the prompts as is
#   left of the step's 2,048 tokens; a prompt that does not fit is cut.
#
# Five chat requests a second, below what the GPU can do:

# %%
moderate = load({"kind": "poisson", "rate": 5}, chat, 1500)
sharing = compare(moderate, {name: POLICIES[name] for name in ("prefill_first", "continuous", "chunked")})
sharing.table[["median_ttft_ms", "p99_ttft_ms", "mean_tpot_ms", "p99_itl_ms", "output_throughput"]].round(1)

# %% [markdown]
# **Prefill first has the better TTFT, 85 against 93 ms in the median and 504 against 576 at the P99,
# and the worse ITL: its P99 is 285 ms against 138.** Throughput is the same, since all of them keep up.
#
# The reason for TTFT: a new prompt is computed next, whole, and alone. In a chunked step it shares with
# 30 decodes and may be cut in two. The reason for ITL: the decodes stand still meanwhile, and not for
# one step but for as many as prompts keep coming. The longest such stall of the run:

# %%
steps = sharing.results["prefill_first"].steps
prompts_only = (steps.num_decodes == 0) & (steps.num_running > steps.num_seqs)
stall = (prompts_only != prompts_only.shift()).cumsum().where(prompts_only)
lengths = steps.groupby(stall).end.max() - steps.groupby(stall).start.min()
first, last = steps.index[stall == lengths.idxmax()][[0, -1]]
print(f"for {lengths.max():.2f} s nobody got a second token")
steps.loc[first - 1 : last + 1, ["start", "end", "prefill_tokens", "num_decodes", "num_running"]].round(2)

# %% [markdown]
# Ten steps of prompts in a row. Every arrival starts at once and prolongs the stall of all who were
# there before; four of the prompts have over 4,000 tokens and run whole, alone in a step of a quarter
# of a second. A chunked step can do neither: it always takes the decodes along, and never has more than
# 2,048 tokens. So no gap is longer than one step, as long as memory suffices. The distributions of the
# gaps, prefill first and then chunked:

# %%
sharing.results["prefill_first"].plot("itl")

# %%
sharing.results["chunked"].plot("itl")

# %% [markdown]
# (The figures count gaps on the clock of the steps, the table above counts each; hence P99s that differ
# a little.) Chunked has more gaps between 30 and 150 ms and none beyond. Prefill first has fewer of
# them, and some of over a second. The mean TPOTs, 28.6 and 25.6 ms, hardly tell the two apart.
# *Continuous* is in between: it takes the decodes along, beside prompts that it never cuts.
#
# One run is one sample. Five seeds, each with other requests, prefill first minus chunked on the same
# requests:

# %%
pairs = {name: POLICIES[name] for name in ("prefill_first", "chunked")}
columns = ["median_ttft_ms", "p99_ttft_ms", "p99_itl_ms"]
arrivals = {"kind": "poisson", "rate": 5}
tables = [compare(load(arrivals, chat, 1000, seed), pairs).table[columns] for seed in range(5)]
apart = pd.DataFrame([table.loc["prefill_first"] - table.loc["chunked"] for table in tables])
apart.reset_index(drop=True).rename_axis("seed").round(1)

# %% [markdown]
# The sign is the same in all fifteen. Some 6 ms of TTFT are less than the error of the profile, but
# both runs share that error, and the direction follows from the policy, not from the price list.
#
# ## How large a chunk?
#
# The token budget of a step decides how far chunking goes. A small budget bounds every gap tightly and
# makes prompts take more steps, each of which reads the weights again: TTFT rises. Compute what a full
# step costs from the profile alone, with 30 decodes beside the chunk, and lay it beside the P99 of ITL
# that the runs give.

# %%
budgets = [256, 384, 512, 768, 1024, 1536, 2048, 4096, 8192]
chunks = compare(moderate, {str(n): {"scheduler.max_num_batched_tokens": n} for n in budgets}).table
thirty = StepFeatures.decode([context] * 30)
rests = [StepFeatures.prefill([(n - 30, 0)]) for n in budgets]
full = milliseconds(StepFeatures(*map(sum, zip(thirty, rest, strict=True))) for rest in rests)
curves = {"ITL P99": (budgets, chunks.p99_itl_ms), "a full step, by the profile": (budgets, full)}
curves |= {"TTFT P99": (budgets, chunks.p99_ttft_ms), "TTFT median": (budgets, chunks.median_ttft_ms)}
figure = draw(curves, "max_num_batched_tokens (log scale)", "ms (log scale)")
figure.update_xaxes(type="log", tickvals=budgets, ticktext=[f"{n:,}" for n in budgets])
figure.update_yaxes(type="log", tickvals=[20, 50, 100, 200, 500, 1000, 2000])

# %%
chunks[["median_ttft_ms", "p99_ttft_ms", "p99_itl_ms", "attainment"]].round(3)

# %% [markdown]
# Up to 4,096 the P99 of ITL *is* the price of a full step, to within 16 %: choose the gap you can bear,
# read the budget off the price list. Beyond, fewer than one gap in a hundred meets a full step, since
# the prompts that wait together rarely have so many tokens. The median TTFT falls until about 1,500
# tokens and gains nothing after. Between 1,024 and 2,048 the SLO of 500 and 50 ms is met about equally
# often, by 97 %; with 256 only by 76 %, since prompts pay too much.
#
# ## What to take along
#
# 1. While a step waits for memory, further tokens in it are nearly free. Decodes are always in that
#    state here.
# 2. Static batching loses by the spread of the answer lengths, and by what it must reserve. 1 to 4
#    times in these runs.
# 3. Prefill first serves the newcomer, chunked prefill those who are already reading. The budget moves
#    the price between them.
#
# **What to believe.** The profile is fitted from public kernel timings of an A100, not measured by us,
# and its absolute times are no better than about ±10 %. The comparison of chunked with the others rests
# on steps that mix prompts and decodes, priced as the sum of the two, which is unverified on an A100.
# On two other GPUs that sum was too low by a few percent of such a step. So chunked's ITL may be
# somewhat worse than shown; a factor of two it would not undo.
#
# ## Exercises
#
# Predict first, then run. Answers are in `answers/02_batching.py`.
#
# **Exercise 1.** For exponential answers the longest of *n* is on average 1 + 1/2 + ... + 1/*n* times
# the mean. Which share of a static batch's rows is then wanted, for 8 and for 64 seats? Check it
# against runs. Why does the factor of continuous over static stay below the inverse of that share?
#
# **Exercise 2.** A voice assistant wants every gap but one in a hundred within 50 ms. Which budget do
# you choose from the profile alone, before any run? Check it at 5 requests a second. What does it cost
# in TTFT against 2,048?
