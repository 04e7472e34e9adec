"""Random and degenerate kNN graphs for hypothesis, shared by the tests of the graph stages."""

import numpy as np
from hypothesis import strategies as st

from starfc.knn import KnnGraph
from starfc.score import ScoredEdges


@st.composite
def knn_graphs(draw, max_nodes=24, max_k=8):
    """Draw a kNN graph: any lists without self and without repeats, padded with -1, similarities of either sign."""
    n = draw(st.integers(1, max_nodes))
    k = draw(st.integers(1, max_k))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    fill = draw(st.sampled_from([0.0, 0.3, 1.0]))  # no edges at all, sparse, full lists
    neighbors = np.full((n, k), -1, dtype=np.int32)
    similarities = np.zeros((n, k), dtype=np.float32)
    for i in range(n):
        others = np.delete(np.arange(n), i)
        degree = min(k, len(others), int(rng.binomial(k, fill)))
        neighbors[i, :degree] = rng.choice(others, size=degree, replace=False) if degree else []
        # a few values only, so that ties and zeros are common
        similarities[i, :degree] = np.sort(rng.choice([-0.5, 0.0, 0.25, 0.5, 0.9, 1.0], size=degree))[::-1]
    return KnnGraph(neighbors, similarities)


@st.composite
def scored_graphs(draw, max_nodes=24, max_k=8):
    """Draw ScoredEdges with scores in [0, 1], ties included."""
    graph = draw(knn_graphs(max_nodes, max_k))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    scores = rng.choice([0.0, 0.1, 0.3, 0.5, 0.7, 0.72, 0.9, 1.0], size=graph.neighbors.shape).astype(np.float32)
    return ScoredEdges(graph.neighbors, scores)


def random_knn_graph(n, k, seed=0):
    """Return a large random graph with similarities in (0, 1)."""
    rng = np.random.default_rng(seed)
    neighbors = (np.arange(n)[:, None] + 1 + np.argsort(rng.random((n, min(n - 1, 4 * k))), axis=1)[:, :k]) % n
    similarities = np.sort(rng.random((n, k)).astype(np.float32), axis=1)[:, ::-1].copy()
    return KnnGraph(neighbors.astype(np.int32), similarities)
