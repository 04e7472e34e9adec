import numpy as np
from hypothesis import given, settings

from graphs import knn_graphs
from starfc.knn import KnnGraph
from starfc.roworder import order_rows


@settings(deadline=None)
@given(knn_graphs())
def test_every_row_once(graph):
    order = order_rows(graph)
    assert order.dtype == np.int32 and sorted(order.tolist()) == list(range(graph.n))


def test_planted_groups_stand_together():
    rng = np.random.default_rng(0)
    people = rng.permutation(np.repeat(np.arange(40), 25))
    lists = np.array([rng.permutation(np.flatnonzero((people == p) & (np.arange(1000) != i)))[:12]
                      for i, p in enumerate(people)], np.int32)  # fmt: skip
    lists[:, 9:] = rng.integers(0, 1000, (1000, 3))  # and some strangers
    order = order_rows(KnnGraph(lists, np.ones((1000, 12), np.float32)))
    position = np.argsort(order)
    near = np.abs(position[lists[:, :9]] - position[:, None]) < 50
    assert near.mean() > 0.5 and (np.abs(lists[:, :9] - np.arange(1000)[:, None]) < 50).mean() < 0.2


def test_the_order_of_the_knn_stage_is_kept():
    given_order = np.array([2, 0, 1], np.int32)
    graph = KnnGraph(np.array([[1], [2], [0]], np.int32), np.ones((3, 1), np.float32), given_order)
    np.testing.assert_array_equal(order_rows(graph), given_order)
