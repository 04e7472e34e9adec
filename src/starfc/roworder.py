"""Row order: rows that are each other's neighbours stand together, so that gathers of neighbours hit the cache.

In: KnnGraph. Out: a permutation of its rows. The kNN stage leaves one (rows by cell); a graph of another origin is
grouped here, in one sweep over the lists: a row joins the group that most of its neighbours are in, or starts one and
takes its ungrouped neighbours along. Only the speed of later stages depends on it.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .knn import KnnGraph

_SHARE_TO_JOIN = 0.15  # of the list; half of the lists' length is as good within the noise


def order_rows(graph: KnnGraph) -> NDArray[np.int32]:
    """Return the rows in an order in which neighbours stand near each other, int32 (n,).

    >>> lists = np.array([[2], [3], [0], [1]], np.int32)
    >>> order_rows(KnnGraph(lists, np.ones((4, 1), np.float32))).tolist()
    [0, 2, 1, 3]
    """
    if graph.order is not None:
        return np.ascontiguousarray(graph.order)
    return np.asarray(_group_rows(graph.neighbors, np.int64(_SHARE_TO_JOIN * graph.k)))


@njit(cache=True, nogil=True)
def _group_rows(neighbors, fewest):  # type: ignore[no-untyped-def]
    """Give every row a group and sort the rows by it, ties by id."""
    n = len(neighbors)
    group = np.full(n, -1, dtype=np.int32)
    n_groups = 0
    for i in range(n):
        if group[i] >= 0:
            continue
        joined = _find_majority(neighbors[i], group, fewest)
        if joined < 0:
            joined = n_groups
            n_groups += 1
        group[i] = joined
        for j in neighbors[i]:
            if j >= 0 and group[j] < 0:
                group[j] = joined
    return _sort_by_group(group, n_groups)


@njit(cache=True, nogil=True)
def _find_majority(members, group, fewest):  # type: ignore[no-untyped-def]
    """Return the group that wins the vote of the members (Boyer and Moore), -1 if `fewest` or fewer are in it."""
    candidate, votes = np.int32(-1), 0
    for j in members:
        if j < 0 or group[j] < 0:
            continue
        if votes == 0:
            candidate = group[j]
        votes += 1 if group[j] == candidate else -1
    count = 0
    for j in members:
        if j >= 0 and group[j] == candidate:
            count += 1
    return candidate if candidate >= 0 and count > fewest else np.int32(-1)


@njit(cache=True, nogil=True)
def _sort_by_group(group, n_groups):  # type: ignore[no-untyped-def]
    """Return the rows group by group."""
    starts = np.zeros(n_groups + 1, dtype=np.int64)
    for g in group:
        starts[g + 1] += 1
    starts = np.cumsum(starts)
    order = np.empty(len(group), dtype=np.int32)
    for i in range(len(group)):
        order[starts[group[i]]] = i
        starts[group[i]] += 1
    return order
