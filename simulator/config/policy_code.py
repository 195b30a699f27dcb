"""The code behind a function, class or object: its functions, its source text, and the names it relies on.

Works for what was typed into a notebook too: IPython leaves the text of its cells where `linecache` finds it.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import symtable
import sys
import textwrap
from collections import ChainMap
from collections.abc import Iterator
from types import CodeType, FunctionType

from simulator.errors import ConfigError

Definition = ast.FunctionDef | ast.ClassDef


def is_defined(policy: object) -> bool:
    """Say whether an object comes from a definition: a class, or a function, decorated or not."""
    return isinstance(policy, type) or isinstance(_plain(policy), FunctionType)


def _plain(policy: object) -> object:
    """Undo the decorators that say what they wrap."""
    try:
        return inspect.unwrap(policy) if callable(policy) else policy
    except ValueError:  # they wrap each other
        return policy


def functions_of(policy: object) -> list[FunctionType]:
    """Return the function itself, or those that a class, or an object's class, defines; decorators undone."""
    kind = policy if isinstance(policy, type) else type(policy)
    plain = _plain(policy)
    if isinstance(plain, FunctionType):
        return [plain]
    return [function for each in vars(kind).values() for function in _behind(each)]


def _behind(attribute: object) -> Iterator[FunctionType]:
    """Yield the functions behind a class's attribute: a method of any kind, or a property."""
    if isinstance(attribute, property):
        parts: tuple[object, ...] = (attribute.fget, attribute.fset, attribute.fdel)
    else:
        parts = (getattr(attribute, "__func__", attribute),)
    for part in parts:
        plain = _plain(part)
        if isinstance(plain, FunctionType):
            yield plain


def codes_of(policy: object) -> Iterator[CodeType]:
    """Yield the code of an object's functions, those of the bases of its class that a user wrote too."""
    if isinstance(_plain(policy), FunctionType):
        kinds = [policy]
    else:
        kind = policy if isinstance(policy, type) else type(policy)
        own = __name__.partition(".")[0]
        kinds = [base for base in kind.__mro__[:-1] if base.__module__.partition(".")[0] != own]
    for each in kinds:
        yield from (function.__code__ for function in functions_of(each))


def source_of(thing: FunctionType | type) -> str:
    """Return the text of a definition, its decorators included, as it stands at a module's top level.

    ConfigError if it cannot be found.
    """
    own = f"{thing.__qualname__}." if isinstance(thing, type) else ""  # what dataclasses add is not its own
    codes = [each.__code__ for each in functions_of(thing)]
    code = next((each for each in codes if each.co_qualname.startswith(own)), None)
    module = sys.modules.get(thing.__module__)
    file = code.co_filename if code is not None else getattr(module, "__file__", None)
    line = None if code is None else code.co_firstlineno
    for lines in [*([_lines(file)] if file else []), *(_cells() if code is None else [])]:
        found = _definitions("".join(lines), thing, line)
        if found:
            break
    else:
        raise ConfigError(f"the source of {thing.__name__} is not known, or has changed since it was defined")
    node = max(found, key=_start)  # the innermost
    text = "".join(lines[_start(node) - 1 : node.end_lineno])
    flat = textwrap.dedent(text)
    try:
        is_same = ast.dump(ast.parse(flat).body[0]) == ast.dump(node)
    except SyntaxError:
        is_same = False
    return (flat if is_same else f"if True:\n{text}").rstrip() + "\n"


def _lines(file: str) -> list[str]:
    linecache.checkcache(file)
    return linecache.getlines(file)


def _cells() -> list[list[str]]:
    """Return the cells of a notebook, the latest first: where a class without functions may stand."""
    entries = [entry for entry in linecache.cache.values() if len(entry) == 4 and entry[1] is None]
    return [entry[2] for entry in reversed(entries)]


def _definitions(text: str, thing: FunctionType | type, line: int | None) -> list[Definition]:
    """Return the definitions of that name and kind: a function that begins at the line, a class around it."""
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except SyntaxError:
        return []
    kind = ast.ClassDef if isinstance(thing, type) else ast.FunctionDef
    found = [node for node in nodes if isinstance(node, kind) and node.name == thing.__name__]
    if line is None:
        return found
    if kind is ast.FunctionDef:
        return [node for node in found if _start(node) == line]
    return [node for node in found if _start(node) <= line <= (node.end_lineno or 0)]


def _start(node: Definition) -> int:
    return min([node.lineno, *(each.lineno for each in node.decorator_list)])


def free_names(source: str) -> list[str]:
    """Return the names that a module of this text takes from elsewhere, in alphabetical order.

    >>> free_names("def f(seq, ctx):\\n    return log2(seq.num_prompt)\\n")
    ['log2']
    """
    top = symtable.symtable(source, "policy", "exec")
    defined = {each.get_name() for each in top.get_symbols() if each.is_assigned() or each.is_imported()}
    tables, found = [top], set()
    while tables:
        table = tables.pop()
        tables += table.get_children()
        found |= {
            each.get_name() for each in table.get_symbols() if each.is_referenced() and each.is_global()
        }
    return sorted(found - defined)


def surroundings(thing: FunctionType | type) -> ChainMap[str, object]:
    """Return the values of the names around a definition: closures first, then globals and bases."""
    functions = functions_of(thing)
    closed: dict[str, object] = {}
    for each in functions:
        for name, cell in zip(each.__code__.co_freevars, each.__closure__ or (), strict=True):
            if name != "__class__":
                closed[name] = _content(cell, name)
    spaces = [each.__globals__ for each in functions]
    if isinstance(thing, type):
        module = sys.modules.get(thing.__module__)
        spaces += [] if module is None else [vars(module)]
        spaces.append({base.__name__: base for base in thing.__mro__[1:]})
    return ChainMap(closed, *spaces)


def _content(cell: object, name: str) -> object:
    try:
        return cell.cell_contents  # type: ignore[attr-defined]  # a closure's cell
    except ValueError:
        raise ConfigError(f"{name} has no value yet") from None
