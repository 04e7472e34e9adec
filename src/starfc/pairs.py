"""Pairs: an edge that both of its ends list is judged once, from one of them, and both are told.

In: lists of neighbours, a level of every edge above which it is judged, and a rank of every face. Out: which edges a
row has to judge itself, and where the same edge stands in the other's list. What `relations.py` and `looks.py` say of
an edge is the same from either side, and three in four likely matches are in both lists, so this saves more than a
third of the work.

Of two ends the one of the higher rank judges; equals, the one of the higher number. The rank should be a property of
the faces: else their order in the collection would be seen in the roundings of the scores.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .facetable import find_place
from .kernels import leaf

# In place of a place: nobody judges the edge, the other end does, or it is in no other list.
NOBODYS, OTHERS, ALONE = -3, -2, -1


def divide_edges(
    neighbors: NDArray[np.int32], levels: NDArray[Any], least: float, *, ranks: NDArray[np.float32], rows: NDArray[Any]
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Find the edges that some rows judge themselves, and where the others' lists have them.

    Parameters
    ----------
    neighbors : int32 (n, k)
        -1 where there is none; no list has a face twice.
    levels : (n, k)
        Edges above `least` are judged. Where that is so in one of the two lists only, each stands alone.
    least : float
    ranks : float32 (n,)
    rows : int (r,)

    Returns
    -------
    own : int64 (m,)
        Positions in the flattened (r, k) block of the edges that these rows judge, ascending.
    places : int32 (r, k)
        Where the other's list has this row; or ALONE, OTHERS, NOBODYS.

    Examples
    --------
    >>> neighbors = np.array([[1, 2], [0, 2], [1, -1]], np.int32)
    >>> own, places = divide_edges(neighbors, np.ones((3, 2)), 0, ranks=np.ones(3, np.float32), rows=np.arange(3))
    >>> own.tolist(), places.tolist()
    ([1, 2, 4], [[-2, -1], [0, -2], [1, -3]])
    """
    places = np.full((len(rows), neighbors.shape[1]), NOBODYS, dtype=np.int32)
    own = np.empty(places.size, dtype=np.int64)
    n_own = _divide_rows(neighbors, levels, least, ranks, rows, own, places)
    return own[:n_own], places


def write_both(
    values: NDArray[Any],
    own: NDArray[np.int64],
    rest: NDArray[Any],
    *,
    neighbors: NDArray[np.int32],
    places: NDArray[np.int32],
    rows: NDArray[Any],
    out: NDArray[Any],
) -> None:
    """Write the values of own edges into both lists that have them, and of a block (r, k) what nobody judges.

    Each entry of `out` (n, k) is written by one row only, so threads may work on different rows, and the rows of a
    collection write all of it.

    >>> out, neighbors = np.zeros((2, 2)), np.array([[1, -1], [0, -1]], np.int32)
    >>> own, places = divide_edges(neighbors, np.ones((2, 2)), 0, ranks=np.ones(2, np.float32), rows=np.arange(2))
    >>> ours = {"neighbors": neighbors, "places": places, "rows": np.arange(2)}
    >>> write_both(np.array([0.5]), own, np.full((2, 2), 0.1), out=out, **ours)
    >>> out.tolist()
    [[0.5, 0.1], [0.5, 0.1]]
    """
    _write_own(values, own, neighbors, places, rows, out)
    _write_rest(rest, places, rows, out)


@leaf
def _divide_rows(neighbors, levels, least, ranks, rows, own, places):  # type: ignore[no-untyped-def]
    """Note where the edges above the least level stand in the others' lists, and which are own; return how many."""
    k, n_own = neighbors.shape[1], 0
    for at in range(len(rows)):
        i = rows[at]
        for slot in range(k):
            j = neighbors[i, slot]
            if j < 0 or levels[i, slot] <= least:
                continue
            place = find_place(neighbors[j], i)
            if place == k or levels[j, place] <= least:
                places[at, slot] = ALONE
            elif ranks[i] > ranks[j] or (ranks[i] == ranks[j] and i > j):
                places[at, slot] = place
            else:
                places[at, slot] = OTHERS
                continue
            own[n_own] = at * k + slot
            n_own += 1
    return n_own


@leaf
def _write_own(values, own, neighbors, places, rows, out):  # type: ignore[no-untyped-def]
    """Write each value here and, where the other's list has the edge, there."""
    k = neighbors.shape[1]
    for at in range(len(own)):
        row, slot = own[at] // k, own[at] % k
        i, place = rows[row], places[row, slot]
        out[i, slot] = values[at]
        if place != ALONE:
            out[neighbors[i, slot], place] = values[at]


@leaf
def _write_rest(rest, places, rows, out):  # type: ignore[no-untyped-def]
    """Write what nobody judges."""
    for row in range(len(rows)):
        for slot in range(places.shape[1]):
            if places[row, slot] == NOBODYS:
                out[rows[row], slot] = rest[row, slot]
