"""The axes along which policies are chosen: their keys, tables, and what a policy of one's own must be.

One entry an axis. Everything that treats all axes alike goes through this table: files and objects of the
user, the run folder, `servetwin list policies`. A value names one policy, or, of admission, a list of them
with their arguments.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from simulator.cluster.routers import ROUTERS
from simulator.config.scenario import Scenario
from simulator.kv.eviction import EVICTIONS
from simulator.schedulers import BATCHING, Scheduler
from simulator.schedulers.admission import ADMISSIONS
from simulator.schedulers.orders import ORDERS
from simulator.schedulers.preemption import VICTIMS


class Axis(NamedTuple):
    """One choice of policy. `key` is the scenario's, section.name."""

    key: str
    table: Mapping[str, Any]
    signature: str  # of a policy of one's own
    function: str = "(seq, ctx)"  # parameters of one that is a function; empty if none can be
    methods: Mapping[str, str] = {}  # of one that is a class: name and parameters
    takes_objects: bool = False  # whether an object with these methods will do, not only its class
    is_list: bool = False  # whether a scenario names several
    unset: str = ""  # what the scenario's null, or an empty list, stands for

    @property
    def name(self) -> str:
        return self.key.rpartition(".")[2]

    def value(self, scenario: Scenario) -> Any:
        """Return what a scenario has under the key."""
        section, _, name = self.key.partition(".")
        return getattr(getattr(scenario, section), name, None)

    def misfit(self, policy: object) -> str | None:
        """Say why an object is no policy of this axis, None if it may be one."""
        if not self.function:
            is_fit = isinstance(policy, type) and issubclass(policy, Scheduler)
            return None if is_fit else "is not a subclass of simulator.Scheduler"
        is_class = isinstance(policy, type)
        if not is_class and callable(policy):
            return (
                None
                if _takes(policy, self.function.count(",") + 1)
                else f"is not a function of {self.function}"
            )
        if not self.methods or not (is_class or self.takes_objects):
            return f"is not a function of {self.function}"
        kind = policy if isinstance(policy, type) else type(policy)
        has = {name for base in kind.__mro__ for name in vars(base)}
        lacks = [f"{name}{given}" for name, given in self.methods.items() if name not in has]
        if not lacks:
            return None
        return (
            f"{'' if is_class else f'is not a function of {self.function}, and '}has no {', no '.join(lacks)}"
        )


def _takes(function: Callable[..., Any], num: int) -> bool:
    """Say whether a function can be called with so many arguments: a sequence or block, and a context."""
    try:
        inspect.signature(function).bind(*[None] * num)
    except TypeError:
        return False
    except ValueError:  # of some built-in functions nothing is known
        return True
    return True


AXES: dict[str, Axis] = {
    axis.key: axis
    for axis in (
        Axis(
            "scheduler.batching",
            BATCHING,
            "subclass of Scheduler with schedule(now) -> Batch; optional steady_steps(batch, limit) -> int",
            function="",
        ),
        Axis(
            "scheduler.order",
            ORDERS,
            "(seq, ctx) -> key, smallest first; or class with key(seq, ctx), optional served(seq, n)",
            methods={"key": "(seq, ctx)"},
            takes_objects=True,
        ),
        Axis(
            "scheduler.victim",
            VICTIMS,
            "(seq, ctx) -> key, largest first",
            unset="null: last_admitted, under priority least_important",
        ),
        Axis(
            "scheduler.admission",
            ADMISSIONS,
            "(seq, ctx) -> ADMIT, WAIT or SHED; or class that takes arguments and is called so",
            methods={"__call__": "(seq, ctx)"},
            is_list=True,
            unset="[]: everybody is admitted",
        ),
        Axis(
            "kv.eviction",
            EVICTIONS,
            "(block, ctx) -> key, smallest first; or class with release(block, ctx), hit(block, ctx), "
            "evict(ctx) -> block",
            function="(block, ctx)",
            methods={"release": "(block, ctx)", "hit": "(block, ctx)", "evict": "(ctx)"},
        ),
        Axis(
            "cluster.router",
            ROUTERS,
            "(request, replicas, ctx) -> index into replicas; or class with __call__(request, replicas, ctx)",
            function="(request, replicas, ctx)",
            methods={"__call__": "(request, replicas, ctx)"},
            unset="least_outstanding, where there is a cluster",
        ),
    )
}


def names_in(value: object) -> Iterator[str]:
    """Yield the names of policies in a value: a text, or a list of texts and {name: arguments}."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from (str(name) for name in value)
    elif isinstance(value, Sequence):
        for each in value:
            yield from names_in(each)


def renamed(value: Any, names: Mapping[str, str]) -> Any:
    """Return a value with other names for the policies that have one."""
    if isinstance(value, str):
        return names.get(value, value)
    if isinstance(value, Mapping):
        return {names.get(str(name), name): arguments for name, arguments in value.items()}
    return [renamed(each, names) for each in value] if isinstance(value, list) else value


def name_of(axis: Axis, policy: object) -> str:
    """Return what a scenario calls a policy that was given as a Python object."""
    shipped = [name for name, each in axis.table.items() if each is policy]
    return shipped[0] if shipped else str(getattr(policy, "__name__", type(policy).__name__))


def is_given(value: object) -> bool:
    """Say whether a value holds Python objects instead of the names of policies."""
    if isinstance(value, list | tuple):
        return any(is_given(each) for each in value)
    return value is not None and not isinstance(value, str | Mapping)


def named(axis: Axis, value: Any) -> Any:
    """Return a value with the name of each Python object in its place."""
    if isinstance(value, list | tuple):
        return [named(axis, each) for each in value]
    return name_of(axis, value) if is_given(value) else value


def split_objects(changes: Mapping[str, object]) -> tuple[dict[str, object], dict[str, Any]]:
    """Part changes of a scenario into what it can hold, names, and the Python objects by axis.

    One policy where a scenario names several is a list of one.

    >>> def shortest(seq, ctx): return seq.num_prompt
    >>> split_objects({"scheduler.order": shortest, "seed": 1})[0]
    {'scheduler.order': 'shortest', 'seed': 1}
    """
    names, objects = dict(changes), {}
    for key, axis in AXES.items():
        value = changes.get(key)
        if axis.is_list and (isinstance(value, str | Mapping) or callable(value)):
            value = names[key] = [value]
        if is_given(value):
            names[key] = named(axis, value)
            objects[axis.name] = value
    return names, objects


def given_objects(policies: object) -> Iterator[tuple[Axis, str, object]]:
    """Yield each Python object among policies with its axis and name, those that ship left out."""
    for axis in AXES.values():
        value = getattr(policies, axis.name, None)
        for each in value if isinstance(value, list | tuple) else [value]:
            if is_given(each) and not any(each is shipped for shipped in axis.table.values()):
                yield axis, name_of(axis, each), each
