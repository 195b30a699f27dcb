"""One property, tried a few times in the quick set and many times in the slow one."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis.strategies import SearchStrategy


def few_or_many(
    few: int, many: int, **strategies: SearchStrategy[Any]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorate as `given` does; arguments without a strategy are fixtures and parameters of pytest."""

    def decorate(check: Callable[..., None]) -> Callable[..., None]:
        @pytest.mark.parametrize("examples", [few, pytest.param(many, marks=pytest.mark.slow)])
        def test(examples: int, **fixtures: Any) -> None:
            settings(max_examples=examples)(given(**strategies)(check))(**fixtures)

        whole = inspect.signature(check)
        left = [each for name, each in whole.parameters.items() if name not in strategies]
        number = inspect.Parameter("examples", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        test.__signature__ = whole.replace(parameters=[*left, number])  # type: ignore[attr-defined]
        test.__name__, test.__doc__, test.__module__ = check.__name__, check.__doc__, check.__module__
        return test

    return decorate
