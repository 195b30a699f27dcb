"""Names of attention, what cannot run here, and torch's varlen kernel behind a stand-in."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
import torch
from torch import Tensor

from gpu_backend.attention.choose import choose_attention
from gpu_backend.attention.reference import TOLERANCES, Case, attention_error
from gpu_backend.attention.sdpa import SdpaGather
from gpu_backend.attention.varlen import MODULE, TorchVarlenPaged, why_unavailable
from simulator.errors import ConfigError

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", ["auto", "sdpa"])
def test_sdpa_runs_on_the_cpu(name: str) -> None:
    assert isinstance(choose_attention(name, CPU), SdpaGather)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tritn", "attention: 'tritn' is unknown; did you mean triton?"),
        ("triton", "attention: triton needs a CUDA device, got cpu; sdpa runs anywhere"),
        ("varlen", "attention: varlen cannot run on cpu: torch has no CPU kernel for it; choose auto"),
    ],
)
def test_what_cannot_run_says_why(name: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        choose_attention(name, CPU)
    assert str(caught.value) == message


def test_a_torch_without_block_tables_is_told_from_one_without_varlen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cuda = torch.device("cuda")  # no tensor is made before the signature is read
    old = ModuleType(MODULE)
    old.__spec__ = sys.modules["torch"].__spec__  # what find_spec asks a loaded module for
    old.varlen_attn = lambda query, key, value, cu_seq_q, cu_seq_k, max_q, max_k: query
    monkeypatch.setitem(sys.modules, MODULE, old)
    assert "takes no block_table" in str(why_unavailable(cuda, 16, torch.bfloat16))
    assert not TorchVarlenPaged.is_available(cuda, 16)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert f"has no {MODULE}" in str(why_unavailable(cuda, 16, torch.bfloat16))


def varlen_by_the_book(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: None,
    max_q: int,
    max_k: int,
    *,
    scale: float,
    window_size: tuple[int, int],
    enable_gqa: bool,
    seqused_k: Tensor,
    block_table: Tensor,
) -> Tensor:
    """What torch's documentation says of the arguments that we pass; causal from the end."""
    assert (enable_gqa, window_size[1], cu_seq_k) == (True, 0, None)
    assert cu_seq_q.dtype == seqused_k.dtype == block_table.dtype == torch.int32
    assert len(cu_seq_q) == len(seqused_k) + 1 == len(block_table) + 1
    out = torch.empty_like(query)
    for first, last, length, table in zip(cu_seq_q, cu_seq_q[1:], seqused_k, block_table, strict=False):
        assert last - first <= max_q
        assert length <= max_k
        k, v = (pages[table.long()].flatten(0, 1)[:length].transpose(0, 1) for pages in (key, value))
        behind = torch.arange(int(length - (last - first)), int(length))[:, None] - torch.arange(int(length))
        seen = (behind >= 0) & ((window_size[0] == -1) | (behind <= window_size[0]))
        q = query[first:last].transpose(0, 1)
        attended = torch.nn.functional.scaled_dot_product_attention(
            q[None], k[None], v[None], attn_mask=seen, scale=scale, enable_gqa=True
        )
        out[first:last] = attended[0].transpose(0, 1)
    return out


@pytest.mark.parametrize("window", [None, 11])
def test_varlen_is_asked_for_the_right_thing(window: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{MODULE}.varlen_attn", varlen_by_the_book)
    case = Case(
        [5, 40], [(9, 30), (16, 16)], heads=4, kv_heads=2, head_dim=16, window=window, dummies=1, padding=2
    )
    assert attention_error(TorchVarlenPaged(), case, torch.float32, CPU) < TOLERANCES[torch.float32]
