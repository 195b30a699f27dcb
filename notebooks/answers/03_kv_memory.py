# %% [markdown]
# Answers to `03_kv_memory`.

# %%
import pandas as pd

from simulator import compare, kv_size
from simulator.specs import get_model

# %% [markdown]
# **Exercise 1.** Two servers of eight GPUs hold most, 2.83 million tokens; eight servers of two hold 0.24
# million.
#
# Every server keeps the weights once, 141 GB. Four servers instead of eight are four copies less, and 4 x
# 141 GB at 327,680 bytes a token are the 1.72 million tokens that they gain. Two instead of four are two
# copies less, half as much.
#
# One server of sixteen saves one more copy, and would gain another 0.43 million if a token still took
# 327,680 bytes in all. But there are 8 KV heads. On sixteen GPUs each lies twice, a token takes 655,360
# bytes, and 1.62 million fit: half of 3.26.
#
# (Tokens that fit are not yet a reason to choose. GPUs that work on one step must also exchange what
# they computed.)

# %%
model, tokens, copies = get_model("llama-3.1-70b"), {}, {2: 8, 4: 4, 8: 2, 16: 1}
for gpus, servers in copies.items():
    tokens[gpus] = servers * kv_size(model, "h100-80gb-sxm", tensor_parallel_size=gpus).tokens
per_copy = model.weight_bytes() / model.kv_bytes_per_token()
print(pd.Series(tokens, name="tokens in all").rename_axis("GPUs a server").to_string())
print(f"a copy of the weights takes the place of {per_copy:,.0f} tokens")

assert max(tokens, key=tokens.get) == 8
assert [round(tokens[n] / 1e6, 2) for n in (2, 8, 16)] == [0.24, 2.83, 1.62]
assert abs(tokens[4] - tokens[2] - 4 * per_copy) < 0.01 * tokens[4]
assert abs(tokens[8] - tokens[4] - 2 * per_copy) < 0.01 * tokens[8]
assert abs(tokens[16] - (tokens[8] + per_copy) / 2) < 0.01 * tokens[16]

# %% [markdown]
# **Exercise 2.** Each reserves its prompt and what it asked for, 300 + 2,048 tokens on average, and
# 155,600 tokens are there: 66 requests. 68 run at most. With 1,024 it is 118 by the formula and 121 in
# the run, with 512 it is 192 and 198.
#
# Against paging on the same requests the throughput is 31 % lower with 2,048, 15 % with 1,024 and 9 %
# with 512. (A slot of 4,096 for each lost 50 %.) The closer the reservation is to the truth, the less
# there is to win by not reserving, and the reserving server never preempts. But 139 of the 2,000 clients
# who ask for 512 get an answer that is cut off there.

# %%
base = {"schema": 1, "name": "memory", "model": {"max_model_len": 4096}}
base["kv"] = {"gpu_memory_utilization": 0.46}
base["scheduler"] = {"max_num_seqs": 1024}
lengths = {"kind": "exponential", "prompt": 300, "output": 200}
base["workload"] = {"arrivals": {"kind": "all_at_once"}, "lengths": lengths, "num_requests": 2000}
rules = {"paged": {}, "reserved": {"scheduler.admission": ["reserve_output"]}}
pool = kv_size("llama-3.1-8b", "a100-80gb-sxm", gpu_memory_utilization=0.46).tokens
rows = {}
for asked in (2048, 1024, 512):
    runs = compare({**base, "workload": {**base["workload"], "max_tokens": asked}}, rules)
    steps, speed = runs.results["reserved"].steps, runs.table.output_throughput
    own = runs.results["reserved"].summary["servetwin"]
    rows[asked] = {"predicted": pool / (300 + asked), "ran": steps.num_running.max()}
    rows[asked] |= {"lost": 1 - speed["reserved"] / speed["paged"], "cut": own["stopped_by_length"]}
    rows[asked]["preemptions"] = own["num_preemptions"]
table = pd.DataFrame(rows).T.rename_axis("max_tokens")
print(table.round(2).to_string())

assert (abs(table.predicted / table.ran - 1) < 0.05).all()
assert list(table.predicted.round()) == [66, 118, 192]
assert list(table.ran) == [68, 121, 198]
assert list((100 * table.lost).round()) == [31, 15, 9]
assert (table.preemptions == 0).all()
assert table.cut[512] == 139
