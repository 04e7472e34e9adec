"""What several baselines share: the kNN lists as undirected pairs, and edges at or above a cosine.

In: KnnGraph. Out: EdgeGraph. The methods of the field say "at least", the stages of starfc "above"; the difference is
one float.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..knn import KnnGraph
from ..prune import EdgeGraph, parse_edges
from ..score import ScoredEdges

#: What --tune tries where the setting is a cosine.
COSINES = tuple(round(0.2 + 0.05 * step, 2) for step in range(13))


def cut_edges(graph: KnnGraph, at_least: float, *, k: int | None = None) -> EdgeGraph:
    """Keep the edges of the first k neighbours with a similarity of at least `at_least`.

    >>> graph = KnnGraph(np.array([[1], [0]], np.int32), np.array([[0.5], [0.5]], np.float32))
    >>> len(cut_edges(graph, 0.5).targets), len(cut_edges(graph, 0.51).targets)
    (2, 0)
    """
    below = float(np.nextafter(np.float32(at_least), np.float32(-2)))
    return parse_edges(ScoredEdges(graph.neighbors[:, :k], graph.similarities[:, :k]), below)


def pair_edges(graph: EdgeGraph, *, pool: str = "max") -> EdgeGraph:
    """Keep every pair of linked faces once, from the lower id to the higher, with the larger or the mean of its scores.

    >>> both = EdgeGraph(np.array([0, 1, 2]), np.array([1, 0], np.int32), np.array([0.25, 0.75], np.float32))
    >>> pair_edges(both).offsets.tolist(), pair_edges(both).scores.tolist()
    ([0, 1, 1], [0.75])
    >>> pair_edges(both, pool="mean").scores.tolist()
    [0.5]
    """
    sources = list_sources(graph)
    low, high = np.minimum(sources, graph.targets), np.maximum(sources, graph.targets)
    keys = low.astype(np.int64) * graph.n_nodes + high
    order = np.argsort(keys, kind="stable")
    firsts = np.flatnonzero(np.diff(keys[order], prepend=-1))
    offsets = np.concatenate(([0], np.cumsum(np.bincount(low[order[firsts]], minlength=graph.n_nodes))))
    return EdgeGraph(offsets.astype(np.int64), high[order[firsts]], _pool(graph.scores[order], firsts, pool))


def _pool(scores: NDArray[np.float32], firsts: NDArray[np.int64], pool: str) -> NDArray[np.float32]:
    """Return the larger or the mean of each run of scores."""
    if len(firsts) == 0:
        return scores
    if pool == "max":
        return np.asarray(np.maximum.reduceat(scores, firsts))
    return np.asarray(np.add.reduceat(scores, firsts) / np.diff(firsts, append=len(scores)), dtype=np.float32)


def list_sources(graph: EdgeGraph) -> NDArray[np.int32]:
    """Return the source of every edge, int32 (n_edges,)."""
    return np.repeat(np.arange(graph.n_nodes, dtype=np.int32), np.diff(graph.offsets))
