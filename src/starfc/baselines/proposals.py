"""Cluster proposals for GCN-D: candidates of several scales, which overlap and contain each other.

In: the kNN graph and a base cosine. Out: Proposals. CDP's propagation at the base and around it gives proposals of at
least three faces; at the base its clusters, as super-vertices linked by their centres, give proposals one scale up (one
iteration of the paper's Algorithm 1). Centres of parts of one person are less alike than its faces: they are linked
from a cosine .3 lower on, each with its three nearest (released for MS1M: .7 and .4, 2 to 4 nearest, 4 to 16 parts).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..features import Features
from ..knn import KnnGraph, build_knn
from ..partition import label_by_dynamic_pruning
from ..sampling import index_people
from .pairs import cut_edges

_AROUND = (-0.1, -0.05, 0.0, 0.05)
_FEWEST = 3
_CENTERS = 3  # neighbours of a super-vertex
_CENTERS_BELOW = 0.3


@dataclass(frozen=True)
class Proposals:
    """Faces of proposal p: members[offsets[p] : offsets[p + 1]], ascending.

    Attributes
    ----------
    offsets : int64 (P + 1,)
    members : int32 (sum of sizes,)
    """

    offsets: NDArray[np.int64]
    members: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def get(self, p: int) -> NDArray[np.int32]:
        """Return the faces of a proposal."""
        return self.members[self.offsets[p] : self.offsets[p + 1]]


def propose_clusters(features: Features, graph: KnnGraph, *, base: float, max_size: int, max_parts: int) -> Proposals:
    """Propose clusters of all scales.

    Parameters
    ----------
    features : Features
        (n, d), for the centres of super-vertices.
    graph : KnnGraph
        (n, k).
    base : float
        Cosine around which is cut.
    max_size : int
        Largest cluster of the first scale.
    max_parts : int
        Most super-vertices in a proposal of the second scale.

    Returns
    -------
    Proposals
    """
    scales = []
    for shift in _AROUND:
        cut = base + shift
        scales.append(label_by_dynamic_pruning(cut_edges(graph, cut), max_size=max_size, start=cut))
    scales.append(_merge_scale(features, scales[_AROUND.index(0.0)], base, max_parts))
    return _collect(scales)


def _merge_scale(features: Features, labels: NDArray[np.int64], base: float, max_parts: int) -> NDArray[np.int64]:
    """Group clusters whose centres are alike."""
    index = index_people(features, labels)
    if len(index) < 3:
        return labels
    graph = build_knn(Features(index.centers), k=min(_CENTERS, len(index) - 1))
    cut = base - _CENTERS_BELOW
    groups = label_by_dynamic_pruning(cut_edges(graph, cut), max_size=max_parts, start=cut)
    return groups[np.searchsorted(index.people, labels)]


def _collect(scales: list[NDArray[np.int64]]) -> Proposals:
    """List the groups of all scales that are large enough, each set of faces once."""
    lists: dict[bytes, NDArray[np.int32]] = {}
    for labels in scales:
        order = np.argsort(labels, kind="stable").astype(np.int32)
        sizes = np.bincount(labels)
        stops = np.cumsum(sizes)
        for group in np.flatnonzero(sizes >= _FEWEST):
            members = order[stops[group] - sizes[group] : stops[group]]
            lists.setdefault(members.tobytes(), members)
    sizes = np.array([len(members) for members in lists.values()], dtype=np.int64)
    members = np.concatenate([np.empty(0, dtype=np.int32), *lists.values()])
    return Proposals(np.concatenate(([0], np.cumsum(sizes))), members)


def measure_overlap(proposals: Proposals, labels: NDArray[np.int64]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return IoU and IoP of every proposal with the person most of its faces show, float32 (P,) each.

    Faces whose person is not known (-1) count neither for nor against.

    >>> both = Proposals(np.array([0, 3]), np.array([0, 1, 2], np.int32))
    >>> [round(float(values[0]), 2) for values in measure_overlap(both, np.array([0, 0, 1, 1]))]
    [0.67, 0.67]
    """
    who, counts_of = np.unique(labels[labels >= 0], return_counts=True)
    faces_of = dict(zip(who.tolist(), counts_of.tolist(), strict=True))
    iou, iop = np.zeros(len(proposals), dtype=np.float32), np.zeros(len(proposals), dtype=np.float32)
    for p in range(len(proposals)):
        people = labels[proposals.get(p)]
        known, counts = np.unique(people[people >= 0], return_counts=True)
        if len(known) == 0:
            continue
        best = int(np.argmax(counts))
        shared, size = int(counts[best]), int(counts.sum())
        iou[p], iop[p] = shared / (size + faces_of[int(known[best])] - shared), shared / size
    return iou, iop
