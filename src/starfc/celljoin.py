"""Cell join: every row is compared with the members of the cells it probes.

In: rows stored in cell order, the cells that each probes, and the lists it has so far. Out: lists with the best of
both.

The work is divided into blocks of consecutive places. All products of a row are laid out one behind the other
(lines.py), and its best are then taken from that line in one go, which is faster than to offer them one by one. Blocks
depend on nothing but n, hence the same bits whatever the threads and the memory; each is finished or not at all.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .cells import Cells
from .centres import GUESSED_BELOW
from .lines import collect_members, find_line, lay_out, multiply_runs
from .neighborlists import Lists, find_place, open_lists
from .rowstore import read_range
from .scratch import Scratch
from .selection import find_floor, pack_key, sort_keys, unpack_row, unpack_similarity
from .steps import Steps, cut_evenly
from .workers import get_buffer

_BLOCK_ROWS = 16384
# Products held at once, up to a column of probes. They lead all over the store: of 12 million rows some GB of pages are
# touched for them, before any can be let go of.
_LINE_NUMBERS = 1 << 24

ChooseProbes = Callable[[int, int], NDArray[np.int32]]


def join_cells(
    store: NDArray[Any],
    cells: Cells,
    choose: ChooseProbes,
    before: Lists | None,
    k: int,
    scratch: Scratch,
    steps: Steps,
) -> Lists:
    """Return the k best of those that each place had before and of the members of the cells it probes.

    Parameters
    ----------
    store : (n, d)
        Rows in cell order.
    cells : Cells
        Of those rows.
    choose : callable
        ``choose(start, stop)`` gives the cells that these places probe, none twice, int32 (stop - start, p), -1: none.
    before : Lists, optional
        (n, k).
    k : int
        Length of the lists.
    scratch : Scratch
        Where the result is kept.
    steps : Steps
        Who does the work.
    """
    n = len(store)
    lists = open_lists(scratch, n, k)
    places = cells.places

    sizes = np.diff(cells.starts, append=cells.starts[-1])  # 0 for the cell -1, which is none

    def join(start: int, stop: int) -> None:
        here = Lists(lists.places[start:stop], lists.similarities[start:stop])
        here.places[:] = -1 if before is None else before.places[start:stop]
        here.similarities[:] = 0 if before is None else before.similarities[start:stop]
        rows, probes = read_range(store, start, stop), choose(start, stop)
        totals = sizes[probes].sum(axis=0)
        for columns in _cut_columns(totals):
            lines = get_buffer(int(totals[columns].sum()))
            some = np.ascontiguousarray(probes[:, columns])  # else the kernel is compiled for both layouts
            _join_block(store, cells.order, places, cells.starts, rows, some, start, lines, here)
            steps.relieve()

    steps.run_tiles(scratch, cut_evenly(n, _BLOCK_ROWS), join, "knn: join")
    return lists


def _cut_columns(totals: NDArray[np.int64]) -> list[slice]:
    """Divide columns of probes into runs that do not make more products than there is room for, if they are several.

    >>> _cut_columns(np.array([_LINE_NUMBERS // 2, _LINE_NUMBERS // 2, 7, 2 * _LINE_NUMBERS, 1]))
    [slice(0, 2, None), slice(2, 3, None), slice(3, 4, None), slice(4, 5, None)]
    """
    edges, held = [0], 0
    for column, total in enumerate(totals):
        if held and held + total > _LINE_NUMBERS:
            edges.append(column)
            held = 0
        held += int(total)
    return [slice(first, last) for first, last in pairwise([*edges, len(totals)]) if first < last]


@njit(cache=True, nogil=True)
def _join_block(store, order, places, starts, rows, probes, first_place, lines, lists):  # type: ignore[no-untyped-def]
    """Join the places from `first_place` on with the cells they probe."""
    ends = lay_out(probes, starts)
    multiply_runs(store, starts, rows, probes, ends, lines)
    longest = 0
    for i in range(len(probes)):
        begin, end = find_line(ends, i)
        longest = max(longest, end - begin)
    keys = np.empty(longest + lists.places.shape[1], dtype=np.uint64)
    guess = np.float32(-np.inf)
    for i in range(len(probes)):
        begin, end = find_line(ends, i)
        listed, similarities = lists.places[i], lists.similarities[i]
        place, line = first_place + i, lines[begin:end]
        _merge_line(order, places, starts, probes[i], place, line, guess, keys, listed, similarities)
        guess = similarities[-1] - GUESSED_BELOW


@njit(cache=True, nogil=True)
def _merge_line(order, places, starts, probes, place, line, guess, keys, listed, similarities):  # type: ignore[no-untyped-def]
    """Merge the products of a place with the members of its cells into its list; a good guess of its end saves time."""
    k = len(listed)
    n_met = collect_members(line, probes, starts, similarities[-1] if listed[-1] >= 0 else guess, keys)
    # One more than k, for the place itself may be among them.
    if listed[-1] < 0 and (n_met < k + 1 or n_met > 4 * k):
        n_met = collect_members(line, probes, starts, find_floor(line, k + 1), keys)
    n_kept = 0
    for at in range(n_met):
        found = unpack_row(keys[at])
        if found != place and (listed[0] < 0 or find_place(listed, found) < 0):
            keys[n_kept] = pack_key(unpack_similarity(keys[at]), order[found])
            n_kept += 1
    if n_kept == 0:
        return
    for j in range(k):
        if listed[j] >= 0:
            keys[n_kept] = pack_key(similarities[j], order[listed[j]])
            n_kept += 1
    for j in range(sort_keys(keys, n_kept, k)):
        listed[j], similarities[j] = places[unpack_row(keys[j])], unpack_similarity(keys[j])
