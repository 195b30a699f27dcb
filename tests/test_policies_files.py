"""Policies in a user's file: whose word loads them, what is kept of them, how their mistakes are told."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from command import Outcome, servetwin

from simulator.api import simulate
from simulator.errors import ConfigError

SOURCE = """\
from __future__ import annotations

from dataclasses import dataclass

from simulator import Scheduler


def shortest(seq, ctx):
    return seq.num_prompt


@dataclass
class Weights:
    prompt: int = 2


class Patient(Scheduler):
    def schedule(self, now):
        batch = self.open_batch(now)
        self.take_running(batch)
        self.admit(batch)
        return self.commit(batch)


class Idle(Scheduler):
    def schedule(self, now):
        return self.open_batch(now)


class Silent(Scheduler):
    def schedule(self, now):
        return None


class Stiff(Scheduler):
    def __init__(self, kv):
        super().__init__(kv)


class Broken(Scheduler):
    def schedule(self, now):
        raise KeyError("boom")  # line 42


def wrong_name(seq, ctx):
    return seq.length  # line 46


def mixed(seq, ctx):
    return "a" if seq.num_prompt % 2 else 1


def alike(seq, ctx):
    return 0


limit = 3
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(SOURCE)
    return Path("mine.py")


def run(*args: object, out: str = "out") -> Outcome:
    return servetwin("run", "tiny-cpu", "--no-report", "--quiet", "-o", out, *args)


@pytest.mark.parametrize(
    "args",
    [
        ("--order", "mine.py:shortest"),
        ("--batching", "mine.py:Patient"),
        ("--set", "scheduler.order=mine.py:shortest"),
        ("--set", "scheduler.victim=mine.py:shortest"),
        ("--order", "mine.py:alike"),  # keys that are all alike leave the order of arrival
    ],
)
def test_a_file_named_on_the_command_line_is_run(args: tuple[str, str], file: Path) -> None:
    assert run(*args) == Outcome(0, "", "")


def test_a_file_changes_decisions(file: Path) -> None:
    load = ("--rate", 9)
    assert run(*load, out="a").code == run(*load, "--order", "mine.py:shortest", out="b").code == 0
    assert Path("a/requests.csv").read_bytes() != Path("b/requests.csv").read_bytes()


def test_a_file_named_by_a_scenario_needs_trust(file: Path) -> None:
    Path("s.yaml").write_text("scheduler: {order: mine.py:shortest}\nworkload: {num_requests: 3}\n")
    Path("marker.py").write_text("open('marker', 'w')\n\ndef f(seq, ctx): return 0\n")
    refused = servetwin("run", "s.yaml", "-o", "out").complaint
    assert refused.startswith("scheduler.order: ")
    assert refused.endswith(
        "is code in a file; name it on the command line, or read it and pass --trust (in Python trust=True)"
    )
    Path("m.yaml").write_text("scheduler: {victim: marker.py:f}\n")
    for command in ("run", "check"):
        assert "pass --trust" in servetwin(command, "m.yaml").complaint
    assert not Path("marker").exists()
    assert servetwin("run", "s.yaml", "--trust", "--quiet", "--no-report", "-o", "out").code == 0


def test_a_run_folder_holds_the_file_and_runs_again_from_it(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("--order", "mine.py:shortest").code == 0
    folder = tmp_path / "out"
    assert (folder / "mine.py").read_text() == SOURCE
    digest = hashlib.sha256(SOURCE.encode()).hexdigest()
    lines = (folder / "scenario.yaml").read_text().splitlines()
    assert lines[0] == f"# mine.py sha256 {digest}"
    assert "  order: mine.py:shortest" in lines
    assert not (folder / "__pycache__").exists()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    Path("mine.py").write_text("raise SystemExit('the wrong file')")
    again = ("run", folder, "--no-report", "--quiet", "-o", "again")
    assert "pass --trust" in servetwin(*again).complaint
    assert servetwin(*again, "--trust").code == 0
    assert Path("again/requests.csv").read_bytes() == (folder / "requests.csv").read_bytes()
    assert Path("again/mine.py").read_text() == SOURCE


def test_two_files_of_one_name_are_both_kept(file: Path) -> None:
    Path("other").mkdir()
    Path("other/mine.py").write_text("def last(seq, ctx): return seq.order\n")
    assert run("--order", "mine.py:shortest", "--set", "scheduler.victim=other/mine.py:last").code == 0
    text = Path("out/scenario.yaml").read_text()
    digest = hashlib.sha256(Path("other/mine.py").read_bytes()).hexdigest()
    assert f"victim: mine-{digest[:8]}.py:last" in text
    assert text.count(" sha256 ") == 2
    assert servetwin("run", "out", "--trust", "--quiet", "--no-report", "-o", "again").code == 0


def test_what_is_kept_is_what_ran(file: Path) -> None:
    """A file that is edited while the run goes on is kept as it was when the run began."""
    file.write_text(
        "def f(seq, ctx):\n    import pathlib; pathlib.Path(__file__).write_text('edited')\n    return 0\n"
    )
    before = file.read_text()
    assert run("--order", "mine.py:f").code == 0
    assert file.read_text() == "edited"
    assert Path("out/mine.py").read_text() == before


def test_an_edited_file_is_read_anew(file: Path) -> None:
    file.write_text("def f(seq, ctx): return [][0]\n")
    told = run("--order", "mine.py:f").complaint
    assert told == "scheduler.order: f (mine.py:1): IndexError: list index out of range in step 0 at 1.372 s"
    file.write_text("def f(seq, ctx): return [0][0]\n"[:30])
    assert run("--order", "mine.py:f").code == 0


@pytest.mark.parametrize(
    ("axis", "name", "message"),
    [
        ("order", "shortets", "scheduler.order: mine.py has no 'shortets'; did you mean shortest?"),
        ("order", "Patient", "scheduler.order: Patient in mine.py has no key(seq, ctx)"),
        ("order", "limit", "scheduler.order: limit in mine.py is not a function of (seq, ctx), and has no"),
        ("order", "", "scheduler.order: unknown 'mine.py:'; known: fcfs, "),
        (
            "order",
            "wrong_name",
            "scheduler.order: wrong_name (mine.py:46): AttributeError: 'Sequence' object has no attribute "
            "'length' in step 0 at 1.372 s",
        ),
        (
            "order",
            "mixed",
            "scheduler.order: mixed gives keys that have no order: 1 for '17' and 'a' for '16' in step ",
        ),
        ("batching", "Broken", "scheduler.batching: Broken (mine.py:42): KeyError: 'boom' in step 0 at "),
        (
            "batching",
            "shortest",
            "scheduler.batching: shortest in mine.py is not a subclass of simulator.Sch",
        ),
        (
            "batching",
            "Weights",
            "scheduler.batching: Weights in mine.py is not a subclass of simulator.Sched",
        ),
        (
            "batching",
            "Stiff",
            "scheduler.batching: Stiff (mine.py) cannot be used: TypeError: Stiff.__init__() got an",
        ),
        (
            "batching",
            "Silent",
            "scheduler.batching: Silent (mine.py) cannot be used: TypeError: schedule(now) returned NoneType",
        ),
    ],
)
def test_a_mistake_is_told_in_one_line(axis: str, name: str, message: str, file: Path) -> None:
    assert run(f"--{axis}", f"mine.py:{name}").complaint.startswith(message)
    assert not Path("out").exists()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("x = 1\ndef f(:", "scheduler.order: mine.py:2: SyntaxError: invalid syntax"),
        ("\nraise RuntimeError('one\\ntwo')", "scheduler.order: mine.py:2: RuntimeError: one two"),
        ("import sys; sys.exit(0)", "scheduler.order: mine.py:1: SystemExit: 0"),
        ("import no_such_module", "scheduler.order: mine.py:1: ModuleNotFoundError: No module named"),
        ("f = 1 / 0", "scheduler.order: mine.py:1: ZeroDivisionError: division by zero"),
        ("a = '\0'", "scheduler.order: mine.py"),
        ("", "scheduler.order: mine.py has no 'f'; known:"),
    ],
)
def test_a_file_that_cannot_be_loaded_is_told(source: str, message: str, file: Path) -> None:
    file.write_text(source)
    assert run("--order", "mine.py:f").complaint.startswith(message)


def test_a_file_that_is_not_there_is_told(file: Path) -> None:
    assert (
        run("--order", "no.py:f").complaint == "scheduler.order: cannot read no.py: No such file or directory"
    )
    Path("folder.py").mkdir()
    assert run("--order", "folder.py:f").complaint == "scheduler.order: cannot read folder.py: Is a directory"


def test_check_loads_the_file_too(file: Path) -> None:
    order = "scheduler.order=mine.py:"
    assert servetwin("check", "tiny-cpu", "--set", f"{order}shortest").code == 0
    assert servetwin("check", "tiny-cpu", "--set", f"{order}no").complaint.startswith(
        "scheduler.order: mine.py has"
    )


def test_a_policy_that_stalls_is_told(file: Path) -> None:
    made = servetwin("run", "tiny-cpu", "--no-report", "--batching", "mine.py:Idle", "-o", "out")
    assert made.code == 0
    assert "Unfinished: 40\n" in made.out
    assert (
        "Note: the batching policy stalled before the first step and left 40 requests unfinished: "
        "schedule(now) returned an empty batch and set no wake_at (batching mine.py:Idle, order fcfs, "
        "eviction lru)\n" in made.out
    )
    assert "Bottleneck" not in made.out
    assert "SLO missed: 0.0 % of 40 requests" in made.out


RULES = """\
class Bounded:
    def __init__(self, most=2):
        self.most = most

    def __call__(self, seq, ctx):
        return "admit" if len(list(ctx.running)) < self.most else "wait"


def anybody(seq, ctx):
    return "admit"


def oldest(block, ctx):
    return block.created
"""


def test_a_list_of_rules_may_name_files_with_and_without_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And paths are those of the scenario's folder, wherever the command runs."""
    (tmp_path / "deep/er").mkdir(parents=True)
    (tmp_path / "deep/er/rules.py").write_text(RULES)
    scenario = tmp_path / "deep/s.yaml"
    rules = "[er/rules.py:anybody, {queue_limit: 30}, {er/rules.py:Bounded: {most: 1}}]"
    load = "workload: {num_requests: 20, arrivals: {kind: poisson, rate: 20}}"
    scenario.write_text(f"scheduler: {{admission: {rules}}}\nkv: {{eviction: er/rules.py:oldest}}\n{load}\n")
    monkeypatch.chdir(tmp_path)
    quiet = ("--quiet", "--no-report", "-o")
    refused = servetwin("run", scenario, *quiet, "no").complaint
    assert refused.startswith("kv.eviction: ")
    assert refused.endswith("pass --trust (in Python trust=True)")
    assert servetwin("run", "deep/s.yaml", "--trust", *quiet, "out").code == 0
    text = Path("out/scenario.yaml").read_text()
    assert text.count("# rules.py sha256 ") == 3
    assert "- rules.py:anybody\n" in text
    assert "- rules.py:Bounded:\n" in text.replace("'", "")
    assert "eviction: rules.py:oldest\n" in text
    monkeypatch.chdir(tmp_path / "deep")
    one = "scheduler.admission=[{er/rules.py:Bounded: {most: 1}}, {queue_limit: 30}]"
    assert servetwin("run", "s.yaml", "--trust", "--set", one, *quiet, "two").code == 0
    assert servetwin("run", "../out", "--trust", *quiet, "again").code == 0
    first = Path("../out/requests.csv").read_bytes()
    assert first == Path("again/requests.csv").read_bytes() == Path("two/requests.csv").read_bytes()
    none = servetwin(
        "run", "s.yaml", "--set", "scheduler.admission=[]", "--set", "kv.eviction=lru", *quiet, "no"
    )
    assert none.code == 0
    assert first != Path("no/requests.csv").read_bytes()


def test_a_notebook_names_a_file_by_its_own_word(file: Path) -> None:
    assert simulate("tiny-cpu", order="mine.py:shortest").summary["completed"] == 40
    assert simulate("tiny-cpu", set={"scheduler.victim": "mine.py:shortest"}).summary["completed"] == 40
    with pytest.raises(ConfigError, match="pass --trust"):
        simulate({"scheduler": {"order": "mine.py:shortest"}})
