"""SDPA over gathered KV against attention written as its definition, in float64."""

# ruff: noqa: E402  (imports follow what skips the file where they are missing)
from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from gpu_sequences import attention_inputs

from gpu_backend.attention.sdpa import SdpaGather

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 4e-2}


@dataclass(frozen=True)
class Case:
    """Spans are (first position, tokens), decodes first."""

    spans: list[tuple[int, int]]
    heads: tuple[int, int]  # query and KV heads
    head_dim: int = 8
    block_size: int = 4
    window: int | None = None
    padding: int = 0
    padding_per_call: int = 512
    dtype: torch.dtype = torch.float64


@st.composite
def cases(draw: st.DrawFn) -> Case:
    decodes = draw(st.lists(st.tuples(st.integers(0, 60), st.just(1)), max_size=6))
    chunks = draw(st.lists(st.tuples(st.integers(0, 30), st.integers(2, 20)), max_size=3))
    kv_heads = draw(st.integers(1, 3))
    return Case(
        spans=decodes + chunks,
        heads=(kv_heads * draw(st.integers(1, 4)), kv_heads),
        head_dim=draw(st.sampled_from([2, 8, 20])),
        block_size=draw(st.sampled_from([1, 4, 16])),
        window=draw(st.none() | st.integers(1, 40)),
        padding=draw(st.integers(0, 3)),
        padding_per_call=draw(st.sampled_from([0, 10, 512])),
    )


def run(case: Case, seed: int = 0, backend: SdpaGather | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what the backend computes and what it should, over pages full of other sequences' KV."""
    rng = np.random.default_rng(seed)
    size, (heads, kv_heads) = case.block_size, case.heads
    widths = [-(-(start + count) // size) + int(rng.integers(3)) for start, count in case.spans]
    num_blocks = sum(widths) + 2
    order = rng.permutation(np.arange(1, num_blocks)).tolist()
    spans = [
        ([order.pop() for _ in range(width)], *span) for width, span in zip(widths, case.spans, strict=True)
    ]
    inputs = attention_inputs(spans, size, case.padding, dummy=0)
    rows = len(inputs.slots)

    def normal(*shape: int) -> torch.Tensor:
        return torch.from_numpy(rng.standard_normal(shape)).to(case.dtype)

    keys, values = (normal(num_blocks, size, kv_heads, case.head_dim) for _ in range(2))
    wide = normal(rows, heads + 2 * kv_heads, case.head_dim)  # slices of one projection, as the decoder's
    q, k, v = wide[:, :heads], wide[:, heads:-kv_heads], wide[:, -kv_heads:]
    backend = backend or SdpaGather(padding_per_call=case.padding_per_call)
    backend.write(k, v, keys, values, inputs.slots)
    found = backend.attend(q, keys, values, inputs, scale=0.3, window=case.window)
    assert found.shape == q.shape
    assert found.isfinite().all()
    expected = torch.zeros(rows, heads, case.head_dim, dtype=torch.float64)
    row = 0
    for blocks, start, count in spans:
        for position in range(start, start + count):
            first = max(0, position + 1 - case.window) if case.window else 0
            at = [(blocks[i // size], i % size) for i in range(first, position + 1)]
            for head in range(heads):
                group = head // (heads // kv_heads)
                k_read = torch.stack([keys[block, offset, group].double() for block, offset in at])
                v_read = torch.stack([values[block, offset, group].double() for block, offset in at])
                weights = (0.3 * k_read @ q[row, head].double()).softmax(0)
                expected[row, head] = weights @ v_read
            row += 1
    return found[:row].double(), expected[:row]


@given(cases(), st.integers(0, 9))
@settings(max_examples=60)
def test_equals_the_definition(case: Case, seed: int) -> None:
    found, expected = run(case, seed)
    torch.testing.assert_close(found, expected, rtol=0, atol=TOLERANCE[case.dtype])


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("window", [None, 5])
def test_every_type(dtype: torch.dtype, window: int | None) -> None:
    spans = [(40, 1), (3, 1), (0, 12), (9, 6)]
    found, expected = run(Case(spans, heads=(6, 2), window=window, padding=2, dtype=dtype))
    torch.testing.assert_close(found, expected, rtol=0, atol=TOLERANCE[dtype])


def test_a_backend_plans_anew_for_new_inputs_and_windows() -> None:
    backend = SdpaGather()
    for spans, window in (([(5, 1), (9, 1)], None), ([(8, 1), (2, 1)], None), ([(0, 6)], 2), ([(0, 6)], 4)):
        found, expected = run(Case(spans, heads=(2, 1), window=window), backend=backend)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


def test_layers_with_and_without_a_window_share_a_step() -> None:
    backend = SdpaGather()
    inputs = attention_inputs([([1, 2, 3], 9, 1)], block_size=4)
    torch.manual_seed(0)
    q, keys, values = torch.randn(1, 2, 8), torch.randn(4, 4, 1, 8), torch.randn(4, 4, 1, 8)
    full, cut, again = (
        backend.attend(q, keys, values, inputs, scale=1.0, window=window) for window in (None, 3, None)
    )
    assert not torch.allclose(full, cut)
    assert torch.equal(full, again)


def test_a_long_sequence_does_not_pad_the_short_ones() -> None:
    groups = SdpaGather(padding_per_call=100)._groups([40, 3000, 35, 64, 2990, 40])
    assert groups == [[1, 4], [3, 0, 5, 2]]
    assert SdpaGather(padding_per_call=0)._groups([5, 4, 5]) == [[0, 2], [1]]
    assert SdpaGather()._groups([]) == []


def test_padded_decodes_come_back_as_zeros() -> None:
    """A batch of a fixed size: more decode rows than sequences."""
    inputs = attention_inputs([([1, 2], 6, 1), ([0], 0, 1), ([0], 0, 1)], block_size=4)
    inputs.decode_contexts = inputs.decode_contexts[:1]
    q, keys = torch.randn(3, 2, 8), torch.randn(3, 4, 1, 8)
    found = SdpaGather().attend(q, keys, keys, inputs, scale=1.0)
    assert found[0].abs().min() > 0
    assert not found[1:].any()
