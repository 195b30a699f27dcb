"""Pipeline parallelism: stages by hand, a tandem line's limits, and what must hold of any load.

A token's moment is found here from the decisions alone: which batch gave it, and when that left the last
stage.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from command import servetwin
from hypothesis import strategies as st
from quick_and_slow import few_or_many
from test_skipping import requests

from simulator import kv_size, load_scenario, simulate
from simulator.batch import Batch
from simulator.cluster.fleet import Outage
from simulator.cluster.routers import ROUTERS
from simulator.cluster.serve import ReplicaKind, serve_fleet
from simulator.config.build import build_machine
from simulator.config.run import run_scenario
from simulator.engine.clients import OPEN_LOOP, ClientPlan
from simulator.engine.pipeline import Line
from simulator.engine.serve import Served, serve
from simulator.errors import ConfigError
from simulator.kv.block_manager import BlockManager
from simulator.latency.all_reduce import A100_SXM
from simulator.latency.all_reduce import Line as LinkLine
from simulator.latency.base import LatencyModel, StepFeatures
from simulator.latency.estimate import estimate
from simulator.latency.group import group_profile
from simulator.latency.linear import LinearModel
from simulator.latency.paced import Paced
from simulator.latency.pipeline import Link, Pipeline, pipeline_of, pipelined
from simulator.metrics.tables import COMPLETED
from simulator.metrics.token_times import gaps
from simulator.request import Request
from simulator.request import Sequence as Seq
from simulator.schedulers import BATCHING, Scheduler
from simulator.schedulers.chunked import Chunked
from simulator.schedulers.orders import ORDERS
from simulator.schedulers.preemption import VICTIMS
from simulator.specs import MODELS, get_hardware, get_model
from simulator.specs.stages import stage_layers, stage_weight_bytes

A100 = get_hardware("a100-80gb-sxm")
STEPS = (
    StepFeatures.decode([100]),
    StepFeatures.decode([3000] * 64),
    StepFeatures.prefill([(2048, 0)]),
    StepFeatures.prefill([(500, 4000), (30, 0)], sampled=False),
)


def line_of(*seconds: float, link: float = 0.0) -> Pipeline:
    """Return stages that take so long for any batch."""
    stages = tuple(LinearModel(constant=each) for each in seconds)
    return Pipeline(stages, (1,) * len(stages), Link(LinkLine(link, float("inf")), 0.0))


@dataclass
class Watcher:
    """Keeps what each batch gives: the rows of a batch, and who gets a token by it."""

    sampled: list[list[str]] = field(default_factory=list)  # ids, a list for each batch that computes
    rows: list[dict[str, int]] = field(default_factory=list)

    def decided(self, batch: Batch, scheduler: Scheduler, now: float) -> None:
        if not batch:
            if batch.preempted:
                self.sampled.append([])
                self.rows.append({})
            return
        chunks = {chunk.seq: chunk for chunk in batch.chunks}
        rows = batch.rows(scheduler.running)
        self.rows.append({seq.id: n for seq, n in rows})
        self.sampled.append([seq.id for seq, _ in rows if seq not in chunks or chunks[seq].samples])

    def finished(self, sequences: Iterable[Seq], now: float) -> None:
        pass


@dataclass
class Limbo(Watcher):
    """Counts the decisions made while a victim's token was under way."""

    held: int = 0

    def decided(self, batch: Batch, scheduler: Scheduler, now: float) -> None:
        super().decided(batch, scheduler, now)
        assert scheduler.flight is not None
        self.held += bool(scheduler.flight.limbo)


def play(
    load: Sequence[Request],
    latency: LatencyModel,
    policy: type[Scheduler] = Chunked,
    *,
    plan: ClientPlan = OPEN_LOOP,
    horizon: float | None = None,
    num_blocks: int = 10_000,
    block_size: int = 16,
    watch: Watcher | None = None,
    **keys: Any,
) -> Served:
    kv = BlockManager(num_blocks, block_size, enable_prefix_caching=True)
    scheduler = policy(kv, **{"max_num_batched_tokens": 1000, **keys})
    watchers = [] if watch is None else [watch]
    checked = watch is not None
    return serve(
        load, scheduler, latency, plan=plan, horizon=horizon, observers=watchers, check_invariants=checked
    )


def times(load: Sequence[Request], latency: LatencyModel, **keys: Any) -> tuple[list[float], list[float]]:
    """Return when each request got its first and its last token."""
    table = play(load, latency, **keys).recorder.request_table(load)
    return table.first_token.tolist(), table.finish.tolist()


# ---- layers and weights


def test_layers_are_cut_as_vllm_cuts_them() -> None:
    assert stage_layers(32, 4) == [8] * 4
    assert stage_layers(61, 2) == [31, 30]  # vLLM's own example is DeepSeek-V3's 61 layers
    assert stage_layers(61, 4) == [15, 15, 16, 15]
    assert stage_layers(30, 4) == [7, 8, 8, 7]
    with pytest.raises(ConfigError, match=r"pipeline_parallel_size must be 1\.\.4, the layers, got 8"):
        stage_layers(4, 8)


@pytest.mark.parametrize("stages", [2, 4, 8])
@pytest.mark.parametrize("name", MODELS)
def test_stages_hold_all_weights_once_but_for_tied_embeddings(name: str, stages: int) -> None:
    model = MODELS[name]
    if stages > model.num_layers:
        return
    parts = [stage_weight_bytes(model, stage, stages) for stage in range(stages)]
    table = 2 * model.vocab_size * model.hidden_size
    assert sum(parts) - (table if model.tied_embeddings else 0) == model.weight_bytes()


def test_the_stage_with_the_fewest_blocks_decides() -> None:
    """80 layers in 2 stages of 40: half the KV each; the first has the embedding, the last norm and head."""
    model = get_model("llama-2-70b")
    size = kv_size(model, A100, context=4096, pipeline_parallel_size=2)
    whole = model.weight_bytes()
    norm = 2 * model.hidden_size
    assert size.block_bytes == 16 * model.kv_bytes_per_token() // 2
    assert size.weight_bytes == (whole - norm) // 2  # 16 KiB more on the last one cost it no block
    assert size.stage == 0
    left = int(0.92 * A100.memory) - size.weight_bytes - int(2.5 * 2**30)
    assert size.num_gpu_blocks == left // size.block_bytes
    uneven = kv_size("qwen2.5-7b", A100, pipeline_parallel_size=8)  # 28 layers: 3, 3, 3, 4, 4, 4, 4, 3
    assert uneven.stage in (3, 4, 5, 6)
    assert kv_size(model, A100, context=4096, tensor_parallel_size=2).pipeline_parallel_size == 1


def test_one_stage_is_the_whole_model() -> None:
    plain = kv_size("llama-3.1-8b", A100)
    assert plain.stage == 0
    assert plain.weight_bytes == get_model("llama-3.1-8b").weight_bytes()
    assert "stage" not in plain.lines()[0]


# ---- times of stages


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("stages", [2, 4])
def test_stages_take_the_whole_models_time_and_a_host_each(stages: int, step: StepFeatures) -> None:
    model = get_model("llama-3.1-8b")
    for whole in (group_profile(A100, model, 1), estimate(A100, model), group_profile(A100, model, 2)):
        assert whole is not None
        tp = 1 if whole.communication is None else 2
        cut = pipelined(whole, A100, model, stages, tp)
        host = whole.host.per_step + whole.host.per_seq * step.num_seqs
        assert sum(cut.stage_times(step)) == pytest.approx(whole.step_time(step) + (stages - 1) * host)
        first, *middle, last = cut.stage_times(step)
        assert all(0.8 * first < each <= first for each in middle)
        assert last >= first - 2e-5 if step.num_sampled else last <= first  # the head, not the embedding


def test_a_line_is_cut_by_layers() -> None:
    whole = LinearModel(constant=0.8, per_token=0.016, host=0.1)
    cut = pipelined(whole, A100, get_model("llama-3.1-8b"), 2)
    assert cut.stage_times(StepFeatures.decode([10] * 5)) == pytest.approx([0.5 * 0.88 + 0.1] * 2)


def test_activations_are_two_tensors_a_token_over_nccl() -> None:
    """4096 numbers of 2 bytes, hidden states and residual: 16 KiB a token; half of it a rank with TP 2."""
    model = get_model("llama-3.1-8b")
    whole = estimate(A100, model)
    link = pipelined(whole, A100, model, 2, pair=A100_SXM[2]).link
    latency, bandwidth = A100_SXM[2].nccl
    assert link.seconds(100) == pytest.approx(latency + 100 * 16384 / bandwidth)
    split = pipelined(whole, A100, model, 2, 2, A100_SXM[2]).link
    gathered = float(A100_SXM[2].gather(100 * 16384))
    assert split.seconds(100) == pytest.approx(latency + 100 * 8192 / bandwidth + gathered)
    pcie = pipelined(whole, get_hardware("a100-80gb-pcie"), model, 2).link
    assert pcie.seconds(2048) > 5 * link.seconds(2048)


def test_a_paced_pipeline_is_one() -> None:
    cut = line_of(0.25, 0.5, link=0.125)
    slow = pipeline_of(Paced(cut, 2.0))
    assert slow is not None
    assert slow.step_time(STEPS[0]) == 2 * cut.step_time(STEPS[0]) == 1.75
    assert pipeline_of(Paced(LinearModel(constant=1.0), 2.0)) is None
    assert cut.decode_times(STEPS[0], 2).tolist() == [0.875, 0.875]


# ---- by hand


def test_one_sequence_takes_the_sum_of_the_stages_a_token() -> None:
    """Stages of 1 and 2 s, a link of 0.5 s: a token every 3.5 s, and 3 of 7 s of stage time are used."""
    load = [Request("a", 0.0, 10, 3, 9)]
    served = play(load, line_of(1.0, 2.0, link=0.5))
    table = served.recorder.request_table(load)
    assert table.first_token.tolist() == [3.5]
    assert table.finish.tolist() == [10.5]
    values, weights = served.recorder.gaps()
    assert values.tolist() == [3.5, 3.5]
    assert weights.tolist() == [1, 1]
    assert served.line is not None
    assert served.line.busy == [3.0, 6.0]
    assert served.line.in_flight == 10.5
    assert served.line.bubble_share == pytest.approx(1 - 9 / 21)


def test_two_sequences_follow_each_other_through_two_stages() -> None:
    """Stages of 1 s, one seat a batch by the budget: a in 0-2, b in 1-3, a again in 2-4, b in 3-5.

    b arrives at 0.5, after a's batch left, which has the engine wait for its end at 2: b's first batch is
    then a's second.
    """
    latency = line_of(1.0, 1.0)
    together = [Request("a", 0.0, 10, 2, 9), Request("b", 0.0, 10, 2, 9)]
    assert times(together, latency, max_num_batched_tokens=10, max_num_seqs=10) == ([2.0, 3.0], [4.0, 5.0])
    late = [Request("a", 0.0, 10, 3, 9), Request("b", 0.5, 10, 2, 9)]
    first, last = times(late, latency)
    assert first == [2.0, 4.0]
    assert last == [6.0, 6.0]


def test_a_prompts_chunks_follow_each_other_without_waiting() -> None:
    """30 tokens in chunks of 10 over two stages of 1 s: the chunks leave at 2, 3, 4; the next token at 6."""
    load = [Request("a", 0.0, 30, 2, 9)]
    first, last = times(load, line_of(1.0, 1.0), max_num_batched_tokens=10, max_num_seqs=10)
    assert first == [4.0]
    assert last == [6.0]


def test_the_slow_stage_holds_the_quick_one_up() -> None:
    """Stages of 1 and 3 s: b, sent at once after a, leaves the second stage 3 s after it, at 7."""
    load = [Request("a", 0.0, 10, 1, 9), Request("b", 0.0, 10, 1, 9)]
    first, _ = times(load, line_of(1.0, 3.0), max_num_batched_tokens=10, max_num_seqs=10)
    assert first == [4.0, 7.0]
    first, _ = times(load, line_of(3.0, 1.0), max_num_batched_tokens=10, max_num_seqs=10)
    assert first == [4.0, 7.0]


def test_a_link_carries_one_batch_at_a_time() -> None:
    """Stages of 1 s and a link of 4 s: the second batch is on the link from 5 to 9."""
    line = Line(line_of(1.0, 1.0, link=4.0))
    assert [line.enter(StepFeatures.decode([1]), 0.0) for _ in range(2)] == [6.0, 10.0]
    assert line.sending == 8.0


def test_what_is_under_way_at_the_horizon_did_not_happen() -> None:
    load = [Request("a", 0.0, 10, 50, 90)]
    served = play(load, line_of(1.0, 1.0), horizon=7.0)
    table = served.recorder.request_table(load)
    assert table.num_output.tolist() == [3]
    assert served.recorder.step_table().end.tolist() == [2.0, 4.0, 6.0]
    assert play(load, line_of(1.0, 1.0), horizon=1.0).recorder.request_table(load).num_output.tolist() == [0]


# ---- limits of a tandem line


@pytest.mark.parametrize("seconds", [(1.0, 1.0), (1.0, 2.0), (0.5, 0.5, 1.0, 0.5)])
def test_many_sequences_get_a_batch_per_longest_stage(seconds: tuple[float, ...]) -> None:
    """As many sequences as stages, each a batch of its own: a token every max(stage), no bubble if equal."""
    n = len(seconds)
    load = [Request(str(i), 0.0, 16, 300, 999) for i in range(n)]
    served = play(load, line_of(*seconds), max_num_batched_tokens=16, max_num_seqs=16)
    table, line = served.recorder.request_table(load), served.line
    assert line is not None
    rate = 300 * n / (table.finish.max() - table.arrival.min())
    assert rate == pytest.approx(1 / max(max(seconds), sum(seconds) / n), rel=0.02)
    assert line.bubble_share == pytest.approx(1 - sum(seconds) / (n * max(seconds)), abs=0.02)


def test_more_batches_than_stages_fill_an_uneven_line() -> None:
    """With n in flight on stages of 1 and 3 s the slow one never waits: one batch every 3 s."""
    load = [Request(str(i), 0.0, 16, 200, 999) for i in range(8)]
    served = play(load, line_of(1.0, 3.0), max_num_batched_tokens=16, max_num_seqs=16)
    assert served.line is not None
    assert served.line.busy[1] == pytest.approx(served.line.in_flight, rel=0.01)


def test_a_lone_stage_serves_as_the_plain_engine_does() -> None:
    """A pipeline of one stage: same decisions and times as the engine without, whatever the code."""
    rng = np.random.default_rng(3)
    load = [
        Request(str(i), float(t), int(p), int(o), 100)
        for i, (t, p, o) in enumerate(
            zip(
                np.cumsum(rng.exponential(0.5, 80)),
                rng.integers(1, 400, 80),
                rng.integers(1, 60, 80),
                strict=True,
            )
        )
    ]
    latency = LinearModel(constant=0.1, per_token=0.001, host=0.03)
    plain = play(load, latency, max_num_batched_tokens=256, num_blocks=200)
    lone = play(load, Pipeline((latency,), (1,)), max_num_batched_tokens=256, num_blocks=200)
    one, other = (each.recorder.request_table(load) for each in (plain, lone))
    assert one.num_preemptions.sum() > 0
    for name in ("scheduled", "first_token", "finish", "num_output", "num_preemptions", "num_cached"):
        assert np.array_equal(getattr(one, name), getattr(other, name)), name
    gaps, others = plain.recorder.gaps(), lone.recorder.gaps()
    assert sorted(np.repeat(*gaps).tolist()) == pytest.approx(sorted(np.repeat(*others).tolist()))


def test_a_queue_before_a_pipeline_waits_no_longer_than_before_one_server() -> None:
    """M/D/1: prompts of one batch each, two stages of half the service time, load 0.7.

    The line starts a prompt every D/2 where a single server needs D: at the same rate its load is halved,
    so the mean wait is that of M/D/1 at 0.35 with service D/2, if the engine decided whenever the first stage
    is free. It decides when a batch comes back, so the wait is longer than that, and shorter than M/D/1's.
    """
    rng = np.random.default_rng(0)
    arrivals = np.cumsum(rng.exponential(1 / 0.7, 6000))
    load = [Request(str(i), float(t), 100, 1, 1) for i, t in enumerate(arrivals)]
    keys: dict[str, Any] = {"max_num_batched_tokens": 100, "max_num_seqs": 1}

    def wait(latency: LatencyModel, seats: int) -> float:
        table = play(load, latency, **{**keys, "max_num_seqs": seats}).recorder.request_table(load)
        return float((table.scheduled - table.arrival)[600:].mean())

    one = wait(LinearModel(constant=1.0), 1)
    two = wait(line_of(0.5, 0.5), 100)
    assert one == pytest.approx(0.7 / 0.3 / 2, rel=0.15)
    assert 0.35 / 0.65 / 2 * 0.5 < two < one


# ---- any load


@dataclass(frozen=True)
class Case:
    policy: str
    keys: dict[str, Any]
    stages: int
    plan: ClientPlan


@st.composite
def cases(draw: st.DrawFn) -> Case:
    block_size = draw(st.sampled_from([1, 4, 16]))
    keys = {
        "block_size": block_size,
        "num_blocks": draw(st.sampled_from([140 // block_size + 2, 300 // block_size + 2, 5000])),
        "max_num_seqs": draw(st.sampled_from([2, 6])),
        "max_num_batched_tokens": draw(st.sampled_from([6, 24, 200])),
        "order": ORDERS[draw(st.sampled_from(["fcfs", "priority", "virtual_counters"]))],
        "victim": draw(st.sampled_from([None, *VICTIMS.values()])),
        "long_prefill_token_threshold": draw(st.sampled_from([0, 8])),
    }
    policy = draw(st.sampled_from(["chunked", "chunked", "continuous", "prefill_first"]))
    plan = draw(st.sampled_from([OPEN_LOOP, ClientPlan(max_concurrency=2, pause=0.1)]))
    return Case(policy, keys, draw(st.sampled_from([2, 4])), plan)


@few_or_many(60, 1500, case=cases(), data=st.data())
def test_tokens_are_conserved_and_come_when_their_batches_end(case: Case, data: st.DataObject) -> None:
    load = data.draw(requests(case.keys["block_size"]))
    stages = [LinearModel(constant=0.05 * (1 + i % 3), per_token=0.01) for i in range(case.stages)]
    latency = Pipeline(tuple(stages), (1,) * case.stages, Link(LinkLine(0.01, 1e6), 100.0))
    watch = Watcher()
    served = play(load, latency, BATCHING[case.policy], plan=case.plan, watch=watch, **case.keys)
    table, steps = served.recorder.request_table(load), served.recorder.step_table()
    assert len(steps) == len(watch.rows)
    tokens: dict[str, list[float]] = defaultdict(list)
    for step, ids in enumerate(watch.sampled):
        assert sum(watch.rows[step].values()) == steps.num_tokens[step]
        for each in ids:
            tokens[each].append(float(steps.end[step]))
    expected: Counter[float] = Counter()
    by_id = {request.id: request for request in load}
    for row, each in enumerate(table.id):
        got, request = tokens[each], by_id[each]
        if table.status[row] != 0:
            continue
        assert len(got) == table.num_output[row] == min(request.num_output, request.max_tokens)
        assert got == sorted(got)
        assert len(set(got)) == len(got), "two tokens of one sequence were under way at once"
        assert table.first_token[row] == got[0]
        assert table.finish[row] == got[-1]
        expected.update(np.diff(got).tolist())
    values, weights = served.recorder.gaps()
    found = np.repeat(values, weights)
    assert sorted(found.tolist()) == pytest.approx(sorted(expected.elements()))
    assert not too_early(watch, served)
    in_flight = [(steps.start < end).sum() - i for i, end in enumerate(steps.end) if steps.num_tokens[i]]
    assert max(in_flight, default=0) <= case.stages + len(steps) - np.count_nonzero(steps.num_tokens)


def too_early(watch: Watcher, served: Served) -> list[str]:
    """List the sequences that a batch computes while a token which it needs is still under way."""
    found = []
    known: dict[str, float] = {}  # when the last token of each comes
    steps = served.recorder.step_table()
    for step, ids in enumerate(watch.sampled):
        found += [each for each in watch.rows[step] if known.get(each, 0.0) > steps.start[step]]
        known.update(dict.fromkeys(ids, float(steps.end[step])))
    return found


def test_a_victim_with_a_token_under_way_is_not_admitted_before_it_comes() -> None:
    """Eight sequences in a tight pool, four stages: victims of one batch have a token in another."""
    held = 0
    for seed in range(5):
        rng = np.random.default_rng(seed)
        lengths = zip(rng.integers(3, 20, 8).tolist(), rng.integers(2, 30, 8).tolist(), strict=True)
        load = [Request(str(i), 0.0, prompt, output, 40) for i, (prompt, output) in enumerate(lengths)]
        watch = Limbo()
        keys = {"block_size": 2, "num_blocks": 40, "max_num_batched_tokens": 16, "max_num_seqs": 8}
        served = play(load, line_of(1.0, 1.0, 1.0, 1.0), watch=watch, **keys)
        assert not too_early(watch, served)
        tokens = Counter(each for ids in watch.sampled for each in ids)
        assert tokens == {request.id: request.num_output for request in load}
        held += watch.held
    assert held > 0


def test_a_fleet_of_pipelines_loses_no_request_when_one_dies() -> None:
    def make() -> Scheduler:
        return Chunked(
            BlockManager(200, 16, enable_prefix_caching=True), max_num_batched_tokens=64, max_num_seqs=16
        )

    load = [Request(str(i), 0.3 * i, 50, 30, 40) for i in range(60)]
    kind = ReplicaKind("stages", 2, make, line_of(0.05, 0.05))
    served = serve_fleet(
        load,
        [kind, kind],
        ROUTERS["least_outstanding"],
        rng=np.random.default_rng(0),
        outages=[Outage(0, 3.0, 8.0)],
        check_invariants=True,
    )
    recorders = [member.replica.recorder for member in served.members]
    assert served.num_retried > 0
    assert set(served.log.status) == {COMPLETED}
    assert sum(recorder.num_output for recorder in recorders).tolist() == [30] * 60
    _, weights = gaps([recorder.stints(np.ones(60, dtype=np.bool_)) for recorder in recorders])
    assert weights.sum() == 60 * 29


# ---- scenarios


PP2 = {"parallel.pipeline_parallel_size": 2, "workload.num_requests": 60}


def test_a_scenario_over_two_stages_says_what_its_stages_did() -> None:
    result = simulate("chat-a100", set=PP2)
    own = result.summary["servetwin"]
    assert own["completed"] == 60
    pipeline = own["pipeline"]
    assert pipeline["layers"] == [16, 16]
    assert own["bubble_share"] == pytest.approx(1 - np.mean(pipeline["stage_busy_share"]))
    assert 0 < own["bubble_share"] < 1
    assert any("pipeline parallel 2: stages of 16, 16 layers" in note for note in own["notes"])
    assert "bubble_share" not in simulate("chat-a100", set={"workload.num_requests": 5}).summary["servetwin"]


def test_the_digest_of_a_scenario_without_stages_is_what_it_was() -> None:
    base = load_scenario("chat-a100")
    assert base.digest() == "3bb0b00d"
    assert base.with_(**{"parallel.pipeline_parallel_size": 2}).digest() != base.digest()
    assert base.with_(**{"parallel.pipeline_parallel_size": 1}).digest() == base.digest()


def test_same_seed_same_bytes_and_other_policies_run_too() -> None:
    scenario = load_scenario("chat-a100").with_(**PP2)
    assert run_scenario(scenario).summary == run_scenario(scenario).summary
    for batching in ("continuous", "prefill_first"):
        run = run_scenario(scenario.with_(**{"scheduler.batching": batching}), check_invariants=True)
        assert run.own["completed"] == 60


def test_model_errors_are_drawn_for_all_stages_together() -> None:
    machine = build_machine(load_scenario("chat-a100").with_(**PP2))
    cut = machine.latency
    assert isinstance(cut, Pipeline)
    slow = cut.drawn(dict.fromkeys(cut.error_terms, 1.0))
    assert all(a > b for a, b in zip(slow.stage_times(STEPS[1]), cut.stage_times(STEPS[1]), strict=True))
    same = cut.drawn(dict.fromkeys(cut.error_terms, 0.0))
    assert same.stage_times(STEPS[1]) == cut.stage_times(STEPS[1])
    with pytest.raises(ConfigError, match="states no errors"):
        line_of(1.0, 1.0).error_terms  # noqa: B018


REFUSED = {
    "speculative": {"method": "ngram", "num_speculative_tokens": 3, "acceptance": 0.7},
    "scheduler.async_scheduling": True,
    "kv.tiers": [{"name": "host", "capacity_gib": 64, "bandwidth_gb_s": 25}],
    "scheduler.batching": "static",
}


@pytest.mark.parametrize("key", REFUSED)
def test_what_a_pipeline_does_not_model_is_refused(key: str) -> None:
    scenario = load_scenario("chat-a100").with_(**PP2, **{key: REFUSED[key]})
    with pytest.raises(ConfigError, match="pipeline_parallel_size: must be 1 under") as caught:
        build_machine(scenario)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [3, True, 1.0, "2 ", 16, None])
def test_other_numbers_of_stages_are_refused(value: object) -> None:
    with pytest.raises(ConfigError, match=r"parallel\.pipeline_parallel_size"):
        load_scenario("chat-a100").with_(**{"parallel.pipeline_parallel_size": value})


def test_more_gpus_than_a_server_has_are_refused() -> None:
    flags = ("--set", "parallel.tensor_parallel_size=4", "--set", "parallel.pipeline_parallel_size=4")
    complaint = servetwin("check", "chat-a100", *flags).complaint
    assert "must be <= 8, the GPUs of one server, got 4 x 4" in complaint


def test_bounds_refuse_overlapping_batches() -> None:
    flags = ("--num-requests", 5, "--set", "parallel.pipeline_parallel_size=2")
    assert "parallel.pipeline_parallel_size must be 1" in servetwin("bounds", "chat-a100", *flags).complaint


def test_explain_refuses_overlapping_steps() -> None:
    with pytest.raises(ConfigError, match=r"explain: parallel\.pipeline_parallel_size must be 1"):
        simulate("chat-a100", set={**PP2, "workload.num_requests": 2}).explain("0")


def test_kv_size_says_which_stage_decides() -> None:
    flags = ("--pipeline-parallel-size", 4, "--context", 4096)
    out = servetwin("kv-size", "llama-3.1-70b", *flags).out
    assert "stage 1 of 4, which has the fewest blocks, per GPU" in out
    refused = servetwin("kv-size", "llama-3.1-70b", "--pipeline-parallel-size", 90)
    assert "pipeline_parallel_size must be 1..80, the layers, got 90" in refused.complaint


@pytest.mark.parametrize("horizon", [0.3, 0.7, 1.1, 1.9, 2.6])
def test_a_horizon_cuts_what_is_under_way(horizon: float) -> None:
    """Whatever was sampled before it is what a run without it had sampled until then."""
    keys = {
        "parallel.pipeline_parallel_size": 2,
        "workload.arrivals": {"kind": "poisson", "rate": 30.0},
        "workload.num_requests": 60,
        "kv.num_gpu_blocks_override": 60,
    }
    whole = run_scenario(load_scenario("tiny-cpu").with_(**keys))
    cut = run_scenario(load_scenario("tiny-cpu").with_(**keys, **{"run.horizon_s": horizon}))
    assert cut.steps.end.max() <= horizon
    assert cut.steps.end.tolist() == whole.steps.end[: len(cut.steps)].tolist()
    assert cut.requests.num_output.sum() == cut.steps.output_tokens.sum()
    early = whole.requests.first_token[: len(cut.requests)] <= horizon
    assert (~np.isnan(cut.requests.first_token) == early).all()
