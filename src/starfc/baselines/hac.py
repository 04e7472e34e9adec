"""Hierarchical agglomerative clustering on the kNN graph, single or average linkage, cut at a cosine.

Single linkage (Sibson, "SLINK", Computer Journal 1973): two clusters are as near as their nearest faces; cut at a
threshold this is the connected components of the pairs at or above it. Average linkage (Sokal and Michener, 1958):
the mean over all pairs of faces,

    s(A, B) = sum of w_ij over i in A, j in B  /  (|A| |B|).

On a kNN graph a pair that neither list holds counts 0, as do negative cosines; a complete list without these gives the
textbook result. The tree is cut
while it grows: in each round every cluster finds its best partner, and pairs that choose each other at or above the
threshold merge. For linkages whose similarity never rises by a merge with a third (both are such) this gives the same
tree as one merge at a time (Sumengen et al., "Scaling hierarchical agglomerative clustering to billion-sized
datasets", 2021), in O(edges) per round. Published for MS1M (learn-to-cluster): single linkage at a Euclidean distance
of .72, a cosine of .74. Nothing is published for average linkage on lists; .15 was the best of the grid on a
synthetic collection (seed 1).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ..errors import InputError
from ..features import Features
from ..flowgraph import FlowGraph, aggregate_modules, build_flow_graph
from ..knn import KnnGraph
from ..partition import label_components
from .pairs import COSINES, cut_edges, pair_edges

LINKAGES = ("single", "average")
_THRESHOLDS = {"single": 0.74, "average": 0.15}
GRID: tuple[dict[str, Any], ...] = tuple({"threshold": cosine} for cosine in (0.02, 0.05, 0.1, 0.15, *COSINES))


def cluster_faces(
    features: Features, graph: KnnGraph, *, linkage: str = "single", threshold: float | None = None, seed: int = 0
) -> NDArray[np.int64]:
    """Merge the most similar clusters until none are as similar as the threshold (.74 single, .15 average linkage)."""
    if linkage not in LINKAGES:
        raise InputError(f"linkage ('{linkage}') must be one of {', '.join(LINKAGES)}")
    threshold = _THRESHOLDS[linkage] if threshold is None else threshold
    if linkage == "single":
        return label_components(cut_edges(graph, threshold))
    level = build_flow_graph(pair_edges(cut_edges(graph, float(np.finfo(np.float32).tiny))))
    sizes: NDArray[np.float64] = np.ones(level.n_nodes)
    labels = np.arange(level.n_nodes, dtype=np.int32)
    while True:
        merged = _number_merged(_choose_partners(level.offsets, level.targets, level.weights, sizes, threshold))
        if len(merged) == 0 or merged.max() + 1 == len(merged):
            return labels.astype(np.int64)
        sizes = np.bincount(merged, weights=sizes).astype(np.float64)
        level = _aggregate(level, merged)
        labels = merged[labels]


def _aggregate(level: FlowGraph, merged: NDArray[np.int32]) -> FlowGraph:
    """Make one node of every merged pair, with the similarities to others summed in double precision."""
    exact = FlowGraph(level.offsets, level.targets, level.weights.astype(np.float64), level.flows)
    return aggregate_modules(exact, merged)


def _number_merged(partners: NDArray[np.int32]) -> NDArray[np.int32]:
    """Give pairs that chose each other one number, and every other cluster its own."""
    own = np.arange(len(partners))
    mutual = (partners >= 0) & (partners[np.maximum(partners, 0)] == own)
    first = np.where(mutual, np.minimum(partners, own), own)
    numbers = np.cumsum(first == own) - 1
    return np.asarray(numbers[first], dtype=np.int32)


@njit(cache=True, nogil=True)
def _choose_partners(offsets, targets, weights, sizes, threshold):  # type: ignore[no-untyped-def]
    """Return each cluster's most similar one at or above the threshold, ties by id; -1 if there is none."""
    n = len(sizes)
    partners = np.full(n, -1, dtype=np.int32)
    for i in range(n):
        best = threshold
        for e in range(offsets[i], offsets[i + 1]):
            j = targets[e]
            similarity = weights[e] / (sizes[i] * sizes[j])
            if similarity > best or (similarity == best and (partners[i] < 0 or j < partners[i])):
                best = similarity
                partners[i] = j
    return partners
