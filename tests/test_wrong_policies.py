"""What is wrong with a policy is named: axis, policy, line, step and time; the error stays the cause."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from command import Outcome, servetwin
from pseudo_notebook import notebook

import simulator
from simulator.config.axes import AXES
from simulator.engine import progress
from simulator.errors import ConfigError, SimulatorError, StallError
from simulator.schedulers import BATCHING, Scheduler
from simulator.schedulers.keys import largest, no_order

TIGHT = {"workload.arrivals.rate": 9.0, "kv.num_gpu_blocks_override": 49}
"""tiny-cpu with a queue, and so little memory that victims are asked for."""

CLASS = """
from simulator import Scheduler

class {name}(Scheduler):
    step = -1

    def schedule(self, now):
        batch = self.open_batch(now)
        self.take_running(batch)
        if not batch.preempted:
            self.admit(batch)
        self.step += bool(batch or batch.preempted)
        {extra}
        return self.commit(batch)
"""


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def simulate(**policies: Any) -> simulator.Result:
    return simulator.simulate("tiny-cpu", set=TIGHT, bottleneck=False, **policies)


def told(**policies: Any) -> str:
    with pytest.raises(SimulatorError) as caught:
        simulate(**policies)
    text = str(caught.value)
    assert "\n" not in text
    return text


def run(text: str, *args: object) -> Outcome:
    Path("mine.py").write_text(text)
    sets = [word for key, value in TIGHT.items() for word in ("--set", f"{key}={value}")]
    return servetwin("run", "tiny-cpu", *sets, "--no-report", "-o", "out", *args)


# An exception.


E = "class E(Exception):\n    def {}\n"


@pytest.mark.parametrize(
    ("axis", "cell", "message"),
    [
        ("order", "def f(seq, ctx): return seq.nope", r"f \(line 1\): AttributeError: .*'nope'"),
        ("victim", "def f(seq, ctx):\n    return {}[seq.id]", r"f \(line 2\): KeyError: '\d+'"),
        ("admission", "def f(seq, ctx): raise SystemExit(0)", r"f \(line 1\): SystemExit: 0"),
        ("admission", "def f(seq, ctx): return True", "f returned True, not ADMIT, WAIT or SHED"),
        ("order", "class f:\n    def key(self, *a): return next(iter([]))", r"f \(line 2\): StopIteration:"),
        (
            "order",
            E.format("__init__(self, a, b): 0") + "def f(seq, ctx): raise E(1, 2)",
            r"f \(line 3\): E:",
        ),
        (
            "order",
            E.format("__str__(self): raise ValueError") + "def f(seq, ctx): raise E",
            r"f \(line 3\): E: \(its text cannot be shown\)",
        ),
        (
            "order",
            "def f(seq, ctx): raise ValueError('long' * 999)",
            r"f \(line 1\): ValueError: (long){74}l\.\.\.",
        ),
        ("order", "def f(seq, ctx): return f(seq, ctx)", r"f \(line 1\): RecursionError: .*"),
    ],
)
def test_an_exception_names_axis_policy_line_step_and_time(axis: str, cell: str, message: str) -> None:
    policy = notebook(cell).f
    text = told(**{axis: [policy] if axis == "admission" else policy})
    assert re.fullmatch(rf"scheduler\.{axis}: {message}.* in step \d+ at \d+\.\d\d\d s", text), text


def test_the_step_and_time_are_those_of_the_logs() -> None:
    """A class that fails in its 17th step fails in the one that a table of steps numbers 16."""
    plain = simulate(batching=notebook(CLASS.format(name="Plain", extra="")).Plain)
    extra = "if self.step == 16: batch.nothing"
    wrong = notebook(CLASS.format(name="Wrong", extra=extra)).Wrong
    with pytest.raises(ConfigError) as caught:
        simulate(batching=wrong)
    start = plain.steps["start"][16]
    assert str(caught.value) == (
        "scheduler.batching: Wrong (line 12): AttributeError: 'Batch' object has no attribute 'nothing' "
        f"in step 16 at {start:.3f} s"
    )
    assert isinstance(caught.value.__cause__, AttributeError)
    frames = []
    trace = caught.value.__cause__.__traceback__
    while trace is not None:
        frames.append(trace.tb_frame.f_code.co_name)
        trace = trace.tb_next
    assert frames[-1] == "schedule"


def test_an_error_in_update_belongs_to_the_step_that_just_ended() -> None:
    cell = CLASS.format(name="Wrong", extra="") + (
        "\n    def update(self, batch, result, now):\n        raise ValueError(0, self.step)\n"
    )
    for keys in ({}, {"scheduler.async_scheduling": True}):
        with pytest.raises(
            ConfigError, match=r"Wrong \(line 16\): ValueError: \(\d+, (\d+)\) in step (\d+) "
        ) as found:
            simulator.simulate("tiny-cpu", set=TIGHT | keys, batching=notebook(cell).Wrong)
        cause = found.value.__cause__
        assert isinstance(cause, ValueError)
        step = cause.args[1] - bool(keys)  # the next step is decided before this one's end is learnt
        assert f"in step {step} at " in str(found.value)


def test_of_two_policies_in_one_file_the_one_that_was_called_is_named() -> None:
    text = "def a(seq, ctx): return bad(seq)\ndef b(seq, ctx): return seq.order\ndef bad(seq): return 1 / 0\n"
    done = run(text, "--order", "mine.py:b", "--set", "scheduler.victim=mine.py:a")
    assert re.fullmatch(
        r"scheduler\.victim: a \(mine\.py:3\): ZeroDivisionError: division by zero in step \d+ at .* s",
        done.complaint,
    )


def test_without_a_policy_of_ones_own_an_error_is_ours_and_stays_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(self: Scheduler, now: float) -> None:
        raise KeyError("ours")

    monkeypatch.setattr(BATCHING["chunked"], "schedule", broken)
    with pytest.raises(KeyError, match="ours") as caught:
        simulate()
    assert caught.value.__notes__ == ["in step 0 at 0.000 s"]


# Keys.


@pytest.mark.parametrize("axis", ["order", "victim"])
@pytest.mark.parametrize(
    ("key", "shown"),
    [
        ("'a' if int(seq.id) % 2 else 1", r"(1 for '\d+' and 'a' for '\d+'|'a' for '\d+' and 1 for '\d+')"),
        ("float('nan') if seq.id == '3' else 0.0", "nan for '3'"),
        ("(seq.num_prompt, float('nan') if seq.id == '3' else 0.0)", r"\(\d+, nan\) for '3'"),
        (
            "(0, None) if seq.id == '3' else (0, 1)",
            r"(\(0, None\) for '3' and .*|.* and \(0, None\) for '3')",
        ),
        (
            "(1 for _ in ())",
            r"<generator object f.<locals>.<genexpr>> for '\d+' and <gen.*>> for '\d+'",
        ),
        ("object()", r"a object for '\d+' and a object for '\d+'"),
        ("numpy.arange(2)", r"array\(\[0, 1\]\) for '\d+'"),
        ("Key()", r"a Key for '\d+' and a Key for '\d+'"),
        ("Sour()", r"a Sour for '\d+' and a Sour for '\d+'"),
        ("{seq.id: 'x' * 1000}", r"\{'\d+': 'x+\.\.\. for '\d+' and \{'\d+': 'x+\.\.\. for '\d+'"),
    ],
)
def test_keys_without_an_order_are_named(axis: str, key: str, shown: str) -> None:
    cell = f"""
        import numpy

        class Key:
            def __lt__(self, other): return self < other
            def __gt__(self, other): return self > other

        class Sour:
            def __lt__(self, other): raise ValueError("sour")
            def __gt__(self, other): raise ValueError("sour")
            def __repr__(self): raise ValueError("sour")

        def f(seq, ctx):
            return {key}
        """
    message = told(**{axis: notebook(cell).f})
    rule = rf"scheduler\.{axis}: f gives keys that have no order: {shown} in step \d+ at \d+\.\d\d\d s"
    assert re.fullmatch(rule, message), message


def test_keys_of_an_order_that_looks_at_the_time_are_named_too() -> None:
    cell = "def f(seq, ctx):\n    return 'a' if ctx.now > 1 and int(seq.id) % 2 else 1\n"
    assert "f gives keys that have no order: " in told(order=notebook(cell).f)


def test_a_pair_is_found_among_many_keys() -> None:
    keys = [("r0", (0, 1)), ("r1", (1, "a")), ("r2", (2, 1)), ("r3", (1, 2))]
    assert str(no_order("axis", "policy", keys)) == (
        "axis: str gives keys that have no order: (1, 'a') for 'r1' and (1, 2) for 'r3'"
    )


def test_of_equal_keys_the_first_is_largest() -> None:
    sequences = [simulator.Sequence(str(i), 10 + i % 2, 1) for i in range(4)]
    assert largest("axis", lambda seq, ctx: seq.num_prompt, sequences, None).id == "1"


# Books that do not add up.

BOOKS = {
    "takes a block that nobody holds": ("self.kv.pool.take(1)", 1),
    "gives back a block twice": ("self.kv.pool.give(1)", 1),
    "forgets a sequence": ("self.running.popitem()", 1),
    "counts a block of its own as free": ("self.kv.pool.num_unhashed_free += 1", 1),
}


@pytest.mark.parametrize("wrong", BOOKS)
@pytest.mark.parametrize("step", [0, 40])
def test_the_first_step_after_which_the_books_are_wrong_is_named(wrong: str, step: int) -> None:
    extra = f"if self.step == {step}: {BOOKS[wrong][0]}"
    cell = CLASS.format(name="Leaky", extra=extra)
    plain = simulate(batching=notebook(CLASS.format(name="Plain", extra="")).Plain)
    message = told(batching=notebook(cell).Leaky)
    start = plain.steps["start"][step]
    rule = r"scheduler\.batching: Leaky: blocks and sequences do not add up \(.+\) in step {} at {:.3f} s"
    assert re.fullmatch(rule.format(step, start), message), message
    done = run(cell, "--batching", "mine.py:Leaky")
    assert done.complaint == message.replace("Leaky:", "Leaky (mine.py):")


def test_blocks_leaked_when_a_sequence_ends_are_named_at_the_step_that_shows_it() -> None:
    cell = CLASS.format(name="Leaky", extra="") + (
        "\n    def retire(self, seq):\n        self._stop_running(seq)\n        seq.state = 'finished'\n"
        "        self.has_news = True\n"
    )
    message = told(batching=notebook(cell).Leaky)
    assert message.startswith("scheduler.batching: Leaky: blocks and sequences do not add up (")


def test_a_promise_of_steady_steps_that_is_not_kept_is_told() -> None:
    cell = CLASS.format(name="Rash", extra="") + (
        "\n    def steady_steps(self, batch, limit):\n        return 50 if batch.num_decodes else 0\n"
    )
    message = told(batching=notebook(cell).Rash)
    assert re.fullmatch(
        r"scheduler\.batching: Rash: ValueError: take\(\d+\) exceeds the \d+ free blocks in step \d+ at .*; "
        "taken step by step the run is in order, so steady_steps promises too much",
        message,
    )


# What is no policy at all.


@pytest.mark.parametrize(
    ("axis", "cell", "message"),
    [
        ("batching", "def f(seq, ctx): 0", "scheduler.batching: f is not a subclass of simulator.Scheduler"),
        ("batching", "f = 3", "scheduler.batching: int is not a subclass of simulator.Scheduler"),
        ("order", "def f(seq): 0", "scheduler.order: f is not a function of (seq, ctx)"),
        ("order", "class f: pass", "scheduler.order: f has no key(seq, ctx)"),
        ("order", "f = 3", "scheduler.order: int is not a function of (seq, ctx), and has no key(seq, ctx)"),
        ("victim", "class f:\n    key = 0", "scheduler.victim: f is not a function of (seq, ctx)"),
        ("victim", "def f(seq, ctx, more): 0", "scheduler.victim: f is not a function of (seq, ctx)"),
        ("admission", "class f: pass", "scheduler.admission: f has no __call__(seq, ctx)"),
        ("admission", "f = 3", "scheduler.admission: int is not a function of (seq, ctx)"),
        ("eviction", "class f:\n    def hit(self, block, ctx): 0",
         "kv.eviction: f has no release(block, ctx), no evict(ctx)"),
        ("eviction", "def f(block): 0", "kv.eviction: f is not a function of (block, ctx)"),
    ],
)  # fmt: skip
def test_what_cannot_be_a_policy_is_told_before_the_run(axis: str, cell: str, message: str) -> None:
    policy = notebook(cell).f
    assert told(**{axis: [policy] if axis == "admission" else policy}) == message
    if not cell.startswith("f ="):
        key = f"kv.{axis}" if axis == "eviction" else f"scheduler.{axis}"
        value = "[mine.py:f]" if axis == "admission" else "mine.py:f"
        assert run(cell, "--set", f"{key}={value}").complaint == message.replace(": f ", ": f in mine.py ")


@pytest.mark.parametrize("policy", [max, lambda *both: 0, lambda seq, ctx, weight=1: 0])
def test_what_can_be_called_with_two_is_a_policy(policy: Any) -> None:
    for axis in AXES.values():
        if axis.function:
            assert axis.misfit(policy) is None


# Runs that get nowhere.

NOWHERE = {
    "preempts all whom it admits": (
        "self.admit(batch)\n"
        "        for chunk in batch.chunks: self.preempt(chunk.seq, batch, chunk.num_tokens)\n"
        "        empty = Batch(1)\n        empty.preempted = batch.preempted\n        return empty",
        "empty",
    ),
    "wakes a moment later": ("self.wake_at = now + 1e-4\n        return batch", "empty"),
    "computes and forgets": (
        "for seq in list(self.running): self.preempt(seq, batch)\n        batch.budget = 8\n"
        "        self.admit(batch)\n        return self.commit(batch)",
        "computes",
    ),
}


@pytest.mark.parametrize("how", NOWHERE)
def test_a_policy_that_gets_nowhere_is_stopped(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PATIENCE", 300)
    monkeypatch.setattr("simulator.schedulers.base.VAIN_PREEMPTIONS", 10**9)
    body, kind = NOWHERE[how]
    cell = (
        "from simulator import Batch, Scheduler\n\nclass Stuck(Scheduler):\n"
        f"    def schedule(self, now):\n        batch = self.open_batch(now)\n        {body}\n"
    )
    rule = (
        r"no token was sampled and no request left in \d+ steps, (\d+) of them empty, while \d+ ran and \d+ "
        r"waited \(batching {}, order fcfs, eviction lru\) in step \d+ at \d+\.\d\d\d s"
    )
    with pytest.raises(StallError) as caught:
        simulate(batching=notebook(cell).Stuck)
    found = re.fullmatch(rule.format("Stuck"), str(caught.value))
    assert found, str(caught.value)
    assert (int(found[1]) > 0) == (kind == "empty")
    done = run(cell, "--batching", "mine.py:Stuck")
    assert re.fullmatch(rule.format("mine.py:Stuck"), done.complaint)


def test_a_policy_that_wakes_in_the_past_is_told() -> None:
    cell = (
        "from simulator import Scheduler\n\nclass Late(Scheduler):\n    def schedule(self, now):\n"
        "        batch = self.open_batch(now)\n        self.wake_at = {}\n        return batch\n"
    )
    for moment in ("now", "now - 1", "-float('inf')", "float('nan')", "float('inf')"):
        message = told(batching=notebook(cell.format(moment)).Late)
        assert re.match(
            r"scheduler\.batching: Late cannot be used: ValueError: a policy that schedules nothing at ",
            message,
        )
        assert " in step 0 at 0.366 s" in message


def test_patience_is_not_lost_while_prompts_are_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk of one token a step computes a prompt for thousands of steps, and all of it is kept."""
    monkeypatch.setattr(progress, "PATIENCE", 10)
    for batching in BATCHING:
        keys = {
            "scheduler.max_num_seqs": 1,
            "scheduler.max_num_batched_tokens": 1,
            "workload.num_requests": 5,
        }
        made = simulator.simulate("tiny-cpu", set=TIGHT | keys, batching=batching, bottleneck=False)
        assert made.summary["completed"] == 5


def test_waiting_for_requests_that_come_late_is_no_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    """A policy that asks to be woken every millisecond, even while nobody is there, does nothing wrong."""
    monkeypatch.setattr(progress, "PATIENCE", 30)
    cell = CLASS.format(name="Eager", extra="self.wake_at = None if batch else now + 0.001")
    assert simulate(batching=notebook(cell).Eager).summary["completed"] == 40


def test_a_policy_that_stalls_names_its_last_step() -> None:
    cell = CLASS.format(name="Tired", extra="")
    cell = cell.replace("self.take_running(", "if self.step == 30: return batch\n        self.take_running(")
    made = simulate(batching=notebook(cell).Tired)
    (note,) = [note for note in made.summary["servetwin"]["notes"] if "stalled" in note]
    last = made.steps.iloc[-1]
    assert note.startswith(
        f"the batching policy stalled after step {len(made.steps) - 1} at {last['end']:.3f} s and left "
    )
    assert note.endswith("(batching Tired, order fcfs, eviction lru)")


# Files that do what they like.


@pytest.mark.parametrize("when", ["import", "run"])
def test_what_a_file_prints_goes_to_stderr(when: str) -> None:
    place = {"import": "print('hello')\n", "run": ""}[when]
    inside = {"import": "", "run": "    print('hello')\n"}[when]
    text = f"{place}def f(seq, ctx):\n{inside}    return seq.num_prompt\n"
    done = run(text, "--order", "mine.py:f", "--json")
    assert done.code == 0
    assert done.out.startswith("{")
    assert "hello" in done.err
    assert "hello" not in done.out


def test_an_odd_file_cannot_confuse_the_search_for_names() -> None:
    text = (
        "class Odd:\n    def __getattribute__(self, name): raise ValueError(name)\nodd = Odd()\ndef g(): 0\n"
    )
    assert run(text, "--order", "mine.py:f").complaint == "scheduler.order: mine.py has no 'f'; known: Odd, g"
    told = run(text, "--set", "scheduler.victim=mine.py:odd").complaint
    assert told == "scheduler.victim: odd (mine.py:2): ValueError: __class__"
