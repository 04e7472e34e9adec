import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

from starfc.masks import MASK_LANES, find_lowest, mark_reaching


@njit
def list_bits(mask):
    """Return the numbers of the bits that are set, lowest first."""
    bits = []
    while mask:
        bits.append(find_lowest(mask))
        mask &= mask - np.uint64(1)
    return bits


def bits(line, start, floor):
    """Return which of 64 numbers are marked."""
    return list_bits(np.uint64(mark_reaching(line, start, np.float32(floor))))


@settings(deadline=None, max_examples=100)
@given(st.integers(1, 200), st.integers(0, 99))
def test_marks_equal_comparisons_one_by_one(n, seed):
    line = np.random.default_rng(seed).integers(-3, 4, n).astype(np.float32)
    found = [start + bit for start in range(0, n, MASK_LANES) for bit in bits(line, start, 1)]
    assert found == [j for j in range(n) if line[j] >= 1]


@pytest.mark.parametrize("n", [15, 16, 40, 64, 130])
def test_nothing_behind_the_end_is_marked(n):
    longer = np.ones(n + MASK_LANES, dtype=np.float32)
    last = (n - 1) // MASK_LANES * MASK_LANES
    assert bits(longer[:n], last, 1) == list(range(n - last))


def test_what_is_no_number_reaches_nothing():
    line = np.full(70, np.nan, dtype=np.float32)
    line[66] = -np.inf
    assert [int(mark_reaching(line, start, np.float32(-np.inf))) for start in (0, 64)] == [0, 1 << 2]
    assert int(mark_reaching(line, 64, np.float32(0))) == 0


@pytest.mark.parametrize("bit", [0, 1, 31, 32, 63])
def test_the_lowest_bit_is_found(bit):
    assert list_bits(np.uint64(1) << np.uint64(bit)) == [bit]
    assert list_bits((np.uint64(1) << np.uint64(63)) | (np.uint64(1) << np.uint64(bit)))[0] == bit
