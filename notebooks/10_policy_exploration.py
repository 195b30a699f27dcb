# %% [markdown]
# # 10. From your traffic to a decision
#
# **Goal.** The way a team goes: look at the traffic, say what the server is, let candidates compete, find
# out how much the winner carries, how far it is from the best possible, and what to type into vLLM. At each
# station the same question: how sure is that?
#
# Fifteen minutes to read, half a minute to run, no GPU. Notebooks 1 and 2 say what TTFT, TPOT and a batching
# policy are; notebook 11 is about the statistics behind the verdicts.
#
# **The times are those of a profile that was fitted from public A100 measurements** (notebook 9). With a
# profile of your own, or one tuned to your server, everything below stays the same but for one name.

# %%
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

from simulator import bounds, capacity, compare, load_scenario, load_trace, simulate
from simulator.experiments.server.export import export

folder = Path(tempfile.mkdtemp())

# %% [markdown]
# ## 1. Your traffic
#
# A trace needs three columns: when a request came, how long its prompt was, how long its answer became. Here
# a made-up one stands in, eight minutes of a chat service with long and short prompts. **Put your own file in
# its place**: `load_trace("yours.csv", columns={...}, time_unit="s")`; a dozen published formats are
# recognised without that.

# %%
rng = np.random.default_rng(10)
times = np.sort(rng.uniform(0, 480, 2400)).round(3)
is_long = rng.random(len(times)) < 0.15
prompts = np.where(is_long, rng.lognormal(8.4, 0.3, len(times)), rng.lognormal(6.2, 0.9, len(times)))
answers = rng.lognormal(5.0, 0.7, len(times))
rows = {"at": times, "in": prompts.astype(int).clip(1, 12_000), "out": answers.astype(int).clip(1, 1500)}
pd.DataFrame(rows).to_csv(folder / "traffic.csv", index=False)

COLUMNS = {"arrival": "at", "prompt": "in", "output": "out"}
trace = load_trace(folder / "traffic.csv", columns=COLUMNS, time_unit="s")
info = trace.info()
lengths = {"prompt": trace.num_prompt, "answer": trace.num_output}
print(f"{len(trace):,} requests, {len(trace) / info['span']:.1f} a second")
pd.DataFrame(
    {name: np.percentile(tokens, [50, 90, 99]) for name, tokens in lengths.items()}, ["p50", "p90", "p99"]
)

# %% [markdown]
# ## 2. Your server
#
# A scenario says the rest: model, GPU, limits, SLO. What is not said has vLLM's default. `servetwin check`
# prints all of it. Clients do not say how long an answer will be; they ask for at most `max_tokens`.

# %%
scenario = load_scenario("chat-a100").with_(
    **{
        "name": "traffic",
        "workload.trace": str(folder / "traffic.csv"),
        "workload.columns": COLUMNS,
        "workload.time_unit": "s",
        "workload.max_tokens": 2048,
        "hardware.price_per_gpu_hour": 2.0,
        "slo": {"ttft_ms": 500, "tpot_ms": 50, "attainment": 0.95},
    }
)
as_it_is = simulate(scenario)
print(as_it_is.summary["servetwin"]["verdict"])

# %%
as_it_is.plot("latency")

# %% [markdown]
# The picture is worth a look before any number: a tail that stands far off says that some requests wait for
# something that others do not, a shift of the whole says that steps are long. Here it is the tail of the time
# to the first token: long prompts take whole steps for themselves, and whoever comes meanwhile waits.
#
# One run, one verdict, and the doubling that helps most. That is where to look for candidates: not at the
# settings that one knows, but at what is short.
#
# ## 3. Candidates
#
# Two other budgets, the host's work hidden behind the GPU's, another batching policy, another order. An order
# of your own would stand here as a function (notebook 7). Few and unlike candidates are better than many
# alike ones: each one more is another chance for luck to win.

# %%
candidates = {
    "as it is": {},
    "budget 1024": {"scheduler.max_num_batched_tokens": 1024},
    "budget 4096": {"scheduler.max_num_batched_tokens": 4096},
    "async": {"scheduler.async_scheduling": True},
    "prefill first": {"scheduler.batching": "prefill_first"},
    "short prompts first": {"scheduler.order": "sjf_prompt"},
}
found = compare(scenario, candidates, replications=5, n_model_draws=8)
found.frame[["mean", "difference", "combined_low", "combined_high", "verdict"]].round(4)

# %%
found.plot("difference")

# %% [markdown]
# How to read it:
#
# - Each replication is the trace again in another form: a **circular block bootstrap**, minutes drawn with
#   replacement, since windows of under 500 requests are no replications. All candidates serve the same ones,
#   so most of the luck of the draw cancels in a difference.
# - The **sampling** interval says what other requests can do, the **model** interval what the profile's own
#   error can do; errors that all candidates share cancel there too. The verdict goes by both together.
# - **win** and **loss**: the combined interval excludes 0. **tie**: it includes 0 and is so narrow that the
#   rest does not matter. **needs more runs**: neither, so nothing was shown. Do not read it as a tie.
# - Eight draws of the model's error span a level of 78 %, so "combined" is that and no more. 95 % needs 39
#   draws, and a decision that hangs on a narrow win deserves them; here they would take too long.
#
# How wrong may the model be before a verdict turns?

# %%
found.frame[["turns_at"]].dropna().round(3)

# %% [markdown]
# A factor of 1.05 says: were this candidate's steps 5 % slower than modelled *and the baseline's not*, the
# two would be level. Compare that with the profile's error of a step, 2.5 % held out, and with how alike the
# candidates' steps are: an error that hits both alike does not turn anything. Asynchronous scheduling turns
# within that error, and its steps are of another kind than the baseline's, since the host no longer adds to
# them. So its win is a reason to measure, not yet one to believe. The order's steps are the baseline's steps,
# and it turns only beyond.
#
# ## 4. How much does it carry?
#
# Attainment at today's rate is one point. The question behind it is usually how far today's rate is from the
# edge, and what the edge costs. `capacity` looks for the highest rate that keeps the SLO, by bisection, with
# the same requests at every rate, and checks that the queue does not grow: a run that ends before its queue
# has grown flatters every server.

# %%
best = found.winner
edge = capacity(
    scenario,
    {name: candidates[name] for name in dict.fromkeys(["as it is", best])},
    replications=6,
    tolerance=0.05,
)
edge.table[["rate", "low", "high", "verdict", "cost_per_million_output_tokens"]].round(3)

# %%
edge.plot("goodput")

# %% [markdown]
# Two things may surprise. The capacity is far **below** the rate at which the server was judged above: it
# missed its target there, so this is the answer to "how much would it carry in good order?", not to "how much
# can be squeezed in?". Throughput goes on growing beyond it; goodput, the requests within the SLO, is what
# bends. And the intervals are **wide**, much wider than those of the differences above: near the edge the
# attainment changes slowly with the rate, so a little luck moves the crossing far. What two candidates do at
# one rate is a question about a height; capacity is a question about where a flat curve crosses a line. The
# difference of two capacities is paired over the same requests and narrower than either; the verdict goes by
# that. If the decision hangs on it, ask for more replications or a longer trace, not for a finer bisection.
#
# In a running notebook `edge.widget()` puts a slider over the rate (it needs `anywidget`). The band is the
# interval over replications; the mark is the answer, with its own interval in the table. The cost is that of
# a million output tokens at that rate, at the price in the scenario.
#
# ## 5. How far from the best possible?
#
# A winner among six may still be far from what the GPU could do. Bounds say what *no* policy can beat.

# %%
limit = bounds(scenario.with_(**candidates[best]))
print(limit)

# %% [markdown]
# Read the last lines first. Throughput is at its bound as long as the server keeps up with what arrives: then
# the arrivals are the limit, and no policy changes that. Mean latency has a bound of its own, each request
# served alone; some of the distance to it is the price of sharing the GPU, which no policy can win back
# whole. The reference order, which knows how long every answer will be, shows what knowing would bring.
#
# If the distance is small, stop trying policies: the next gain is a GPU, a smaller model or shorter prompts.
#
# ## 6. What to type into vLLM

# %%
order = export("vllm", scenario.with_(**candidates[best]), out=folder / "load.jsonl")
print(" ".join(order.serve))
print()
print(*(f"{lack.key} = {lack.value}: {lack.instead}" for lack in order.no_counterpart), sep="\n")

# %% [markdown]
# The second part is the honest one: what this scenario has that the server cannot do, or does in another way.
# Here it matters: **the winner's order is no flag of vLLM**. What can be typed in today is the other winner,
# asynchronous scheduling; the order takes a gateway that sends the length of the prompt as `priority`, as
# the line above says, or a scheduler class of one's own, and the verdict says what that would be worth.
#
# `order.bench` is the `vllm bench serve` command that sends **these very requests** (`load.jsonl`), so that
# simulation and server serve the same load.
#
# ## 7. Back from the machine
#
# - `vllm bench serve ... --save-detailed` on the server, then `servetwin import measured.json -o
#   runs/measured`: what was measured becomes a run folder like any other.
# - `servetwin diff runs/measured runs/model` puts every metric beside the other.
# - `servetwin calibrate tune PROFILE --bench measured.json` corrects the profile's host and scale, and tells
#   the error on the half of the requests that it has not seen.
# - With a CUDA machine at hand `servetwin gpu replay SCENARIO` runs the very same policy object and compares
#   the decisions step by step (notebook 8).
#
# Tune **before** you decide if the verdict turns at a factor that the profile's error can reach.
#
# ## What this cannot tell
#
# - The profile's level is uncertain by about 10 % on an A100, since public sources disagree (notebook 9).
#   Differences are surer than levels; a capacity is a level.
# - A bootstrap of eight minutes knows nothing of what happens at night. Intervals say what *these* eight
#   minutes leave open.
# - Each interval is for one comparison. Of many equal candidates the best looks better than it is (notebook
#   11).
#
# `docs/limits.md` lists what the model leaves out.

# %% [markdown]
# ## Exercises
#
# **Exercise 1.** Your product people would pay for 95 % of the requests within a TTFT of 250 ms instead of
# 500. Which of the candidates wins then, and is it the same one? (Change the SLO, not the trace.)
#
# **Exercise 2.** Two of the candidates touch different things: put them together as a seventh one. Is the
# whole more or less than the sum of its parts, in attainment and in capacity?
#
# The answers are code: `answers/10_policy_exploration.py`.
