"""Probes: which other cells a row looks into, and how many it takes to find the wanted share of neighbours.

In: a store in the order of its cells. Out: for every row its p nearest other cells.

p is not a constant: the true neighbours of a few hundred rows are found exactly, and p is the least that finds the
wanted share of them. More probes cost more products; a pair is found if either side probes the other, which is why few
are enough.
"""

from __future__ import annotations

import logging
from concurrent.futures import Executor
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .cells import CELL_ROWS, Cells
from .centres import rank_cells
from .exact import EQUAL_WITHIN, search_rows
from .rowstore import read_range, take_rows
from .selection import mark_others

_log = logging.getLogger(__name__)

_MOST_PROBES = 256
_FIRST_PROBES = 24  # ranked at first; three times as many while they are too few
_N_QUERIES = 512  # rows whose true neighbours set the number of probes


def rank_probes(
    store: NDArray[Any], cells: Cells, places: NDArray[np.int32], n_probes: int, pool: Executor
) -> NDArray[np.int32]:
    """Return the n_probes best cells other than their own of the rows at the given places, best first."""
    ranked = rank_cells(store, places, cells.coarse, n_probes + 1, pool)
    return ranked[mark_others(ranked, cells.owners[places])].reshape(len(places), n_probes)


def choose_n_probes(store: NDArray[Any], cells: Cells, k: int, recall: float, seed: int, pool: Executor) -> int:
    """Return the least number of probes that finds the wanted share of the true neighbours of a sample of rows."""
    n = len(store)
    most = min(_MOST_PROBES, cells.n_cells - 1)
    least = -(-2 * k // CELL_ROWS)
    queries = np.sort(np.random.default_rng((seed, 1)).choice(n, min(n, _N_QUERIES), replace=False))
    truth, exchangeable = _find_truth(store, queries, k)
    places = np.unique(np.concatenate((queries, truth.ravel()))).astype(np.int32)
    at_query, at_truth = np.searchsorted(places, queries), np.searchsorted(places, truth)
    n_ranks = max(_FIRST_PROBES, 2 * least)
    while True:
        n_ranks = min(n_ranks, most)
        ranked = rank_probes(store, cells, places, n_ranks, pool)
        ranks = np.where(exchangeable, 0, _rank_pairs(ranked, cells.owners[places], at_query, at_truth))
        n_probes = _pick_n_probes(ranks, recall, least=min(n_ranks, least), most=n_ranks)
        if n_probes or n_ranks == most:
            return n_probes or most
        n_ranks *= 3


def _find_truth(store: NDArray[Any], queries: NDArray[np.int64], k: int) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    """Return the true neighbours of some places, and which of them could be exchanged for others as similar."""
    # One more for the query itself, and one to see whether the k-th is tied with what follows.
    found, similarities = search_rows(take_rows(store, queries), len(store), k + 2, partial(read_range, store))
    others = mark_others(found, queries)
    similarities = similarities[others].reshape(len(queries), k + 1)
    worst = similarities[:, k - 1 : k]
    tied = similarities[:, k:] >= worst - EQUAL_WITHIN
    return found[others].reshape(len(queries), k + 1)[:, :k], tied & (similarities[:, :k] <= worst + EQUAL_WITHIN)


def _rank_pairs(
    ranked: NDArray[np.int32], owners: NDArray[np.int32], at_query: NDArray[Any], at_truth: NDArray[Any]
) -> NDArray[np.int64]:
    """Return at which number of probes each true neighbour is found, by the better of the two sides; 0: same cell."""
    n_ranks = ranked.shape[1]
    ranks = np.empty(at_truth.shape, dtype=np.int64)
    for row, (query, others) in enumerate(zip(at_query, at_truth, strict=True)):
        forward = ranked[query][None, :] == owners[others][:, None]
        backward = ranked[others] == owners[query]
        either = forward | backward
        ranks[row] = np.where(either.any(axis=1), either.argmax(axis=1) + 1, n_ranks + 1)
        ranks[row, owners[others] == owners[query]] = 0
    return ranks


def _pick_n_probes(ranks: NDArray[np.int64], recall: float, *, least: int, most: int) -> int:
    """Return the least number of probes with the wanted recall and a margin of two standard errors, or 0."""
    for n_probes in range(least, most + 1):
        per_query = (ranks <= n_probes).mean(axis=1)
        margin = 2 * per_query.std() / np.sqrt(len(per_query))
        if per_query.mean() - min(margin, (1 - recall) / 4) >= recall:
            _log.debug("%d probes find %.4f of the neighbours of %d rows", n_probes, per_query.mean(), len(ranks))
            return n_probes
    return 0
