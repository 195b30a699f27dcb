"""YAML as people mean it: plain data, nothing executed, bounded work.

Scalars follow the core schema of YAML 1.2 (section 10.3.2), without hexadecimals and with 1_000: 1e6 is a
number, `no`, 12:30 and a date are texts. Refused are tags; aliases, with which a few lines stand for
gigabytes; keys that come twice; and deep nesting.
"""

from __future__ import annotations

import re

import yaml
from yaml.constructor import ConstructorError

from simulator.errors import ConfigError

MAX_DEPTH = 20
_NULL, _BOOL, _INT, _FLOAT, _STR = map("tag:yaml.org,2002:{}".format, ("null", "bool", "int", "float", "str"))
_SCALARS = {
    _NULL: (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    _BOOL: (r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    _INT: (r"[-+]?\d[\d_]*", list("-+0123456789")),
    _FLOAT: (
        r"[-+]?(\d[\d_]*\.?\d*|\.\d+)([eE][-+]?\d+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
}
"""Tag -> pattern and possible first characters; the first that matches wins."""


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers = {}  # noqa: RUF012  # filled below, like PyYAML's own
    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        problem = None
        if isinstance(event, yaml.AliasEvent):
            problem = "aliases (*name) are not read"
        elif event.tag is not None:
            problem = "tags (!name) are not read"
        elif self.depth > MAX_DEPTH:
            problem = f"nested deeper than {MAX_DEPTH} levels"
        if problem:
            raise ConstructorError(None, None, problem, event.start_mark)
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[object, object]:
        """Build a mapping whose keys are texts as they were written: {50: 100} has the key "50"."""
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise ConstructorError(None, None, "a key must be text", key.start_mark)
            if key.value in seen:
                raise ConstructorError(None, None, f"key {key.value[:80]!r} is given twice", key.start_mark)
            seen.add(key.value)
            key.tag = _STR
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: object) -> bool:
        return True


def _int(loader: _Loader, node: yaml.ScalarNode) -> int:
    return int(node.value)


def _float(loader: _Loader, node: yaml.ScalarNode) -> float:
    """Read 1.5 as a float and 1e6, of which people think as whole, as an int."""
    number: float = loader.construct_yaml_float(node)
    whole = "e" in node.value.lower() and number.is_integer() and abs(number) < 2**53
    return int(number) if whole else number


for _tag, (_pattern, _first) in _SCALARS.items():
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(_tag, re.compile(f"({_pattern})$", re.ASCII), _first)
_Loader.add_constructor(_INT, _int)
_Loader.add_constructor(_FLOAT, _float)


def parse_yaml(text: str, place: str) -> object:
    """Return the data of a YAML text; ConfigError names `place`, the line and what is wrong there."""
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "not YAML"
        raise ConfigError(f"{place}{where}: {problem}") from None
    except ValueError as error:  # a number with thousands of digits
        raise ConfigError(f"{place}: {error}") from None


def dump_yaml(data: object, *, flow: bool = False) -> str:
    """Return a YAML text that `parse_yaml` and other readers of YAML read back as the same data."""
    text: str = yaml.dump(
        data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=flow, width=10**6
    )
    return text
