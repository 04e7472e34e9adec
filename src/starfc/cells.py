"""Cells: a collection divided into runs of about 64 near rows.

In: a store of rows. Out: Cells, an order of the rows in which every cell is a run of consecutive places.

The centres are trained on a sample, every row goes to the best of them, and cells that come out too large (one person
with half of all faces, thousands of copies) are split, because the work of a join grows with the square of a cell.
Smaller cells would make a join more precise, and their centres more and dearer to find.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .centres import Coarse, assign_cells, assign_nearest, average_rows, group_centres, sort_by_label, train_centres
from .progress import Progress
from .rowstore import decode_row, take_rows

CELL_ROWS = 64  # rows a cell has on average
_LARGEST_CELL = 4 * CELL_ROWS
_ROWS_PER_CENTRE = 12  # sample that the centres are trained on
_N_ROUNDS = 3
_MOST_PARTS = 64  # parts a large cell is split into at once
_AVERAGED_CELLS = 64  # cells averaged by one task


@dataclass(frozen=True)
class Cells:
    """A division of n rows into m cells, each a run of consecutive places.

    Attributes
    ----------
    order : int32 (n,)
        Which row stands at each place.
    starts : int64 (m + 1,)
        First place of each cell.
    coarse : Coarse
        Their centres.
    """

    order: NDArray[np.int32]
    starts: NDArray[np.int64]
    coarse: Coarse

    @property
    def n_cells(self) -> int:
        """Number of cells."""
        return len(self.starts) - 1

    @property
    def owners(self) -> NDArray[np.int32]:
        """Which cell each place belongs to, int32 (n,)."""
        return np.repeat(np.arange(self.n_cells, dtype=np.int32), np.diff(self.starts))


def make_cells(store: NDArray[Any], seed: int, pool: Executor, progress: Progress) -> Cells:
    """Train centres on a sample, assign every row to one, and split the cells that are too large."""
    n = len(store)
    n_cells = max(2, n // CELL_ROWS)
    progress("knn: cells", 0, _N_ROUNDS + 2)
    sample = np.sort(np.random.default_rng(seed).choice(n, min(n, _ROWS_PER_CENTRE * n_cells), replace=False))
    rows = take_rows(store, sample)
    centres = rows[np.sort(np.random.default_rng((seed, 2)).choice(len(rows), n_cells, replace=False))]
    for done in range(1, _N_ROUNDS + 1):
        coarse = group_centres(centres, seed)
        centres = average_rows(rows, assign_cells(rows, coarse, pool), coarse.centres)
        progress("knn: cells", done, _N_ROUNDS + 2)
    labels = assign_cells(store, group_centres(centres, seed), pool)
    progress("knn: cells", _N_ROUNDS + 1, _N_ROUNDS + 2)
    cells = _settle_cells(store, _split_large(store, labels, seed, pool), seed, pool)
    progress("knn: cells", _N_ROUNDS + 2, _N_ROUNDS + 2)
    return cells


def _settle_cells(store: NDArray[Any], labels: NDArray[np.int32], seed: int, pool: Executor) -> Cells:
    """Renumber cells so that those of one group follow each other, and sort the rows by cell."""
    order, starts = sort_by_label(labels)
    n_cells = len(starts) - 1
    centres = np.zeros((n_cells, store.shape[1]), dtype=np.float32)

    def average(at: int) -> None:
        _average_cells(store, order, starts, at, min(at + _AVERAGED_CELLS, n_cells), centres)

    list(pool.map(average, range(0, n_cells, _AVERAGED_CELLS)))
    coarse = group_centres(centres, seed)
    renumbered = np.empty(n_cells, dtype=np.int32)
    renumbered[coarse.source] = np.arange(n_cells, dtype=np.int32)
    return Cells(*sort_by_label(renumbered[labels]), coarse)


@njit(cache=True, nogil=True)
def _average_cells(store, order, starts, first, last, centres):  # type: ignore[no-untyped-def]
    """Set the centres of cells first..last, zeros so far, to the directions of their sums."""
    row = np.empty(store.shape[1], dtype=np.float32)
    for cell in range(first, last):
        total = centres[cell]
        for place in range(starts[cell], starts[cell + 1]):
            decode_row(store[order[place]], row)
            for j in range(len(row)):
                total[j] += row[j]
        length = np.sqrt(np.sum(total * total))
        if length > 0:
            for j in range(len(row)):
                total[j] /= length


def _split_large(store: NDArray[Any], labels: NDArray[np.int32], seed: int, pool: Executor) -> NDArray[np.int32]:
    """Split every cell of too many rows, and number the cells without gaps."""
    order, starts = sort_by_label(labels)
    members = np.split(order, starts[1:-1])

    def split(part: int) -> NDArray[np.int32]:
        if len(members[part]) <= _LARGEST_CELL:
            return np.zeros(len(members[part]), dtype=np.int32)
        return _split_rows(take_rows(store, members[part]), (seed, 4, part))

    return _number_cells(len(labels), zip(members, pool.map(split, range(len(members))), strict=True))


def _split_rows(rows: NDArray[np.float32], seed: tuple[int, ...]) -> NDArray[np.int32]:
    """Split rows into numbered cells, recursively; those that k-means cannot tell apart are dealt out in order."""
    if len(rows) <= _LARGEST_CELL:
        return np.zeros(len(rows), dtype=np.int32)
    n_parts = min(-(-len(rows) // CELL_ROWS), _MOST_PARTS)
    labels = assign_nearest(rows, train_centres(rows, n_parts, seed, n_rounds=4))
    sizes = np.bincount(labels, minlength=n_parts)
    if sizes.max() > 0.9 * len(rows):
        return (np.arange(len(rows)) // CELL_ROWS).astype(np.int32)
    members = [np.flatnonzero(labels == part) for part in range(n_parts)]
    return _number_cells(
        len(rows), ((here, _split_rows(rows[here], (*seed, part))) for part, here in enumerate(members))
    )


def _number_cells(n: int, parts: Iterable[tuple[NDArray[Any], NDArray[np.int32]]]) -> NDArray[np.int32]:
    """Return the cell of each of n rows, counted through all parts; a part is its rows and their cells from 0."""
    labels = np.empty(n, dtype=np.int32)
    n_cells = 0
    for members, local in parts:
        if len(members):
            labels[members] = local + n_cells
            n_cells += int(local.max()) + 1
    return labels
