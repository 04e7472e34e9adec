import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from starfc import celljoin
from starfc.cells import Cells
from starfc.centres import Coarse
from starfc.steps import Steps

EMPTY = np.empty((0, 1), np.float32)


def join(rows, starts, probes, k, order=None):
    """Join rows of which cell i is starts[i]..starts[i+1]; order says which row stands at each place."""
    n = len(rows)
    order = np.arange(n, dtype=np.int32) if order is None else order
    cells = Cells(order, np.asarray(starts), Coarse(EMPTY, np.empty(0, np.int32), EMPTY, np.zeros(1, np.int64)))
    steps = Steps()
    return celljoin.join_cells(rows[order], cells, probes, k, steps.open("join"), steps)


def join_slowly(rows, starts, probes, k, order):
    """Compare each place with its cell, the cells it probes and those that probe its cell, one by one."""
    owners = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    stored = rows[order].astype(np.float64)
    expected = []
    for place in range(len(rows)):
        seen = [
            other
            for other in range(len(rows))
            if other != place
            and (owners[other] == owners[place] or owners[other] in probes[place] or owners[place] in probes[other])
        ]
        seen.sort(key=lambda other: (-stored[other] @ stored[place], order[other]))
        expected.append(seen[:k])
    return expected


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 999), st.integers(1, 6), st.integers(0, 4), st.integers(1, 12), st.sampled_from([4, 9, 4096]))
def test_the_join_equals_a_search(seed, n_cells, n_probes, k, block_rows):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 9, n_cells)
    starts = np.concatenate(([0], np.cumsum(sizes)))
    n = int(starts[-1])
    rows = rng.standard_normal((n, 5)).astype(np.float32)
    order = rng.permutation(n).astype(np.int32)
    owners = np.repeat(np.arange(n_cells), sizes)
    probes = np.full((n, n_probes), -1, dtype=np.int32)
    for place in range(n):
        others = rng.permutation(np.delete(np.arange(n_cells), owners[place]))[:n_probes]
        probes[place, : len(others)] = others
    before, celljoin._BLOCK_ROWS = celljoin._BLOCK_ROWS, block_rows
    try:
        lists, similarities = join(rows, starts, probes, k, order)
    finally:
        celljoin._BLOCK_ROWS = before
    stored = rows[order]
    for place, expected in enumerate(join_slowly(rows, starts, probes, k, order)):
        assert lists[place, : len(expected)].tolist() == expected
        assert (lists[place, len(expected) :] == -1).all() and (similarities[place, len(expected) :] == 0).all()
        np.testing.assert_allclose(
            similarities[place, : len(expected)], stored[expected] @ stored[place], atol=1e-5, rtol=1e-5
        )


def test_blocks_hold_whole_cells(monkeypatch):
    monkeypatch.setattr(celljoin, "_BLOCK_ROWS", 10)
    edges = celljoin._cut_blocks(np.array([0, 3, 30, 31, 39, 41]))
    assert edges[0] == 0 and edges[-1] == 41 and set(edges.tolist()) <= {0, 3, 30, 31, 39, 41}


@pytest.mark.parametrize("n", [2, 300, 700])
def test_a_large_cell_is_joined_with_itself(n):
    rows = np.random.default_rng(0).standard_normal((n, 3)).astype(np.float32)
    lists, _ = join(rows, [0, n], np.empty((n, 0), np.int32), 4)
    scores = rows @ rows.T
    np.fill_diagonal(scores, -np.inf)
    assert (lists[:, : min(4, n - 1)] == np.argsort(-scores, axis=1, kind="stable")[:, : min(4, n - 1)]).mean() > 0.99
