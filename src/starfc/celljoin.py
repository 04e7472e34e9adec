"""Cell join: every row is compared with the members of the cells it probes.

In: rows stored in cell order, the cells that each probes, and the lists it has so far. Out: lists with the best of
both.

The work is divided into blocks of consecutive places. Where there are no lists yet, all products of a row are laid out
one behind the other (lines.py), and its best are then taken from that line in one go, which is faster than to offer
them one by one. Where there are, hardly any product enters one: cell by cell they are compared with how the lists end,
and only those that reach that are looked at again. Nothing is laid out then, so that a block may be of many rows; that
makes the products with a cell larger, of which a block of few rows has many that are too small for a BLAS.

Blocks depend on nothing but n, hence the same bits whatever the threads and the memory; each is finished or not at all.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .cells import Cells
from .kernels import leaf
from .lines import collect_members, find_line, invert_lists, lay_out, multiply, multiply_runs
from .masks import MASK_LANES, find_lowest, mark_reaching
from .neighborlists import Lists, find_place, insert_place, open_lists
from .panels import PANEL_LANES, count_panels
from .rowstore import copy_rows, read_range, take_rows
from .scratch import Scratch
from .selection import pack_key, sharpen_floor, sort_keys, unpack_row, unpack_similarity
from .steps import Steps, cut_evenly
from .workers import get_buffer

_BLOCK_ROWS = 16384
_SPARSE_ROWS = 8 * _BLOCK_ROWS  # in a tile of which only some are joined, or all, with lists that are there
_N_TILES = 16  # into which few rows are divided, so that all threads have something to do
_PROBE_NUMBERS = 1 << 22  # probes of a tile, beyond which it has fewer rows: they are private memory of each thread
_SPAN_CELLS = 8192  # cells gone through before memory is let go of, where it is short
_CHUNK_ROWS = 256  # rows taken out and multiplied at once
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
    lists = open_lists(scratch, len(store), k)
    join_block = _make_join(store, cells, steps)
    offer_block = _make_offer(store, cells, steps)

    def join(start: int, stop: int) -> None:
        here = Lists(lists.places[start:stop], lists.similarities[start:stop])
        here.places[:], here.similarities[:] = -1, 0
        join_block(np.arange(start, stop), read_range(store, start, stop), choose(start, stop), here)

    def offer(start: int, stop: int) -> None:
        assert before is not None
        here = Lists(lists.places[start:stop], lists.similarities[start:stop])
        here.places[:], here.similarities[:] = before.places[start:stop], before.similarities[start:stop]
        offer_block(np.arange(start, stop), choose(start, stop), here)

    if before is None:
        steps.run_tiles(scratch, cut_evenly(len(store), _BLOCK_ROWS), join, "knn: join")
    else:
        n_probes = choose(0, 1).shape[1]
        steps.run_tiles(scratch, _cut_tiles(len(store), n_probes), offer, "knn: join")
    return lists


def join_some(
    store: NDArray[Any],
    cells: Cells,
    some: NDArray[np.int64],
    choose: Callable[[NDArray[np.float32]], NDArray[np.int32]],
    before: Lists,
    scratch: Scratch,
    steps: Steps,
) -> Lists:
    """Return lists in which those of some places have been joined with the cells they probe; others stay as they were.

    Parameters
    ----------
    store : (n, d)
        Rows in cell order.
    cells : Cells
        Of those rows.
    some : int64 (s,)
        Places, ascending.
    choose : callable
        ``choose(rows)`` gives the cells that these rows probe, none twice, int32 (len(rows), p), -1: none.
    before : Lists
        (n, k).
    scratch : Scratch
        Where the result is kept.
    steps : Steps
        Who does the work.
    """
    lists = open_lists(scratch, *before.places.shape)
    offer_block = _make_offer(store, cells, steps)
    n_probes = choose(take_rows(store, some[:1])).shape[1]

    def join(start: int, stop: int) -> None:
        lists.places[start:stop] = before.places[start:stop]
        lists.similarities[start:stop] = before.similarities[start:stop]
        here = some[np.searchsorted(some, start) : np.searchsorted(some, stop)]
        if len(here) == 0:
            return
        probes = np.empty((len(here), n_probes), dtype=np.int32)
        for at in range(0, len(here), _BLOCK_ROWS):
            probes[at : at + _BLOCK_ROWS] = choose(take_rows(store, here[at : at + _BLOCK_ROWS]))
        taken = Lists(before.places[here], before.similarities[here])
        offer_block(here, probes, taken)
        lists.places[here], lists.similarities[here] = taken

    steps.run_tiles(scratch, _cut_tiles(len(store), n_probes), join, "knn: join")
    return lists


def _cut_tiles(n: int, n_probes: int) -> NDArray[np.int64]:
    """Return the edges of large tiles of n rows that each have so many probes.

    >>> [int(np.diff(_cut_tiles(5_000_000, n_probes)).max()) for n_probes in (27, 64, 512)]
    [131072, 65536, 16384]
    """
    most = min(_SPARSE_ROWS, -(-n // _N_TILES), _PROBE_NUMBERS // max(1, n_probes))
    return cut_evenly(n, max(min(_BLOCK_ROWS, _SPARSE_ROWS), most))


def _make_join(
    store: NDArray[Any], cells: Cells, steps: Steps
) -> Callable[[NDArray[np.int64], NDArray[np.float32], NDArray[np.int32], Lists], None]:
    """Return the function that joins places, of given rows and probes, and sets their lists."""
    places = cells.places
    sizes = np.diff(cells.starts, append=cells.starts[-1])  # 0 for the cell -1, which is none

    def join_block(here: NDArray[np.int64], rows: NDArray[np.float32], probes: NDArray[np.int32], lists: Lists) -> None:
        totals = sizes[probes].sum(axis=0)
        for columns in _cut_columns(totals):
            lines = get_buffer(int(totals[columns].sum()))
            some = np.ascontiguousarray(probes[:, columns])  # else the kernel is compiled for both layouts
            _join_block(store, cells.order, places, cells.starts, rows, some, here, lines, lists)
            steps.relieve()

    return join_block


def _make_offer(
    store: NDArray[Any], cells: Cells, steps: Steps
) -> Callable[[NDArray[np.int64], NDArray[np.int32], Lists], None]:
    """Return the function that offers to places, of given probes, the members of those, and improves their lists."""

    def offer_block(here: NDArray[np.int64], probes: NDArray[np.int32], lists: Lists) -> None:
        firsts, namers = invert_lists(probes, cells.n_cells)
        floors = np.where(lists.places[:, -1] >= 0, lists.similarities[:, -1], np.float32(-np.inf))
        for first in range(0, cells.n_cells, _SPAN_CELLS):
            span = first, min(first + _SPAN_CELLS, cells.n_cells)
            _offer_cells(store, cells.order, cells.starts, span, firsts, namers, here, floors, lists)
            steps.relieve()

    return offer_block


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
def _join_block(store, order, places, starts, rows, probes, here, lines, lists):  # type: ignore[no-untyped-def]
    """Join the places `here` with the cells they probe."""
    ends = lay_out(probes, starts)
    multiply_runs(store, starts, rows, probes, ends, lines)
    longest = 0
    for i in range(len(probes)):
        begin, end = find_line(ends, i)
        longest = max(longest, end - begin)
    keys = np.empty(longest + lists.places.shape[1], dtype=np.uint64)
    _merge_lines(order, places, starts, probes, here, ends, lines, keys, lists)


@leaf
def _merge_lines(order, places, starts, probes, here, ends, lines, keys, lists):  # type: ignore[no-untyped-def]
    """Merge the products of the places `here` into their lists."""
    guess = np.float32(-np.inf)
    for i in range(len(probes)):
        begin, end = find_line(ends, i)
        listed, similarities = lists.places[i], lists.similarities[i]
        place, line = here[i], lines[begin:end]
        guess = _merge_line(order, places, starts, probes[i], place, line, guess, keys, listed, similarities)


@leaf
def _merge_line(order, places, starts, probes, place, line, guess, keys, listed, similarities):  # type: ignore[no-untyped-def]
    """Merge the products of a place with the members of its cells into its list; return a guess for the next one.

    Which is where the end of this list was, before it was full.
    """
    k = len(listed)
    floor = similarities[-1]
    if listed[-1] < 0:
        guess = floor = sharpen_floor(line, k + 1, guess)  # one more, for the place itself may be among them
    n_met = collect_members(line, probes, starts, floor, keys)
    n_kept = 0
    for at in range(n_met):
        found = unpack_row(keys[at])
        if found != place and (listed[0] < 0 or find_place(listed, found) < 0):
            keys[n_kept] = pack_key(unpack_similarity(keys[at]), order[found])
            n_kept += 1
    if n_kept == 0:
        return guess
    for j in range(k):
        if listed[j] >= 0:
            keys[n_kept] = pack_key(similarities[j], order[listed[j]])
            n_kept += 1
    for j in range(sort_keys(keys, n_kept, k)):
        listed[j], similarities[j] = places[unpack_row(keys[j])], unpack_similarity(keys[j])
    return guess


@njit(cache=True, nogil=True)
def _offer_cells(store, order, starts, span, firsts, namers, here, floors, lists):  # type: ignore[no-untyped-def]
    """Offer the members of a span of cells to those of the places `here` that probe them, and improve their lists.

    `floors` is how the lists end, beside each other: most are not read, for nothing reaches that.
    """
    largest = 0
    for cell in range(span[0], span[1]):
        largest = max(largest, starts[cell + 1] - starts[cell])
    dim, most = store.shape[1], count_panels(largest)
    room = np.empty((most, dim, PANEL_LANES), dtype=np.float32)  # new room for each product would take longer
    held = np.empty(_CHUNK_ROWS * most * PANEL_LANES, dtype=np.float32)
    gathered, everyone = np.empty((_CHUNK_ROWS, dim), dtype=np.float32), np.arange(_CHUNK_ROWS)
    for cell in range(span[0], span[1]):
        low, high = members = starts[cell], starts[cell + 1]
        panels = room[: count_panels(high - low)]
        for begin in range(firsts[cell], firsts[cell + 1], _CHUNK_ROWS):
            some = namers[begin : min(begin + _CHUNK_ROWS, firsts[cell + 1])]
            copy_rows(store, here[some], gathered)
            products = held[: len(some) * PANEL_LANES * len(panels)].reshape(len(some), -1)
            multiply(gathered, everyone[: len(some)], store[low:high], panels, products)
            _offer_lines(order, here, members, products, floors, some, lists)


@leaf
def _offer_lines(order, here, members, products, floors, some, lists):  # type: ignore[no-untyped-def]
    """Offer the places from the first to the last of `members` to some of the places `here`."""
    low, high = members
    for i in range(len(some)):
        _offer_line(order, here[some[i]], low, products[i, : high - low], floors, some[i], lists)


@leaf
def _offer_line(order, place, low, line, floors, row, lists):  # type: ignore[no-untyped-def]
    """Put those places from `low` on into the list of a row that belong there and are not on it."""
    for begin in range(0, len(line), MASK_LANES):
        hits = mark_reaching(line, begin, floors[row])
        if hits == 0:
            continue
        listed, similarities = lists.places[row], lists.similarities[row]
        while hits:
            j = begin + find_lowest(hits)
            hits &= hits - np.uint64(1)
            # It may not reach the end of the list any more, which is noticed when it is put in.
            if low + j != place and find_place(listed, low + j) < 0:
                insert_place(order, listed, similarities, low + j, line[j])
        if listed[-1] >= 0:
            floors[row] = similarities[-1]
