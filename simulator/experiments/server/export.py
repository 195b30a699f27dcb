"""Take a run to a real server: the serve command, what it cannot do, the client's command, what to expect.

A run folder is taken with its numbers; any other scenario is simulated first, so that there is something to
compare the server with.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from simulator.config.build import NO_POLICIES, Machine, Policies, build_machine
from simulator.config.build_workload import build_workload
from simulator.config.cluster import replica_scenarios
from simulator.config.loading import load_scenario
from simulator.config.policies import files_named
from simulator.config.run import run_scenario
from simulator.config.scenario import Scenario
from simulator.engine.clients import Progress
from simulator.errors import ConfigError, suggest
from simulator.experiments.run_folder import load_run
from simulator.experiments.server.bench import bench_argv, drawn_argv
from simulator.experiments.server.load import load_lacks, sent_load, write_load
from simulator.experiments.server.setting import Lack, Rule, model_id, scenario_keys, settings
from simulator.experiments.server.to_sglang import SGLANG
from simulator.experiments.server.to_vllm import VLLM
from simulator.metrics.tables import RequestTable
from simulator.workload.workload import Workload

RULES: dict[str, Mapping[str, Rule]] = {"vllm": VLLM, "sglang": SGLANG}
VERSIONS = {"vllm": "vLLM 0.33", "sglang": "SGLang 0.5.23"}
LOAD_FILE = "load.jsonl"
EXPECTED = ("mean", "median", "p99")
WIDTH = 100  # of a printed command
UNTRUSTED = "no numbers to expect: its policies are code in files; pass --trust to run them"


@dataclass(frozen=True)
class Export:
    """Commands as lists of arguments, keys without a counterpart, and the numbers that the run had.

    `drawn` is the command that draws the arrivals anew, None where no client draws such a load. `expect` is
    empty if the run was not made. `load` are the requests, written to `load_path` if one was given.
    """

    server: str
    name: str
    machine: str
    serve: list[str]
    bench: list[str]
    drawn: list[str] | None
    no_counterpart: list[Lack]
    expect: dict[str, object]
    notes: tuple[str, ...]
    load: Workload
    load_path: Path | None = None

    def to_dict(self) -> dict[str, object]:
        return {
            "server": self.server,
            "version": VERSIONS[self.server],
            "machine": self.machine,
            "serve": self.serve,
            "bench": self.bench,
            "bench_drawn": self.drawn,
            "no_counterpart": [each.to_dict() for each in self.no_counterpart],
            "expect": self.expect,
            "notes": list(self.notes),
            "num_requests": len(self.load),
            "load": None if self.load_path is None else str(self.load_path),
        }

    def text(self) -> str:
        """Return commands to paste, the rest as comments of a shell."""
        lines = [f"# {self.name}: {VERSIONS[self.server]} on {self.machine}", command(self.serve)]
        if self.no_counterpart:
            lines += ["", f"# Without a counterpart in {VERSIONS[self.server]}, or only a near one:"]
            lines += [
                f"#   {each.key} = {_short(each.value)}: {each.instead}" for each in self.no_counterpart
            ]
        where = f"in {self.load_path}" if self.load_path else f"to be written by -o {LOAD_FILE}"
        lines += ["", f"# The same load: {len(self.load):,} requests, {where}", command(self.bench)]
        if self.drawn is not None:
            lines += ["", "# The same law with arrivals drawn anew:", command(self.drawn)]
        if self.expect:
            lines += ["", "# What the simulation says you will measure:", *expected_lines(self.expect)]
            lines.append("# Then: servetwin import measured.json -o measured; servetwin diff measured RUN")
        lines += [f"# Note: {note}" for note in self.notes]
        return "\n".join(_printable(line) for text in lines for line in text.split("\n"))


def export(
    server: str,
    source: str | Path | Scenario,
    *,
    out: Path | None = None,
    policies: Policies = NO_POLICIES,
    progress: Progress | None = None,
) -> Export:
    """Return the commands for a run folder or any scenario; `out` writes its requests there.

    ConfigError for an unknown server, InputError for a result that has no scenario.
    """
    if server not in RULES:
        raise ConfigError(f"export {server[:40]!r}: unknown server{suggest(server, RULES)}")
    scenario, summary, requests, notes = _run(source, policies, progress)
    machine = build_machine(scenario)
    workload = build_workload(scenario, machine.max_model_len)
    load = sent_load(scenario, workload, requests)
    argv, lacks = settings(scenario, machine, RULES[server])
    name, placeholder = model_id(scenario.model.name)
    bench = bench_argv(server, name, scenario, load, str(out or LOAD_FILE))
    if out is not None:
        write_load(load, out)
    told = [*notes, placeholder, _first_gap(load)]
    return Export(
        server,
        scenario.name,
        _gpus(scenario, machine),
        [*_server(server, name), *argv],
        bench,
        drawn_argv(server, name, scenario, bench),
        lacks + load_lacks(scenario, workload),
        {} if summary is None else expected(summary),
        tuple(note for note in told if note),
        load,
        out,
    )


def _run(
    source: str | Path | Scenario, policies: Policies, progress: Progress | None
) -> tuple[Scenario, Mapping[str, object] | None, RequestTable | None, list[str]]:
    """Return a scenario with its run's summary and requests: as they are in a folder, or simulated now."""
    if not isinstance(source, Scenario):
        source = winner_of(Path(source))
    if not isinstance(source, Scenario) and (source / "summary.json").is_file():
        saved = load_run(source)
        return saved.scenario, saved.summary, saved.requests, []
    scenario = load_scenario(source)
    files = files_named(value for _, value in scenario_keys(scenario))
    if not policies.trust and not files <= frozenset(policies.trusted):
        return scenario, None, None, [UNTRUSTED]
    run = run_scenario(scenario, policies=policies, progress=progress)
    return scenario, run.summary, run.requests, []


def _server(server: str, name: str) -> list[str]:
    return ["vllm", "serve", name] if server == "vllm" else ["python", "-m", "sglang.launch_server"]


def _gpus(scenario: Scenario, machine: Machine) -> str:
    groups = zip(replica_scenarios(scenario), machine.kinds or (machine,), strict=True)
    return " and ".join(
        f"{count * each.parallel.num_gpus} x {its.hardware.description}" for (count, each), its in groups
    )


def _first_gap(load: Workload) -> str:
    if len(load) and load.arrival[0] > 0:
        return f"the first request is sent after {load.arrival[0]:.3g} s, as in the simulation"
    return ""


def expected(summary: Mapping[str, object]) -> dict[str, object]:
    """Return the numbers of a run that a client prints, and how sure they are."""
    own = summary["servetwin"]
    assert isinstance(own, dict), "looked at when it was read"
    names = [f"{how}_{what}_ms" for what in ("ttft", "tpot", "itl", "e2el") for how in EXPECTED]
    names += ["request_throughput", "request_goodput", "output_throughput"]
    intervals = own.get("model_interval")
    found: dict[str, object] = {name: summary.get(name) for name in names if summary.get(name) is not None}
    return found | {
        "attainment": own.get("attainment"),
        "step_error": own.get("profile_error"),
        "model_interval": {
            name: [each["low"], each["high"]]
            for name, each in (intervals.items() if isinstance(intervals, dict) else ())
            if name in (*names, "attainment")
        },
        "provenance": own.get("provenance"),
    }


def expected_lines(expect: Mapping[str, object]) -> list[str]:
    """Return the numbers as comments, with their model intervals where the run has them."""
    intervals = expect["model_interval"]
    assert isinstance(intervals, dict), "made so"
    lines = []
    for name, value in expect.items():
        if not isinstance(value, int | float) or name == "step_error":
            continue
        low_high = intervals.get(name)
        band = f"   {_number(low_high[0])} to {_number(low_high[1])} by the model's error" if low_high else ""
        lines.append(f"#   {name:<22}{_number(value):>12}{band}")
    error = expect["step_error"]
    if isinstance(error, float):
        lines.append(
            f"#   held-out error of a step: {100 * error:.1f} %; docs/limits.md says what is left out"
        )
    else:
        lines.append("#   times are estimated, not fitted: expect the order of candidates, not the numbers")
    if not intervals:
        lines.append("#   no model intervals: servetwin run --model-draws 20 gives them")
    return [*lines, f"#   times: {expect['provenance']}"]


def _number(value: float) -> str:
    return f"{value:,.4f}" if abs(value) < 10 else f"{value:,.1f}"


def command(argv: list[str]) -> str:
    """Return a command for a shell, one line per few flags.

    >>> print(command(["vllm", "serve", "a model", "--max-num-seqs", "256"]))
    vllm serve 'a model' --max-num-seqs 256
    """
    words = [shlex.quote(each) for each in argv]
    lines, line = [], words[0]
    groups: list[list[str]] = []
    for word in words[1:]:
        if word.startswith("--") or not groups:
            groups.append([word])
        else:
            groups[-1].append(word)
    for group in groups:
        text = " ".join(group)
        if len(line) + len(text) + 3 > WIDTH:
            lines.append(line + " \\")
            line = "    " + text
        else:
            line += " " + text
    return "\n".join([*lines, line])


def winner_of(folder: Path) -> Path:
    """Return a comparison's winner/ where that was meant, else the folder itself."""
    winner = folder / "winner"
    is_comparison = not (folder / "scenario.yaml").is_file() and (winner / "scenario.yaml").is_file()
    return winner if is_comparison else folder


def _short(value: object) -> str:
    text = "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _printable(line: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in line)
