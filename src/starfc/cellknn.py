"""Approximate kNN graph: as many of the true neighbours as are asked for, at a cost that grows little faster than n.

In: Features. Out: neighbours and similarities of every row, and the cell order.

1. The rows are divided into cells of about 32 (cells.py), found by way of grouped centres (centres.py).
2. Every row ranks the other cells and probes the best ones (probes.py, celljoin.py).
3. Neighbours of neighbours are looked at, as often as it takes (expansion.py).

How many probes and rounds it takes is measured, on queries whose true neighbours are found exactly: if a number of
probes alone will do, that is it; else a few are followed by rounds of expansion until the recall is there. If the
rounds stop helping before that, more groups and cells are ranked and the join starts anew; if all of that is not
enough, as for rows without any structure, all pairs are compared after all.
"""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

import numpy as np
from numba import njit, prange
from numpy.typing import NDArray

from .celljoin import join_cells
from .cells import Cells, make_cells
from .exact import join_exactly
from .expansion import Lists, expand_lists
from .features import Features
from .probes import Sample, choose_n_probes, draw_sample, rank_probes
from .steps import Steps

_log = logging.getLogger(__name__)


class _Effort(NamedTuple):
    """How hard to look."""

    n_seen: int  # groups whose cells are ranked
    n_ranks: int  # probes kept
    n_probes: int  # probes followed where expansion has to do the rest


_EFFORTS = (_Effort(32, 24, 10), _Effort(128, 96, 64), _Effort(1 << 30, 256, 256))
_MOST_ROUNDS = 4
_FLAT_CELLS = 4608  # up to so many cells, all are ranked: groups would hardly save time
_LEAST_GAIN = 0.2  # share of what is missing that a round must bring for another one to follow


def find_neighbors(
    features: Features, k: int, *, recall: float, seed: int, steps: Steps
) -> tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.int32]]:
    """Find about `recall` of the k nearest rows of every row; return neighbours, similarities and the cell order."""
    steps.watch(features.raw)
    cells, store = make_cells(features, k, seed, steps)
    sample = draw_sample(store, k, seed)
    # A high recall is out of reach of the least effort; trying would only cost time.
    levels = steps.open("levels")
    failed = levels.array("failed", (len(_EFFORTS),), np.uint8)
    if levels.folder is None:
        failed[:] = 0
    reached = False
    for level in range(0 if recall < 0.98 else 1, len(_EFFORTS)):
        if failed[level]:
            continue  # an earlier run has found that out
        lists, reached = _look(store, cells, k, sample, recall, level, steps)
        if reached:
            break
        failed[level] = 1
    if not reached:
        return *join_exactly(features.read, len(features), features.dim, k, steps.progress), cells.order
    final = steps.open("graph")
    neighbors = final.array("neighbors", (len(store), k), np.int32)
    similarities = final.array("similarities", (len(store), k), np.float32)
    _map_back(lists[0], lists[1], cells.order, neighbors, similarities)
    return neighbors, similarities, cells.order


def _look(
    store: NDArray[Any], cells: Cells, k: int, sample: Sample, recall: float, level: int, steps: Steps
) -> tuple[Lists, bool]:
    """Rank, join and expand with one effort; return the lists and whether they are good enough."""
    effort = _EFFORTS[level]
    is_flat = cells.n_cells <= _FLAT_CELLS
    n_seen = cells.n_cells if is_flat else effort.n_seen
    n_ranks = min(max(effort.n_ranks, 4 * k // 5) if is_flat else effort.n_ranks, cells.n_cells - 1)
    ranked = rank_probes(store, cells, n_ranks, n_seen, steps.open("probes", level=level), steps)
    enough = choose_n_probes(ranked, cells.owners, sample, recall)
    n_probes = enough or min(n_ranks, effort.n_probes)
    join = steps.open("join", level=level, n_probes=n_probes)
    lists: Lists = (*join_cells(store, cells, ranked[:, :n_probes], k, join, steps), np.ones((len(store), k), bool))
    reached, found = _measure(sample, lists, recall)
    _log.debug("%d probes found %.4f", n_probes, found)
    for number in range(_MOST_ROUNDS):
        # What the probes were predicted to find they have found, give or take a row of the sample.
        if reached or (enough and number == 0 and found >= recall):
            return lists, True
        scratch = steps.open(f"round{number}", level=level, n_probes=n_probes)
        lists = expand_lists(store, cells.order, lists, scratch, steps)
        before = found
        reached, found = _measure(sample, lists, recall)
        _log.debug("round %d found %.4f", number, found)
        if number:
            steps.close(f"round{number - 1}")
        if found - before < _LEAST_GAIN * (recall - before):
            break
    return lists, found >= recall


def _measure(sample: Sample, lists: Lists, recall: float) -> tuple[bool, float]:
    """Say whether the lists have the wanted recall, and what they have."""
    return sample.reaches(lists[0][sample.queries], lists[1][sample.queries], recall)


@njit(cache=True, parallel=True)
def _map_back(lists, similarities, order, out_neighbors, out_similarities):  # type: ignore[no-untyped-def]
    """Turn places into rows."""
    for place in prange(len(order)):
        row = order[place]
        out_similarities[row] = similarities[place]
        for j in range(lists.shape[1]):
            found = lists[place, j]
            out_neighbors[row, j] = order[found] if found >= 0 else -1
