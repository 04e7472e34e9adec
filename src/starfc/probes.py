"""Probes: which other cells a row looks into, and how far down it takes to find the wanted share of neighbours.

In: a store in the order of its cells. Out: for every place its nearest other cells and how near they are; and for a
sample of queries, whose true neighbours are found exactly, how much of them has been found, or would be.

How many cells a row has to look into differs a hundredfold: a clear face of a person with many faces has all its
neighbours in one or two cells, a poor one among strangers everywhere. So a row does not probe a fixed number of cells
but those that come near enough to what it has: whose centre is at most so much less similar than the worst entry of its
list. How much, the margin, is one number for all rows and is measured on the sample. On 200,000 faces with k = 80 that
took 2.6 times fewer products than a fixed number of probes for a recall of .95.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .cells import Cells
from .centres import RANKED_ROWS, rank_cells
from .exact import EQUAL_WITHIN, search_rows
from .neighborlists import Lists, find_place
from .rowstore import read_range, take_rows
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
        """Say whether lists have the wanted recall for sure, and what the queries say it is."""
        is_found = lists.similarities[self.queries] >= self.similarities[:, -1:] - EQUAL_WITHIN
        return _is_reached((is_found & (lists.places[self.queries] >= 0)).mean(axis=1), recall)


def draw_sample(store: NDArray[Any], k: int, seed: int) -> Sample:
    """Find the true neighbours of a sample of places."""
    n = len(store)
    queries = np.sort(np.random.default_rng((seed, 1)).choice(n, min(n, _N_QUERIES), replace=False))
    # One more for the query itself, and one to see whether the k-th is tied with what follows.
    found, similarities = search_rows(take_rows(store, queries), n, k + 2, partial(read_range, store))
    others = mark_others(found, queries)
    similarities = similarities[others].reshape(len(queries), k + 1)
    worst = similarities[:, k - 1 : k]
    tied = similarities[:, k:] >= worst - EQUAL_WITHIN
    exchangeable = tied & (similarities[:, :k] <= worst + EQUAL_WITHIN)
    neighbors = found[others].reshape(len(queries), k + 1)[:, :k]
    return Sample(queries, neighbors, similarities[:, :k], exchangeable)


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


def rank_probes(store: NDArray[Any], cells: Cells, n_ranks: int, n_seen: int, scratch: Scratch, steps: Steps) -> Probes:
    """Return the n_ranks best cells other than its own of every place, best first, out of its n_seen best groups."""
    n = len(store)
    probes = Probes(scratch.array("cells", (n, n_ranks), np.int32), scratch.array("scores", (n, n_ranks), np.float32))
    owners = cells.owners

    def rank(start: int, stop: int) -> None:
        best, scores = rank_cells(read_range(store, start, stop), cells.coarse, n_ranks + 1, n_seen)
        others = mark_others(best, owners[start:stop])
        probes.cells[start:stop] = best[others].reshape(-1, n_ranks)
        probes.scores[start:stop] = scores[others].reshape(-1, n_ranks)

    steps.run_tiles(scratch, cut_evenly(n, RANKED_ROWS), rank, "knn: probes")
    return probes


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
    low, high = 0, len(candidates)  # all below `low` will do, none from `high` on
    while low < high:
        middle = (low + high) // 2
        if _is_reached((margins >= candidates[middle]).mean(axis=1), recall)[0]:
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


@njit(cache=True)
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


@njit(cache=True)
def _find_score(probes, place, cell):  # type: ignore[no-untyped-def]
    """Return the score that a place has given to a cell, -inf if it has not ranked it."""
    at = find_place(probes.cells[place], cell)
    return probes.scores[place, at] if at >= 0 else np.float32(-np.inf)


def _is_reached(per_query: NDArray[np.float64], recall: float) -> tuple[bool, float]:
    """Say whether a sample's mean recall is the wanted one with a margin of one standard error, and what it is."""
    mean = float(per_query.mean())
    margin = float(per_query.std()) / np.sqrt(len(per_query))
    return bool(mean - min(margin, (1 - recall) / 8) >= recall), mean
