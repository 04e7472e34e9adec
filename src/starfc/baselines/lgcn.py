"""L-GCN (Wang et al., "Linkage based face clustering via graph convolution network", CVPR 2019).

Around every face, the pivot, an instance pivot subgraph is cut out of the kNN graph: its k nearest (1 hop), the
`second` nearest of each of these (2 hops), and edges between faces of which one is among the `active` nearest of the
other. With rows x_j - x_pivot and the mean aggregation  F <- relu([F, D^-1 (A + I) F] W),  four times, the network says
of each 1-hop face whether it is the pivot's person. The answers are the scores of the kNN edges, averaged over both
directions, and merged by CDP's propagation: components above `max_size` are cut again at  t <- t + (1 - t) step.

Published for MS1M: k = 80 (200 in training), second = active = 10, max_size 300, step .6. Deviations: half the width,
the training graph's own k, second = active = 5 and at most `most` faces in a subgraph (nearest first), to be faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ..features import Features
from ..knn import KnnGraph
from ..partition import label_by_dynamic_pruning
from ..prune import parse_edges
from ..score import ScoredEdges
from .frame import Lesson, in_two_steps, learns
from .learning import get_arrays, load_arrays, run_steps, start_network
from .pairs import pair_edges
from .pivot_gcn import WIDTHS, PivotNetwork, judge_surroundings, measure_link_loss
from .weights import Weights

import torch  # isort: skip

Evidence = ScoredEdges
GRID: tuple[dict[str, Any], ...] = tuple(
    {"threshold": threshold, "max_size": most, "step": step}
    for threshold in (0.0, 0.3, 0.5, 0.7, 0.8, 0.9) for most, step in ((300, 0.6), (300, 0.05), (1000, 0.05))
)  # fmt: skip
_BATCH = 16
_PIVOTS = 1


@learns
def train_model(
    lesson: Lesson, *, widths: Sequence[int] = WIDTHS, second: int = 5, active: int = 5, most: int = 160
) -> Weights:
    """Learn in 250 steps of 16 pivots which of a pivot's neighbours are its person."""
    graph, labels, known = lesson.graph, lesson.labels, lesson.known
    network = start_network(PivotNetwork(lesson.features.dim, widths), lesson)
    network.start_as_distance()
    cutter = _Cutter(lesson.features, graph, second, active, most)

    def measure_loss(step: int) -> torch.Tensor:
        pivots = lesson.rng(_PIVOTS, step).choice(known, _BATCH)
        first = graph.neighbors[pivots]
        odds = cutter.judge(network, pivots)[:, : graph.k]
        counted = (first >= 0) & (labels[first] >= 0)
        return measure_link_loss(odds, labels[first] == labels[pivots][:, None], counted)

    run_steps(network, measure_loss, lesson, steps=250)
    facts = {"widths": list(widths), "second": second, "active": active, "most": most}
    return Weights(get_arrays(network), facts)


def cluster_evidence(
    evidence: Evidence, *, threshold: float = 0.0, max_size: int = 300, step: float = 0.6, seed: int = 0
) -> NDArray[np.int64]:
    """Merge scored edges by CDP's propagation (`cdp.py` has its settings)."""
    pairs = pair_edges(parse_edges(evidence, None), pool="mean")
    return label_by_dynamic_pruning(pairs, max_size=max_size, start=threshold, step=step)


def measure_evidence(features: Features, graph: KnnGraph, model: Weights) -> Evidence:
    """Score every edge of the graph, (n, k) probabilities."""
    network = PivotNetwork(features.dim, model.facts["widths"])
    load_arrays(network, model.tensors)
    cutter = _Cutter(features, graph, *(model.facts[name] for name in ("second", "active", "most")))
    scores = np.zeros(graph.neighbors.shape, dtype=np.float32)
    with torch.no_grad():
        for start in range(0, graph.n, _BATCH):
            pivots = np.arange(start, min(start + _BATCH, graph.n))
            scores[pivots] = torch.sigmoid(cutter.judge(network, pivots)[:, : graph.k]).numpy()
    return ScoredEdges(graph.neighbors, scores)


cluster_faces = in_two_steps(measure_evidence, cluster_evidence)


class _Cutter:
    """Cuts instance pivot subgraphs out of one collection."""

    def __init__(self, features: Features, graph: KnnGraph, second: int, active: int, most: int) -> None:
        self.features, self.graph, self.second = features, graph, second
        self.most = max(most, graph.k)
        self.active = np.ascontiguousarray(graph.neighbors[:, :active])
        self.ones = np.ones(self.active.shape, dtype=np.float32)  # every edge counts alike in the mean

    def judge(self, network: PivotNetwork, pivots: NDArray[np.int64]) -> torch.Tensor:
        """Return the log-odds of the faces around the pivots; the first k columns are their neighbour lists."""
        nodes = gather_hops(self.graph.neighbors, pivots, self.second, self.most)
        last = int(np.flatnonzero((nodes >= 0).any(axis=0)).max(initial=-1))
        used = nodes[:, : max(self.graph.k, last + 1)]
        return judge_surroundings(network, pivots, used, self.features.take, self.active, self.ones)


def gather_hops(neighbors: NDArray[np.int32], pivots: NDArray[np.int64], second: int, most: int) -> NDArray[np.int32]:
    """List the faces around each pivot: its neighbour list as it is, then the `second` nearest of each, once.

    >>> lists = np.array([[1, 2], [3, 0], [0, 1], [1, 0]], np.int32)
    >>> gather_hops(lists, np.array([0]), 2, 4).tolist()
    [[1, 2, 3, -1]]
    """
    return np.asarray(_gather_hops(neighbors, pivots, second, most))


@njit(cache=True, nogil=True)
def _gather_hops(neighbors, pivots, second, most):  # type: ignore[no-untyped-def]
    """Fill the lists; a face that is in one already, or is the pivot, is not repeated."""
    k = neighbors.shape[1]
    nodes = np.full((len(pivots), most), -1, dtype=np.int32)
    for row in range(len(pivots)):
        seen = {np.int64(pivots[row])}
        for slot in range(k):
            nodes[row, slot] = neighbors[pivots[row], slot]
            seen.add(np.int64(neighbors[pivots[row], slot]))
        n_listed = k
        for slot in range(k):
            middle = neighbors[pivots[row], slot]
            if middle < 0:
                continue
            for step in range(min(second, k)):
                face = neighbors[middle, step]
                if n_listed < most and face >= 0 and np.int64(face) not in seen:
                    seen.add(np.int64(face))
                    nodes[row, n_listed] = face
                    n_listed += 1
    return nodes
