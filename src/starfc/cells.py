"""Cells: a collection divided into runs of about 32 near rows.

In: Features. Out: Cells, an order of the rows in which every cell is a run of consecutive places, and the rows stored
in that order.

The centres are trained on a sample, whose weak rows look further too: with a million faces and k = 30, that brings the
recall of the near join from .877 to .896. The first round, from centres that are mere rows, needs only some of the
sample, and finds no less than with all of it (.897). Then every row goes to the best it finds, and cells that come out
too large (one person with half of all faces, thousands of copies) are split, because the work of a join grows with the
square of a cell.

Cells smaller than a person make a join precise: their centres are of one person and say who is near. Larger ones mix
people, and the centre of a mixture is near nobody: measured on 500,000 faces with k = 30, cells of 64 took four times
as many probes for the same recall. Still smaller ones are dearer to rank, and too small where many neighbours are
wanted.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .centres import (
    RANKED_ROWS,
    Coarse,
    Patience,
    assign_nearest,
    assign_rows,
    average_cells,
    average_rows,
    group_centres,
    sort_by_label,
    train_centres,
)
from .features import Features
from .rowstore import put_rows, read_range, store_type, take_rows
from .steps import Steps, cut_evenly
from .workers import start_workers

_CELL_ROWS = 32  # rows a cell has on average; twice as many where more neighbours than these are wanted
_LARGEST_CELL = 4  # times the average
_ROWS_PER_CENTRE = 8  # sample that the centres are trained on
_N_ROUNDS = 2
# Groups looked at for the cell of a row, and of one that is very far from all it has found, of the sample and in the
# end; or one in so many of all groups, if that is more. Where cells are few, weak rows rank them all later.
_SEEN_GROUPS = 5, 160
_SEEN_BY_WEAK_IN_TRAINING = 60, 27
_SEEN_BY_WEAK = 120, 14
_SEEN_OF_FEW = 8, 100
_FIRST_ROWS = 3  # one in so many of the sample are enough for the first round, where cells are many
FEW_CELLS = 4608  # up to so many cells, rows keep none that came next, and weak ones rank all (probes.py)
_MOST_PARTS = 64  # parts a large cell is split into at once
_CHUNK_ROWS = 4096  # rows assigned or stored by one task
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
        Their centres; `coarse.source` says whose.
    next_best : int32 (n, t)
        Which cells came next, in no order, when each row (not place) was assigned, -1: none; numbered as before some
        were split.
    firsts : int64 (m' + 1,)
        Which is the first cell made of each of those, so that those without rows were made into none.
    """

    order: NDArray[np.int32]
    starts: NDArray[np.int64]
    coarse: Coarse
    next_best: NDArray[np.int32]
    firsts: NDArray[np.int64]

    @property
    def n_cells(self) -> int:
        """Number of cells."""
        return len(self.starts) - 1

    @property
    def centres(self) -> NDArray[np.float32]:
        """Mean direction of each cell, float32 (m, d)."""
        centres = np.empty_like(self.coarse.centres)
        centres[self.coarse.source] = self.coarse.centres
        return centres

    @property
    def owners(self) -> NDArray[np.int32]:
        """Which cell each place belongs to, int32 (n,)."""
        return np.repeat(np.arange(self.n_cells, dtype=np.int32), np.diff(self.starts))

    @property
    def places(self) -> NDArray[np.int32]:
        """Where each row stands, int32 (n,)."""
        return find_places(self.order)


def find_places(order: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return where each row stands in an order.

    >>> find_places(np.array([2, 0, 1], dtype=np.int32))
    array([1, 2, 0], dtype=int32)
    """
    places = np.empty_like(order)
    places[order] = np.arange(len(places), dtype=np.int32)
    return places


def make_cells(features: Features, k: int, seed: int, steps: Steps) -> tuple[Cells, NDArray[Any]]:
    """Train centres on a sample, assign every row to one, split the cells that are too large, and store the rows."""
    n, dim = len(features), features.dim
    cell_rows = choose_cell_rows(k)
    coarse = _train_coarse(features, max(2, n // cell_rows), seed, steps)
    n_ranks = 1 if len(coarse.centres) <= FEW_CELLS else 1 + _choose_next(k)
    assigned = steps.open("labels")
    ranked = assigned.array("labels", (n, n_ranks), np.int32)
    patience = _make_patience(coarse, _SEEN_BY_WEAK)

    def assign(start: int, stop: int) -> None:
        assign_rows(features.read(start, stop), coarse, patience, ranked[start:stop])

    steps.run_tiles(assigned, cut_evenly(n, RANKED_ROWS), assign, "knn: cells")
    labels, firsts = _split_large(features, np.ascontiguousarray(ranked[:, 0]), k, seed, steps)
    order, starts = sort_by_label(labels)
    kept = steps.open("rows")
    store = kept.array("rows", (n, dim), store_type())
    places = find_places(order)

    def put(start: int, stop: int) -> None:
        put_rows(store, places[start:stop], features.read(start, stop))

    steps.run_tiles(kept, cut_evenly(n, _CHUNK_ROWS), put, "knn: rows")
    return Cells(order, starts, _find_coarse(store, starts, seed), ranked[:, 1:], firsts), store


def choose_cell_rows(k: int) -> int:
    """Return the average rows of a cell: a cell should hold a good part of a row's neighbours.

    >>> choose_cell_rows(30), choose_cell_rows(80)
    (32, 64)
    """
    return _CELL_ROWS if k < 1.5 * _CELL_ROWS else 2 * _CELL_ROWS


def _choose_next(k: int) -> int:
    """Return how many cells a row keeps that come next to its own.

    >>> _choose_next(30), _choose_next(80)
    (24, 64)
    """
    return max(24, 4 * k // 5)


def _make_patience(coarse: Coarse, seen_by_weak: tuple[int, int]) -> Patience:
    """Return how many groups rows look into: so many, or one in so many."""
    is_few = len(coarse.centres) <= FEW_CELLS
    numbers = (_SEEN_OF_FEW, _SEEN_OF_FEW) if is_few else (_SEEN_GROUPS, seen_by_weak)
    return Patience(*(max(fewest, len(coarse.groups) // one_in) for fewest, one_in in numbers))


def _train_coarse(features: Features, n_cells: int, seed: int, steps: Steps) -> Coarse:
    """Train the centres of cells on a sample of the rows."""
    n = len(features)
    step = steps.open("centres")
    centres = step.array("centres", (n_cells, features.dim), np.float32)

    rng = np.random.default_rng(seed)
    chosen = np.sort(rng.choice(n, min(n, _ROWS_PER_CENTRE * n_cells), replace=False))
    rows = step.array("sample", (len(chosen), features.dim), store_type())

    def take(start: int, stop: int) -> None:
        put_rows(rows, np.arange(start, stop), features.take(chosen[start:stop]))

    def train() -> None:
        found = take_rows(rows, np.sort(rng.choice(len(rows), n_cells, replace=False)))
        with start_workers() as pool:
            for number in range(_N_ROUNDS):
                coarse = group_centres(found, seed, pool)
                one_in = 1 if number or n_cells <= FEW_CELLS else _FIRST_ROWS
                some = np.ascontiguousarray(rows[::one_in])
                found = average_rows(some, _assign_sample(some, coarse, pool), coarse.centres)
        centres[:] = found

    steps.progress("knn: centres", 0, 1)
    step.start_journal(1)
    if not step.is_done(0):
        for start in range(0, len(chosen), _CHUNK_ROWS):
            take(start, min(start + _CHUNK_ROWS, len(chosen)))
            steps.relieve()
        train()  # in this thread: those of a pool do not know how many threads they may start
        step.mark(0)
    steps.progress("knn: centres", 1, 1)
    with start_workers() as pool:
        return group_centres(np.array(centres), seed, pool)


def _assign_sample(rows: NDArray[Any], coarse: Coarse, pool: Executor) -> NDArray[np.int32]:
    """Return the cell of each row of a sample."""
    ranked = np.empty((len(rows), 1), dtype=np.int32)
    patience = _make_patience(coarse, _SEEN_BY_WEAK_IN_TRAINING)

    def assign(start: int) -> None:
        stop = min(start + _CHUNK_ROWS, len(rows))
        assign_rows(read_range(rows, start, stop), coarse, patience, ranked[start:stop])

    list(pool.map(assign, range(0, len(rows), _CHUNK_ROWS)))
    return ranked[:, 0]


def _find_coarse(store: NDArray[Any], starts: NDArray[np.int64], seed: int) -> Coarse:
    """Average the rows of every cell, and group the centres."""
    n_cells = len(starts) - 1
    centres = np.zeros((n_cells, store.shape[1]), dtype=np.float32)

    def average(at: int) -> None:
        average_cells(store, starts, at, min(at + _AVERAGED_CELLS, n_cells), centres)

    with start_workers() as pool:
        list(pool.map(average, range(0, n_cells, _AVERAGED_CELLS)))
        return group_centres(centres, seed, pool)


def _split_large(
    features: Features, labels: NDArray[np.int32], k: int, seed: int, steps: Steps
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Split every cell of too many rows, and number the cells without gaps, those of a split one behind the other.

    Returns the new labels, and the first new cell of each old one.
    """
    order, starts = sort_by_label(labels)
    sizes = np.diff(starts)
    large = np.flatnonzero(sizes > _LARGEST_CELL * choose_cell_rows(k))
    n_parts = np.minimum(sizes, 1)
    part_of = np.zeros(len(labels), dtype=np.int32)

    def split(cell: int) -> None:
        members = order[starts[cell] : starts[cell + 1]]
        parts = _split_members(features, members, k, (seed, 4, cell))
        part_of[members], n_parts[cell] = parts, parts.max() + 1
        steps.relieve()

    with start_workers() as pool:
        list(pool.map(split, large.tolist()))
    firsts = np.concatenate(([0], np.cumsum(n_parts)))
    return (firsts[labels] + part_of).astype(np.int32), firsts


def _split_members(features: Features, members: NDArray[np.int32], k: int, seed: tuple[int, ...]) -> NDArray[np.int32]:
    """Split rows into numbered cells, recursively; those that k-means cannot tell apart are dealt out in order.

    Copies are dealt in cells of no more than k, so that each has to look for others elsewhere, all in the same cells: a
    cell of more would be an island in the graph.
    """
    n, cell_rows = len(members), choose_cell_rows(k)
    if n <= _LARGEST_CELL * cell_rows:
        return np.zeros(n, dtype=np.int32)
    n_parts = min(-(-n // cell_rows), _MOST_PARTS)
    sample = members[:: -(-n // _CHUNK_ROWS)]  # a cell may hold half of all rows: never all of them in memory
    centres = train_centres(features.take(sample), min(n_parts, len(sample)), seed, n_rounds=4)
    chunks = (features.take(members[start : start + _CHUNK_ROWS]) for start in range(0, n, _CHUNK_ROWS))
    labels = np.concatenate([assign_nearest(rows, centres) for rows in chunks])
    if np.bincount(labels).max() > 0.9 * n:
        return (np.arange(n) // min(cell_rows, k)).astype(np.int32)
    parts = [np.flatnonzero(labels == part) for part in range(len(centres))]
    cells = (_split_members(features, members[here], k, (*seed, part)) for part, here in enumerate(parts))
    return _number_cells(n, zip(parts, cells, strict=True))


def _number_cells(n: int, parts: Iterable[tuple[NDArray[Any], NDArray[np.int32]]]) -> NDArray[np.int32]:
    """Return the cell of each of n rows, counted through all parts; a part is its rows and their cells from 0."""
    labels = np.empty(n, dtype=np.int32)
    n_cells = 0
    for members, local in parts:
        if len(members):
            labels[members] = local + n_cells
            n_cells += int(local.max()) + 1
    return labels
