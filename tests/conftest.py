"""Fixtures that every test file may use."""

from __future__ import annotations

from pathlib import Path

import pytest

SHARED_DATA = Path(__file__).resolve().parents[1].parent / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of public traces and measurements; a checkout without it skips the test."""
    if not SHARED_DATA.is_dir():
        pytest.skip("needs ../shared/data (public traces and kernel timings), which this checkout lacks")
    return SHARED_DATA
