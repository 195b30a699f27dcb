"""The notebooks run, say what their cells compute, and show what running them shows.

The source of a notebook is its .py file, cells marked as py:percent has it; the .ipynb is what
`make notebooks` made of it. Nothing here needs jupyter, except the slow test. What a cell shows is not
compared if it measures on the wall clock: such a cell begins with MEASURED.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import io
import itertools
import json
import linecache
import re
import socket
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pytest
from plotly.graph_objects import Figure

from simulator import Block, Context, Sequence
from simulator.latency.profile_file import SHIPPED

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"
SOURCES = sorted(FOLDER.glob("[0-9][0-9]_*.py"))
BOOKS = [source.stem for source in SOURCES]
_numbers = itertools.count(1)
STUDIES = ("02", "03", "04", "05", "06", "07", "08", "09", "10", "11", "12", "13", "14")  # many runs each
ON_AN_ENGINE = ("08",)
WITH_A_SEARCH = ("11",)
MEASURED = "# Measured: other numbers in every run."
WITH_LONG_CODE = ("07_your_own_policy", "08_two_clocks", "12_parallel_and_disaggregated")
"""Policies and loops are what these are about."""


def marks(book: str) -> list[pytest.MarkDecorator]:
    """Say when a notebook is run."""
    needs_torch = book.startswith(ON_AN_ENGINE) and importlib.util.find_spec("torch") is None
    needs_optuna = book.startswith(WITH_A_SEARCH) and importlib.util.find_spec("optuna") is None
    skips = [pytest.mark.skip("no torch")] * needs_torch + [pytest.mark.skip("no optuna")] * needs_optuna
    return [pytest.mark.slow] * book.startswith(STUDIES) + skips


RUNS = [pytest.param(path, marks=marks(path.stem)) for path in SOURCES]
ANSWERS = sorted((FOLDER / "answers").glob("*.py"))

QUOTES: dict[str, list[str]] = {
    "01_first_run": [
        "Steps with a prompt take {steps.ms[48:53].min():.0f} to {steps.ms[48:53].max():.0f} ms",
        "steps that only decode {steps.ms[53:65].min():.0f} to {steps.ms[53:65].max():.0f} ms",
        "median gap is {result.summary['median_itl_ms']:.0f} ms",
        "{100 * result.summary['servetwin']['attainment']:.1f} % of the requests meet both limits",
        "by {100 * (ttft > 0.5).mean():.1f} % of the requests",
        "At its peak it is {100 * result.summary['servetwin']['kv_usage_peak']:.0f} %",
        "take {1e3 * taken[result.steps.prefill_tokens > 1500].mean():.0f} ms on average, "
        "against {1e3 * taken[result.steps.prefill_tokens == 0].mean():.0f} ms for steps of decodes only",
        "prompt of {result.explain(slowest).num_prompt} tokens then took two steps",
        "decoded for {result.explain(slowest).latency - ttft.max():.0f} s, "
        "{result.explain(slowest).slowed:.1f} s of which",
        "P99 of ITL falls from {limits.table.p99_itl_ms['2048']:.0f} to "
        "{limits.table.p99_itl_ms['512']:.0f} ms",
        "its median from {limits.table.median_ttft_ms['2048']:.0f} to "
        "{limits.table.median_ttft_ms['512']:.0f} ms and its P99 from "
        "{limits.table.p99_ttft_ms['2048']:.0f} to {limits.table.p99_ttft_ms['512']:.0f} ms",
        "{100 * limits.table.attainment['512']:.1f} % instead of "
        "{100 * limits.table.attainment['2048']:.1f} %",
        "P99 of ITL is {limits.table.p99_itl_ms['4096']:.0f} ms, and "
        "{100 * limits.table.attainment['4096']:.1f} % meet the SLO",
        "{100 * mixed.mean():.0f} % of the steps, but "
        "{100 * taken[mixed].sum() / taken.sum():.0f} % of the time",
        "97.2 against {100 * round(limits.table.attainment['1024'], 3):.1f} %",
    ],
    "02_batching": [
        "{gpu.flops / 1e12:.0f} TFLOP/s and reads {gpu.hbm_bandwidth / 1e12:.2f} TB/s",
        "{gpu.flops / gpu.hbm_bandwidth:.0f} FLOP per byte, the ridge",
        "One decode takes {costs.ms['1 decodes']:.1f} ms",
        "reads {2 * (layers + head) / 1e9:.0f} GB to make a single token, and uses "
        "{100 * costs['TFLOP/s']['1 decodes'] / 312:.1f} % of its arithmetic",
        "64 decodes take {costs.ms['64 decodes']:.1f} ms",
        "for {costs.ms['64 decodes'] / costs.ms['1 decodes']:.1f} times the time",
        "takes {costs.ms['prompt of 2,048']:.0f} ms and "
        "{costs['us/token']['prompt of 2,048']:.0f} us a token",
        "are {2e3 * (layers + head) / gpu.hbm_bandwidth:.1f} ms at full bandwidth",
        "the host adds {1e3 * profile.host.per_step} ms",
        "{token_kv * context / 1e6:.0f} MB at 1,000 tokens",
        "Each decode adds {(2 * (layers + head) + pair * context) / 1e9:.1f} GFLOP",
        "Continuous batching gives {speed['continuous'] / speed['static']:.1f} times the output of static",
        "{100 * useful:.0f} % were wanted",
        "with {decoding.num_decodes.max()} requests where {runs['continuous'].num_running.max()} seats",
        "in the median and {sharing.table.p99_ttft_ms['prefill_first']:.0f} against "
        "{sharing.table.p99_ttft_ms['chunked']:.0f} at the P99",
        "better TTFT, {sharing.table.median_ttft_ms['prefill_first']:.0f} against "
        "{sharing.table.median_ttft_ms['chunked']:.0f} ms in the median",
        "its P99 is {sharing.table.p99_itl_ms['prefill_first']:.0f} ms against "
        "{sharing.table.p99_itl_ms['chunked']:.0f}.",
        "mean TPOTs, {sharing.table.mean_tpot_ms['prefill_first']:.1f} and "
        "{sharing.table.mean_tpot_ms['chunked']:.1f} ms",
        "{['', 'Ten steps'][last - first == 9]} of prompts in a row",
        "Some {-apart.median_ttft_ms.median():.0f} ms of TTFT",
        "to within {100 * abs(chunks.p99_itl_ms / full - 1)[:8].max():.0f} %",
        "by {100 * chunks.attainment['1024']:.0f} %; with 256 only by {100 * chunks.attainment['256']:.0f} %",
    ],
    "03_kv_memory": [
        "DeepSeek-V3, with {deepseek.num_params / 1e9:.0f} billion",
        "has {size.memory_bytes / 2**30:.2f} GiB, which are {size.memory_bytes / 1e9:.2f} GB",
        "{100 * (2**30 / 1e9 - 1):.1f} % more than a GB",
        "the pool's {size.pool_bytes / 2**30:.2f} GiB as GB and {size.requests - misread} requests of "
        "{size.requests} are gone",
        "not twice but {ranks[1].tokens / ranks[0].tokens:.1f} times the tokens",
        "From 8 to 16 it gains only {100 * (ranks[3].tokens / ranks[2].tokens - 1):.0f} %",
        "in one piece, {100 * paging.wasted[4096]:.0f} % of the memory holds nothing; in blocks of 16, "
        "{100 * paging.wasted[16]:.1f} %. The same card runs {paging['most at once'][16]} instead of "
        "{paging['most at once'][4096]} requests at once and makes "
        "{paging['output tokens/s'][16] / paging['output tokens/s'][4096]:.1f} times the tokens",
        "costs {100 * (1 - paging['output tokens/s'][16] / paging['output tokens/s'][1]):.1f} % of the "
        "throughput that blocks of a single token have",
        "The same {samples.num_used} blocks",
        "The first {pool[4]:.0f} GB bring {capacity['output tokens/s'].iloc[4]:,.0f} tokens a second, the "
        "next {pool[7] - pool[4]:.0f} another {capacity['output tokens/s'].iloc[[4, 7]].diff().iloc[1]:.0f}, "
        "and {pool[9] - pool[7]:.0f} more on top of that only "
        "{capacity['output tokens/s'].iloc[[7, 9]].diff().iloc[1]:.0f}",
        "Up to {pool[7]:.0f} GB the price list is right to within "
        "{100 * abs(curves['16 bits, by the price list'][1] / speeds['16 bits'].iloc[:-2] - 1).max():.0f} %",
        "preempted {capacity.preempted.iloc[0]:,} times",
        "{100 * seats.table.output_throughput.iloc[0] / capacity['output tokens/s'].iloc[9]:.0f} % of the "
        "throughput at less than half the TPOT",
        "requests of 8,000 tokens only {size.tokens // 8000} fit",
        "A factor of {gains.iloc[:, 0].min():.2f} to {gains.iloc[:, 0].max():.2f} with {pool[1]:.1f} GB, "
        "and {gains.iloc[:, 1].min():.2f} to {gains.iloc[:, 1].max():.2f} with {pool[9]:.0f}",
        "found in the cache: {100 * cached.prefix_hit_rate.iloc[-1]:.1f} %",
        "median TTFT falls by {medians['without'][1][0] - medians['with prefix caching'][1][0]:.0f} ms",
        "falls by {medians['without'][1][4] - medians['with prefix caching'][1][4]:.0f}, from "
        "{medians['without'][1][4]:.0f} to {medians['with prefix caching'][1][4]:.0f} ms",
        "Mean TPOT falls from {cached.mean_tpot_ms['without', 5]:.0f} to "
        "{cached.mean_tpot_ms['with prefix caching', 5]:.0f} ms",
        "P99 of {cached.p99_ttft_ms['without', 5.5] / 1e3:.0f} s",
        "falls from {100 * cached.kv_usage_mean['without', 5]:.0f} to "
        "{100 * cached.kv_usage_mean['with prefix caching', 5]:.0f} %",
        "TTFT is {ratios.median_ttft_ms.min():.2f} to {ratios.median_ttft_ms.max():.2f} times as long",
        "{server.requests.num_prompt.mean() / 1e3:.0f},000 tokens on average",
        "would be {agents.median_ttft_ms['agentic-a100', 'without'] / 1e3:.0f} s instead of "
        "{agents.median_ttft_ms['agentic-a100', 'with prefix caching'] / 1e3:.2f} s. Their P99 with "
        "caching is {agents.p99_ttft_ms['agentic-a100', 'with prefix caching'] / 1e3:.0f} s",
        "overwritten too, {own.evicted_blocks.iloc[0]:,} of them",
    ],
    "04_prefix_and_eviction": [
        "LRU finds {100 * replay.table.hit_rate[2]:.1f} % of the blocks, Belady "
        "{100 * replay.table.hit_rate[34]:.1f} %, and a cache without limit {about.split()[-1][:-1]} %",
        "S3-FIFO goes {100 * closed.s3fifo[card]:.0f} % of the way, four others "
        "{100 * closed.lfu[card]:.0f} %, GDSF {100 * closed.gdsf[card]:.0f} %",
        "LFU finds {(timed.hits['lfu'] - timed.hits['lru']).mean():.1f} points more",
        "median TTFT falls by "
        "{100 - 100 * (timed['median TTFT']['lfu'] / timed['median TTFT']['lru']).mean():.0f} %",
        "by {(alone['s3fifo'] - alone['lfu']).mean():.1f} points over LFU",
        "From {(gain.LFU - gain.LRU)[0.5].mean():.1f} points at 0.5 requests a second, the lead of LFU falls "
        "to {(gain.LFU - gain.LRU)[2.5].mean():.1f} at 2.5, where running requests hold "
        "{gain.iloc[:, 2][2.5].mean():.0f} % of the blocks",
        "though LFU loses {coded.groupby(level=[0, 1]).mean().diff().iloc[1, 1]:.1f} points to LRU and not "
        "{coded.groupby(level=[0, 1]).mean().diff().iloc[1, 0]:.1f}",
        "It promises LRU {coded.groupby(level=[0, 1]).mean().iloc[3, 0]:.0f} % and LFU "
        "{coded.groupby(level=[0, 1]).mean().iloc[2, 0]:.0f}; the server finds "
        "{coded.groupby(level=[0, 1]).mean().iloc[3, 1]:.0f} and "
        "{coded.groupby(level=[0, 1]).mean().iloc[2, 1]:.0f} %",
        "A missed history of 65,000 tokens takes {prices['compute (s)'][65536]:.0f} s to compute",
        "LRU finds {parts.iloc[:, 0].mean():.0f} % in the recorded order, {parts.iloc[:, 1].mean():.0f} % in "
        "the order as served, and {parts.server.mean():.0f} % on the server",
        "Belady's rule would find only {parts.iloc[:, 2].mean():.0f} %",
        "The hits do not depend on the link: {middle.iloc[2:, 0].mean():.1f} % with any",
        "a mean TTFT of {ratios[0.5].min():.1f} to {ratios[0.5].max():.1f} times that of no host",
        "it is half, {ratios[1].min():.2f} to {ratios[1].max():.2f} times",
        "{sessions[0].num_prompt.mean() / 1e3:.0f},000 tokens on average: "
        "{74_000 * model.kv_bytes_per_token() / seconds(74_000) / 1e9:.2f} GB/s",
        "With 25 GB/s the mean TTFT is {ttft[25]:.1f} instead of {ttft['none']:.1f} s, mean TPOT "
        "{middle['TPOT (ms)'][25]:.0f} instead of {middle['TPOT (ms)']['none']:.0f} ms",
        "{sessions[0].num_prompt.mean() * model.kv_bytes_per_token() / 25e9:.1f} s for a history at 25 GB/s",
        "{light.iloc[0, 0]:.1f} % of the tokens are found without a host",
        "its steps are held back for {light.iloc[1, 6]:.0f} s in all, and the mean TTFT rises by "
        "{100 * (light.iloc[1, 2] / light.iloc[0, 2] - 1):.0f} %. With 25 GB/s it is "
        "{light.iloc[2, 6]:.0f} s",
    ],
    "05_preemption_victims": [
        "and {own['usable_blocks']:,} blocks of 16 tokens fit. {len(requests)} requests arrive at "
        "{thrash.workload.arrivals['rate']} a second, with prompts of "
        "{thrash.workload.lengths['prompt']['mean']} and answers of "
        "{thrash.workload.lengths['output']['mean']:,} tokens",
        "It waits {life['to'][1]:.0f} s for room",
        "and {life.tokens[3] + 1} tokens later its blocks are gone",
        "{life['to'][4] - life['from'][4]:.1f} s later, and others have overwritten its blocks: "
        "{life.tokens[5]} tokens are computed again",
        "It gets {life.tokens[6] + 1} tokens further",
        "In {life['from'].iloc[-2] - life['from'][2]:.0f} s it gets "
        "{victim.num_output - life.tokens.iloc[-1] - 1} tokens further",
        "computed {life.tokens.sum():,} tokens where {victim.num_prompt + victim.num_output - 1:,} would",
        "Some {crowd:.0f} requests run",
        "a new block every 16 steps: {crowd / 16:.0f} blocks a step",
        "only {100 * own['recompute_s'] / busy:.1f} % of the time",
        "mean E2EL {changes(runs).iloc[2, 0]} %, tax {costs(runs)['tax (%)'].iloc[2]:.1f} instead of "
        "{costs(runs)['tax (%)'].iloc[0]:.1f} %. It preempts "
        "{100 * costs(runs).preemptions.iloc[2] / costs(runs).preemptions.iloc[0] - 100:.0f} % more often",
        "the better mean E2EL by {shown(-change(runs, 'mean_e2el_ms'))[3][1:]} %",
        "P99 of TTFT is {change(runs, 'p99_ttft_ms').mean().iloc[3]:.0f} ± "
        "{interval(change(runs, 'p99_ttft_ms')).iloc[3]:.0f} and P99 of ITL "
        "{change(runs, 'p99_itl_ms').mean().iloc[3]:.0f} ± "
        "{interval(change(runs, 'p99_itl_ms')).iloc[3]:.0f} % worse",
        "will become is worth {shown(-change(runs, 'mean_e2el_ms'))[5][1:]} %",
        "Swapping gives {-change(runs, 'mean_e2el_ms').mean()[6:].max():.0f} to "
        "{-change(runs, 'mean_e2el_ms').mean()[6:].min():.0f} %",
        "{costs(runs).recompute_s[:6].min():.0f} to {costs(runs).recompute_s[:6].max():.0f} s of computing "
        "become {costs(runs).swap_stall_s[6:].min():.0f} to {costs(runs).swap_stall_s[6:].max():.0f} s",
        "falls by {-change(runs, 'p99_itl_ms').mean()[6:].max():.0f} to "
        "{-change(runs, 'p99_itl_ms').mean()[6:].min():.0f} %",
        "by {change(runs, 'output_throughput').mean()[:6].abs().max():.1f} % with another victim, by "
        "{change(runs, 'output_throughput').mean()[6:].min():.1f} to "
        "{change(runs, 'output_throughput').mean()[6:].max():.1f} % with swap",
        "The table has {5 * (len(cases) - 1)} intervals",
        "makes answers {change(linked, 'mean_e2el_ms').mean().iloc[1]:.0f} % slower",
        "at 50 it gains {-change(linked, 'mean_e2el_ms').mean().iloc[3]:.0f} %",
        "takes {losses(runs)['at a time'].iloc[2]:.0f} tokens at a time and needs "
        "{losses(runs).preemptions.iloc[2]:.0f} victims, most_blocks takes "
        "{losses(runs)['at a time'].iloc[3]:,.0f} and needs {losses(runs).preemptions.iloc[3]:.0f}",
        "{losses(runs)['tokens lost'].iloc[2].round(-3):,.0f} against "
        "{losses(runs)['tokens lost'].iloc[3].round(-3):,.0f} tokens",
        "into {shown(change(parts['alike, caching off'], 'mean_e2el_ms'))[2][1:]} % worse",
        "a tax of {losses(parts['mixed, caching off'])['tax (%)'].iloc[0]} %",
        "it down to {losses(parts['mixed, caching off'])['tax (%)'].iloc[1]} % and makes the mean E2EL "
        "{shown(-change(parts['mixed, caching off'], 'mean_e2el_ms'))[1][1:]} % better",
        "a catastrophe, {losses(parts['mixed, caching off'])['tax (%)'].iloc[2]:.0f} %. It throws "
        "{losses(parts['mixed, caching off'])['at a time'].iloc[2].round(-2):,.0f} tokens",
        "finds {losses(parts['mixed, caching on'])['found again (%)'].iloc[2]:.0f} % of them again, and the "
        "taxes are {losses(parts['mixed, caching on'])['tax (%)'].iloc[0]}, "
        "{losses(parts['mixed, caching on'])['tax (%)'].iloc[1]} and "
        "{losses(parts['mixed, caching on'])['tax (%)'].iloc[2]} %",
        "{costs(tuned)['tax (%)']['watermark 0.05']:.1f} % instead of {costs(tuned)['tax (%)'].iloc[0]:.1f}",
        "mean E2EL −{shown(-change(tuned, 'mean_e2el_ms'))[7][1:]} %, P99 of ITL −"
        "{-change(tuned, 'p99_itl_ms').mean()['watermark 0.05']:.0f} ± "
        "{interval(change(tuned, 'p99_itl_ms'))['watermark 0.05']:.0f} %, output "
        "{shown(change(tuned, 'output_throughput'))[7]} %",
        "5 % of the blocks are {own['num_gpu_blocks'] // 20}, room for "
        "{own['num_gpu_blocks'] // 20 / round(crowd / 16):.0f} steps",
        "let in {lives['watermark 0.05']['to'][1] - life['to'][1]:.0f} s later",
        "SRPT brings {change(tuned, 'attainment', percent=False).mean().iloc[1]:.0f} to "
        "{change(tuned, 'attainment', percent=False).mean().iloc[2]:.0f} points more",
        "P99 of TTFT is {change(tuned, 'p99_ttft_ms').mean().iloc[1]:.0f} % worse. The mean gains "
        "{-change(tuned, 'mean_e2el_ms').mean().iloc[1]:.0f} to "
        "{-change(tuned, 'mean_e2el_ms').mean().iloc[2]:.0f} %",
        "do not need: {change(tuned, 'mean_e2el_ms').mean().iloc[3]:.0f} % slower",
        "costs {change(parts['mixed, caching on'], 'mean_e2el_ms').mean().iloc[5]:.0f} % with caching, and "
        "without caching answers take "
        "{1 + change(parts['mixed, caching off'], 'mean_e2el_ms').mean().iloc[5] / 100:.1f} times as long",
        "But {-change(tuned, 'attainment', percent=False).mean()['112 seats']:.0f} points fewer",
        "5 % cost more than they save, {shown(change(parts['mixed, caching on'], 'mean_e2el_ms'))[4][1:]} %",
        "agree to within {100 * abs(simulated.preemptions / measured.preemptions - 1).max():.0f} %",
        "The gain in output is {100 * measured.iloc[2, 1] / measured.iloc[0, 1] - 100:.0f} % there and "
        "{100 * simulated.iloc[2, 1] / simulated.iloc[0, 1] - 100:.0f} % here",
        "−{-change(tuned, 'mean_e2el_ms').mean()['watermark 0.02']:.0f} % mean E2EL and "
        "−{-change(tuned, 'p99_itl_ms').mean()['watermark 0.02']:.0f} % ITL P99 on long answers; mean E2EL "
        "−{-change(parts['mixed, caching on'], 'mean_e2el_ms').mean().iloc[3]:.1f} % with and "
        "−{-change(parts['mixed, caching off'], 'mean_e2el_ms').mean().iloc[3]:.0f} % without caching",
        "the RFC's rule (−{-change(parts['mixed, caching off'], 'mean_e2el_ms').mean().iloc[1]:.1f} %)",
        "in {100 * own['extrapolated_share']:.0f} % of these steps",
    ],
    "06_order_and_fairness": [
        "theory to within {100 * abs(seat['mean wait (s)'] / seat['by theory (s)'] - 1).max() + 0.5:.0f} %",
        "the mean wait, to {(means.srpt_oracle / means.fcfs).mean():.2f} times that of FCFS",
        "from {seat['longest (s)'].fcfs:.0f} s under FCFS to {seat['longest (s)'].srpt_oracle:.0f} s under "
        "the oracle; under LIFO it is {seat['longest (s)'].lifo:.0f} s",
        "every answer: {ratios['chat, 12/s'].mean_ttft_ms.unstack().sjf_prompt.mean():.2f} against "
        "{ratios['chat, 12/s'].mean_ttft_ms.unstack().srpt_oracle.mean():.2f}. With long answers it is the "
        "other way round, {ratios['long answers, 12/s'].mean_ttft_ms.unstack().sjf_prompt.mean():.2f} "
        "against {ratios['long answers, 12/s'].mean_ttft_ms.unstack().srpt_oracle.mean():.2f}.",
        "some {100 - 100 * ratios['chat, 9/s'].mean_ttft_ms.unstack().sjf_prompt.mean():.0f} % of the mean",
        "With long answers {100 * float(kept['long answers, 12/s']['sjf_predicted, 0.3'][:4]):.0f} % of it "
        "survives a sigma of 0.3, and "
        "{100 * float(kept['long answers, 12/s']['sjf_predicted, 1'][:4]):.0f} % a sigma of 1",
        "gains less, {ratios['long answers, 12/s'].mean_e2el_ms.unstack().srpt_oracle.mean():.2f}:",
        "the longest tenth {bands['sjf_prompt'][1].iloc[-1]:.0f} s",
        "head start: {both_tails.people.unstack().fcfs.mean():.1f} s, "
        "{both_tails.people.unstack().aged_priority.mean():.1f} s, "
        "{both_tails.people.unstack().edf.mean():.1f} s, {both_tails.people.unstack().priority.mean():.1f} s",
        "That is {25000 / (1155 + 2048):.1f} average chats",
        "and {guarded.request_goodput.unstack()['no rule, 256 seats'].mean():.2f} are good. Refusing a fifth "
        "of them raises that to {guarded.request_goodput.unstack()['shed_late, 96 seats'].mean():.1f}",
        "a TPOT of {guarded.mean_tpot_ms.unstack()['shed_late, 256 seats'].mean():.0f} to "
        "{guarded.mean_tpot_ms.unstack()['no rule, 256 seats'].mean():.0f} ms",
        "preempted {blocks.num_preemptions.unstack()['no rule'].mean():.0f} times. Reserving ends that, and "
        "costs {100 - 100 * share.iloc[:, 0].unstack().reserve_output.mean():.0f} % of the throughput and "
        "{100 * share.iloc[:, 2].unstack().reserve_output.mean() - 100:.0f} % more latency",
        "gains {100 * share.iloc[:, 0].unstack()['watermark 10 %'].mean() - 100:.0f} %",
        "{times.virtual_counters['azure-conv'].mean():.2f} times in chat, "
        "{times.virtual_counters['azure-code'].mean():.2f} on code",
        "gives {times['alone, half a server']['azure-conv'].mean():.2f} and "
        "{times['alone, half a server']['azure-code'].mean():.2f} times",
        "about twice, {times['virtual_counters, weight 9']['azure-conv'].mean():.2f} and "
        "{times['virtual_counters, weight 9']['azure-code'].mean():.2f}; three of the eight",
        "strict priority has {times.priority['azure-conv'].mean():.2f} and "
        "{times.priority['azure-code'].mean():.2f}.",
        "on code, {times.deficit_round_robin['azure-code'].mean():.2f} against "
        "{times.virtual_counters['azure-code'].mean():.2f}.",
        "within twice, {limited['P99 TTFT / alone']['azure-conv']['virtual_counters'].mean():.2f} and "
        "{limited['P99 TTFT / alone']['azure-code']['virtual_counters'].mean():.2f} times",
        "The price is "
        "{100 - 100 * limited['completed/s']['azure-code'].mean() / full['azure-code'].mean():.0f} to "
        "{100 - 100 * limited['completed/s']['azure-conv'].mean() / full['azure-conv'].mean():.0f} %",
        "{100 * greedy['virtual_counters'].mean() / greedy['fcfs'].mean() - 100:.0f} % more, and nothing",
        "both have {100 * cut['fcfs']['meek']:.0f} to {100 * cut['fcfs']['greedy']:.0f} %. Under the "
        "counters the meek tenant has {100 * cut['virtual_counters']['meek']:.0f} %, the rest being under "
        "way, and the greedy one {100 * cut['virtual_counters']['greedy']:.0f} %",
    ],
    "07_your_own_policy": [
        "makes all wait alike, up to {waits['fcfs'][1].max():.0f} s",
        "has 4,000 tokens pays, with up to {waits['shortest'][1].max():.0f} s",
        "Against FCFS it is worth {(kept.aged - kept.fcfs).mean():.0f} points",
        "falls from {figures(queues, 'oldest_wait_s').sjf_prompt.mean():.1f} to "
        "{figures(queues, 'oldest_wait_s').aged.mean():.1f} s. But the P99 of TTFT rises, from "
        "{figures(queues, 'p99_ttft_ms', 1e-3).sjf_prompt.mean():.1f} to "
        "{figures(queues, 'p99_ttft_ms', 1e-3).aged.mean():.1f} s",
        "{(held.hopeless - held.shed_late).mean():.1f} points above shed_late, although it turns more away, "
        "{figures(doors, 'rejected').hopeless.mean():.0f} of a thousand instead of "
        "{figures(doors, 'rejected').shed_late.mean():.0f}",
        "of which it refuses {100 * refused.hopeless[is_long == 'over 3,500 tokens'].mean():.0f} %",
        "{(met.InTime - met['512']).mean():.1f} points above the best of them. Who pays? The P99 of ITL, "
        "{figures(budgets, 'p99_itl_ms').InTime.mean():.0f} instead of "
        "{figures(budgets, 'p99_itl_ms')['512'].mean():.0f} ms",
        "± {np.hypot(half(met.InTime), half(met['512'])):.1f} points, and no verdict",
        "P99 falls from {little.fcfs.mean():.1f} to {little.TakeTurns.mean():.1f} s and the large one's "
        "rises by {100 * (much.TakeTurns.mean() / much.fcfs.mean() - 1):.0f} %",
        "do the same, {(little.TakeTurns - little.virtual_counters).mean():.1f} s better",
        "most_blocks is {100 * (ends.most_blocks / ends.last_admitted - 1).mean():.1f} % worse",
        "{(hits.system_last - hits.s3fifo).mean():.1f} points of hit rate above s3fifo, the best that ships, "
        "and {100 * (1 - by_eviction.system_last / by_eviction.s3fifo):.0f} % less mean TTFT; against vLLM's "
        "lru {(hits.system_last - hits.lru).mean():.0f} points and "
        "{100 * (1 - by_eviction.system_last / by_eviction.lru):.0f} %",
        "the order loses {(points.admission - points['order + admission']).mean():.1f} points",
        "The order alone has {points.order.mean():.1f} %, and together with the class, which alone is a gain "
        "too, {points['order + batching'].mean():.1f} %",
        "{figures(together, 'median_ttft_ms')['order + admission'].mean():.0f} ms instead of "
        "{figures(together, 'median_ttft_ms').admission.mean():.0f}",
        "{ranges[12].hopeless:.0f} % of all that were sent are served in time, and "
        "{ranges[12].shed_late:.0f} % with shed_late",
    ],
    "08_two_clocks": [
        "a line of four numbers",
        "{1e3 * LINE.constant:.0f} ms a step and {1e3 * LINE.per_token} ms a token",
        "two layers and {round(without.machine.model.num_params, -4):,} random weights",
        "The same {dict({16: 'sixteen'})[len(simulated)]} steps at the same",
        "whose model has {machine.machine.model.num_params / 1e6:.0f} million weights",
        "make the median E2EL {ratios.median_e2el_ms[1.3]:.2f} times as long, steps twice as long "
        "{ratios.median_e2el_ms[2]:.2f} times",
        "look wrong by {100 - 100 / ratios.median_e2el_ms[1.3]:.0f} %",
        "{100 * ratios.duration[2] - 100:.0f} % at the most",
        "saves {len(plain.steps) - len(believed.steps)} of {len(plain.steps)} steps, with what was measured "
        "{len(plain.steps) - len(guessing.steps)}",
    ],
    "09_calibration": [
        "wrong by {100 * plans.iloc[0, 0]:.1f} %, and is by {100 * plans.iloc[0, 1]:.1f} %",
        "{table.loc['decode attention, kv, 4x beyond', 'mean (%)']:.1f} % for decode attention four times "
        "beyond its contexts, where the truth is {100 * outside:.1f} % away",
    ],
    "10_policy_exploration": [],
    "11_sweeps_and_statistics": [
        "and the true mean latency is 1 / 0.3 = {TRUTH:.2f} s",
        "An interval that says 95 % and holds {100 * holds(*one_run).mean():.0f} % of the time",
        "1,000 requests are worth {1000 / ratio:.0f}.",
        "For TPOT it is off by a factor of {spread['mean_tpot_ms'][1] / spread['mean_tpot_ms'][0]:.1f}",
        "an interval over 25 runs holds {ways[100, 'all requests'][1][:-1]} %, with 1,000 requests "
        "{ways[1000, 'all requests'][1][:-1]} %, without any cut",
        "comes out {100 - 100 * ways[1000, 'what MSER-5 leaves of each'][0] / TRUTH:.0f} % low, and the "
        "intervals hold {ways[1000, 'what MSER-5 leaves of each'][1][:-1]} %",
        "For a P99 it is {worth('p99_ttft_ms').iloc[0, 2]:.0f} to {worth('p99_ttft_ms').iloc[2, 2]:.0f}"
        " times",
        "perhaps only by {100 * found.frame.sampling_low['budget 1792'] / found.frame['mean'].iloc[0]:.1f} %",
        "the search's point is "
        "{100 - 100 * hunt.front.p99_ttft_ms.iloc[0] / allowed.p99_ttft_ms.min():.0f} % better",
        "there it is {-100 * fresh.frame.difference.iloc[1] / fresh.frame['mean'].iloc[0]:.0f} % better, for "
        "sure (−{-100 * fresh.frame.sampling_low.iloc[1] / fresh.frame['mean'].iloc[0]:.0f} to "
        "−{-100 * fresh.frame.sampling_high.iloc[1] / fresh.frame['mean'].iloc[0]:.0f} %)",
        "a larger budget, an ITL of {hunt.front.p99_itl_ms.iloc[0]:.0f} ms",
        "{ {10: 'Ten'}[(members == 5).sum()]} points are always on it, "
        "{ {10: 'ten'}[24 - len(members)]} never, and { {4: 'four'}[(members < 5).sum()]} come and go",
    ],
    "12_parallel_and_disaggregated": [
        "{waits.iloc[0, 0]:.2f} ± {waits.iloc[0, 1]:.2f} s against {erlang_c(1, LOAD):.2f}, and "
        "{waits.iloc[4, 0]:.2f} against {erlang_c(4, LOAD):.2f}",
        "a request waits {pooled.iloc[4, 0]:.2f} service times in a queue of its own",
        "Random costs {100 * routed.frame.difference['random'] / routed.frame['mean'].iloc[0]:.0f} %",
        "{attained['least_outstanding', 1]:.0f} % instead of {attained['least_outstanding', 0]:.0f} % meet",
        "Random keeps its {attained['random', 10]:.0f} %",
        "{sessions.iloc[0, 5]:.0f} % within the SLO with the shortest queue, "
        "{sessions.iloc[2, 5]:.0f} % with prefix_affinity",
        "in {sessions.iloc[0, 0]:.0f} % of its tokens instead of {sessions.iloc[2, 0]:.0f} %",
        "{sessions.iloc[0, 1]:.0f} million tokens instead of {sessions.iloc[2, 1]:.0f}",
        "do the same work {sessions.iloc[0, 1] / sessions.iloc[2, 1]:.0f} times",
        "busiest replica works {sessions.iloc[2, 6]:.1f} times as much as the mean",
        "interval from {gained['within SLO (%)'][0] - gained['within SLO (%)'][1]:.0f} to "
        "{sum(gained['within SLO (%)']):.0f}",
        "{deaths.completed.iloc[1]:,.0f} complete, {deaths['tried again'].iloc[1]:.0f} of them after",
        "{deaths['P99 TTFT (ms)'].iloc[1]:,.0f} against {deaths['P99 TTFT (ms)'].iloc[2]:.0f} ms",
        "rises from {deaths['mean TPOT (ms)'].iloc[0]:.1f} to {deaths['mean TPOT (ms)'].iloc[1]:.1f} ms",
        "mean TTFT is {deaths.iloc[3, 6]:.0f} ms, against {deaths.iloc[1, 6]:.0f} where it stays dead",
        "power_of_two has {deaths.iloc[4, 6]:.0f}",
        "saves {100 - 100 * scale.iloc[3, 3] / scale.iloc[1, 3]:.0f} % of the GPU seconds of four replicas "
        "and meets the SLO for {scale.iloc[3, 2]:.0f} % of the requests instead of {scale.iloc[1, 2]:.0f} %",
        "and gets {scale.iloc[5, 2]:.0f} %, at the price of four",
        "median gap of {ways['median ITL']['NVLink', 'PP4']:.1f} ms, against "
        "{ways['median ITL']['NVLink', '4 replicas']:.1f} on a GPU of its own and "
        "{ways['median ITL']['NVLink', 'TP4']:.1f} with TP4",
        "{ways['bubbles (%)']['NVLink', 'PP4']:.0f} % of the time of its stages",
        "P99 of TTFT is {round(ways['P99 TTFT']['PCIe', 'TP4'], -1):.0f} ms against PP4's "
        "{ways['P99 TTFT']['PCIe', 'PP4']:.0f}",
        "({ways['median ITL']['PCIe', 'TP2 x PP2']:.1f} against "
        "{ways['median ITL']['PCIe', '4 replicas']:.1f} ms)",
        "they carry {ways.iloc[7, 6]:.0f} requests a second",
        "P99 of ITL is {parted['P99 ITL']['2P:2D']:.1f} ms with two and two, against "
        "{parted['P99 ITL']['chunked 2048']:.0f} and {parted['P99 ITL']['chunked 512']:.0f} ms",
        "{parted['median ITL']['2P:2D']:.1f} against {parted['median ITL']['chunked 2048']:.1f} ms",
        "16 prompts a second: {parted['within SLO (%)']['1P:3D']:.0f} % meet the SLO",
        "and {parted['within SLO (%)']['2P:2D, 1 GB/s']:.0f} % meet the SLO",
        "one gap of {pools['2P:2D'].requests.num_output.mean():.0f}",
        "{moved.gb.iloc[0]:.0f} GB for 1,000 prompts are {moved.gb.iloc[0]:.0f} MB each",
        "are {16e-3 * moved.gb.iloc[0] / 2:.2f} GB/s each",
        "{moved.mean_ms['2P:2D, 1 GB/s'] / 1e3:.0f} s on average. With 3 GB/s it is "
        "{moved.mean_ms['2P:2D, 3 GB/s']:.0f} ms, of which the bytes alone are half, and with 50 GB/s it is "
        "{moved.mean_ms['2P:2D']:.0f}",
        "Code completion has {sent['by layer'].requests.num_output.mean():.0f} tokens an answer",
        "P99 of TPOT is {coded['P99 TPOT'].iloc[1]:.0f} instead of {coded['P99 TPOT'].iloc[0]:.0f} ms",
        "a transfer takes {coded.transfer.iloc[2]:.0f} ms on average",
        "{coded['median TTFT'].iloc[4]:.0f} instead of {coded['median TTFT'].iloc[2]:.0f} ms in the median",
        "P99 of ITL falls to {coded['P99 ITL'].iloc[4]:.1f}",
        "was worth {sessions.iloc[2, 5] - sessions.iloc[0, 5]:.0f} points",
        "{100 * fleet['prefix_affinity'].summary['servetwin']['extrapolated_share']:.0f} % of the steps of "
        "fleet-a100",
    ],
    "13_speculation_and_quantisation": [
        "1.67 tokens is where the sum ends",
        "give {3 * 0.392:.2f} accepted of three, which is printed as "
        "{100 * (expected_tokens(same_rate(0.6, 3)) - 1) / 3:.0f} %",
        "cost {100 * (steps[5][8] / steps[0][8] - 1):.0f} %: 48 rows instead of 8, and the step takes "
        "{steps[5][8]:.1f} instead of {steps[0][8]:.1f} ms",
        "At 256 they cost {100 * (steps[5][256] / steps[0][256] - 1):.0f} %",
        "Five drafts with 40 % lose {100 - 100 * gain(profile, 64, 5, 0.4):.0f} % at a batch of 64 and "
        "{100 - 100 * gain(profile, 256, 5, 0.4):.0f} % at 256. With 80 % they still gain there, "
        "{gain(profile, 256, 5, 0.8):.2f} times",
        "make the step {needs[1][0]:.1f} times as long even for a single sequence",
        "first {100 * needs[1][1]:.0f} % of acceptance only pay the drafter. At 80 %, which a good pair "
        "reaches, {needs[1][2]:.2f} times is left",
        "60 % are printed as {found[1][5]:.0f} %",
        "drafts cut the TPOT by {100 - 100 * tpot[1, 'five drafts'] / tpot[1, 'none']:.0f} %",
        "int8 takes the weights from {narrow.iloc[0, 0]:.1f} to {narrow.iloc[1, 0]:.1f} GB, int4 to "
        "{narrow.iloc[2, 0]:.1f}. A single sequence decodes in "
        "{100 * narrow.iloc[1, 1] / narrow.iloc[0, 1]:.0f} % of the time with 8 bits and in "
        "{100 * narrow.iloc[2, 1] / narrow.iloc[0, 1]:.0f} % with 4",
        "its prompt takes {100 * narrow.iloc[7, 4] / narrow.iloc[4, 4]:.0f} % of the time",
        "{against.int8['A100', 1]:.2f} times for one on either GPU, {against.int8['A100', 8]:.2f} for eight "
        "on an A100, {against.int8['A100', 32]:.2f} for 32. With 128 clients "
        "{100 * against.int8['A100', 128] - 100:.0f} % are left",
        "nearly doubles a single stream, {against.int4['A100', 1]:.2f} times",
        "keeps {against.fp8['H100', 256]:.2f} times at 256 clients, where INT8 has "
        "{against.int8['H100', 256]:.2f}",
        "one client gains by {trials[1][3]:.2f} to {trials[1][4]:.2f} times",
        "{131_072 * (memory.iloc[1, 0] - memory.iloc[0, 0]) / 1e9:.0f} GB with int8 and "
        "{131_072 * (memory.iloc[2, 0] - memory.iloc[0, 0]) / 1e9:.0f} with int4",
        "{100 * memory['tokens/s']['fp8 KV'] / memory['tokens/s']['16 bits'] - 100:.0f} % more tokens "
        "come out",
        "{100 - 100 * memory.iloc[5, 0] / memory.iloc[4, 0]:.0f} % fewer tokens fit than in fp8",
    ],
    "14_claims": [
        "{['', 'about a thousandth of the batch'][0.0005 < waits.value(WAIT, 'continuous').high < 0.002]}",
        "{['', 'A chat queue makes about 2,000, too close to call']"
        "[ledger[6].cases[0].judged(ledger[6].said) == 'open']}",
        "{['', 'no case can be said to hold'][ledger[16].verdict == 'open']}",
        "{['', 'by a hair'][0.9 < ledger[20].cases[1].number.high < 1]}",
    ],
}
"""What the text claims, as f-strings over the names of the notebook; filled in, each must stand there."""

CLAIMS: dict[str, list[str]] = {
    "01_first_run": [
        "(rows.attainment_gain[[0, 1]] == 0).all() and list(rows.what[:2]) == ['KV blocks', 'max_num_seqs']",
        "rows.attainment_gain[3] > rows.attainment_gain[4] > 0 > rows.attainment_gain[2]",
        "limits.winner == '2048'",
        "result.summary['servetwin']['prefix_cache_hits'] == 0",
    ],
    "02_batching": [
        "speed['continuous'] >= 2 * speed['static']",
        "1 < (mixed.continuous / mixed.static)['all equal'] < 1.1",
        "(mixed.continuous / mixed.static)['Azure chat'] >= 2",
        "(mixed.continuous / mixed.static).is_monotonic_increasing",
        "sharing.table.p99_itl_ms['prefill_first'] > 1.5 * sharing.table.p99_itl_ms['chunked']",
        "(apart[['median_ttft_ms', 'p99_ttft_ms']] < 0).all().all() and (apart.p99_itl_ms > 0).all()",
        "(steps.prefill_tokens[first:last + 1] > 4000).sum() == 4",
        "costs['FLOP/byte']['256 decodes'] < limit < gpu.flops / gpu.hbm_bandwidth",
    ],
    "03_kv_memory": [
        "round(models[0].kv_bytes_per_token() / models[2].kv_bytes_per_token()) == 9",
        "0.4 < deepseek.kv_bytes_per_token() / llama.kv_bytes_per_token() < 0.6",
        "round(unfolded / deepseek.kv_bytes_per_token()) == 71",
        "ranks[4].bytes_per_token == ranks[5].bytes_per_token == deepseek.kv_bytes_per_token()",
        "(abs(paging.wasted - paging['half a block each']) < 0.01).loc[:256].all()",
        "3.9 < paging['mean TPOT (ms)'][16] / paging['mean TPOT (ms)'][4096] < 4.3",
        "column(blocks, 'rejected') == [0] * 7",
        "3.9 < capacity['mean TPOT (ms)'].iloc[9] / capacity['mean TPOT (ms)'].iloc[4] < 4.3",
        "seats.table.mean_tpot_ms.iloc[0] < capacity['mean TPOT (ms)'].iloc[9] / 2",
        "capacity['extrapolated steps'].iloc[4] == 0 and capacity['extrapolated steps'].iloc[9] > 0.3",
        "abs(medians['without'][1][0] - medians['with prefix caching'][1][0] - system) < 5",
        "cached.mean_tpot_ms['with prefix caching', 5.5] < 40 < 100 < cached.mean_tpot_ms['without', 5.5]",
        "(ratios < 1).all().all()",
        "list(whole['cached tokens']) == [992, 960, 768, 512, 0]",
        "agents.loc[('chat-a100', 'without')].equals(agents.loc[('chat-a100', 'with prefix caching')])",
        "(server.requests.num_cached[server.requests.id.str.endswith('.0')] == 0).all()",
        "abs(own.prefix_hit_rate.iloc[0] - own.prefix_hit_rate.iloc[1]) < 1e-4",
    ],
    "04_prefix_and_eviction": [
        "list(hand.num_cached) == [0, 8, 12, 8, 0, 0, 0]",
        "hand.evicted.iloc[5] == ['How?', 'Hi! ', 'Hi, ', 'tool', 'sys.']",
        "by_lfu.serve(prompts[6]).num_cached == 8",
        "abs(replay.table.gap_to_belady[2] - 4 / 5 * (0.699 - replay.table.hit_rate[2])) < 0.005",
        "(closed.fifo.abs() < 0.005).all() and closed.decay.equals(closed.lfu)",
        "all(round(closed[name][card], 2) == 0.41 for name in ('sieve', 'slru', 'lfu', 'decay'))",
        "coding.hit_rate.idxmax() == 8 and coding.hit_rate[:8].idxmax() == 0",
        "all((timed.hits[name] > timed.hits['lru']).all() for name in POLICIES[1:])",
        "all((timed['median TTFT'][name] < timed['median TTFT']['lru']).all() for name in POLICIES[1:])",
        "(alone['s3fifo'] > alone['lfu']).all() and (alone['lfu'] - alone['sieve']).abs().max() < 0.01",
        "(timed.hits['lfu'] > timed.hits['sieve']).all()",
        "abs((timed.hits['s3fifo'] - timed.hits['lfu']).mean()) < 0.1",
        "(gain.LRU[2.5] - gain.LRU[0.5]).mean() > 0",
        "(coded.iloc[:, 2][0.008] < 50).groupby(level=0).mean().min() >= 0.5",
        "coded.iloc[:, 2][0.008].groupby(level=0).mean().max() < 50",
        "0.7 < (parts.iloc[:, 0] - parts.iloc[:, 1]).mean() / (parts.iloc[:, 0] - parts.server).mean() < 0.8",
        "one_copy == timed.hits['lru', 0]",
        "prices.iloc[:3, 3].between(1.75, 2.1).all() and prices.iloc[:, 3].iloc[2:].is_monotonic_decreasing",
        "(prices.iloc[:, 0] / prices.iloc[:, 2]).between(11, 53).all()",
        "prices.iloc[5, 3] > 0.45 and prices.iloc[:, 3].max() < 2.1",
        "abs(middle['tokens/s'][25] / middle['tokens/s']['room for all'] - 1) < 0.01",
        "abs(light.iloc[2, 2] / light.iloc[0, 2] - 1) < 0.01 and light.iloc[1, 7] == 0",
    ],
    "05_preemption_victims": [
        "victim.num_preemptions == 15 and life.tokens[5] == victim.num_prompt + 1 + life.tokens[3]",
        "again / default.steps.num_tokens.sum() > 0.23",
        "cliff.num_preemptions.iloc[0] == 0 and (cliff.num_preemptions.iloc[1:] > 200).all()",
        "cliff.output_throughput.max() < 1.01 * cliff.output_throughput.iloc[0]",
        "(change(runs, 'mean_e2el_ms').mean().iloc[[1, 2, 4]].abs() < 1).all()",
        "(abs(change(runs, 'mean_e2el_ms').mean()) > interval(change(runs, 'mean_e2el_ms'))).iloc[5:].all()",
        "0.2 < costs(runs).preemptions.iloc[3] / costs(runs).preemptions.iloc[0] < 0.28",
        "(ways['copy out and back at 25 GB/s'][1] < computing).all()",
        "(ways['copy out and back at 8 GB/s'][1] > computing)[tokens > 200].all()",
        "abs(change(linked, 'mean_e2el_ms').mean().iloc[2]) < 2",
        "change(linked, 'mean_e2el_ms').mean().iloc[4] > 0",
        "46 < losses(runs)['found again (%)'].iloc[3] < 50",
        "8.4 < losses(runs)['found again (%)'].iloc[0] < 9.4",
        "round(float(np.exp(np.log(1500) - 1.2**2 / 2)), -1) == 730",
        "np.exp(np.log(1500) - 1.2**2 / 2 + 1.645 * 1.2) > 5000",
        "10 <= losses(parts['mixed, caching off'])['tax (%)'].iloc[0] <= 23",
        "round(losses(parts['mixed, caching on'])['tokens lost'].iloc[2] / losses(parts['mixed, caching on'])"
        "['tokens lost'].iloc[1]) == 13",
        "change(parts['mixed, caching on'], 'mean_e2el_ms').mean().idxmin() == 'watermark 0.02'",
        "change(parts['mixed, caching off'], 'mean_e2el_ms').mean().idxmin() == 'watermark 0.02'",
        "list(lives['watermark 0.05'].what).count('preempted') == 1",
        "np.interp(life['from'].iloc[-3], *curves['watermark 0.05']) > 480",
        "(change(tuned, 'mean_e2el_ms').mean().iloc[[1, 2]] > -4.5).all()",
        "costs(tuned).preemptions[['reserve_output', '112 seats']].sum() == 0",
        "change(tuned, 'p99_itl_ms').mean().drop('reserve_output').idxmin() == '112 seats'",
        "measured['output tokens/s'].idxmax() == simulated['output tokens/s'].idxmax() == '0.05'",
        "-6.5 < change(runs, 'mean_e2el_ms').mean().iloc[6] < -4.5",
        "change(overlapped, 'mean_e2el_ms').mean().iloc[2] < -9",
        "abs(change(overlapped, 'mean_e2el_ms').mean().iloc[1]) < 3",
        "(change(tuned, 'mean_e2el_ms').iloc[:, 7] < change(runs, 'mean_e2el_ms').iloc[:, 6]).all()",
    ],
    "06_order_and_fairness": [
        "1.9 < price(1155, 211)['prompt (ms)'] / price(1155, 211)['answer (ms)'] < 2.3",
        "5 < price(300, 600)['answer (ms)'] / price(300, 600)['prompt (ms)'] < 7",
        "ratios['chat, 12/s'].mean_ttft_ms.unstack().eval('sjf_prompt < srpt_oracle').all()",
        "ratios['long answers, 12/s'].mean_ttft_ms.unstack().eval('sjf_prompt > srpt_oracle').all()",
        "ratios['long answers, 12/s'].p99_ttft_ms.groupby(level=1).mean().nsmallest(2).iloc[1] > 2.75",
        "ratios['long answers, 12/s'].oldest_wait_s.groupby(level=1).mean().max() < 4.05",
        "(bands['sjf_prompt'][1].iloc[:8] < 1).all() and bands['srpt_oracle'][1].idxmax() in (5, 6, 7)",
        "set(served.num_output.groupby(tenth).mean().nlargest(3).index) == {5, 6, 7}",
        "0.19 < guarded.rejected.unstack()['shed_late, 96 seats'].mean() / 1200 < 0.21",
        "passed.groupby('status').num_prompt.mean().is_monotonic_increasing",
        "5 * goodput[12]['no rule, 256 seats'] < goodput[7]['no rule, 256 seats']",
        "goodput[12]['shed_late, 96 seats'] > goodput[8]['shed_late, 96 seats']",
        "all(1.45 < SENT[kind][0] / full[kind].mean() < 1.55 for kind in SENT)",
        "(times.fcfs.groupby('load').mean() > 100).all()",
        "(times.virtual_counters > 2).all() and (times['virtual_counters, weight 9'] < 2).sum() == 3",
        "(limited['P99 TTFT / alone'].unstack(1).virtual_counters < 2).all()",
        "(limited['meek refused'] == 0).all()",
        "jain.jain_service['fcfs'].round(3).equals(jain.jain_service['virtual_counters'].round(3))",
        "jain.jain_latency['fcfs'].mean() > 0.995",
    ],
    "07_your_own_policy": [
        "asked.requests.equals(once.requests)",
        "(waits['aged'][1] > waits['aged'][0] / 300)[waits['aged'][0] > 1500].sum() == 0",
        "(waits['shortest'][1] > 10).sum() > 0 and waits['shortest'][1].median() < 0.1",
        "served['shortest'].pipe(lambda r: r.first_token - r.arrival).mean() * 1e3 < 0.7 * "
        "oracle.summary['mean_ttft_ms'] < 0.7 * queues[0]['fcfs'].summary['mean_ttft_ms']",
        "abs((kept.aged - kept.sjf_prompt).mean()) <= half(kept.aged - kept.sjf_prompt)",
        "(held.idxmax(axis=1) == 'hopeless').all()",
        "1.4 < taken * 512 / full < 1.6",
        "(met.idxmax(axis=1) == 'InTime').all()",
        "met.drop(columns='InTime').mean().idxmax() == '512'",
        "half(met.InTime - met['512']) < (met.InTime - met['512']).mean() < 14",
        "same == [True] * 4 and abs((ends.fewest_blocks / ends.last_admitted - 1).mean()) < 0.01",
        "hits.drop(columns='system_last').mean().idxmax() == 's3fifo'",
        "points.mean().idxmax() == 'admission' and (points.batching > points.shipped).all()",
        "0.4 < (points.admission - points['batching + admission']).mean() < half(points.admission - "
        "points['batching + admission'])",
        "half(points.admission - points['order + admission']) < 1.1",
        "(each['TPOT kept (%)'][['shipped', 'order']] > 99.7).all() and each['TPOT kept (%)'].batching < 85",
        "(fresh.hopeless > fresh.shed_late).all()",
        "(ranges.loc['hopeless'] - ranges.loc['shed_late'])[[9, 10, 12]].is_monotonic_increasing",
        "(ranges.loc['hopeless'] - ranges.loc['shed_late'])[[6, 8]].max() < 1.2",
        "all((ranges.loc['hopeless'] > ranges.loc['shed_late'])[[8, 9, 10, 12]])",
        "all((ranges.loc['shed_late'] > ranges.loc['no rule'])[[8, 9, 10, 12]])",
        "final.winner == 'hopeless' and shell.requests.equals(again.requests)",
    ],
    "08_two_clocks": [
        "computed.equals(simulated) and again.equals(simulated)",
        "[a != b for a, b in zip(executor.answers[2], meddled.answers[2])].index(True) == 7",
        "[a != b for a, b in zip(executor.answers[0], meddled.answers[0])].index(True) == 10",
        "executor.answers[1] == meddled.answers[1]",
        "pd.DataFrame(rows).T['all equal'].all() and len(rows) == 6",
        "pd.DataFrame(rows).T.preempted.min() > 0 and rows['swap']['tokens swapped'] > 0",
        "found.resimulated.divergence is None and max(abs(m.decisions or 0) for m in found.metrics) < 1e-6",
        "len(dict(line)) == 4",
        "(verified.accepted == 0).mean() > 0.6 and (verified.accepted == 3).sum() > 50",
        "equal(guessing, told) and not equal(guessing, believed)",
        "8 < naive / cached < 10 and steps[0] > 5 * steps[1]",
    ],
    "09_calibration": [
        "errors.loc['decode attention'].iloc[0] > 150 * plans.iloc[1, 0] > 0",
        "plans.iloc[1, 0] < 0.03 < plans.iloc[0, 0]",
        "plans.iloc[0, 1] < 0.01 and plans.iloc[2, 1] > 1.5 * plans.iloc[2, 0]",
        "'1 rows left out: above the peak' in gate[0] and 'repeats its configuration' in gate[1]",
        "'is their unit right?' in refusal and not (folder / 'slipped.json').exists()",
        "outside > 1.5 * inside and costs.iloc[0, 5:].max() < outside",
        "table.loc['decode attention, kv, 4x beyond', 'mean (%)'] > 100 * outside",
        "(answer.low < answer.truth).all() and (answer.truth < answer.high).all()",
        "spans.high['2048', FIGURES[0]] > 1.3 * spans.low['512', FIGURES[0]]",
        "change.difference_low.iloc[0] > 0 > change.difference_high.iloc[1]",
        "(change.difference_low < change['true difference']).all()",
        "(change['true difference'] < change.difference_high).all()",
    ],
    "10_policy_exploration": [
        "found.winner == 'short prompts first' and found.verdicts['async'] == 'win'",
        "any(lack.key == 'scheduler.order' for lack in order.no_counterpart)",
        "edge.table.rate[best] > edge.table.rate['as it is']",
        "edge.table.rate.max() < 0.7 * len(trace) / info['span']",
        "(lambda t: t.difference_high[best] - t.difference_low[best] < min(t.high - t.low))(edge.table)",
        "1 < found.frame.turns_at['async'] < 1 + as_it_is.summary['servetwin']['profile_error'] < 1.0255",
        "found.frame.turns_at['short prompts first'] > 1.03",
    ],
    "11_sweeps_and_statistics": [
        "latency.mean() + half < TRUTH and 0.92 < holds(*ten_runs).mean() < 0.97",
        "abs(latency - queue(np.diff(requests.arrival), requests.num_prompt.to_numpy() / 300)).max() < 1e-9",
        "0.4 < autocorrelation(runs[:, 200:] - TRUTH, 10) < 0.5",
        "all(spread[name][1] > spread[name][0] for name in spread) and spread['mean_e2el_ms'][1] < "
        "1.5 * spread['mean_e2el_ms'][0] and spread['mean_ttft_ms'][1] < 1.5 * spread['mean_ttft_ms'][0]",
        "pd.DataFrame(ways).T[1].str[:-1].astype(float).unstack().pipe(lambda t: "
        "t['what MSER-5 leaves of each'] < t['all requests']).all()",
        "pd.DataFrame(ways).T[1].str[:-1].astype(float).unstack().pipe(lambda t: t['all requests'] <= "
        "t['what MSER-5 of one run leaves of all']).all()",
        "worth('mean_e2el_ms')['times the runs'].min() > 200",
        "list(found.verdicts.values()) == ['loss', 'loss', 'tie', 'identical']",
        "one.status.eq('completed').all() and found.results['budget 2048'].steps.num_running.max() < 256",
        "0.3 < any_differs(off, 0.95) < 0.4 and any_differs(off, 1 - 0.05 / 20) < 0.05",
        "drawn.verdicts == {'budget 512': 'loss', 'budget 1792': 'loss'}",
        "drawn.frame.eval('(model_high - model_low) / (sampling_high - sampling_low)')['budget 512'] > 3",
        "(chosen['grid'].iloc[8:12, 4:].to_numpy() == chosen['grid'].iloc[12:, 4:].to_numpy()).all()",
        "chosen['grid'].iloc[:8].p99_itl_ms.max() < chosen['grid'].iloc[8:].p99_itl_ms.max()",
        "(cells.frame.attainment.to_numpy().reshape(6, 5).argmax(axis=1) == 3).all()",
        "fresh.verdicts == {'best of the search': 'win'} and fresh.replications.p99_itl_ms.max() <= 60",
        "hunt.best[keys[1]] > of_sweep[keys[1]] and len(whole.frame) == 32",
        "list(offers.front[keys[0]].iloc[[0, -1]]) == [4, 128]",
        "offers.front.sort_values('mean_tpot_ms')['parallel.tensor_parallel_size'].iloc[[0, -1]].tolist() == "
        "[2, 1]",
        "offers.front.median_ttft_ms.iloc[0] > 5 * offers.front.median_ttft_ms.iloc[-1]",
    ],
    "12_parallel_and_disaggregated": [
        "abs(waits['mean wait (s)'] - waits.theory).iloc[[0, 4]].lt(waits['±'].iloc[[0, 4]]).all()",
        "5.5 < waits.iloc[0, 0] / waits.iloc[4, 0] < 7 and 0.45 < waits.iloc[1, 0] / waits.iloc[0, 0] < 0.55",
        "0.3 < waits.iloc[2, 0] / waits.iloc[0, 0] < 0.37 and waits.iloc[3, 0] < 1.5 * waits.iloc[4, 0]",
        "routed.verdicts == {'round_robin': 'needs more runs', 'random': 'loss'}",
        "attained['least_outstanding', 10] < 1 and attained['round_robin'].nunique() == 1",
        "list(attained['power_of_two'].iloc[1:]) == sorted(attained['power_of_two'].iloc[1:], reverse=True)",
        "stale['least_outstanding', 10].steps[['num_running', 'num_waiting']].sum(axis=1).max() > 250",
        "max(each['kv_usage_peak'] for each in fleet['session_affinity'].summary['servetwin']['replicas']) "
        "> 0.999",
        "(own['busiest / mean', 'our own'] < own['busiest / mean', 'prefix_affinity']).all()",
        "sum(gained['busiest / mean']) < 0",
        "own['within SLO (%)'].diff(axis=1).iloc[:, 1].between(-8.5, -0.5).all()",
        "deaths['within SLO (%)'].idxmin() == 'it comes back'",
        "scale.iloc[4, 3] > scale.iloc[1, 3] and scale.iloc[4, 2] < scale.iloc[0, 2] + 6",
        "abs(scale.iloc[5, 3] / scale.iloc[1, 3] - 1) < 0.01",
        "189 < scaled['2 to 6, 60 s'].steps.query('replica == 2').start.min() < 193",
        "600 < scaled['2 to 6, 60 s'].steps.query('start < 190').groupby('replica').last()"
        "[['num_running', 'num_waiting']].to_numpy().sum() < 800",
        "all(a > b for a, b in zip(gaps(shared['NVLink', 'PP4'])[0], gaps(shared['NVLink', 'TP4'])[0]))",
        "all(max(gaps(shared['NVLink', way])[0][i] for way in WAYS) == gaps(shared['NVLink', 'PP4'])[0][i] "
        "for i in range(len(QUANTILES)))",
        "ways['median ITL']['PCIe', 'TP4'] < ways['median ITL']['PCIe', 'PP4']",
        "ways.loc['PCIe'].drop(columns='bubbles (%)').iloc[:, [0, 3, 4]].idxmin().eq('4 replicas').all()",
        "ways.loc['PCIe', 'P99 TTFT'].idxmin() == 'PP4'",
        "ways.loc['PCIe'].iloc[:, 6].idxmax() == '4 replicas'",
        "0.5 < ways.loc[('NVLink', 'TP4')].iloc[0] / ways.loc[('NVLink', '4 replicas')].iloc[0] < 0.55",
        "judged.verdicts == {'PP4': 'loss', '4 replicas': 'loss'}",
        "sorted(parted['P99 ITL'])[1] == parted['P99 ITL']['2P:2D, 1 GB/s']",
        "better.verdicts == {'2P:2D': 'win'}",
        "0.4 < moved.gb.iloc[0] / 3 / moved.mean_ms['2P:2D, 3 GB/s'] < 0.6",
        "coded['P99 TPOT'].iloc[2] > coded['P99 TPOT'].iloc[0] > 2 * coded['P99 TPOT'].iloc[3]",
    ],
    "13_speculation_and_quantisation": [
        "1.66 < expected_tokens(same_rate(0.4, 64)) < 1.67",
        "all(1.58 < gain(profile, n, k, 0.4) < 1.66 for n in (1, 2, 4, 8) for k in (3, 5))",
        "all(2.85 < gain(profile, n, k, 0.8) < 3.7 for n in (1, 2, 4, 8) for k in (3, 5))",
        "gain(profile, 16, 3, 0.6) > 2 > gain(profile, 32, 3, 0.6)",
        "gain(profile, 64, 3, 0.8) > 2 > gain(profile, 128, 3, 0.8)",
        "1 < needs[256][2] < 1.1",
        "all(0.9 < run[2] / run[3] < 1 for run in found.values())",
        "all(tpot[at, 'auto'] < 1.01 * min(tpot[at, name] for name in KINDS) for at in per_second)",
        "all(loaded[8, 'five drafts'].summary[key] > loaded[8, 'none'].summary[key] for key in "
        "('mean_tpot_ms', 'median_ttft_ms', 'p99_ttft_ms'))",
        "loaded[8, 'auto'].summary['p99_ttft_ms'] > loaded[8, 'none'].summary['p99_ttft_ms']",
        "rows[1, 'five drafts'][3] < rows[1, 'none'][3]",
        "all(0.92 < narrow.iloc[i, 3] / narrow.iloc[0, 3] < 1 for i in (1, 2, 3))",
        "all(0.98 < narrow.iloc[i, 4] / narrow.iloc[i // 4 * 4, 4] < 1 for i in (1, 2, 3, 5, 6))",
        "round(against.int8['H100', 1], 2) == round(against.int8['A100', 1], 2)",
        "(against.fp8['A100'] == against.int8['A100']).all()",
        "all(against.int4[gpu, n] < 1.1 * against.int8[gpu, n] for gpu in GPUS for n in (128, 256))",
        "trials[1][3] < 1.3 < trials[1][0] < 1.5 < trials[1][4]",
        "memory.preemptions['16 bits'] > 100 and memory.preemptions['fp8 KV'] == 0",
        "memory.preemptions['int8 KV'] < 10",
        "all(1.01 < memory['tokens/s'][kind] / memory['tokens/s']['16 bits'] < 1.025 "
        "for kind in ('int8', 'int4', 'fp8'))",
        "(choice.accuracy >= 68).tolist() == [True, True, False, False, False]",
        "choice.iloc[1, 1] < choice.iloc[0, 1] and choice.accuracy.isna().tolist() == "
        "[False, False, True, True, False]",
        "all(abs(both[1, kind] / both[1, '16 bits'] - 1) < 0.05 for kind in ('int8', 'int4'))",
        "all(both[n, kind] < both[n, '16 bits'] for n in (8, 32, 128) for kind in ('int8', 'int4'))",
        "all(both[256, kind] < 1 for kind in ('16 bits', 'int8', 'int4'))",
    ],
    "14_claims": [
        "__import__('simulator.experiments.claims.page', fromlist=['page']).page(ledger) == "
        "__import__('pathlib').Path('docs/claims.md').read_text(encoding='utf-8')",
        "all(case.scenario and case.number.low <= case.number.value <= case.number.high "
        "for claim in ledger for case in claim.cases)",
        "all(claim.cases for claim in ledger)",
        "{claim.verdict for claim in ledger} <= {'holds', 'holds when', 'wrong', 'open'}",
        "exact_price.frame.judged.tolist()[:3] == ['holds', 'holds', 'wrong']",
        "exact_price.cases[-1].number.high < 1.05",
        "int8.servers['1 request runs, int8'].latency.kind == 'profile'",
        "all(case.number.low > 1.3 for case in ledger[19].cases)",
        "[case.judged(ledger[20].said) for case in ledger[20].cases] == ['wrong', 'holds']",
        "spec.ratio(OUT, '64 requests run, 80%', '64 requests run').high < 2",
        "few.ratio(TTFT, 5, 1).high < 2 < few.ratio(OUT, 5, 1).low",
        "jobs.ratio(OUT, 'continuous', 256).high < 2",
        "waits.value(WAIT, 'full').high < 0.2",
        "all(int8.ratio(OUT, f'{a}, int8', a).value > int8.ratio(OUT, f'{b}, int8', b).value "
        "for a, b in zip(LOADS, [*LOADS][1:]))",
        "fall.value(OUT, [*way['turned round']][-1]) == fall.value(OUT, [*way['as articles have it']][-1])",
        "factors['turned round']['speculation'].low > factors['as articles have it']['speculation'].high",
        "factors['as articles have it']['static batching'].low > "
        "factors['turned round']['static batching'].high",
    ],
}
"""What must be true for the rest of the text to be so."""


class Cell(NamedTuple):
    """A cell of a notebook's source."""

    kind: str  # markdown | code
    text: str


def cells(source: Path) -> list[Cell]:
    """Split a py:percent file into its cells."""
    found = []
    for part in re.split(r"^# %%", source.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        mark, _, body = part.partition("\n")
        is_text = mark.strip() == "[markdown]"
        text = re.sub(r"^# ?", "", body, flags=re.MULTILINE) if is_text else body
        found.append(Cell("markdown" if is_text else "code", text.strip()))
    return found


def notebook(book: str) -> dict[str, Any]:
    loaded = json.loads((FOLDER / f"{book}.ipynb").read_text(encoding="utf-8"))
    assert isinstance(loaded, dict)
    return loaded


def prose(source: Path) -> str:
    """Return the text of a notebook without emphasis, in one line."""
    text = " ".join(cell.text for cell in cells(source) if cell.kind == "markdown")
    return " ".join(text.replace("*", "").replace("`", "").split())


def run_cell(text: str, names: dict[str, Any]) -> tuple[str, object]:
    """Execute a cell as IPython does; return what it prints and the value of its last line."""
    tree = ast.parse(text)
    name = f"<cell {next(_numbers)}>"
    linecache.cache[name] = (
        len(text),
        None,
        text.splitlines(keepends=True),
        name,
    )  # for who wants its source
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(tree, name, "exec", dont_inherit=True), names)
        value = eval(compile(ast.Expression(last.value), name, "eval"), names) if last else None
    return printed.getvalue(), value


def shown(outputs: list[dict[str, Any]]) -> tuple[str, str, list[str]]:
    """Return what a cell of a notebook shows: printed text, a table, and pictures."""
    printed = "".join("".join(each["text"]) for each in outputs if each["output_type"] == "stream")
    data = [each["data"] for each in outputs if "data" in each]
    table = "".join("".join(each.get("text/html", "")) for each in data)
    return printed, table, [each["image/png"] for each in data if "image/png" in each]


def as_html(frame: object) -> str:
    assert isinstance(frame, pd.DataFrame)
    with pd.option_context("display.max_columns", 20):  # as in a notebook
        return str(frame._repr_html_())


@pytest.mark.parametrize("source", RUNS, ids=BOOKS)
def test_running_a_notebook_shows_what_it_holds(source: Path) -> None:
    names: dict[str, Any] = {"__name__": "notebook"}
    code = [cell for cell in notebook(source.stem)["cells"] if cell["cell_type"] == "code"]
    for cell in code:
        printed, value = run_cell("".join(cell["source"]), names)
        was_printed, table, pictures = shown(cell["outputs"])
        assert len(pictures) == isinstance(value, Figure)
        if cell["source"][0].strip() == MEASURED:
            continue
        assert was_printed.split() == printed.split(), "run `make notebooks`"
        if not pictures:
            assert table.split() == ("" if value is None else as_html(value)).split(), "run `make notebooks`"
    quoted = [eval(f"f{quote!r}", names) for quote in QUOTES[source.stem]]
    assert [quote for quote in quoted if quote not in prose(source)] == []
    assert [claim for claim in CLAIMS[source.stem] if not eval(claim, names)] == []


@pytest.mark.parametrize("source", SOURCES, ids=BOOKS)
def test_source_and_notebook_are_a_pair(source: Path) -> None:
    pair = [Cell(cell["cell_type"], "".join(cell["source"])) for cell in notebook(source.stem)["cells"]]
    assert pair == cells(source), "run `make notebooks`"


@pytest.mark.parametrize("book", BOOKS)
def test_a_notebook_is_small_and_names_no_machine(book: str) -> None:
    content = notebook(book)
    outputs = [output for cell in content["cells"] for output in cell.get("outputs", [])]
    assert {output["output_type"] for output in outputs} <= {"stream", "display_data", "execute_result"}
    assert {output["name"] for output in outputs if output["output_type"] == "stream"} <= {"stdout"}
    pictures = [output["data"]["image/png"] for output in outputs if "image/png" in output.get("data", {})]
    assert len(pictures) >= 3
    assert max(len(picture) for picture in pictures) * 3 / 4 < 100e3
    assert (FOLDER / f"{book}.ipynb").stat().st_size < 600e3
    words = json.dumps([{**o, "data": {**o.get("data", {}), "image/png": ""}} for o in outputs])
    assert not re.search(r"/(home|root|tmp|usr|work|Users)/|[A-Z]:\\\\", words)
    assert socket.gethostname() not in words


@pytest.mark.parametrize("source", [*SOURCES, *ANSWERS], ids=lambda path: str(path.relative_to(FOLDER)))
def test_functions_in_notebooks_are_short(source: Path) -> None:
    tree = ast.parse(source.read_text(encoding="utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    most = 15 if source.stem in WITH_LONG_CODE else 5
    assert [node.name for node in functions if node.end_lineno - node.lineno >= most] == []


@pytest.mark.parametrize("source", SOURCES, ids=BOOKS)
def test_a_notebook_states_its_goal_and_ends_with_two_exercises(source: Path) -> None:
    text = [cell.text for cell in cells(source) if cell.kind == "markdown"]
    assert "**Goal.**" in text[0]
    assert re.findall(r"\*\*(Exercise \d)\.", text[-1]) == ["Exercise 1", "Exercise 2"]
    assert f"answers/{source.name}" in text[-1]
    assert 1200 < len(prose(source).split()) < 3500  # ten to twenty minutes


@pytest.mark.parametrize("source", RUNS, ids=BOOKS)
def test_answers_run_and_hold(source: Path) -> None:
    answers = FOLDER / "answers" / source.name
    text = answers.read_text(encoding="utf-8")
    assert text.index("Exercise 1") < text.index("Exercise 2")
    assert sum(isinstance(node, ast.Assert) for node in ast.walk(ast.parse(text))) >= 2
    run_cell(text, {"__name__": "answers"})


def test_the_table_links_every_notebook() -> None:
    table = (FOLDER / "README.md").read_text(encoding="utf-8")
    linked = re.findall(r"\]\((\d\d_\w+)\.ipynb\)", table)
    assert linked == BOOKS


def test_the_recorded_figures_of_09_are_those_of_the_shipped_profile_and_of_the_docs() -> None:
    text = prose(FOLDER / "09_calibration.py")
    models = json.loads(SHIPPED.joinpath("a100-80gb-sxm.json").read_text(encoding="utf-8"))["models"]
    for row, term in (
        ("dense by tokens | 3 %", "dense"),
        ("GEMM of unseen shapes | 6 %", "gemm of unseen shapes"),
        ("decode attention | 4 %", "decode attention"),
        ("prefill attention | 4 %", "prefill attention"),
    ):
        errors = (
            models[name]["held_out"]["random_fifth_median_worst"][term][0]
            for name in ("llama-2-7b", "llama-3-8b", "qwen2.5-7b")
        )
        assert f"| {row} | {' | '.join(f'{100 * error:.1f} %' for error in errors)} |" in text
    docs = (FOLDER.parent / "docs" / "calibration.md").read_text(encoding="utf-8")
    figures = ("15.7 %", "3.9 % (1.39 ms)", "25.7 % (TTFT mean -23.1 %)", "-0.1 %, -7.2 % | +1.2 %, -0.3 % |")
    for figure in figures:
        assert figure in docs
        assert set(re.findall(r"\d+\.\d %", figure)) <= set(re.findall(r"\d+\.\d %", text))


def test_what_a_policy_may_read_is_there() -> None:
    text = (FOLDER / "07_your_own_policy.py").read_text(encoding="utf-8")
    kinds = {"seq": Sequence, "block": Block, "ctx": Context}
    rows = re.findall(r"^# \| `(seq|block|ctx)\.`[^|]*\| (.+) \|$", text, flags=re.MULTILINE)
    named = [
        (kind, re.findall(r"\w+", re.sub(r"\([^)]*\)", "", span)))
        for kind, facts in rows
        for span in re.findall(r"`([^`]+)`", facts)
        if span != "None"
    ]
    assert sum(len(names) for _, names in named) > 35
    assert [name for kind, names in named for name in names if not hasattr(kinds[kind], name)] == []


@pytest.mark.slow
@pytest.mark.parametrize("source", RUNS, ids=BOOKS)
def test_jupyter_runs_a_notebook(source: Path) -> None:
    jupytext = pytest.importorskip("jupytext")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    content = jupytext.read(source)
    nbclient.NotebookClient(content, timeout=300, kernel_name="python3").execute()
    kept = [cell["source"] for cell in notebook(source.stem)["cells"]]
    assert [cell["source"] for cell in content["cells"]] == ["".join(lines) for lines in kept]
