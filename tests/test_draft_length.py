"""Draft lengths that change with the load, what looking drafts up costs, and the cases SP-01 and SP-02."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.batch import Batch, Sampled, StepResult
from simulator.config.build import NO_POLICIES, build_machine
from simulator.config.build_scheduler import build_scheduler
from simulator.config.loading import load_scenario
from simulator.config.run import run_scenario
from simulator.config.scenario import Scenario
from simulator.engine.serve import Served, serve
from simulator.errors import ConfigError
from simulator.kv.block_manager import BlockManager
from simulator.latency.base import LatencyModel, StepFeatures
from simulator.latency.drafting import DraftingStep, WithDraftModel, WithLookup
from simulator.latency.linear import LinearModel
from simulator.metrics.verifications import Verifications
from simulator.request import Request, Sequence
from simulator.schedulers import BATCHING
from simulator.schedulers.chunked import Chunked
from simulator.schedulers.draft_length import DraftLength, Goodput, PerBatchSize
from simulator.schedulers.speculating import Speculation
from simulator.speculative import ByRate, expected_tokens, same_rate

SEED = np.random.SeedSequence(7)
CLOCK = LinearModel(0.25, per_token=2.0**-10)
NGRAM: dict[str, Any] = {"method": "ngram", "num_speculative_tokens": 5, "acceptance": 0.7}
DRAFT: dict[str, Any] = NGRAM | {"method": "draft_model", "draft_model": "llama-3.2-1b"}
LENGTHS = "num_speculative_tokens_per_batch_size"


def scenario(speculative: dict[str, Any] | None, **keys: Any) -> Scenario:
    return load_scenario("chat-a100").with_(
        **{"workload.num_requests": 60, "speculative": speculative} | keys
    )


def served(
    length: DraftLength | None,
    rate: float = 0.7,
    latency: LatencyModel = CLOCK,
    num_requests: int = 12,
    batching: str = "chunked",
    **how: Any,
) -> Served:
    """Serve requests that arrive at once and end one after the other, so that the batch shrinks."""
    scheduler = BATCHING[batching](
        BlockManager(400, 4),
        max_num_seqs=8,
        max_num_batched_tokens=64,
        latency=latency,
        speculation=Speculation.by_ngram(4, length),
    )
    load = [Request(f"r{i}", 0.0, 6, 5 + 9 * i, 150) for i in range(num_requests)]
    return serve(load, scheduler, latency, acceptance=ByRate(same_rate(rate, 4), SEED), **how)


# SP-01: expected tokens.


@pytest.mark.parametrize(
    ("rate", "num_draft", "tokens"), [(0.8, 4, 3.3616), (0, 4, 1), (1, 4, 5), (0.8, 0, 1)]
)
def test_sp_01_expected_tokens_a_verification(rate: float, num_draft: int, tokens: float) -> None:
    rates = same_rate(rate, num_draft)
    assert expected_tokens(rates) == pytest.approx(tokens, abs=1e-12)
    acceptance = ByRate(rates, SEED)
    seqs = [Sequence(f"s{i}", 1, 1, index=i) for i in range(1000)]
    found = [1 + acceptance.num_accepted(seq, at, num_draft) for seq in seqs for at in range(100)]
    assert np.mean(found) == pytest.approx(tokens, abs=0.02)
    assert np.mean(found) - 1 == pytest.approx(tokens - 1, abs=0.02)  # the drafts alone: 2.3616


def test_sp_01_speed_up_with_sequential_drafts_of_a_tenth_of_a_step() -> None:
    """One request alone, steps of 1 s, drafts of 0.1 s each: 3.3616 tokens in 1.4 s."""
    latency = WithDraftModel(LinearModel(1.0), LinearModel(0.1), 4)
    scheduler = Chunked(
        BlockManager(20_000, 4), max_model_len=80_000, speculation=Speculation.by_draft_model(4)
    )
    num_output = 60_000
    request = Request("r", 0.0, 1, num_output, num_output)
    acceptance = ByRate(same_rate(0.8, 4), SEED)
    found = serve([request], scheduler, latency, acceptance=acceptance).recorder.step_table()
    steps = len(found) - 1
    assert found.end[-1] - found.end[0] == pytest.approx(1.4 * steps)
    tokens = (num_output - 1) / steps
    assert tokens == pytest.approx(3.3616, abs=4 * 1.7 / math.sqrt(steps))  # four standard errors
    assert tokens / 1.4 == pytest.approx(2.401, abs=0.04)


# SP-02: counting what is accepted.


def test_sp_02_nothing_counts_behind_the_first_rejection() -> None:
    """Masks 1,0,1 and 1,1,1, as the real engine verifies them and the metrics count them."""
    torch = pytest.importorskip("torch")
    from gpu_backend.sampling import SamplingParams
    from gpu_backend.speculative import verify_all

    masks, vocab = [[1, 0, 1], [1, 1, 1]], 5
    logits = torch.nn.functional.one_hot(torch.ones(8, dtype=torch.long), vocab).float()
    drafts = [[1 if is_right else 2 for is_right in mask] for mask in masks]
    emitted = verify_all(logits, drafts, None, [SamplingParams()] * 2, [10, 10])
    assert [len(ids) for ids in emitted] == [2, 4]
    counted = counts([(3, len(ids) - 1) for ids in emitted])
    assert counted["spec_decode_accepted_tokens"] == 4
    assert counted["spec_decode_acceptance_length"] == 3.0
    assert counted["spec_decode_acceptance_rate"] == pytest.approx(100 * 4 / 6)


def counts(verified: list[tuple[int, int]]) -> dict[str, Any]:
    """Return what the metrics say of verifications given as (drafts, accepted)."""
    verifications = Verifications()
    scheduler = Chunked(BlockManager(2000, 4), speculation=Speculation.by_ngram(3))
    seqs = [Sequence(f"s{i}", 4, 100, index=i) for i in range(len(verified))]
    for seq in seqs:
        scheduler.add(seq)
    batch = scheduler.schedule(0.0)
    wanted = {seq: n for seq, (n, _) in zip(seqs, verified, strict=True)}
    scheduler.update(batch, StepResult([], drafts=wanted), 0.0)
    batch = scheduler.schedule(0.0)
    results = {seq: Sampled(m + 1, m) for seq, (_, m) in zip(seqs, verified, strict=True)}
    verifications.learnt(batch, StepResult([], sampled=results), 1)
    return verifications.summary()


def test_sp_02_published_counts() -> None:
    """87 verifications of 259 drafts, 167 accepted: 0.6448 and 2.92, as vLLM prints them."""
    verified = [(3, 2)] * 80 + [(3, 1)] * 6 + [(1, 1)]
    assert (len(verified), *map(sum, zip(*verified, strict=True))) == (87, 259, 167)
    found = counts(verified)
    assert found["spec_decode_acceptance_rate"] == pytest.approx(64.48, abs=0.005)
    assert found["spec_decode_acceptance_length"] == pytest.approx(2.92, abs=0.005)


def test_sp_02_the_tail_is_cut_at_max_tokens() -> None:
    """Two tokens are left and a step could give four: it gives two."""
    scheduler = Chunked(BlockManager(100, 4), speculation=Speculation.by_ngram(3))
    one = Request("r", 0.0, 4, 100, max_tokens=3)
    found = serve([one], scheduler, CLOCK, acceptance=ByRate([1.0] * 3, SEED)).recorder
    assert found.num_output.tolist() == [3]
    assert found.step_table().output_tokens.tolist() == [1, 2]


def test_sp_02_prompt_chunks_keep_no_slots_and_rejected_rows_are_used_again() -> None:
    """By n-grams. A draft model's lookahead is kept in prompt chunks too, as vLLM 0.33 does (rule 5.4)."""
    scheduler = Chunked(
        BlockManager(100, 4),
        max_num_seqs=8,
        max_num_batched_tokens=128,
        speculation=Speculation.by_ngram(4),
    )
    seq = Sequence("a", 256, 100)
    scheduler.add(seq)
    for num_blocks in (32, 64):
        batch = scheduler.schedule(0.0)
        assert (batch.num_drafts, seq.num_blocks) == (0, num_blocks)
        scheduler.update(batch, StepResult([], drafts={seq: 4}), 0.0)
    starts = []
    for _ in range(3):  # all drafts rejected: the next step starts one token on, in the same blocks
        batch = scheduler.schedule(0.0)
        starts.append(batch.chunks[0].start)
        scheduler.update(batch, StepResult([], sampled={seq: Sampled(1, 0)}, drafts={seq: 4}), 0.0)
    assert starts == [256, 257, 258]
    assert seq.num_blocks == math.ceil((258 + 5) / 4)


# A length that changes.


@pytest.mark.parametrize("batching", BATCHING)
def test_a_table_says_how_many_are_drafted(batching: str) -> None:
    log: list[tuple[int, int | None, list[int]]] = []

    class Noting:
        def decided(self, batch: Batch, scheduler: Any, now: float) -> None:
            decodes = [chunk.num_draft for chunk in batch.chunks if chunk.is_decode]
            log.append((batch.num_seqs, batch.num_to_draft, decodes))

        def finished(self, sequences: Any, now: float) -> None:
            pass

    table = PerBatchSize([(1, 2, 4), (3, 5, 1), (6, 8, 0)])
    found = served(table, batching=batching, observers=[Noting()], check_invariants=True)
    assert found.recorder.num_output.tolist() == [5 + 9 * i for i in range(12)]
    assert all(k == table.at(n) for n, k, _ in log if n)
    for (_, k, _), (_, _, drafts) in pairwise(log):
        assert k is not None
        assert all(n <= k for n in drafts)
    lengths = {n for _, _, drafts in log for n in drafts}
    assert lengths == ({0, 1} if batching == "static" else {0, 1, 4})  # a static batch does not shrink


def test_a_table_of_all_drafts_is_no_table() -> None:
    """But for the placeholders of rule 3.17, which vLLM leaves out where the number may change."""
    fixed, table = served(None), served(PerBatchSize([(1, 1, 4)]))
    for name in ("end", "num_tokens", "num_seqs", "accepted_tokens"):
        np.testing.assert_array_equal(
            getattr(fixed.recorder.step_table(), name), getattr(table.recorder.step_table(), name)
        )


def test_a_table_of_none_is_no_speculation() -> None:
    plain = Chunked(BlockManager(400, 4), max_num_seqs=8, max_num_batched_tokens=64)
    load = [Request(f"r{i}", 0.0, 6, 5 + 9 * i, 150) for i in range(12)]
    theirs = serve(load, plain, CLOCK).recorder
    mine = served(PerBatchSize([(1, 1, 0)])).recorder
    assert mine.finished_at == theirs.finished_at


@given(
    rates=st.lists(st.floats(0, 1), min_size=1, max_size=5),
    n=st.integers(1, 300),
    step=st.floats(1e-3, 0.1),
    row=st.floats(1e-6, 1e-2),
)
def test_goodput_drafts_what_gives_most_tokens_a_second(
    rates: list[float], n: int, step: float, row: float
) -> None:
    """After enough verifications, against all lengths by hand: no other is better by more than 5 %."""
    length, times = Goodput(len(rates)), 4000
    rng = np.random.default_rng(1)
    for _ in range(times):
        misses = [i for i, rate in enumerate(rates) if rng.random() >= rate]
        length.learnt(len(rates), misses[0] if misses else len(rates))
    clock = LinearModel(step, per_token=row)
    scheduler = Chunked(BlockManager(4, 4), latency=clock)
    chosen = length.choose(decoding(n), scheduler.ctx)
    reached = np.cumprod([1.0, *rates])
    speed = [
        reached[: k + 1].sum() / clock.step_time(DraftingStep.verifying(n, 100 * n, 100, k))
        for k in range(len(rates) + 1)
    ]
    assert speed[chosen] >= 0.95 * max(speed)


class _Decode(NamedTuple):
    start: int = 99
    num_tokens: int = 1
    samples: bool = True


def decoding(n: int) -> Any:
    """A batch of n decodes with a context of 100 tokens, as far as a choice of length looks at it."""
    batch: Any = Batch(0)
    batch.chunks = [_Decode()] * n
    return batch


def test_goodput_falls_with_the_batch_and_learns_that_drafts_are_bad() -> None:
    machine = build_machine(scenario(NGRAM))
    scheduler = build_scheduler(scenario(NGRAM), machine, NO_POLICIES)
    good, bad = Goodput(5), Goodput(5)
    for _ in range(500):
        good.learnt(5, 4)
        bad.learnt(5, 0)
    chosen = [good.choose(decoding(n), scheduler.ctx) for n in (1, 64, 256)]
    assert chosen[0] == 5
    assert chosen == sorted(chosen, reverse=True)
    assert bad.choose(decoding(64), scheduler.ctx) == 0


def test_two_schedulers_do_not_share_what_is_learnt() -> None:
    speculation = Speculation.by_ngram(4, Goodput(4))
    one, other = (Chunked(BlockManager(4, 4), speculation=speculation) for _ in range(2))
    assert one.speculation is not None
    assert other.speculation is not None
    assert one.speculation.length is not other.speculation.length


def test_under_load_auto_is_no_worse_than_never_and_always() -> None:
    """256 clients with poor drafts: five at a time cost, auto comes out at no drafts; alone it keeps them."""
    closed = {
        "workload.arrivals": {"kind": "closed_loop", "clients": 256},
        "workload.lengths": {"kind": "constant", "prompt": 200, "output": 60},
        "workload.num_requests": 512,
    }
    poor = NGRAM | {"acceptance": 0.3}
    duration = {
        name: run_scenario(scenario(keys, **closed)).summary["duration"]
        for name, keys in {"never": None, "always": poor, "auto": poor | {LENGTHS: "auto"}}.items()
    }
    never, always, auto = duration.values()
    assert isinstance(never, float)
    assert isinstance(always, float)
    assert isinstance(auto, float)
    assert always > 1.1 * never
    assert auto < 1.02 * never


# The price.


def test_passes_of_a_draft_model_are_those_of_what_is_drafted() -> None:
    price = WithDraftModel(LinearModel(1.0), LinearModel(0.1), 4)
    steps = [DraftingStep.verifying(3, 300, 100, k) for k in range(5)]
    assert [price.step_time(step) for step in steps] == pytest.approx([1.1, 1.1, 1.2, 1.3, 1.4])
    assert price.step_time(StepFeatures.decode([100] * 3)) == pytest.approx(1.4)


def test_a_lookup_takes_host_time_for_each_sequence_that_may_draft() -> None:
    plain = build_machine(scenario(NGRAM)).latency
    priced = build_machine(scenario(NGRAM | {"lookup_us": 20.0})).latency
    assert isinstance(priced, WithLookup)
    drafting, silent = (DraftingStep.verifying(50, 5000, 100, k) for k in (3, 0))
    assert priced.step_time(drafting) - plain.step_time(drafting) == pytest.approx(50 * 20e-6)
    assert priced.step_time(silent) == plain.step_time(silent)
    decodes = StepFeatures.decode([100] * 50)
    assert priced.decode_times(decodes, 3)[0] == pytest.approx(priced.step_time(decodes), rel=1e-12)
    assert priced.error_terms == plain.error_terms  # type: ignore[attr-defined]
    assert priced.scaled(bandwidth=2.0).step_time(drafting) < priced.step_time(drafting)
    assert priced.drawn(dict.fromkeys(priced.error_terms, 1.0)).step_time(drafting) > priced.step_time(
        drafting
    )
    assert "n-gram lookup 20 us" in priced.provenance


# Keys.


def test_later_keys_leave_a_scenario_as_it_was() -> None:
    assert (
        scenario(NGRAM | {LENGTHS: None, "lookup_us": 0.0}).digest() == scenario(NGRAM).digest() == "b0927b26"
    )
    later = scenario(NGRAM | {LENGTHS: [[1, 8, 3], [9, 64, 0]], "lookup_us": 5.0})
    assert load_scenario(later.to_dict()) == later
    assert later.digest() != scenario(NGRAM).digest()
    set_later = scenario(NGRAM).with_(**{f"speculative.{LENGTHS}": "auto"})
    assert set_later.speculative is not None
    assert set_later.speculative.num_speculative_tokens_per_batch_size == "auto"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({LENGTHS: "Auto"}, "must be null, auto, or ranges of batch sizes and drafts such as"),
        ({LENGTHS: [[1, 2]]}, "must be null, auto, or ranges"),
        ({LENGTHS: [[1, -2, 3]]}, "must be null, auto, or ranges"),
        ({LENGTHS: []}, "the first range must begin at batch size 1"),
        ({LENGTHS: [[2, 8, 3]]}, "the first range must begin at batch size 1"),
        ({LENGTHS: [[1, 8, 3], [8, 9, 0]]}, r"\[8, 9, 0\] must begin after 8"),
        ({LENGTHS: [[1, 8, 3], [12, 9, 0]]}, r"\[12, 9, 0\] must begin after 8 and not end before it begins"),
        ({LENGTHS: [[1, 8, 6]]}, "drafts 6, num_speculative_tokens allows 5"),
        ({"lookup_us": -1.0}, "lookup_us: must be greater than or equal to 0"),
        (
            {"method": "draft_model", "draft_model": "llama-3.2-1b", "lookup_us": 1.0},
            "0 without method: ngram",
        ),
    ],
)
def test_a_wrong_length_is_told_in_one_line(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as told:
        scenario(NGRAM | change)
    assert "\n" not in str(told.value)
