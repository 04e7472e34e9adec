"""Centres of cells: trained by spherical k-means, grouped, and ranked by how near a row they are.

In: unit rows. Out: centres in groups (Coarse), and for every row the numbers of its nearest cells.

With one centre per 64 rows, comparing n rows with all centres costs n^2. So the centres are themselves grouped by
k-means, into about the root of their number: a row is compared with the groups and then only with the centres of the
best ones, which costs n^1.5. A near cell in a far group is missed; how many groups are looked at is the trade-off, and
it is small for the one best cell and large for a ranking.
"""

from __future__ import annotations

from concurrent.futures import Executor
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .rowstore import CHUNK_ROWS, copy_rows
from .selection import keep_best, pack_key, push_line, push_rows, sort_best, start_selection, unpack_row

_FLAT_CELLS = 4096  # up to so many cells a row is ranked against all centres, beyond against those of the best groups
_ROUGH_GROUPS = 16  # groups looked at to find the one best cell
_N_GROUPS = 64  # groups looked at to rank cells
_RANK_ROWS = 2048  # rows ranked at once; more make the products with a group's few centres worthwhile
_CHUNK_CENTRES = 512  # centres multiplied at once


class Coarse(NamedTuple):
    """Centres of cells in groups of near ones; a named tuple, because kernels take it whole.

    Attributes
    ----------
    centres : float32 (m, d)
        Mean directions of the cells, group by group.
    source : int32 (m,)
        What number each of them had before they were grouped.
    groups : float32 (g, d)
        Mean directions of the groups.
    group_starts : int64 (g + 1,)
        First cell of each group.
    """

    centres: NDArray[np.float32]
    source: NDArray[np.int32]
    groups: NDArray[np.float32]
    group_starts: NDArray[np.int64]


# --- k-means ---------------------------------------------------------------------------------------------------------


def train_centres(
    rows: NDArray[np.float32], n_parts: int, seed: tuple[int, ...], *, n_rounds: int
) -> NDArray[np.float32]:
    """Return the unit centres of a few rounds of spherical k-means, started from random rows."""
    chosen = np.random.default_rng(seed).choice(len(rows), n_parts, replace=False)
    centres = rows[np.sort(chosen)]
    for _ in range(n_rounds):
        centres = average_rows(rows, assign_nearest(rows, centres), centres)
    return centres


@njit(cache=True, nogil=True)
def assign_nearest(rows, centres) -> NDArray[np.int32]:  # type: ignore[no-untyped-def]
    """Return the number of each row's best centre, the first of equals, int32 (n,)."""
    labels = np.empty(len(rows), dtype=np.int32)
    for start in range(0, len(rows), CHUNK_ROWS):
        scores = np.dot(rows[start : start + CHUNK_ROWS], centres.T)
        for i in range(len(scores)):
            labels[start + i] = np.argmax(scores[i])
    return labels


@njit(cache=True, nogil=True)
def average_rows(rows, labels, centres) -> NDArray[np.float32]:  # type: ignore[no-untyped-def]
    """Return the direction of the sum of the rows of each centre, or the centre where it has none."""
    averages: NDArray[np.float32] = centres.copy()
    sums = np.zeros_like(centres)
    for i in range(len(rows)):
        total = sums[labels[i]]
        for j in range(len(total)):
            total[j] += rows[i, j]
    for part in range(len(centres)):
        length = np.sqrt(np.sum(sums[part] * sums[part]))
        if length > 0:
            averages[part] = sums[part] / length
    return averages


# --- groups ----------------------------------------------------------------------------------------------------------


def group_centres(centres: NDArray[np.float32], seed: int) -> Coarse:
    """Group centres by k-means, groups side by side along their widest direction."""
    n_groups = max(1, min(len(centres), round(4.6 * np.sqrt(len(centres)))))
    groups = _sort_along_axis(train_centres(centres, n_groups, (seed, 3), n_rounds=3))
    used, labels = np.unique(assign_nearest(centres, groups), return_inverse=True)
    source, starts = sort_by_label(labels.astype(np.int32))
    return Coarse(centres[source], source, groups[used], starts)


def _sort_along_axis(centres: NDArray[np.float32]) -> NDArray[np.float32]:
    """Order centres along their widest direction, so that cells near in number are rather near in space."""
    spread = (centres - centres.mean(axis=0)).astype(np.float64)
    direction = np.ones(spread.shape[1])
    for _ in range(8):
        direction = spread.T @ (spread @ direction)
        direction /= np.linalg.norm(direction) or 1.0
    return centres[np.argsort(spread @ direction, kind="stable")]


def sort_by_label(labels: NDArray[np.int32]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Return the rows sorted by label, then number, and where each label starts.

    >>> sort_by_label(np.array([1, 0, 1], dtype=np.int32))
    (array([1, 0, 2], dtype=int32), array([0, 1, 3]))
    """
    order = np.argsort(labels, kind="stable").astype(np.int32)
    return order, np.concatenate(([0], np.cumsum(np.bincount(labels))))


# --- ranks -----------------------------------------------------------------------------------------------------------


def assign_cells(store: NDArray[Any], coarse: Coarse, pool: Executor) -> NDArray[np.int32]:
    """Return the best cell of every row of a store, out of those in its few best groups."""
    return _rank_in_best_groups(store, np.arange(len(store), dtype=np.int32), coarse, 1, _ROUGH_GROUPS, pool).ravel()


def rank_cells(
    store: NDArray[Any], places: NDArray[np.int32], coarse: Coarse, n_ranks: int, pool: Executor
) -> NDArray[np.int32]:
    """Return the n_ranks best cells of the rows at the given places, best first; -1 where a row saw fewer."""
    n_groups = len(coarse.groups) if len(coarse.centres) <= _FLAT_CELLS else _N_GROUPS
    return _rank_in_best_groups(store, places, coarse, n_ranks, n_groups, pool)


def _rank_in_best_groups(
    store: NDArray[Any], places: NDArray[np.int32], coarse: Coarse, n_ranks: int, n_groups: int, pool: Executor
) -> NDArray[np.int32]:
    """Return the n_ranks best cells of the rows at the given places, out of those in the n_groups best groups."""
    ranked = np.empty((len(places), n_ranks), dtype=np.int32)
    n_all = len(coarse.groups)
    # A row must see enough cells to fill its list, however the groups are sized.
    seen_enough = n_groups * len(coarse.centres) >= 4 * n_ranks * n_all
    n_seen = min(n_groups, n_all) if seen_enough else n_all

    def rank(at: int) -> None:
        here = places[at : at + _RANK_ROWS]
        _rank_chunk(store, here, coarse, n_seen, start_selection(len(here), n_ranks), ranked[at : at + _RANK_ROWS])

    list(pool.map(rank, range(0, len(places), _RANK_ROWS)))
    return ranked


@njit(cache=True, nogil=True)
def _rank_chunk(store, places, coarse, n_seen, selection, ranked):  # type: ignore[no-untyped-def]
    """Rank cells for a chunk of rows: all of them, or those of the n_seen best groups."""
    rows = np.empty((len(places), store.shape[1]), dtype=np.float32)
    copy_rows(store, places, rows)
    if n_seen >= len(coarse.groups):
        _push_all_cells(selection, rows, coarse.centres)
    else:
        _push_cells_of_groups(selection, rows, coarse, _choose_groups(rows, coarse.groups, n_seen))
    for i in range(len(rows)):
        best = sort_best(selection, i)
        for j in range(len(best)):
            ranked[i, j] = unpack_row(best[j])
        ranked[i, len(best) :] = -1


@njit(cache=True, nogil=True)
def _push_all_cells(selection, rows, centres):  # type: ignore[no-untyped-def]
    """Offer all cells to each row."""
    for start in range(0, len(rows), CHUNK_ROWS):
        for first in range(0, len(centres), _CHUNK_CENTRES):
            scores = np.dot(rows[start : start + CHUNK_ROWS], centres[first : first + _CHUNK_CENTRES].T)
            push_rows(selection, scores, start, first)


@njit(cache=True, nogil=True)
def _choose_groups(rows, groups, n_seen):  # type: ignore[no-untyped-def]
    """Return the n_seen best groups of each row, unordered, int32 (n, n_seen)."""
    chosen = np.empty((len(rows), n_seen), dtype=np.int32)
    keys = np.empty(len(groups), dtype=np.uint64)
    for start in range(0, len(rows), CHUNK_ROWS):
        scores = np.dot(rows[start : start + CHUNK_ROWS], groups.T)
        for i in range(len(scores)):
            for j in range(len(groups)):
                keys[j] = pack_key(scores[i, j], j)
            keep_best(keys, len(groups), n_seen)
            for j in range(n_seen):
                chosen[start + i, j] = unpack_row(keys[j])
    return chosen


@njit(cache=True, nogil=True)
def _push_cells_of_groups(selection, rows, coarse, chosen):  # type: ignore[no-untyped-def]
    """Offer to each row the cells of its chosen groups, group by group, so that products are of many rows."""
    starts, choosers = invert_lists(chosen, len(coarse.groups))
    gathered = np.empty((CHUNK_ROWS, rows.shape[1]), dtype=np.float32)
    for group in range(len(coarse.groups)):
        first, last = coarse.group_starts[group], coarse.group_starts[group + 1]
        ids = np.arange(first, last)
        for start in range(starts[group], starts[group + 1], CHUNK_ROWS):
            here = choosers[start : min(start + CHUNK_ROWS, starts[group + 1])]
            for i in range(len(here)):
                gathered[i] = rows[here[i]]
            scores = np.dot(gathered[: len(here)], coarse.centres[first:last].T)
            for i in range(len(here)):
                push_line(selection, scores[i], ids, here[i], -1)


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
    starts = np.cumsum(starts)
    free = starts[:-1].copy()
    rows = np.empty(lists.size, dtype=np.int32)
    for row in range(len(lists)):
        for i in range(lists.shape[1]):
            target = lists[row, i]
            if target >= 0:
                rows[free[target]] = row
                free[target] += 1
    return starts, rows
