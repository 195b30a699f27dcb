# %% [markdown]
# # 1. A first run
#
# **Goal.** Run two thousand chat requests through a simulated LLM server, read what comes out, say what
# limits it, follow one request all the way, and know how far to trust any of it.
#
# A quarter of an hour to read, a few seconds to run, no GPU.
#
# ## What a server does to a request
#
# A request is a prompt; the answer to it is made token by token.
#
# - **Prefill** is one pass of the model over all tokens of the prompt. It yields the first token of the
#   answer and leaves behind, for every prompt token and every layer, a *key* and a *value*. Later
#   tokens attend to these, so they are kept: the KV cache.
# - **Decode** makes every further token. Each takes a pass of its own, which computes one token and yet
#   reads all weights of the model and all keys and values of the request.
# - **A batch** shares the pass. The weights are read once however many requests take part, so a server
#   runs many requests in one pass, a *step*, and chooses anew at every step which ones.
# - **Blocks** hold the keys and values, 16 tokens each, handed out as an answer grows: nobody needs to
#   know how long it will become. When no block is free, some running request must give up its own and
#   compute them again later. It is *preempted*.
#
# All of it is a loop of three calls:
#
# ```
# batch  = scheduler.schedule(now)       # decide: who computes how many tokens in this step
# result = executor.execute(batch)       # do:     one pass over the model
# scheduler.update(batch, result, now)   # learn:  who has a token more, who is done
# ```
#
# Here `execute` is a price list of what such a pass takes on a GPU. Deciding and learning are what a
# real server does: the default policy makes the decisions of vLLM's V1 scheduler, which a test replays.
# No token is ever computed, so seven minutes of a server pass in less than a second.

# %%
import pandas as pd

from simulator import compare, simulate

# %% [markdown]
# ## Small enough to follow by eye
#
# `tiny-cpu` is forty requests on a model of 31 million parameters and one CPU core. One bar is one
# request: orange while it waits, light blue while its prompt is computed, dark blue while its answer
# grows.

# %%
tiny = simulate("tiny-cpu")
tiny.plot("timeline")

# %% [markdown]
# Now the same second, step by step. At 2.212 s request 2 arrives with a prompt of 263 tokens; requests
# 3 and 4 follow within 0.2 s.

# %%
steps = tiny.steps.assign(ms=1e3 * (tiny.steps.end - tiny.steps.start))
steps.loc[48:64, ["start", "ms", "prefill_tokens", "num_decodes", "num_running", "num_waiting"]].round(2)

# %% [markdown]
# - A step computes at most `max_num_batched_tokens` tokens, 96 in this scenario. So the prompt is cut
#   into *chunks* of 96, 96 and 71 tokens, the last of which shares its step with the first 25 of
#   request 3.
# - Steps with a prompt take 48 to 70 ms, steps that only decode 13 to 15 ms, and three decodes cost
#   little more than two. That is the whole economy of serving, and notebook 2 is about it.
# - In steps 51 and 52 request 2 already decodes. Its second and third token come 70 and 48 ms after the
#   one before, not 15, because it shares these steps with the prompts of others. Nothing is wrong: that
#   is the price of letting 3 and 4 start at once.
# - Request 4 arrives during step 50 and waits through step 51, whose 96 tokens are taken.
#
# ## A real load
#
# `chat-a100` is Llama-3.1-8B on one A100-80GB under the traffic of a chat service: arrivals and lengths
# are drawn from tables of one hour of Azure's conversations, 2023. Everything else is vLLM's default.

# %%
result = simulate("chat-a100")
print(result)

# %% [markdown]
# The block is that of `vllm bench serve`, word for word, so that you can lay a measurement beside it.
#
# - **TTFT**, time to first token: from arrival to the first token. Waiting and prefill are in it.
# - **TPOT**, time per output token: for each request, the time after the first token divided by the
#   number of tokens after the first. One number a request: does the answer come fast enough to read
#   along?
# - **ITL**, inter-token latency: every single gap between two tokens, all requests together. Its mean
#   is near that of TPOT; its P99 says how long an answer stands still now and then. Here the median gap
#   is 18 ms and one in a hundred is over 140 ms. No average shows that.
# - **E2EL**, end-to-end latency: from arrival to the last token.
# - **Throughput** is tokens or requests over the whole run. **Goodput** counts only requests that meet
#   the SLO, here TTFT within 500 ms and TPOT within 50 ms. A server that accepts everything and answers
#   too late has a fine throughput and no goodput.
#
# The last line is the verdict: 96.8 % of the requests meet both limits, 99 % were wanted. And it names
# the bottleneck. To find it, the same requests ran five more times, each time with twice of one thing:

# %%
rows = pd.DataFrame(result.summary["servetwin"]["bottleneck"]["rows"])
rows[["what", "attainment", "output_throughput"]].round(3)

# %% [markdown]
# Twice the memory for KV blocks or twice the seats changes nothing at all. Twice the arithmetic brings
# every request within the SLO; twice the memory bandwidth helps half as much. And twice the token
# budget makes it *worse*, which is no mistake: see "Change one limit" below.
#
# Throughput hardly moves whatever is doubled. The server completes what arrives; more cannot leave than
# came in. Throughput tells servers apart only when they are overloaded.
#
# ## What the figures say
#
# **Latency.** Each curve climbs to the share of requests within a time; where it crosses the dashed
# line is the share within that SLO. TTFT is missed more often, by 2.2 % of the requests; TPOT by 0.9 %.

# %%
result.plot("latency")

# %% [markdown]
# **Queue.** Waiting that comes and goes is bursts; waiting that only grows is overload. Here it comes
# and goes. TTFTs are missed where it is orange.

# %%
result.plot("queue")

# %% [markdown]
# **KV cache.** Share of the blocks that running requests hold. At its peak it is 20 %: memory is not
# what this server lacks, as the doubled runs said. Below, in grey, blocks of finished requests that are
# overwritten. They were kept in case a later prompt begins with the same tokens; in this load none
# does, so nothing is lost.

# %%
result.plot("kv")

# %% [markdown]
# **Batches.** What each step computed, and below how long it took. Decodes are few tokens but in every
# step; prompts come in bursts of up to 2,048 tokens, the budget. Steps with over 1,500 prompt tokens
# take 136 ms on average, against 17 ms for steps of decodes only, and everyone who decodes sits through
# them. The P99 of ITL is the length of such a step.

# %%
result.plot("batch")

# %% [markdown]
# ## One request's story
#
# Averages do not wait, requests do. Take the one with the longest TTFT and ask where its time went. The
# run is simulated again with an observer; the same seed gives the same run, so the seconds add up to
# the recorded latency.

# %%
ttft = result.requests.first_token - result.requests.arrival
slowest = result.requests.id[ttft.idxmax()]
print(result.explain(slowest).text(max_spans=8))

# %% [markdown]
# It waited five steps because others had used up the token budget: a burst of prompts stood before it.
# Its own prompt of 987 tokens then took two steps, the first of which had room for 595 of them. After
# that it decoded for 11 s, 3.5 s of which went into other requests' prompts. A busy server is slow for
# two reasons: those before you, and those beside you.
#
# ## Change one limit
#
# Smaller steps would stand in nobody's way for long. So cut the budget, on the same requests:

# %%
budgets = {str(n): {"scheduler.max_num_batched_tokens": n} for n in (512, 1024, 2048, 4096)}
limits = compare("chat-a100", budgets)
limits.table[["attainment", "median_ttft_ms", "p99_ttft_ms", "mean_tpot_ms", "p99_itl_ms"]].round(3)

# %% [markdown]
# The P99 of ITL falls from 143 to 47 ms, as hoped. But TTFT rises, its median from 97 to 134 ms and its
# P99 from 638 to 945 ms: a prompt now needs more steps, and each of them reads the weights and the
# decodes' KV again. Fewer requests meet the SLO, 92.4 % instead of 96.8 %.
#
# With 4,096 the picture turns: a prompt shares its step with more other prompts, and none of them gets
# its first token before all are computed. The median TTFT gains nothing, the P99 of ITL is 263 ms, and
# 95.4 % meet the SLO. Of these four, vLLM's default serves this load best, 1,024 nearly as well. For
# another load or another SLO it need not be so: that is what the simulator is for.

# %%
limits.plot("latency")

# %% [markdown]
# ## What to believe
#
# Every result carries its provenance:

# %%
print(result.summary["servetwin"]["provenance"])

# %% [markdown]
# 1. **Decisions** are as good as exact: the `chunked` policy reproduces recorded decisions of vLLM's
#    own scheduler, step by step.
# 2. **Step times are fitted from public kernel timings. No A100 was measured by us.** On kernels held
#    out of the fit a composed step is off by 2.5 %. That is not the error of an absolute time: public
#    sources disagree by 7 to 20 % about the same GPU, so nothing here is better than about ±10 %.
#    Ratios between two policies on the same profile are safer, because the error is common to both.
# 3. **Mixed steps** (a prompt chunk beside decodes) are priced as the sum of the two. That is
#    unverified on an A100. How much rests on it? The next cell counts: 11 % of the steps, but 39 % of
#    the time.
# 4. **One run is one sample.** Another seed draws other requests. Before you act on a difference of one
#    percent, repeat it with other seeds, as notebook 2 does.
#
# So trust the shape of a trade-off, and a difference of 46 against 141 ms. Do not trust one of 97.2
# against 96.4 %. `docs/limits.md` has the full list, with the direction in which each gap bends
# results.

# %%
taken = result.steps.end - result.steps.start
mixed = (result.steps.prefill_tokens > 0) & (result.steps.num_decodes > 0)
print(f"mixed: {mixed.mean():.1%} of the steps, {taken[mixed].sum() / taken.sum():.1%} of the time")
print(f"outside the measured range: {result.summary['servetwin']['extrapolated_share']:.1%} of the steps")

# %% [markdown]
# ## Exercises
#
# Predict first, then run. Answers are in `answers/01_first_run.py`.
#
# **Exercise 1.** `scheduler.max_num_seqs` is the number of seats, 256 by default. Run `chat-a100` with
# 16, 32, 64 and
# 256. Which of TTFT and TPOT gets better with fewer seats, and why do 64 and 256 not differ?
#
# **Exercise 2.** A smaller card has fewer KV blocks. With `kv.num_gpu_blocks_override`, find to the
# nearest thousand the fewest blocks with which `chat-a100` preempts nobody. With half of that, which
# latency suffers most, and what does the verdict call the bottleneck?
