"""Random unit rows, and what the exact neighbours of rows must be."""

import numpy as np


def unit_rows(n, dim, seed=0, n_distinct=None):
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((n_distinct or n, dim)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows if n_distinct is None else rows[rng.integers(0, n_distinct, n)]


def check_neighbors(neighbors, similarities, rows, k):
    """Compare with all pairs in float64: the right similarities, of the ids named, each other row at most once."""
    wide = rows.astype(np.float64)
    cosines = wide @ wide.T
    found = np.take_along_axis(cosines, neighbors.astype(np.int64), axis=1)
    np.fill_diagonal(cosines, -np.inf)
    best = -np.sort(-cosines, axis=1)[:, :k]
    assert neighbors.dtype == np.int32
    assert similarities.dtype == np.float32
    assert neighbors.shape == similarities.shape == (len(rows), k)
    np.testing.assert_allclose(similarities, best, atol=2e-6)
    np.testing.assert_allclose(similarities, found, atol=2e-6)
    assert not (neighbors == np.arange(len(rows))[:, None]).any()
    assert all(len(set(row)) == k for row in neighbors.tolist())
    order = np.lexsort((neighbors, -similarities), axis=1)
    assert (order == np.arange(k)).all()
