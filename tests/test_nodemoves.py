"""Node moves against the plain formula, and those within groups against one group after another."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_graphs import plant_groups, sum_pairs, weighted_graphs
from starfc import flowgraph
from starfc.flowgraph import build_flow_graph
from starfc.nodemoves import move_nodes, move_within
from starfc.threads import limited_threads
from test_mapequation import spell_codelength, take_nodes


@settings(deadline=None)
@given(weighted_graphs(), st.integers(0, 2**32 - 1))
def test_a_node_whose_links_all_stay_inside_saves_nothing_alone(graph, seed):
    labels = np.random.default_rng(seed).integers(0, 3, graph.n_nodes).tolist()
    leaving = {node for i, j in sum_pairs(graph) if labels[i] != labels[j] for node in (i, j)}
    length = spell_codelength(graph, labels)
    for i in set(range(graph.n_nodes)) - leaving:
        assert spell_codelength(graph, [*labels[:i], 3, *labels[i + 1 :]]) >= length - 1e-9


@settings(deadline=None)
@given(weighted_graphs(), st.integers(0, 2**32 - 1))
def test_moves_shorten_the_description_by_what_they_claim(graph, seed):
    rng = np.random.default_rng(seed)
    flow_graph = build_flow_graph(graph)
    start = np.unique(rng.integers(0, 3, graph.n_nodes), return_inverse=True)[1].astype(np.int32)
    before = start.copy()
    order = rng.permutation(graph.n_nodes).astype(np.int32)
    labels, n_moves, saved = move_nodes(flow_graph, start, order, smallest=1e-9)
    np.testing.assert_array_equal(start, before)
    assert n_moves >= (labels != start).sum() > 0 or (n_moves >= 0 and (labels == start).all())
    bits = flow_graph.flows.sum() * np.log(2)
    gain = spell_codelength(graph, start.tolist()) - spell_codelength(graph, labels.tolist())
    assert gain * bits == pytest.approx(saved, abs=1e-7)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("threads", [1, 2])
def test_groups_move_as_if_each_were_alone(monkeypatch, seed, threads):
    monkeypatch.setattr(flowgraph, "_WORTH_THREADS", 0)
    graph, truth = plant_groups(12, 15, inside=6, outside=2, seed=seed)
    groups = (truth // 4).astype(np.int32)
    flow_graph = build_flow_graph(graph)
    flows = flow_graph.flows - flow_graph.sum_links(groups, inside=False)
    order = np.random.default_rng(seed).permutation(graph.n_nodes).astype(np.int32)
    with limited_threads(threads):
        labels, n_moves, saved = move_within(flow_graph, flows, groups, order, smallest=1e-9)
    all_moves, all_saved = 0, 0.0
    for group in range(3):
        nodes = np.flatnonzero(groups == group)
        alone = build_flow_graph(take_nodes(graph, nodes))
        place = np.searchsorted(nodes, order[groups[order] == group]).astype(np.int32)
        single = np.arange(len(nodes), dtype=np.int32)
        expected, n_own, own = move_nodes(alone, single, place, smallest=1e-9)
        all_moves, all_saved = all_moves + n_own, all_saved + own
        pairs = set(zip(labels[nodes].tolist(), expected.tolist(), strict=True))
        assert len(pairs) == len(set(labels[nodes].tolist())) == len(set(expected.tolist())) > 1
    assert n_moves == all_moves
    assert saved == pytest.approx(all_saved, rel=1e-6)
