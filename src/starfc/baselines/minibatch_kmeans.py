"""Mini-batch K-Means (Sculley, "Web-scale k-means clustering", WWW 2010), with faiss for the nearest centre.

Each round draws `batch` faces, finds the nearest centre of each, and moves every centre to the running mean of all
faces it was ever given:  c <- c + (sum of its new faces - m c) / N,  with m new faces and N so far (Sculley's
per-centre learning rate 1/N, applied to a whole batch at once). Centres are scaled to length one when faces are
compared. Memory: the centres and a batch, so the features may be larger than memory.

Published for MS1M (learn-to-cluster): 5,000 clusters, batches of 100. Deviations: 68 faces a cluster as in K-Means,
MS1M's mean; the batch is at least four times the centres, so that a round gives most of them something.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..features import Features
from ..knn import KnnGraph
from .kmeans import GRID as GRID
from .kmeans import count_clusters


def cluster_faces(
    features: Features,
    graph: KnnGraph,
    *,
    faces_per_cluster: float = 68.0,
    n_rounds: int = 40,
    batch: int = 1000,
    seed: int = 0,
) -> NDArray[np.int64]:
    """Group faces around n / faces_per_cluster centres; the graph is not used.

    Rounds are of `batch` faces, or of four for each centre where that is more.
    """
    n_clusters = count_clusters(len(features), faces_per_cluster)
    rng = np.random.default_rng(seed)
    centers = features.take(np.sort(rng.choice(len(features), n_clusters, replace=False)))
    seen = np.ones(n_clusters)
    n_drawn = min(len(features), max(batch, 4 * n_clusters))
    for _ in range(n_rounds):
        rows = features.take(np.sort(rng.choice(len(features), n_drawn, replace=False)))
        nearest = _find_nearest(rows, centers)
        counts = np.bincount(nearest, minlength=n_clusters)
        sums = np.zeros_like(centers)
        np.add.at(sums, nearest, rows)
        seen += counts
        centers += (sums - counts[:, None] * centers) / seen[:, None].astype(np.float32)
    parts = [_find_nearest(features.read(start, stop), centers) for start, stop in features.blocks()]
    return np.concatenate(parts)


def _find_nearest(rows: NDArray[np.float32], centers: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the centre with the highest cosine for each row."""
    import faiss

    index: Any = faiss.IndexFlatIP(rows.shape[1])
    lengths = np.sqrt(np.einsum("cd,cd->c", centers, centers))[:, None]
    index.add(centers / np.maximum(lengths, np.finfo(np.float32).tiny))
    return np.asarray(index.search(rows, 1)[1][:, 0], dtype=np.int64)
