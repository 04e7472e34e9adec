"""GCN-D and GCN-D + GCN-S (Yang et al., "Learning to cluster faces on an affinity graph", CVPR 2019).

Clustering as detection. Many overlapping proposals (`proposals.py`) are judged by a graph network over their faces
(rows as they are, graph convolutions, maximum over the faces), which learns by least squares how well a proposal fits
a person:

    IoU = |P and G| / |P or G|,    IoP = |P and G| / |P|,    G the person most faces of P show.

Proposals are then taken in the order of predicted IoU, each face by the first that holds it (de-overlapping); faces
of no proposal stay alone. With `segment`, proposals of middling predicted IoP are cleaned first (`gcn_s.py`).

Published for MS1M: k = 80, proposals at cosines .6, .65, .7, .75 of at most 300 faces, layers of 512 and 64.
Deviations: one network for IoU and IoP, half the first width, one iteration of super-vertices, edges weighted by their
cosines (released: all alike), larger proposals judged by their first `most` faces. Tuning chooses the base cosine of
the proposals (.7) as CDP's best on the training people.
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
from . import cdp
from .frame import Lesson, in_two_steps, learns
from .gcn_s import PREDICTED, SegmentNetwork, clean_proposals, read_padded, train_segments
from .learning import DenseGcn, get_arrays, load_arrays, run_steps, start_network
from .padded import build_adjacency, pad_lists
from .pairs import COSINES
from .proposals import Proposals, measure_overlap, propose_clusters
from .weights import Weights

import torch  # isort: skip
from torch import Tensor, nn  # isort: skip

GRID: tuple[dict[str, Any], ...] = tuple(
    {"least": value, "mixed": mixed}
    for mixed in (PREDICTED, (0.3, 0.7)) for value in (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
)  # fmt: skip
_BATCH = 16
_MAX_PARTS = 16
_DRAW = 1


@dataclass(frozen=True)
class Evidence:
    """Proposals, their predicted IoU and IoP (P,), which members segmentation would keep, and the number of faces."""

    proposals: Proposals
    iou: NDArray[np.float32]
    iop: NDArray[np.float32]
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


@learns
def train_model(
    lesson: Lesson, *, base: float = 0.7, max_size: int = 300, most: int = 300, widths: Sequence[int] = (256, 64),
    segment: bool = True,
) -> Weights:  # fmt: skip
    """Learn to judge proposals, and with `segment` to clean them, in 250 steps of 16 proposals each.

    `base` is the cosine around which proposals are cut, `max_size` the largest of the first scale, `most` how many
    faces of one are looked at.
    """
    features, graph = lesson.features, lesson.graph
    network = start_network(DetectNetwork(features.dim, widths), lesson)
    proposals = propose_clusters(features, graph, base=base, max_size=max_size, max_parts=_MAX_PARTS)
    iou, iop = measure_overlap(proposals, lesson.labels)
    wanted = np.stack([iou, iop], axis=1)

    def measure_loss(step: int) -> Tensor:
        drawn = lesson.rng(_DRAW, step).integers(len(proposals), size=_BATCH)
        found = _detect(network, features, graph, pad_lists([proposals.get(p) for p in drawn], most))
        return nn.functional.mse_loss(found, torch.from_numpy(wanted[drawn]))

    if len(proposals):
        run_steps(network, measure_loss, lesson, steps=250)
    facts = {"base": base, "max_size": max_size, "most": most, "widths": list(widths), "segment": segment}
    tensors = get_arrays(network, "detect.")
    if segment:
        tensors |= get_arrays(train_segments(lesson, proposals, iop, widths=widths, most=most), "segment.")
    return Weights(tensors, facts)


def cluster_evidence(
    evidence: Evidence,
    *,
    segment: bool = True,
    least: float = 0.0,
    mixed: Sequence[float] = PREDICTED,
    seed: int = 0,
) -> NDArray[np.int64]:
    """De-overlap: proposals in the order of predicted IoU down to `least`, each face by the first that holds it.

    With `segment`, those of a predicted IoP between the two of `mixed` are cleaned.
    """
    labels = np.full(evidence.n_faces, -1, dtype=np.int64)
    proposals = evidence.proposals
    for p in np.argsort(-evidence.iou, kind="stable"):
        if evidence.iou[p] < least:
            break
        members = proposals.get(int(p))
        if segment and mixed[0] < evidence.iop[p] < mixed[1]:
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
    return Evidence(proposals, found[:, 0], found[:, 1], stays, len(features))


cluster_faces = in_two_steps(measure_evidence, cluster_evidence)


def _detect(network: DetectNetwork, features: Features, graph: KnnGraph, nodes: NDArray[np.int32]) -> Tensor:
    """Return predicted IoU and IoP of a batch of proposals, (b, 2)."""
    adjacency = build_adjacency(nodes, graph.neighbors, graph.similarities)
    present = torch.from_numpy((nodes >= 0).astype(np.float32))
    overlaps: Tensor = network(torch.from_numpy(read_padded(features, nodes)), torch.from_numpy(adjacency), present)
    return overlaps
