import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neighbors import check_neighbors, unit_rows
from starfc.exact import _list_rounds, _Span, join_exactly, search_rows
from starfc.progress import silent
from starfc.threads import limited_threads


def join(rows, k, progress=silent):
    return join_exactly(lambda start, stop: rows[start:stop], *rows.shape, k, progress)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_join_equals_the_oracle(data):
    n = data.draw(st.integers(2, 200))
    dim = data.draw(st.sampled_from([1, 2, 3, 17]))
    k = data.draw(st.integers(1, n - 1))
    n_distinct = data.draw(st.sampled_from([1, 2, 5, n]))
    rows = unit_rows(n, dim, seed=data.draw(st.integers(0, 99)), n_distinct=n_distinct)
    check_neighbors(*join(rows, k), rows, k)


@pytest.mark.parametrize(("n", "k"), [(1500, 1), (1500, 80), (4099, 30), (513, 512)])
def test_many_tiles_equal_the_oracle(n, k):
    rows = unit_rows(n, 24)
    check_neighbors(*join(rows, k), rows, k)


def test_spans_of_tiles_give_the_same_bits(monkeypatch):
    rows = unit_rows(1900, 20)
    neighbors, similarities = join(rows, 11)
    for span_tiles in (1, 2, 3):
        monkeypatch.setattr("starfc.exact._SPAN_BYTES", 2 * 4 * 20 * 256 * span_tiles)
        in_parts = join(rows, 11)
        assert (in_parts[0] == neighbors).all()
        assert (in_parts[1] == similarities).all()


def test_thread_counts_give_the_same_bits():
    rows = unit_rows(3000, 40)
    with limited_threads(1):
        one = join(rows, 30)
    with limited_threads(2):
        two = join(rows, 30)
    assert (one[0] == two[0]).all()
    assert (one[1] == two[1]).all()


def test_identical_rows_take_the_smallest_ids():
    neighbors, _ = join(unit_rows(700, 8, n_distinct=1), 3)
    assert neighbors[0].tolist() == [1, 2, 3]
    assert neighbors[1].tolist() == [0, 2, 3]
    assert (neighbors[3:] == [0, 1, 2]).all()


def test_similarity_is_symmetric_to_the_bit():
    neighbors, similarities = join(unit_rows(1100, 33), 40)
    pairs = {
        (row, other): similarity
        for row, line in enumerate(zip(neighbors.tolist(), similarities.tolist(), strict=True))
        for other, similarity in zip(*line, strict=True)
    }
    assert all(pairs.get((other, row), similarity) == similarity for (row, other), similarity in pairs.items())


def test_progress_starts_at_nothing_and_ends_with_all():
    calls = []
    join(unit_rows(900, 4), 2, progress=lambda *call: calls.append(call))
    assert calls[0][:2] == ("knn", 0)
    assert calls[-1][1] == calls[-1][2]
    assert all(before[1] <= after[1] for before, after in itertools.pairwise(calls))


@given(st.integers(1, 9), st.integers(1, 9), st.booleans())
def test_rounds_hold_every_pair_once_and_no_tile_twice(n_left, n_right, with_itself):
    tiles = lambda first, last: _Span(lambda start, stop: np.zeros((stop - start, 1)), first, last, 2, 99)  # noqa: E731
    left = tiles(3, 3 + n_left)
    right = left if with_itself else tiles(3 + n_left, 3 + n_left + n_right)
    met = []
    for pairs in _list_rounds(left, right):
        busy = [tile for pair in pairs for tile in set(pair)]
        assert len(busy) == len(set(busy))
        met += pairs
    every = itertools.product(range(left.first, left.last), range(right.first, right.last))
    assert sorted(met) == [pair for pair in every if pair[0] <= pair[1]]


def test_search_finds_the_best_rows(monkeypatch):
    monkeypatch.setattr("starfc.exact._SEARCH_ROWS", 700)
    rows = unit_rows(3000, 24)
    found, similarities = search_rows(rows[:300], 3000, 4, lambda start, stop: rows[start:stop])
    cosines = rows[:300].astype(np.float64) @ rows.T.astype(np.float64)
    np.testing.assert_allclose(similarities, -np.sort(-cosines, axis=1)[:, :4], atol=2e-6)
    np.testing.assert_allclose(similarities, np.take_along_axis(cosines, found, axis=1), atol=2e-6)
    assert (found[:, 0] == np.arange(300)).all()
