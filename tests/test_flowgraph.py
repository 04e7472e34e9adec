"""The flow graph against sums over a dictionary of pairs."""

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_graphs import plant_groups, sum_pairs, weighted_graphs
from starfc import flowgraph
from starfc.flowgraph import aggregate_modules, build_flow_graph, drop_links
from starfc.threads import limited_threads


def draw_labels(n, seed):
    """Draw dense labels."""
    drawn = np.random.default_rng(seed).integers(0, n, n)
    return np.unique(drawn, return_inverse=True)[1].reshape(-1).astype(np.int32)


@settings(deadline=None)
@given(weighted_graphs())
def test_both_directions_and_repeats_add_up(graph):
    flow_graph = build_flow_graph(graph)
    found = {}
    for i in range(graph.n_nodes):
        row = range(flow_graph.offsets[i], flow_graph.offsets[i + 1])
        assert len({int(flow_graph.targets[e]) for e in row}) == len(row)
        found |= {(i, int(flow_graph.targets[e])): float(flow_graph.weights[e]) for e in row}
    pairs = sum_pairs(graph)
    assert found == pairs | {(j, i): weight for (i, j), weight in pairs.items()}
    assert flow_graph.flows.sum() == 2 * sum(pairs.values())


@settings(deadline=None)
@given(weighted_graphs(), st.integers(0, 2**32 - 1))
def test_module_graphs_keep_what_leaves(graph, seed):
    flow_graph = build_flow_graph(graph)
    labels = draw_labels(graph.n_nodes, seed)
    level = aggregate_modules(flow_graph, labels)
    between = np.zeros((level.n_nodes, level.n_nodes))
    for (i, j), weight in sum_pairs(graph).items():
        between[labels[i], labels[j]] += weight
        between[labels[j], labels[i]] += weight
    flows = between.sum(axis=1)
    np.fill_diagonal(between, 0.0)
    dense = np.zeros_like(between)
    dense[np.repeat(np.arange(level.n_nodes), np.diff(level.offsets)), level.targets] = level.weights
    np.testing.assert_array_equal(dense, between)
    np.testing.assert_array_equal(level.flows, flows)


@settings(deadline=None)
@given(weighted_graphs(), st.integers(0, 2**32 - 1))
def test_links_inside_and_outside_modules_add_up(graph, seed):
    flow_graph = build_flow_graph(graph)
    labels = draw_labels(graph.n_nodes, seed)
    inside, outside = np.zeros(graph.n_nodes), np.zeros(graph.n_nodes)
    for (i, j), weight in sum_pairs(graph).items():
        sums = inside if labels[i] == labels[j] else outside
        sums[[i, j]] += weight
    np.testing.assert_array_equal(flow_graph.sum_links(labels, inside=True), inside)
    np.testing.assert_array_equal(flow_graph.sum_links(labels, inside=False), outside)
    np.testing.assert_array_equal(flow_graph.flows, inside + outside)


@settings(deadline=None)
@given(weighted_graphs(), st.integers(0, 2**32 - 1))
def test_dropping_links_equals_a_graph_built_without_them(graph, seed):
    marked = np.random.default_rng(seed).random(graph.n_nodes) < 0.5
    sources = np.repeat(np.arange(graph.n_nodes), np.diff(graph.offsets))
    found = drop_links(build_flow_graph(graph), marked)
    expected = build_flow_graph(graph.keep(~(marked[sources] & marked[graph.targets])))
    for name in ("offsets", "targets", "weights", "flows"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))


def test_reversing_edges_in_blocks_keeps_their_order():
    graph, _ = plant_groups(10, 20, inside=4, outside=4, seed=3)
    one, several = flowgraph._reverse_edges(graph, 1), flowgraph._reverse_edges(graph, 5)
    for name in ("offsets", "targets", "scores"):
        np.testing.assert_array_equal(getattr(one, name), getattr(several, name))
    sources = np.repeat(np.arange(graph.n_nodes), np.diff(graph.offsets))
    usable = graph.targets != sources
    order = np.lexsort((sources[usable], graph.targets[usable]))
    np.testing.assert_array_equal(one.targets, sources[usable][order])
    np.testing.assert_array_equal(one.scores, graph.scores[usable][order])


@pytest.mark.parametrize("n_threads", sorted({1, numba.get_num_threads()}))
def test_threads_change_no_bit(monkeypatch, n_threads):
    graph, truth = plant_groups(50, 20, inside=4, outside=4, seed=2)
    labels = truth.astype(np.int32)
    expected = build_flow_graph(graph)  # on one thread: the graph is small
    monkeypatch.setattr(flowgraph, "_WORTH_THREADS", 0)
    with limited_threads(n_threads):
        found = build_flow_graph(graph)
        pairs = [(found, expected), (aggregate_modules(found, labels), aggregate_modules(expected, labels))]
        assert numba.get_num_threads() == n_threads
    for one, other in pairs:
        for name in ("offsets", "targets", "weights", "flows"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
