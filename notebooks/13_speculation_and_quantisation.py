# %% [markdown]
# # 13. Speculation and quantisation
#
# **Goal.** Say from a price list when draft tokens help, when they hurt, and from which batch on. Turn
# drafting off by load, and hand the rule to vLLM. Then the same questions about smaller numbers: what
# weights of 8 bits and KV of 8 bits bring, and where.
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

from simulator import load_profile, simulate
from simulator.experiments.compare_plots import COLORS
from simulator.experiments.figure_style import new_figure
from simulator.experiments.private_figure import PrivateFigure
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
# they read 2.5 GB each, against 16. So the first 40 % of acceptance only pay the drafter. At 80 %, which
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
# ## Eight bits: weights
#
# The other way to make a small batch quicker is to read less. With `model.quantization: int8` the linear
# layers' weights have one byte instead of two; each is multiplied in 16 bits, so arithmetic does not get
# quicker (that is *weight-only* quantisation). No profile of INT8 is shipped, so times are estimated
# from the roofline, and to compare like with like the 16-bit ones too. What the answers lose in quality
# is not for a simulator to say.

# %%
WEIGHTS = {"16 bits": {}, "weights 8": {"model.quantization": "int8"}}
KV = {"": {}, ", KV 8": {"kv.kv_cache_dtype": "fp8"}}
FORMATS = {name + more: keys | kv for name, keys in WEIGHTS.items() for more, kv in KV.items()}
crowds = [1, 8, 32, 128]


def eight(clients, keys, length=200):
    load = {"workload.arrivals": {"kind": "closed_loop", "clients": clients}, "latency.kind": "roofline"}
    load |= {"workload.lengths": {"kind": "constant", "prompt": 800, "output": length}} | keys
    load |= {"workload.num_requests": 8 + 3 * clients, "scheduler.max_num_seqs": 1024}
    return simulate("chat-a100", set=load, bottleneck=False, progress=False)


speed = {
    n: {name: eight(n, keys).summary["output_throughput"] for name, keys in FORMATS.items()} for n in crowds
}
speed = pd.DataFrame(speed).T
against = speed.div(speed["16 bits"], axis=0)
curves = {name: (crowds, against[name]) for name in FORMATS}
draw(curves, "clients (log scale)", "tokens/s, times 16 bits", type="log", tickvals=crowds)

# %%
against.rename_axis("clients").round(2)

# %% [markdown]
# **"INT8 brings 30-50 %" holds for a few clients.** A single one gets 1.56 times the tokens, less than
# the factor of two in bytes since prompts, KV and the host stay as they were. With 128 clients 8 % are
# left: the batch computes rather than reads, and weight-only INT8 computes as before.
#
# ## Eight bits: KV
#
# KV of 8 bits (`kv.kv_cache_dtype: fp8`) does two things. A decode reads half as much context, which
# shows at large batches of long contexts, where KV and not weights is most of what a step reads. And
# twice as many tokens fit:

# %%
memory = {}
for name, keys in FORMATS.items():
    run = eight(600, keys, length=800)
    own = run.summary["servetwin"]
    tokens_fit = own["usable_blocks"] * own["block_size"]
    memory[name] = [
        tokens_fit,
        run.summary["output_throughput"],
        run.summary["mean_tpot_ms"],
        own["num_preemptions"],
    ]
memory = pd.DataFrame(memory, ["tokens that fit", "tokens/s", "mean TPOT (ms)", "preemptions"]).T
memory.round(0).astype(int)

# %% [markdown]
# 600 clients with contexts of up to 1,600 tokens want more KV than the card has, and the server
# preempts. With 8 bits they fit, and 44 % more tokens come out. The two kinds of quantisation are about
# different things: weights of 8 bits make *small* batches quicker and give the pool 7 GB, KV of 8 bits
# makes *large* batches possible and quicker. Which to take first follows from the batch that the load
# makes, as with drafts.
#
# And together? Speculation and INT8 weights spend the same thing. Both live off the time in which the
# GPU reads weights; with INT8 there is half as much of it, and the ridge is reached with half the rows:

# %%
both = {}
for n in crowds:
    for name, keys in WEIGHTS.items():
        pair = [eight(n, keys | {"speculative": each}).summary["output_throughput"] for each in (None, FIVE)]
        both[n, name] = pair[1] / pair[0]
pd.Series(both).unstack()[[*WEIGHTS]].rename_axis("clients").round(2)

# %% [markdown]
# For one client five drafts bring about as much in either format. From eight clients on they bring less
# where the weights have 8 bits. So gains do not multiply: 2 times and 1.5 times are not 3 times, except
# where nobody else is there.
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
# - INT8's times are the roofline's, with an efficiency that was measured for 16 bits.
#
# ## Exercises
#
# **Exercise 1.** Make a table for vLLM: for each batch from 1 to 256 the length of 0 to 5 with the
# highest `gain` at `a` = 0.4, written as ranges `[first, last, drafts]`. Serve 6 requests a second with
# it. Is it as good as `auto`?
#
# **Exercise 2.** A colleague quotes "speculation 2.5 times" and "INT8 1.5 times" and promises 3.75 times
# for a server with 32 clients. Take three n-gram drafts with `a` = 0.8, let `eight` serve all four
# combinations, and say what is left.
#
# Answers: `answers/13_speculation_and_quantisation.py`.
