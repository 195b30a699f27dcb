# %% [markdown]
# Answers to `02_batching`.

# %%
from simulator import compare, load_profile
from simulator.latency.base import StepFeatures


def load(arrivals, lengths, num_requests):
    workload = {"arrivals": arrivals, "lengths": lengths, "num_requests": num_requests}
    return {"schema": 1, "name": "batching", "workload": workload}


# %% [markdown]
# **Exercise 1.** The batch lasts as long as its longest answer, the mean answer wants a share of 1 / (1
# + 1/2 + ... + 1/n) of that: 37 % with 8 seats, 21 % with 64. The runs have 36 and 19 %.
#
# Inverted that would be factors of 2.8 and 5.2; the runs give 2.7 and 3.7. Continuous batching saves
# the padding and nothing else. The prompts take the same time under both, and the less time the decodes
# take, the more this fixed part weighs: Amdahl's law, which `at_most` below writes out. And continuous
# batching drains too, once.

# %%
burst = load({"kind": "all_at_once"}, {"kind": "exponential", "prompt": 300, "output": 200}, 1000)
for seats in (8, 64):
    policies = {name: {"scheduler.batching": name} for name in ("static", "continuous")}
    limit = {"scheduler.max_num_seqs": seats}
    runs = compare(burst, {name: policy | limit for name, policy in policies.items()})
    steps = runs.results["static"].steps
    decoding, took = steps[steps.prefill_tokens == 0], steps.end - steps.start
    useful = decoding.num_running.sum() / decoding.num_decodes.sum()
    predicted = 1 / sum(1 / k for k in range(1, seats + 1))
    prompts, decodes = took[steps.prefill_tokens > 0].sum(), took[steps.prefill_tokens == 0].sum()
    at_most = (prompts + decodes) / (prompts + useful * decodes)
    factor = runs.table.output_throughput["continuous"] / runs.table.output_throughput["static"]
    print(f"{seats} seats: wanted {useful:.0%}, predicted {predicted:.0%}")
    print(f"         factor {factor:.1f}, at most {at_most:.1f}, inverse of the share {1 / useful:.1f}")
    assert abs(useful - predicted) < 0.1 * predicted
    assert 0.85 * at_most < factor < at_most < 1 / useful

# %% [markdown]
# **Exercise 2.** By the profile 576 tokens fit into 50 ms beside 30 decodes, barely. The run says 55
# ms: contexts are longer than 1,000 tokens, and sometimes more than 30 requests decode. So leave a
# margin: 512.
#
# And one of the stairs of the price list lies between the two: these 64 tokens cost 9 ms, the 64 before
# them 2 ms. So 576 is worse than 512 in ITL *and* in TTFT. Choose budgets just below a stair.
#
# Against 2,048 the 512 tokens cost 36 % more TTFT in the median and 35 % at the P99.

# %%
profile = load_profile("a100-80gb-sxm", "llama-3.1-8b")
thirty, price = StepFeatures.decode([1000] * 30), {}
for budget in range(256, 2049, 64):
    chunk = StepFeatures.prefill([(budget - 30, 0)])
    price[budget] = 1e3 * profile.step_time(StepFeatures(*map(sum, zip(thirty, chunk, strict=True))))
largest = max(budget for budget, ms in price.items() if ms <= 50)
print(f"by the profile: {largest} tokens, {price[largest]:.1f} ms; 512 tokens, {price[512]:.1f} ms")

chat = load({"kind": "poisson", "rate": 5}, {"kind": "table", "name": "azure-conv"}, 1500)
budgets = compare(chat, {str(n): {"scheduler.max_num_batched_tokens": n} for n in (512, 576, 2048)}).table
print(budgets[["median_ttft_ms", "p99_ttft_ms", "p99_itl_ms"]].round(1).to_string())

assert largest == 576
assert budgets.p99_itl_ms["512"] <= 50 < budgets.p99_itl_ms["576"]
assert [round(price[n] - price[n - 64]) for n in (512, 576)] == [2, 9]
assert (budgets.loc["512"] < budgets.loc["576"])[["median_ttft_ms", "p99_ttft_ms", "p99_itl_ms"]].all()
assert round(100 * (budgets.median_ttft_ms["512"] / budgets.median_ttft_ms["2048"] - 1)) == 36
assert round(100 * (budgets.p99_ttft_ms["512"] / budgets.p99_ttft_ms["2048"] - 1)) == 35
