"""The examples in docstrings hold."""

from __future__ import annotations

import doctest
import importlib.util
import pkgutil
from importlib import import_module

import pytest

import calibration
import simulator

PACKAGES = [simulator, calibration]
if importlib.util.find_spec("torch") is not None:
    PACKAGES.append(import_module("gpu_backend"))
MODULES = [
    each.name
    for package in PACKAGES
    for each in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    if not each.name.startswith("gpu_backend.kernels.")  # Triton must not be imported before its own tests
]


@pytest.mark.parametrize("name", ["simulator", "calibration", *MODULES])
def test_examples_of(name: str) -> None:
    found = doctest.testmod(import_module(name), optionflags=doctest.ELLIPSIS)
    assert found.failed == 0


def test_there_are_examples() -> None:
    finder = doctest.DocTestFinder(exclude_empty=True)
    examples = [test for name in MODULES for test in finder.find(import_module(name)) if test.examples]
    assert len(examples) >= 5
