# %% [markdown]
# # 13. Speculation and quantisation
#
# **Goal.** Say from a price list when draft tokens help, when they hurt, and from which batch on. Turn
# drafting off by load, and hand the rule to vLLM. Then the same questions about fewer bits: what weights of 8
# and 4 bits and KV of 8 bits bring in memory and in speed, on which GPU, and at which batch nothing any more.
#
# One idea: **a decode step that reads 16 GB to make one token has arithmetic to spare.** Speculation
# spends it, quantisation reads less. Both are worth most where the batch is small, and both claims one
# reads ("2-3 times", "30-50 %") are true at some batch and false at another.
#
# Fifteen minutes to read, half a minute to run, no GPU. Notebook 2 explains why a batch is nearly free
# up to a point; that point is what all of this is about.

# %%
import numpy as np
import pandas as pd

from simulator import load_profile, load_scenario, simulate
from simulator.config.build import build_machine
from simulator.experiments.claims.trial import serve_trial
from simulator.experiments.compare_plots import COLORS
from simulator.experiments.figure_style import new_figure
from simulator.experiments.private_figure import PrivateFigure
from simulator.latency.base import StepFeatures
from simulator.latency.drafting import DraftingStep, with_draft_model
from simulator.specs import get_hardware, get_model
from simulator.speculative import expected_tokens, same_rate


def draw(series, x, y, **axis):
    figure = PrivateFigure(new_figure(height=360)).update_xaxes(title=x, **axis).update_yaxes(title=y)
    for color, (name, (xs, ys)) in zip(COLORS, series.items(), strict=False):
        figure.add_scatter(x=list(xs), y=list(ys), name=name, line={"color": color}, mode="lines+markers")
    return figure


# %% [markdown]
# ## The bargain
#
# Somebody cheap proposes the next `k` tokens. The model computes all of them in one step, as it would a
# chunk of a prompt, and looks whether it would have said the same. It keeps the drafts before the first
# wrong one, and adds a token of its own, since the step has computed that too. So a step gives one token
# at least and `k + 1` at most, and, with the right rule for accepting, text with exactly the law of
# plain sampling: nothing is approximated. (`tests/test_gpu_speculative.py` tests that law on our
# engine.)
#
# If each draft is accepted with probability `a`, given that those before it were, a step gives `1 + a +
# a^2 + ... + a^k` tokens on average (Leviathan et al., ICML 2023):

# %%
rates, lengths = [0.4, 0.6, 0.8, 0.9], [1, 2, 3, 5, 8]
tokens = pd.DataFrame(
    {f"a = {a}": [expected_tokens(same_rate(a, k)) for k in lengths] for a in rates}, lengths
)
tokens.rename_axis("drafts k").round(2)

# %% [markdown]
# With 40 % the fourth draft and all behind it are nearly always wasted: 1.67 tokens is where the sum
# ends, however many are drafted. With 90 % the eighth still counts.
#
# **Mind what a rate is a rate of.** vLLM prints accepted drafts over *all* drafts, also those behind a
# wrong one. Three drafts with `a` = 0.6 give 1.18 accepted of three, which is printed as 39 %. So "40 %
# acceptance on code" may mean the first column or the second, and that is the difference between 1.6 and
# 2.2 tokens a step. Ask how many drafts there were. In a scenario `acceptance: 0.6` is `a`, and a list
# has vLLM's rates by position.
#
# ## The price
#
# What do the drafts cost? They are more rows in the same step: `n` sequences that verify `k` drafts
# compute `n (1 + k)` tokens. Attention reads each context once for all rows of its sequence, so what
# grows is the dense part, and that is free as long as reading the weights takes longer than using them.
# Times in ms for Llama-3.1-8B on an A100, contexts of 1,000 tokens:

# %%
profile = load_profile("a100-80gb-sxm", "llama-3.1-8b")
batches = [1, 2, 4, 8, 16, 32, 64, 128, 256]


def price(latency, n, k):
    return 1e3 * latency.step_time(DraftingStep.verifying(n, 1000 * n, 1000, k))


steps = pd.DataFrame({k: [price(profile, n, k) for n in batches] for k in (0, 1, 3, 5)}, batches)
steps.rename_axis(index="batch", columns="drafts").round(1)

# %% [markdown]
# At a batch of 8 five drafts each cost 2 %: 48 rows instead of 8, and the step takes 14.4 instead of
# 14.1 ms. At 256 they cost 171 %. In between lies the ridge of notebook 2: beyond some 150 rows an A100
# computes as long as it reads, and every further row is paid for in full.
#
# A gain is the tokens over the price. For drafts that cost nothing themselves, as those looked up in the
# text do (**n-gram** drafts: what followed the last few tokens where they occurred before):


# %%
def gain(latency, n, k, a):
    return expected_tokens(same_rate(a, k)) * price(profile, n, 0) / price(latency, n, k)


curves = {
    f"{k} drafts, a = {a}": (batches, [gain(profile, n, k, a) for n in batches])
    for a in (0.4, 0.8)
    for k in (3, 5)
}
draw(curves, "batch (log scale)", "output rate, times that without drafts", type="log", tickvals=batches)

# %% [markdown]
# - Up to a batch of 8 the gain is the token count itself: 1.6 with 40 %, 2.9 to 3.7 with 80 %.
# - **Then it falls, and for poor drafts it falls below 1.** Five drafts with 40 % lose 6 % at a batch of
#   64 and 39 % at 256. With 80 % they still gain there, 1.36 times.
# - More drafts are better where rows are free and worse where they are paid for. No number is right for
#   both.
#
# So **"speculation brings 2-3 times" holds for small batches and good drafts**: with three drafts it
# needs `a` of 0.6 and a batch of at most 16 for 2, or 0.8 and at most 64. On a full server it does not
# hold. `docs/speculation.md` has the whole table with intervals.
#
# ### When a model drafts
#
# N-grams only find what is there already: in edits and quotations much, in free text little. A small
# model of the same family drafts anything, and costs its own forward passes, one for each draft, one
# after the other. Here Llama-3.2-1B, priced by the roofline since no profile of it is shipped:

# %%
small = with_draft_model(profile, get_hardware("a100-80gb-sxm"), get_model("llama-3.2-1b"), 3)
needs = {}
for n in batches:
    cost = price(small, n, 3) / price(profile, n, 0)
    enough = [a for a in np.arange(0, 1.001, 0.01) if expected_tokens(same_rate(a, 3)) >= cost]
    needs[n] = cost, (enough or [np.nan])[0], gain(small, n, 3, 0.8)
pd.DataFrame(needs, ["times the step", "a to break even", "gain with a = 0.8"]).T.rename_axis("batch").round(
    2
)

# %% [markdown]
# Three passes of a model a sixth as large make the step 1.6 times as long even for a single sequence:
# they read 2.5 GB each, against 16. So the first 39 % of acceptance only pay the drafter. At 80 %, which
# a good pair reaches, 1.85 times is left, and at a batch of 256 next to nothing: there the small model's
# KV is read for every draft too.
#
# ## Does a run agree?
#
# The formula is about one step. A run has answers that end, contexts that grow, and luck. One client at
# a time, then 64, each sending a request after the other, five n-gram drafts with `a` = 0.6:

# %%
SAME = {"workload.lengths": {"kind": "constant", "prompt": 800, "output": 400}}
FIVE = {"method": "ngram", "num_speculative_tokens": 5, "acceptance": 0.6}


def closed(clients, speculative):
    load = {"workload.arrivals": {"kind": "closed_loop", "clients": clients}} | SAME
    load |= {"workload.num_requests": 10 + 4 * clients, "speculative": speculative}
    return simulate("chat-a100", set=load, bottleneck=False, progress=False)


found = {}
for clients in (1, 64):
    plain, drafted = closed(clients, None), closed(clients, FIVE)
    speeds = [run.summary["output_throughput"] for run in (plain, drafted)]
    per_step, printed = (drafted.summary[f"spec_decode_acceptance_{key}"] for key in ("length", "rate"))
    found[clients] = [*speeds, speeds[1] / speeds[0], gain(profile, clients, 5, 0.6), per_step, printed]
titles = [
    "tokens/s, none",
    "tokens/s, drafts",
    "gain",
    "by the formula",
    "tokens a verification",
    "% printed",
]
pd.DataFrame(found, titles).T.rename_axis("clients").round(2)

# %% [markdown]
# The gain of a run is a little below the formula's, since prompts take as long as before: whoever waits
# for a prompt gains nothing from drafts. The longer prompts are against answers, the less speculation
# brings to a request. And 60 % are printed as 27 %: of five drafts the last ones are rarely reached.
#
# ## As many drafts as the load allows
#
# On a server the batch is not given. It follows from the load, and it changes by the minute. vLLM takes
# a table, `num_speculative_tokens_per_batch_size: [[1, 16, 5], [17, 64, 1], [65, 256, 0]]`: so many
# drafts by how many sequences a step has. The same key here also takes `auto`. Then the scheduler does
# in every step what we did above: it asks the latency model for the price of each length at the present
# batch, estimates the acceptance from what was accepted so far, and takes the length with most expected
# tokens a second (Liu et al., arXiv 2406.14066). Chat at rising rates with drafts of which only 40 % are
# accepted:

# %%
POOR = FIVE | {"acceptance": 0.4}
AUTO = {"num_speculative_tokens_per_batch_size": "auto"}
KINDS = {"none": None, "five drafts": POOR, "auto": POOR | AUTO}
per_second = [1, 4, 6, 8]


def serve(rate, speculative, seed=0):
    load = {"workload.arrivals": {"kind": "poisson", "rate": rate}, "workload.num_requests": 400}
    load |= {"speculative": speculative}
    return simulate("chat-a100", set=load, seed=seed, bottleneck=False, progress=False)


loaded = {(rate, name): serve(rate, keys) for rate in per_second for name, keys in KINDS.items()}
tpot = {at: run.summary["mean_tpot_ms"] for at, run in loaded.items()}
curves = {name: (per_second, [tpot[rate, name] for rate in per_second]) for name in KINDS}
draw(curves, "requests/s", "mean TPOT (ms)")

# %%
rows = {}
for (rate, name), run in loaded.items():
    drafts = run.summary.get("spec_decode_draft_tokens", 0) / run.summary["total_output_tokens"]
    keys = ("mean_tpot_ms", "median_ttft_ms", "p99_ttft_ms")
    rows[rate, name] = [*(run.summary[key] for key in keys), run.steps.num_decodes.mean(), drafts]
titles = ["mean TPOT (ms)", "median TTFT (ms)", "P99 TTFT (ms)", "decodes a step", "drafts per output token"]
pd.DataFrame(rows, titles).T.rename_axis(["requests/s", "drafts"]).round(1)

# %% [markdown]
# - At one request a second drafts cut the TPOT by 40 %. Speculation shortens the queue too: who finishes
#   sooner leaves the batch sooner, and fewer decode at a time.
# - At eight a second five drafts are worse than none, in every latency. It feeds on itself: longer
#   steps, more in the batch, longer steps.
# - `auto` drafts fewer where more are there, and its TPOT is the best at every rate.
#
# One seed, so small differences mean nothing; these are large. What `auto` cannot know: that acceptance
# is not the same for every request, and that more rows for decodes leave fewer for prompts, which is why
# its P99 of TTFT is not always the best. To a vLLM server it goes as a table; exercise 1 makes one.
#
# ## Fewer bits: what they are
#
# The other way to make a small batch quicker is to read less. `model.quantization` narrows the weights of the
# linear layers; embeddings, head and norms stay in 16 bits, as in vLLM:
#
# - `int8`: 8 bits, multiplied in 16. This is *weight-only*: less to read, nothing less to compute.
# - `int4`: 4 bits, and 20 more for each 128 weights (scale and zero point). Weight-only as well.
# - `fp8`: 8 bits. An H100 has fp8 tensor cores and computes with them, at twice the 16-bit FLOP/s. An A100
#   has none, so vLLM falls back to weight-only there, and `fp8` is `int8` by another name.
#
# `kv.kv_cache_dtype: fp8 | int8` narrows the cache, whatever the weights have.
#
# No timings of quantised kernels went into a profile. What was measured in 16 bits is moved by **the ratio of
# two rooflines**, each part of a step by its own: dense layers by the bytes and FLOP/s of the weights,
# attention by the bytes of KV. Host time, head, tile edges and what a GPU reaches of its peaks stay as they
# were measured. Such a time is *derived, not measured*, and a run says so. Steps of Llama-3.1-8B, contexts of
# 1,000 tokens:

# %%
GPUS = {"A100": "a100-80gb-sxm", "H100": "h100-80gb-sxm"}
WEIGHTS = {"16 bits": {}} | {kind: {"model.quantization": kind} for kind in ("int8", "int4", "fp8")}
PROMPT = StepFeatures.prefill([(2048, 0)])


def machine(gpu, keys):
    return build_machine(load_scenario("chat-a100").with_(**{"hardware.gpu": GPUS[gpu]} | keys))


built = {(gpu, name): machine(gpu, keys) for gpu in GPUS for name, keys in WEIGHTS.items()}
narrow = pd.DataFrame(
    {at: [each.model.weight_bytes() / 1e9] for at, each in built.items()}, ["weights (GB)"]
).T
for n in (1, 32, 256):
    narrow[f"batch of {n} (ms)"] = [price(each.latency, n, 0) for each in built.values()]
narrow["prompt of 2,048 (ms)"] = [1e3 * each.latency.step_time(PROMPT) for each in built.values()]
narrow.rename_axis(["GPU", "weights"]).round(1)

# %%
for at, each in built.items():
    error = "unknown" if each.latency.error is None else f"{each.latency.error:.1%}"
    print(*at, f"error {error}", *each.latency.derived, sep=" | ")

# %% [markdown]
# Half the bits are not half the bytes: int8 takes the weights from 16.1 to 9.1 GB, int4 to 5.7. A single
# sequence decodes in 66 % of the time with 8 bits and in 50 % with 4. At a batch of 256 the time is nearly
# that of 16 bits again, and a prompt's always: those steps compute. Only fp8 on the H100 is quicker
# everywhere, since it computes quicker; its prompt takes 63 % of the time, not half, as attention, head and
# host stay as they were.
#
# ## Fewer bits: speed
#
# A run by so many clients, each with a request under way (800 tokens of prompt, 200 of answer):

# %%
crowds = [1, 8, 32, 128, 256]


def crowd(clients, keys, gpu="A100", length=200):
    load = {"workload.arrivals": {"kind": "closed_loop", "clients": clients}, "hardware.gpu": GPUS[gpu]}
    load |= {"workload.lengths": {"kind": "constant", "prompt": 800, "output": length}} | keys
    load |= {"workload.num_requests": 8 + 3 * clients, "scheduler.max_num_seqs": 1024}
    return simulate("chat-a100", set=load, bottleneck=False, progress=False)


speed = {
    (gpu, n): {name: crowd(n, keys, gpu).summary["output_throughput"] for name, keys in WEIGHTS.items()}
    for gpu in GPUS
    for n in crowds
}
speed = pd.DataFrame(speed).T.rename_axis(["GPU", "clients"])
against = speed.div(speed["16 bits"], axis=0)
figure = PrivateFigure(new_figure(1, 2, height=360, shared_yaxes=True))
for col, gpu in enumerate(GPUS, start=1):
    for color, name in zip(COLORS, ("int4", "int8", "fp8"), strict=False):
        line = {"color": color, "dash": "dot" if name == "fp8" else "solid"}
        told = {"name": name, "legendgroup": name, "showlegend": col == 1, "mode": "lines+markers"}
        figure.add_scatter(x=crowds, y=against.loc[gpu, name], line=line, **told, row=1, col=col)
    figure.update_xaxes(type="log", tickvals=crowds, title=f"clients of an {gpu} (log scale)", col=col)
figure.add_hrect(y0=1.3, y1=1.5, fillcolor=COLORS[4], opacity=0.3, line_width=0)
figure.update_yaxes(title="tokens/s, times 16 bits", col=1)

# %%
against.round(2)

# %% [markdown]
# - **"INT8 brings 30-50 %"** (the shaded band) **holds for a few clients**: 1.49 times for one on either GPU,
#   1.38 for eight on an A100, 1.23 for 32. With 128 clients 7 % are left.
# - **INT4 nearly doubles a single stream**, 1.94 times, and is worth hardly more than INT8 to a crowd.
# - **FP8 on an H100 is another thing.** It starts like INT8 and keeps 1.39 times at 256 clients, where INT8
#   has 1.04. On the A100 its line lies on that of INT8.
#
# How sure is that? The requests' chance is small. But the ratio of rooflines is assumed to err by 15 %, as an
# estimate of those layers does, and no 16-bit server shares that error, so it does not cancel:

# %%
trials = {}
for n in (1, 32):
    pair = {name: crowd(n, WEIGHTS[name]).scenario for name in ("16 bits", "int8")}
    trial = serve_trial(pair, replications=3, n_model_draws=19, workers=1)
    ratios = [each.ratio("output_throughput", "int8", "16 bits") for each in (trial.as_priced(), trial)]
    trials[n] = [ratios[1].value, ratios[0].low, ratios[0].high, ratios[1].low, ratios[1].high]
titles = ["int8, times 16 bits", "chance: low", "high", "with the price's error: low", " high"]
pd.DataFrame(trials, titles).T.rename_axis("clients").round(2)

# %% [markdown]
# So one client gains by 1.27 to 1.82 times, which neither proves nor refutes "30-50 %" (notebook 14 calls it
# *open*). That gains fall with the batch is the roofline's form and much surer than their level.
# `docs/quantisation.md` has the whole study, with chat lengths and long answers and capacity at an SLO.
#
# ## Fewer bits: memory
#
# Narrow weights leave room for KV, 7 GB with int8 and 10 with int4, and a narrow cache makes twice the tokens
# fit. A decode then reads half as much context too, which shows at large batches of long contexts, where KV
# and not weights is most of what a step reads. 600 clients with contexts of up to 1,600 tokens:

# %%
CACHES = {f"{kind} KV": {"kv.kv_cache_dtype": kind} for kind in ("fp8", "int8")}
BOTH = {"int8, fp8 KV": WEIGHTS["int8"] | CACHES["fp8 KV"]}
memory = {}
for name, keys in (WEIGHTS | CACHES | BOTH).items():
    crowded = crowd(600, keys, length=800).summary
    own = crowded["servetwin"]
    fit = own["usable_blocks"] * own["block_size"]
    memory[name] = [fit, crowded["output_throughput"], crowded["mean_tpot_ms"], own["num_preemptions"]]
memory = pd.DataFrame(memory, ["tokens that fit", "tokens/s", "mean TPOT (ms)", "preemptions"]).T
memory.round(0).astype(int)

# %% [markdown]
# The clients want more KV than the card has, and the server preempts. With a cache of 8 bits they fit, and
# 42 % more tokens come out. An int8 cache keeps a scale for each token and head beside it, so 3 % fewer
# tokens fit than in fp8. Narrow weights alone bring 1 to 2 %: so many decode that the step computes.
#
# So the two are about different things. Narrow weights make *small* batches quicker, a narrow cache makes
# *large* ones possible and quicker. Which to take first follows from the batch that the load makes, as with
# drafts.
#
# ## What it costs
#
# What answers lose in quality is not for a simulator to say, and none here guesses it. You evaluate the
# variants (by your own benchmark, in any unit) and write the scores into the scenario, by types:
# `model.accuracy`. They are carried to the summary, the tables and the search, and a type without a score has
# none. **The scores below are made up to show the key, and so is the price per hour:**

# %%
MINE = {"model.accuracy": {"none": 68.4, "int8": 68.1, "int8/fp8": 67.9}, "hardware.price_per_gpu_hour": 2.0}
variants = {name: keys for name, keys in (WEIGHTS | CACHES | BOTH).items() if name not in ("fp8", "int8 KV")}
choice = {}
for name, keys in variants.items():
    few, many = (crowd(n, keys | MINE).summary["servetwin"] for n in (1, 256))
    choice[name] = [few["accuracy"], *(each["cost_per_million_output_tokens"] for each in (few, many))]
choice = pd.DataFrame(choice, ["accuracy", "$/M tokens, 1 client", "$/M tokens, 256"]).T.astype(float)
choice.round(2)

# %%
print(crowd(1, WEIGHTS["int4"] | MINE).summary["servetwin"]["notes"][-1])

# %% [markdown]
# "At least 68" now is a question that the table answers: int8 weights, since int4 and the cache alone have no
# score. `servetwin search` takes it as `--constraint accuracy>=68`. Where tenants share a server,
# `tenants` in `summary.json` has each one's part of the cost, by what its requests took of the steps and not
# by counted tokens (`docs/quantisation.md` says how).
#
# ## Both at once
#
# Speculation and INT8 weights spend the same thing. Both live off the time in which the GPU reads weights;
# with INT8 there is half as much of it, and the ridge is reached with half the rows. Five n-gram drafts with
# `a` = 0.6 on the A100, times the same server without drafts:

# %%
both = {}
for n in crowds:
    for name in ("16 bits", "int8", "int4"):
        pair = [
            crowd(n, WEIGHTS[name] | {"speculative": each}).summary["output_throughput"]
            for each in (None, FIVE)
        ]
        both[n, name] = pair[1] / pair[0]
pd.Series(both).unstack()[["16 bits", "int8", "int4"]].rename_axis("clients").round(2)

# %% [markdown]
# For one client five drafts bring about as much in any format. From eight clients on they bring less where
# the weights are narrow, and at 256 they lose in all three. So gains do not multiply: 2 times and 1.5 times
# are not 3 times, except where nobody else is there.
#
# ## What this leaves out
#
# - **Acceptance is an assumption.** It depends on text, drafter and temperature; a simulation cannot
#   find it. Measure it (`servetwin gpu replay` writes a log that `speculative.acceptance` takes; vLLM
#   prints its rates). Here drafts are accepted independently, and an n-gram lookup always finds
#   something; real ones come in streaks and often find nothing.
# - **No verification step was measured.** A verification is priced as so many rows of the dense layers
#   and one read of each context. Drafts change the shape of attention, and kernels differ in what they
#   make of it.
# - Looking n-grams up takes host time, some 2 us a sequence in vLLM, which is `speculative.lookup_us`, 0
#   unless you set it.
# - **No quantised kernel was measured.** Unpacking weights is free here; MARLIN (Frantar et al. 2024) hides
#   it below some 50 rows and loses some 10 % to 16 bits beyond 1,000. Rounding activations to fp8 and other
#   attention kernels for a narrow cache are left out as well.
# - Accuracy is yours. So is what a draft model in 16 bits would say beside a quantised target.
#
# ## Exercises
#
# **Exercise 1.** Make a table for vLLM: for each batch from 1 to 256 the length of 0 to 5 with the
# highest `gain` at `a` = 0.4, written as ranges `[first, last, drafts]`. Serve 6 requests a second with
# it. Is it as good as `auto`?
#
# **Exercise 2.** A colleague quotes "speculation 2.5 times" and "INT8 1.5 times" and promises 3.75 times
# for a server with 32 clients. Take three n-gram drafts with `a` = 0.8, let `crowd` serve all four
# combinations, and say what is left.
#
# Answers: `answers/13_speculation_and_quantisation.py`.
