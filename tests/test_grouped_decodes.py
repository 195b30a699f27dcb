"""Decodes as one group against decodes one by one, and what holds for every workload."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stepper import Listed, Stepper, prompt

from simulator.engine.decisions import Decision, DecisionLog
from simulator.engine.serve import serve
from simulator.kv.block_manager import BlockManager
from simulator.latency.linear import LinearModel
from simulator.metrics.tables import StepTable
from simulator.request import Request
from simulator.schedulers.base import Scheduler
from simulator.schedulers.chunked import Chunked
from simulator.schedulers.orders import ORDERS
from simulator.schedulers.preemption import VICTIMS

CLOCK = LinearModel(0.25, per_token=2.0**-10)  # exact in binary, so that time-outs can meet step ends
EXAMPLES = settings(max_examples=60, deadline=None)


@dataclass(frozen=True)
class Setting:
    """What a scheduler is made of, for as many schedulers as a test needs."""

    num_blocks: int
    block_size: int
    caching: bool
    watermark: int
    order: str
    victim: str | None
    limits: dict[str, Any]
    async_scheduling: bool

    def scheduler(self, policy: type[Scheduler]) -> Scheduler:
        kv = BlockManager(
            self.num_blocks,
            self.block_size,
            enable_prefix_caching=self.caching,
            watermark_blocks=self.watermark,
        )
        victim = None if self.victim is None else VICTIMS[self.victim]
        made = policy(kv, order=ORDERS[self.order], victim=victim, latency=LinearModel(0.25), **self.limits)
        made.ctx.open_oracle(lambda seq: -seq.num_output % 7)
        return made


@st.composite
def a_setting(draw: st.DrawFn) -> Setting:
    num_seqs = draw(st.integers(1, 8))
    return Setting(
        num_blocks=draw(st.integers(4, 40)),
        block_size=draw(st.sampled_from([1, 2, 4, 5])),
        caching=draw(st.booleans()),
        watermark=draw(st.integers(0, 2)),
        order=draw(st.sampled_from(sorted(ORDERS))),
        victim=draw(st.sampled_from([None, *sorted(VICTIMS)])),
        limits={
            "max_num_seqs": num_seqs,
            "max_num_batched_tokens": num_seqs + draw(st.integers(0, 40)),
            "max_model_len": draw(st.sampled_from([24, 100])),
            "long_prefill_token_threshold": draw(st.sampled_from([0, 3, 8])),
            "scheduler_reserve_full_isl": draw(st.booleans()),
        },
        async_scheduling=draw(st.booleans()),
    )


@st.composite
def a_workload(draw: st.DrawFn) -> list[tuple[int, int, int, int, int, int, int | None]]:
    row = st.tuples(
        st.integers(0, 6),  # time since the last arrival, in half steps
        st.integers(1, 30),  # prompt
        st.integers(1, 30),  # true output
        st.integers(1, 30),  # max_tokens
        st.integers(0, 2),  # priority
        st.integers(0, 6),  # blocks shared with others of the same kind
        st.sampled_from([None, None, None, 1, 4, 11]),  # time-out, in steps
    )
    return draw(st.lists(row, min_size=1, max_size=14))


def requests_of(rows: list[tuple[int, ...]], block_size: int) -> list[Request]:
    requests = []
    now = 0.0
    for i, (gap, num_prompt, num_output, max_tokens, priority, shared, timeout) in enumerate(rows):
        now += 0.125 * gap
        blocks = min(shared, num_prompt // block_size)
        first = 1000 * (shared % 2)  # two families of prompts
        requests.append(
            Request(
                f"r{i:02d}",
                now,
                num_prompt,
                num_output,
                max_tokens,
                block_hashes=((first, first + blocks),) if blocks else (),
                priority=priority,
                timeout=None if timeout is None else 0.25 * timeout,
            )
        )
    return requests


def decisions(
    policy: type[Scheduler], setting: Setting, requests: list[Request]
) -> tuple[list[Decision], StepTable, Scheduler]:
    scheduler = setting.scheduler(policy)
    log = DecisionLog()
    served = serve(
        requests,
        scheduler,
        CLOCK,
        async_scheduling=setting.async_scheduling,
        observers=[log],
        check_invariants=True,
    )
    return log.lines, served.recorder.step_table(), scheduler


@EXAMPLES
@given(setting=a_setting(), rows=a_workload())
def test_decodes_as_a_group_and_one_by_one_decide_and_cost_the_same(setting: Setting, rows: list) -> None:
    requests = requests_of(rows, setting.block_size)
    grouped, grouped_steps, scheduler = decisions(Chunked, setting, requests)
    listed, listed_steps, other = decisions(Listed, setting, requests)
    assert grouped == listed
    for name in StepTable.__slots__:
        np.testing.assert_array_equal(getattr(grouped_steps, name), getattr(listed_steps, name), name)
    assert other.num_grouped_steps == 0
    assert scheduler.kv.num_hits == other.kv.num_hits
    assert scheduler.kv.num_used == 0


TOKENS = 3  # so small a vocabulary that unrelated answers meet


def next_token(tokens: list[int]) -> int:
    """Decode greedily: the next token depends on the tokens so far and on nothing else."""
    return (7 * tokens[-1] + 3 * tokens[len(tokens) // 2] + len(tokens)) % TOKENS


@st.composite
def a_stepper_config(draw: st.DrawFn) -> dict[str, Any]:
    num_seqs = draw(st.integers(1, 6))
    return {
        "usable_blocks": draw(st.integers(16, 40)),
        "block_size": draw(st.sampled_from([2, 3, 4])),
        "max_num_seqs": num_seqs,
        "max_num_batched_tokens": num_seqs + draw(st.integers(0, 30)),
        "max_model_len": 33,
        "enable_prefix_caching": draw(st.booleans()),
        "scheduling_policy": draw(st.sampled_from(sorted(ORDERS.keys() - {"srpt_oracle"}))),
        "long_prefill_token_threshold": draw(st.sampled_from([0, 4])),
        "watermark": draw(st.sampled_from([0.0, 0.1])),
        "scheduler_reserve_full_isl": draw(st.booleans()),
    }


PROMPTS = st.lists(
    st.tuples(
        st.integers(0, 3),  # steps since the last arrival
        st.lists(st.integers(0, TOKENS - 1), min_size=1, max_size=20),
        st.integers(1, 20),  # max_tokens
        st.integers(0, 2),  # priority
    ),
    min_size=1,
    max_size=10,
)


def played(policy: type[Scheduler], config: dict[str, Any], prompts: list) -> Stepper:
    """Run prompts to their end, checking the scheduler's books around every step."""
    engine = Stepper(policy, next_token, **config)
    for i, (gap, tokens, max_tokens, priority) in enumerate(prompts):
        for _ in range(gap):
            engine.step()
        engine.submit(f"r{i:02d}", tokens, max_tokens, priority)
    engine.run()
    return engine


@EXAMPLES
@given(config=a_stepper_config(), prompts=PROMPTS)
def test_with_hashes_of_outputs_too_the_group_decides_as_the_list(config: dict, prompts: list) -> None:
    assert played(Chunked, config, prompts).steps == played(Listed, config, prompts).steps


@pytest.mark.parametrize("policy", [Chunked, Listed])
def test_the_last_free_block_is_taken_before_a_victim_frees_its_own(policy: type[Scheduler]) -> None:
    """X and Y open a block each while one, cached, is free: X evicts it, then V, without hashes, goes."""
    engine = Stepper(policy, usable_blocks=10, block_size=4)
    old = prompt(12)
    engine.submit("old", old, max_tokens=1)
    engine.step()
    engine.submit("X", prompt(3))
    engine.submit("Y", prompt(3))
    engine.caching = False
    engine.submit("V", prompt(26))
    engine.caching = True
    steps = [engine.step() for _ in range(3)]
    assert [step["preempted"] for step in steps] == [[], [], ["V"]]
    assert [step["free_blocks"] for step in steps] == [1, 1, 6]
    assert (engine.lookup(old), engine.scheduler.kv.pool.num_evicted) == (0, 3)


@EXAMPLES
@given(config=a_stepper_config(), prompts=PROMPTS)
def test_10_3_nobody_starves_and_nothing_exceeds_its_limits(config: dict, prompts: list) -> None:
    """The books (free + used, references) are checked by `Scheduler.check` after every call."""
    engine = played(Chunked, config, prompts)
    for step in engine.steps:
        rows = step["scheduled"]
        assert sum(n for _, n in rows) <= config["max_num_batched_tokens"]
        assert len(step["running"]) <= config["max_num_seqs"]
        assert [id for id, _ in rows] == [id for id in step["running"] if id in dict(rows)]
        assert sum(step["held_blocks"].values()) >= config["usable_blocks"] - step["free_blocks"]
        assert not (step["preempted"] and step["admitted_cached_tokens"])
    ended = [id for step in engine.steps for id in step["finished"]]
    assert sorted(ended) == [f"r{i:02d}" for i in range(len(prompts))]
    assert engine.used == 0


@EXAMPLES
@given(config=a_stepper_config(), other=a_stepper_config(), prompts=PROMPTS)
def test_10_3_answers_do_not_depend_on_scheduling(config: dict, other: dict, prompts: list) -> None:
    one, two = played(Chunked, config, prompts), played(Chunked, other, prompts)
    assert one.tokens == two.tokens
    for i, (_, tokens, max_tokens, _) in enumerate(prompts):
        assert len(one.tokens[f"r{i:02d}"]) == len(tokens) + min(max_tokens, 33 - len(tokens))
