"""Infomap on cosines ("Face clustering by Infomap", 2021; the map equation: Rosvall and Bergstrom, PNAS 2008).

The edges of the kNN graph at or above a cosine, weighted by it, are partitioned by the two-level map equation: our own
`mapequation.py`, not the GPL package. Published for MS1M: k = 50, threshold .58. Deviation: undirected flow, where a
mutual pair counts twice, in place of a directed walk with teleportation.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..features import Features
from ..knn import KnnGraph
from ..mapequation import label_by_map_equation
from .pairs import COSINES, cut_edges

GRID: tuple[dict[str, Any], ...] = tuple({"threshold": cosine} for cosine in COSINES)


def cluster_faces(
    features: Features, graph: KnnGraph, *, threshold: float = 0.58, k: int = 50, seed: int = 0
) -> NDArray[np.int64]:
    """Label the modules of the graph of cosines at or above a threshold.

    `k` is how many neighbours of each face count; `seed` is of the order in which faces are tried.
    """
    return label_by_map_equation(cut_edges(graph, threshold, k=k), seed=seed)
