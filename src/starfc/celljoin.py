"""Cell join: every row is compared with its own cell, the cells it probes, and the rows that probe its cell.

In: rows stored in cell order and their probes. Out: for every place the k best (place, similarity) pairs among them.

The work is divided into blocks of consecutive cells. A block holds the selections of its own rows only: products of its
rows with a probed cell are offered to both sides where that cell lies in the block too, and products with the rows that
probe it from outside are offered to its members. A pair whose rows lie in two blocks is so multiplied twice, which buys
that blocks are independent: no locks, no memory beyond a block, and each is finished or not at all. Blocks and the
shapes of their products depend on the cells alone, hence the same bits whatever the threads.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .cells import Cells
from .centres import invert_lists
from .rowstore import CHUNK_ROWS, copy_range, copy_rows, multiply_row
from .scratch import Scratch
from .selection import LANES, offer, push_line, raise_floors, sort_best, start_selection, unpack_row, unpack_similarity
from .steps import Steps

_BLOCK_ROWS = 4096  # rows of a block, up to a cell
_EARLY_PROBES = 3  # that are followed first
_WORTH_BLAS = 16  # rows from which a product is left to BLAS


class _Plan(NamedTuple):
    """What is compared with what; a named tuple, because kernels take it whole.

    Attributes
    ----------
    order, places : int32 (n,)
        Which row stands at each place, and where each row stands.
    starts : int64 (m + 1,)
        First place of each cell.
    owners : int32 (n,)
        Cell of each place.
    probes : int32 (n, p)
        Cells that each place probes, -1: none.
    prober_starts : int64 (m + 1,)
        Where in `probers` each cell begins.
    probers : int32
        Places that probe each cell, ascending.
    """

    order: NDArray[np.int32]
    places: NDArray[np.int32]
    starts: NDArray[np.int64]
    owners: NDArray[np.int32]
    probes: NDArray[np.int32]
    prober_starts: NDArray[np.int64]
    probers: NDArray[np.int32]


def join_cells(
    store: NDArray[Any], cells: Cells, probes: NDArray[np.int32], k: int, scratch: Scratch, steps: Steps
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Return the places and the similarities, (n, k) each, of the best that every place was compared with.

    -1 and 0 where there are fewer than k.
    """
    n = len(store)
    lists = scratch.array("lists", (n, k), np.int32)
    similarities = scratch.array("similarities", (n, k), np.float32)
    prober_starts, probers = invert_lists(probes, cells.n_cells)
    plan = _Plan(cells.order, cells.places, cells.starts, cells.owners, probes, prober_starts, probers)

    def join(start: int, stop: int) -> None:
        # The best cells of all rows come first: they raise the floors, and the others then have little to offer.
        is_late = np.arange(probes.shape[1]) >= _EARLY_PROBES
        here = probes[start:stop]
        targets = np.where(here < 0, -1, here + is_late * np.int32(cells.n_cells)).ravel()
        by_target = np.argsort(targets, kind="stable").astype(np.int32)
        _join_block(
            store, plan, start, stop, targets, by_target, start_selection(stop - start, k),
            lists[start:stop], similarities[start:stop],
        )  # fmt: skip

    steps.run_tiles(scratch, _cut_blocks(cells.starts), join, "knn: join")
    return lists, similarities


def _cut_blocks(starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the edges of blocks of whole cells.

    >>> _cut_blocks(np.array([0, 4000, 4090, 4100, 9000])).tolist()
    [0, 4100, 9000]
    """
    at = np.searchsorted(starts, np.arange(_BLOCK_ROWS, starts[-1], _BLOCK_ROWS))
    return np.unique(np.concatenate(([0], starts[at], [starts[-1]])))


@njit(cache=True, nogil=True)
def _join_block(store, plan, start, stop, targets, by_target, selection, lists, similarities):  # type: ignore[no-untyped-def]
    """Join the places start..stop, whole cells, and write their lists."""
    rows = np.empty((stop - start, store.shape[1]), dtype=np.float32)
    copy_range(store, start, rows)
    first, last = plan.owners[start], plan.owners[stop - 1] + 1
    for cell in range(first, last):
        begin, end = plan.starts[cell], plan.starts[cell + 1]
        _join_own(rows[begin - start : end - start], plan.order[begin:end], begin - start, selection)
    raise_floors(selection)
    _join_probed(store, plan, start, stop, rows, targets, by_target, selection)
    raise_floors(selection)
    for cell in range(first, last):
        _join_probers(store, plan, start, stop, cell, rows, selection)
    for i in range(stop - start):
        best = sort_best(selection, i)
        for j in range(len(best)):
            lists[i, j] = plan.places[unpack_row(best[j])]
            similarities[i, j] = unpack_similarity(best[j])
        lists[i, len(best) :] = -1
        similarities[i, len(best) :] = 0


@njit(cache=True, nogil=True)
def _join_own(members, ids, at, selection):  # type: ignore[no-untyped-def]
    """Join the members of a cell, whose selections begin at `at`, with each other; a large cell in chunks."""
    for begin in range(0, len(members), CHUNK_ROWS):
        scores = np.dot(members[begin : begin + CHUNK_ROWS], members.T)
        for i in range(len(scores)):
            push_line(selection, scores[i], ids, at + begin + i, begin + i)


@njit(cache=True, nogil=True)
def _join_probed(store, plan, start, stop, rows, targets, by_target, selection):  # type: ignore[no-untyped-def]
    """Join the rows of a block with the cells they probe, cell by cell."""
    n_probes, n_cells = plan.probes.shape[1], len(plan.starts) - 1
    late = False
    gathered = np.empty((CHUNK_ROWS, rows.shape[1]), dtype=np.float32)
    begin = np.searchsorted(targets[by_target], 0)  # behind those that name no cell
    while begin < len(targets):
        target = targets[by_target[begin]]
        cell = target % n_cells
        if target >= n_cells and not late:
            raise_floors(selection)
            late = True
        end = begin
        while end < len(targets) and end - begin < CHUNK_ROWS and targets[by_target[end]] == target:
            gathered[end - begin] = rows[by_target[end] // n_probes]
            end += 1
        low, high = plan.starts[cell], plan.starts[cell + 1]
        inside = start <= low < stop
        scores = _multiply(gathered[: end - begin], store[low:high])
        for i in range(end - begin):
            row = by_target[begin + i] // n_probes
            push_line(selection, scores[i], plan.order[low:high], row, -1)
            if inside:
                _push_members(selection, scores[i], start + row, low, low - start, plan)
        begin = end


@njit(cache=True, nogil=True)
def _multiply(rows, stored):  # type: ignore[no-untyped-def]
    """Return the products of rows with stored ones; a BLAS takes longer to begin than a few rows take."""
    if len(rows) >= _WORTH_BLAS:
        members = np.empty(stored.shape, dtype=np.float32)
        copy_range(stored, 0, members)
        return np.dot(rows, members.T)
    scores = np.empty((len(rows), len(stored)), dtype=np.float32)
    for j in range(len(stored)):
        for i in range(len(rows)):
            scores[i, j] = multiply_row(rows[i], stored[j])
    return scores


@njit(cache=True, nogil=True)
def _join_probers(store, plan, start, stop, cell, rows, selection):  # type: ignore[no-untyped-def]
    """Join the members of a cell with the rows outside of the block that probe it."""
    low, high = plan.starts[cell], plan.starts[cell + 1]
    probers = plan.probers[plan.prober_starts[cell] : plan.prober_starts[cell + 1]]
    before, after = np.searchsorted(probers, start), np.searchsorted(probers, stop)
    outside = np.concatenate((probers[:before], probers[after:]))
    gathered = np.empty((min(CHUNK_ROWS, len(outside)), rows.shape[1]), dtype=np.float32)
    members = rows[low - start : high - start]
    for begin in range(0, len(outside), CHUNK_ROWS):
        here = outside[begin : begin + CHUNK_ROWS]
        copy_rows(store, here, gathered[: len(here)])
        scores = np.dot(gathered[: len(here)], members.T)
        for i in range(len(here)):
            _push_members(selection, scores[i], here[i], low, low - start, plan)


@njit(cache=True, nogil=True)
def _push_members(selection, line, prober, low, at, plan):  # type: ignore[no-untyped-def]
    """Offer a prober to the members of a cell, but not to those that probe the prober's cell and so see it anyway."""
    floors = selection.floors
    for begin in range(0, len(line), LANES):
        end = min(begin + LANES, len(line))
        n_hits = 0
        for j in range(begin, end):
            n_hits += line[j] >= floors[at + j]
        if n_hits == 0:
            continue
        source = plan.owners[prober]
        for j in range(begin, end):
            if line[j] >= floors[at + j] and not _names(plan.probes[low + j], source):
                offer(selection, at + j, line[j], plan.order[prober])


@njit(cache=True, nogil=True)
def _names(probes, cell):  # type: ignore[no-untyped-def]
    """Tell whether a list of probes names a cell."""
    n_equal = 0
    for i in range(len(probes)):
        n_equal += probes[i] == cell
    return n_equal > 0
