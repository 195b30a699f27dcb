# %% [markdown]
# Answers to `01_first_run`.

# %%
from simulator import compare, simulate

columns = ["attainment", "median_ttft_ms", "p99_ttft_ms", "mean_tpot_ms", "num_preemptions"]

# %% [markdown]
# **Exercise 1.** Fewer seats: TPOT gets better and TTFT far worse. A request shares its steps with fewer
# others, and before that it waits for one of them to leave. With 16 seats the server cannot even keep up
# with the arrivals: the queue grows for as long as they last.
#
# 64 and 256 hardly differ because there are hardly ever more than 64 requests to seat. A limit that is not
# reached does nothing, which is what "twice the max_num_seqs: +0.0 %" said.

# %%
seats = compare("chat-a100", {str(n): {"scheduler.max_num_seqs": n} for n in (16, 32, 64, 256)})
print(seats.table[columns].round(2).to_string())

ttft, tpot = seats.table.median_ttft_ms, seats.table.mean_tpot_ms
assert ttft["16"] > ttft["32"] > ttft["64"] > 0.98 * ttft["256"]
assert tpot["16"] < tpot["32"] < tpot["64"] <= tpot["256"]
busy = seats.results["256"].steps.num_running
assert (busy > 64).mean() < 0.001

# %% [markdown]
# **Exercise 2.** 5,000 blocks preempt nobody, 4,000 do: near the peak of the figure, 20 % of 28,390. (It is
# a little below that peak, since a server with less memory admits a little later.)
#
# With 2,500 it is TTFT that suffers, almost fifty times as long in the median; TPOT even falls a little.
# The server waits with a new request until its whole prompt fits, so lack of memory shows as a queue first,
# and as preemptions second.
#
# The verdict names KV blocks. But memory *bandwidth* helps nearly as much: with faster decodes a request
# gives its blocks back sooner. At 3,000 blocks it is worth more than twice as many blocks. Blocks are what
# the requests wait for; what to buy is another question.

# %%
blocks = compare("chat-a100", {str(n): {"kv.num_gpu_blocks_override": n} for n in (2500, 4000, 5000)})
print(blocks.table[columns].round(2).to_string())
half = simulate("chat-a100", set={"kv.num_gpu_blocks_override": 2500})
print(half.summary["servetwin"]["verdict"])

ttft, tpot = blocks.table.median_ttft_ms, blocks.table.mean_tpot_ms
assert blocks.table.num_preemptions["5000"] == 0 < blocks.table.num_preemptions["4000"]
assert 48 < ttft["2500"] / ttft["5000"] < 50
assert 0.8 * tpot["5000"] < tpot["2500"] < tpot["5000"]
gains = {row["what"]: row["attainment_gain"] for row in half.summary["servetwin"]["bottleneck"]["rows"]}
assert gains["KV blocks"] > gains["memory bandwidth"] > 0.6
