"""Centres of cells: trained by spherical k-means, grouped, and ranked by how near a row they are.

In: unit rows. Out: centres in groups (Coarse), and for every row the numbers of its nearest cells.

With one centre per 32 rows, comparing n rows with all centres costs n^2. So the centres are themselves grouped by
k-means, into about the root of their number: a row is compared with the groups and then only with the centres of the
best ones, which costs n^1.5 with a small constant. A near cell in a far group is missed; how many groups are looked at
is the trade-off. It need not be many for most rows: what they miss, neighbours of neighbours mostly find
(expansion.py). The rows that are farthest from all they have found look into more, in three steps, and only those that
are still among the weakest take the next one. Who has found a near cell hardly finds a nearer one: on a million faces,
of the weak rows with a similarity of .6 to the best of 24 groups' cells one in twelve does, with .4 two in three do.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .kernels import leaf
from .lines import collect_members, find_line, invert_lists, lay_out, multiply_runs
from .masks import MASK_LANES, find_lowest, mark_reaching
from .panels import PANEL_LANES, count_panels, multiply_panels, pack_panels
from .rowstore import CHUNK_ROWS, copy_range, multiply_into
from .selection import (
    Selection,
    keep_best,
    offer_runs,
    raise_floors,
    sharpen_floor,
    sort_keys,
    start_selection,
    unpack_row,
    unpack_similarity,
)
from .workers import get_buffer

_OFFERED_ROWS = 64  # rows multiplied with the centres of a group at once
_WEAK_SHARE = 0.4  # of the rows are weak; a fifth that looks into twice as many groups costs more and finds less
# Shares of the rows, the weakest, that look on, and into which share of the groups that the weakest look into.
_LOOKS = (_WEAK_SHARE, 2 / 15), (0.3, 1 / 3), (0.15, 1.0)
_GROUPS_PER_ROOT = 4.6  # groups, per root of the number of centres
RANKED_ROWS = 16384  # rows ranked at once; many make the products with a group's few centres worthwhile
_RANKED_NUMBERS = 1 << 24  # products with centres that are held at once, if the groups are of one size


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


class Patience(NamedTuple):
    """How many groups a row looks into for its cells."""

    n_seen: int
    n_seen_by_weak: int  # by the rows whose best cell is the least similar


# --- k-means ---------------------------------------------------------------------------------------------------------


def train_centres(
    rows: NDArray[np.float32], n_parts: int, seed: tuple[int, ...], *, n_rounds: int, pool: Executor | None = None
) -> NDArray[np.float32]:
    """Return the unit centres of a few rounds of spherical k-means, started from random rows."""
    chosen = np.random.default_rng(seed).choice(len(rows), n_parts, replace=False)
    centres = rows[np.sort(chosen)]
    for _ in range(n_rounds):
        labels = assign_nearest(rows, centres) if pool is None else _assign_by_threads(rows, centres, pool)
        centres = average_rows(rows, labels, centres)
    return centres


def _assign_by_threads(rows: NDArray[np.float32], centres: NDArray[np.float32], pool: Executor) -> NDArray[np.int32]:
    """Return the number of each row's best centre, with the threads of a pool."""
    starts = range(0, len(rows), RANKED_ROWS)
    return np.concatenate(list(pool.map(lambda at: assign_nearest(rows[at : at + RANKED_ROWS], centres), starts)))


@njit(cache=True, nogil=True)
def assign_nearest(rows, centres) -> NDArray[np.int32]:  # type: ignore[no-untyped-def]
    """Return the number of each row's best centre, the first of equals, int32 (n,)."""
    labels = np.empty(len(rows), dtype=np.int32)
    panels = np.empty((count_panels(len(centres)), rows.shape[1], PANEL_LANES), dtype=np.float32)
    pack_panels(centres, panels)
    scores = np.empty((min(CHUNK_ROWS, len(rows)), PANEL_LANES * len(panels)), dtype=np.float32)
    for start in range(0, len(rows), CHUNK_ROWS):
        here = np.arange(start, min(start + CHUNK_ROWS, len(rows)))
        multiply_panels(rows, here, panels, scores)
        _find_largest(scores, len(centres), labels[start : start + CHUNK_ROWS])
    return labels


@leaf
def _find_largest(scores, n_centres, places):  # type: ignore[no-untyped-def]
    """Set where the largest of the first numbers of each row stands, the first of equals."""
    for i in range(len(places)):
        line, best = scores[i], 0
        for j in range(1, n_centres):
            if line[j] > line[best]:
                best = j
        places[i] = best


@njit(cache=True, nogil=True)
def average_rows(rows, labels, centres) -> NDArray[np.float32]:  # type: ignore[no-untyped-def]
    """Return the direction of the sum of the (stored) rows of each centre, or the centre where it has none."""
    averages: NDArray[np.float32] = centres.copy()
    sums = np.zeros_like(centres)
    row = np.empty((1, centres.shape[1]), dtype=np.float32)
    for i in range(len(rows)):
        copy_range(rows, i, row)
        total = sums[labels[i]]
        for j in range(len(total)):
            total[j] += row[0, j]
    for part in range(len(centres)):
        length = np.sqrt(np.sum(sums[part] * sums[part]))
        if length > 0:
            averages[part] = sums[part] / length
    return averages


# --- groups ----------------------------------------------------------------------------------------------------------


def group_centres(centres: NDArray[np.float32], seed: int, pool: Executor) -> Coarse:
    """Group centres by k-means, groups side by side along their widest direction."""
    n_groups = max(1, min(len(centres), round(_GROUPS_PER_ROOT * np.sqrt(len(centres)))))
    groups = _sort_along_axis(train_centres(centres, n_groups, (seed, 3), n_rounds=3, pool=pool))
    used, labels = np.unique(_assign_by_threads(centres, groups, pool), return_inverse=True)
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


def assign_rows(rows: NDArray[np.float32], coarse: Coarse, patience: Patience, ranked: NDArray[np.int32]) -> None:
    """Set the best cells of each row, the very best first, out of those in its best groups; -1 where it saw fewer.

    Rows that are far from all they find look on: they are the ones whose neighbours are missed most.
    """
    n_seen, n_seen_by_weak = (min(number, len(coarse.groups)) for number in patience)
    best = start_selection(len(rows), ranked.shape[1])
    for part in _cut_rows(len(rows), coarse, n_seen):
        chosen = _choose_groups(rows[part], coarse.groups, np.array([0, n_seen]))
        ends = lay_out(chosen, coarse.group_starts)
        _start_with_groups(rows[part], coarse, chosen, ends, get_buffer(int(ends[-1, -1])), best, part.start)
    if n_seen_by_weak > n_seen:
        _look_on(rows, coarse, n_seen, n_seen_by_weak, best)
    _unpack_ranks(best, ranked)


def _look_on(rows: NDArray[np.float32], coarse: Coarse, n_seen: int, n_seen_by_weak: int, best: Selection) -> None:
    """Let the weakest rows look into further groups, fewer rows each time: who has found a near cell by then stops."""
    edges = np.array([n_seen, *(max(n_seen, round(part * n_seen_by_weak)) for _, part in _LOOKS)])
    nearest = _find_nearest(best, np.arange(len(rows)))
    weak = np.flatnonzero(mark_weak(nearest, _LOOKS[0][0]))
    chosen = _choose_groups(rows[weak], coarse.groups, edges)
    for (share, _), (first, last) in zip(_LOOKS, pairwise(edges - n_seen), strict=True):
        still_weak = mark_weak(nearest, share)[weak]
        some = weak[still_weak]
        raise_floors(best, some)
        _offer_groups(rows, coarse, chosen[still_weak, first:last], some, best)
        nearest[some] = _find_nearest(best, some)


def mark_weak(found: NDArray[np.float32], share: float = _WEAK_SHARE) -> NDArray[np.bool_]:
    """Mark the rows whose best is the least similar, nearly two in five: they are to look further.

    >>> mark_weak(np.array([0.5, 0.2, 0.9, 0.1, 0.7, 0.6], dtype=np.float32))
    array([False,  True, False,  True, False, False])
    """
    return np.asarray(found < np.quantile(found, share, method="lower"))


@njit(cache=True, nogil=True)
def _start_with_groups(rows, coarse, chosen, ends, lines, best, first):  # type: ignore[no-untyped-def]
    """Keep the best cells of each row's chosen groups; the first of them is row `first` of the selection."""
    multiply_runs(coarse.centres, coarse.group_starts, rows, chosen, ends, lines)
    keys = np.empty(len(coarse.centres), dtype=np.uint64)
    _start_with_lines(lines, ends, chosen, coarse.group_starts, keys, best, first)


@leaf
def _start_with_lines(lines, ends, chosen, starts, keys, best, first):  # type: ignore[no-untyped-def]
    """Keep the best of each line; the first of them is row `first` of the selection."""
    guess = np.float32(-np.inf)
    for i in range(len(ends)):
        begin, end = find_line(ends, i)
        guess = sharpen_floor(lines[begin:end], best.k, guess)
        n_kept = collect_members(lines[begin:end], chosen[i], starts, guess, keys)
        if n_kept >= best.k:
            worst = keep_best(keys, n_kept, best.k)
            n_kept = best.k
            best.floor_keys[first + i], best.floors[first + i] = worst, unpack_similarity(worst)
        best.counts[first + i] = n_kept
        for j in range(n_kept):
            best.keys[first + i, j] = keys[j]


@njit(cache=True, nogil=True)
def _offer_groups(rows, coarse, chosen, some, best):  # type: ignore[no-untyped-def]
    """Offer the cells of the groups that some of the rows have chosen to them, group by group."""
    starts, choosers = invert_lists(chosen, len(coarse.groups))
    most = count_panels(np.max(np.diff(coarse.group_starts)))
    room = np.empty((most, rows.shape[1], PANEL_LANES), dtype=np.float32)
    held = np.empty(_OFFERED_ROWS * most * PANEL_LANES, dtype=np.float32)
    for group in range(len(coarse.groups)):
        first, last = coarse.group_starts[group], coarse.group_starts[group + 1]
        panels = room[: count_panels(last - first)]
        if starts[group] < starts[group + 1]:
            pack_panels(coarse.centres[first:last], panels)
        for start in range(starts[group], starts[group + 1], _OFFERED_ROWS):
            here = some[choosers[start : min(start + _OFFERED_ROWS, starts[group + 1])]]
            products = held[: len(here) * PANEL_LANES * len(panels)].reshape(len(here), -1)
            multiply_panels(rows, here, panels, products)
            offer_runs(best, here, products, first, last - first)


@njit(cache=True, nogil=True)
def _find_nearest(best, some):  # type: ignore[no-untyped-def]
    """Return the similarity of the best that each of some rows has been offered, float32 (s,)."""
    nearest = np.full(len(some), -np.inf, dtype=np.float32)
    for i in range(len(some)):
        if best.counts[some[i]]:
            nearest[i] = unpack_similarity(np.max(best.keys[some[i], : best.counts[some[i]]]))
    return nearest


@leaf
def _unpack_ranks(best, ranked):  # type: ignore[no-untyped-def]
    """Set what each row keeps, the best of it first."""
    for row in range(len(ranked)):
        keys, n_best = best.keys[row], min(best.counts[row], best.k)
        keep_best(keys, best.counts[row], n_best)
        keep_best(keys, n_best, 1)
        for j in range(n_best):
            ranked[row, j] = unpack_row(keys[j])
        ranked[row, n_best:] = -1


def rank_cells(
    rows: NDArray[np.float32], coarse: Coarse, n_ranks: int, n_seen: int
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Return the best cells of each row by their old numbers, best first, and their scores, (n, n_ranks) each.

    Only the cells in a row's n_seen best groups are looked at; -1 and -inf where a row saw fewer.
    """
    ranked = np.full((len(rows), n_ranks), -1, dtype=np.int32)
    scores = np.full((len(rows), n_ranks), -np.inf, dtype=np.float32)
    if n_seen >= len(coarse.groups):
        _rank_all_cells(rows, coarse, ranked, scores)
        return ranked, scores
    for part in _cut_rows(len(rows), coarse, n_seen):
        chosen = _choose_groups(rows[part], coarse.groups, np.array([0, n_seen]))
        ends = lay_out(chosen, coarse.group_starts)
        lines = get_buffer(int(ends[-1, -1]))
        _rank_in_groups(rows[part], coarse, chosen, ends, lines, ranked[part], scores[part])
    return ranked, scores


def _cut_rows(n: int, coarse: Coarse, n_seen: int) -> Iterator[slice]:
    """Yield runs of rows whose products with the cells of n_seen groups each are not too many at once."""
    n_at_once = max(1, _RANKED_NUMBERS * len(coarse.groups) // (n_seen * len(coarse.centres)))
    for start in range(0, n, n_at_once):
        yield slice(start, min(start + n_at_once, n))


@njit(cache=True, nogil=True)
def _rank_all_cells(rows, coarse, ranked, scores):  # type: ignore[no-untyped-def]
    """Rank all cells for each row."""
    everything = np.array([0, len(coarse.centres)])
    names = np.zeros(1, dtype=np.int32)
    keys = np.empty(len(coarse.centres), dtype=np.uint64)
    guess = np.float32(-np.inf)
    room = np.empty(min(CHUNK_ROWS, len(rows)) * len(coarse.centres), dtype=np.float32)
    for start in range(0, len(rows), CHUNK_ROWS):
        products = multiply_into(room, rows[start : start + CHUNK_ROWS], coarse.centres)
        some = slice(start, start + len(products))
        guess = _rank_lines(products, names, everything, guess, keys, ranked[some], scores[some])
    _number_as_before(coarse, ranked)


@leaf
def _rank_lines(products, names, starts, guess, keys, ranked, scores):  # type: ignore[no-untyped-def]
    """Rank the same cells for some rows; return a guess for the next one."""
    for i in range(len(products)):
        guess = rank_line(products[i], names, starts, guess, keys, ranked[i], scores[i])
    return guess


@njit(cache=True, nogil=True)
def _rank_in_groups(rows, coarse, chosen, ends, lines, ranked, scores):  # type: ignore[no-untyped-def]
    """Rank the cells of each row's chosen groups."""
    multiply_runs(coarse.centres, coarse.group_starts, rows, chosen, ends, lines)
    keys = np.empty(len(coarse.centres), dtype=np.uint64)
    _rank_own_lines(lines, ends, chosen, coarse.group_starts, keys, ranked, scores)
    _number_as_before(coarse, ranked)


@leaf
def _rank_own_lines(lines, ends, chosen, starts, keys, ranked, scores):  # type: ignore[no-untyped-def]
    """Rank those cells for each row that are in its line."""
    guess = np.float32(-np.inf)
    for i in range(len(ends)):
        begin, end = find_line(ends, i)
        guess = rank_line(lines[begin:end], chosen[i], starts, guess, keys, ranked[i], scores[i])


@leaf
def rank_line(line, names, starts, guess, keys, ranked, scores) -> np.float32:  # type: ignore[no-untyped-def]
    """Set the best members of the named runs, best first, and their scores; return a guess for the next line."""
    floor: np.float32 = sharpen_floor(line, len(ranked), guess)
    n_kept = sort_keys(keys, collect_members(line, names, starts, floor, keys), len(ranked))
    for j in range(n_kept):
        ranked[j], scores[j] = unpack_row(keys[j]), unpack_similarity(keys[j])
    return floor


@leaf
def _number_as_before(coarse, ranked):  # type: ignore[no-untyped-def]
    """Replace the numbers of centres by those that they had before they were grouped."""
    for i in range(len(ranked)):
        for j in range(ranked.shape[1]):
            if ranked[i, j] >= 0:
                ranked[i, j] = coarse.source[ranked[i, j]]


@njit(cache=True, nogil=True)
def _choose_groups(rows, groups, edges):  # type: ignore[no-untyped-def]
    """Return the groups of each row that rank from the first to the last edge, int32 (n, last - first).

    Those between two edges are in no order.
    """
    chosen = np.empty((len(rows), edges[-1] - edges[0]), dtype=np.int32)
    floors, free = np.full(len(edges), -np.inf, dtype=np.float32), np.empty(len(edges), dtype=np.int64)
    panels = np.empty((count_panels(len(groups)), rows.shape[1], PANEL_LANES), dtype=np.float32)
    pack_panels(groups, panels)
    products = np.empty((min(CHUNK_ROWS, len(rows)), PANEL_LANES * len(panels)), dtype=np.float32)
    for start in range(0, len(rows), CHUNK_ROWS):
        here = np.arange(start, min(start + CHUNK_ROWS, len(rows)))
        multiply_panels(rows, here, panels, products)
        _choose_between(products, len(groups), edges, floors, free, chosen[start : start + CHUNK_ROWS])
    return chosen


@leaf
def _choose_between(products, n_groups, edges, floors, free, chosen):  # type: ignore[no-untyped-def]
    """Set which products of each row rank from the first to the last edge.

    `floors` is what as many as each edge reach, of the row before, `free` room for where the next one goes.
    """
    last = len(edges) - 1
    for i in range(len(chosen)):
        line = products[i, :n_groups]
        for at in range(len(edges)):
            free[at] = edges[at - 1] if at else 0
            if edges[at]:
                floors[at] = sharpen_floor(line, edges[at], floors[at])
        for begin in range(0, n_groups, MASK_LANES):
            hits = mark_reaching(line, begin, floors[last])
            while hits:
                j = begin + find_lowest(hits)
                hits &= hits - np.uint64(1)
                at = 0
                while at <= last and (free[at] == edges[at] or line[j] < floors[at]):
                    at += 1  # what reaches a floor, but is one too many there by a rounding, goes behind the next edge
                if at <= last:
                    if at:
                        chosen[i, free[at] - edges[0]] = j
                    free[at] += 1


@njit(cache=True, nogil=True)
def average_cells(store, starts, first, last, centres) -> None:  # type: ignore[no-untyped-def]
    """Set the centres of cells first..last, runs of consecutive stored rows, to the directions of their sums."""
    for cell in range(first, last):
        rows = np.empty((starts[cell + 1] - starts[cell], store.shape[1]), dtype=np.float32)
        copy_range(store, starts[cell], rows)
        total = np.zeros(store.shape[1], dtype=np.float32)
        for i in range(len(rows)):
            for j in range(len(total)):
                total[j] += rows[i, j]
        length = np.sqrt(np.sum(total * total))
        centres[cell] = total / length if length > 0 else total
