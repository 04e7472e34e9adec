"""HDBSCAN (Campello et al., "Density-based clustering based on hierarchical density estimates", PAKDD 2013).

The tree of single linkage under the mutual reachability distance  max(core(a), core(b), d(a, b)),  core(a) the
distance of the min_samples-th neighbour, is condensed to clusters of at least min_cluster_size faces, of which the
most stable ones are taken. The tree is scikit-learn's, from the kNN graph as a sparse matrix of cosine distances: all
pairs would take n² time. Deviation: lists without a path between them are joined at the largest distance there is, 2,
which is where all pairs would join them at the latest. With complete lists the tree has the heights of all pairs
exactly; many heights are equal, though, and their order decides what is made of them: of eight sets of 80 random
faces, three gave the same clusters either way. No figure is published for MS1M; the settings are scikit-learn's.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..features import Features
from ..knn import KnnGraph
from ..partition import label_components
from .pairs import cut_edges, list_sources, pair_edges

GRID: tuple[dict[str, Any], ...] = tuple(
    {"min_cluster_size": smallest, "min_samples": fewest} for smallest in (2, 3, 5, 10, 20) for fewest in (2, 5, 10)
)
_FARTHEST = 2.0  # cosine distance of opposite faces


def cluster_faces(
    features: Features, graph: KnnGraph, *, min_cluster_size: int = 5, min_samples: int = 5, seed: int = 0
) -> NDArray[np.int64]:
    """Label the most stable clusters of the density tree.

    `min_cluster_size` faces make a cluster. `min_samples` is the rank of the neighbour whose distance is the core
    distance, the face itself not counted (scikit-learn counts it where it is given all pairs).
    """
    from sklearn.cluster import HDBSCAN

    distances = _build_distances(graph)
    fewest = min(min_samples, int(np.diff(distances.indptr).min()))
    tree = HDBSCAN(min_cluster_size=min(min_cluster_size, graph.n), min_samples=fewest, metric="precomputed", copy=True)
    with warnings.catch_warnings(action="ignore"):  # scikit-learn's own use of numpy and scipy
        labels = tree.fit(distances).labels_
    return np.where(labels < 0, -1, labels).astype(np.int64)


def _build_distances(graph: KnnGraph) -> Any:  # noqa: ANN401
    """Return the symmetric sparse matrix of cosine distances, in one connected piece, csr_matrix (n, n)."""
    from scipy.sparse import coo_matrix

    pairs = pair_edges(cut_edges(graph, -2.0))
    firsts = np.unique(label_components(pairs), return_index=True)[1]  # a face of each component
    low = np.concatenate([list_sources(pairs), firsts[:-1]])
    high = np.concatenate([pairs.targets, firsts[1:]])
    # scipy takes a stored 0 for no edge, which two equal faces are not
    near = np.maximum(1.0 - pairs.scores.astype(np.float64), 1e-12)
    values = np.concatenate([near, np.full(len(firsts) - 1, _FARTHEST)])
    half = coo_matrix((values, (low, high)), shape=(graph.n, graph.n)).tocsr()
    return (half + half.T).tocsr()
