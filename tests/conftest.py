"""Fixtures that every test file may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

# A slow machine is no fault, and CI must say the same of the same commit; elsewhere examples are drawn anew.
settings.register_profile("here", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, database=None)
settings.load_profile("ci" if os.environ.get("CI") else "here")

SHARED_DATA = Path(__file__).resolve().parents[1].parent / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of public traces and measurements; a checkout without it skips the test."""
    if not SHARED_DATA.is_dir():
        pytest.skip("needs ../shared/data (public traces and kernel timings), which this checkout lacks")
    return SHARED_DATA
