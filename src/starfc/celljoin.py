"""Cell join: neighbours are looked for only in the cells that a row lies near.

In: Features. Out: for every row the k best (similarity, id) pairs among the rows that were compared.

1. The rows are divided into cells of about 64 (cells.py), found by way of grouped centres (centres.py).
2. Every row ranks the other cells and probes the first p, as many as the wanted recall takes (probes.py).
3. For every cell ONE product of [rows of other cells that probe it] x [its members] is computed and offered to both
   sides, so that a pair is found if either side probes the other.

The shape of a product depends on the cells alone and a selection does not depend on the order of offers, hence the
same bits whatever the threads. Against all pairs it gives up a few neighbours, mostly the least similar ones, for a
cost that grows as about n^1.5.
"""

from __future__ import annotations

from concurrent.futures import Executor
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .cells import Cells, make_cells
from .centres import invert_lists
from .features import Features
from .probes import choose_n_probes, rank_probes
from .progress import Progress
from .rowstore import CHUNK_ROWS, copy_range, copy_rows, load_store
from .selection import finish_selection, push_columns, push_line, raise_floors, start_selection
from .spinlock import lock, unlock
from .workers import start_workers

_PHASES = (0, 3, 8, 1 << 30)  # ranks of the probes that are followed together
_TASK_CELLS = 16  # cells joined by one task


class _Plan(NamedTuple):
    """What is compared with what in one phase; a named tuple, because kernels take it whole.

    Attributes
    ----------
    order : int32 (n,)
        Which row stands at each place.
    starts : int64 (m + 1,)
        First place of each cell.
    owners : int32 (n,)
        Cell of each place.
    probes : int32 (n, p)
        Cells that each place probes, in whatever phase.
    prober_starts : int64 (m + 1,)
        Where in `probers` each cell begins.
    probers : int32
        Places that probe each cell in this phase, ascending.
    locks : int32 (m,)
        One for the selections of the members of each cell.
    """

    order: NDArray[np.int32]
    starts: NDArray[np.int64]
    owners: NDArray[np.int32]
    probes: NDArray[np.int32]
    prober_starts: NDArray[np.int64]
    probers: NDArray[np.int32]
    locks: NDArray[np.int32]


def join_cells(
    features: Features, k: int, *, recall: float, seed: int, progress: Progress
) -> tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.int32]]:
    """Find about `recall` of the k nearest rows of every row; return neighbours, similarities and the cell order."""
    with start_workers() as pool:
        store = load_store(features, pool, progress)
        cells = make_cells(store, seed, pool, progress)
        store = store[cells.order]
        n_probes = choose_n_probes(store, cells, k, recall, seed, pool)
        probes = rank_probes(store, cells, np.arange(len(store), dtype=np.int32), n_probes, pool)
        neighbors, similarities = _join_probes(store, cells, probes, k, pool, progress)
    return neighbors, similarities, cells.order


def _join_probes(
    store: NDArray[Any], cells: Cells, probes: NDArray[np.int32], k: int, pool: Executor, progress: Progress
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Compare every place with its cell and the cells it probes; return the k best of each row, in row order."""
    m = cells.n_cells
    selection = start_selection(len(store), k)
    owners, locks = cells.owners, np.zeros(m, dtype=np.int32)
    total = (len(_PHASES) - 1) * m
    progress("knn", 0, total)
    # The best cells of all rows come first: they raise the floors, and the others then have little to offer.
    for phase, (first, last) in enumerate(pairwise(_PHASES)):
        prober_starts, probers = invert_lists(np.ascontiguousarray(probes[:, first:last]), m)
        plan = _Plan(cells.order, cells.starts, owners, probes, prober_starts, probers, locks)

        def join(at: int, plan: _Plan = plan, with_own: bool = phase == 0) -> None:
            _join_range(store, plan, at, min(at + _TASK_CELLS, m), with_own, selection)

        for at, _ in enumerate(pool.map(join, range(0, m, _TASK_CELLS)), start=1):
            progress("knn", phase * m + min(m, at * _TASK_CELLS), total)
        raise_floors(selection)
    return finish_selection(selection, cells.order)


@njit(cache=True, nogil=True)
def _join_range(store, plan, first, last, with_own, selection):  # type: ignore[no-untyped-def]
    """Join the members of cells first..last with the rows that probe them, and with each other if asked."""
    gathered = np.empty((CHUNK_ROWS, store.shape[1]), dtype=np.float32)
    for cell in range(first, last):
        start, stop = plan.starts[cell], plan.starts[cell + 1]
        members = np.empty((stop - start, store.shape[1]), dtype=np.float32)
        copy_range(store, start, members)
        if with_own:
            scores = np.dot(members, members.T)
            lock(plan.locks, cell)
            for i in range(len(scores)):
                push_line(selection, scores[i], plan.order[start:stop], start + i, i)
            unlock(plan.locks, cell)
        for chunk in range(plan.prober_starts[cell], plan.prober_starts[cell + 1], CHUNK_ROWS):
            places = plan.probers[chunk : min(chunk + CHUNK_ROWS, plan.prober_starts[cell + 1])]
            copy_rows(store, places, gathered[: len(places)])
            scores = np.dot(gathered[: len(places)], members.T)
            _push_chunk(selection, scores, places, cell, plan)


@njit(cache=True, nogil=True)
def _push_chunk(selection, scores, places, cell, plan):  # type: ignore[no-untyped-def]
    """Offer the scores of probing places to themselves, then to the members, holding one lock at a time."""
    start, stop = plan.starts[cell], plan.starts[cell + 1]
    ids = plan.order[start:stop]
    masked = np.empty(stop - start, dtype=np.float32)
    begin = 0
    while begin < len(places):
        source = plan.owners[places[begin]]
        end = begin
        while end < len(places) and plan.owners[places[end]] == source:
            end += 1
        lock(plan.locks, source)
        for i in range(begin, end):
            push_line(selection, scores[i], ids, places[i], -1)
        unlock(plan.locks, source)
        lock(plan.locks, cell)
        _mask_floors(plan.probes, start, stop, source, selection.floors, masked)
        for i in range(begin, end):
            push_columns(selection, scores[i], plan.order[places[i]], start, masked)
        unlock(plan.locks, cell)
        begin = end


@njit(cache=True, nogil=True)
def _mask_floors(probes, start, stop, source, floors, masked):  # type: ignore[no-untyped-def]
    """Copy the floors of places start..stop, +inf for those that probe the cell `source` and so see its rows anyway."""
    for place in range(start, stop):
        n_equal = 0
        for i in range(probes.shape[1]):
            n_equal += probes[place, i] == source
        masked[place - start] = np.inf if n_equal else floors[place]
