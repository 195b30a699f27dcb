# %% [markdown]
# # 11. Sweeps and statistics
#
# **Goal.** Say how sure a simulated number is: put an interval on it that holds what it promises, compare
# two servers with a tenth of the runs, and know what many comparisons and a wrong model do to a verdict.
# Then try many settings at once, without fooling yourself about the best of them.
#
# The idea is one sentence: **count runs, not requests, and let both sides serve the same ones.**
#
# Twenty minutes to read, half a minute to run, no GPU. Notebook 1 explains the latencies, notebook 2 the
# token budget of a step. The search at the end needs Optuna (`pip install 'servetwin[sweep]'`).

# %%
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import t as student

from simulator import compare, load_scenario, search, simulate, sweep
from simulator.experiments.compare_plots import COLORS
from simulator.experiments.figure_style import new_figure
from simulator.experiments.private_figure import PrivateFigure
from simulator.metrics.warmup import mser5


def draw(series, x, y, mode="lines", **axis):
    figure = PrivateFigure(new_figure(height=320)).update_xaxes(title=x, **axis).update_yaxes(title=y)
    for color, (name, (xs, ys)) in zip(COLORS, series.items(), strict=False):
        figure.add_scatter(x=xs, y=ys, name=name, mode=mode, line={"color": color}, marker={"color": color})
    return figure


# %% [markdown]
# ## A server whose mean is known
#
# To see whether an interval holds the truth one must know the truth. For a queue with one server, Poisson
# arrivals and exponential service times (M/M/1) it is in every textbook: the mean time in the system is the
# mean service time / (1 - load). So we build one: one seat, answers of one token, prompts of 300 tokens on
# average and 1/300 s a token. Service takes 1 s on average, 0.7 requests arrive a second: the load is 0.7,
# and the true mean latency is 1 / 0.3 = 3.33 s.

# %%
QUEUE = {
    "model": {"name": "tiny-llama-28m", "max_model_len": None},
    "hardware": {"gpu": "cpu-1core"},
    "kv": {"num_gpu_blocks_override": 20_001, "enable_prefix_caching": False},
    "scheduler": {"max_num_seqs": 1, "max_num_batched_tokens": 200_000},
    "latency": {"kind": "linear", "coefficients": {"constant": 0.0, "per_token": 1 / 300}},
    "workload": {
        "arrivals": {"kind": "poisson", "rate": 0.7},
        "lengths": {"kind": "exponential", "prompt": 300, "output": 1},
        "max_tokens": 1,
        "num_requests": 1000,
    },
}
TRUTH = 1 / (1 - 0.7)
requests = simulate(QUEUE, bottleneck=False).requests
latency = (requests.finish - requests.arrival).to_numpy()
half = 1.96 * latency.std(ddof=1) / len(latency) ** 0.5
print(f"mean latency of 1,000 requests: {latency.mean():.2f} s ± {half:.2f} s")

# %% [markdown]
# That is the formula of the first statistics course: the standard deviation over the root of the number,
# times 1.96 for 95 %. The interval ends below 3.33. Bad luck, one time in twenty?

# %%
figure = draw({"": (np.arange(400), latency[:400])}, "request, in the order of arrival", "latency (s)")
figure.add_hline(y=TRUTH, line={"color": COLORS[1], "dash": "dash"})

# %% [markdown]
# The first 400 of them; the dashed line is the truth. The formula supposes that each request is a new draw.
# But latencies come in waves: who arrives behind a long queue waits, and so does the next one, since it is
# the same queue.
#
# ## Counting
#
# How bad is it? Do the whole experiment thousands of times and count. That is quicker without servetwin: in
# this queue the wait of a request follows from that of the one before (Lindley, 1952). First the check that
# both say the same about the thousand requests above:


# %%
def queue(gaps, service):  # latencies; the last axis are requests
    wait = np.zeros_like(service)
    for i in range(1, service.shape[-1]):
        wait[..., i] = np.maximum(0, wait[..., i - 1] + service[..., i - 1] - gaps[..., i - 1])
    return wait + service


again = queue(np.diff(requests.arrival), requests.num_prompt.to_numpy() / 300)
print(f"largest difference to servetwin: {abs(again - latency).max():.6f} s")
rng = np.random.default_rng(11)
runs = queue(rng.exponential(1 / 0.7, (5000, 1000)), rng.exponential(1, (5000, 1000)))

# %% [markdown]
# Now 5,000 runs of 1,000 requests. The other way to make an interval: take ten *runs* with ten seeds as ten
# numbers. Runs know nothing of each other, so the formula may be used on their means, with Student's t in
# place of 1.96, because ten are few (Law, *Simulation Modeling and Analysis*, 9.4). These runs are called
# replications.


# %%
def over_requests(runs):
    return runs.mean(axis=1), 1.96 * runs.std(axis=1, ddof=1) / runs.shape[1] ** 0.5


def over_runs(values, num=10, level=0.95):  # values: one per run
    groups = values[: len(values) // num * num].reshape(-1, num)
    factor = student.ppf((1 + level) / 2, num - 1) / num**0.5
    return groups.mean(axis=1), factor * groups.std(axis=1, ddof=1)


def holds(mean, half, truth=TRUTH):
    return abs(mean - truth) <= half


one_run, ten_runs = over_requests(runs), over_runs(runs.mean(axis=1))
print(f"over the requests of one run: {holds(*one_run).mean():.0%} of {len(runs):,} intervals hold the truth")
print(f"over ten runs:                {holds(*ten_runs).mean():.0%} of {len(runs) // 10}")


# %%
def panel(figure, col, color, x, y, **more):
    figure.add_scatter(
        x=x, y=y, mode="markers", marker={"color": color}, showlegend=False, row=1, col=col, **more
    )


def bars(figure, col, mean, half):
    for is_good, color in ((True, COLORS[0]), (False, COLORS[1])):
        which = np.flatnonzero(holds(mean, half) == is_good)
        panel(figure, col, color, which, mean[which], error_y={"array": half[which]}, name="")


titles = ["over the requests of a run", "over ten runs each"]
figure = PrivateFigure(new_figure(1, 2, height=340, subplot_titles=titles, shared_yaxes=True))
bars(figure, 1, *(each[:30] for each in one_run))
bars(figure, 2, *(each[:30] for each in ten_runs))
figure.add_hline(y=TRUTH, line={"color": COLORS[6], "dash": "dash"})
figure.update_xaxes(title="experiment").update_yaxes(title="mean latency (s)", col=1)

# %% [markdown]
# An interval that says 95 % and holds 28 % of the time is no interval. The one over runs keeps its word.
#
# How much does one request tell about the next? That is the *autocorrelation*, here from the truth and all
# 5,000 runs (the first 200 requests left out; why, comes below):


# %%
def autocorrelation(off, lag):
    return (off[:, : off.shape[1] - lag] * off[:, lag:]).mean() / (off**2).mean()


off = runs[:, 200:] - TRUTH
lags = [0, 1, 2, 5, 10, 20, 30, 50, 75, 100, 150]
draw(
    {"": (lags, [autocorrelation(off, lag) for lag in lags])},
    "requests in between",
    "correlation of latencies",
    mode="lines+markers",
)

# %%
ratio = (runs.mean(axis=1).std() / (one_run[1].mean() / 1.96)) ** 2
print(f"variance of a run's mean: {ratio:.0f} times what the formula says")
print(f"1,000 requests tell as much as {1000 / ratio:.0f} independent ones")

# %% [markdown]
# Ten requests later almost half of it is still there. Add up the curve on both sides, and you have the
# factor by which the formula is wrong: 1,000 requests are worth 30. The interval over ten runs did not
# become right by being made of more requests. One over the 10,000 requests of all ten would be as wrong as
# before.
#
# It is not a matter of toy queues. This is chat on an A100, with steady arrivals at 6 requests a second,
# 400 of them, and ten seeds. (`compare` serves them; what else it does comes below.)

# %%
steady = {"workload.arrivals": {"kind": "poisson", "rate": 6.0}, "workload.num_requests": 400}
chat = load_scenario("chat-a100").with_(**steady)
candidates = {
    "budget 2048": {},
    "budget 512": {"scheduler.max_num_batched_tokens": 512},
    "budget 1792": {"scheduler.max_num_batched_tokens": 1792},
    "short prompts first": {"scheduler.order": "sjf_prompt"},
    "1024 seats": {"scheduler.max_num_seqs": 1024},
}
found = compare(chat, candidates, metric="p99_ttft_ms", replications=10)
served = found.replications
one = found.results["budget 2048"].requests
decoding = (one.finish - one.first_token) / (one.num_output - 1)
latencies = {"mean_ttft_ms": one.first_token - one.arrival, "mean_e2el_ms": one.finish - one.arrival}
latencies |= {"mean_tpot_ms": decoding[one.num_output > 1]}
spread = {name: (1e3 * each.sem(), served[name]["budget 2048"].std()) for name, each in latencies.items()}
columns = ["standard error by the formula", "standard deviation of ten runs"]
pd.DataFrame(spread, columns).T.round(2)

# %% [markdown]
# The two columns would be alike if requests were independent. For TTFT and E2EL the formula is not far off
# here: the server is lightly loaded, and answers differ in length far more than waits do. For TPOT it is
# off by a factor of 3.6, since requests that run together share their steps. Which metric is how far off,
# and at which load, nobody knows beforehand. Intervals over runs need not know it.
#
# ## Warm-up
#
# Back to the queue. It starts empty: the first request never waits, the second hardly. So the mean of a run
# is a little low, and more runs do not help. They only make the interval narrow around the wrong number.
# Averaged over many runs the start can be seen (Welch's plot):

# %%
first = np.arange(80)
welch = {"mean of 10 runs": (first, runs[:10, :80].mean(axis=0))}
welch |= {"mean of 5,000 runs": (first, runs[:, :80].mean(axis=0))}
figure = draw(welch, "request, in the order of arrival", "latency (s)")
figure.add_hline(y=TRUTH, line={"color": COLORS[6], "dash": "dash"})

# %% [markdown]
# So the first requests are left out. How many? With ten runs the plot does not say. **MSER-5** (White, Cobb
# and Spratt, 2000) is a rule that needs no eye: form means of five requests, and cut where those that
# remain have the smallest standard error. It takes a run and gives a number. With several runs there is a
# choice: each run has its own cut, or one run decides for all. Here with intervals over 25 runs each,
# beside no cut and a fixed one:


# %%
def judged(means):
    mean, half = over_runs(means, 25)
    return [round(means.mean(), 2), f"{holds(mean, half).mean():.0%}"]


def left(runs, cuts):
    return np.array([run[cut:].mean() for run, cut in zip(runs, cuts, strict=True)])


ways = {}
for length in (100, 200, 1000):
    short = runs[:, :length]
    cuts = np.array([mser5(run) for run in short])
    ways[length, "all requests"] = judged(short.mean(axis=1))
    ways[length, "what MSER-5 leaves of each"] = judged(left(short, cuts))
    ways[length, "what MSER-5 of one run leaves of all"] = judged(left(short, np.repeat(cuts[::25], 25)))
    ways[length, "all but the first 50"] = judged(short[:, 50:].mean(axis=1))
columns = ["mean (truth: 3.33 s)", "intervals that hold it"]
pd.DataFrame(ways, columns).T.rename_axis(["requests a run", "mean over"])

# %% [markdown]
# Three things to read from it.
#
# **Short runs are the trouble, not the missing rule.** With 100 requests an interval over 25 runs holds 77
# %, with 1,000 requests 94 %, without any cut. Make runs longer before you make cuts cleverer.
#
# **A cut of its own for each run is worse than none.** The rule looks for the end that varies least. In a
# queue the quiet stretches vary little *and* have low latencies, so it likes to cut away whatever came
# before one. The mean of 1,000 requests comes out 6 % low, and the intervals hold 54 %. A rule that looks
# at the values in order to choose them chooses more than the start.
#
# **A cut that one run decides for all is harmless.** For the 24 others it is a number that has nothing to
# do with their values. That is what `compare` does: MSER-5 on the plain run of each candidate, the longest
# cut for all candidates and replications. `run.warmup: auto` in a scenario is the first kind, each run by
# itself: something to look at a single long run with, not for means over several. For a sweep write
# `run.warmup: {requests: 50}`.
#
# All this is for a load that is steady. A trace, a day with a peak, or requests that are all there at the
# beginning have no steady state to warm up to, and there nothing may be left out.
#
# ## Common random numbers
#
# Whether another budget is better is a question about a *difference*. The variance of a difference of two
# independent things is the sum of both variances. But nobody says that they must be independent: let both
# servers serve the same requests, seed by seed.

# %%
pairs = served.mean_e2el_ms.unstack(0) / 1e3
both = {name: (pairs["budget 2048"], pairs[name]) for name in ("budget 512", "budget 1792")}
draw(both, "mean E2EL with budget 2048 (s)", "mean E2EL of the other (s)", mode="markers")

# %% [markdown]
# A point is a seed. A seed with long answers is slow for everybody, so the points lie on lines, and how far
# a line is from the diagonal is known much better than where on it a seed comes to lie. The standard
# deviation of the difference to budget 2048, seed by seed, and as it would be if each had its own requests:


# %%
def worth(metric):
    values = served[metric].unstack(0)[list(candidates)[:4]]
    paired = values.sub(values["budget 2048"], axis=0).var().iloc[1:]
    apart = values.var().iloc[1:] + values["budget 2048"].var()
    return pd.DataFrame({"same (ms)": paired**0.5, "own (ms)": apart**0.5, "times the runs": apart / paired})


pd.concat({metric: worth(metric) for metric in ("mean_e2el_ms", "p99_ttft_ms")}).round(1)

# %% [markdown]
# The last column is what it is worth: without common requests one would need so many times the runs for an
# interval of the same width. For a P99 it is 5 to 15 times, for a mean hundreds and more. Nothing else in
# this notebook gives as much for nothing. It works because servetwin draws arrivals and lengths from
# streams of their own: another policy does not change which requests come.
#
# ## Verdicts
#
# `compare` takes the difference in each replication, puts Student's interval around their mean, and says
# what follows:

# %%
found.frame[["mean", "difference", "sampling_low", "sampling_high", "verdict"]].round(1)

# %% [markdown]
# - **Win, loss**: the interval does not hold 0. Budget 1792 loses for sure, though perhaps only by 1.5 %.
#   Sure and important are two things; a margin (5 % of the baseline) says what counts as unimportant.
# - **Tie**: the interval holds 0 *and* lies within the margin. Short prompts first gains nothing here. That
#   is a result. It says that a difference is small, not that there is none.
# - **Needs more runs**: it holds 0 and is wider than that. That is no result. "Not significant" is not
#   equal.
# - **Identical**: every number is the baseline's to the bit. 1,024 seats were never needed, as 256 were
#   never full. It is worth a word of its own: a tie to the last digit usually means that the setting did
#   nothing.
#
# With `replications="auto"`, the default, runs are added until the verdicts are clear, or a minute is over.
# Exercise 1 shows why that must not be done in the obvious way.
#
# ## Many candidates
#
# An interval of 95 % is wrong one time in twenty. Who compares twenty candidates has twenty tries. So here
# are 400 tournaments of a baseline and twenty candidates, ten runs each, and all of them are *the same*
# queue with other seeds. Every verdict but "tie" is false.

# %%
means = queue(rng.exponential(1 / 0.7, (84_000, 99)), rng.exponential(1, (84_000, 100))).mean(axis=1)
servers = means.reshape(400, 21, 10)  # tournaments, servers, replications
off = servers[:, 1:] - servers[:, :1]


def any_differs(off, level):
    half = student.ppf((1 + level) / 2, off.shape[-1] - 1) * off.std(axis=-1, ddof=1) / off.shape[-1] ** 0.5
    return (abs(off.mean(axis=-1)) > half).any(axis=1).mean()


print(f"the first candidate is called different in {any_differs(off[:, :1], 0.95):.0%} of the tournaments")
print(f"at least one of the twenty in {any_differs(off, 0.95):.0%}")
print(f"at least one, with intervals of {100 - 5 / 20} %, in {any_differs(off, 1 - 0.05 / 20):.0%}")
luck = off.mean(axis=-1).min(axis=1).mean() / means.mean()
print(f"the best of the twenty looks {-luck:.0%} better than the baseline, in the mean")

# %% [markdown]
# In four of ten tournaments among equals somebody is called a winner or a loser. Dividing the 5 % by the
# number of comparisons (Bonferroni) ends that, and makes every interval wider. servetwin does not do it for
# you, it says for how many comparisons its intervals are. What helps as well and costs little: ask for the
# finalists again, with another `seed`. Luck does not come twice.
#
# The last line is the same thing without any verdict: **the best of many is lucky as well as good.** The
# more you try, and the noisier the runs, the more of its lead is luck.
#
# ## The model's own error
#
# All intervals so far ask: what if other requests had come? There is another question: what if the model of
# time is wrong? A profile knows its own errors. `n_model_draws` serves the same requests under draws of
# them, the same for both sides:

# %%
budgets = {name: candidates[name] for name in ("budget 2048", "budget 512", "budget 1792")}
drawn = compare(chat, budgets, metric="mean_ttft_ms", replications=10, n_model_draws=20)
drawn.plot("difference")

# %%
print("\n".join(str(drawn).splitlines()[-5:-2]))

# %% [markdown]
# The grey band is the margin. Four times as many runs would halve the blue bars. The orange ones stay as
# they are, however long you wait. For budget 512 the model is the larger part by far, so further runs are
# time thrown away; what would help is a better profile (notebook 9). And the direction is sure, the size is
# not. The last words of a line say what it would take to turn it: an error of the candidate's steps of that
# size, all in one direction.
#
# What no bar holds is what the model leaves out altogether. `docs/limits.md` lists that.
#
# ## Sweeps
#
# Now many settings at once. Say two keys matter: the budget of a step, from 256 to 8,192 tokens, and the
# seats, from 8 to 256. Sixteen points may be tried. As a *grid* they are four by four. Or they are drawn:
# at *random*; as a *Latin hypercube* (`lhs`), in which each of sixteen slices of either key has one point;
# or as a *Sobol* sequence, which spreads them evenly in both together.

# %%
seats = {"low": 8, "high": 256, "log": True, "int": True}
budget = {"low": 256, "high": 8192, "log": True, "int": True}
space = {"scheduler.max_num_seqs": seats, "scheduler.max_num_batched_tokens": budget}
lists = {"scheduler.max_num_seqs": [8, 25, 81, 256]}
lists |= {"scheduler.max_num_batched_tokens": [256, 812, 2580, 8192]}
plan = {"base": chat, "metrics": ["p99_itl_ms", "p99_ttft_ms", "attainment"]}
tried = {"grid": sweep(plan | {"vary": lists})}
for design in ("random", "lhs", "sobol"):
    tried[design] = sweep(plan | {"vary": space, "design": design, "points": 16})


# %%
figure = PrivateFigure(new_figure(1, 4, height=320, subplot_titles=list(tried), shared_yaxes=True))
for col, each in enumerate(tried.values(), start=1):
    panel(figure, col, COLORS[0], *(each.frame[key] for key in reversed(space)), name="")
figure.update_xaxes(type="log", dtick=1, title="budget (tokens)")
figure.update_yaxes(type="log", dtick=1).update_yaxes(title="seats", col=1)

# %% [markdown]
# Random points leave holes and lie on each other. The grid leaves none, but look along one axis: it has
# tried four budgets. If only the budget matters, it has made each run four times.

# %%
chosen = {name: tried[name].frame for name in ("grid", "sobol")}
itl = {name: (each["scheduler.max_num_batched_tokens"], each.p99_itl_ms) for name, each in chosen.items()}
draw(itl, "budget of a step (tokens)", "P99 of ITL (ms)", mode="markers", type="log")

# %% [markdown]
# That is nearly so here. With 81 seats and with 256 the grid has the same points twice, since never more
# than 81 were needed; where points lie lower, 8 or 25 seats keep the steps small. Sixteen Sobol points draw
# the rise with the budget; sixteen points of a grid say four times what happens at four budgets. With three
# keys or more a grid is hopeless, `lhs` or `sobol` with a number of points that you can afford is not. (For
# Sobol take a power of two.)
#
# A grid has its use where two keys are all, and a picture is wanted that can be read off. All cells with
# the same rate serve the same requests:

# %%
rates = {"workload.arrivals.rate": [3, 4, 5, 6, 7, 8]}
lists = {"scheduler.max_num_batched_tokens": [256, 512, 1024, 2048, 4096]}
cells = sweep({"base": chat, "vary": rates | lists, "metrics": ["attainment", "p99_itl_ms"]})
cells.plot()

# %% [markdown]
# How many meet the SLO falls with the rate, and at every rate the best cell is the one with 2,048: smaller
# budgets delay first tokens, and with a larger one who comes waits for longer steps to end. (The menu of
# the figure shows the P99 of ITL, which has another opinion.) A cell is a single run, with all that was
# said above: a point more or less between neighbours is nothing. `replications: 5` in a sweep gives each
# cell its interval, `compare` the paired one. Exercise 2 has both.
#
# ## Killed, and gone on
#
# A sweep of a night is interrupted sooner or later. Each finished run is a line on the disk before it
# counts. Here a sweep is killed the hard way (SIGKILL, no time to say goodbye) as soon as five lines are
# there, then the same command is called again, with two worker processes. Beside it the same sweep in
# peace, in one process:

# %%
SWEEP = """
base: tiny-cpu
vary:
  workload.arrivals.rate: {low: 1, high: 6}
  scheduler.max_num_seqs: [1, 2, 4, 8]
design: sobol
points: 32
replications: 2
"""
folder = Path(tempfile.mkdtemp())
file, killed, calm = folder / "sweep.yaml", folder / "killed", folder / "calm"
file.write_text(SWEEP)
command = [sys.executable, "-m", "simulator", "sweep", file, "-o", killed, "--workers", "2", "--quiet"]


def num_lines(path):
    return path.read_bytes().count(b"\n") if path.exists() else 0


with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
    while process.poll() is None and num_lines(killed / "points.jsonl") < 5:
        time.sleep(0.01)
    process.kill()
before = num_lines(killed / "points.jsonl")
subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
whole = sweep(file, calm, workers=1)
print("runs in the end:", num_lines(killed / "points.jsonl"))
for name in ("points.jsonl", "results.csv"):
    print(f"{name} equal to the byte:", (killed / name).read_bytes() == (calm / name).read_bytes())

# %%
# Measured: other numbers in every run.
print("lines when it was killed:", before)

# %% [markdown]
# That is a promise about more than crashes: the numbers of a run come from its point and its seed and from
# nothing else. Not from how many workers there were, in which order they ended, or how often somebody began
# anew. So a cluster may compute what a laptop will check. (`docs/sweeps.md` has Dask, Ray and shards.)
#
# ## Search
#
# A sweep does not look at what it finds. A *search* does: it asks for points near those that did well. We
# want the lowest P99 of TTFT, as long as the P99 of ITL is within 60 ms. First from 32 Sobol points, then
# from a search (TPE, by Optuna) that may try as many:

# %%
keys = list(space)
spread_out = sweep(plan | {"vary": space, "design": "sobol", "points": 32}).frame
allowed = spread_out[spread_out.p99_itl_ms <= 60]
of_sweep = allowed[keys].loc[allowed.p99_ttft_ms.idxmin()].to_dict()
aim = {"objectives": ["p99_ttft_ms:min"], "constraints": ["p99_itl_ms<=60"], "sampler": "tpe", "trials": 32}
hunt = search({"base": chat, "vary": space} | aim, progress=False)
print("sweep: ", allowed.p99_ttft_ms.min().round(1), "ms with", of_sweep, f"({len(allowed)} of 32 allowed)")
print("search:", hunt.front.p99_ttft_ms.iloc[0].round(1), "ms with", hunt.best)

# %%
again = {"best of the sweep": of_sweep, "best of the search": hunt.best}
fresh = compare(chat.with_(seed=1), again, metric="p99_ttft_ms", replications=10)
fresh.frame[["mean", "difference", "sampling_low", "sampling_high", "verdict"]].round(1)

# %% [markdown]
# On the requests by which it was chosen, the search's point is 2 % better. That alone could be luck, since
# it is the best of 32. So both serve ten other sets of requests, and there it is 4 % better, for sure (−7
# to −2 %). The search has gone closer to the edge of what is allowed: a larger budget, an ITL of 59 ms.
# Whether the limit holds on other requests as well must be looked at, too:

# %%
fresh.replications.p99_itl_ms.groupby(level="candidate", sort=False).agg(["mean", "max"]).round(1)

# %% [markdown]
# It does. With 32 points in two keys a search gains little over Sobol points. With six keys, or with runs
# of minutes, it may gain more. `docs/search.md` has the rest: several objectives, constraints, going on.
#
# ## What users get and what owners get
#
# Often there is no best. A user wants tokens quickly, the owner of the GPU wants many of them. vLLM's
# benchmarks draw one against the other: output tokens per second and *user* (1000 / mean TPOT in ms)
# against output tokens per second and *GPU*. A point is on the Pareto front if no other beats it in both.
# Here seats, budget and the number of GPUs of a server that gets more than it can serve, 20 requests a
# second:

# %%
crowd = {"workload.arrivals": {"kind": "poisson", "rate": 20.0}, "workload.num_requests": 300}
options = {"scheduler.max_num_seqs": [4, 8, 16, 32, 64, 128], "scheduler.max_num_batched_tokens": [512, 2048]}
options |= {"parallel.tensor_parallel_size": [1, 2]}
trade = {"vary": options, "metrics": ["mean_tpot_ms", "output_throughput", "median_ttft_ms"]}
offers = sweep(trade | {"base": chat.with_(**crowd), "replications": 3})
offers.plot("pareto")

# %% [markdown]
# The front is the line (means over three seeds). At its right end are two GPUs and few seats, at its left
# one GPU and many. In between many points lie close to the line without being on it. Which of them are on
# it, is that sure? The same sweep with five seeds, one run each:

# %%
fronts = [set(sweep(trade | {"base": chat.with_(**crowd, seed=seed)}).front.index) for seed in range(5)]
members = pd.Series([point for front in fronts for point in front]).value_counts()
print("points on the front of each seed:", [len(front) for front in fronts])
print(f"on all five: {(members == 5).sum()}, on some: {(members < 5).sum()}, on none: {24 - len(members)}")

# %% [markdown]
# Ten points are always on it, ten never, and four come and go. Those four differ from a neighbour by less
# than a seed does; take either. A front is drawn from points, and each has its noise.
#
# And read the axes. "Tokens per user" is what a user sees *once the answer has begun*. This load is more
# than the server can take, so the fewer the seats, the longer the wait before that, which is on neither
# axis:

# %%
offers.front[[*options, "mean_tpot_ms", "output_throughput", "median_ttft_ms"]].iloc[[0, -1]].round(
    0
).transpose()

# %% [markdown]
# The first column is the point with the fewest seats, the last the one with the most. If both matter, say
# so: a search with two objectives draws the front of any two metrics, and a constraint on TTFT takes those
# points out that nobody would wait for.
#
# ## What to take along
#
# 1. Requests of one run are not independent. Intervals go over runs; count them in runs, too.
# 2. Steady loads: long runs first, then leave out the start, by the same number in all runs.
# 3. Compare on the same requests. It is worth five times the runs or more, and costs nothing.
# 4. A tie, an identical result and an undecided one are three different things.
# 5. Many candidates make winners by chance. Ask for the finalists again with other requests.
# 6. More runs do not make the model truer. Look which of the two bars is the longer.
# 7. For a picture of two keys a grid, for more keys Sobol or a Latin hypercube, for one aim a search.
#
# **What to believe.** The queue is exact, and its counts are counts: other seeds move them by a point or
# two. The numbers of chat are one scenario at one load on one modelled GPU, with 400 requests a run; the
# factors that common requests save differ from metric to metric, as the table shows, and from load to load.
# Intervals of ten runs for a P99 lean on Student's t where values are not normal. They are good, not exact.
#
# ## Exercises
#
# Predict first, then run. Answers are in `answers/11_sweeps_and_statistics.py`.
#
# **Exercise 1.** Two servers are the same queue. You make five runs of each, look at the 95 % interval of
# the difference, and if it still holds 0 you make another one, up to forty. In how many of 1,000 such
# tournaments do you end with a false winner? What if you look only after every fifth run, or with an
# interval of 99.9 %?
#
# **Exercise 2.** Sweep the budgets 1,536, 1,792 and 2,048 of `chat` with five replications. Do the
# intervals of the mean E2EL overlap? Does that mean that nothing can be said? Ask `compare` with as many
# replications.
