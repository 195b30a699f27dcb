"""Write docs/scenarios/*.md: for each kind of load, what to set, what it gains and how sure that is.

    python scripts/scenario_pages.py              # all pages, some minutes on two cores
    python scripts/scenario_pages.py chat         # pages whose name has this word
    python scripts/scenario_pages.py --tiny -o x  # the same code on tiny-cpu, seconds; for the tests

Nothing on a page is asserted: every number and every recommendation comes from a tournament on replications
that all candidates share. The first candidate of a page is what a server does by itself.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from simulator.config.loading import load_scenario, scenario_text
from simulator.config.plain_yaml import dump_yaml
from simulator.config.scenario import Scenario
from simulator.experiments.compare import Comparison, compare
from simulator.experiments.metric_cells import cell, lower_is_better
from simulator.experiments.tournament.standing import Standing

REPLICATIONS = 10
MODEL_DRAWS = 20  # of the profile's errors: fewer than 19 cannot bound 90 %
DEFAULT = "as it is"
TINY = {"workload.num_requests": 40, "workload.arrivals.rate": 5.0}
"""Of tiny-cpu: enough load for candidates to differ."""


@dataclass(frozen=True)
class Page:
    """One page. `candidates` change the scenario; `others` are metrics shown beside the one that decides."""

    name: str
    title: str
    scenario: str
    metric: str
    others: tuple[str, ...]
    candidates: Mapping[str, Mapping[str, object]]

    @property
    def all(self) -> dict[str, Mapping[str, object]]:
        return {DEFAULT: {}, **self.candidates}


def settings(key: str, *values: object) -> dict[str, dict[str, object]]:
    """Return a candidate per value of a key."""
    return {f"{key.rpartition('.')[2]}={value}": {key: value} for value in values}


AUTO = {"num_speculative_tokens_per_batch_size": "auto"}
LOOKUP_US = 2.0  # docs/speculation.md says where it is from


def ngram(acceptance: float, num_tokens: int, more: Mapping[str, object] = {}) -> dict[str, object]:
    """Return a candidate that looks drafts up in the text."""
    keys = {"method": "ngram", "num_speculative_tokens": num_tokens, "acceptance": acceptance}
    return {"speculative": keys | {"lookup_us": LOOKUP_US} | more}


def draft_model(acceptance: float, num_tokens: int, more: Mapping[str, object] = {}) -> dict[str, object]:
    """Return a candidate that lets a small model draft."""
    keys = {"method": "draft_model", "num_speculative_tokens": num_tokens, "acceptance": acceptance}
    return {"speculative": keys | {"draft_model": "llama-3.2-1b"} | more}


BUDGET, SEATS = "scheduler.max_num_batched_tokens", "scheduler.max_num_seqs"
BATCHING, ORDER, EVICTION = "scheduler.batching", "scheduler.order", "kv.eviction"
TENSOR, STAGES = "parallel.tensor_parallel_size", "parallel.pipeline_parallel_size"
ROUTER = "cluster.router"
LATENCIES = ("p99_ttft_ms", "p99_itl_ms", "output_throughput")

PAGES = (
    Page(
        "offline",
        "High-throughput offline",
        "offline-a100",
        "output_throughput",
        ("mean_tpot_ms", "duration", "num_preemptions"),
        {
            **settings(BUDGET, 4096, 8192, 16384),
            **settings(SEATS, 128, 512, 1024),
            **settings(BATCHING, "static", "prefill_first"),
            "max_num_seqs=1024 max_num_batched_tokens=8192": {SEATS: 1024, BUDGET: 8192},
        },
    ),
    Page(
        "online",
        "Low-latency online",
        "chat-a100",
        "attainment",
        LATENCIES,
        {
            **settings(BUDGET, 512, 1024, 4096, 8192),
            **settings(SEATS, 64),
            **settings(BATCHING, "continuous", "prefill_first"),
            "async_scheduling=true": {"scheduler.async_scheduling": True},
        },
    ),
    Page(
        "low-latency",
        "Low latency: pipeline against tensor parallel",
        "low-latency-a100",
        "p99_itl_ms",
        ("mean_itl_ms", "p99_ttft_ms", "attainment"),
        {
            "TP2 x PP2": {TENSOR: 2, STAGES: 2},
            "PP4": {TENSOR: 1, STAGES: 4},
            **settings(BUDGET, 512, 1024),
            "async_scheduling=true": {"scheduler.async_scheduling": True},
        },
    ),
    Page(
        "long-context",
        "Long context",
        "long-context-a100",
        "attainment",
        LATENCIES,
        {
            **settings(BUDGET, 1024, 4096, 8192),
            **settings(BATCHING, "prefill_first"),
            "order=sjf_prompt": {ORDER: "sjf_prompt"},
            "long_prefill_token_threshold=1024": {"scheduler.long_prefill_token_threshold": 1024},
        },
    ),
    Page(
        "agentic",
        "Agentic sessions",
        "agentic-a100",
        "attainment",
        ("p99_ttft_ms", "prefix_hit_rate", "output_throughput"),
        {
            "enable_prefix_caching=false": {"kv.enable_prefix_caching": False},
            **settings(BUDGET, 1024, 8192),
            **settings(EVICTION, "lfu", "gdsf", "sieve"),
            "tiers=host 64 GiB": {
                "kv.tiers": [
                    {
                        "name": "host",
                        "capacity_gib": 64,
                        "bandwidth_gb_s": 25,
                        "latency_us": 10,
                        "offload": True,
                    }
                ]
            },
        },
    ),
    Page(
        "fleet",
        "Eight servers behind a router",
        "fleet-a100",
        "attainment",
        ("median_ttft_ms", "p99_ttft_ms", "prefix_hit_rate", "output_throughput"),
        {
            **settings(ROUTER, "round_robin", "random", "least_kv", "power_of_two", "session_affinity"),
            **settings(ROUTER, "prefix_affinity"),
        },
    ),
    Page(
        "two-tenants",
        "Two tenants",
        "two-tenants-a100",
        "attainment",
        LATENCIES,
        {
            **settings(ORDER, "priority", "virtual_counters", "edf", "sjf_prompt"),
            **settings(BUDGET, 1024, 4096),
            "order=priority max_num_batched_tokens=1024": {ORDER: "priority", BUDGET: 1024},
        },
    ),
    Page(
        "completion",
        "Code completion",
        "completion-a100",
        "mean_e2el_ms",
        ("attainment", "p99_e2el_ms", "median_ttft_ms", "mean_tpot_ms"),
        {
            "n-gram, 3 drafts, 40 % accepted": ngram(0.4, 3),
            "n-gram, 5 drafts, 40 % accepted": ngram(0.4, 5),
            "n-gram, auto, 40 % accepted": ngram(0.4, 5, AUTO),
            "n-gram, 3 drafts, 10 % accepted": ngram(0.1, 3),
            "1B model, 3 drafts, 80 % accepted": draft_model(0.8, 3),
            "1B model, auto, 80 % accepted": draft_model(0.8, 5, AUTO),
            "max_num_batched_tokens=8192": {BUDGET: 8192},
        },
    ),
)


def tiny(page: Page) -> Page:
    """Return a page of the same form on a scenario that takes no time."""
    return Page(page.name, page.title, "tiny-cpu", page.metric, page.others, settings(SEATS, 2, 12))


def contest(page: Page, scenario: Scenario, replications: int, draws: int) -> Comparison:
    return compare(scenario, page.all, metric=page.metric, n_model_draws=draws, replications=replications)


def text_of(page: Page, found: Comparison) -> str:
    """Return a page's text."""
    standing = found.tournament
    assert standing is not None, "replications were asked for"
    num = len(standing.rounds.values[DEFAULT])
    lines = [
        f"# {page.title}",
        "",
        "Computed by `python scripts/scenario_pages.py`; do not edit. "
        f"Every number comes from {standing.contest.replications.words(num)}.",
        "",
        "```yaml",
        scenario_text(page.scenario).rstrip(),
        "```",
        "",
        f"## What to set: {page.metric} decides",
        "",
        *recommendation(page, standing),
        "",
        *table(page, standing),
        "",
        *certainty(page, found),
    ]
    return "\n".join(lines) + "\n"


def recommendation(page: Page, standing: Standing) -> list[str]:
    """Return what the tournament recommends: the best mean among the wins, else no change."""
    sign = -1.0 if lower_is_better(page.metric) else 1.0
    wins = [name for name, verdict in standing.verdicts.items() if verdict == "win"]
    if not wins:
        return ["**Leave it as it is**: no candidate is better by more than chance and the profile's error."]
    best = max(wins, key=lambda name: sign * (standing.mean(name, page.metric) or 0.0))
    equal = [name for name in wins if name != best and overlaps(page, standing, name, best)]
    changes = page.all[best]
    lines = [
        f"**{best}**: {page.metric} {shown(page, standing.mean(DEFAULT, page.metric))} becomes "
        f"{shown(page, standing.mean(best, page.metric))}, a difference of {interval(page, standing, best)}.",
        "",
        "```",
        f"servetwin run {page.scenario} "
        + " ".join(
            f"--set '{key}={dump_yaml(value, flow=True).splitlines()[0]}'" for key, value in changes.items()
        ),
        "```",
    ]
    if equal:
        lines += ["", f"Not told apart from it by these intervals: {', '.join(equal)}."]
    return lines


def overlaps(page: Page, standing: Standing, one: str, other: str) -> bool:
    """Say whether the intervals of two candidates' differences to the baseline overlap."""
    a, b = standing.difference(one, page.metric), standing.difference(other, page.metric)
    return a is None or b is None or (a.combined.low <= b.combined.high and b.combined.low <= a.combined.high)


def table(page: Page, standing: Standing) -> list[str]:
    """Return a row per candidate: means, the paired difference with its intervals, the verdict."""
    titles = [
        "candidate",
        page.metric,
        "difference, 95 % combined",
        "of chance alone",
        "verdict",
        *page.others,
    ]
    rows = [f"| {' | '.join(titles)} |", f"|{'---|' * len(titles)}"]
    for name in standing.names:
        found = None if name == DEFAULT else standing.difference(name, page.metric)
        cells = [name, shown(page, standing.mean(name, page.metric))]
        if found is None:
            cells += ["", "", "baseline" if name == DEFAULT else "needs more runs"]
        else:
            low, high = found.sampling.low, found.sampling.high
            cells += [interval(page, standing, name), f"{signed(page, low)} to {signed(page, high)}"]
            cells.append(standing.verdicts[name])
        cells += [cell(other, standing.mean(name, other)) for other in page.others]
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def certainty(page: Page, found: Comparison) -> list[str]:
    """Return how sure it is, and what would turn it."""
    standing = found.tournament
    assert standing is not None, "replications were asked for"
    first = found.runs[DEFAULT]
    lines = [
        "## How sure",
        "",
        "Differences are taken within each replication, which sends every candidate the same requests; the "
        "interval of chance is Student's over replications. The combined interval adds what the profile says "
        "of its own error. A win or loss is a combined interval without 0.",
        "",
        f"- Times: {first.own['provenance']}",
        *(f"- {note}" for note in first.machine.notes),
        "- The best of several candidates is lucky as well as good: if anything its difference is too large.",
    ]
    if not found.same_requests:
        lines.append("- The candidates were not sent the same requests.")
    return lines


def interval(page: Page, standing: Standing, name: str) -> str:
    found = standing.difference(name, page.metric)
    assert found is not None, "there are at least two replications"
    low, high = found.combined.low, found.combined.high
    return f"{signed(page, found.mean)} ({signed(page, low)} to {signed(page, high)})"


def signed(page: Page, value: float) -> str:
    """Return a difference as text: points of a share, else in the metric's unit."""
    return f"{100 * value:+.1f} pt" if page.metric == "attainment" else f"{value:+,.1f}"


def shown(page: Page, value: float | None) -> str:
    return cell(page.metric, value)


def index(pages: list[Page], folder: Path) -> str:
    lines = [
        "# Scenarios",
        "",
        "Which settings for which load; computed by `python scripts/scenario_pages.py`.",
        "",
    ]
    lines += [f"- [{page.title}]({page.name}.md)" for page in pages if (folder / f"{page.name}.md").exists()]
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("words", nargs="*", help="only pages whose name has one of these")
    parser.add_argument("-o", "--out", type=Path, default=Path("docs/scenarios"))
    parser.add_argument("--tiny", action="store_true", help="on tiny-cpu, with three replications")
    given = parser.parse_args(arguments)
    pages = [page for page in PAGES if not given.words or any(word in page.name for word in given.words)]
    given.out.mkdir(parents=True, exist_ok=True)
    for page in map(tiny, pages) if given.tiny else pages:
        base = load_scenario(page.scenario)
        base = base.with_(**TINY) if given.tiny else base
        draws = 0 if given.tiny else MODEL_DRAWS
        found = contest(page, base, 3 if given.tiny else REPLICATIONS, draws)
        (given.out / f"{page.name}.md").write_text(text_of(page, found), encoding="utf-8", newline="\n")
    (given.out / "README.md").write_text(index(list(PAGES), given.out), encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
