"""servetwin: a digital twin of an LLM server.

What a notebook imports comes from here: `from simulator import simulate`. The names live in
`simulator.api` and are loaded when first used, so that a bare import costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulator.api import *  # noqa: F403

__version__ = version("servetwin")


def __getattr__(name: str) -> object:
    if name.startswith("_") and name != "__all__":
        raise AttributeError(f"module 'simulator' has no attribute {name!r}")
    api = import_module("simulator.api")
    if name == "__all__":
        return api.__all__
    if name not in api.__all__:
        raise AttributeError(f"module 'simulator' has no attribute {name!r}")
    return getattr(api, name)


def __dir__() -> list[str]:
    return [*globals(), *import_module("simulator.api").__all__]
