import numpy as np
from hypothesis import given, settings

from graphs import knn_graphs
from starfc.affinity import build_affinity
from starfc.knn import KnnGraph


def dense_affinity(graph):
    """A~ = D~^-1 (A + I) in float64, entry by entry, as the formula stands."""
    n = len(graph.neighbors)
    listed = np.zeros((n, n))
    for i in range(n):
        for j, s in zip(graph.neighbors[i], graph.similarities[i], strict=True):
            if j >= 0:
                listed[i, j] = max(s, 0.0)
    matrix = np.maximum(listed, listed.T) + np.eye(n)
    return matrix / matrix.sum(axis=1, keepdims=True)


@settings(deadline=None)
@given(knn_graphs())
def test_equals_the_dense_formula(graph):
    np.testing.assert_allclose(build_affinity(graph).tocsr().toarray(), dense_affinity(graph), atol=1e-6)


@settings(deadline=None)
@given(knn_graphs())
def test_rows_sum_to_one_and_hold_no_column_twice(graph):
    matrix = build_affinity(graph).tocsr()
    for start, stop in zip(matrix.indptr[:-1], matrix.indptr[1:], strict=True):
        assert len(set(matrix.indices[start:stop].tolist())) == stop - start
        np.testing.assert_allclose(matrix.data[start:stop].sum(), 1.0, atol=1e-6)


def test_one_sided_edge_takes_the_larger_similarity_on_both_sides():
    # 0 lists 1 at .2, 1 lists 0 at .8: lists of an approximate or foreign graph may disagree
    graph = KnnGraph(np.array([[1], [0]], np.int32), np.array([[0.2], [0.8]], np.float32))
    np.testing.assert_allclose(
        build_affinity(graph).tocsr().toarray(), [[1 / 1.8, 0.8 / 1.8], [0.8 / 1.8, 1 / 1.8]], atol=1e-6
    )
