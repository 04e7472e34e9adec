"""Probes: which other cells a row looks into, and how many it takes to find the wanted share of neighbours.

In: a store in the order of its cells. Out: for every place its nearest other cells; and for a sample of queries, whose
true neighbours are found exactly, the share that a number of probes, or a finished list, has found.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .cells import Cells
from .centres import RANKED_ROWS, rank_cells
from .exact import EQUAL_WITHIN, search_rows
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
    worst : float32 (q, 1)
        Similarity of the k-th of them; whatever is as similar counts as one.
    exchangeable : bool (q, k)
        Which of them are as similar as the k-th and as one that is not listed.
    """

    queries: NDArray[np.int64]
    neighbors: NDArray[np.int32]
    worst: NDArray[np.float32]
    exchangeable: NDArray[np.bool_]

    def reaches(
        self, places: NDArray[np.int32], similarities: NDArray[np.float32], recall: float
    ) -> tuple[bool, float]:
        """Say whether the lists of the queries, (q, k), have the wanted recall for sure, and what it is."""
        return _is_reached(((places >= 0) & (similarities >= self.worst - EQUAL_WITHIN)).mean(axis=1), recall)


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
    return Sample(queries, found[others].reshape(len(queries), k + 1)[:, :k], worst, exchangeable)


def rank_probes(
    store: NDArray[Any], cells: Cells, n_probes: int, n_seen: int, scratch: Scratch, steps: Steps
) -> NDArray[np.int32]:
    """Return the n_probes best cells other than its own of every place, best first, out of its n_seen best groups."""
    ranked = scratch.array("ranked", (len(store), n_probes), np.int32)
    owners = cells.owners

    def rank(start: int, stop: int) -> None:
        best = rank_cells(read_range(store, start, stop), cells.coarse, n_probes + 1, n_seen)
        others = mark_others(best, owners[start:stop])
        ranked[start:stop] = best[others].reshape(stop - start, n_probes)

    steps.run_tiles(scratch, cut_evenly(len(store), RANKED_ROWS), rank, "knn: probes")
    return ranked


def choose_n_probes(ranked: NDArray[np.int32], owners: NDArray[np.int32], sample: Sample, recall: float) -> int:
    """Return the least number of probes that finds the wanted share of the true neighbours of a sample, or 0."""
    ranks = np.where(sample.exchangeable, 0, _rank_pairs(ranked, owners, sample.queries, sample.neighbors))
    for n_probes in range(1, ranked.shape[1] + 1):
        if _is_reached((ranks <= n_probes).mean(axis=1), recall)[0]:
            return n_probes
    return 0


def _rank_pairs(
    ranked: NDArray[np.int32], owners: NDArray[np.int32], queries: NDArray[Any], neighbors: NDArray[Any]
) -> NDArray[np.int64]:
    """Return at which number of probes each true neighbour is found, by the better of the two sides; 0: same cell."""
    n_ranks = ranked.shape[1]
    ranks = np.empty(neighbors.shape, dtype=np.int64)
    for row, (query, others) in enumerate(zip(queries, neighbors, strict=True)):
        forward = ranked[query][None, :] == owners[others][:, None]
        backward = ranked[others] == owners[query]
        either = forward | backward
        ranks[row] = np.where(either.any(axis=1), either.argmax(axis=1) + 1, n_ranks + 1)
        ranks[row, owners[others] == owners[query]] = 0
    return ranks


def _is_reached(per_query: NDArray[np.float64], recall: float) -> tuple[bool, float]:
    """Say whether a sample's mean recall is the wanted one with a margin of one standard error, and what it is."""
    mean = float(per_query.mean())
    margin = float(per_query.std()) / np.sqrt(len(per_query))
    return bool(mean - min(margin, (1 - recall) / 8) >= recall), mean
