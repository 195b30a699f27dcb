"""One request's story: spans without gaps that add up to the latency, and the right reason for each."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import servetwin
from engine_runs import Observed, loads, observe
from hypothesis import strategies as st
from quick_and_slow import few_or_many

from simulator.api import load_run, simulate
from simulator.batch import Batch
from simulator.config.build import Policies
from simulator.config.build_workload import build_workload
from simulator.config.loading import load_scenario
from simulator.config.run import run_scenario
from simulator.config.scenario import Scenario
from simulator.engine.serve import serve
from simulator.engine.story import Span, Story
from simulator.errors import ConfigError
from simulator.experiments.explain import explain, story_of
from simulator.kv.block_manager import BlockManager
from simulator.latency.linear import LinearModel
from simulator.metrics.summary import latencies
from simulator.metrics.tables import COMPLETED, UNFINISHED
from simulator.request import Request, Sequence
from simulator.schedulers import BATCHING
from simulator.schedulers.chunked import Chunked
from simulator.schedulers.context import Context

SECOND = LinearModel(constant=1.0)  # every step takes a second
POLICIES: list[dict[str, object]] = [
    {"batching": "chunked"},
    {"batching": "chunked", "victim": "first_admitted", "order": "priority"},
    {"batching": "chunked", "async_scheduling": True, "long_prefill_token_threshold": 32},
    {"batching": "continuous", "min_batch": 3, "max_wait_ms": 400},
    {"batching": "continuous", "victim": "first_admitted"},
    {"batching": "prefill_first"},
    {"batching": "prefill_first", "async_scheduling": True},
    {"batching": "static", "min_batch": "offline"},
]


def request(id: str, prompt: int, output: int, arrival: float = 0.0, **facts: Any) -> Request:
    return Request(id, arrival, prompt, output, facts.pop("max_tokens", output), **facts)


def told(requests: list[Request], **changes: Any) -> tuple[Story, Observed]:
    story = Story()
    defaults = {"latency": SECOND, "num_blocks": 100, "block_size": 4, "enable_prefix_caching": False}
    limits = {"max_num_seqs": 8, "max_num_batched_tokens": 64}
    return story, observe(requests, observers=[story], **defaults | limits | changes)


def spans(story: Story, id: str) -> list[tuple[str, str, float, float]]:
    return [(span.kind, span.why, span.start, span.end) for span in story.spans[id]]


# Every request, whatever happens.


@pytest.mark.parametrize("batching", BATCHING)
@few_or_many(30, 100, data=st.data())
def test_spans_follow_each_other_from_arrival_to_end(batching: str, data: Any) -> None:
    story = Story()
    load = data.draw(loads(batching))
    observed = observe(**load, observers=[story])
    table, step_table = observed.table, observed.served.recorder.step_table()
    for id, arrival, finish in zip(table.id, table.arrival, table.finish, strict=True):
        check_spans(story.spans.get(id, []), arrival, finish)
    own = {r.id: i for i, r in enumerate(load["requests"])}
    for id, list_of_spans in story.spans.items():
        row = table.id.index(id)
        num_tokens = sum(span.num_tokens for span in list_of_spans if span.kind == "decode")
        prompts = sum("prefill" in span.kind for span in list_of_spans)
        assert id in own
        assert num_tokens == 0 or prompts, id
        steps = [i for span in list_of_spans for i in span.steps]
        assert steps == sorted(set(steps))
        for span in list_of_spans:
            if span.steps:
                assert span.start == step_table.start[span.steps[0]]
                assert span.end <= step_table.end[span.steps[-1]] or span is not list_of_spans[-1]
        if table.status[row] == COMPLETED:
            assert list_of_spans[-1].kind in ("decode", "prefill")
            lost = sum(s.why.startswith(("lost its", "needed another")) for s in list_of_spans)
            assert lost <= table.num_preemptions[row] <= lost + load["async_scheduling"]


def check_spans(spans: list[Span], arrival: float, finish: float) -> None:
    moments = [arrival, *(span.end for span in spans)]
    assert [span.start for span in spans] == moments[:-1]
    assert moments[-1] == finish
    assert all(span.end >= span.start for span in spans)


def tight(**scheduler: object) -> Scenario:
    """Return tiny-cpu under pressure, with clients that give up or look something up first."""
    changes = {f"scheduler.{key}": value for key, value in scheduler.items()}
    return load_scenario("tiny-cpu").with_(
        **{
            "workload.arrivals": {"kind": "gamma", "rate": 6.0, "burstiness": 0.3},
            "workload.num_requests": 60,
            "workload.pre_delay_s": {"lognormal": {"mean": 0.2, "sigma": 0.5}},
            "workload.cancel": {"fraction": 0.1, "after_s": 3.0},
            "kv.num_gpu_blocks_override": 49,
            **changes,
        }
    )


def check_all(scenario: Scenario, policies: Policies = Policies()) -> int:  # noqa: B008  # frozen
    """Check every request's explanation against its row; return how many were preempted."""
    story = Story()
    run = run_scenario(scenario, policies=policies, observers=[story])
    table = run.requests
    measured = latencies(table)
    e2el = dict(zip(measured.rows.tolist(), measured.e2el.tolist(), strict=True))
    for row, id in enumerate(table.id):
        found = story_of(run, story, id)
        assert sum(span.seconds for span in found.spans) == pytest.approx(found.latency, abs=1e-9)
        assert sum(seconds for _, _, seconds in found.causes()) == pytest.approx(found.latency, abs=1e-9)
        assert (found.num_output, found.arrival) == (table.num_output[row], table.arrival[row])
        if row in e2el:
            assert found.latency == pytest.approx(e2el[row], abs=1e-12)
            decoding = sum(s.num_tokens for s in found.spans if s.kind == "decode")
            prompts = sum(s.kind == "prefill" and "as much as" not in s.why for s in found.spans)
            assert decoding + prompts == found.num_output
        assert 0 <= found.slowed <= sum(s.seconds for s in found.spans if s.kind == "decode")
        assert id in found.text()
        json.dumps(found.to_dict(), allow_nan=False)
    return int((table.num_preemptions > 0).sum())


@pytest.mark.parametrize("scheduler", POLICIES)
def test_every_story_adds_up_to_the_recorded_latency(scheduler: dict[str, object]) -> None:
    num_preempted = check_all(tight(**scheduler))
    assert (num_preempted > 3) == (scheduler["batching"] != "static")


def test_stories_of_a_trace_with_shared_prefixes_add_up(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    rng = np.random.default_rng(3)
    with trace.open("w") as file:
        for i in range(60):
            talk, turns = int(rng.integers(4)), int(rng.integers(1, 6))
            hashes = [100 * talk + turn for turn in range(turns)]
            row = {
                "timestamp": 150 * i,
                "input_length": 512 * turns - 100,
                "output_length": 90,
                "hash_ids": hashes,
            }
            file.write(json.dumps(row) + "\n")
    scenario = load_scenario("chat-a100").with_(
        **{"workload.trace": str(trace), "kv.num_gpu_blocks_override": 400, "model.max_model_len": 4096}
    )
    assert check_all(scenario) > 0
    story = Story()
    run = run_scenario(scenario, observers=[story])
    texts = [span.why for each in story.spans.values() for span in each if span.kind == "prefill"]
    assert any("found in the prefix cache" in text for text in texts)
    assert run.own["prefix_cache_hits"] > 0  # type: ignore[operator]  # a count


@pytest.mark.parametrize("horizon", [0.05, 3.0, 8.0])
def test_what_the_horizon_cuts_off_is_told_up_to_it(horizon: float) -> None:
    scenario = tight().with_(**{"run.horizon_s": horizon})
    run = run_scenario(scenario)
    rows = np.flatnonzero(run.requests.status == UNFINISHED)
    check_all(scenario)
    for row in rows:
        found = explain(scenario, run.requests.id[row])
        assert found.status == "unfinished"
        assert found.latency == pytest.approx(horizon - found.arrival + run.requests.pre_delay[row], abs=1e-9)
    assert len(rows) or horizon == 0.05


# Reasons, worked by hand.


def test_a_wait_for_a_seat() -> None:
    story, _ = told([request("A", 4, 3), request("B", 4, 1, 0.5)], max_num_seqs=1)
    assert spans(story, "B") == [
        ("step under way", "a step was under way when it arrived", 0.5, 1.0),
        ("waiting", "all 1 seats (max_num_seqs) were taken", 1.0, 3.0),
        ("prefill", "tokens 0 to 4, beside 0 decodes", 3.0, 4.0),
    ]
    assert spans(story, "A")[1:] == [("decode", "a token a step", 1.0, 3.0)]
    assert [span.steps for span in story.spans["A"]] == [[0], [1, 2]]


BUDGET = "the step's token budget (max_num_batched_tokens) had no room for the first in the queue"
BLOCKS = "the first in the queue did not fit into the free KV blocks"


def test_a_wait_for_the_token_budget_and_a_prompt_in_chunks() -> None:
    story, _ = told([request("A", 12, 1), request("B", 4, 1), request("C", 3, 1)], max_num_batched_tokens=8)
    assert spans(story, "A") == [
        ("prefill", "tokens 0 to 8, as much as the step's token budget left, beside 0 decodes", 0.0, 1.0),
        ("prefill", "tokens 8 to 12, beside 0 decodes", 1.0, 2.0),
    ]
    assert spans(story, "C")[0] == ("waiting", BUDGET, 0.0, 2.0)


def test_a_whole_prompt_waits_for_a_step_with_room_for_it() -> None:
    waits = [request("A", 4, 3), request("B", 6, 1, 0.5), request("C", 3, 1, 0.5)]
    story, _ = told(waits, batching="continuous", max_num_batched_tokens=8)
    assert spans(story, "C")[1:] == [
        ("waiting", BUDGET, 1.0, 2.0),
        ("prefill", "tokens 0 to 3, beside 1 decodes", 2.0, 3.0),
    ]


def test_a_wait_for_blocks_though_it_would_run_alone() -> None:
    waits = [request("A", 8, 3), request("B", 20, 1, 0.5), request("C", 4, 1, 0.5)]
    for batching in ("chunked", "continuous", "prefill_first"):
        story, _ = told(waits, batching=batching, max_num_batched_tokens=9, num_blocks=6)
        assert spans(story, "B")[1] == ("waiting", BLOCKS, 1.0, 3.0), batching
        assert spans(story, "C")[1][1] == BLOCKS, batching


def test_a_preemption_names_who_took_the_blocks() -> None:
    """The run worked by hand in test_engine.py: A's last token needs a block, B loses its two."""
    story, _ = told(
        [request("A", 6, 4), request("B", 5, 3), request("C", 3, 2, 1.5)],
        latency=LinearModel(constant=0.5, per_token=0.125),
        num_blocks=4,
        max_num_seqs=2,
        max_num_batched_tokens=8,
    )
    assert spans(story, "B") == [
        ("prefill", "tokens 0 to 2, as much as the step's token budget left, beside 0 decodes", 0.0, 1.5),
        ("prefill", "tokens 2 to 5, beside 1 decodes", 1.5, 2.5),
        ("decode", "a token a step", 2.5, 3.25),
        ("preempted", "lost its blocks to A", 3.25, 3.875),
        ("prefill", "tokens 0 to 7 again after a preemption, beside 0 decodes", 3.875, 5.375),
    ]
    assert spans(story, "C")[:3] == [
        ("waiting", "all 2 seats (max_num_seqs) were taken", 1.5, 3.25),
        ("waiting", "a step that had to preempt admits nobody", 3.25, 3.875),
        ("prefill", "tokens 0 to 1, as much as the step's token budget left, beside 0 decodes", 3.875, 5.375),
    ]


def test_one_that_gives_way_to_itself_needed_a_block() -> None:
    """B's ninth row needs a third block; A's seventh none."""
    story, _ = told([request("A", 6, 3), request("B", 8, 2)], num_blocks=4)
    assert spans(story, "B")[1] == ("preempted", "needed another block, and none was free", 1.0, 2.0)


def test_one_that_has_ended_may_lose_its_blocks_and_is_not_told_so() -> None:
    """Async: the row past A's end needs a block of which there is none."""
    ended = [request("A", 9, 4, max_tokens=9), request("B", 4, 1)]
    story, observed = told(ended, num_blocks=3, max_num_seqs=1, async_scheduling=True)
    assert observed.table.num_preemptions.tolist() == [1, 0]
    assert spans(story, "A")[-1] == ("decode", "a token a step", 1.0, 4.0)


def test_a_policy_that_collects_says_so() -> None:
    story, _ = told(
        [request("A", 4, 2), request("B", 4, 1, 1.5)], batching="static", min_batch=2, max_wait=5.0
    )
    assert spans(story, "A") == [
        ("waiting", "the policy was collecting a batch", 0.0, 1.5),
        ("prefill", "tokens 0 to 4, beside 0 decodes", 1.5, 2.5),
        ("decode", "a token a step", 2.5, 3.5),
    ]
    assert [span.steps for span in story.spans["A"]] == [[], [0], [1]]


def test_a_static_batch_lets_nobody_in() -> None:
    waits = [request("A", 4, 3), request("B", 4, 1), request("C", 4, 1), request("D", 4, 1, 0.5)]
    story, _ = told(waits, batching="static", max_num_seqs=2)
    under_way = "a batch that takes nobody in was under way"
    assert spans(story, "C")[:2] == [
        ("waiting", "all 2 seats (max_num_seqs) were taken", 0.0, 1.0),
        ("waiting", under_way, 1.0, 3.0),
    ]
    assert spans(story, "D")[1] == ("waiting", under_way, 1.0, 3.0)
    story, _ = told([request(id, 4, 2, max_tokens=8) for id in "ABC"], batching="static", num_blocks=6)
    assert spans(story, "C")[0] == ("waiting", BLOCKS, 0.0, 1.0)


def test_a_decode_that_stands_still_says_why() -> None:
    story, _ = told([request("A", 4, 3), request("B", 4, 1, 0.5)], batching="prefill_first")
    assert spans(story, "A") == [
        ("prefill", "tokens 0 to 4, beside 0 decodes", 0.0, 1.0),
        ("left out", "the step computed only prompts", 1.0, 2.0),
        ("decode", "a token a step", 2.0, 4.0),
    ]
    story, _ = told([request("A", 6, 1), request("B", 6, 1)], batching="static", max_num_batched_tokens=8)
    assert spans(story, "B")[0] == ("left out", "the step had no room for it", 0.0, 1.0)


def test_a_client_that_leaves_before_the_first_decision_met_a_step_under_way() -> None:
    story, _ = told([request("A", 4, 3), request("B", 4, 1, 1.25, timeout=0.5)])
    assert spans(story, "B") == [("step under way", "a step was under way when it arrived", 1.25, 1.75)]


def test_only_the_ids_asked_for_are_followed() -> None:
    story = Story(["B"])
    observe([request("A", 4, 3), request("B", 4, 1)], observers=[story], latency=SECOND, num_blocks=9)
    assert set(story.spans) == {"B"}


class Late(Chunked):
    """Takes nobody in before 2 s."""

    def schedule(self, now: float) -> Batch:
        if now >= 2.0:
            return super().schedule(now)
        batch = self.open_batch(now)
        self.wake_at = 2.0
        return batch


def test_a_policy_of_ones_own_that_takes_nobody_in_is_told_as_that() -> None:
    story = Story()
    serve([request("A", 4, 1)], Late(BlockManager(9)), SECOND, observers=[story])
    assert spans(story, "A")[0] == ("waiting", "the policy took nobody in", 0.0, 2.0)


# What is made of it.


def tiny(*rows: dict[str, int], **changes: object) -> Scenario:
    """Return a scenario of a few requests, 0.5 s and 1/8 s a token a step, served 64 tokens at a time."""
    path = Path("rows.jsonl")
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    coefficients = {"constant": 0.5, "per_token": 0.125}
    return load_scenario("tiny-cpu").with_(
        **{"workload.trace": str(path), "latency.coefficients": coefficients, **changes}
    )


def row(ms: int, prompt: int, output: int) -> dict[str, int]:
    return {"timestamp": ms, "input_length": prompt, "output_length": output}


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_prompts_of_others_slow_a_decode_by_their_tokens() -> None:
    """Two decode steps of request 0 carry the 40 and the 8 prompt tokens of request 1, 1/8 s each."""
    scenario = tiny(row(0, 8, 6), row(100, 40, 1), row(1600, 8, 1))
    found = explain(scenario, "0")
    assert found.slowed == pytest.approx((40 + 8) * 0.125, abs=1e-12)
    assert f"of the decode time, prompts of others took {6.0:.4f} s" in found.text()
    assert explain(scenario, "1").slowed == 0


def test_a_story_as_text() -> None:
    found = explain(tiny(row(0, 8, 3), row(100, 40, 1)), "1")
    assert found.text().splitlines() == [
        "Request 1: 40 prompt tokens, 1 output tokens, completed (stop)",
        "arrived at 0.100 s, first token after 7.025 s, done after 7.025 s",
        "",
        "where the time went                                      seconds   share",
        "prefill                                                   5.6250   80.1%",
        "step under way: a step was under way when it arrived      1.4000   19.9%",
        "sum                                                       7.0250",
        "",
        "      from   seconds  steps        what",
        "   +0.0000    1.4000               step under way: a step was under way when it arrived",
        "   +1.4000    5.6250  1            prefill: tokens 0 to 40, beside 1 decodes",
    ]
    assert str(found) == found.text()


def test_a_long_story_is_cut_short() -> None:
    found = explain(tight(), "30")
    assert len(found.spans) > 3
    lines = found.text(max_spans=3).splitlines()
    assert lines[-1] == f"... and {len(found.spans) - 2} more spans"


def test_a_request_that_was_refused_has_a_story_of_no_length() -> None:
    found = explain(tiny(row(0, 8, 3), row(100, 600, 1)), "1")
    assert (found.status, found.latency, found.spans) == ("rejected (prompt >= max_model_len)", 0.0, ())
    assert "no first token" in found.text()


def test_the_command_explains_a_run_folder_also_of_a_trace() -> None:
    Path("s.yaml").write_text(tiny(row(0, 8, 3), row(100, 40, 1)).to_yaml())
    assert servetwin("run", "s.yaml", "--quiet", "--no-report", "-o", "out").code == 0
    told = servetwin("explain", "out", "1")
    assert told.code == 0
    assert told.out.startswith("Request 1: 40 prompt tokens, 1 output tokens, completed (stop)\n")
    found = json.loads(servetwin("explain", "out", "1", "--json").out)
    assert sum(cause["seconds"] for cause in found["causes"]) == pytest.approx(found["latency"], abs=1e-9)
    assert [span["kind"] for span in found["spans"]] == ["step under way", "prefill"]


def test_an_unknown_request_is_told_in_one_line() -> None:
    assert servetwin("run", "tiny-cpu", "--quiet", "--no-report", "-o", "out").code == 0
    assert servetwin("explain", "out", "399").complaint == "request '399': not in this run; did you mean 39?"
    assert servetwin("explain", "nowhere", "1").complaint.startswith("scenario 'nowhere': no such file")
    with pytest.raises(ConfigError, match="not in this run; it has 60 requests"):
        explain(tight(), "sixty")


def test_a_run_with_a_policy_file_needs_trust() -> None:
    Path("mine.py").write_text("def longest(seq, ctx):\n    return -seq.num_prompt\n")
    named = ("--order", "mine.py:longest", "--rate", 9)
    assert servetwin("run", "tiny-cpu", *named, "--quiet", "--no-report", "-o", "out").code == 0
    assert "pass --trust" in servetwin("explain", "out", "39").complaint
    Path("mine.py").write_text("raise SystemExit('not the copy')")
    found = json.loads(servetwin("explain", "out", "39", "--trust", "--json").out)
    table = load_run("out").requests.set_index("id")
    assert found["latency"] == pytest.approx(table.finish["39"] - table.arrival["39"], abs=1e-9)


def test_a_result_explains_its_requests_with_the_policies_it_was_made_with() -> None:
    def longest(seq: Sequence, ctx: Context) -> int:
        return -seq.num_prompt

    result = simulate("tiny-cpu", order=longest, set={"workload.arrivals.rate": 9.0})
    table = result.requests.set_index("id")
    for id in ("0", "20", "39"):
        assert result.explain(id).latency == pytest.approx(table.finish[id] - table.arrival[id], abs=1e-9)
    result = simulate("tiny-cpu", set={"workload.arrivals.rate": 9.0})
    result.save("out")
    assert load_run("out").explain("20") == result.explain("20")


def test_an_id_cannot_fool_the_terminal() -> None:
    scenario, hostile = tiny(row(0, 8, 3)), "a\x1b[2Jb\nc"
    workload = replace(build_workload(scenario, 512), ids=[hostile])
    text = explain(scenario, hostile, workload=workload).text()
    assert all(line.isprintable() for line in text.splitlines())
    assert text.startswith("Request a")
