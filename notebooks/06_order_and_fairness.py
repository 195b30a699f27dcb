# %% [markdown]
# # 6. Order and fairness
#
# **Goal.** When more wait than can be served, somebody decides who is next, and every order makes
# somebody pay. Say what each order is good for and who pays for it; when knowing lengths helps, and what
# a noisy guess of them is worth; when it is better to turn requests away; how well a small tenant can be
# protected from a large one; and what a policy may know.
#
# Twenty minutes to read, some twenty seconds to run, no GPU. Notebook 1 explains TTFT and goodput,
# notebook 2 what a step costs.
#
# An order decides who leaves the *waiting queue* next. It takes nothing away from those who already run.
# Where nobody waits, all orders are the same; so this notebook is about servers that are nearly full, or
# more than full. Overload has no steady state: the queue grows as long as it lasts, and so does every
# number in seconds. Compare the orders, and do not carry the seconds elsewhere.

# %%
import numpy as np
import pandas as pd
from scipy.stats import t as student

from simulator import ADMIT, SHED, SimulatorError, compare, load_profile, load_scenario, simulate
from simulator.experiments.compare_plots import COLORS
from simulator.experiments.figure_style import new_figure
from simulator.experiments.private_figure import PrivateFigure
from simulator.latency.base import StepFeatures


def draw(series, x, y, mode="lines"):
    figure = PrivateFigure(new_figure(height=360)).update_xaxes(title=x).update_yaxes(title=y)
    for color, (name, (xs, ys)) in zip(COLORS, series.items(), strict=False):
        figure.add_scatter(x=xs, y=ys, name=name, mode=mode, line={"color": color}, marker={"size": 5})
    return figure


# %% [markdown]
# Every table of comparisons below is repeated with other seeds. All candidates serve the same requests,
# so what is compared is a ratio within one seed. A table says "mean ± half of a 95 % interval" over the
# seeds (Student's t).


# %%
def load(rate, lengths, n=1200, **more):
    arrivals = {"kind": "poisson", "rate": rate}
    workload = {"arrivals": arrivals, "lengths": lengths, "num_requests": n, **more}
    model = {"name": "llama-3.1-8b", "max_model_len": 16384}
    return {"schema": 1, "name": "order", "model": model, "workload": workload}


def repeat(base, candidates, seeds=range(4)):
    return {seed: compare({**base, "seed": seed}, candidates).results for seed in seeds}


def figures(runs, keys, kind=float):
    flat = {(s, n): r.summary | r.summary["servetwin"] for s, each in runs.items() for n, r in each.items()}
    return pd.DataFrame(flat).T[keys].astype(kind).rename_axis(["seed", "candidate"])


def against(table, base):
    return table / table.xs(base, level="candidate").reindex(table.index, level="seed")


def interval(values):
    half = student.ppf(0.975, len(values) - 1) * values.std() / len(values) ** 0.5
    return f"{values.mean():.2f} ± {half:.2f}"


def over_seeds(table):
    return table.groupby("candidate", sort=False).agg(interval)


# %% [markdown]
# ## One seat: where theory is exact
#
# Give the server a single seat, and it is the queue of the textbooks: one server, arrivals at random at
# rate λ, independent service times S of any distribution: M/G/1. What is known of it:
#
# - **First come, first served**: the mean wait is λ E[S²] / 2 / (1 - ρ), where ρ = λ E[S] is the share of
#   time the server is busy (Pollaczek and Khinchine).
# - **Any order that does not look at the service times** has the same mean, last come, first served
#   included. Who overtakes saves what the overtaken loses.
# - **Shortest first**: who needs x waits λ E[S²] / 2 / (1 - ρ(x))², where ρ(x) is the load of those that
#   need no more than x (Cobham). No order that lets who is served finish has a smaller mean.
#
# Five seeds, prompts of 300 and answers of 50 tokens on average, both exponential. With one seat a step
# makes one token, so the answer *is* the work.

# %%
NAMES = ("fcfs", "lifo", "sjf_prompt", "srpt_oracle")
orders = {name: {"scheduler.order": name} for name in NAMES}
one_seat = load(1.1, {"kind": "exponential", "prompt": 300, "output": 50})
single = repeat({**one_seat, "scheduler": {"max_num_seqs": 1}}, orders, range(5))


def waits(name):
    return pd.concat({s: r[name].requests.scheduled - r[name].requests.arrival for s, r in single.items()})


def by_theory(run):
    served = np.sort(run.requests.finish - run.requests.scheduled)
    rate = len(served) / run.requests.arrival.max()
    busy, begun = rate * served.cumsum() / len(served), rate * (served**2).mean() / 2
    return begun / (1 - busy[-1]), (begun / (1 - busy) ** 2).mean()


first_come, shortest_first = np.mean([by_theory(each["fcfs"]) for each in single.values()], axis=0)
waited = {name: waits(name) for name in NAMES}
seat = pd.DataFrame({"mean wait (s)": {name: wait.mean() for name, wait in waited.items()}})
seat["by theory (s)"] = pd.Series({"fcfs": first_come, "lifo": first_come, "srpt_oracle": shortest_first})
seat["P99 (s)"] = {name: wait.quantile(0.99) for name, wait in waited.items()}
seat["longest (s)"] = {name: wait.max() for name, wait in waited.items()}
means = pd.DataFrame({name: wait.groupby(level=0).mean() for name, wait in waited.items()})
seat["mean, against fcfs"] = means.div(means.fcfs, axis=0).agg(interval)
seat.round(2)

# %% [markdown]
# The runs agree with theory to within 3 % in the mean of five seeds. Three things to see:
#
# - **Knowing the work nearly halves the mean wait**, to 0.55 times that of FCFS. Without knowing it no
#   order changes the mean: not `lifo`, and `sjf_prompt` hardly, for a prompt takes little time here and
#   says nothing about the answer.
# - **Few pay for the gain of many.** The longest wait grows from 17 s under FCFS to 63 s under the
#   oracle; under LIFO it is 138 s, and the mean has gained nothing.
# - **FCFS has the shortest longest wait.** If you promise a worst case and all requests are alike, take
#   it.
#
# In the figure FCFS is the highest curve on the left and the lowest on the right: most wait a little,
# nobody very long. The other three serve half of the requests sooner and have a longer tail.

# %%
ranks = {name: (np.sort(wait), 1 - np.arange(len(wait)) / len(wait)) for name, wait in waited.items()}
figure = draw(ranks, "wait x (s, log scale)", "share of requests that wait longer than x (log scale)")
figure.update_xaxes(type="log", range=[-1, 2.2], dtick=1)
figure.update_yaxes(type="log", range=[-3.5, 0], dtick=1)

# %% [markdown]
# ## 256 seats: what is the work?
#
# On a GPU with 256 seats most of an answer rides along nearly free, and a prompt does not (notebook 2).
# So what is a *short* job? By the price list, what a request adds to the time of the steps it takes part
# in, in chat and in a load with short prompts and long answers:

# %%
profile = load_profile("a100-80gb-sxm", "llama-3.1-8b")


def price(prompt, answer, context=1000):
    steps = [profile.step_time(StepFeatures.decode([context] * n)) for n in (128, 256)]
    without, whole = (profile.step_time(StepFeatures.prefill([(n, 0)])) for n in (1, prompt))
    return {"prompt (ms)": 1e3 * (whole - without), "answer (ms)": 1e3 * answer * (steps[1] - steps[0]) / 128}


chat = {"kind": "table", "name": "azure-conv"}
long_answers = {"kind": "exponential", "prompt": 300, "output": 600}
pd.DataFrame({"chat": price(1155, 211), "long answers": price(300, 600)}).T.round()

# %% [markdown]
# In chat the prompt is two thirds of the work, with long answers a seventh. Three loads: chat a little
# below what the server can do, and both well above it. `sjf_predicted` sorts by a predictor's guess: the
# true length times exp(sigma x a normal draw). With sigma 1 two thirds of the guesses are within a factor
# of 2.7 of the truth. Mean TTFT, against FCFS on the same requests:

# %%
sigmas = {f"sjf_predicted, {sigma}": sigma for sigma in (0, 0.3, 1)}
for name, sigma in sigmas.items():
    orders[name] = {"scheduler.order": "sjf_predicted", "workload.predicted_len": {"sigma": sigma}}
LOADS = {"chat, 9/s": (9, chat), "chat, 12/s": (12, chat), "long answers, 12/s": (12, long_answers)}
many = {name: repeat(load(*which), orders) for name, which in LOADS.items()}
keys = ["mean_ttft_ms", "mean_e2el_ms", "p99_ttft_ms", "oldest_wait_s", "request_throughput"]
ratios = {name: against(figures(runs, keys), "fcfs") for name, runs in many.items()}
for name, runs in many.items():
    fcfs = [each["fcfs"] for each in runs.values()]
    speed = np.mean([run.summary["request_throughput"] for run in fcfs])
    print(f"{name}: {speed:.1f}/s completed, up to {max(run.steps.num_waiting.max() for run in fcfs)} wait")
pd.DataFrame({name: over_seeds(ratio).mean_ttft_ms for name, ratio in ratios.items()})

# %% [markdown]
# **In chat the order by prompts, which anybody can see, beats the oracle that knows every answer: 0.55
# against 0.77.** With long answers it is the other way round, 0.70 against 0.56. "Shortest job first" is
# good advice once you know what the job is. An oracle that sees part of the work is no bound for a rule
# that sees another part.
#
# At 9 chats a second, where only bursts wait, the choice matters little. `sjf_prompt` saves some 12 % of
# the mean TTFT, knowing the answers saves nothing.
#
# What is a noisy predictor worth? Of the oracle's gain in mean TTFT there remains:

# %%
kept = {}
for name in ("chat, 12/s", "long answers, 12/s"):
    gain = 1 - ratios[name].mean_ttft_ms.unstack()[["srpt_oracle", *sigmas]]
    kept[name] = gain.div(gain.srpt_oracle, axis=0).agg(interval)
pd.DataFrame(kept)

# %% [markdown]
# With long answers 97 % of it survives a sigma of 0.3, and 82 % a sigma of 1: to tell long from short a
# rough guess does. In chat, where there is less to win, the same errors cost more, and four seeds do not
# say how much.
#
# Who pays? The other figures for long answers, again against FCFS:

# %%
over_seeds(ratios["long answers, 12/s"])

# %% [markdown]
# - The mean end-to-end latency gains less, 0.90: most of it is decoding, which no order shortens.
# - P99 TTFT and the longest wait are 2.8 to 4 times those of FCFS under every other order, the perfect
#   oracle included. LIFO pays that and leaves the mean where it was.
# - Who starves is served here only because arrivals end. As long as an overload lasts, LIFO and the
#   orders by size have requests that are never next.
# - Throughput is nearly the same. An order decides who waits, not how much is done.
#
# And who are they? Chat at 12 a second, mean wait by the length of the prompt. FCFS and LIFO make no great
# difference. Under `sjf_prompt` eight tenths of the requests wait less than a second on average, and the
# longest tenth 11 s. Under the oracle short and very long prompts do well and the middle pays: in this load
# those get the longest answers.

# %%
bands = {}
for name in NAMES:
    served = pd.concat([each[name].requests for each in many["chat, 12/s"].values()])
    tenth = pd.qcut(served.num_prompt.rank(method="first"), 10, labels=False)
    prompt, late = served.num_prompt.groupby(tenth), (served.scheduled - served.arrival).groupby(tenth)
    bands[name] = prompt.median(), late.mean()
x, y = "tokens in the prompt, ten equal groups of requests (log scale)", "mean wait (s, log scale)"
figure = draw(bands, x, y, "lines+markers")
figure.update_xaxes(type="log", tickvals=[100, 200, 500, 1000, 2000]).update_yaxes(type="log", dtick=1)

# %% [markdown]
# ### Some are more urgent
#
# Size is not the only reason to change places. Let 30 % of the chats come from people who want their
# first token within 1 s, the rest from a batch job that can wait 20 s. Four orders, which are one idea
# with one number: sort by arrival, but give the urgent a head start. It is 0 under `fcfs`, 10 s per level
# of priority under `aged_priority`, the difference of the two deadlines under `edf` (earliest deadline
# first), and without limit under `priority`.

# %%
people = {"name": "people", "share": 0.3, "priority": 0, "slo": {"ttft_ms": 1000}}
batch = {"name": "batch", "share": 0.7, "priority": 1, "slo": {"ttft_ms": 20000}}
both = {**load(12, chat, 1500, tenants=[people, batch]), "slo": {"ttft_ms": 20000, "tpot_ms": None}}
starts = {"fcfs": 0, "aged_priority": 10, "edf": 19, "priority": np.inf}
classes = repeat(both, {name: {"scheduler.order": name} for name in starts})
both_tails = figures(classes, ["tenants"], object).tenants.apply(pd.Series)
both_tails = both_tails[["people", "batch"]].map(lambda each: each["p99_ttft_ms"] / 1e3)
over_seeds(both_tails.add_suffix(", P99 TTFT (s)")).assign(**{"head start (s)": starts})

# %% [markdown]
# The people's P99 is about that of FCFS less the head start: 19.9 s, 11.2 s, 3.2 s, 0.7 s. The batch job
# pays little for it, as there is more of it. So deadlines protect the urgent until the backlog is longer
# than the difference of the deadlines; then they are late as well. Ageing bounds how long anybody is
# overtaken, and for that very reason protects nobody in a long overload. Strict priority does, and has no
# bound for the others.
#
# ## Turning requests away
#
# In overload some requests are served too late, whatever the order. *Admission* turns requests away
# instead, which is kinder to the client and keeps the server's time for those who can still be served in
# time. Chat at 12 requests a second, judged by 500 ms of TTFT and 50 ms of TPOT. The rules:
#
# - `queue_limit`: refuse while 5 wait.
# - `shed_late`: refuse who can no longer get a first token by the deadline.
# - `token_bucket`: a rate limit. A request costs its prompt plus what it asks for, here 2,048 tokens, and
#   25,000 tokens come in a second. That is 7.8 average chats.
#
# Goodput counts requests that meet both limits, attainment is their share of all that were sent.

# %%
rules = {"no rule": [], "queue_limit": [{"queue_limit": 5}], "shed_late": ["shed_late"]}
rules["token_bucket"] = [{"token_bucket": {"tokens_per_s": 25000, "burst": 50000}}]
doors = {}
for seats in (256, 96):
    for name, rule in rules.items():
        change = {"scheduler.admission": rule, "scheduler.max_num_seqs": seats}
        doors[f"{name}, {seats} seats"] = change
strict = {"slo": {"ttft_ms": 500, "tpot_ms": 50}}
shed = repeat({**load(12, chat), **strict}, doors)
guarded = figures(shed, ["request_goodput", "attainment", "p99_ttft_ms", "mean_tpot_ms", "rejected"])
over_seeds(guarded)

# %% [markdown]
# Without a rule 12 requests a second are sent, over 9 completed, and 0.29 are good. **Refusing a fifth of
# them raises that to 7.3 (`shed_late`), but only with 96 seats.** With 256 the rules about the queue bring
# TTFT to where it should be and win next to nothing, because 256 requests that decode beside prompts have a
# TPOT of 84 to 95 ms. The queue is not the only place where requests are in each other's way. With 96 seats
# TPOT is met, and who would have spoilt it waits outside, where a rule about the queue can see it.
#
# The rate limit keeps both, with either number of seats. But somebody has to know the right rate, and the
# right one depends on the lengths. And what it lets pass is not a fair sample: a nearly empty bucket
# still has enough for what is cheap.

# %%
passed = pd.concat([each["token_bucket, 256 seats"].requests for each in shed.values()])
passed.groupby("status").num_prompt.agg(["count", "mean"]).round().rename(columns={"mean": "mean prompt"})

# %% [markdown]
# The same over the rate of requests, one seed:

# %%
rates = (4, 6, 7, 8, 9, 10, 12)
chosen = ("no rule, 256 seats", "no rule, 96 seats", "queue_limit, 96 seats", "shed_late, 96 seats")
chosen = {name: doors[name] for name in chosen}
goodput = {rate: compare({**load(rate, chat), **strict}, chosen).table.request_goodput for rate in rates}
lines = {name: (rates, [goodput[rate][name] for rate in rates]) for name in chosen}
figure = draw(lines, "requests/s sent", "goodput (requests/s)", "lines+markers")
figure.update_yaxes(rangemode="tozero")

# %% [markdown]
# Without a rule goodput does not level off near capacity, it collapses: the server is as busy as before,
# with answers that are too late. `shed_late` keeps what it had. `queue_limit` does not, although five in
# the queue seem few: 96 seats let some 8 requests a second leave, so the last of five waits for over 0.6
# s. A smaller limit would do better here, and another one elsewhere. A rule that asks about the deadline
# needs no such number.
#
# ### Reserving for the whole answer
#
# `reserve_output` admits a request only if the KV memory would hold the longest answers that all who run
# may give. Nobody is then ever preempted. `thrash-a100` is the load for it, a model with large KV and
# long answers. A third candidate, a *watermark*, admits only while a tenth of the blocks stays free.

# %%
room = {"no rule": {}, "reserve_output": {"scheduler.admission": ["reserve_output"]}}
room["watermark 10 %"] = {"scheduler.watermark": 0.1}
thrash = repeat(load_scenario("thrash-a100").to_dict(), room)
blocks = figures(thrash, ["num_preemptions", "output_throughput", "mean_ttft_ms", "mean_e2el_ms"])
share = against(blocks, "no rule").drop(columns="num_preemptions").add_suffix(", against no rule")
over_seeds(blocks[["num_preemptions"]]).join(over_seeds(share))

# %% [markdown]
# Without a rule the 600 requests are preempted 818 times. Reserving ends that, and costs 15 % of the
# throughput and 26 % more latency: it holds memory for 2,048 tokens of answer where 1,144 come. The
# watermark ends nearly all of it and *gains* 4 %, as next to nothing is computed twice. A little room is
# the cure here, a guarantee is not.
#
# ## A large and a small tenant
#
# One request in ten comes from a *meek* tenant, the others from a *greedy* one, together 1.5 times what
# the server can do. The meek tenant's own load is 15 % of it; the overload is not its doing. Two loads,
# chat and code completion (prompts of 2,048 tokens, answers of 28). `alone` is what the meek tenant's
# requests, the very same ones, get where the other's are turned away. It is the measure of everything
# that follows.
#
# - `virtual_counters` charges each tenant for its tokens, outputs double, and serves the tenant charged
#   least (Sheng et al., 2024). With a weight of 9 the meek tenant is charged a ninth.
# - `deficit_round_robin` lets tenants take turns of 2,048 tokens.
# - Strict `priority` for the meek tenant is no fair order. It is here because no order of the two can do
#   more for it.


# %%
def only_meek(seq, ctx):
    return ADMIT if seq.tenant == "meek" else SHED


TENANTS = ({"name": "meek", "share": 0.1, "priority": 0}, {"name": "greedy", "share": 0.9, "priority": 1})
SENT = {"azure-conv": (14.2, 1500), "azure-code": (9.9, 2400)}  # requests/s, requests


def serve(kind, seed, faster=1, weight=1, **policy):
    rate, n = SENT[kind]
    tenants = [TENANTS[0] | {"weight": weight}, TENANTS[1]]
    base = load(faster * rate, {"kind": "table", "name": kind}, n, tenants=tenants)
    return simulate({**base, "seed": seed}, bottleneck=False, progress=False, **policy)


sharing = {"alone": {"admission": [only_meek]}, "fcfs": {}, "virtual_counters": {"order": "virtual_counters"}}
sharing["virtual_counters, weight 9"] = {"order": "virtual_counters", "weight": 9}
sharing |= {name: {"order": name} for name in ("priority", "deficit_round_robin")}
runs = [(kind, name, seed) for kind in SENT for name in sharing for seed in range(4)]
runs = [key for key in runs if key[:2] != ("azure-conv", "deficit_round_robin")]
shared = {(kind, name, seed): serve(kind, seed, **sharing[name]) for kind, name, seed in runs}
full = {key[::2]: run.summary["request_throughput"] for key, run in shared.items() if key[1] == "fcfs"}
full = pd.Series(full)
capacity = full.groupby(level=0, sort=False).agg([interval, "mean"])
sent = pd.DataFrame({"sent (requests/s)": {kind: rate for kind, (rate, _) in SENT.items()}})
sent.assign(completed=capacity.interval, ratio=sent.iloc[:, 0] / capacity["mean"]).round(2)

# %% [markdown]
# What a server completes in overload is its capacity; we do send 1.5 times as much. (More chats than the
# 9.3 of before is no mistake: the fuller the server, the better its batches.)
#
# The table has the P99 over the requests of all seeds, the P99 of the part of it spent in the queue, and,
# seed by seed, the P99 of TTFT as a multiple of `alone`. The first half minute, in which the seats fill,
# is left out. One row is there to explain another: `alone, half a server` has the meek tenant alone on a
# machine half as fast. (That is the same as sending twice as fast and doubling every time.)


# %%
def meek(run, slower=1):
    mine = run.requests.query("tenant == 'meek' and status == 'completed'")
    mine = slower * mine[["arrival", "scheduled", "first_token"]]
    parts = pd.DataFrame({"TTFT": mine.first_token - mine.arrival, "wait": mine.scheduled - mine.arrival})
    return parts[mine.arrival > 30]


rows = {key: meek(run) for key, run in shared.items()}
for kind, seed in full.index:
    half = serve(kind, seed, faster=2, **sharing["alone"])
    rows[kind, "alone, half a server", seed] = meek(half, slower=2)
rows = pd.concat(rows, names=["load", "candidate", "seed"])
by_seed = rows.TTFT.groupby(["load", "candidate", "seed"]).quantile(0.99).unstack("candidate")
times = by_seed.div(by_seed.alone, axis=0)
tail = rows.groupby(["load", "candidate"]).quantile(0.99).add_prefix("P99 ").add_suffix(" (s)")
tail = tail.join(
    times.stack().groupby(["load", "candidate"]).agg([interval, "min", "max"]).add_prefix("/ alone, ")
)
tail.reindex([*sharing, "alone, half a server"], level="candidate").round(2)

# %% [markdown]
# **FCFS makes the meek tenant wait over a hundred times as long as alone.** How many times says only how
# long the run was, for the queue grows until the end. It is the other's queue, and the meek tenant stands
# in it.
#
# **Virtual counters end that: 2.43 times in chat, 2.91 on code. They do not keep its P99 within twice that
# of its solo run**, with these equal weights in none of the eight runs. The last row says why. Equal
# weights promise each of two tenants half of the server. Most of the time the meek tenant needs less and
# does not notice. In a burst of its own it needs more, and a P99 is made of bursts. Half a server with
# nobody else on it gives 2.42 and 3.09 times. That is what equal shares promise, and they keep it.
#
# **With a weight of 9 it is about twice**, 2.12 and 1.97; three of the eight runs are below. Much more is
# not the order's to give: strict priority has 2.09 and 1.78. Where does the rest go? The slowest request of
# the meek tenant in chat, under strict priority:

# %%
mine = shared["azure-conv", "priority", 0].requests.query("tenant == 'meek' and arrival > 30")
slowest = mine.id[(mine.first_token - mine.arrival).idxmax()]
print(shared["azure-conv", "priority", 0].explain(slowest).text(max_spans=6))
same = shared["azure-conv", "alone", 0].requests.set_index("id").loc[slowest]
print(f"alone it had its first token after {1e3 * (same.first_token - same.arrival):.0f} ms")

# %% [markdown]
# Nobody of the other tenant was before it in the queue. It came while a step was under way, which nobody
# interrupts. Then it waited for a seat, as work that runs is not preempted for it. Then its prompt shared
# three steps with 255 decodes, where two steps of its own would have done. What is left of the factor is
# not order: it is the price of a server that others fill.
#
# `deficit_round_robin` is beside the counters on code, 2.62 against 2.91. More than a third of the prompts
# there are longer than its turn of 2,048 tokens; each of them uses up several turns at once.
#
# TTFT of the meek tenant's requests on code, one seed. Under FCFS it climbs with the queue, to two
# minutes. Under the counters it stays flat for as long as the overload lasts, and is highest where the
# meek tenant's own requests come in bursts:

# %%
dots = {}
for name in ("fcfs", "virtual_counters", "alone"):
    mine = shared["azure-code", name, 0].requests.query("tenant == 'meek'")
    dots[name] = mine.arrival, mine.first_token - mine.arrival
figure = draw(dots, "arrival (s since the run's start)", "TTFT of the meek tenant (s, log scale)", "markers")
figure.update_yaxes(type="log", dtick=1)

# %% [markdown]
# So whoever must be within twice needs a server that is not full. A rate limit keeps it so, the same for
# both tenants. It is so high that the meek tenant never notices, and together they stay a little below
# capacity:

# %%
limits, limited = {"azure-conv": 20000, "azure-code": 15000}, {}
for kind, seed in full.index:
    rule = [{"token_bucket": {"tokens_per_s": limits[kind], "burst": 50000}}]
    for name in ("fcfs", "virtual_counters"):
        run = serve(kind, seed, admission=rule, **sharing[name])
        late = meek(run).TTFT.quantile(0.99) / by_seed.alone[kind, seed]
        refused = (run.requests.query("tenant == 'meek'").status == "rejected").sum()
        speed = run.summary["request_throughput"]
        limited[kind, name, seed] = {"P99 TTFT / alone": late, "completed/s": speed, "meek refused": refused}
limited = pd.DataFrame(limited).T
limited.groupby(level=[0, 1], sort=False).agg(interval)

# %% [markdown]
# **With equal weights and a rate limit the meek tenant is within twice, 1.51 and 1.74 times, in all eight
# runs.** The price is 14 to 15 % of the throughput. But look at FCFS: with the limit it does about as well.
# It is the limit that protects here. An order is for the time in which there is none, or a wrong one.
#
# What does the greedy tenant pay for the counters, without a limit? Its mean TTFT on code:


# %%
judged = {key: run.summary["servetwin"] for key, run in shared.items() if key[1] != "alone"}
greedy = {key[1:]: own["tenants"]["greedy"] for key, own in judged.items() if key[0] == "azure-code"}
greedy = pd.DataFrame(greedy).T.mean_ttft_ms.astype(float) / 1e3
for name in ("fcfs", "virtual_counters", "virtual_counters, weight 9", "priority"):
    print(f"{name}: {greedy[name].mean():.1f} s")

# %% [markdown]
# 11 % more, and nothing for the weight. There is so little of the meek tenant that being nice to it costs
# next to nothing.
#
# ### Jain's index says the opposite
#
# Jain's index of n shares is 1 if they are equal and 1/n if one has everything. A result with tenants has
# two: `jain_service`, of the tokens each was served per weight, and `jain_latency`, of each one's mean
# latency per output token. On code:

# %%
jain = pd.DataFrame(judged).T.loc["azure-code", ["jain_service", "jain_latency"]].astype(float)
jain.groupby(level=0, sort=False).mean().round(2)

# %% [markdown]
# `jain_service` is the same for FCFS, counters and priority. These runs serve everybody to the end, so in
# all of them each tenant gets what it asked for, 10 and 90 %: the index describes the load. (With the
# weight it falls, as service is divided by it.) And `jain_latency` is a perfect 1.00 under FCFS, where
# both tenants are equally miserable. Under the counters the meek one is better off, and that counts as
# unfair.
#
# An index of equality misses what fairness is about, *demand*: who asks for less than an equal share
# should get all of it, and the others divide the rest (max-min fairness). Cut the run at 100 s, in the
# middle of the overload, and ask which share of its requests each tenant has had answered:

# %%
cut = {}
for name in ("fcfs", "virtual_counters"):
    own = serve("azure-code", 0, set={"run.horizon_s": 100}, **sharing[name]).summary["servetwin"]
    cut[name] = {who: each["completed"] / each["injected"] for who, each in own["tenants"].items()}
    cut[name] |= {"jain_service": own["jain_service"], "jain_latency": own["jain_latency"]}
pd.DataFrame(cut).T.round(2)

# %% [markdown]
# Under FCFS both have 56 to 57 %. Under the counters the meek tenant has 96 %, the rest being under way,
# and the greedy one 53 %. Two numbers a tenant, *what it asked and what it got in time*, say more than
# either index.
#
# ## What a policy may know
#
# A policy sees what a server knows: arrival, prompt, what was asked for at most, what a predictor says,
# the tenant and its priority and deadline, what was computed so far, the price list. It never sees how
# long an answer will become. That is not a matter of discipline: the true length is no part of what is
# handed to it. There is one side door, for references such as `srpt_oracle`, and it opens only in
# simulation and only for a name that says so:


# %%
def cheat(seq, ctx):
    return ctx.oracle_remaining(seq)


try:
    simulate("tiny-cpu", order=cheat)
except SimulatorError as error:
    print(error)

# %% [markdown]
# So a comparison cannot be won by looking at the answers in secret, and what wins here can run on a
# server. Notebook 7 writes an order of its own.
#
# ## What to take along
#
# 1. An order moves waiting from some requests to others. It wins in the mean only by knowing the work,
#    and a rough guess is nearly as good as the truth. On a GPU the work may be the prompt, which needs no
#    guess.
# 2. Everything but FCFS makes a few pay: three to four times the longest wait in these runs, for ever in
#    a lasting overload.
# 3. Ageing and deadlines are head starts. They protect until the backlog is longer.
# 4. In overload goodput needs refusals, and a batch small enough for the SLO.
# 5. Virtual counters protect a small tenant from a large one: less than three times its solo P99 instead
#    of more than a hundred times. Within twice is beyond equal weights, and about where strict priority
#    ends. It takes a server that is not full.
#
# **What to believe.** Every comparison is between runs on the same profile, fitted from public kernel
# timings of an A100, with 2.5 % of error on held-out kernels and no better than about ±10 % in absolute
# time. Which order wins depends on whether prompts or answers are the work, and by the price list that is
# a matter of a factor of two in chat and of six with long answers; an error of 10 % turns neither. Steps
# that mix prompts and decodes are priced as the sum of the two, which is unverified on an A100: the share
# of P99 that strict priority cannot remove rests on it. Intervals are from four or five seeds. The meek
# tenant's P99s are from 110 to 210 requests a run. That is few, and their intervals say so.
#
# ## Exercises
#
# Predict first, then run. Answers are in `answers/06_order_and_fairness.py`.
#
# **Exercise 1.** A weight of w against 1 promises the meek tenant w / (w + 1) of the server. Which P99 of
# TTFT would a server of that size give it alone, for w = 1, 2 and 9? Compare it with what virtual
# counters give on code. Why do the two part?
#
# **Exercise 2.** At which sigma does `sjf_predicted` stop paying, at 12 requests a second of long answers
# and of chat? Compare it with FCFS, and with `sjf_prompt`, which needs no predictor.
