# %% [markdown]
# # 7. Your own policy
#
# **Goal.** Write a policy of your own for every choice that a server makes, run it, and judge it:
# against what ships, on the same requests, over several seeds. Know what a policy may see, what is told
# when it is wrong and what is not, and how to hand it to somebody else so that it gives the same numbers
# there.
#
# The idea is one sentence: **a policy is a plain function that says who goes first, and the engine does
# the rest.**
#
# Twenty minutes to read, some twenty seconds to run, no GPU. Notebook 2 explains steps and budgets,
# notebook 6 orders and admission.

# %%
import hashlib
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import t as student

from simulator import ADMIT, SHED, WAIT, Scheduler, SimulatorError, compare, load_profile, load_run, simulate
from simulator.experiments.compare_plots import COLORS
from simulator.experiments.figure_style import new_figure
from simulator.experiments.private_figure import PrivateFigure
from simulator.latency.base import StepFeatures
from simulator.schedulers import unchanged_steps
from simulator.workload import generate
from simulator.workload.trace_blocks import TraceBlocks


def draw(series, x, y, mode="lines+markers"):
    figure = PrivateFigure(new_figure(height=360)).update_xaxes(title=x).update_yaxes(title=y)
    for color, (name, (xs, ys)) in zip(COLORS, series.items(), strict=False):
        figure.add_scatter(x=xs, y=ys, name=name, mode=mode, line={"color": color}, marker={"size": 5})
    return figure


# %% [markdown]
# One server for most of this notebook: Llama-3.1-8B on an A100, nine chat requests a second, which is
# about what it can do. Steps of 512 tokens keep answers fluent. Promised are a first token within 1 s
# and 50 ms a token, and *attainment* is the share of all requests sent for which both were kept.


# %%
def server(seed=0, rate=9, **workload):
    load = {"arrivals": {"kind": "poisson", "rate": rate}, "lengths": CHAT, "num_requests": 1000} | workload
    limits = {"scheduler": {"max_num_batched_tokens": 512}, "slo": {"ttft_ms": 1000, "tpot_ms": 50}}
    return {"schema": 1, "name": "own", "seed": seed, "workload": load, **limits}


CHAT = {"kind": "table", "name": "azure-conv"}


# %% [markdown]
# ## Three lines
#
# An *order* gives each waiting request a key. The smallest key is next.


# %%
def shortest(seq, ctx):
    """Shortest prompt first."""
    return seq.num_prompt


for order in ("fcfs", shortest):
    run = simulate(server(), order=order, bottleneck=False)
    ttft = run.requests.first_token - run.requests.arrival
    print(f"{run.scenario.scheduler.order}: mean TTFT {ttft.mean():.2f} s, longest {ttft.max():.1f} s")

# %% [markdown]
# That is all of it. The engine asks for the keys, admits, cuts prompts into chunks, hands out blocks and
# takes them back. The function stands where a name could stand, and its own name appears in the result.
# (It ships, too: `sjf_prompt`.)
#
# Who has a long prompt pays. A remedy is *ageing*: let each second of waiting count as 300 tokens.


# %%
def patient(seq, ctx):
    """Shortest prompt first; a second of waiting counts as 300 tokens."""
    return seq.num_prompt - 300 * (ctx.now - seq.arrival)


def aged(seq, ctx):
    """The same without a look at the clock."""
    return seq.num_prompt + 300 * seq.arrival


asked, once = (simulate(server(), order=order, bottleneck=False) for order in (patient, aged))
print("same requests, same times, to the bit:", asked.requests.equals(once.requests))
for run in (asked, once):
    own = run.summary["servetwin"]
    print(f"{run.scenario.scheduler.order}: {own['num_skipped_steps']} of {own['num_steps']} steps skipped")

# %% [markdown]
# `ctx.now` is the same for all who wait, so it changes no comparison, and the two are one order. They do
# not cost the same. A key that looks at `seq` alone is asked for once, when the request enters the
# queue. One that looks at `ctx` is asked for again, for everybody, at every step in which somebody
# waits, and no such step can be skipped. That never changes a result. Use `ctx` where you need it.
#
# What does the 300 mean? Somebody with a prompt of *x* tokens is overtaken by a shorter one only if that
# comes within *x* / 300 seconds. So ageing bounds what a long prompt pays. The wait of each request
# against its prompt, one seed:

# %%
orders = {"fcfs": "fcfs", "shortest": shortest, "aged": aged}
served = {name: simulate(server(), order=each, bottleneck=False).requests for name, each in orders.items()}
waits = {name: (each.num_prompt, each.scheduled - each.arrival) for name, each in served.items()}
longest = np.array([0, served["fcfs"].num_prompt.max()])
figure = draw(waits, "tokens in the prompt", "wait until the first step (s)", "markers")
line = {"color": COLORS[2], "dash": "dot"}
figure.add_scatter(x=longest, y=longest / 300, name="tokens / 300", mode="lines", line=line)

# %% [markdown]
# FCFS (blue) makes all wait alike, up to 4 s. With shortest first (orange) most start at once, and who has
# 4,000 tokens pays, with up to 34 s. Ageing (green) looks the same at the left and keeps those few under
# the dotted line.
#
# ## What a policy may see
#
# | | you write | it is asked | |
# |---|---|---|---|
# | order | `(seq, ctx)` -> key | on entering the queue; if it looks at `ctx`, each step | smallest is next |
# | the same with a memory | class: `key(seq, ctx)`, `served(seq, n)` | each step | smallest is next |
# | victim | `(seq, ctx)` -> key | of all who run, when blocks run out | largest goes |
# | eviction | `(block, ctx)` -> key | once, when a cached block becomes free | smallest goes |
# | admission | `(seq, ctx)` -> `ADMIT`, `WAIT`, `SHED` | on arrival, and as the first in the queue | |
# | batching | class: `schedule(now)` -> batch | each step | |
#
# | it may read | |
# |---|---|
# | `seq.` what its client said | `id arrival num_prompt max_tokens priority tenant` |
# | `seq.` what was promised or guessed | `deadline predicted_len`, `None` where there is none |
# | `seq.` how far it is | `num_computed num_output num_tokens num_blocks num_preemptions is_decode` |
# | `seq.` its place | `enqueued` in the queue, `order` among those who run |
# | `block.` | `num_hits last_used created depth num_tokens tenant recompute_time` |
# | `ctx.` the moment | `now waiting num_waiting running free_blocks num_blocks arriving` |
# | `ctx.` more about one | `cached_tokens(seq) shared_tokens(seq) service(tenant) weight(tenant)` |
# | `ctx.` prices | `step_time(step) prefill_time(num_tokens, start) recompute_time(num_tokens, start)` |
#
# What no server knows is not there: how long an answer will become. `seq.num_output` is how long it is
# so far. A rule that wants the truth, as a bound for the others, must say so in its name:


# %%
def soonest_done_oracle(seq, ctx):
    """Shortest remaining answer first, by the truth."""
    return ctx.oracle_remaining(seq)


oracle = simulate(server(), order=soonest_done_oracle, bottleneck=False)
print(f"mean TTFT {oracle.summary['mean_ttft_ms'] / 1e3:.2f} s")

# %% [markdown]
# That is a little better than FCFS and far behind the shortest prompt, which anybody can see: in chat
# the prompt is most of the work (notebook 6). To know the future does not help where it is not what
# matters.
#
# ## Same requests, several seeds
#
# All candidates of a comparison serve the very same requests: arrivals and lengths are drawn from the
# seed before any policy is asked (*common random numbers*). And a run has no chance in it: the same
# policy on the same seed gives the same result, to the bit. So a difference within one seed is the
# policy's doing, for these requests. Whether it is so for others, other seeds say.


# %%
def repeat(candidates, seeds=range(5), **load):
    return {seed: compare(server(seed, **load), candidates).results for seed in seeds}


def figures(runs, key, scale=1.0):
    found = {s: {n: (r.summary | r.summary["servetwin"])[key] for n, r in e.items()} for s, e in runs.items()}
    return scale * pd.DataFrame(found).T.rename_axis("seed").astype(float)


def means(runs, **keys):
    return pd.DataFrame({key: figures(runs, key, scale).mean() for key, scale in keys.items()})


def half(values):
    return student.ppf(0.975, len(values) - 1) * values.std() / len(values) ** 0.5


def interval(values):
    return f"{values.mean():+.1f} ± {half(values):.1f}"


named = {"fcfs": {}, "sjf_prompt": {"scheduler.order": "sjf_prompt"}, "aged": {"scheduler.order": aged}}
queues = repeat(named)
drawn = ["arrival", "num_prompt", "num_output"]
same = [each["fcfs"].requests[drawn].equals(each["aged"].requests[drawn]) for each in queues.values()]
print("fcfs and aged were sent the same requests:", same)
kept = figures(queues, "attainment", 100)
kept.round(1)

# %% [markdown]
# That is attainment in percent. Below, "±" is half of a 95 % interval over the seeds (Student's t):

# %%
print(f"aged - fcfs:       {interval(kept.aged - kept.fcfs)} points")
print(f"aged - sjf_prompt: {interval(kept.aged - kept.sjf_prompt)} points")
means(queues, mean_ttft_ms=1, p99_ttft_ms=1, oldest_wait_s=1).round(1)

# %% [markdown]
# **Verdict on the order.** Against FCFS it is worth 22 points of attainment, and against the shipped
# `sjf_prompt` nothing that five seeds could tell from zero. What it was made for it does: the oldest wait
# falls from 20.8 to 10.6 s. But the P99 of TTFT *rises*, from 3.8 to 4.3 s. Somebody has to wait while
# those few are let in.
#
# ## Admission: who is let in
#
# An *admission* rule may turn a request away, when it arrives or later. Here is one that does so on
# arrival, if the prompts before it in the queue will make it late:


# %%
def hopeless(seq, ctx):
    """Turn away whom the queue will make late, if prompts take twice their price beside decodes."""
    ahead = seq.num_prompt + sum(other.num_tokens for other in ctx.waiting)
    first_token = ctx.now + 2 * ctx.recompute_time(ahead, start=0)
    return SHED if ctx.arriving and first_token > seq.deadline else ADMIT


# %% [markdown]
# `seq.deadline` is arrival plus the 1 s of the SLO. `ctx.recompute_time` is the price of that many
# prompt tokens in full steps. The 2 is for the decodes beside them. It is a guess, from a look at a run:
# half as much again on average, and who promises something needs room.

# %%
steps = queues[0]["fcfs"].steps.query("num_waiting > 0 and prefill_tokens > 0")
full = load_profile("a100-80gb-sxm", "llama-3.1-8b").step_time(StepFeatures.prefill([(512, 0)]))
taken = (steps.end - steps.start).sum() / steps.prefill_tokens.sum()
print(f"a prompt token takes {1e6 * full / 512:.0f} us in a full step of its own kind,")
print(f"and {1e6 * taken:.0f} us in the steps in which somebody waits")

# %%
rules = {"no rule": {}, "queue_limit": {"scheduler.admission": {"queue_limit": 5}}}
rules |= {"shed_late": {"scheduler.admission": "shed_late"}, "hopeless": {"scheduler.admission": hopeless}}
doors = repeat(rules)
held = figures(doors, "attainment", 100)
held.assign(**{"hopeless - shed_late": held.hopeless - held.shed_late}).round(1)

# %%
print(f"hopeless - shed_late: {interval(held.hopeless - held.shed_late)} points")
means(doors, rejected=1, p99_ttft_ms=1, mean_tpot_ms=1).round(1)

# %%
sent = {
    name: pd.concat([each[name].requests for each in doors.values()]) for name in ("shed_late", "hopeless")
}
refused = pd.DataFrame({name: each.status == "rejected" for name, each in sent.items()})
is_long = (sent["hopeless"].num_prompt > 3500).map({True: "over 3,500 tokens", False: "others"})
(100 * refused.groupby(is_long).mean()).add_suffix(" refuses (%)").round(1).rename_axis("prompt")

# %% [markdown]
# What ships are `queue_limit`, here at five, and `shed_late`, which turns away who would be late even if
# nobody else were there.
#
# **Verdict on the rule.** The best of the four in every seed, 2.2 points above `shed_late`, although it
# turns more away, 25 of a thousand instead of 20, and all of them count as missed. It knows earlier:
# `shed_late` lets a request wait and refuses it when its second is nearly over, having made others wait
# behind it. Who pays? Long prompts, of which it refuses 23 %. They are the ones that are hardest to serve
# within a second. If you sell long prompts, set them another deadline.
#
# ## Batching: what a step computes
#
# A batching policy is a class with one method. It opens a batch, fills it from the pieces that
# `Scheduler` has, and commits it:
#
# - `take_decodes(batch)`: all who decode, a token each. `take_prefills(batch)`: a chunk of each prompt that
#   is under way. `take_running(batch)`: both, as vLLM has it.
# - `admit(batch)`: from the queue, as long as tokens, seats and blocks last.
# - `batch.budget`: tokens that may still be added. Lower it, and prompts get less.
#
# `chunked` is these pieces in a row, with a fixed budget. A small budget is for those who decode, a
# large one for those who wait for a first token. So let it depend on who is in need:


# %%
class InTime(Scheduler):
    """Steps of 512 tokens, or of 2,048 while somebody's first token is due within 0.3 s."""

    def schedule(self, now):
        batch = self.open_batch(now)
        self.take_decodes(batch)
        if not any(seq.deadline < now + 0.3 for seq in [*self.prefills, *self.ctx.waiting]):
            batch.budget = min(batch.budget, 512 - batch.num_decodes)
        self.take_prefills(batch)
        if not batch.preempted:  # a step that was short of blocks admits nobody
            self.admit(batch)
        return self.commit(batch)


sizes = {str(n): {"scheduler.max_num_batched_tokens": n} for n in (512, 768, 1024, 2048)}
sizes["InTime"] = {"scheduler.batching": InTime} | sizes["2048"]
budgets = repeat(sizes)
met = figures(budgets, "attainment", 100)
met.assign(**{"InTime - 512": met.InTime - met["512"]}).round(1)

# %%
print(f"InTime - 512:       {interval(met.InTime - met['512'])} points, within a seed")
print(f"on unlike requests: ± {np.hypot(half(met.InTime), half(met['512'])):.1f}")
means(budgets, median_ttft_ms=1, p99_ttft_ms=1, mean_tpot_ms=1, p99_itl_ms=1).round(1)

# %% [markdown]
# **Verdict on the class.** Better than every fixed budget in every seed, 5.4 points above the best of them.
# Who pays? The P99 of ITL, 142 instead of 52 ms, which this SLO does not ask about. If your readers do, it
# is no improvement.
#
# The second line says what common random numbers are worth. From seed to seed the load differs by more than
# the policies do. Had the two served unlike requests, the same ten runs would have left ± 15.5 points, and
# no verdict.
#
# ### A promise: `steady_steps`
#
# While all only decode and nobody waits, a step repeats the last one, and the simulator can take many at
# once. It does so if the policy says for how many steps it would decide the same. A policy that says
# nothing is asked at every step: slower, and always right. `unchanged_steps` has the answer for a policy
# that looks at neither the time nor its own past. `InTime` looks at deadlines as long as there is a
# prompt to compute, and only then:


# %%
class Quick(InTime):
    def steady_steps(self, batch, limit):
        return 0 if self.prefills or self.waiting.size else unchanged_steps(self, batch, limit)


class Rash(InTime):
    def steady_steps(self, batch, limit):
        return unchanged_steps(self, batch, limit)


for policy in (Quick, Rash):
    run = simulate(server(), batching=policy, set=sizes["2048"], bottleneck=False)
    skipped = run.summary["servetwin"]["num_skipped_steps"]
    print(f"{policy.__name__}: {skipped} steps skipped", end=", ")
    print(f"same result as without: {run.requests.equals(budgets[0]['InTime'].requests)}")

# %% [markdown]
# Nothing was told of `Rash`, and its result is wrong. A broken promise is noticed only where blocks or
# books break; else it makes another policy. So compare with a run without the method, as here, before
# you believe it.
#
# ## An order with a memory
#
# An order may be a class with `key` and `served`; the engine tells `served` of every token computed. Let
# two tenants take turns, whatever they send. Four in five requests are the large one's, and twelve a
# second are more than the server can do.


# %%
class TakeTurns:
    """First the tenant whose last turn is longest ago."""

    def __init__(self):
        self.turns = {}

    def key(self, seq, ctx):
        return self.turns.get(seq.tenant, 0)

    def served(self, seq, n):
        if not seq.is_decode:  # a chunk of a prompt
            self.turns[seq.tenant] = 1 + max(self.turns.values(), default=0)


two = [{"name": "large", "share": 0.8}, {"name": "small", "share": 0.2}]
turns = {name: {"scheduler.order": name} for name in ("fcfs", "virtual_counters", "deficit_round_robin")}
turns["TakeTurns"] = {"scheduler.order": TakeTurns}
shared = repeat(turns, range(4), rate=12, tenants=two)


def tails(tenant):
    own = {s: {n: r.summary["servetwin"]["tenants"][tenant] for n, r in e.items()} for s, e in shared.items()}
    return pd.DataFrame(own).T.map(lambda each: each["p99_ttft_ms"] / 1e3)


little, much = tails("small"), tails("large")
pd.DataFrame({"small, P99 TTFT (s)": little.mean(), "large, P99 TTFT (s)": much.mean()}).round(2)

# %% [markdown]
# **Verdict on the turns.** The small tenant's P99 falls from 19.3 to 1.2 s and the large one's rises by 4
# %. The shipped fair orders do the same, 0.1 s better. Here the requests of both are of one kind. Where one
# tenant's are longer, a turn each is no longer fair, and counting tokens is.
#
# ## A victim
#
# When no block is free, the *victim* with the largest key gives its blocks up and computes them again
# later. Who has made the fewest tokens loses least:


# %%
def least_done(seq, ctx):
    """Whoever has made the fewest tokens of the answer, of equals the one admitted last."""
    return (-seq.num_output, seq.order)


victims = {name: {"scheduler.victim": name} for name in ("last_admitted", "most_blocks", "fewest_blocks")}
victims["least_done"] = {"scheduler.victim": least_done}
tight = {name: each | {"kv.num_gpu_blocks_override": 3000} for name, each in victims.items()}
tight = repeat(tight, range(4), rate=6)
means(tight, num_preemptions=1, mean_e2el_ms=1e-3, attainment=100).round(2)

# %%
same = [each["least_done"].requests.equals(each["last_admitted"].requests) for each in tight.values()]
print("least_done gives the very result of last_admitted:", same)
ends = figures(tight, "mean_e2el_ms")
for name in ("most_blocks", "fewest_blocks"):
    longer = 100 * (ends[name] / ends.last_admitted - 1)
    print(f"{name}: mean E2EL {interval(longer)} % against last_admitted")

# %% [markdown]
# **Verdict on the victim.** It is vLLM's own rule in other words, to the last bit. Under FCFS everybody
# who decodes gets a token a step, so who came last has made the fewest. A new name is not a new policy;
# the test costs one line.
#
# And the choice hardly matters on this load (notebook 5 has others): `fewest_blocks` cannot be told from
# it, `most_blocks` is 2.9 % worse. (Of equal keys the first in the order of admission goes, so a key should
# end with `seq.order`.)
#
# ## An eviction
#
# A block that nobody holds stays cached until its room is needed. The *eviction* with the smallest key
# goes first. Forty applications share this server, some popular and some not, each with a system prompt
# of 2,048 tokens. Memory holds a part of them. A general policy must find out what is worth keeping. We
# know: system prompts are the first 128 blocks of 16 tokens, and nothing behind them ever comes again.


# %%
def system_last(block, ctx):
    """Whatever is behind the system prompt goes first; of equals the least recently used."""
    return (block.depth < 128, block.last_used)


def applications(seed, n=500):
    drawn = generate({"kind": "poisson", "rate": 2}, CHAT, n, seed=seed)
    which = np.random.default_rng(seed).choice(40, n, p=POPULAR / POPULAR.sum()) * 32  # ids of 64 tokens
    common = TraceBlocks(which, which + 32, np.arange(n + 1), block_size=64)
    return replace(drawn, num_prompt=drawn.num_prompt + 2048, blocks=common)


def cached(seed, eviction):
    keys = {"kv.num_gpu_blocks_override": 6000}
    return simulate(server(), workload=applications(seed), eviction=eviction, set=keys, bottleneck=False)


POPULAR = 1 / np.arange(1, 41)
evictions = {"lru": "lru", "lfu": "lfu", "s3fifo": "s3fifo", "system_last": system_last}
found = {seed: {name: cached(seed, each) for name, each in evictions.items()} for seed in range(3)}
hits = figures(found, "prefix_hit_rate", 100)
hits.round(1)

# %%
for name in ("lfu", "s3fifo"):
    print(f"system_last - {name}: {interval(hits.system_last - hits[name])} points of hit rate")
by_eviction = figures(found, "mean_ttft_ms").mean()
means(found, median_ttft_ms=1, mean_ttft_ms=1, p99_ttft_ms=1).round(1)

# %% [markdown]
# **Verdict on the eviction.** 3.0 points of hit rate above `s3fifo`, the best that ships, and 7 % less mean
# TTFT; against vLLM's `lru` 11 points and 23 %. It is better because it knows what no general policy can,
# and only for as long as that is true. Let an answer come back in a second turn, or a system prompt grow,
# and it throws away the wrong blocks.
#
# ## When it is wrong
#
# An error names the choice, the policy, the line, the step and the time. (In Python the original
# exception is its `__cause__`.) A small load with a short memory, and five slips:

# %%
small = {"workload.arrivals.rate": 9.0, "kv.num_gpu_blocks_override": 49}


def told(**policy):
    try:
        run = simulate("tiny-cpu", set=small, bottleneck=False, **policy)
        print(run.summary["servetwin"]["notes"][-1])
    except SimulatorError as error:
        print(f"{error}\n")


# %%
def misspelt(seq, ctx):
    return seq.num_promt


def no_return(seq, ctx):
    seq.num_prompt + 300 * seq.arrival


def mixed(seq, ctx):
    return seq.num_prompt if seq.num_prompt < 200 else "long"


def curious(seq, ctx):
    return ctx.oracle_remaining(seq)


def yes(seq, ctx):
    return True


for order in (misspelt, no_return, mixed, curious):
    told(order=order)
told(admission=yes)

# %% [markdown]
# Classes can do more damage. The first of these forgets to commit, the second takes a request out of the
# books without its blocks, the third computes nothing and asks to be woken again and again:


# %%
class NoCommit(Scheduler):
    def schedule(self, now):
        batch = self.open_batch(now)
        self.take_running(batch)
        self.admit(batch)
        return batch


class Leak(Scheduler):
    def schedule(self, now):
        batch = self.open_batch(now)
        self.take_running(batch)
        self.admit(batch)
        if len(self.running) > 3:
            self.running.popitem()
        return self.commit(batch)


class Waits(Scheduler):
    def schedule(self, now):
        batch = self.open_batch(now)
        self.wake_at = now + 0.001
        return batch


for batching in (NoCommit, Leak, Waits):
    told(batching=batching)


# %% [markdown]
# A leak shows late, when blocks are missing. The run is then made again with a look at the books after
# every step, which finds the first step after which they were wrong. And where nothing can be blamed but
# the whole, as in the last one, the policies in force are listed.
#
# It is no error to leave requests unserved, but the result says so:


# %%
def never(seq, ctx):
    return WAIT


told(admission=never)

# %% [markdown]
# What is *not* told: a promise as that of `Rash`; a policy that draws random numbers, whose result
# nobody can repeat; and one that writes to `seq` what it should only read. They run with your rights,
# and nothing keeps them from it.
#
# ## The best of them
#
# Three policies have won something on the same server. Do they win together? All combinations; in the
# figure five of them. Seed 0 is a hard one for everybody, and who is better is so in nearly every seed:

# %%
ours = {"order": {"scheduler.order": aged}, "admission": {"scheduler.admission": hopeless}}
ours["batching"] = {"scheduler.batching": Quick} | sizes["2048"]
mixes = {"shipped": {}} | ours
for one, other in (("order", "batching"), ("order", "admission"), ("batching", "admission")):
    mixes[f"{one} + {other}"] = ours[one] | ours[other]
mixes["all three"] = ours["order"] | ours["batching"] | ours["admission"]
together = repeat(mixes)
points = figures(together, "attainment", 100)
shown = ["shipped", "order", "batching", "admission", "all three"]
figure = draw({name: (points.index, points[name]) for name in shown}, "seed", "attainment (%)")
figure.update_xaxes(dtick=1)


# %%
def promises(run):
    done = run.requests.query("status == 'completed'")
    tpot = (done.finish - done.first_token) / (done.num_output - 1).clip(lower=1)
    return pd.Series({"TTFT": (done.first_token - done.arrival <= 1).sum(), "TPOT": (tpot <= 0.05).sum()})


each = {(s, n): promises(r) for s, runs in together.items() for n, r in runs.items()}
each = (pd.DataFrame(each).T / 10).groupby(level=1, sort=False).mean().add_suffix(" kept (%)").round(1)
against = {name: interval(points[name] - points.admission) for name in points}
means(together, attainment=100, median_ttft_ms=1).round(1).join(each).assign(against_admission=against)

# %% [markdown]
# **They do not add up.** The rule alone is best. With it the order loses 1.5 points, and the class loses
# half a point that may be chance. The order alone has 93.8 %, and together with the class, which alone is a
# gain too, 74.6 %, hardly more than nothing at all.
#
# The two middle columns say why. With steps of 512 tokens every answer is fluent; what is missed is
# TTFT, and all three policies mend the same thing. The order and the rule leave TPOT as it is (a refused
# request keeps neither promise), the class pays with it. Once another has mended TTFT there is little
# left to buy, and the price is the same. So try policies together, not one by one.
#
# One reservation: the order makes the *median* TTFT a third shorter, 178 ms instead of 271. Whether that is
# worth a point of attainment is not for the simulator to say.
#
# ### Was it luck?
#
# The winner was chosen on these five seeds, and among many. What is chosen for its good figures has some
# luck in them. So ask again on seeds that played no part, and at other rates (two seeds each):

# %%
last = {name: rules[name] for name in ("no rule", "shed_late", "hopeless")}
fresh = figures(repeat(last, range(5, 10)), "attainment", 100)
print(f"hopeless - shed_late: {interval(fresh.hopeless - fresh.shed_late)} points")

# %%
rates, four = (6, 8, 9, 10, 12), {"no rule, 2,048 tokens": sizes["2048"]} | last
ranges = pd.DataFrame({n: figures(repeat(four, range(2), rate=n), "attainment", 100).mean() for n in rates})
curves = {name: (rates, ranges.loc[name]) for name in four}
draw(curves, "requests/s sent", "attainment (%)").update_yaxes(rangemode="tozero")

# %% [markdown]
# **It was not.** At higher rates the rule is worth more: at twelve requests a second 88 % of all that were
# sent are served in time, and 74 % with `shed_late`. Up to eight it hardly matters which of the two you
# take.
#
# ## Hand it on
#
# `Comparison.save` writes the table, a report, and `winner/`, a scenario with all that it needs:

# %%
folder = Path(tempfile.mkdtemp())
final = compare(server(seed=5), last)
final.save(folder)
winner = folder / "winner"
print(f"winner: {final.winner}, in {', '.join(sorted(path.name for path in winner.iterdir()))}\n")
print((winner / "hopeless.py").read_text())

# %% [markdown]
# The function, what it imports, and nothing else. The scenario names the file, and its first line has
# the file's sha256. The same sum stands in every summary, so that two results can be told apart though
# their policies have one name:

# %%
lines = (winner / "scenario.yaml").read_text().splitlines()
print("\n".join(line for line in lines if "hopeless" in line))
digest = hashlib.sha256((winner / "hopeless.py").read_bytes()).hexdigest()
(noted,) = final.results["hopeless"].summary["servetwin"]["policies"]
print("the file's own sha256 is the one in its first line and in the summary:", end=" ")
print(digest in lines[0] and digest == noted["sha256"])

# %% [markdown]
# A policy is code, and whoever runs it runs your code. So a folder of somebody else's is not run until
# one says so:

# %%
try:
    simulate(winner)
except SimulatorError as error:
    print(str(error).replace(str(winner.resolve()), "winner"))

# %% [markdown]
# Having read it, we trust it, in Python and on the command line (there: `servetwin run winner --trust`):

# %%
again = simulate(winner, trust=True, bottleneck=False)
print("in Python the same to the bit:", again.requests.equals(final.results["hopeless"].requests))
words = ["run", winner, "--trust", "--no-report", "--quiet", "-o", folder / "again"]
done = subprocess.run([sys.executable, "-m", "simulator", *map(str, words)], check=True)
shell = load_run(folder / "again")
print("in another process:", shell.requests.equals(final.results["hopeless"].requests))

# %% [markdown]
# A policy that you keep in a file needs no Python around it: `servetwin run chat-a100 --order
# my.py:aged`, and for any other choice `--set scheduler.victim=my.py:least_done`.
#
# ## What to take along
#
# 1. A policy is a function of three lines. The engine does the rest, so you can try an idea before you have
#    defended it.
# 2. Judge on the same requests, over seeds, against what ships, and name who pays. Of the six here one is
#    better than what ships (`hopeless`), one is better as it knows more (`system_last`), one spends TPOT on
#    TTFT (`InTime`), two are about as good (`aged`, `TakeTurns`), and one is an old one under a new name.
# 3. Try together what is to run together.
# 4. Check `steady_steps` and new names against a run that cannot be wrong.
#
# **What to believe.** What the policies decide is exact. Step times are from a profile fitted to public
# kernel timings of an A100, off by 2.5 % on kernels held out of the fit and no better than ±10 % in
# absolute time. Steps that mix prompts and decodes are priced as the sum of both, which is unverified.
# All candidates share these errors. But at nine requests a second the server is at its limit, where a
# shift of a few percent moves every attainment. So trust the order of the rules, which is the same from
# 8 to 12 requests a second, and not the points. `InTime` rests on mixed steps of up to 2,048 tokens and
# is the least certain.
#
# ## Exercises
#
# Predict first, then run. Answers are in `answers/07_your_own_policy.py`.
#
# **Exercise 1.** The 2 in `hopeless` is a guess. Make a class of the rule whose argument it is, and
# compare 1, 1.5, 2, 2.5 and 3 at 9 and at 12 requests a second, over four seeds. How much did the guess
# give away? Is a factor that is too large as bad as one that is too small?
#
# **Exercise 2.** Write `Breather`: after every step with a prompt, one step that only decodes, if
# anybody decodes. What do you expect of the P99 of ITL and of TTFT at 6 requests a second, against
# `chunked`? And what may it promise in `steady_steps`? Check the promise.
