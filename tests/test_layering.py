"""Imports go down only: docs/architecture.md draws the house, this test holds it up.

Every import counts, those inside a function too. Imports under `TYPE_CHECKING` are never executed; the
few that point upward are listed here.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]

LAYERS = [
    {"errors", "request", "decode_group", "batch", "specs"},
    {"kv", "workload", "latency"},
    {"schedulers", "speculative"},
    {"engine", "metrics"},
    {"cluster"},
    {"config"},
    {"experiments"},
    {"api"},
    {"cli"},
    {"__main__"},
]
"""Rooms of `simulator`, lowest first; rooms of one layer may use each other as long as no circle arises."""

HOUSES = ["simulator", "calibration", "gpu_backend"]

ONLY_IN = {
    "simpy": ("simulator/engine/", "simulator/cluster/"),
    "pydantic": ("simulator/config/", "simulator/config.py"),
    "torch": ("gpu_backend/",),
}

UPWARD_FOR_TYPES = {
    ("simulator.request", "simulator.kv.block_pool"),  # a sequence holds runs
}


class Import(NamedTuple):
    """One imported module, as file and line have it."""

    file: str  # relative to the checkout
    line: int
    source: str  # dotted name of the importing module
    target: str
    for_types: bool  # under `if TYPE_CHECKING`

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.source} imports {self.target}"


def imports_of(text: str, file: str) -> Iterator[Import]:
    """Yield all imports of a module: statements at any depth, and import_module calls with a literal name."""
    source = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    tree = ast.parse(text, file)
    for_types = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and ast.unparse(block.test).endswith("TYPE_CHECKING")
        for statement in block.body
        for node in ast.walk(statement)
    }
    for node in ast.walk(tree):
        for target in targets(node, source, is_package=file.endswith("__init__.py")):
            yield Import(file, node.lineno, source, target, id(node) in for_types)


def targets(node: ast.AST, source: str, is_package: bool) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        base = source.split(".")
        base = base[: len(base) + is_package - node.level] if node.level else []
        module = ".".join([*base, *([node.module] if node.module else [])])
        if module in HOUSES:  # `from simulator import batch`
            return [f"{module}.{alias.name}" for alias in node.names]
        return [module]
    if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
        names = [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
        return [name for name in names if isinstance(name, str)]
    return []


def height(module: str) -> tuple[int, int]:
    """Say how high a module of ours stands: its house, then its layer; what has no room is the roof."""
    house, *rooms = module.split(".")
    placed = [i for i, layer in enumerate(LAYERS) if rooms and rooms[0] in layer]
    return HOUSES.index(house), placed[0] if house == "simulator" and placed else len(LAYERS)


def is_ours(module: str) -> bool:
    return module.split(".")[0] in HOUSES


def goes_up(each: Import) -> bool:
    if each.source == "simulator" and each.target.startswith("simulator."):
        return False  # the roof hands out the names of `simulator.api`
    return is_ours(each.target) and height(each.target) > height(each.source)


@pytest.fixture(scope="module")
def imports() -> list[Import]:
    files = [path for house in HOUSES for path in sorted((ROOT / house).rglob("*.py"))]
    found = [
        each
        for path in files
        for each in imports_of(path.read_text(encoding="utf-8"), path.relative_to(ROOT).as_posix())
    ]
    assert len(found) > 100
    return found


def test_every_room_has_its_place(imports: list[Import]) -> None:
    rooms = {each.source.split(".")[1] for each in imports if each.source.startswith("simulator.")}
    assert rooms - set().union(*LAYERS) == set()


def test_no_module_imports_from_above(imports: list[Import]) -> None:
    assert [str(each) for each in imports if goes_up(each) and not each.for_types] == []


def test_upward_imports_for_types_are_the_listed_ones(imports: list[Import]) -> None:
    upward = {(each.source, each.target) for each in imports if goes_up(each) and each.for_types}
    assert upward == UPWARD_FOR_TYPES


def test_rooms_of_a_layer_do_not_need_each_other_mutually(imports: list[Import]) -> None:
    rooms: dict[str, set[str]] = {}
    for each in imports:
        source, target = each.source.split(".")[:2], each.target.split(".")[:2]
        if is_ours(each.target) and not each.for_types and source != target and source != ["simulator"]:
            rooms.setdefault(".".join(source), set()).add(".".join(target))
    assert list(TopologicalSorter(rooms).static_order())


@pytest.mark.parametrize("library", sorted(ONLY_IN))
def test_a_library_stays_in_its_rooms(imports: list[Import], library: str) -> None:
    strays = [
        str(each)
        for each in imports
        if each.target.split(".")[0] == library and not each.file.startswith(ONLY_IN[library])
    ]
    assert strays == []


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("simulator/kv/x.py", "from simulator.schedulers.base import Scheduler"),
        ("simulator/kv/x.py", "import simulator.engine.serve"),
        ("simulator/kv/x.py", "from simulator import config"),
        ("simulator/kv/x.py", "from ..engine import serve"),
        ("simulator/kv/x.py", "from simulator import Scenario"),
        ("simulator/kv/x.py", "def f():\n    from simulator.metrics.summary import summarize"),
        ("simulator/kv/x.py", "import importlib\nimportlib.import_module('simulator.cli')"),
        ("simulator/cli.py", "def f():\n    import calibration.fit"),
        ("calibration/x.py", "from gpu_backend import runner"),
    ],
)
def test_an_import_from_above_is_seen(file: str, text: str) -> None:
    assert [each for each in imports_of(text, file) if goes_up(each)]


def test_an_import_for_types_is_told_from_one_that_runs() -> None:
    text = "if TYPE_CHECKING:\n    import simulator.cli\nelse:\n    import simulator.api\n"
    assert [each.for_types for each in imports_of(text, "simulator/kv/x.py")] == [True, False]
