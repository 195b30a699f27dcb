"""Policies given as Python objects: what is written of them, whether it runs again, and what cannot be."""

from __future__ import annotations

import hashlib
import math
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from command import servetwin
from hypothesis import strategies as st
from pseudo_notebook import notebook, run_cell
from quick_and_slow import few_or_many

import simulator
from simulator.config.policy_source import run_as_module, written_policy
from simulator.config.policy_writer import HEADER, literal
from simulator.errors import ConfigError
from simulator.schedulers.admission import QueueLimit

BUSY = {"workload.arrivals.rate": 9.0, "kv.num_gpu_blocks_override": 49}
"""tiny-cpu with a queue and too little memory, so that every axis matters."""


IMPORTS = """
import math
import xml
import xml.etree.ElementTree
from math import log2 as log

from simulator import ADMIT, WAIT, Scheduler, Sequence
from simulator.schedulers import unchanged_steps

WEIGHTS = {"prompt": 2.0, "tail": (1, None)}
"""


def written(policy: Any) -> str:
    return written_policy(policy, getattr(policy, "__name__", type(policy).__name__))[0]


def refusal(policy: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        written(policy)
    return str(caught.value)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_function_is_written_with_all_that_it_relies_on() -> None:
    made = notebook(
        IMPORTS,
        """
        def halved(n):
            return n / 2

        def weighed(seq: Sequence, ctx) -> float:
            'Long prompts last.'
            return log(1 + halved(seq.num_prompt)) * WEIGHTS["prompt"] + math.sqrt(len(xml.etree.__name__))
        """,
    )
    assert (
        written(made.weighed)
        == HEADER
        + """
from math import log2 as log
from simulator import Sequence
import math
import xml
import xml.etree

WEIGHTS = {'prompt': 2.0, 'tail': (1, None)}


def halved(n):
    return n / 2


def weighed(seq: Sequence, ctx) -> float:
    'Long prompts last.'
    return log(1 + halved(seq.num_prompt)) * WEIGHTS["prompt"] + math.sqrt(len(xml.etree.__name__))
"""
    )


AXES: dict[str, tuple[str, str]] = {
    "order": ("shortest", "def shortest(seq, ctx):\n    return seq.num_prompt"),
    "victim": ("longest", "def longest(seq, ctx):\n    return (seq.num_tokens, FEW)"),
    "batching": (
        "Few",
        "class Base(Scheduler):\n    most = FEW\n\n"
        "class Few(Base):\n"
        "    def __init__(self, kv, **settings):\n"
        "        super().__init__(kv, **settings | {'max_num_seqs': self.most})\n\n"
        "    def schedule(self, now):\n"
        "        batch = self.open_batch(now)\n        self.take_running(batch)\n"
        "        if not batch.preempted:\n            self.admit(batch)\n"
        "        return self.commit(batch)\n\n"
        "    def steady_steps(self, batch, limit):\n        return unchanged_steps(self, batch, limit)",
    ),
    "admission": (
        "one_by_one",
        "def one_by_one(seq, ctx):\n    return ADMIT if not list(ctx.running) else WAIT",
    ),
    "eviction": (
        "Stack",
        "class Stack:\n    def __init__(self):\n        self.blocks = []\n\n"
        "    def hit(self, block, ctx):\n        self.blocks.remove(block)\n\n"
        "    def release(self, block, ctx):\n        self.blocks.append(block)\n\n"
        "    def evict(self, ctx):\n"
        "        return self.blocks.pop(next(i for i, b in enumerate(self.blocks) if not b.pinned))",
    ),
}


@pytest.mark.parametrize("axis", AXES)
def test_a_saved_run_runs_again_by_every_command(axis: str) -> None:
    name, cell = AXES[axis]
    policy = getattr(notebook(IMPORTS, "FEW = 3", cell), name)
    made = simulator.simulate(
        "tiny-cpu", set=BUSY, bottleneck=False, **{axis: [policy] if axis == "admission" else policy}
    )
    folder = made.save("mine")
    text = (folder / f"{name}.py").read_text()
    digest = hashlib.sha256(text.encode()).hexdigest()
    assert (folder / "scenario.yaml").read_text().startswith(f"# {name}.py sha256 {digest}\n")
    section = "kv" if axis == "eviction" else "scheduler"
    record = {"axis": f"{section}.{axis}", "policy": f"{name}.py:{name}", "sha256": digest}
    assert made.summary["servetwin"]["policies"] == [record]
    assert servetwin("check", folder).complaint.endswith("pass --trust (in Python trust=True)")
    quiet = ("--trust", "--no-report", "--quiet", "-o")
    for command in ("check", folder, "--trust"), ("explain", folder, "3", "--trust"):
        assert servetwin(*command).code == 0
    assert servetwin("run", folder, *quiet, "again", "--log", "decisions").code == 0
    assert Path("again/requests.csv").read_bytes() == (folder / "requests.csv").read_bytes()
    assert Path(f"again/{name}.py").read_text() == text
    assert servetwin("diff", folder, "again", "--limit", "mean_e2el_ms:0").code == 0
    vary = ("--vary", "scheduler.max_num_seqs=4,8")
    assert servetwin("compare", folder, *vary, *quiet, "compared").code == 0
    assert Path(f"compared/winner/{name}.py").read_text() == text
    loaded = simulator.load_run(folder, trust=True)
    assert loaded.steps.equals(made.steps)
    plain = simulator.simulate("tiny-cpu", set=BUSY, bottleneck=False)
    if axis != "eviction":  # which no request of this load notices
        assert plain.summary["mean_e2el_ms"] != made.summary["mean_e2el_ms"]
    assert plain.summary["servetwin"]["policies"] == []


def test_the_winner_of_a_comparison_runs_again() -> None:
    made = notebook(IMPORTS, "FEW = 3", AXES["batching"][1], AXES["order"][1], AXES["victim"][1])
    both = {"scheduler.order": made.shortest, "scheduler.victim": made.longest}
    found = simulator.compare(
        simulator.load_scenario("tiny-cpu").with_(**BUSY),
        {"few": made.Few, "both": both},
        metric="mean_ttft_ms",
    )
    assert found.winner == "both"
    folder = found.save("out") / "winner"
    assert sorted(path.name for path in folder.iterdir()) == ["longest.py", "scenario.yaml", "shortest.py"]
    assert servetwin("run", folder, "--trust", "--no-report", "--quiet", "-o", "again").code == 0
    again = simulator.load_run("again")
    assert again.summary["mean_ttft_ms"] == found.results["both"].summary["mean_ttft_ms"]
    assert again.summary["servetwin"]["policies"] == found.results["both"].summary["servetwin"]["policies"]


def test_what_is_kept_is_what_ran() -> None:
    """Values are those of the moment the run began, whatever later cells make of them."""
    made = notebook("WEIGHT = 2", "def f(seq, ctx):\n    return WEIGHT * seq.num_prompt")
    result = simulator.simulate("tiny-cpu", order=made.f, bottleneck=False)
    run_cell(vars(made), "WEIGHT = 3")
    assert "WEIGHT = 2\n" in (result.save("out") / "f.py").read_text()
    run_cell(vars(made), "def f(seq, ctx):\n    return 0")
    assert written(made.f) == f"{HEADER}\n\ndef f(seq, ctx):\n    return 0\n"


def test_an_edited_script_is_not_taken_for_what_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    file = Path("edited.py")
    file.write_text("def f(seq, ctx):\n    return 1\n")
    module = run_as_module(file.read_bytes(), str(file), "edited")
    assert written(module.f).endswith("return 1\n")
    file.write_text("def f(seq, ctx):\n    return 22\n")
    assert refusal(module.f) == "f is no longer what its source says, or a decorator has changed it"
    file.write_text("\n\ndef f(seq, ctx):\n    return 1\n")
    assert refusal(module.f) == "the source of f is not known, or has changed since it was defined"


def test_the_same_policy_gives_the_same_bytes() -> None:
    def cells() -> Any:
        return notebook(
            IMPORTS, "KINDS = {'b', 'a', 'c'}", "def f(seq, ctx):\n    return seq.tenant in KINDS"
        ).f

    assert written(cells()) == written(cells())
    assert "KINDS = set(['a', 'b', 'c'])\n" in written(cells())


def test_closures_take_their_values_along() -> None:
    made = notebook(
        """
        from functools import cache

        def by(weight, base):
            @cache
            def doubled(n):
                return 2 * n

            def weighed(seq, ctx):
                return weight * doubled(seq.num_prompt) + base.get(seq.tenant, 0)

            return weighed

        heavy = by(3, {"a": 1.5})
        """
    )
    module = run_as_module(written(made.heavy).encode(), "weighed.py", "closure")
    seq = simulator.Sequence("0", 10, 1, tenant="a")
    assert module.weighed(seq, None) == made.heavy(seq, None) == 61.5


FAIRER = '''
from __future__ import annotations

from dataclasses import dataclass
from simulator import ORDERS

if True:
    @dataclass(order=True)
    class Key:
        prompt: Unknown
        text: str = """one
two"""

        def twice(self) -> Unknown:
            return 2 * self.prompt

@dataclass
class Settings:
    weight: Unknown = 2

def f(seq, ctx):
    return Key(Settings().weight * seq.num_prompt)

fair = ORDERS["virtual_counters"]

class Fairer(fair):
    prompt_cost = 3.0

    def key(self, seq, ctx):
        return super().key(seq, ctx), f(seq, ctx)
'''


def test_a_class_with_a_text_of_many_lines_and_a_base_from_elsewhere() -> None:
    made = notebook(FAIRER)
    text = written(made.Fairer)
    assert "from simulator.schedulers.fairness import VirtualCounters as fair\n" in text
    assert "from __future__ import annotations\n" in text
    module = run_as_module(text.encode(), "Fairer.py", "fairer")
    assert module.f(simulator.Sequence("0", 10, 1), None).text == "one\ntwo"
    result = simulator.simulate("tiny-cpu", order=made.Fairer, bottleneck=False)
    folder = result.save("out")
    assert servetwin("run", folder, "--trust", "--no-report", "--quiet", "-o", "again").code == 0
    assert Path("again/requests.csv").read_bytes() == (folder / "requests.csv").read_bytes()


def test_an_object_is_made_anew_of_its_arguments() -> None:
    made = notebook(
        """
        class Fair:
            def __init__(self, cost=1.0, *, tenants=()):
                self.cost = cost
                self.tenants = tenants
                self.tokens = {}

            def key(self, seq, ctx):
                return self.tokens.get(seq.tenant, 0.0), seq.num_prompt

            def served(self, seq, n):
                self.tokens[seq.tenant] = self.tokens.get(seq.tenant, 0.0) + n * self.cost

        cheap = Fair(0.5, tenants=("a", "b"))
        used = Fair()
        used.tokens["a"] = 3
        """
    )
    assert written(made.cheap).endswith("\nfair = Fair(cost=0.5, tenants=('a', 'b'))\n")
    result = simulator.simulate(
        "tiny-cpu", set=BUSY, order=made.cheap, admission=[QueueLimit(5)], bottleneck=False
    )
    folder = result.save("out")
    scenario = (folder / "scenario.yaml").read_text()
    assert "  order: Fair.py:fair\n" in scenario
    assert "QueueLimit.py:queue_limit" in scenario
    assert servetwin("run", folder, "--trust", "--no-report", "--quiet", "-o", "again").code == 0
    assert Path("again/requests.csv").read_bytes() == (folder / "requests.csv").read_bytes()
    assert refusal(made.used) == "it is a Fair whose arguments are not known; give the class instead"


def test_a_policy_that_ships_is_named_and_not_written() -> None:
    made = simulator.simulate(
        "tiny-cpu",
        order=simulator.ORDERS["lifo"],
        batching=simulator.BATCHING["continuous"],
        bottleneck=False,
    )
    folder = made.save("out")
    assert made.scenario.scheduler.order == "lifo"
    assert made.scenario.scheduler.batching == "continuous"
    assert not list(folder.glob("*.py"))
    assert servetwin("run", folder, "--no-report", "--quiet", "-o", "again").code == 0


@pytest.mark.parametrize(
    ("cell", "why"),
    [
        ("f = lambda seq, ctx: 0", "a lambda has no name of its own"),
        ("import numpy\nK = numpy.arange(3)\ndef f(seq, ctx): return K", "it uses K, a ndarray, which is no"),
        ("K = [[object()]]\ndef f(seq, ctx): return K", "it uses K, a list, which is no plain value"),
        ("K = lambda: 0\ndef f(seq, ctx): return K()", "the source of <lambda> is not known"),
        ("import mymodule\ndef f(seq, ctx): return mymodule.x", "it uses mymodule, a module of yours, which"),
        ("exec('def g(): return 0')\ndef f(seq, ctx): return g()", "the source of g is not known"),
        ("def f(seq, ctx): return g()\ng = f\ndef f(seq, ctx): return g()", "f would have to mean two"),
        (
            "def twice(of):\n    def inner(*a): return 2 * of(*a)\n    return inner\n"
            "@twice\ndef f(seq, ctx): return 1\nf.__name__ = 'inner'",
            "of would have to mean two different|f is no longer what its source says, or a decorator",
        ),
        ("K = 1\ndef f(seq, ctx, k=K): return k\nK = 2", "f is no longer what its source says"),
        ("class A:\n    k = 1\ndef f(seq, ctx): return A.k\nA.k = 2", "A is no longer what its source says"),
        ("from functools import *\ndef g(a, seq, ctx): return a\nf = partial(g, 1)", "it is a partial whose"),
        ("class A:\n    def f(self, seq, ctx): return 0\nf = A().f", "it is a method whose arguments"),
        (
            "class Boom:\n    def __getattr__(self, name): raise KeyError(name)\n"
            "K = Boom()\ndef f(seq, ctx): return 0 if K else 1",
            "KeyError: ",
        ),
    ],
)
def test_what_cannot_be_written_is_refused_by_save_alone(
    cell: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("mymodule")
    module.__file__ = str(Path("mymodule.py").resolve())
    module.x = 1  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mymodule", module)
    policy = notebook(cell).f
    result = simulator.simulate("tiny-cpu", set={"scheduler.victim": policy}, bottleneck=False)
    with pytest.raises(
        ConfigError, match=rf"^scheduler\.victim: .* cannot be kept in a folder: ({why})"
    ) as caught:
        result.save("out")
    assert str(caught.value).endswith("; put the policy into a file and name it file.py:name")
    assert not Path("out").exists()
    record = {"axis": "scheduler.victim", "policy": result.scenario.scheduler.victim, "sha256": None}
    assert result.summary["servetwin"]["policies"] == [record]
    found = simulator.compare("tiny-cpu", {"mine": {"scheduler.victim": policy}})
    with pytest.raises(ConfigError, match="cannot be kept in a folder"):
        found.save("out")
    assert not Path("out").exists()


def test_two_rules_of_one_name_are_refused() -> None:
    result = simulator.simulate("tiny-cpu", admission=[QueueLimit(50), QueueLimit(60)], bottleneck=False)
    with pytest.raises(
        ConfigError, match=r"QueueLimit cannot be kept in a folder: two policies have this name"
    ):
        result.save("out")


def test_a_file_of_the_users_is_never_overwritten() -> None:
    Path("out").mkdir()
    mine = Path("out/shortest.py")
    mine.write_text("# mine\n")
    policy = notebook("def shortest(seq, ctx):\n    return seq.num_prompt").shortest
    result = simulator.simulate("tiny-cpu", order=policy, bottleneck=False)
    for _ in range(2):
        result.save("out")
        assert mine.read_text() == "# mine\n"
        assert len(list(Path("out").glob("shortest-*.py"))) == 1
    assert servetwin("run", "out", "--trust", "--no-report", "--quiet", "-o", "again").code == 0
    again = Path("again/requests.csv").read_bytes()
    assert again == Path("out/requests.csv").read_bytes()
    other = notebook("def shortest(seq, ctx):\n    return -seq.num_prompt").shortest
    simulator.simulate("tiny-cpu", order=policy, bottleneck=False).save("two")
    simulator.simulate("tiny-cpu", order=other, bottleneck=False).save("two")
    assert "-seq.num_prompt" in Path("two/shortest.py").read_text()


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text() | st.integers(), inner)
        | st.frozensets(st.integers() | st.text())
        | st.sets(st.text())
    ),
    max_leaves=12,
)


def same(a: object, b: object) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return (a == b and math.copysign(1, a) == math.copysign(1, b)) or (a != a and b != b)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return list(a) == list(b) and all(map(same, a.values(), b.values()))
    return type(a) is type(b) and a == b


@few_or_many(30, 100, value=plain)
def test_a_plain_value_is_written_so_that_it_reads_back(value: object) -> None:
    text = literal(value)
    assert text is not None
    assert same(eval(text), value)


@pytest.mark.parametrize("value", [object(), [object()], {"a": {1, object()}}, 1j, ..., range(3), print])
def test_other_values_have_no_text(value: object) -> None:
    assert literal(value) is None


@pytest.mark.parametrize(
    "rule", ["reserve_output", {"queue_limit": 3}, notebook("def r(seq, ctx): return 'admit'").r]
)
def test_one_admission_rule_needs_no_list(rule: Any) -> None:
    one, many = (simulator.simulate("tiny-cpu", set=BUSY, admission=each) for each in (rule, [rule]))
    assert one.summary == many.summary
    both = simulator.compare("tiny-cpu", {"one": {"scheduler.admission": rule}, "no": {}})
    assert len(both.results["one"].scenario.scheduler.admission) == 1
