"""The pages: writes land where block tables say, and copies carry whole blocks of all layers."""

# ruff: noqa: E402  (imports follow what skips the file where they are missing)
from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from gpu_backend import kv_tensors
from gpu_backend.kv_tensors import KvTensors


@pytest.fixture
def kv() -> KvTensors:
    tensors = KvTensors(3, 6, 4, 2, 8, dtype=torch.float32, device=torch.device("cpu"))
    tensors.pages.copy_(torch.arange(tensors.pages.numel()).view(tensors.pages.shape))
    return tensors


def test_one_block_more_than_usable_for_padding(kv: KvTensors) -> None:
    assert kv.pages.shape == (3, 2, 7, 4, 2, 8)
    assert kv.dummy_block == 6


def test_a_layer_is_a_view_of_its_pages(kv: KvTensors) -> None:
    keys, values = kv.layer(1)
    assert keys.shape == values.shape == (7, 4, 2, 8)
    assert keys.is_contiguous()
    values[5, 3] = -1
    assert (kv.pages[1, 1, 5, 3] == -1).all()
    assert (kv.pages == -1).sum() == 16


def test_copy_within_the_device(kv: KvTensors) -> None:
    """Sources are read before any target is written, so a cycle is no trap."""
    before = kv.pages.clone()
    kv.copy([0, 2], [2, 5])
    assert torch.equal(kv.pages[:, :, [2, 5]], before[:, :, [0, 2]])
    assert torch.equal(kv.pages[:, :, [0, 1, 3, 4, 6]], before[:, :, [0, 1, 3, 4, 6]])


@pytest.mark.parametrize("staged", [kv_tensors.STAGED_BYTES, 2000, 1])
def test_out_to_the_host_and_back_to_other_blocks(
    kv: KvTensors, staged: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All at once, or one block after the other: a block has 1,536 bytes."""
    monkeypatch.setattr(kv_tensors, "STAGED_BYTES", staged)
    before = kv.pages.clone()
    host = kv.copy_out([4, 1])
    assert host.shape == (2, 3, 2, 4, 2, 8)
    kv.pages.zero_()
    assert torch.equal(host[0], before[:, :, 4])
    assert torch.equal(host[1], before[:, :, 1])
    kv.copy_in([host[1], host[0]], [3, 5])
    assert torch.equal(kv.pages[:, :, [3, 5]], before[:, :, [1, 4]])
    assert not kv.pages[:, :, [0, 1, 2, 4, 6]].any()
