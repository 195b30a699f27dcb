"""Write a Python object that was given as a policy into a file that holds the same policy.

The file has the object's source, as `inspect` would find it, and everything the source relies on: imports of
what is installed, plain values as they are now, other functions and classes of the user's in the same way.
It is loaded and held against the object before it is used. Where that cannot be done, the error says which
name stands in the way. Left out: what functions import inside themselves, and state kept outside the policy.
"""

from __future__ import annotations

import sys
from types import ModuleType

from simulator.config.policy_code import is_defined
from simulator.config.policy_writer import PolicyWriter
from simulator.config.same_code import differs
from simulator.errors import ConfigError, Interrupted


def written_policy(policy: object, name: str) -> tuple[str, str]:
    """Return the text of a file that holds the policy, and the policy's name in it.

    ConfigError says what stands in the way.
    """
    writer = PolicyWriter()
    if is_defined(policy):
        if not name.isidentifier():
            raise ConfigError("a lambda has no name of its own")
        writer.define(name, policy)
        attribute = name
    else:
        attribute = writer.make(policy)
    text = writer.text()
    try:
        module = run_as_module(text.encode(), f"{name}.py", "servetwin_written_policy")
    except Interrupted:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"what was written of it does not load ({type(error).__name__}: {error})"
        ) from error
    for own, thing in writer.taken.items():
        if differs(thing, vars(module).get(own)):
            raise ConfigError(f"{own} is no longer what its source says, or a decorator has changed it")
    return text, attribute


def run_as_module(content: bytes, path: str, name: str) -> ModuleType:
    """Run a file's content, and no stale bytecode of it, as a module."""
    module = ModuleType(name)
    module.__file__ = path
    sys.modules[name] = module  # where dataclasses look a class's module up
    exec(compile(content, path, "exec", dont_inherit=True), vars(module))
    return module
