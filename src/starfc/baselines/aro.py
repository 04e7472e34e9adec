"""Approximate rank order (Otto, Wang and Jain, "Clustering millions of faces by identity", TPAMI 2018).

With O_a(b) the rank of b in a's list (1 is the nearest, k if b is not listed) and f_a(i) the i-th of a's list,

    d(a, b) = #{ i = 1 .. O_a(b) : f_a(i) is not b and not in b's list },
    D(a, b) = (d(a, b) + d(b, a)) / min(O_a(b), O_b(a)).

Pairs in which one lists the other and D <= threshold are linked, and linked faces are one cluster (one pass of single
linkage). Faces are looked up in sorted lists, O(n k² log k). Published for MS1M (learn-to-cluster): k = 80, threshold
0; the authors chose theirs on labelled data.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, prange
from numpy.typing import NDArray

from ..features import Features
from ..knn import KnnGraph
from ..partition import label_components
from ..prune import parse_edges
from ..score import ScoredEdges
from .frame import in_two_steps
from .padded import find_place

Evidence = ScoredEdges

GRID: tuple[dict[str, Any], ...] = tuple(
    {"threshold": value} for value in (0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6, 0.8, 1.0, 1.5, 2.0, 4.0)
)


def cluster_evidence(evidence: Evidence, *, threshold: float = 0.0, seed: int = 0) -> NDArray[np.int64]:
    """Link faces whose lists begin alike: a rank-order distance of at most the threshold."""
    near = (evidence.scores <= threshold).astype(np.float32)
    return label_components(parse_edges(ScoredEdges(evidence.neighbors, near), 0.5))


def measure_evidence(features: Features, graph: KnnGraph) -> Evidence:
    """Compute the rank-order distances once, for any threshold."""
    return ScoredEdges(graph.neighbors, measure_rank_order(graph))


cluster_faces = in_two_steps(measure_evidence, cluster_evidence)


def measure_rank_order(graph: KnnGraph) -> NDArray[np.float32]:
    """Return D(i, j) for every edge i -> j of the lists, float32 (n, k); infinite where there is none."""
    listed = np.sort(graph.neighbors, axis=1)
    return np.asarray(_measure_rank_order(graph.neighbors, listed))


@njit(cache=True, nogil=True)
def _count_strangers(own, n_first, other, other_listed):  # type: ignore[no-untyped-def]
    """Count the first n_first faces of a list that are neither `other` nor in its sorted list."""
    n_strangers = 0
    for slot in range(n_first):
        face = own[slot]
        if face >= 0 and face != other and find_place(other_listed, face) < 0:
            n_strangers += 1
    return n_strangers


@njit(cache=True, nogil=True, parallel=True)
def _measure_rank_order(neighbors, listed):  # type: ignore[no-untyped-def]
    """Return the approximate rank-order distance of every edge."""
    n, k = neighbors.shape
    distances = np.full((n, k), np.inf, dtype=np.float32)
    for i in prange(n):
        for slot in range(k):
            j = neighbors[i, slot]
            if j < 0:
                continue
            back = k  # rank of i in j's list
            if find_place(listed[j], i) >= 0:
                back = 1
                while neighbors[j, back - 1] != i:
                    back += 1
            there = _count_strangers(neighbors[i], slot + 1, j, listed[j])
            here = _count_strangers(neighbors[j], back, i, listed[i])
            distances[i, slot] = (there + here) / min(slot + 1, back)
    return distances
