"""Pruning: graph parsing by tau_1, then graph refinement by node intimacy and tau_2 (Sec. 3.3).

In: ScoredEdges. Out: EdgeGraph, the edges that survive. Parsing keeps edges with score > tau_1. Refinement keeps
those with

    NI(i, j) = aggregate(k / n_1, k / n_2) > tau_2,    aggregate = max | mean | min,  or Jaccard  k / (n_1 + n_2 - k),

where n_1, n_2 are the numbers of edges at i and j, and k the number of their common neighbours. Two readings of "edge":

- `directed` (as the authors released it): i -> j as in i's kNN list; k = #{m: i -> m -> j}, n = out-degree. An edge
  into a face without edges of its own has intimacy 0, as in their code;
- `mutual`: an edge is kept only if both directions survive parsing; k and n count undirected edges.

A.A is never formed: common neighbours are counted only on existing edges (a masked product). Out-lists have at most k
entries, so hubs, which are in many lists, cost no more than others.
"""

from __future__ import annotations

from dataclasses import dataclass

import numba
import numpy as np
from numba import njit, prange
from numpy.typing import NDArray

from .errors import InputError
from .score import ScoredEdges

AGGREGATES = ("max", "mean", "min", "jaccard")
EDGE_KINDS = ("directed", "mutual")


@dataclass(frozen=True)
class EdgeGraph:
    """Edges i -> targets[offsets[i] : offsets[i + 1]] with their scores, in the order of the kNN lists.

    Attributes
    ----------
    offsets : int64 (n + 1,)
    targets : int32 (n_edges,)
    scores : float32 (n_edges,)
    """

    offsets: NDArray[np.int64]
    targets: NDArray[np.int32]
    scores: NDArray[np.float32]

    @property
    def n_nodes(self) -> int:
        """Number of faces, those without edges included."""
        return len(self.offsets) - 1

    def keep(self, kept: NDArray[np.bool_]) -> EdgeGraph:
        """Return the graph with only the marked edges."""
        running = np.concatenate(([0], np.cumsum(kept, dtype=np.int64)))
        return EdgeGraph(running[self.offsets], self.targets[kept], self.scores[kept])


def prune_edges(
    scored: ScoredEdges,
    *,
    tau1: float | None,
    tau2: float | None,
    aggregate: str = "max",
    edges: str = "directed",
) -> EdgeGraph:
    """Parse by tau_1, then refine by node intimacy and tau_2.

    Parameters
    ----------
    scored : ScoredEdges
        (n, k).
    tau1 : float or None
        Edges with a score above it stay; None skips parsing ("only graph refinement").
    tau2 : float or None
        Edges with an intimacy above it stay; None skips refinement ("only graph parsing").
    aggregate : {"max", "mean", "min", "jaccard"}
    edges : {"directed", "mutual"}

    Returns
    -------
    EdgeGraph

    Examples
    --------
    Three faces who all know each other, and a fourth linked to one of them:

    >>> neighbors = np.array([[1, 2], [0, 2], [0, 1], [0, -1]], np.int32)
    >>> scored = ScoredEdges(neighbors, np.full((4, 2), 0.9, np.float32))
    >>> prune_edges(scored, tau1=0.7, tau2=0.4).targets.tolist()
    [1, 2, 0, 2, 0, 1]
    """
    if aggregate not in AGGREGATES:
        raise InputError(f"aggregate ('{aggregate}') must be one of {', '.join(AGGREGATES)}")
    if edges not in EDGE_KINDS:
        raise InputError(f"edges ('{edges}') must be one of {', '.join(EDGE_KINDS)}")
    graph = parse_edges(scored, tau1)
    if edges == "mutual":
        graph = graph.keep(_find_mutual(graph.offsets, graph.targets))
    if tau2 is None:
        return graph
    return graph.keep(measure_intimacy(graph, aggregate=aggregate) > np.float32(tau2))


def parse_edges(scored: ScoredEdges, tau1: float | None) -> EdgeGraph:
    """Keep the edges with score > tau_1 (all of them if None)."""
    threshold = -np.inf if tau1 is None else tau1
    surviving = _count_surviving(scored.neighbors, scored.scores, np.float32(threshold))
    offsets = np.zeros(len(surviving) + 1, dtype=np.int64)
    np.cumsum(surviving, out=offsets[1:])
    targets, scores = _fill_surviving(scored.neighbors, scored.scores, np.float32(threshold), offsets)
    return EdgeGraph(offsets, targets, scores)


def measure_intimacy(graph: EdgeGraph, *, aggregate: str = "max") -> NDArray[np.float32]:
    """Return the node intimacy of every edge, float32 (n_edges,)."""
    common = _count_common(graph.offsets, graph.targets, numba.get_num_threads())
    return np.asarray(_aggregate_counts(graph.offsets, graph.targets, common, AGGREGATES.index(aggregate)))


@njit(cache=True, parallel=True)
def _count_surviving(neighbors, scores, threshold):  # type: ignore[no-untyped-def]
    """Count the edges of each row with a score above the threshold."""
    counts = np.zeros(len(neighbors), dtype=np.int64)
    for i in prange(len(neighbors)):
        for slot in range(neighbors.shape[1]):
            if neighbors[i, slot] >= 0 and scores[i, slot] > threshold:
                counts[i] += 1
    return counts


@njit(cache=True, parallel=True)
def _fill_surviving(neighbors, scores, threshold, offsets):  # type: ignore[no-untyped-def]
    """Write the edges of each row with a score above the threshold."""
    targets = np.empty(offsets[-1], dtype=np.int32)
    kept_scores = np.empty(offsets[-1], dtype=np.float32)
    for i in prange(len(neighbors)):
        e = offsets[i]
        for slot in range(neighbors.shape[1]):
            if neighbors[i, slot] >= 0 and scores[i, slot] > threshold:
                targets[e] = neighbors[i, slot]
                kept_scores[e] = scores[i, slot]
                e += 1
    return targets, kept_scores


@njit(cache=True, parallel=True)
def _find_mutual(offsets, targets):  # type: ignore[no-untyped-def]
    """Mark the edges i -> j for which j -> i is there too."""
    mutual = np.zeros(len(targets), dtype=np.bool_)
    for i in prange(len(offsets) - 1):
        for e in range(offsets[i], offsets[i + 1]):
            j = targets[e]
            for back in range(offsets[j], offsets[j + 1]):
                if targets[back] == i:
                    mutual[e] = True
                    break
    return mutual


@njit(cache=True, parallel=True)
def _count_common(offsets, targets, n_workers):  # type: ignore[no-untyped-def]
    """Count, for every edge i -> j, the m with i -> m and m -> j.

    Each worker takes every n_workers-th row and has a table that tells, for the row at hand, which edge leads to a
    node.
    """
    n = len(offsets) - 1
    common = np.zeros(len(targets), dtype=np.int32)
    for worker in prange(n_workers):
        edge_to = np.full(n, -1, dtype=np.int64)
        for i in range(worker, n, n_workers):
            for e in range(offsets[i], offsets[i + 1]):
                edge_to[targets[e]] = e
            for e in range(offsets[i], offsets[i + 1]):
                m = targets[e]
                for step in range(offsets[m], offsets[m + 1]):
                    reached = edge_to[targets[step]]
                    if reached >= 0:
                        common[reached] += 1
            for e in range(offsets[i], offsets[i + 1]):
                edge_to[targets[e]] = -1
    return common


@njit(cache=True, parallel=True)
def _aggregate_counts(offsets, targets, common, aggregate):  # type: ignore[no-untyped-def]
    """Turn common-neighbour counts into intimacies; `aggregate` is the position in AGGREGATES."""
    intimacy = np.zeros(len(targets), dtype=np.float32)
    for i in prange(len(offsets) - 1):
        n_1 = offsets[i + 1] - offsets[i]
        for e in range(offsets[i], offsets[i + 1]):
            n_2 = offsets[targets[e] + 1] - offsets[targets[e]]
            if n_2 == 0:
                continue
            k = common[e]
            if aggregate == 0:
                intimacy[e] = max(k / n_1, k / n_2)
            elif aggregate == 1:
                intimacy[e] = (k / n_1 + k / n_2) / 2
            elif aggregate == 2:
                intimacy[e] = min(k / n_1, k / n_2)
            else:
                intimacy[e] = k / (n_1 + n_2 - k)
    return intimacy
