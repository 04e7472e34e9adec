"""Neighbour lists: for every place of a store the k best others it knows of.

In: places and similarities. Out: lists that are better, never worse. The entries of a list are ordered best first, ties
by the number of the row; -1 and 0 stand where there are fewer than k.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np
from numba import njit, prange
from numpy.typing import NDArray

from .kernels import leaf
from .rowstore import copy_row
from .scratch import Scratch
from .steps import Steps, cut_evenly

_TILE_ROWS = 4096


class Lists(NamedTuple):
    """The best others that each of n places knows of.

    Attributes
    ----------
    places : int32 (n, k)
        Which, -1: none.
    similarities : float32 (n, k)
        How similar.
    """

    places: NDArray[np.int32]
    similarities: NDArray[np.float32]

    def find_floors(self, steps: Steps) -> NDArray[np.float32]:
        """Return how similar a place must be to enter each list, -2 (anything is) while it has room, float32 (n,)."""
        floors = np.empty(len(self.places), dtype=np.float32)
        for start, stop in steps.pass_over(len(floors)):
            worst, is_full = self.similarities[start:stop, -1], self.places[start:stop, -1] >= 0
            floors[start:stop] = np.where(is_full, worst, np.float32(-2))
        return floors


def open_lists(scratch: Scratch, n: int, k: int) -> Lists:
    """Return the lists of a step, to be filled or as an earlier run has left them."""
    return Lists(scratch.array("places", (n, k), np.int32), scratch.array("similarities", (n, k), np.float32))


def mark_fresh(lists: Lists, before: Lists | None, scratch: Scratch, steps: Steps) -> NDArray[np.bool_]:
    """Mark the entries of lists that were not on them before, bool (n, k); all of them if there was nothing before."""
    fresh = scratch.array("fresh", lists.places.shape, np.bool_)
    for start, stop in steps.pass_over(len(fresh)):
        if before is None:
            fresh[start:stop] = True
        else:
            _compare_lists(lists.places[start:stop], before.places[start:stop], fresh[start:stop])
    return fresh


@njit(cache=True, parallel=True, nogil=True)
def _compare_lists(places, before, fresh):  # type: ignore[no-untyped-def]
    """Set where a list names a place that it did not name before."""
    for i in prange(len(places)):
        for j in range(places.shape[1]):
            fresh[i, j] = places[i, j] != before[i, j] and find_place(before[i], places[i, j]) < 0


def offer_back(lists: Lists, before: Lists | None, order: NDArray[np.int32], scratch: Scratch, steps: Steps) -> Lists:
    """Return lists to which everybody who lists a place has been offered too.

    Nearness is mutual, but finding is not: who is hard to find from one side has often been found from the other.

    Parameters
    ----------
    lists : Lists
        (n, k).
    before : Lists, optional
        (n, k), of which all have been offered and none was lost but to better ones: they are not offered again.
    order : int32 (n,)
        Which row stands at each place.
    scratch : Scratch
        Where the result is kept.
    steps : Steps
        Who does the work.

    Examples
    --------
    >>> places = np.array([[1, 2], [2, -1], [1, -1]], dtype=np.int32)
    >>> similarities = np.array([[0.5, 0.25], [0.75, 0], [0.75, 0]], dtype=np.float32)
    >>> steps = Steps()
    >>> offer_back(Lists(places, similarities), None, np.arange(3, dtype=np.int32), steps.open("back"), steps).places
    array([[1, 2], [2, 0], [1, 0]], dtype=int32)
    """
    n, k = lists.places.shape
    better = open_lists(scratch, n, k)
    n_parts = numba.get_num_threads()
    fresh = mark_fresh(lists, before, scratch, steps)
    counts = np.zeros(n, dtype=np.int64)
    for start, stop in steps.pass_over(n):
        _count_offers(lists.places[start:stop], fresh[start:stop], counts, n_parts)
    starts = np.append(0, np.cumsum(counts))
    namers = scratch.array("namers", (int(starts[-1]),), np.int32)
    offers = scratch.array("offers", (int(starts[-1]),), np.float32)
    free = starts[:-1].copy()
    for start, stop in steps.pass_over(n):
        here = Lists(lists.places[start:stop], lists.similarities[start:stop])
        _list_offers(here, fresh[start:stop], start, free, namers, offers, n_parts)

    def offer(start: int, stop: int) -> None:
        here = Lists(better.places[start:stop], better.similarities[start:stop])
        _offer_rows(order, lists, starts, namers, offers, start, here)

    steps.run_tiles(scratch, cut_evenly(n, _TILE_ROWS), offer, "knn: both ways")
    scratch.drop("namers", "offers", "fresh")
    return better


@njit(cache=True, parallel=True, nogil=True)
def _count_offers(places, fresh, counts, n_parts):  # type: ignore[no-untyped-def]
    """Add how many newly list each place, int64 (n,); each thread reads everything and counts its part of them."""
    for part in prange(n_parts):
        first, last = part * len(counts) // n_parts, (part + 1) * len(counts) // n_parts
        for place in range(len(places)):
            for i in range(places.shape[1]):
                if fresh[place, i] and first <= places[place, i] < last:
                    counts[places[place, i]] += 1


@njit(cache=True, parallel=True, nogil=True)
def _list_offers(lists, fresh, start, free, namers, offers, n_parts):  # type: ignore[no-untyped-def]
    """Add to those who newly list a place the ones from `start` on, and their similarities; `free` is where they go."""
    for part in prange(n_parts):
        first, last = part * len(free) // n_parts, (part + 1) * len(free) // n_parts
        for place in range(len(lists.places)):
            for i in range(lists.places.shape[1]):
                named = lists.places[place, i]
                if fresh[place, i] and first <= named < last:
                    namers[free[named]], offers[free[named]] = start + place, lists.similarities[place, i]
                    free[named] += 1


@leaf
def _offer_rows(order, lists, starts, namers, offers, start, better):  # type: ignore[no-untyped-def]
    """Write the lists of the places from `start` on."""
    for i in range(len(better.places)):
        place = start + i
        places, similarities = better.places[i], better.similarities[i]
        copy_row(lists.places[place], places)
        copy_row(lists.similarities[place], similarities)
        for at in range(starts[place], starts[place + 1]):
            if places[-1] >= 0 and offers[at] < similarities[-1]:
                continue
            if find_place(lists.places[place], namers[at]) < 0:
                insert_place(order, places, similarities, namers[at], offers[at])


@leaf
def find_place(places, wanted) -> int:  # type: ignore[no-untyped-def]
    """Return where a place stands in a list, -1 if it does not; without a branch per entry, which is faster."""
    found = -1
    for i in range(len(places)):
        found = i if places[i] == wanted else found
    return found


@leaf
def insert_place(order, places, similarities, place, similarity) -> int:  # type: ignore[no-untyped-def]
    """Put a place where it belongs in a list and return where that is, -1 if behind its end; the last one drops out."""
    at = len(places)
    while at > 0 and not (
        places[at - 1] >= 0 and _is_before(order, places[at - 1], similarities[at - 1], place, similarity)
    ):
        at -= 1
    if at == len(places):
        return -1
    for i in range(len(places) - 1, at, -1):
        places[i], similarities[i] = places[i - 1], similarities[i - 1]
    places[at], similarities[at] = place, similarity
    return at


@leaf
def _is_before(order, place, similarity, other, other_similarity):  # type: ignore[no-untyped-def]
    """Tell whether the first of two is the better one."""
    if similarity != other_similarity:
        return similarity > other_similarity
    return order[place] < order[other]
