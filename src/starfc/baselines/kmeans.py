"""K-Means on unit vectors (Lloyd, "Least squares quantization in PCM", IEEE Trans. Inf. Theory 1982), by faiss.

Minimises  sum_i |x_i - c_a(i)|²  by turns: every face goes to its nearest centre, every centre to the mean of its faces
(scaled to length one: faces are compared by cosine). The number of clusters must be given; here it is
n / faces_per_cluster, with 68 faces a person as on MS1M (584,013 faces of 8,573 people), which is what the published
figures use. Deviation: 20 rounds from random faces, faiss's way of splitting empty clusters.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..features import Features
from ..knn import KnnGraph

GRID: tuple[dict[str, Any], ...] = tuple({"faces_per_cluster": size} for size in (2, 3, 5, 8, 12, 20, 35, 50, 68, 100))


def cluster_faces(
    features: Features, graph: KnnGraph, *, faces_per_cluster: float = 68.0, n_rounds: int = 20, seed: int = 0
) -> NDArray[np.int64]:
    """Group faces around n / faces_per_cluster centres, the first being random ones; the graph is not used."""
    import faiss

    n_clusters = count_clusters(len(features), faces_per_cluster)
    rows = features.read(0, len(features))
    means = faiss.Kmeans(
        features.dim, n_clusters, niter=n_rounds, seed=seed + 1, spherical=True,
        min_points_per_centroid=1, max_points_per_centroid=len(rows),
    )  # fmt: skip
    means.train(rows)
    return np.asarray(means.index.search(rows, 1)[1][:, 0], dtype=np.int64)


def count_clusters(n_faces: int, faces_per_cluster: float) -> int:
    """Return how many clusters n faces make.

    >>> count_clusters(100, 30.0), count_clusters(2, 68.0)
    (3, 1)
    """
    return min(n_faces, max(1, round(n_faces / faces_per_cluster)))
