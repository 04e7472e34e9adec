from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from starfc.panels import PANEL_LANES, count_panels, multiply_panels, pack_panels


def pack(others):
    panels = np.full((count_panels(len(others)), others.shape[1], PANEL_LANES), np.nan, dtype=np.float32)
    pack_panels(others, panels)
    return panels


def multiply(rows, some, others):
    panels = pack(others)
    products = np.full((len(some) + 1, PANEL_LANES * len(panels)), np.nan, dtype=np.float32)
    multiply_panels(rows, some, panels, products)
    assert np.isnan(products[len(some) :]).all()  # no further row is written
    return products[: len(some), : len(others)]


def draw(n, dim, seed, dtype=np.float32):
    return np.random.default_rng(seed).integers(-3, 4, (n, dim)).astype(dtype)


@settings(deadline=None, max_examples=100)
@given(st.integers(0, 40), st.integers(1, 130), st.integers(1, 70), st.integers(0, 99))
def test_products_equal_those_of_numpy(n_some, n_others, dim, seed):
    rows, others = draw(23, dim, seed), draw(n_others, dim, seed + 1)  # small integers: no sum is rounded
    some = np.random.default_rng(seed).integers(0, len(rows), n_some)
    assert np.array_equal(multiply(rows, some, others), rows[some] @ others.T)


@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_rows_may_be_named_by_integers_of_any_size(index):
    rows, others = draw(9, 5, 0), draw(3, 5, 1)
    some = np.array([8, 0, 8, 4], dtype=index)
    assert np.array_equal(multiply(rows, some, others), rows[some] @ others.T)


@pytest.mark.parametrize(("n", "dim"), [(1, 1), (16, 16), (17, 40), (50, 128)])
def test_stored_halves_are_packed_as_what_they_say(n, dim):
    halves = np.random.default_rng(n).normal(size=(n, dim)).astype(np.float16)
    assert np.array_equal(pack(halves.view(np.uint16)), pack(halves.astype(np.float32)))


@pytest.mark.parametrize(("n", "dim"), [(1, 1), (16, 16), (17, 40), (50, 128)])
def test_panels_hold_others_side_by_side_and_the_last_one_again(n, dim):
    others = draw(n, dim, n)
    for panel, packed in enumerate(pack(others)):
        for lane in range(PANEL_LANES):
            assert np.array_equal(packed[:, lane], others[min(panel * PANEL_LANES + lane, n - 1)])


def test_a_product_has_the_same_bits_whatever_is_beside_it():
    rng = np.random.default_rng(0)
    rows, others = (rng.normal(size=(n, 37)).astype(np.float32) for n in (40, 90))
    everything = multiply(rows, np.arange(40), others)
    for first, last in ((0, 1), (3, 20), (7, 9), (39, 40)):
        some = np.arange(first, last)
        for begin, end in ((0, 1), (5, 54), (16, 90), (20, 84)):
            part = multiply(rows, some, np.ascontiguousarray(others[begin:end]))
            assert np.array_equal(part, everything[first:last, begin:end])


def test_both_sides_of_a_product_have_the_same_bits():
    rows = np.random.default_rng(1).normal(size=(30, 128)).astype(np.float32)
    products = multiply(rows, np.arange(30), rows)
    assert np.array_equal(products, products.T)
