"""DBSCAN on the kNN graph (Ester et al., "A density-based algorithm for discovering clusters", KDD 1996).

A face with at least `min_samples` faces (itself included) within cosine distance `eps` is a core. Cores within eps of
each other share a cluster; a face that is no core joins the first cluster with a core within eps of it; the others are
noise (-1, a cluster of one). Ranges are looked up in the kNN lists, so a face has at most k + 1 in range: with complete
lists the result is scikit-learn's, and `min_samples` above k + 1 leaves no core.

Published for MS1M (learn-to-cluster): k = 80, eps = .25, min_samples = 1.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..features import Features
from ..knn import KnnGraph
from ..partition import label_components
from ..prune import EdgeGraph
from .pairs import COSINES, cut_edges, list_sources

GRID: tuple[dict[str, Any], ...] = tuple(
    {"eps": round(1 - cosine, 2), "min_samples": fewest} for cosine in COSINES for fewest in (1, 3, 5, 10, 20)
)


def cluster_faces(
    features: Features, graph: KnnGraph, *, eps: float = 0.25, min_samples: int = 1, seed: int = 0
) -> NDArray[np.int64]:
    """Label density-connected faces, clusters numbered by their first core.

    `eps` is the cosine distance within which faces are in range, `min_samples` how many in range make a core, the face
    itself included.
    """
    near = cut_edges(graph, 1 - eps)
    core = np.diff(near.offsets) + 1 >= min_samples
    sources = list_sources(near)
    components = label_components(near.keep(core[sources] & core[near.targets]))
    labels = np.full(graph.n, -1, dtype=np.int64)
    labels[core] = np.unique(components[core], return_inverse=True)[1]
    return _adopt_borders(labels, core, near, sources)


def _adopt_borders(
    labels: NDArray[np.int64], core: NDArray[np.bool_], near: EdgeGraph, sources: NDArray[np.int32]
) -> NDArray[np.int64]:
    """Give every face in range of a core the lowest label among such cores, whichever of the two lists the other."""
    none = len(labels)
    lowest = np.full(len(labels), none, dtype=np.int64)
    for border, inner in ((sources, near.targets), (near.targets, sources)):
        edges = ~core[border] & core[inner]
        np.minimum.at(lowest, border[edges], labels[inner[edges]])
    return np.where(core, labels, np.where(lowest < none, lowest, -1))
