# %% [markdown]
# Answers to `14_claims`.

# %%
import numpy as np

from simulator import kv_size, load_scenario
from simulator.experiments.claims.trial import serve_trial
from simulator.workload import generate
from simulator.workload.prefixes import with_prefixes

OUT = "output_throughput"
CHAT = load_scenario("chat-a100").with_(**{"name": "claims", "model.name": "qwen2.5-7b"})

# %% [markdown]
# **Exercise 1.** A step keeps 1 + a + a^2 + a^3 tokens, which is 2 at a = 0.54. For one request a step with
# three drafts costs hardly more than one without, and the prompt is computed as before: a little above 0.54.
# For 64 the drafts fill the step: even 0.8 is not enough.

# %%
kept = {rate: 1 + rate + rate**2 + rate**3 for rate in (0.4, 0.5, 0.54, 0.6, 0.8, 0.9)}
gain = {}
for n, num_requests in ((1, 20), (64, 128)):
    arrivals = {"kind": "closed_loop", "clients": n}
    load = CHAT.with_(**{"workload.arrivals": arrivals, "workload.num_requests": num_requests})
    servers = {"none": load}
    for rate in kept:
        guess = {"method": "ngram", "num_speculative_tokens": 3, "acceptance": rate}
        servers[rate] = load.with_(speculative=guess)
    found = serve_trial(servers, replications=3, n_model_draws=2)
    gain[n] = {rate: found.ratio(OUT, rate, "none").value for rate in kept}
for rate in kept:
    print(f"{rate:.0%}: keeps {kept[rate]:.2f}; 1 request x{gain[1][rate]:.2f}, 64 x{gain[64][rate]:.2f}")
assert gain[1][0.5] < 2 < gain[1][0.6]
assert gain[64][0.8] < 2

# %% [markdown]
# **Exercise 2.** Slots of 4,096 tokens: of Llama-2-7B's KV some two dozen fit, of Qwen2.5-7B's more than the
# batch can use. So paging, which made the batch larger, has nothing left to do; `kv_size` says so beforehand.


# %%
def chats(seed):
    exponential = {"kind": "exponential", "prompt": 300, "output": 100}
    drawn = generate({"kind": "all_at_once"}, exponential, 128, seed=seed)
    return with_prefixes(drawn, np.random.default_rng(seed), [512], [1]).with_max_tokens(1024, 4096)


fits, paging = {}, {}
for model in ("llama-2-7b", "qwen2.5-7b"):
    fits[model] = kv_size(model, "a100-80gb-sxm", context=4096).requests
    keys = {"model.name": model, "model.max_model_len": 4096, "kv.enable_prefix_caching": False}
    slots = CHAT.with_(**keys, **{"kv.block_size": 4096, "scheduler.batching": "continuous"})
    servers = {"slots": slots, "blocks": slots.with_(**{"kv.block_size": 16})}
    paging[model] = serve_trial(servers, replications=3, n_model_draws=2, workload=chats)
for model, found in paging.items():
    print(f"{model}: {fits[model]} slots, paging x{found.ratio(OUT, 'blocks', 'slots').value:.2f}")
assert fits["llama-2-7b"] < 128 < fits["qwen2.5-7b"]
assert paging["llama-2-7b"].ratio(OUT, "blocks", "slots").value > 1.1
assert 0.99 < paging["qwen2.5-7b"].ratio(OUT, "blocks", "slots").value < 1.01
