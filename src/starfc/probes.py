"""Probes: which other cells a row looks into, and how far down it takes to find the wanted share of neighbours.

In: a store in the order of its cells. Out: for every place its nearest other cells and how near they are; and for a
sample of queries, whose true neighbours are found exactly, how much of them has been found, or would be.

Ranking many cells for every row is what a join would spend most of its time on. So the rows of a cell share a short
list, of the cells around their own, whose centres are multiplied with all of them at once. That list leads a row
astray that is in the wrong cell, and its neighbours with it; so each row adds those cells that came next when it was
assigned. On a million faces with k = 30 that takes a quarter of the time of ranking the cells of each row's 32 best
groups.

Where there are so few cells that none came next, all may be ranked: at the least effort only for the weak rows, two in
five of each tile, those least similar to the centre of their own cell. For the others the cells around it will do: with
125,000 faces and k = 30 as much is found, with 200,000 and k = 80 a hundredth less, for a tenth to a seventh less of
all work.

How many cells a row has to look into differs a hundredfold: a clear face of a person with many faces has all its
neighbours in one or two cells, a poor one among strangers everywhere. So a row does not probe a fixed number of cells
but those that come near enough to what it has: whose centre is at most so much less similar than the worst entry of its
list. How much, the margin, is one number for all rows and is measured on the sample. On 200,000 faces with k = 80 that
took 2.6 times fewer products than a fixed number of probes for a recall of .95.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .cells import Cells
from .centres import RANKED_ROWS, Coarse, mark_weak, rank_cells, rank_line
from .exact import EQUAL_WITHIN, search_rows
from .kernels import leaf
from .neighborlists import Lists, find_place
from .prefetch import prefetch_row
from .rowstore import copy_row, copy_rows, multiply_into, multiply_row, read_range, take_rows
from .scratch import Scratch
from .selection import mark_others
from .steps import Steps, cut_evenly

_N_QUERIES = 1000  # rows whose true neighbours say what recall has been reached


@dataclass(frozen=True)
class Sample:
    """Queries with their true neighbours.

    Attributes
    ----------
    queries : int64 (q,)
        Places.
    neighbors : int32 (q, k)
        Places of their true neighbours.
    similarities : float32 (q, k)
        Theirs; whatever is as similar as the k-th counts as one.
    exchangeable : bool (q, k)
        Which of them are as similar as the k-th and as one that is not listed.
    """

    queries: NDArray[np.int64]
    neighbors: NDArray[np.int32]
    similarities: NDArray[np.float32]
    exchangeable: NDArray[np.bool_]

    def measure(self, lists: Lists, recall: float) -> tuple[bool, float]:
        """Say whether the lists of all places have the wanted recall for sure, and what the queries say it is."""
        return self.measure_own(Lists(lists.places[self.queries], lists.similarities[self.queries]), recall)

    def measure_own(self, lists: Lists, recall: float) -> tuple[bool, float]:
        """Say it of lists of the queries alone, (q, k)."""
        is_found = lists.similarities >= self.similarities[:, -1:] - EQUAL_WITHIN
        return _is_reached((is_found & (lists.places >= 0)).mean(axis=1), recall)


def draw_sample(store: NDArray[Any], places: NDArray[np.int32], k: int, seed: int, steps: Steps) -> Sample:
    """Find the true neighbours of a sample of rows, the same ones wherever they stand: `places` says it, int32 (n,)."""
    n = len(store)
    drawn = np.random.default_rng((seed, 1)).choice(n, min(n, _N_QUERIES), replace=False)
    queries = np.sort(places[drawn]).astype(np.int64)

    def read(start: int, stop: int) -> NDArray[np.float32]:
        steps.relieve()  # all rows are gone through
        return read_range(store, start, stop)

    # One more for the query itself, and one to see whether the k-th is tied with what follows.
    found, similarities = search_rows(take_rows(store, queries), n, k + 2, read)
    others = mark_others(found, queries)
    similarities = similarities[others].reshape(len(queries), k + 1)
    worst = similarities[:, k - 1 : k]
    tied = similarities[:, k:] >= worst - EQUAL_WITHIN
    exchangeable = tied & (similarities[:, :k] <= worst + EQUAL_WITHIN)
    neighbors = found[others].reshape(len(queries), k + 1)[:, :k]
    return Sample(queries, neighbors, similarities[:, :k], exchangeable)


class Reach(NamedTuple):
    """How far around its own cell a row ranks others."""

    n_groups: int  # groups in which the cells around one are looked for
    n_cells: int  # cells around one that its rows rank


class Probes(NamedTuple):
    """The nearest other cells of every place, best first; a named tuple, because kernels take it whole.

    Attributes
    ----------
    cells : int32 (n, r)
        Which, -1: none.
    scores : float32 (n, r)
        Similarity of the place and the centre.
    """

    cells: NDArray[np.int32]
    scores: NDArray[np.float32]


def rank_probes(
    store: NDArray[Any], cells: Cells, n_ranks: int, reach: Reach | None, scratch: Scratch, steps: Steps
) -> Probes:
    """Return the n_ranks best cells other than its own of every place, best first.

    Out of the cells around its own and those that came next when it was assigned, or, without `reach`, of all. Where
    none came next, weak rows rank all.
    """
    n = len(store)
    probes = Probes(scratch.array("cells", (n, n_ranks), np.int32), scratch.array("scores", (n, n_ranks), np.float32))
    owners, centres = cells.owners, cells.centres

    def rank_others(
        rows: NDArray[np.float32], places: NDArray[np.int64]
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        best, scores = rank_cells(rows, cells.coarse, n_ranks + 1, cells.n_cells)
        others = mark_others(best, owners[places])
        return best[others].reshape(-1, n_ranks), scores[others].reshape(-1, n_ranks)

    def rank_all(start: int, stop: int) -> None:
        found = rank_others(read_range(store, start, stop), np.arange(start, stop))
        probes.cells[start:stop], probes.scores[start:stop] = found

    def rank_around(start: int, stop: int) -> None:
        assert reach is not None
        first, last = int(owners[start]), int(owners[stop - 1]) + 1
        around = _find_around(centres, cells.coarse, first, last, reach)
        edges = np.clip(cells.starts[first : last + 1], start, stop) - start
        next_best = cells.next_best[cells.order[start:stop]]
        here = Probes(probes.cells[start:stop], probes.scores[start:stop])
        _rank_around(read_range(store, start, stop), edges, first, centres, around, next_best, cells.firsts, here)

    def rank_weak(start: int, stop: int) -> None:
        rank_around(start, stop)
        rows = read_range(store, start, stop)
        found = np.einsum("ij,ij->i", rows, centres[owners[start:stop]])
        weak = start + np.flatnonzero(mark_weak(found))
        probes.cells[weak], probes.scores[weak] = rank_others(rows[weak - start], weak)

    rank = rank_all if reach is None else rank_around if cells.next_best.shape[1] else rank_weak
    steps.run_tiles(scratch, cut_evenly(n, RANKED_ROWS), rank, "knn: probes")
    return probes


def _find_around(
    centres: NDArray[np.float32], coarse: Coarse, first: int, last: int, reach: Reach
) -> NDArray[np.int32]:
    """Return the other cells nearest to each of the cells first..last, best first, -1: none."""
    n_cells = min(reach.n_cells, len(centres) - 1)
    best, _ = rank_cells(centres[first:last], coarse, n_cells + 1, reach.n_groups)
    return best[mark_others(best, np.arange(first, last))].reshape(-1, n_cells)


@njit(cache=True, nogil=True)
def _rank_around(rows, edges, first, centres, around, next_best, firsts, probes):  # type: ignore[no-untyped-def]
    """Rank cells for the rows of the cells from `first` on, which begin at `edges`."""
    most = around.shape[1] + next_best.shape[1]
    gathered = np.empty((around.shape[1], centres.shape[1]), dtype=np.float32)
    one_run, run_starts = np.zeros(1, dtype=np.int32), np.zeros(2, dtype=np.int64)
    room = np.empty(most, dtype=np.float32), np.empty(most, dtype=np.uint64), one_run, run_starts
    listed = np.empty(most, dtype=np.int32)
    known = np.full(len(centres), -1, dtype=np.int32)  # in which cell's turn each was last listed
    held = np.empty(np.max(np.diff(edges)) * around.shape[1], dtype=np.float32)
    for cell in range(len(around)):
        members = rows[edges[cell] : edges[cell + 1]]
        n_around = np.sum(around[cell] >= 0)
        listed[:n_around] = around[cell, :n_around]
        known[listed[:n_around]] = cell
        known[first + cell] = cell
        copy_rows(centres, listed[:n_around], gathered)
        products = multiply_into(held, members, gathered[:n_around])
        here = Probes(probes.cells[edges[cell] : edges[cell + 1]], probes.scores[edges[cell] : edges[cell + 1]])
        further = next_best[edges[cell] : edges[cell + 1]]
        at = cell, edges[cell]
        _rank_members(at, members, products, centres, further, firsts, known, listed, room, here)


@leaf
def _rank_members(at, members, products, centres, further, firsts, known, listed, room, probes):  # type: ignore[no-untyped-def]
    """Rank cells for the members of one: those listed, of which there are products, and each one's further ones.

    `at` is the number of the cell and its first place in the tile, `room` for a row's products, their keys and one run.
    """
    (cell, first_place), (line, keys, one_run, run_starts), n_around = at, room, products.shape[1]
    guess = np.float32(-np.inf)
    for i in range(len(members)):
        copy_row(products[i], line[:n_around])
        n_listed = n_around
        for j in range(further.shape[1]):
            other = _pick_part(further[i, j], firsts, first_place + i)
            # Named twice where a row has looked into a group twice, by a rounding.
            if other >= 0 and known[other] != cell and find_place(listed[n_around:n_listed], other) < 0:
                prefetch_row(centres, other)
                listed[n_listed] = other
                n_listed += 1
        for j in range(n_around, n_listed):
            line[j] = multiply_row(members[i], centres[listed[j]])
        run_starts[1] = n_listed
        ranked, scores = probes.cells[i], probes.scores[i]
        ranked[:], scores[:] = -1, -np.inf
        guess = rank_line(line[:n_listed], one_run, run_starts, guess, keys, ranked, scores)
        for j in range(min(len(ranked), n_listed)):
            ranked[j] = listed[ranked[j]]


@leaf
def _pick_part(cell, firsts, place):  # type: ignore[no-untyped-def]
    """Return a cell that an old one was made into, by turns, or -1."""
    if cell < 0 or firsts[cell] == firsts[cell + 1]:
        return np.int64(-1)
    return firsts[cell] + place % (firsts[cell + 1] - firsts[cell])


def choose_margin(
    probes: Probes, owners: NDArray[np.int32], lists: Lists, floors: NDArray[np.float32], sample: Sample, recall: float
) -> float | None:
    """Return the largest margin with which a sample would find the wanted share of its true neighbours, if any does.

    Parameters
    ----------
    probes : Probes
        (n, r).
    owners : int32 (n,)
        Cell of each place.
    lists : Lists
        (n, k), what has been found so far.
    floors : float32 (n,)
        What a margin is counted from: cells of a score of at least floor + margin are probed.
    sample : Sample
        Queries and their true neighbours.
    recall : float
        Share wanted.
    """
    margins = _find_margins(probes, owners, lists, floors, sample)
    candidates = np.unique(margins[np.isfinite(margins)])
    # One that was chosen to suit a sample suits other rows less, so no smaller margin for chance will do.
    wanted = recall + _most_for_chance(recall)
    low, high = 0, len(candidates)  # all below `low` will do, none from `high` on
    while low < high:
        middle = (low + high) // 2
        if (margins >= candidates[middle]).mean() >= wanted:
            low = middle + 1
        else:
            high = middle
    return float(candidates[low - 1]) if low else None


def choose_margin_for(n_probes: int, probes: Probes, floors: NDArray[np.float32], sample: Sample) -> float:
    """Return the margin with which the queries of a sample probe so many cells on average."""
    margins = np.sort((probes.scores[sample.queries] - floors[sample.queries, None]).ravel())
    return float(margins[max(0, len(margins) - n_probes * len(sample.queries))])


def _find_margins(
    probes: Probes, owners: NDArray[np.int32], lists: Lists, floors: NDArray[np.float32], sample: Sample
) -> NDArray[np.float32]:
    """Return up to which margin each true neighbour is found, by the better of the two sides, float32 (q, k).

    inf: it has been found; -inf: no margin will do.
    """
    margins = np.empty(sample.neighbors.shape, dtype=np.float32)
    _set_margins(probes, owners, lists.places, floors, sample.queries, sample.neighbors, sample.similarities, margins)
    margins[sample.exchangeable] = np.inf
    return margins


@njit(cache=True, nogil=True)
def _set_margins(probes, owners, places, floors, queries, neighbors, similarities, margins):  # type: ignore[no-untyped-def]
    """Set the margins of all true neighbours."""
    for i in range(len(queries)):
        query = queries[i]
        for j in range(neighbors.shape[1]):
            other = neighbors[i, j]
            margins[i, j] = _find_score(probes, query, owners[other]) - floors[query]
            # Who finds the query does not list it if it has k better ones.
            if similarities[i, j] >= floors[other]:
                margins[i, j] = max(margins[i, j], _find_score(probes, other, owners[query]) - floors[other])
            if find_place(places[query], other) >= 0:
                margins[i, j] = np.inf


@njit(cache=True, nogil=True)
def _find_score(probes, place, cell):  # type: ignore[no-untyped-def]
    """Return the score that a place has given to a cell, -inf if it has not ranked it."""
    at = find_place(probes.cells[place], cell)
    return probes.scores[place, at] if at >= 0 else np.float32(-np.inf)


def _is_reached(per_query: NDArray[np.float64], recall: float) -> tuple[bool, float]:
    """Say whether a sample's mean recall is the wanted one with a margin of one standard error, and what it is."""
    mean = float(per_query.mean())
    margin = float(per_query.std()) / np.sqrt(len(per_query))
    return bool(mean - min(margin, _most_for_chance(recall)) >= recall), mean


def _most_for_chance(recall: float) -> float:
    """Return the largest margin for chance: where much is asked for, it would take too long to be as sure."""
    return (1 - recall) / 8
