"""Speculative decoding: what a step gives, what is taken back, and that a log reproduces a run."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simulator.batch import Batch, Sampled, StepResult
from simulator.config.build import build_machine
from simulator.config.loading import load_scenario
from simulator.config.run import run_scenario
from simulator.config.scenario import Scenario
from simulator.engine.decisions import DecisionLog
from simulator.engine.serve import Served, serve
from simulator.errors import ConfigError, InputError
from simulator.experiments.bounds import find_bounds
from simulator.kv.block_manager import BlockManager
from simulator.latency.base import StepFeatures
from simulator.latency.drafting import with_draft_model
from simulator.latency.linear import LinearModel
from simulator.request import Request, Sequence
from simulator.schedulers import BATCHING, Scheduler
from simulator.schedulers.admission import reserve_output
from simulator.schedulers.chunked import Chunked
from simulator.schedulers.context import Context
from simulator.schedulers.continuous import Continuous
from simulator.schedulers.orders import priority
from simulator.schedulers.speculating import Speculation
from simulator.specs import get_hardware, get_model
from simulator.speculative import (
    Acceptance,
    ByLog,
    ByRate,
    Verification,
    read_log,
    same_rate,
    write_log,
)

CLOCK = LinearModel(0.25, per_token=2.0**-10)
SEED = np.random.SeedSequence(7)


def a_scheduler(speculation: Speculation, num_blocks: int = 100, **limits: Any) -> Chunked:
    return Chunked(BlockManager(num_blocks, 4), max_num_seqs=8, speculation=speculation, **limits)


def step(
    scheduler: Scheduler, drafts: int = 3, accepted: int = 0, num_tokens: int | None = None
) -> tuple[Batch, list[Sequence]]:
    """Schedule, accept so many drafts of everybody, and learn."""
    batch = scheduler.schedule(0.0)
    sampling = [chunk for chunk in batch.chunks if chunk.samples]
    sampled = {}
    for chunk in sampling:
        n = min(accepted, chunk.num_draft)
        sampled[chunk.seq] = Sampled(num_tokens or n + 1, n)
    result = StepResult([], sampled=sampled, drafts={chunk.seq: drafts for chunk in sampling})
    done = scheduler.update(batch, result, 0.0)
    scheduler.check()
    return batch, done


def test_rejected_drafts_lower_num_computed_and_return_no_blocks() -> None:
    scheduler = a_scheduler(Speculation.by_ngram(3))
    seq = Sequence("a", 4, 100)
    scheduler.add(seq)
    step(scheduler)  # the prompt
    assert (seq.num_computed, seq.num_tokens, seq.num_draft, seq.num_blocks) == (4, 5, 3, 1)
    batch, _ = step(scheduler, accepted=0)
    assert [(chunk.num_tokens, chunk.start, chunk.num_draft) for chunk in batch.chunks] == [(4, 4, 3)]
    assert (seq.num_computed, seq.num_tokens, seq.num_blocks) == (5, 6, 2)
    batch, _ = step(scheduler, accepted=3)  # positions 5 to 8 need a third block
    assert (seq.num_computed, seq.num_tokens, seq.num_blocks) == (9, 10, 3)
    assert scheduler.kv.num_used == 3


def test_a_verified_sequence_is_priced_as_a_decode_with_more_rows() -> None:
    scheduler = a_scheduler(Speculation.by_ngram(3))
    scheduler.add(Sequence("a", 10, 100))
    scheduler.add(Sequence("b", 20, 100))
    step(scheduler)
    batch, _ = step(scheduler)
    assert (batch.num_tokens, batch.num_seqs, batch.num_sampled, batch.num_drafts) == (8, 2, 8, 6)
    assert (batch.num_decodes, batch.decode_kv, batch.decode_kv_max) == (2, 14 + 24, 24)
    assert (batch.prefill_tokens, batch.prefill_work, batch.prefill_kv_max) == (0, 0.0, 0)


def test_a_draft_model_takes_lookahead_slots_and_a_row_of_the_budget() -> None:
    scheduler = a_scheduler(Speculation.by_draft_model(3), max_num_batched_tokens=16)
    seq = Sequence("a", 20, 100)
    scheduler.add(seq)
    batch, _ = step(scheduler)
    assert batch.chunks[0].num_tokens == 15
    assert seq.num_blocks == math.ceil((15 + 3) / 4)
    assert seq.num_draft == 0  # drafts for an unfinished prompt are dropped (8.2)
    step(scheduler)
    assert seq.num_draft == 3


@pytest.mark.parametrize(("max_tokens", "max_model_len"), [(3, 100), (100, 7)])
def test_a_limit_inside_an_accepted_run_drops_the_rest(max_tokens: int, max_model_len: int) -> None:
    scheduler = a_scheduler(Speculation.by_ngram(3), max_model_len=max_model_len)
    seq = Sequence("a", 4, max_tokens)
    scheduler.add(seq)
    step(scheduler)
    batch, done = step(scheduler, accepted=3)
    assert batch.chunks[0].num_draft == (3 if max_model_len == 100 else 1)  # 3.5
    assert done == [seq]
    assert (seq.num_output, seq.state) == (3, "finished")
    assert scheduler.kv.num_used == 0


def test_a_preempted_sequence_has_no_drafts_and_resumes_padded() -> None:
    """A resumes with its last token to compute, beside B that decodes: both have 1 + K rows (3.17)."""
    scheduler = a_scheduler(Speculation.by_ngram(3))
    b, a = Sequence("b", 9, 100), Sequence("a", 8, 100, hash_ranges=[(0, 9)], hash_private_from=9)
    scheduler.add(b)
    scheduler.add(a)
    step(scheduler)
    assert (a.num_draft, a.num_computed) == (3, 8)
    scheduler.preempt(a, Batch(0))
    assert (a.num_draft, a.speculates, a.slots, a.num_computed) == (0, False, 0, 0)
    batch, _ = step(scheduler)
    rows = [(chunk.seq.id, chunk.num_tokens, chunk.num_draft, chunk.is_decode) for chunk in batch.chunks]
    assert rows == [("b", 4, 3, True), ("a", 4, 3, False)]
    assert (batch.num_tokens, batch.prefill_tokens, batch.num_sampled) == (8, 1, 8)
    assert (a.num_computed, a.num_tokens) == (9, 10)


def test_drafts_fill_no_block_before_they_are_accepted() -> None:
    scheduler = a_scheduler(Speculation.by_ngram(3))
    seq = Sequence("a", 4, 100, hash_ranges=[(0, 9)], hash_private_from=9)
    scheduler.add(seq)
    step(scheduler)
    step(scheduler, accepted=0)  # token 4 and drafts up to 7
    assert (seq.num_computed, seq.num_hashed) == (5, 1)  # 6.4
    step(scheduler, accepted=3)
    assert (seq.num_computed, seq.num_hashed) == (9, 2)  # 6.5


def test_a_step_without_drafts_after_rejected_ones_keeps_their_blocks() -> None:
    scheduler = a_scheduler(Speculation.by_ngram(3))
    seq = Sequence("a", 6, 100)
    scheduler.add(seq)
    step(scheduler)
    step(scheduler, drafts=0)
    assert (seq.num_computed, seq.num_draft, seq.num_blocks) == (7, 0, 3)
    step(scheduler)  # checks the books
    assert (seq.num_computed, seq.num_blocks) == (8, 3)


def test_a_victim_scheduled_in_the_step_gives_its_rows_back() -> None:
    """A has its rows when B lacks a block: B, C and D share the budget without it, a drafter's row each."""
    scheduler = a_scheduler(Speculation.by_draft_model(2), 12, order=priority, max_num_batched_tokens=12)
    a, *others = (
        Sequence(id, 9 if id == "a" else 5, 100, priority=id == "a", hash_ranges=[(i * 50, i * 50 + 50)])
        for i, id in enumerate("abcd")
    )
    scheduler.add(a)
    step(scheduler, drafts=2)
    for seq in others:
        scheduler.add(seq)
    batch, _ = step(scheduler, drafts=2)
    while not batch.preempted:
        batch, _ = step(scheduler, drafts=2)
    assert batch.preempted == [a]
    assert [(chunk.seq.id, chunk.num_tokens) for chunk in batch.chunks] == [("b", 3), ("c", 3), ("d", 3)]
    assert a.num_tokens % 4 >= 2  # its two drafts would have filled one more block
    assert scheduler.kv.pool.num_cached_free + scheduler.kv.pool.num_evicted == a.num_tokens // 4


def test_a_tenant_is_charged_for_what_is_kept() -> None:
    charged: Counter[str] = Counter()

    class Charging:
        def key(self, seq: Sequence, ctx: Context) -> float:
            return seq.arrival

        def served(self, seq: Sequence, num_tokens: int) -> None:
            charged[seq.id] += num_tokens

    scheduler = a_scheduler(Speculation.by_ngram(3), order=Charging())
    scheduler.add(Sequence("a", 10, 100))
    for accepted in (0, 0, 3, 1):
        step(scheduler, accepted=accepted)
    assert charged == {"a": 10 + 1 + 4 + 2}


@pytest.mark.parametrize(("num_blocks", "is_served"), [(2, False), (3, True)])
def test_a_request_must_fit_with_its_last_drafts(num_blocks: int, is_served: bool) -> None:
    """Prompt and answer take 8 slots of 4 a block, and 3 drafts behind the last but one token 3 more."""
    scheduler = a_scheduler(Speculation.by_ngram(3), num_blocks)
    acceptance = ByRate([0.0, 0.0, 0.0], SEED)
    recorder = serve([Request("r", 0.0, 5, 4, 4)], scheduler, CLOCK, acceptance=acceptance).recorder
    assert bool(recorder.num_output[0]) == is_served


@pytest.mark.parametrize("num_blocks", range(20, 60, 3))
@pytest.mark.parametrize(("batching", "rules"), [("static", []), ("chunked", [reserve_output])])
def test_who_reserves_an_answer_reserves_its_drafts(num_blocks: int, batching: str, rules: list[Any]) -> None:
    load = [replace(request, max_tokens=request.num_output) for request in requests(20, 40)]
    scheduler = BATCHING[batching](
        BlockManager(num_blocks, 4),
        max_num_seqs=6,
        admission=rules,
        speculation=Speculation.by_draft_model(3),
    )
    recorder = serve(load, scheduler, CLOCK, acceptance=ByRate([0.5, 0.5, 0.5], SEED)).recorder
    assert recorder.step_table().num_preempted.sum() == 0


def test_continuous_gives_a_prompt_its_step_that_does_not_fit_beside_the_drafts() -> None:
    scheduler = Continuous(
        BlockManager(100, 4), max_num_seqs=8, max_num_batched_tokens=10, speculation=Speculation.by_ngram(2)
    )
    for id in "ab":
        scheduler.add(Sequence(id, 3, 100))
    step(scheduler, drafts=2)
    scheduler.add(Sequence("c", 6, 100))
    batch, _ = step(scheduler, drafts=2)
    assert [chunk.seq.id for chunk in batch.chunks] == ["c"]


def test_an_executor_that_accepts_what_was_not_drafted_is_told() -> None:
    scheduler = a_scheduler(Speculation.by_ngram(3))
    scheduler.add(Sequence("a", 4, 100))
    with pytest.raises(ValueError, match="5 tokens with 0 of 0 drafts accepted"):
        step(scheduler, num_tokens=5)


def requests(n: int, num_output: int = 60) -> list[Request]:
    rng = np.random.default_rng(3)
    return [
        Request(f"r{i}", 0.3 * i, int(rng.integers(1, 40)), int(rng.integers(1, num_output)), 500)
        for i in range(n)
    ]


def served(acceptance: Acceptance, batching: str = "chunked", num_blocks: int = 60, **how: Any) -> Served:
    scheduler = BATCHING[batching](
        BlockManager(num_blocks, 4),
        max_num_seqs=6,
        max_num_batched_tokens=64,
        speculation=Speculation.by_ngram(3),
    )
    return serve(requests(20), scheduler, CLOCK, acceptance=acceptance, **how)


class Noting:
    """An acceptance model that writes down what it was asked, as a real engine does."""

    def __init__(self, inner: Acceptance) -> None:
        self.inner = inner
        self.rows: list[Verification] = []

    def num_proposed(self, seq: Sequence, position: int) -> int:
        return self.inner.num_proposed(seq, position)

    def num_accepted(self, seq: Sequence, position: int, num_draft: int) -> int:
        accepted = self.inner.num_accepted(seq, position, num_draft)
        self.rows.append(Verification(seq.id, position, num_draft, accepted))
        return accepted

    def forget(self, seq: Sequence) -> None:
        self.inner.forget(seq)


def test_the_same_drafts_are_accepted_under_every_policy() -> None:
    found = []
    for batching in BATCHING:
        noting = Noting(ByRate(same_rate(0.7, 3), SEED))
        served(noting, batching, num_blocks=300)
        found.append({(row.request, row.position): row for row in noting.rows})
    assert len(found[0]) > 100
    assert all(each == found[0] for each in found)


@pytest.mark.parametrize("rate", [0.0, 0.3, 0.8, 1.0])
@pytest.mark.parametrize("num_draft", [1, 4])
def test_tokens_a_step_are_those_of_the_geometric_sum(rate: float, num_draft: int) -> None:
    """Leviathan et al., equation 1, within four standard errors."""
    acceptance = ByRate(same_rate(rate, num_draft), SEED)
    seqs = [Sequence(f"s{i}", 1, 1, index=i) for i in range(200)]
    tokens = np.array([1 + acceptance.num_accepted(seq, at, num_draft) for seq in seqs for at in range(50)])
    expected = num_draft + 1 if rate == 1 else (1 - rate ** (num_draft + 1)) / (1 - rate)
    assert abs(tokens.mean() - expected) <= 4 * tokens.std() / math.sqrt(len(tokens)) + 1e-12


def test_a_run_gives_as_many_tokens_a_step_as_the_rate_says() -> None:
    scheduler = a_scheduler(Speculation.by_ngram(3), num_blocks=4000)
    one = Request("r", 0.0, 10, 9000, 10000)
    recorder = serve([one], scheduler, CLOCK, acceptance=ByRate(same_rate(0.6, 3), SEED)).recorder
    steps = recorder.num_steps - 1
    expected = (1 - 0.6**4) / 0.4
    assert abs(8999 / steps - expected) < 4 * 1.2 / math.sqrt(steps)
    assert recorder.num_output.tolist() == [9000]
    assert recorder.step_table().output_tokens.sum() == 9000
    gaps, weights = recorder.gaps()
    assert weights.sum() == steps  # as vLLM's benchmark: a gap is between two deliveries
    np.testing.assert_allclose(gaps.max(), CLOCK.step_time(StepFeatures(num_tokens=4)))


def test_rates_by_position_are_shares_of_all_drafts() -> None:
    noting = Noting(ByRate([0.9, 0.5, 0.1], SEED))
    recorder = served(noting, num_blocks=300).recorder
    assert recorder.verifications is not None
    summary: dict[str, Any] = recorder.verifications.summary()
    whole = [row for row in noting.rows if row.drafted == 3]
    n = len(whole)
    assert summary["spec_decode_num_drafts"] == len(noting.rows) == n
    assert summary["spec_decode_draft_tokens"] == 3 * n
    assert summary["spec_decode_accepted_tokens"] == sum(row.accepted for row in whole)
    rates = summary["spec_decode_per_position_acceptance_rates"]
    for rate, expected in zip(rates, [0.9, 0.5, 0.1], strict=True):
        assert abs(rate - expected) < 4 * math.sqrt(expected * (1 - expected) / n)
    assert summary["spec_decode_acceptance_length"] == pytest.approx(1 + sum(rates))
    assert summary["spec_decode_acceptance_rate"] == pytest.approx(100 * sum(rates) / 3)


@pytest.mark.parametrize("num_blocks", [300, 36])  # without and with preemptions
def test_a_measured_log_reproduces_its_run(num_blocks: int, tmp_path: Path) -> None:
    noting = Noting(ByRate([0.7, 0.6, 0.2], SEED))
    first = served(noting, num_blocks=num_blocks).recorder
    write_log(tmp_path / "log.csv", noting.rows)
    log = read_log(tmp_path / "log.csv")
    assert log == noting.rows
    again = served(ByLog(log, 3, np.random.SeedSequence(99)), num_blocks=num_blocks).recorder
    assert again.finished_at == first.finished_at
    assert (first.step_table().num_preempted.sum() > 0) == (num_blocks == 36)


def test_requests_that_a_log_does_not_know_draw_from_its_rows() -> None:
    log = [Verification("other", i, 2, 1) for i in range(10)]
    log += [Verification("other", 10 + i, 0, 0) for i in range(10)]
    noting = Noting(ByLog(log, 3, SEED))
    recorder = served(noting, num_blocks=300).recorder
    assert {row[2:] for row in noting.rows} == {(2, 1)}
    decoding = recorder.step_table().num_decodes.sum()
    assert abs(len(noting.rows) / decoding - 0.5) < 4 * 0.5 / math.sqrt(decoding)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "begins with the line request,position,drafted,accepted"),
        ("a,b\n", "begins with the line request,position,drafted,accepted"),
        ("request,position,drafted,accepted\nx,1,2\n", "line 2: must be a name and three whole numbers"),
        ("request,position,drafted,accepted\nx,1,2,3\n", "line 2: needs position >= 0 and 0 <= accepted"),
        ("request,position,drafted,accepted\nx,1,0,0\n", "has no verification of draft tokens"),
    ],
)
def test_a_bad_log_is_told_in_one_line(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text(text)
    with pytest.raises(InputError, match=message):
        read_log(tmp_path / "log.csv")


def test_the_decision_log_shows_drafts() -> None:
    log = DecisionLog()
    served(ByRate([1.0, 1.0, 1.0], SEED), observers=[log])
    assert all(line["decodes"] == 0 for line in log.lines)
    assert "drafts" not in log.lines[0]
    line = next(line for line in log.lines if "drafts" in line)
    assert line["drafts"] == {"r0": 3}
    assert [chunk[:2] for chunk in line["chunks"] if chunk[0] == "r0"] == [("r0", 4)]


NGRAM = {"method": "ngram", "acceptance": 0.7}
DRAFT = {"method": "draft_model", "acceptance": 0.7, "draft_model": "llama-3.2-1b"}


def scenario(speculative: dict[str, Any] | None, **keys: Any) -> Scenario:
    return load_scenario("chat-a100").with_(
        **{"workload.num_requests": 60, "speculative": speculative} | keys
    )


def test_a_scenario_with_drafts_runs_quicker_and_says_so() -> None:
    plain, ngram = run_scenario(scenario(None)), run_scenario(scenario(NGRAM))
    assert "spec_decode_num_drafts" not in plain.summary
    assert ngram.summary["spec_decode_acceptance_length"] == pytest.approx(1 + 0.7 + 0.49 + 0.343, abs=0.05)
    assert plain.summary["total_output_tokens"] == ngram.summary["total_output_tokens"]
    assert ngram.summary["mean_tpot_ms"] < 0.7 * plain.summary["mean_tpot_ms"]  # type: ignore[operator]
    assert ngram.own["is_stepped"]


def test_a_draft_model_costs_memory_and_time() -> None:
    plain, draft = build_machine(scenario(None)), build_machine(scenario(DRAFT))
    small = get_model("llama-3.2-1b")
    assert draft.kv.weight_bytes == plain.kv.weight_bytes + small.weight_bytes()
    assert draft.kv.block_bytes == plain.kv.block_bytes + 16 * small.kv_bytes_per_token()
    one = StepFeatures(4, 1, 4, 1, 1000, 1000)
    price = with_draft_model(plain.latency, get_hardware("a100-80gb-sxm"), small, 3)
    assert draft.latency.step_time(one) == price.step_time(one)
    passes = [StepFeatures(5, 1, 1, 1, 1000, 1000), *(StepFeatures.decode([1000 + i]) for i in (1, 2))]
    by_hand = plain.latency.step_time(one) + sum(price.draft.step_time(each) for each in passes)
    assert price.step_time(one) == pytest.approx(by_hand)
    assert 2 * small.num_params / 2.04e12 < price.draft.step_time(passes[1]) < 0.01  # reads its weights
    np.testing.assert_array_equal(
        price.decode_times(one, 2), [price.step_time(one), price.step_time(one._replace(decode_kv=1001))]
    )


@pytest.mark.parametrize(
    ("speculative", "keys", "message"),
    [
        (NGRAM, {"scheduler.async_scheduling": True}, "async_scheduling: must be false under speculative"),
        (DRAFT | {"draft_model": "qwen3-8b"}, {}, "draft_model: qwen3-8b has a vocabulary of 151,936 tokens"),
        (DRAFT | {"draft_model": "llama-3.2-2b"}, {}, "speculative.draft_model: 'llama-3.2-2b' is neither"),
    ],
)
def test_what_cannot_be_is_refused(speculative: dict[str, Any], keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_machine(scenario(speculative, **keys))


def test_a_log_of_fewer_drafts_is_refused(tmp_path: Path) -> None:
    write_log(tmp_path / "log.csv", [Verification("r", 1, 2, 1)])
    keys = {"method": "ngram", "acceptance": str(tmp_path / "log.csv")}
    with pytest.raises(ConfigError, match="has at most 2 drafts a row"):
        run_scenario(scenario(keys))


def test_bounds_refuse_speculation() -> None:
    with pytest.raises(ConfigError, match="speculative must be null"):
        find_bounds(run_scenario(scenario(NGRAM)))
