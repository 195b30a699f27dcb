# %% [markdown]
# Answers to `11_sweeps_and_statistics`.

# %%
import numpy as np
from scipy.stats import t as student

from simulator import compare, load_scenario, sweep

# %% [markdown]
# **Exercise 1.** Who looks after every run has 36 chances to be fooled, and takes the first. The looks
# depend on each other (the next one has all runs of the last), so it is not 1 - 0.95 ** 36, but it is
# several times the 5 % that the interval seems to promise. Looking after every fifth run helps a little.
# What helps is an interval for the looks that is much stricter than the verdict's: that is why
# `replications="auto"` ends early only if 99.9 % exclude 0, or if the interval is narrow enough whatever it
# holds.


# %%
def queue(gaps, service):
    wait = np.zeros_like(service)
    for i in range(1, service.shape[-1]):
        wait[..., i] = np.maximum(0, wait[..., i - 1] + service[..., i - 1] - gaps[..., i - 1])
    return wait + service


def excludes_0(off, num, level):
    half = student.ppf((1 + level) / 2, num - 1) * off[:, :num].std(axis=1, ddof=1) / num**0.5
    return abs(off[:, :num].mean(axis=1)) > half


rng = np.random.default_rng(3)
means = queue(rng.exponential(1 / 0.7, (80_000, 99)), rng.exponential(1, (80_000, 100))).mean(axis=1)
one, other = means.reshape(2, 1000, 40)  # servers, tournaments, replications
plans = {"once, after forty": [40], "after every run": range(5, 41), "after every fifth": range(5, 41, 5)}
false = {}
for level in (0.95, 0.999):
    for name, looks in plans.items():
        ended = np.array([excludes_0(one - other, num, level) for num in looks]).any(axis=0)
        false[name, level] = ended.mean()
        print(f"{100 * level:g} %, looked {name}: {ended.mean():.1%} false winners")

assert 0.03 < false["once, after forty", 0.95] < 0.07
assert false["after every run", 0.95] > 3 * 0.05
assert false["after every run", 0.95] > false["after every fifth", 0.95] > 2 * 0.05
assert false["after every fifth", 0.999] < 0.01

# %% [markdown]
# **Exercise 2.** They overlap almost wholly. Each interval says how far the mean of *one* budget moves with
# the requests, and that is much. But all budgets served the same requests, and there 2,048 is ahead of both
# for sure, of 1,536 by next to nothing. Overlapping intervals say nothing against a difference. (Intervals
# that do not overlap say that there is one; it is only the other direction that fails.)
#
# That 1,792 is behind *both* its neighbours is no noise, then. Statistics say that it is so; why, they do
# not.

# %%
chat = load_scenario("chat-a100").with_(
    **{"workload.arrivals": {"kind": "poisson", "rate": 6.0}, "workload.num_requests": 400}
)
budgets = [2048, 1792, 1536]
vary = {"scheduler.max_num_batched_tokens": budgets}
rows = sweep({"base": chat, "vary": vary, "replications": 5, "metrics": ["mean_e2el_ms"]}).frame
print(rows[["mean_e2el_ms", "mean_e2el_ms_low", "mean_e2el_ms_high"]].round(0).to_string())

candidates = {str(size): {"scheduler.max_num_batched_tokens": size} for size in budgets}
found = compare(chat, candidates, metric="mean_e2el_ms", replications=5)
print(found.frame[["difference", "sampling_low", "sampling_high", "verdict"]].round(0).to_string())

assert rows.mean_e2el_ms_low.max() < rows.mean_e2el_ms_high.min()
assert found.verdicts == {"1792": "loss", "1536": "loss"}
assert found.frame.difference["1792"] > found.frame.difference["1536"]
