"""One request's story: what it waited for, how it was computed, who took its blocks, each with its seconds.

The run is simulated again with an observer that notes what the request does at every step; since the same
scenario gives the same run, the story ends where the recorded request ended. A run that a real engine served
is simulated again at its recorded times.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from simulator.config.build import NO_POLICIES, Policies
from simulator.config.run import Run, run_scenario
from simulator.config.scenario import Scenario
from simulator.config.server import one_replica
from simulator.engine.story import DECODE, PREFILL, Span, Story, arriving, close
from simulator.errors import ConfigError, suggest
from simulator.experiments.resimulate import resimulate
from simulator.experiments.run_folder import SavedRun
from simulator.latency.base import LatencyModel, StepFeatures
from simulator.metrics.tables import STATUS, StepTable
from simulator.workload.workload import Workload


@dataclass(frozen=True)
class Explanation:
    """The spans of one request, in order of time; they add up to its latency. Seconds.

    `latency` is end to end; of a request that did not finish, up to the run's end.
    """

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
        causes = [(f"{kind}: {why}" if why else kind, seconds) for kind, why, seconds in self.causes()]
        width = 2 + max([len(cause) for cause, _ in causes], default=30)
        lines = [
            f"Request {self.id}: {self.num_prompt:,} prompt tokens, {self.num_output:,} output tokens, "
            f"{self.status}",
            f"arrived at {self.arrival:.3f} s, {ttft}, done after {_s(self.latency)}",
            "",
            f"{'where the time went':<{width}}{'seconds':>10}{'share':>8}",
        ]
        for cause, seconds in causes:
            share = seconds / self.latency if self.latency else 0.0
            lines.append(f"{cause:<{width}}{seconds:>10.4f}{share:>8.1%}")
        total = sum(span.seconds for span in self.spans)
        lines.append(f"{'sum':<{width}}{total:>10.4f}")
        if self.slowed > 0:
            lines.append(f"of the decode time, prompts of others took {self.slowed:.4f} s")
        lines += ["", f"{'from':>10}{'seconds':>10}  {'steps':<13}what"]
        shown = self.spans if len(self.spans) <= max_spans else self.spans[: max_spans - 1]
        lines += [_line(span, self.arrival) for span in shown]
        if len(shown) < len(self.spans):
            lines.append(f"... and {len(self.spans) - len(shown)} more spans")
        return "\n".join(line if line.isprintable() else ascii(line)[1:-1] for line in lines)


def explain(
    scenario: Scenario,
    request_id: str,
    policies: Policies = NO_POLICIES,
    workload: Workload | None = None,
) -> Explanation:
    """Simulate a scenario again and explain one request; ConfigError if there is none of that id."""
    one_replica(scenario, "explain")
    if scenario.parallel.pipeline_parallel_size > 1:
        raise ConfigError(
            "explain: parallel.pipeline_parallel_size must be 1, steps that overlap are not told apart"
        )
    story = Story([request_id])
    run = run_scenario(scenario, policies=policies, workload=workload, observers=[story])
    return story_of(run, story, request_id)


def explain_measured(
    saved: SavedRun,
    request_id: str,
    policies: Policies = NO_POLICIES,
    workload: Workload | None = None,
) -> Explanation:
    """Explain a request that a real engine served: its run is simulated again at the recorded times."""
    story = Story([request_id])
    run = resimulate(saved, policies=policies, workload=workload, observers=[story])
    return story_of(run, story, request_id)


def story_of(run: Run, story: Story, request_id: str) -> Explanation:
    """Put one request's spans and its row together."""
    table = run.requests
    if request_id not in table.id:
        near = suggest(request_id, table.id) if len(table.id) < 50 else f"; it has {len(table.id):,} requests"
        raise ConfigError(f"request {request_id[:80]!r}: not in this run{near}")
    row = table.id.index(request_id)
    arrival, pre_delay = float(table.arrival[row]), float(table.pre_delay[row])
    first, end = float(table.first_token[row]), _end(run, row)
    spans = list(story.spans.get(request_id, ()))
    if not spans and end > arrival:
        spans = [arriving(arrival, end)]
    if spans:
        close(spans, end)
    if pre_delay:
        spans.insert(0, Span("before the server", "what its client did first", arrival - pre_delay, arrival))
    return Explanation(
        id=request_id,
        status=f"{STATUS[table.status[row]]} ({table.reason[row]})" if table.reason[row] else "unfinished",
        num_prompt=int(table.num_prompt[row]),
        num_output=int(table.num_output[row]),
        arrival=arrival,
        ttft=None if first != first else first - arrival,
        latency=end - arrival + pre_delay,
        spans=tuple(spans),
        slowed=sum(_slowed(span, run.steps, run.machine.latency) for span in spans if span.kind == DECODE),
    )


def _end(run: Run, row: int) -> float:
    """Return when a request's story ends: with the request, or with the run if that came first."""
    finish, horizon = float(run.requests.finish[row]), run.scenario.run.horizon_s
    if finish == finish:
        return finish
    return float(run.steps.end.max(initial=run.requests.arrival[row])) if horizon is None else horizon


def _slowed(span: Span, steps: StepTable, latency: LatencyModel) -> float:
    """Seconds by which the prompt chunks of others made a decode span's steps longer, of those that ended."""
    lost = 0.0
    for i in span.steps:
        if i < len(steps) and steps.prefill_tokens[i]:
            n = int(steps.num_decodes[i])
            alone = StepFeatures(n, n, n, n, int(steps.decode_kv[i]), int(steps.decode_kv_max[i]))
            seconds = float(steps.end[i] - steps.start[i] - steps.stall[i])
            lost += seconds - latency.step_time(alone)
    return lost


def _line(span: Span, arrival: float) -> str:
    steps = f"{span.steps[0]}-{span.steps[-1]}" if len(span.steps) > 1 else "".join(map(str, span.steps))
    return f"{span.start - arrival:>+10.4f}{span.seconds:>10.4f}  {steps:<13}{span.kind}: {span.why}"


def _s(seconds: float) -> str:
    return f"{1e3 * seconds:,.1f} ms" if seconds < 1 else f"{seconds:,.3f} s"
