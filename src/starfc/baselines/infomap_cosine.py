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
    features: Features,
    graph: KnnGraph,
    *,
    threshold: float = 0.58,
    k: int = 50,
    seed: int = 0,
) -> NDArray[np.int64]:
    """Label the modules of the graph of cosines at or above a threshold.

    Parameters
    ----------
    features : Features
        (n, d); not read.
    graph : KnnGraph
        (n, k) or more neighbours.
    threshold : float
        Cosine from which on faces are linked.
    k : int
        Neighbours of each face that count.
    seed : int
        Of the order in which faces are tried.

    Returns
    -------
    int64 (n,)

    Examples
    --------
    >>> from starfc.knn import build_knn
    >>> faces = Features(np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]]))
    >>> cluster_faces(faces, build_knn(faces, k=3)).tolist()
    [0, 0, 1, 1]
    """
    return label_by_map_equation(cut_edges(graph, threshold, k=k), seed=seed)
