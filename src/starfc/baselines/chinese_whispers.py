"""Chinese whispers (Biemann, "Chinese whispers", TextGraphs 2006) on the kNN graph.

Every face begins with a label of its own; faces, in a new random order each round, take the label with the largest
sum of similarities among the faces linked to them (undirected, similarity at or above the threshold). Stops after
`n_rounds` or when nothing changes. Published for MS1M (learn-to-cluster): k = 80, threshold .6, 20 rounds. Deviation:
of labels with equal sums the lowest wins, where Biemann draws.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ..features import Features
from ..flowgraph import build_flow_graph
from ..knn import KnnGraph
from .pairs import COSINES, cut_edges, pair_edges

GRID: tuple[dict[str, Any], ...] = tuple({"threshold": cosine} for cosine in COSINES)


def cluster_faces(
    features: Features, graph: KnnGraph, *, threshold: float = 0.6, n_rounds: int = 20, seed: int = 0
) -> NDArray[np.int64]:
    """Let linked faces agree on a label.

    `threshold` is the cosine from which on faces are linked; `n_rounds` are made at most, in orders of the `seed`.
    """
    links = build_flow_graph(pair_edges(cut_edges(graph, threshold)))
    rng = np.random.default_rng(seed)
    labels = np.arange(graph.n, dtype=np.int32)
    sums = np.zeros(graph.n)
    for _ in range(n_rounds):
        order = rng.permutation(graph.n).astype(np.int32)
        if _whisper(links.offsets, links.targets, links.weights, order, labels, sums) == 0:
            break
    return np.unique(labels, return_inverse=True)[1].astype(np.int64)


@njit(cache=True, nogil=True)
def _whisper(offsets, targets, weights, order, labels, sums):  # type: ignore[no-untyped-def]
    """Run one round in place; return how many labels changed. `sums` is all zero before and after."""
    n_changed = 0
    for i in order:
        best, best_sum = labels[i], 0.0
        for e in range(offsets[i], offsets[i + 1]):
            sums[labels[targets[e]]] += weights[e]
        for e in range(offsets[i], offsets[i + 1]):
            label = labels[targets[e]]
            if sums[label] > best_sum or (sums[label] == best_sum and label < best):
                best, best_sum = label, sums[label]
        for e in range(offsets[i], offsets[i + 1]):
            sums[labels[targets[e]]] = 0.0
        n_changed += labels[i] != best
        labels[i] = best
    return n_changed
