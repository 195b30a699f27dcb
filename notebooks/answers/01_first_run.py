# %% [markdown]
# Answers to `01_first_run`.

# %%
from simulator import compare, simulate

columns = ["attainment", "median_ttft_ms", "p99_ttft_ms", "mean_tpot_ms", "num_preemptions"]

# %% [markdown]
# **Exercise 1.** Fewer seats: TPOT gets better and TTFT far worse. A request shares its steps with
# fewer others, and before that it waits for one of them to leave. With 16 seats the server cannot even
# keep up with the arrivals: the queue grows for as long as they last.
#
# 64 and 256 hardly differ because there are hardly ever more than 64 requests to seat. A limit that is
# not reached does nothing, which is what "twice the max_num_seqs: +0.0 %" said.

# %%
seats = compare("chat-a100", {str(n): {"scheduler.max_num_seqs": n} for n in (16, 32, 64, 256)})
print(seats.table[columns].round(2).to_string())

ttft, tpot = seats.table.median_ttft_ms, seats.table.mean_tpot_ms
assert ttft["16"] > ttft["32"] > ttft["64"] >= ttft["256"]
assert tpot["16"] < tpot["32"] < tpot["64"] <= tpot["256"]
busy = seats.results["256"].steps.num_running
assert (busy > 64).mean() < 0.001

# %% [markdown]
# **Exercise 2.** 6,000 blocks preempt nobody, 5,000 do: a little more than the peak of the figure, 20 %
# of 28,390.
#
# With 3,000 it is TTFT that suffers, by a factor of twenty in the median; TPOT even falls a little. The
# server waits with a new request until its whole prompt fits, so lack of memory shows as a queue first,
# and as preemptions second.
#
# The verdict names memory *bandwidth*, not blocks. Both help: with faster decodes a request gives its
# blocks back sooner, and that is worth more here than having twice as many. Blocks are what the
# requests wait for; what to buy is another question.

# %%
blocks = compare("chat-a100", {str(n): {"kv.num_gpu_blocks_override": n} for n in (3000, 5000, 6000)})
print(blocks.table[columns].round(2).to_string())
half = simulate("chat-a100", set={"kv.num_gpu_blocks_override": 3000})
print(half.summary["servetwin"]["verdict"])

ttft, tpot = blocks.table.median_ttft_ms, blocks.table.mean_tpot_ms
assert blocks.table.num_preemptions["6000"] == 0 < blocks.table.num_preemptions["5000"]
assert ttft["3000"] > 20 * ttft["6000"]
assert 0.9 * tpot["6000"] < tpot["3000"] < tpot["6000"]
gains = {row["what"]: row["attainment_gain"] for row in half.summary["servetwin"]["bottleneck"]["rows"]}
assert gains["memory bandwidth"] > gains["KV blocks"] > 0.5
