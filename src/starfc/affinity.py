"""Affinity: the kNN lists as a row-normalised symmetric matrix (Sec. 3.2).

In: KnnGraph. Out: Affinity, the matrix  A~ = D~^-1 (A + I)  with  A_ij = max(s_ij, s_ji)  over the lists that contain
the pair, negative similarities left out. It is stored by rows (CSR), the face itself first, then its own list in
order, then the faces that list it without being listed, by id: a fixed order, so that sums over a row always give the
same bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit, prange
from numpy.typing import NDArray

from .knn import KnnGraph


@dataclass(frozen=True)
class Affinity:
    """Rows of A~: row i has `columns` and `weights` at offsets[i] : offsets[i + 1]; weights of a row sum to 1."""

    offsets: NDArray[np.int64]
    columns: NDArray[np.int32]
    weights: NDArray[np.float32]

    def tocsr(self) -> Any:  # noqa: ANN401
        """Return the same matrix as scipy.sparse.csr_array (n, n)."""
        from scipy.sparse import csr_array

        n = len(self.offsets) - 1
        return csr_array((self.weights, self.columns, self.offsets), shape=(n, n))


def build_affinity(graph: KnnGraph) -> Affinity:
    """Make A~ from the kNN lists.

    Parameters
    ----------
    graph : KnnGraph
        (n, k).

    Returns
    -------
    Affinity
        n rows, at most n (2k + 1) entries.

    Examples
    --------
    >>> graph = KnnGraph(np.array([[1], [0]], np.int32), np.array([[0.5], [0.5]], np.float32))
    >>> build_affinity(graph).tocsr().toarray().round(3)
    array([[0.667, 0.333],
           [0.333, 0.667]], dtype=float32)
    """
    neighbors, similarities = graph.neighbors, graph.similarities
    returned = _find_returned_similarity(neighbors, similarities)
    offsets = np.zeros(len(neighbors) + 1, dtype=np.int64)
    np.cumsum(_count_entries(neighbors, similarities, returned), out=offsets[1:])
    columns, weights = _fill_rows(neighbors, similarities, returned, offsets)
    _normalise_rows(offsets, weights)
    return Affinity(offsets, columns, weights)


@njit(cache=True, parallel=True)
def _find_returned_similarity(neighbors, similarities):  # type: ignore[no-untyped-def]
    """For each i->j of the lists: s_ji where j lists i, else 0 (only positive similarities count as edges)."""
    n, k = neighbors.shape
    returned = np.zeros((n, k), dtype=np.float32)
    for i in prange(n):
        for slot in range(k):
            j = neighbors[i, slot]
            if j < 0 or similarities[i, slot] <= 0:
                continue
            for back in range(k):
                if neighbors[j, back] == i:
                    returned[i, slot] = max(np.float32(0), similarities[j, back])
                    break
    return returned


@njit(cache=True)
def _count_entries(neighbors, similarities, returned):  # type: ignore[no-untyped-def]
    """Count the entries of every row: itself, its own list, and the one-sided edges into it."""
    n, k = neighbors.shape
    counts = np.ones(n, dtype=np.int64)
    for i in range(n):
        for slot in range(k):
            j = neighbors[i, slot]
            if j >= 0 and similarities[i, slot] > 0:
                counts[i] += 1
                if returned[i, slot] == 0:
                    counts[j] += 1
    return counts


@njit(cache=True)
def _fill_rows(neighbors, similarities, returned, offsets):  # type: ignore[no-untyped-def]
    """Write columns and unnormalised weights of all rows."""
    n, k = neighbors.shape
    columns = np.empty(offsets[n], dtype=np.int32)
    weights = np.empty(offsets[n], dtype=np.float32)
    next_free = offsets[:n].copy()
    for i in range(n):
        columns[next_free[i]] = i
        weights[next_free[i]] = 1.0
        next_free[i] += 1
        for slot in range(k):
            j = neighbors[i, slot]
            if j >= 0 and similarities[i, slot] > 0:
                columns[next_free[i]] = j
                weights[next_free[i]] = max(similarities[i, slot], returned[i, slot])
                next_free[i] += 1
    for i in range(n):
        for slot in range(k):
            j = neighbors[i, slot]
            if j >= 0 and similarities[i, slot] > 0 and returned[i, slot] == 0:
                columns[next_free[j]] = i
                weights[next_free[j]] = similarities[i, slot]
                next_free[j] += 1
    return columns, weights


@njit(cache=True, parallel=True)
def _normalise_rows(offsets, weights):  # type: ignore[no-untyped-def]
    """Divide every row by its sum, in place."""
    for i in prange(len(offsets) - 1):
        total = np.float32(0)
        for e in range(offsets[i], offsets[i + 1]):
            total += weights[e]
        for e in range(offsets[i], offsets[i + 1]):
            weights[e] /= total
