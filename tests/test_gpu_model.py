"""The decoder against transformers, over paged KV: what the scheduler may do must not show in the logits."""

# ruff: noqa: E402  (imports follow what skips the file where they are missing)
from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from gpu_models import FAMILIES, logits, save_model
from gpu_sequences import Pages

from gpu_backend.attention.sdpa import SdpaGather
from gpu_backend.loader import load_decoder

Pair = tuple[Any, Pages]


@pytest.fixture(params=FAMILIES)
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Pair:
    model = save_model(request.param, tmp_path)
    return model, Pages(load_decoder(tmp_path, "cpu", torch.float32), SdpaGather())


def ids(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(97, size=count).tolist()


def near(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_whole_prefill(pair: Pair) -> None:
    model, pages = pair
    tokens = ids(30)
    near(pages.step((pages.sequence(tokens), 30)), logits(model, tokens))
