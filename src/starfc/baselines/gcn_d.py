"""GCN-D and GCN-D + GCN-S (Yang et al., "Learning to cluster faces on an affinity graph", CVPR 2019).

Clustering as detection. Many overlapping proposals (`proposals.py`) are judged by a graph network over their faces
(rows as they are, graph convolutions, maximum over the faces), which learns by least squares how well a proposal fits
a person:

    IoU = |P and G| / |P or G|,    IoP = |P and G| / |P|,    G the person most faces of P show.

Proposals are then taken in the order of predicted IoU, each face by the first that holds it (de-overlapping); faces
of no proposal stay alone. With `segment`, proposals of middling predicted IoP are cleaned first (`gcn_s.py`).

Published for MS1M: k = 80, proposals at cosines .6, .65, .7, .75 of at most 300 faces, layers of 512 and 64.
Deviations: one network for IoU and IoP, half the first width, one iteration of super-vertices, larger proposals
judged by their first `most` faces. Tuning chooses the base cosine of the proposals (.7) as CDP's best on the training
people.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..features import Features
from ..knn import KnnGraph
from ..metrics import evaluate
from ..progress import Progress, silent
from . import cdp
from .gcn_s import SegmentNetwork, clean_proposals, read_padded, train_segments
from .learning import DenseGcn, draw_weights, get_arrays, load_arrays, run_steps
from .padded import build_adjacency, pad_lists
from .pairs import COSINES
from .proposals import Proposals, measure_overlap, propose_clusters
from .weights import Weights

import torch  # isort: skip
from torch import Tensor, nn  # isort: skip

GRID: tuple[dict[str, Any], ...] = tuple({"least": value} for value in (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6))
_BATCH = 16
_RATE = 1e-3
_MAX_PARTS = 16
_FIRST_WEIGHTS, _DRAW = range(2)


@dataclass(frozen=True)
class Evidence:
    """Proposals, their predicted IoU (P,), which members stay after segmentation, and the number of faces."""

    proposals: Proposals
    iou: NDArray[np.float32]
    stays: NDArray[np.bool_]
    n_faces: int


class DetectNetwork(nn.Module):
    """Rows (b, m, d) -> IoU and IoP (b, 2)."""

    def __init__(self, dim: int, widths: Sequence[int]) -> None:
        super().__init__()
        self.gcn = DenseGcn(dim, widths)
        self.head = nn.Linear(widths[-1], 2)

    def forward(self, rows: Tensor, adjacency: Tensor, present: Tensor) -> Tensor:
        """Return both overlaps; outputs of the layers are not negative, so padding is out of the maximum at 0."""
        pooled = (self.gcn(rows, adjacency) * present[..., None]).amax(dim=1)
        overlaps: Tensor = self.head(pooled)
        return overlaps


def choose_training(features: Features, graph: KnnGraph, labels: NDArray[np.int64]) -> dict[str, Any]:
    """Choose the base cosine of the proposals: CDP's best on the training people."""
    scores = []
    for cosine in COSINES:
        found = evaluate(labels, cdp.cluster_faces(features, graph, threshold=cosine))
        scores.append(found.pairwise.f + found.bcubed.f)
    return {"base": COSINES[int(np.argmax(scores))]}


def train_model(
    features: Features,
    graph: KnnGraph,
    labels: NDArray[np.int64],
    *,
    steps: int | None = None,
    base: float = 0.7,
    max_size: int = 300,
    most: int = 300,
    widths: Sequence[int] = (256, 64),
    segment: bool = True,
    seed: int = 0,
    progress: Progress = silent,
) -> Weights:
    """Learn to judge proposals, and to clean them.

    Parameters
    ----------
    features : Features
        (n, d).
    graph : KnnGraph
        (n, k).
    labels : int64 (n,)
    steps : int, optional
        Of 16 proposals each, for either network; 250.
    base : float
        Cosine around which proposals are cut.
    max_size, most : int
        Largest proposal of the first scale, and faces of one that are looked at.
    widths : sequence of int
        Of the graph convolutions.
    segment : bool
        Whether GCN-S is trained too.
    seed : int

    Returns
    -------
    Weights
    """
    network = DetectNetwork(features.dim, widths)
    draw_weights(network, np.random.default_rng([seed, _FIRST_WEIGHTS]))
    proposals = propose_clusters(features, graph, base=base, max_size=max_size, max_parts=_MAX_PARTS)
    iou, iop = measure_overlap(proposals, labels)
    wanted = np.stack([iou, iop], axis=1)

    def measure_loss(step: int) -> Tensor:
        drawn = np.random.default_rng([seed, _DRAW, step]).integers(len(proposals), size=_BATCH)
        found = _detect(network, features, graph, pad_lists([proposals.get(p) for p in drawn], most))
        return nn.functional.mse_loss(found, torch.from_numpy(wanted[drawn]))

    n_steps = steps or 250
    if len(proposals):
        run_steps(network, measure_loss, steps=n_steps, learning_rate=_RATE, stage="train", progress=progress)
    facts = {"base": base, "max_size": max_size, "most": most, "widths": list(widths), "segment": segment}
    tensors = get_arrays(network, "detect.")
    if segment:
        second = SegmentNetwork(features.dim, widths)
        train_segments(
            second, features, graph, labels, proposals, iop, steps=n_steps, most=most, seed=seed, progress=progress
        )
        tensors |= get_arrays(second, "segment.")
    return Weights(tensors, facts)


def cluster_faces(
    features: Features,
    graph: KnnGraph,
    *,
    model: Weights,
    segment: bool = True,
    least: float = 0.0,
    seed: int = 0,
) -> NDArray[np.int64]:
    """Judge proposals and take the best first.

    Parameters
    ----------
    features : Features
        (n, d).
    graph : KnnGraph
        (n, k).
    model : Weights
        From :func:`train_model`.
    segment : bool
        Whether proposals are cleaned, if the model can.
    least : float
        Predicted IoU below which a proposal is not taken.
    seed : int
        Not used.

    Returns
    -------
    int64 (n,)
        -1 for faces of no proposal.
    """
    return cluster_evidence(measure_evidence(features, graph, model), segment=segment, least=least)


def cluster_evidence(
    evidence: Evidence, *, segment: bool = True, least: float = 0.0, seed: int = 0
) -> NDArray[np.int64]:
    """De-overlap: proposals in the order of predicted IoU, each face by the first that holds it."""
    labels = np.full(evidence.n_faces, -1, dtype=np.int64)
    proposals = evidence.proposals
    for p in np.argsort(-evidence.iou, kind="stable"):
        if evidence.iou[p] < least:
            break
        members = proposals.get(int(p))
        if segment:
            members = members[evidence.stays[proposals.offsets[p] : proposals.offsets[p + 1]]]
        labels[members[labels[members] < 0]] = p
    return labels


def measure_evidence(features: Features, graph: KnnGraph, model: Weights) -> Evidence:
    """Propose, predict the overlaps, and clean."""
    facts = model.facts
    network = DetectNetwork(features.dim, facts["widths"])
    load_arrays(network, model.select("detect."))
    proposals = propose_clusters(features, graph, base=facts["base"], max_size=facts["max_size"], max_parts=_MAX_PARTS)
    found = np.zeros((len(proposals), 2), dtype=np.float32)
    by_size = np.argsort(np.diff(proposals.offsets), kind="stable")  # a batch is padded to its largest
    for start in range(0, len(by_size), _BATCH):
        batch = by_size[start : start + _BATCH]
        with torch.no_grad():
            nodes = pad_lists([proposals.get(int(p)) for p in batch], facts["most"])
            found[batch] = _detect(network, features, graph, nodes).numpy()
    stays = np.ones(len(proposals.members), dtype=np.bool_)
    if facts["segment"]:
        second = SegmentNetwork(features.dim, facts["widths"])
        load_arrays(second, model.select("segment."))
        stays = clean_proposals(second, features, graph, proposals, found[:, 1], most=facts["most"])
    return Evidence(proposals, found[:, 0], stays, len(features))


def _detect(network: DetectNetwork, features: Features, graph: KnnGraph, nodes: NDArray[np.int32]) -> Tensor:
    """Return predicted IoU and IoP of a batch of proposals, (b, 2)."""
    adjacency = build_adjacency(nodes, graph.neighbors, graph.similarities)
    present = torch.from_numpy((nodes >= 0).astype(np.float32))
    overlaps: Tensor = network(torch.from_numpy(read_padded(features, nodes)), torch.from_numpy(adjacency), present)
    return overlaps
