"""Whether a function or class does what another one does, as far as can be seen without running it."""

from __future__ import annotations

import dis
from types import CodeType
from typing import Any

from simulator.config.policy_code import functions_of
from simulator.config.policy_writer import literal

_HOW_TO_CALL = frozenset({"PUSH_NULL", "PRECALL", "CACHE", "NOP", "EXTENDED_ARG"})


def differs(one: Any, other: Any) -> bool:
    """Say whether two functions, or two classes, differ in kind, code, defaults or plain attributes.

    The code of a closure is not compared: where its names come from shows in it.
    """
    if type(one) is not type(other):
        return True
    if isinstance(one, type):
        mine, yours = _plain(one), _plain(other)
        if mine != yours or [base.__name__ for base in one.__mro__] != [b.__name__ for b in other.__mro__]:
            return True
    mine_functions, your_functions = functions_of(one), functions_of(other)
    if len(mine_functions) != len(your_functions):
        return True
    for a, b in zip(mine_functions, your_functions, strict=True):
        if literal(a.__defaults__) != literal(b.__defaults__):
            return True
        if literal(a.__kwdefaults__) != literal(b.__kwdefaults__):
            return True
        is_closure = set(a.__code__.co_freevars) - {"__class__"}
        if not is_closure and _shape(a.__code__) != _shape(b.__code__):
            return True
    return False


def _plain(kind: type) -> dict[str, str]:
    """Return the plain attributes of a class as text."""
    found = {name: literal(value) for name, value in vars(kind).items() if not name.startswith("__")}
    return {name: text for name, text in found.items() if text is not None}


def _shape(code: CodeType) -> list[tuple[object, ...]]:
    """Return what a code object does, without where it stands.

    How a call of a module's function is compiled depends on whether the same text imports the module: in a
    notebook it often does not, in a file it does. That difference is left out, and where jumps lead.
    """
    found: list[tuple[object, ...]] = [(code.co_varnames, code.co_argcount, code.co_kwonlyargcount)]
    for step in dis.get_instructions(code):
        if step.opname in _HOW_TO_CALL:
            continue
        name, value = "LOAD_ATTR" if step.opname == "LOAD_METHOD" else step.opname, step.argval
        if isinstance(value, CodeType):
            found += _shape(value)
        elif step.opcode in dis.hasjrel or step.opcode in dis.hasjabs:
            found.append((name,))
        else:
            found.append((name, type(value), value))
    return found
