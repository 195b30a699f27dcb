"""Counter-based random bits: the published generator, the same on host and device, and without pattern."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from gpu_backend import counter_hash

WORDS = st.integers(0, 2**64 - 1)


def test_draws_of_a_key_are_those_of_splitmix64_seeded_with_it() -> None:
    # The reference program's first outputs for the seed 1234567, as every port of it tests them.
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    assert counter_hash.draws(np.array([1234567], np.uint64), 4).tolist() == [expected]


@given(st.lists(WORDS, min_size=1, max_size=5), st.integers(1, 40))
def test_the_device_sees_the_bits_of_the_host(keys: list[int], count: int) -> None:
    words = np.array(keys, np.uint64)
    on_device = counter_hash.uniforms(counter_hash.to_device(words, torch.device("cpu")), count)
    on_host = (counter_hash.draws(words, count) >> np.uint64(11)) * 2.0**-53
    assert np.abs(on_device.numpy() - on_host).max() < 2.0**-23


def test_uniforms_are_uniform_inside_the_open_interval() -> None:
    keys = counter_hash.fold(3, np.arange(40, dtype=np.uint64))
    u = counter_hash.uniforms(counter_hash.to_device(keys, torch.device("cpu")), 5000).double().numpy()
    assert u.min() > 0
    assert u.max() < 1
    small = u[u < 2.0**-12]
    assert len(set(small.tolist())) == len(small)
    assert (small * 2.0**24 % 1 > 0).mean() > 0.9  # finer near 0 than a float's 24 bits are near 1
    assert stats.kstest(u.ravel(), "uniform").pvalue > 0.01
    by_key = np.abs(np.corrcoef(u)[np.triu_indices(40, 1)])
    assert by_key.max() < 5 / np.sqrt(5000)


def test_the_extremes_of_the_bits_stay_inside_the_open_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counter_hash, "STAGES", ())
    keys = (np.array([0, 2**64 - 1], np.uint64) - np.uint64(counter_hash.GAMMA)).astype(np.uint64)
    low, high = counter_hash.uniforms(counter_hash.to_device(keys, torch.device("cpu")), 1)[:, 0].tolist()
    assert low == 2.0**-54
    assert high == 1 - 2.0**-24


def test_the_order_of_the_parts_counts() -> None:
    keys = {int(counter_hash.fold(*parts)[0]) for parts in [(1, 2), (2, 1), (1, 2, 0), (0, 1, 2), (3,)]}
    assert len(keys) == 5


@given(st.integers(0, 2**64 - 2))
def test_neighbours_differ_in_about_half_of_their_bits(part: int) -> None:
    a, b = (int(counter_hash.fold(7, each)[0]) for each in (part, part + 1))
    assert 8 <= (a ^ b).bit_count() <= 56
