"""Lines: the products of each row with the runs of stored rows that it names, one behind the other.

In: stored rows in runs (the cells of a store, or the centres of groups), and rows that each name some of the runs. Out:
one flat array in which the products of a row are consecutive, so that its best are found in one go.

The pairs (row, run) are sorted by run, so that one product serves all rows that name a run. The shapes of the products
depend on the names alone.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .kernels import leaf
from .panels import PANEL_LANES, count_panels, multiply_panels, pack_panels
from .rowstore import copy_row, multiply_row
from .selection import collect_keys, unpack_row

_CHUNK_ROWS = 256  # rows multiplied at once
WORTH_PANELS = 8  # rows from which what they are multiplied with is packed


@njit(cache=True, nogil=True)
def invert_lists(lists, n_targets) -> tuple[NDArray[np.int64], NDArray[np.int32]]:  # type: ignore[no-untyped-def]
    """Return for every target the rows whose list names it, ascending, as starts (n_targets + 1,) and a flat array.

    Entries of -1 name nothing.
    """
    starts = np.zeros(n_targets + 1, dtype=np.int64)
    for row in range(len(lists)):
        for i in range(lists.shape[1]):
            if lists[row, i] >= 0:
                starts[lists[row, i] + 1] += 1
    for target in range(n_targets):
        starts[target + 1] += starts[target]
    free = starts[:-1].copy()
    namers = np.empty(starts[-1], dtype=np.int32)
    for row in range(len(lists)):
        for i in range(lists.shape[1]):
            target = lists[row, i]
            if target >= 0:
                namers[free[target]] = row
                free[target] += 1
    return starts, namers


@njit(cache=True, nogil=True)
def lay_out(names, starts) -> NDArray[np.int64]:  # type: ignore[no-untyped-def]
    """Return where the products of each row with each run it names end, int64 (n, p); row by row, run by run."""
    ends = np.empty(names.shape, dtype=np.int64)
    at = 0
    for i in range(len(names)):
        for j in range(names.shape[1]):
            run = names[i, j]
            if run >= 0:
                at += starts[run + 1] - starts[run]
            ends[i, j] = at
    return ends


@leaf
def find_line(ends, i) -> tuple[int, int]:  # type: ignore[no-untyped-def]
    """Return where the products of a row begin and end."""
    return ends[i - 1, -1] if i else 0, ends[i, -1]


@njit(cache=True, nogil=True)
def multiply_runs(stored, starts, rows, names, ends, lines) -> None:  # type: ignore[no-untyped-def]
    """Set the products of each row with the runs it names, run by run."""
    n_names = names.shape[1]
    firsts, pairs = invert_lists(np.ascontiguousarray(names).reshape(-1, 1), len(starts) - 1)
    most = count_panels(np.max(np.diff(starts)))
    room = np.empty((most, rows.shape[1], PANEL_LANES), dtype=np.float32)
    held = np.empty(_CHUNK_ROWS * most * PANEL_LANES, dtype=np.float32)
    for run in range(len(starts) - 1):
        low, high = starts[run], starts[run + 1]
        for begin in range(firsts[run], firsts[run + 1], _CHUNK_ROWS):
            here = pairs[begin : min(begin + _CHUNK_ROWS, firsts[run + 1])]
            panels = room[: count_panels(high - low)]
            products = held[: len(here) * PANEL_LANES * len(panels)].reshape(len(here), -1)
            multiply(rows, here // n_names, stored[low:high], panels, products)
            _put_in_lines(products, high - low, here, ends, lines)


@leaf
def _put_in_lines(products, n_members, here, ends, lines):  # type: ignore[no-untyped-def]
    """Copy the products of some pairs to where they belong."""
    n_names = ends.shape[1]
    for i in range(len(here)):
        stop = ends[here[i] // n_names, here[i] % n_names]
        copy_row(products[i], lines[stop - n_members : stop])


@leaf
def multiply(rows, some, stored, panels, products) -> None:  # type: ignore[no-untyped-def]
    """Set the products of some rows with stored ones; to pack these takes longer than a few rows take."""
    if len(some) >= WORTH_PANELS:
        pack_panels(stored, panels)
        multiply_panels(rows, some, panels, products)
    else:
        multiply_few(rows, some, stored, products)


@leaf
def multiply_few(rows, some, stored, products) -> None:  # type: ignore[no-untyped-def]
    """Set the products of a few of the rows with stored ones, one by one."""
    for j in range(len(stored)):
        for i in range(len(some)):
            products[i, j] = multiply_row(rows[some[i]], stored[j])


@leaf
def collect_members(line, names, starts, floor, keys) -> int:  # type: ignore[no-untyped-def]
    """Set the keys of those members of the named runs whose products reach a floor; return how many."""
    n_kept = collect_keys(line, floor, 0, keys, 0)  # by where they stand in the line, ascending
    at, begin = 0, 0
    for j in range(len(names)):
        if names[j] >= 0:
            low = starts[names[j]]
            end = begin + starts[names[j] + 1] - low
            while at < n_kept and unpack_row(keys[at]) < end:
                keys[at] -= np.uint64(low - begin)  # the id is in the lower half, inverted
                at += 1
            begin = end
    return n_kept
