"""Expansion: the neighbours of a row's neighbours are compared with the row.

In: a list of places and similarities for every place. Out: better ones. Rows of one person are near each other, so who
knows a few of them finds the others through them, wherever they are stored: this costs the same at any size of the
collection, and finds what a ranking of cells has missed.

Every place reads the lists as they were and writes its own new one, hence the same bits whatever the threads. In a
second round only paths with an edge that is new are followed: the others lead to nothing new.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .rowstore import copy_range, multiply_row
from .scratch import Scratch
from .steps import Steps, cut_evenly

_TILE_ROWS = 4096
_FOLLOWED = 40  # of a row's own neighbours, the nearest

Lists = tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.bool_]]


def expand_lists(store: NDArray[Any], order: NDArray[np.int32], lists: Lists, scratch: Scratch, steps: Steps) -> Lists:
    """Return for every place the best of its list and of the lists of those on it, and which are new, (n, k) each."""
    n, k = lists[0].shape
    places = scratch.array("lists", (n, k), np.int32)
    similarities = scratch.array("similarities", (n, k), np.float32)
    new = scratch.array("new", (n, k), np.bool_)

    def expand(start: int, stop: int) -> None:
        _expand_rows(
            store, order, *lists, start, min(k, _FOLLOWED),
            places[start:stop], similarities[start:stop], new[start:stop],
        )  # fmt: skip

    steps.run_tiles(scratch, cut_evenly(n, _TILE_ROWS), expand, "knn: expand")
    return places, similarities, new


@njit(cache=True, nogil=True)
def _expand_rows(store, order, lists, similarities, fresh, start, n_followed, out_lists, out_similarities, out_new):  # type: ignore[no-untyped-def]
    """Write the new lists of the places from `start` on."""
    k = lists.shape[1]
    n_slots = 1
    while n_slots < 2 * (n_followed + 1) * k + 2:
        n_slots *= 2
    seen, stamps = np.zeros(n_slots, dtype=np.int32), np.full(n_slots, -1, dtype=np.int32)
    row = np.empty((1, store.shape[1]), dtype=np.float32)
    for i in range(len(out_lists)):
        place = start + i
        copy_range(store, place, row)
        out_lists[i], out_similarities[i], out_new[i] = lists[place], similarities[place], False
        _is_first(seen, stamps, i, place)
        for j in range(k):
            _is_first(seen, stamps, i, lists[place, j])
        for j in range(n_followed):
            other = lists[place, j]
            if other < 0:
                break
            for rank in range(k):
                found = lists[other, rank]
                if found < 0:
                    break
                if (fresh[place, j] or fresh[other, rank]) and _is_first(seen, stamps, i, found):
                    similarity = multiply_row(row[0], store[found])
                    if out_lists[i, k - 1] < 0 or similarity >= out_similarities[i, k - 1]:
                        _insert(order, out_lists[i], out_similarities[i], out_new[i], found, similarity)


@njit(cache=True, nogil=True)
def _is_first(seen, stamps, stamp, place):  # type: ignore[no-untyped-def]
    """Enter a place into a hash table and tell whether it was not there; slots of another stamp are empty."""
    mask = len(seen) - 1
    slot = (np.int64(place) * np.int64(2654435761) >> np.int64(8)) & mask
    while stamps[slot] == stamp:
        if seen[slot] == place:
            return False
        slot = (slot + 1) & mask
    stamps[slot] = stamp
    seen[slot] = place
    return True


@njit(cache=True, nogil=True)
def _insert(order, places, similarities, new, place, similarity):  # type: ignore[no-untyped-def]
    """Put a place where it belongs in a list, best first, ties by the number of the row; the last one drops out."""
    at = len(places) - 1
    if places[at] >= 0 and _is_before(order, places[at], similarities[at], place, similarity):
        return
    while at > 0:
        if places[at - 1] >= 0 and _is_before(order, places[at - 1], similarities[at - 1], place, similarity):
            break
        places[at], similarities[at], new[at] = places[at - 1], similarities[at - 1], new[at - 1]
        at -= 1
    places[at], similarities[at], new[at] = place, similarity, True


@njit(cache=True, nogil=True)
def _is_before(order, place, similarity, other, other_similarity):  # type: ignore[no-untyped-def]
    """Tell whether the first of two is the better one."""
    if similarity != other_similarity:
        return similarity > other_similarity
    return order[place] < order[other]
