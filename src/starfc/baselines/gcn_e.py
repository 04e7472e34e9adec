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
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..features import Features
from ..knn import KnnGraph
from ..progress import Progress, silent
from . import gcn_v
from .gcn_v import GRID as GRID
from .learning import draw_weights, get_arrays, load_arrays, run_steps
from .padded import pad_lists
from .peaks import find_denser, label_followers, mark_denser
from .pivot_gcn import WIDTHS, PivotNetwork, judge_surroundings, measure_link_loss
from .weights import Weights

import torch  # isort: skip

_BATCH = 16
_RATE = 1e-3
_FIRST_WEIGHTS, _PIVOTS = 10, 11


@dataclass(frozen=True)
class Evidence:
    """What GCN-V found, and for each kind of graph the chosen candidate of the confident faces and its similarity."""

    vertices: gcn_v.Evidence
    chosen: dict[bool, tuple[NDArray[np.int64], NDArray[np.float32]]]


def train_model(
    features: Features,
    graph: KnnGraph,
    labels: NDArray[np.int64],
    *,
    steps: int | None = None,
    width: int = 512,
    widths: Sequence[int] = WIDTHS,
    share: float = 0.3,
    seed: int = 0,
    progress: Progress = silent,
) -> Weights:
    """Train GCN-V, then GCN-E on the candidates it leaves.

    Parameters
    ----------
    features : Features
        (n, d).
    graph : KnnGraph
        (n, k).
    labels : int64 (n,)
    steps : int, optional
        Of GCN-E, 16 faces each, and of GCN-V; 250 and 400.
    width : int
        Of GCN-V's h.
    widths : sequence of int
        Of GCN-E's graph convolutions.
    share : float
        Most confident faces that GCN-E learns from.
    seed : int

    Returns
    -------
    Weights
    """
    first = gcn_v.train_model(features, graph, labels, steps=steps, width=width, seed=seed, progress=progress)
    found = gcn_v.measure_evidence(features, graph, first)
    network = PivotNetwork(width, widths)
    draw_weights(network, np.random.default_rng([seed, _FIRST_WEIGHTS]))
    network.start_as_distance()
    pivots = _select_pivots(found, found.learned, share)
    pivots = pivots[labels[pivots] >= 0]

    def measure_loss(step: int) -> torch.Tensor:
        drawn = np.random.default_rng([seed, _PIVOTS, step]).choice(pivots, _BATCH)
        nodes, _ = _list_candidates(found, found.learned, drawn)
        odds = judge_surroundings(network, drawn, nodes, found.hidden.take, *_edges(found.learned))
        same = labels[np.maximum(nodes, 0)] == labels[drawn][:, None]
        return measure_link_loss(odds, same, (nodes >= 0) & (labels[np.maximum(nodes, 0)] >= 0))

    if len(pivots):
        run_steps(
            network, measure_loss, steps=steps or 250, learning_rate=_RATE, stage="train edges", progress=progress
        )
    vertices = {f"vertices.{name}": array for name, array in first.tensors.items()}
    return Weights(vertices | get_arrays(network, "edges."), {"width": width, "widths": list(widths)})


def cluster_faces(
    features: Features,
    graph: KnnGraph,
    *,
    model: Weights,
    tau: float = 0.8,
    learned_features: bool = True,
    seed: int = 0,
) -> NDArray[np.int64]:
    """Let confident faces follow the candidate of highest connectivity, the others the nearest.

    Parameters
    ----------
    features : Features
        (n, d).
    graph : KnnGraph
        (n, k).
    model : Weights
        From :func:`train_model`.
    tau : float
        Least similarity of a link.
    learned_features : bool
        Whether similarities are those of h, or the cosines.
    seed : int
        Not used.

    Returns
    -------
    int64 (n,)
    """
    return cluster_evidence(measure_evidence(features, graph, model), tau=tau, learned_features=learned_features)


def cluster_evidence(
    evidence: Evidence, *, tau: float = 0.8, learned_features: bool = True, seed: int = 0
) -> NDArray[np.int64]:
    """Link and label."""
    found = evidence.vertices
    graph = found.learned if learned_features else found.given
    parents = find_denser(graph.neighbors, graph.similarities, found.confidence, tau)
    chosen, similarities = evidence.chosen[learned_features]
    judged = chosen >= 0
    parents[judged] = np.where(similarities[judged] >= np.float32(tau), chosen[judged], -1)
    return label_followers(parents)


def measure_evidence(features: Features, graph: KnnGraph, model: Weights, *, share: float = 0.2) -> Evidence:
    """Run both networks; the second on the candidates of either graph."""
    facts = model.facts
    vertices = Weights(model.select("vertices."), {"width": facts["width"]})
    found = gcn_v.measure_evidence(features, graph, vertices)
    network = PivotNetwork(facts["width"], facts["widths"])
    load_arrays(network, model.select("edges."))
    chosen = {learned: _choose(network, found, own, share) for learned, own in ((True, found.learned), (False, graph))}
    return Evidence(found, chosen)


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
    has_any = mark_denser(graph.neighbors, found.confidence).any(axis=1)
    return np.sort(confident[np.asarray(has_any)[confident]])


def _list_candidates(
    found: gcn_v.Evidence, graph: KnnGraph, pivots: NDArray[np.int64]
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """List the neighbours of higher confidence of each pivot, best first, and their similarities, padded."""
    lists, near = graph.neighbors[pivots], graph.similarities[pivots]
    own, theirs = found.confidence[pivots][:, None], found.confidence[lists]
    denser = (lists >= 0) & ((theirs > own) | ((theirs == own) & (lists < pivots[:, None])))
    nodes = pad_lists([row[kept] for row, kept in zip(lists, denser, strict=True)], graph.k)
    padded = np.zeros(nodes.shape, dtype=np.float32)
    for row, values, kept in zip(padded, near, denser, strict=True):
        row[: int(kept.sum())] = values[kept]
    return nodes, padded


def _edges(graph: KnnGraph) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Return the lists and weights that subgraphs are cut from."""
    return graph.neighbors, graph.similarities
