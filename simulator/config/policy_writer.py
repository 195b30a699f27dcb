"""The parts of a policy file that is written from Python objects: imports, values, definitions, in an order
in which they load."""

from __future__ import annotations
import __future__

import ast
import builtins
import inspect
import math
import re
import sys
from collections import ChainMap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from simulator.config.policy_code import free_names, functions_of, is_defined, source_of, surroundings
from simulator.errors import ConfigError

HEADER = "# Written by servetwin from a policy that was given as a Python object, with what it relies on.\n"
_OWN = __name__.partition(".")[0]  # our package, whose public names are imported from its top


class PolicyWriter:
    """Collects what a policy needs, each name once; ConfigError names what cannot be written."""

    def __init__(self) -> None:
        self.taken: dict[str, object] = {}  # functions and classes whose source is in the file
        self._values: dict[str, object] = {}  # what every name at the file's top level stands for
        self._imports: set[str] = set()
        self._literals: dict[str, str] = {}
        self._definitions: list[str] = []
        self._is_future = False  # whether annotations are left unevaluated

    def text(self) -> str:
        """Return the file."""
        future = "from __future__ import annotations\n" if self._is_future else ""
        imports = "".join(f"{line}\n" for line in sorted(self._imports))
        literals = "".join(f"{name} = {text}\n" for name, text in sorted(self._literals.items()))
        tops = [part for part in (HEADER, future, imports, literals) if part]
        return "\n".join(tops) + "".join(f"\n\n{each}" for each in self._definitions)

    def define(self, name: str, thing: Any, outer: ChainMap[str, object] | None = None) -> None:
        """Take a function or class along with its source, and before it what it relies on.

        `outer` are the names around the definition that needs it.
        """
        if not self._is_new(name, thing):
            return
        own = inspect.unwrap(thing)
        source, around = source_of(own), ChainMap(surroundings(own), outer or {})
        self.taken[name] = thing
        for each in functions_of(own):
            self._is_future |= bool(each.__code__.co_flags & __future__.annotations.compiler_flag)
        for needed in free_names(source):
            if needed in around and not needed.startswith("__"):
                self._need(needed, around[needed], source, around)
        self._definitions.append(source)

    def make(self, thing: object) -> str:
        """Write how to make an object anew, from its class and arguments; return its name in the file."""
        kind, arguments = type(thing), arguments_of(thing)
        self._need(kind.__name__, kind)
        name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", kind.__name__).lower()
        name = f"{name}_policy" if name in self._values else name
        given = ", ".join(f"{key}={literal(value)}" for key, value in arguments.items())
        self._definitions.append(f"{name} = {kind.__name__}({given})\n")
        return name

    def _is_new(self, name: str, value: object) -> bool:
        if name in self._values:
            known, text = self._values[name], literal(value)
            if known is not value and (text is None or text != literal(known)):
                raise ConfigError(f"{name} would have to mean two different things in one file")
            return False
        self._values[name] = value
        return True

    def _need(
        self, name: str, value: Any, source: str = "", outer: ChainMap[str, object] | None = None
    ) -> None:
        """Make a name mean in the file what it meant where the source came from."""
        if vars(builtins).get(name, self) is value:
            return
        home, text = home_of(name, value), literal(value)
        own = value.__name__ if is_defined(value) else name
        if home is None and text is None and is_defined(value):
            self.define(own, value, outer)
            if own != name and self._is_new(name, value):
                self._definitions.append(f"{name} = {own}\n")
        elif not self._is_new(name, value):
            return
        elif isinstance(value, ModuleType):
            self._import_module(name, value.__name__, source)
        elif home is not None:
            self._imports.add(f"from {home[0]} import {home[1]}" + f" as {name}" * (name != home[1]))
        elif text is not None:
            self._literals[name] = text
        else:
            raise ConfigError(f"it uses {name}, a {type(value).__name__}, which is no plain value")

    def _import_module(self, name: str, full: str, source: str) -> None:
        if not is_installed(full):
            raise ConfigError(f"it uses {name}, a module of yours, which the folder would lack")
        self._imports.add(f"import {full}" + f" as {name}" * (name != full))
        for path in _paths_from(name, source):
            while path and f"{full}.{path}" not in sys.modules:  # submodules that somebody imported
                path = path.rpartition(".")[0]
            if path:
                self._imports.add(f"import {full}.{path}")


def _paths_from(name: str, source: str) -> Iterator[str]:
    """Yield the dotted paths that a text follows from a name: stats.norm of scipy.stats.norm."""
    for node in ast.walk(ast.parse(source)):
        path = ast.unparse(node) if isinstance(node, ast.Attribute) else ""
        if path.startswith(f"{name}.") and path.replace(".", "").isidentifier():
            yield path.removeprefix(f"{name}.")


def is_installed(module: str) -> bool:
    """Say whether a module is found wherever servetwin runs: Python's own, ours, or of a package."""
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names or top == _OWN:
        return True
    file = getattr(sys.modules.get(top), "__file__", None)
    return file is not None and not {"site-packages", "dist-packages"}.isdisjoint(Path(file).parts)


def home_of(name: str, value: object) -> tuple[str, str] | None:
    """Return the installed module and the name in it under which a value can be imported, None if none."""
    own = getattr(value, "__name__", name)
    module = getattr(value, "__module__", None)
    tops = [_OWN]
    if isinstance(module, str) and is_installed(module):
        tops += [module.partition(".")[0], module]
    for home in tops:
        if isinstance(own, str) and getattr(sys.modules.get(home), own, tops) is value:
            return home, own
    return None


def literal(value: object) -> str | None:
    """Return a plain value as Python text that gives the same value, None for anything else.

    >>> literal({"a": (1, 2.5), "b": [None, True]})
    "{'a': (1, 2.5), 'b': [None, True]}"
    """
    kind = type(value)
    if value is None or kind in (bool, int, str, bytes):
        return repr(value)
    if isinstance(value, float) and kind is float:
        return repr(value) if math.isfinite(value) else f'float("{value}")'
    if isinstance(value, list | tuple | set | frozenset) and kind in (list, tuple, set, frozenset):
        parts = [literal(each) for each in value]
        if None in parts:
            return None
        texts = [str(each) for each in parts]
        if isinstance(value, set | frozenset):
            return f"{kind.__name__}([{', '.join(sorted(texts))}])"
        inside = ", ".join(texts)
        return f"[{inside}]" if kind is list else f"({inside},)" if len(texts) == 1 else f"({inside})"
    if isinstance(value, dict) and kind is dict:
        pairs = [(literal(key), literal(each)) for key, each in value.items()]
        if any(None in pair for pair in pairs):
            return None
        return "{" + ", ".join(f"{key}: {each}" for key, each in pairs) + "}"
    return None


def arguments_of(thing: object) -> dict[str, object]:
    """Return the arguments that make an object like this one: plain attributes of the parameters' names.

    ConfigError unless an object made of them has the same state.
    """
    kind = type(thing)
    unknown = ConfigError(f"it is a {kind.__name__} whose arguments are not known; give the class instead")
    try:
        parameters = inspect.signature(kind).parameters
        arguments = {name: vars(thing)[name] for name in parameters}
        is_plain = all(literal(value) is not None for value in arguments.values())
        if not is_plain or vars(kind(**arguments)) != vars(thing):
            raise unknown
    except Exception:  # a user's constructor may do anything
        raise unknown from None
    return arguments
