"""GCN-V + GCN-E (Yang et al., "Learning to cluster faces via confidence and connectivity estimation", CVPR 2020).

After GCN-V (`gcn_v.py`): the candidates of a face are its neighbours with a higher confidence. A second network sees
them from the face, rows h_j - h_i and the edges among them, and estimates for each the connectivity  r_ij = P(same
person). The face links to the candidate with the highest r_ij, if their similarity is at least tau. Only the `share`
of faces with the highest confidence are treated so, because a wrong link between two of those joins two people; the
others link as in GCN-V.

Published for MS1M: k = 160 on h, tau = .8, share .2 (of test faces; .3 in training), four layers. Deviations: half
the width (`pivot_gcn.py`), the k of the given graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..features import Features
from ..knn import KnnGraph
from . import gcn_v
from .frame import Lesson, in_two_steps, learns
from .gcn_v import GRID as GRID
from .learning import get_arrays, load_arrays, run_steps, start_network
from .padded import pad_lists
from .peaks import find_denser, label_followers, mark_denser
from .pivot_gcn import WIDTHS, PivotNetwork, judge_surroundings, measure_link_loss
from .weights import Weights

import torch  # isort: skip

_BATCH = 16
_FIRST_WEIGHTS, _PIVOTS = 10, 11


@dataclass(frozen=True)
class Evidence:
    """What GCN-V found, and the network that chooses candidates for the `share` of most confident faces."""

    vertices: gcn_v.Evidence
    network: PivotNetwork
    share: float
    _chosen: dict[bool, tuple[NDArray[np.int64], NDArray[np.float32]]] = field(default_factory=dict)

    def choose(self, *, learned: bool) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return the chosen candidate of the confident faces (-1: not one) in either graph, and its similarity."""
        if learned not in self._chosen:
            graph = self.vertices.get_graph(learned=learned)
            self._chosen[learned] = _choose(self.network, self.vertices, graph, self.share)
        return self._chosen[learned]


@learns
def train_model(lesson: Lesson, *, width: int = 512, widths: Sequence[int] = WIDTHS, share: float = 0.3) -> Weights:
    """Train GCN-V with an h of `width`, then GCN-E for 250 steps of 16 of the `share` of most confident faces."""
    labels = lesson.labels
    first = gcn_v.train_model(
        lesson.features,
        lesson.graph,
        labels,
        steps=lesson.steps,
        seed=lesson.seed,
        progress=lesson.progress,
        width=width,
    )
    found = gcn_v.measure_evidence(lesson.features, lesson.graph, first)
    network = start_network(PivotNetwork(width, widths), lesson, _FIRST_WEIGHTS)
    network.start_as_distance()
    pivots = _select_pivots(found, found.learned, share)
    pivots = pivots[labels[pivots] >= 0]

    def measure_loss(step: int) -> torch.Tensor:
        drawn = lesson.rng(_PIVOTS, step).choice(pivots, _BATCH)
        nodes, _ = _list_candidates(found, found.learned, drawn)
        odds = judge_surroundings(network, drawn, nodes, found.hidden.take, *_edges(found.learned))
        same = labels[np.maximum(nodes, 0)] == labels[drawn][:, None]
        return measure_link_loss(odds, same, (nodes >= 0) & (labels[np.maximum(nodes, 0)] >= 0))

    if len(pivots):
        run_steps(network, measure_loss, lesson, steps=250, stage="train edges")
    vertices = {f"vertices.{name}": array for name, array in first.tensors.items()}
    return Weights(vertices | get_arrays(network, "edges."), {"width": width, "widths": list(widths)})


def cluster_evidence(
    evidence: Evidence, *, tau: float = 0.8, learned_features: bool = True, seed: int = 0
) -> NDArray[np.int64]:
    """Let confident faces follow the candidate of highest connectivity, the others the nearest, from tau on."""
    found = evidence.vertices
    graph = found.get_graph(learned=learned_features)
    parents = find_denser(graph.neighbors, graph.similarities, found.confidence, tau)
    chosen, similarities = evidence.choose(learned=learned_features)
    judged = chosen >= 0
    parents[judged] = np.where(similarities[judged] >= np.float32(tau), chosen[judged], -1)
    return label_followers(parents)


def measure_evidence(features: Features, graph: KnnGraph, model: Weights, *, share: float = 0.2) -> Evidence:
    """Run the first network, and load the second, which runs on the candidates of the graph that is asked for."""
    facts = model.facts
    vertices = Weights(model.select("vertices."), {"width": facts["width"]})
    found = gcn_v.measure_evidence(features, graph, vertices)
    network = PivotNetwork(facts["width"], facts["widths"])
    load_arrays(network, model.select("edges."))
    return Evidence(found, network, share)


cluster_faces = in_two_steps(measure_evidence, cluster_evidence)


def _choose(
    network: PivotNetwork, found: gcn_v.Evidence, graph: KnnGraph, share: float
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return the candidate of highest connectivity of the confident faces (-1 for others), and its similarity."""
    chosen = np.full(graph.n, -1, dtype=np.int64)
    similarities = np.zeros(graph.n, dtype=np.float32)
    pivots = _select_pivots(found, graph, share)
    for start in range(0, len(pivots), _BATCH):
        batch = pivots[start : start + _BATCH]
        nodes, near = _list_candidates(found, graph, batch)
        with torch.no_grad():
            odds = judge_surroundings(network, batch, nodes, found.hidden.take, *_edges(graph)).numpy()
        best = np.argmax(np.where(nodes >= 0, odds, -np.inf), axis=1)
        rows = np.arange(len(batch))
        chosen[batch], similarities[batch] = nodes[rows, best], near[rows, best]
    return chosen, similarities


def _select_pivots(found: gcn_v.Evidence, graph: KnnGraph, share: float) -> NDArray[np.int64]:
    """Return the most confident faces that have a candidate, ascending."""
    n_kept = max(1, round(share * graph.n))
    confident = np.argsort(-found.confidence, kind="stable")[:n_kept]
    has_any = mark_denser(graph.neighbors[confident], found.confidence, confident).any(axis=1)
    return np.sort(confident[has_any])


def _list_candidates(
    found: gcn_v.Evidence, graph: KnnGraph, pivots: NDArray[np.int64]
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """List the neighbours of higher confidence of each pivot, best first, and their similarities, padded."""
    lists, near = graph.neighbors[pivots], graph.similarities[pivots]
    denser = mark_denser(lists, found.confidence, pivots)
    nodes = pad_lists([row[kept] for row, kept in zip(lists, denser, strict=True)], graph.k)
    padded = np.zeros(nodes.shape, dtype=np.float32)
    for row, values, kept in zip(padded, near, denser, strict=True):
        row[: int(kept.sum())] = values[kept]
    return nodes, padded


def _edges(graph: KnnGraph) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Return the lists and weights that subgraphs are cut from."""
    return graph.neighbors, graph.similarities
