import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphs import scored_graphs
from starfc.errors import InputError
from starfc.partition import label_by_dynamic_pruning, label_components, partition_graph
from starfc.prune import EdgeGraph, parse_edges


def walk_components(n, pairs):
    """Breadth-first search over undirected pairs; labels by first appearance."""
    around = {i: set() for i in range(n)}
    for i, j in pairs:
        around[i].add(j)
        around[j].add(i)
    labels = [-1] * n
    for start in range(n):
        if labels[start] < 0:
            label, frontier = max(labels) + 1, [start]
            while frontier:
                node = frontier.pop()
                if labels[node] < 0:
                    labels[node] = label
                    frontier.extend(around[node])
    return labels


def scored_pairs(graph):
    sources = np.repeat(np.arange(graph.n_nodes), np.diff(graph.offsets))
    return list(zip(sources.tolist(), graph.targets.tolist(), graph.scores.tolist(), strict=True))


def prune_dynamically(n, edges, max_size, threshold, step):
    """CDP's loop with sets: components that are too large are cut again at a raised threshold, each on its own."""
    done, queue = [], [set(range(n))]
    while queue:
        inside = [(i, j) for i, j, s in edges if s >= np.float32(threshold) and any({i, j} <= group for group in queue)]
        if np.float32(threshold) >= 1:
            inside = []
        labels = walk_components(n, inside)
        groups = [
            {i for i in group if labels[i] == label} for group in queue for label in sorted({labels[i] for i in group})
        ]
        done += [group for group in groups if len(group) <= max_size]
        queue = [group for group in groups if len(group) > max_size]
        threshold += (1 - threshold) * step
    return {frozenset(group) for group in done}


@settings(deadline=None)
@given(scored_graphs(), st.sampled_from([0.0, 0.5, 0.9, 1.0]))
def test_components_equal_a_search(scored, tau1):
    graph = parse_edges(scored, tau1)
    assert label_components(graph).tolist() == walk_components(
        graph.n_nodes, [(i, j) for i, j, _ in scored_pairs(graph)]
    )


@settings(deadline=None)
@given(scored_graphs(), st.integers(1, 8), st.sampled_from([0.05, 0.3, 0.6]))
def test_dynamic_pruning_equals_sets(scored, max_size, step):
    graph = parse_edges(scored, 0.2)
    labels = label_by_dynamic_pruning(graph, max_size=max_size, start=0.3, step=step)
    found = {frozenset(np.flatnonzero(labels == label).tolist()) for label in set(labels.tolist())}
    assert found == prune_dynamically(graph.n_nodes, scored_pairs(graph), max_size, 0.3, step)
    assert np.bincount(labels).max() <= max_size


def test_dynamic_pruning_cuts_the_weakest_link_of_a_chain():
    # 0 - 1 = 2 - 3 with a weak middle: too large as one, right as two
    graph = EdgeGraph(np.array([0, 1, 2, 3, 3]), np.array([1, 2, 3], np.int32), np.array([0.95, 0.6, 0.95], np.float32))
    assert label_by_dynamic_pruning(graph, max_size=2, start=0.5).tolist() == [0, 0, 1, 1]
    assert label_by_dynamic_pruning(graph, max_size=4, start=0.5).tolist() == [0, 0, 0, 0]


def test_no_nodes_and_no_edges():
    assert (
        label_components(EdgeGraph(np.zeros(1, np.int64), np.empty(0, np.int32), np.empty(0, np.float32))).tolist()
        == []
    )
    lonely = EdgeGraph(np.zeros(4, np.int64), np.empty(0, np.int32), np.empty(0, np.float32))
    assert partition_graph(lonely).tolist() == [0, 1, 2]
    assert partition_graph(lonely, partition="dynamic").tolist() == [0, 1, 2]


def test_unknown_partition_and_bad_limits_are_refused():
    lonely = EdgeGraph(np.zeros(4, np.int64), np.empty(0, np.int32), np.empty(0, np.float32))
    with pytest.raises(InputError, match="louvain"):
        partition_graph(lonely, partition="louvain")
    with pytest.raises(InputError, match="max_size"):
        label_by_dynamic_pruning(lonely, max_size=0)
