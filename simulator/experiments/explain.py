"""One request's story: what it waited for, how it was computed, who took its blocks, each with its seconds.

The run is simulated again with an observer that notes what the request does at every step; since the same
scenario gives the same run, the story ends where the recorded request ended.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from simulator.config.build import NO_POLICIES, Policies
from simulator.config.run import Run, run_scenario
from simulator.config.scenario import Scenario
from simulator.engine.story import DECODE, PREFILL, Span, Story
from simulator.errors import ConfigError, suggest
from simulator.latency.base import LatencyModel, StepFeatures
from simulator.metrics.tables import STATUS, StepTable
from simulator.workload.workload import Workload


@dataclass(frozen=True)
class Explanation:
    """The spans of one request, in order of time; they add up to its latency. Seconds."""

    id: str
    status: str
    num_prompt: int
    num_output: int
    arrival: float
    ttft: float | None
    latency: float
    spans: tuple[Span, ...]
    slowed: float  # seconds of its decode steps that went into other requests' prompts

    def causes(self) -> list[tuple[str, str, float]]:
        """Return (activity, reason, seconds), equal ones together, the longest first."""
        sums: dict[tuple[str, str], float] = {}
        for span in self.spans:
            key = (span.kind, "" if span.kind == PREFILL else span.why)
            sums[key] = sums.get(key, 0.0) + span.seconds
        return sorted(((kind, why, s) for (kind, why), s in sums.items()), key=lambda cause: -cause[2])

    def to_dict(self) -> dict[str, object]:
        causes = [{"activity": kind, "why": why, "seconds": s} for kind, why, s in self.causes()]
        return {**asdict(self), "causes": causes}

    def __str__(self) -> str:
        return self.text()

    def text(self, max_spans: int = 40) -> str:
        """Return the story: the causes, then the spans one after the other."""
        ttft = "no first token" if self.ttft is None else f"first token after {_s(self.ttft)}"
        lines = [
            f"Request {self.id}: {self.num_prompt:,} prompt tokens, {self.num_output:,} output tokens, "
            f"{self.status}",
            f"arrived at {self.arrival:.3f} s, {ttft}, done after {_s(self.latency)}",
            "",
            f"{'where the time went':<58}{'seconds':>10}{'share':>8}",
        ]
        for kind, why, seconds in self.causes():
            share = seconds / self.latency if self.latency else 0.0
            lines.append(f"{kind + (': ' + why if why else ''):<58}{seconds:>10.4f}{share:>8.1%}")
        total = sum(span.seconds for span in self.spans)
        lines.append(f"{'sum':<58}{total:>10.4f}{'':>8}")
        if self.slowed > 0:
            lines.append(f"of the decode time, prompts of others took {self.slowed:.4f} s")
        lines += ["", f"{'from':>10}{'seconds':>10}  {'steps':<13}what"]
        shown = self.spans if len(self.spans) <= max_spans else self.spans[: max_spans - 1]
        lines += [_line(span, self.arrival) for span in shown]
        if len(shown) < len(self.spans):
            lines.append(f"... and {len(self.spans) - len(shown)} more spans")
        return "\n".join(lines)


def explain(
    scenario: Scenario,
    request_id: str,
    policies: Policies = NO_POLICIES,
    workload: Workload | None = None,
) -> Explanation:
    """Simulate a scenario again and explain one request; ConfigError if there is none of that id."""
    story = Story([request_id])
    run = run_scenario(scenario, policies=policies, workload=workload, observers=[story])
    return story_of(run, story, request_id)


def story_of(run: Run, story: Story, request_id: str) -> Explanation:
    """Put one request's spans and its row together."""
    table = run.requests
    if request_id not in table.id:
        near = suggest(request_id, table.id) if len(table.id) < 50 else f"; it has {len(table.id):,} requests"
        raise ConfigError(f"request {request_id[:80]!r}: not in this run{near}")
    row = table.id.index(request_id)
    spans = tuple(story.spans.get(request_id, ()))
    first = float(table.first_token[row])
    return Explanation(
        id=request_id,
        status=f"{STATUS[table.status[row]]} ({table.reason[row]})" if table.reason[row] else "unfinished",
        num_prompt=int(table.num_prompt[row]),
        num_output=int(table.num_output[row]),
        arrival=float(table.arrival[row]),
        ttft=None if first != first else first - float(table.arrival[row]),
        latency=float(table.finish[row] - table.arrival[row]),
        spans=spans,
        slowed=sum(_slowed(span, run.steps, run.machine.latency) for span in spans if span.kind == DECODE),
    )


def _slowed(span: Span, steps: StepTable, latency: LatencyModel) -> float:
    """Seconds by which the prompt chunks of others made a decode span's steps longer."""
    lost = 0.0
    for i in span.steps:
        if steps.prefill_tokens[i]:
            n = int(steps.num_decodes[i])
            alone = StepFeatures(n, n, n, n, int(steps.decode_kv[i]), int(steps.decode_kv_max[i]))
            lost += float(steps.end[i] - steps.start[i]) - latency.step_time(alone)
    return lost


def _line(span: Span, arrival: float) -> str:
    steps = f"{span.steps[0]}-{span.steps[-1]}" if len(span.steps) > 1 else "".join(map(str, span.steps))
    return f"{span.start - arrival:>+10.4f}{span.seconds:>10.4f}  {steps:<13}{span.kind}: {span.why}"


def _s(seconds: float) -> str:
    return f"{1e3 * seconds:,.1f} ms" if seconds < 1 else f"{seconds:,.3f} s"
