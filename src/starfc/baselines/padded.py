"""Small graphs cut out of the kNN graph, padded to one size so that a batch of them is one product.

In: lists of faces, -1 where a list is shorter. Out: the row-normalised adjacency of each,  D^-1 (A + I),  A_pq the
larger weight of p -> q and q -> p in the kNN lists. Rows and columns of padding are 0.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange
from numpy.typing import NDArray


def build_adjacency(
    nodes: NDArray[np.int32], neighbors: NDArray[np.int32], weights: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Cut the graphs of the given faces out of the kNN graph.

    Parameters
    ----------
    nodes : int32 (b, m)
        Different faces of each graph, -1 for padding.
    neighbors : int32 (n, k)
    weights : float32 (n, k)
        Of every edge; those not above 0 are none.

    Returns
    -------
    float32 (b, m, m)

    Examples
    --------
    >>> lists = np.array([[1], [0], [0]], np.int32)
    >>> build_adjacency(np.array([[0, 1, -1]], np.int32), lists, np.ones((3, 1), np.float32))[0].tolist()
    [[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 0.0]]
    """
    return np.asarray(_cut_graphs(nodes, neighbors, weights))


def pad_lists(lists: list[NDArray[np.int32]], most: int) -> NDArray[np.int32]:
    """Stack lists of different lengths, cut at `most`, padded with -1, int32 (b, m).

    >>> pad_lists([np.array([4, 5]), np.array([6])], 9).tolist()
    [[4, 5], [6, -1]]
    """
    width = min(most, max(len(faces) for faces in lists))
    padded = np.full((len(lists), width), -1, dtype=np.int32)
    for row, faces in zip(padded, lists, strict=True):
        row[: min(width, len(faces))] = faces[:width]
    return padded


@njit(cache=True, nogil=True)
def find_place(ordered, face) -> int:  # type: ignore[no-untyped-def]
    """Return the place of a face in an ascending list, or -1."""
    low, high = 0, len(ordered)
    while low < high:
        middle = (low + high) // 2
        if ordered[middle] < face:
            low = middle + 1
        else:
            high = middle
    return low if low < len(ordered) and ordered[low] == face else -1


@njit(cache=True, nogil=True, parallel=True)
def _cut_graphs(nodes, neighbors, weights):  # type: ignore[no-untyped-def]
    """Fill and normalise the adjacency of every graph."""
    n_graphs, m = nodes.shape
    adjacency = np.zeros((n_graphs, m, m), dtype=np.float32)
    for g in prange(n_graphs):
        order = np.argsort(nodes[g])
        ordered = nodes[g][order]
        cut = adjacency[g]
        for p in range(m):
            face = nodes[g, p]
            if face < 0:
                continue
            cut[p, p] = 1.0
            for slot in range(neighbors.shape[1]):
                if neighbors[face, slot] < 0 or weights[face, slot] <= 0:
                    continue
                place = find_place(ordered, neighbors[face, slot])
                if place >= 0:
                    q = order[place]
                    cut[p, q] = max(cut[p, q], weights[face, slot])
                    cut[q, p] = max(cut[q, p], weights[face, slot])
        for p in range(m):
            total = cut[p].sum()
            if total > 0:
                cut[p] /= total
    return adjacency
