"""The map equation against its plain formula, and the search for what a search must never miss."""

import math
from collections import Counter, defaultdict

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_graphs import make_graph, plant_groups, sum_pairs, weighted_graphs
from starfc import flowgraph, mapequation
from starfc.errors import InputError
from starfc.flowgraph import build_flow_graph
from starfc.mapequation import find_modules, find_shortest, label_by_map_equation, measure_codelength
from starfc.metrics import pairwise
from starfc.partition import label_components
from starfc.prune import EdgeGraph


def entropy(shares):
    """Return the entropy, in bits, of shares that are scaled to sum to 1."""
    total = sum(shares)
    return -sum(x / total * math.log2(x / total) for x in shares if x > 0) if total > 0 else 0.0


def spell_codelength(graph, labels):
    """L = q H(Q) + sum_i p_i H(P_i), term by term."""
    pairs = sum_pairs(graph)
    total = 2 * sum(pairs.values())
    if total == 0:
        return 0.0
    visits, exits = Counter(), Counter()
    for (i, j), weight in pairs.items():
        visits[i] += weight / total
        visits[j] += weight / total
        if labels[i] != labels[j]:
            exits[labels[i]] += weight / total
            exits[labels[j]] += weight / total
    length = sum(exits.values()) * entropy(list(exits.values()))
    for module in set(labels):
        used = [exits[module]] + [visits[i] for i in range(graph.n_nodes) if labels[i] == module]
        length += sum(used) * entropy(used)
    return length


@settings(deadline=None)
@given(weighted_graphs(), st.integers(0, 2**32 - 1))
def test_codelength_equals_the_plain_formula(graph, seed):
    labels = np.random.default_rng(seed).integers(-2, 4, graph.n_nodes)
    assert measure_codelength(graph, labels) == pytest.approx(spell_codelength(graph, labels.tolist()), abs=1e-9)


@settings(deadline=None)
@given(weighted_graphs(), st.integers(0, 2**32 - 1))
def test_moves_save_what_they_claim(graph, seed):
    rng = np.random.default_rng(seed)
    flow_graph = build_flow_graph(graph)
    start = mapequation._number_densely(rng.integers(0, graph.n_nodes, graph.n_nodes))
    before = spell_codelength(graph, start.tolist())
    for found in (
        mapequation._move(flow_graph, start, rng),
        mapequation._climb(flow_graph, start, rng),
        mapequation._tune_coarsely(flow_graph, start, rng),
    ):
        assert before - spell_codelength(graph, found.labels.tolist()) == pytest.approx(found.saved, abs=1e-9)
        assert found.saved >= 0


@settings(deadline=None)
@given(weighted_graphs(), st.integers(0, 2**32 - 1))
def test_groups_are_networks_of_their_own(graph, seed):
    flow_graph = build_flow_graph(graph)
    groups = mapequation._number_densely(np.random.default_rng(seed).integers(0, graph.n_nodes, graph.n_nodes))
    singletons = mapequation._number_singletons(flow_graph)
    parts = mapequation._move(flow_graph, singletons, np.random.default_rng(seed), groups=groups).labels
    for part in set(parts.tolist()):
        assert len(set(groups[parts == part].tolist())) == 1
    for group in set(groups.tolist()):
        inside = [
            (i, j, weight) for (i, j), weight in sum_pairs(graph).items() if groups[i] == group and groups[j] == group
        ]
        alone = make_graph(graph.n_nodes, inside)
        assert spell_codelength(alone, parts.tolist()) <= spell_codelength(alone, singletons.tolist()) + 1e-9


def assert_no_better_move(graph, labels, *, tolerance, nodes):
    """Try every move of a node to the module of a neighbour or to one of its own."""
    length = spell_codelength(graph, labels)
    around = defaultdict(set)
    for i, j in sum_pairs(graph):
        around[i].add(j)
        around[j].add(i)
    for i in nodes:
        for module in {labels[j] for j in around[i]} | {max(labels) + 1}:
            assert spell_codelength(graph, [*labels[:i], module, *labels[i + 1 :]]) >= length - tolerance


@settings(deadline=None)
@given(weighted_graphs(), st.integers(0, 3))
def test_result_is_a_local_optimum_and_beats_the_trivial_ones(graph, seed):
    labels = label_by_map_equation(graph, seed=seed)
    assert labels.dtype == np.int64
    assert labels.tolist() == mapequation._number_densely(labels.astype(np.int32)).tolist()
    length = measure_codelength(graph, labels)
    assert length <= measure_codelength(graph, np.arange(graph.n_nodes)) + 1e-9
    positive = graph.keep(graph.scores > 0)
    assert length <= measure_codelength(graph, label_components(positive)) + 1e-9
    assert_no_better_move(graph, labels.tolist(), tolerance=1e-9, nodes=range(graph.n_nodes))


@pytest.mark.parametrize(("n_groups", "size"), [(5, 100), (40, 30), (300, 8)])
def test_planted_groups_are_found(n_groups, size):
    graph, truth = plant_groups(n_groups, size, inside=10, outside=2, seed=1)
    labels = label_by_map_equation(graph)
    assert pairwise(truth, labels).f > 0.99
    assert measure_codelength(graph, labels) <= measure_codelength(graph, truth) + 1e-9


def test_same_labels_for_a_seed_and_any_number_of_threads(monkeypatch):
    monkeypatch.setattr(flowgraph, "_WORTH_THREADS", 0)
    graph, _ = plant_groups(50, 20, inside=4, outside=4, seed=2)
    n_threads = numba.get_num_threads()
    found = []
    try:
        for threads in sorted({1, n_threads}):
            numba.set_num_threads(threads)
            found += [label_by_map_equation(graph, seed=7), label_by_map_equation(graph, seed=7)]
            assert numba.get_num_threads() == threads
    finally:
        numba.set_num_threads(n_threads)
    for labels in found[1:]:
        np.testing.assert_array_equal(labels, found[0])


@pytest.mark.parametrize("size", [3, 5, 20])
def test_two_cliques_joined_by_one_edge_are_split(size):
    inside = [(i, j, 1.0) for i in range(size) for j in range(i)]
    edges = inside + [(i + size, j + size, w) for i, j, w in inside] + [(0, size, 1.0)]
    labels = label_by_map_equation(make_graph(2 * size, edges))
    assert labels.tolist() == [0] * size + [1] * size
    assert label_components(make_graph(2 * size, edges)).max() == 0


def test_nothing_to_link():
    assert label_by_map_equation(make_graph(0, [])).tolist() == []
    assert label_by_map_equation(make_graph(3, [])).tolist() == [0, 1, 2]
    assert label_by_map_equation(make_graph(3, [(0, 0, 1.0), (1, 2, -1.0)])).tolist() == [0, 1, 2]
    assert label_by_map_equation(make_graph(4, [(3, 1, 0.2)])).tolist() == [0, 1, 2, 1]
    assert measure_codelength(make_graph(3, []), np.zeros(3, np.int64)) == 0.0


def test_wrong_number_of_labels_is_refused():
    with pytest.raises(InputError, match=r"labels \(2\) must be as many as nodes \(3\)"):
        measure_codelength(make_graph(3, []), np.zeros(2, np.int64))


def test_progress_starts_at_nothing_and_ends_complete():
    told = []
    label_by_map_equation(make_graph(3, [(0, 1, 1.0)]), progress=lambda *news: told.append(news))
    assert told[0][1] == 0
    assert told[-1][1] == told[-1][2]
    assert [done for _, done, _ in told] == sorted(done for _, done, _ in told)


@settings(deadline=None, max_examples=60)
@given(weighted_graphs(), st.integers(0, 2**32 - 1))
def test_modules_are_split_only_where_they_alone_become_shorter(graph, seed):
    rng = np.random.default_rng(seed)
    modules = np.unique(rng.integers(0, 3, graph.n_nodes), return_inverse=True)[1].astype(np.int32)
    parts = mapequation.split_modules(build_flow_graph(graph), modules, seed=seed % 1000)
    assert all(len(set(modules[parts == part])) == 1 for part in set(parts))
    for module in set(modules):
        inside = np.flatnonzero(modules == module)
        alone = take_nodes(graph, inside)
        whole, split = (spell_codelength(alone, found) for found in ([0] * len(inside), parts[inside].tolist()))
        assert split < whole if len(set(parts[inside])) > 1 else split == whole


@pytest.mark.parametrize("seed", range(4))
def test_a_split_is_as_short_as_the_map_equation_of_the_module_alone(seed):
    graph, truth = plant_groups(12, 15, inside=6, outside=1, seed=seed)
    modules = (truth // 3).astype(np.int32)
    parts = mapequation.split_modules(build_flow_graph(graph), modules)
    for module in range(4):
        inside = np.flatnonzero(modules == module)
        alone = take_nodes(graph, inside)
        best = measure_codelength(alone, label_by_map_equation(alone))
        assert measure_codelength(alone, parts[inside]) <= 1.01 * best


def take_nodes(graph, nodes):
    """Return the graph of some nodes, numbered anew, and the edges among them."""
    place = {int(node): number for number, node in enumerate(nodes)}
    edges = [
        (place[int(i)], place[int(graph.targets[e])], graph.scores[e])
        for i in nodes
        for e in range(graph.offsets[i], graph.offsets[i + 1])
        if int(graph.targets[e]) in place
    ]
    return make_graph(len(nodes), edges)


def test_coarse_tuning_splits_a_module_without_links_to_others():
    targets = np.array([1, 2, 2, 3, 4, 5, 5], np.int32)
    triangles = EdgeGraph(np.array([0, 2, 3, 4, 6, 7, 7]), targets, np.ones(7, np.float32))
    found = mapequation._tune_coarsely(build_flow_graph(triangles), np.zeros(6, np.int32), np.random.default_rng(0))
    assert found.labels.tolist() == [0, 0, 0, 1, 1, 1] and found.saved > 0


@settings(deadline=None, max_examples=30)
@given(weighted_graphs(), st.integers(0, 10**6))
def test_of_several_trials_the_shortest_is_taken(graph, seed):
    flow_graph = build_flow_graph(graph)
    lengths = [measure_codelength(graph, find_modules(flow_graph, seed=seed + trial)) for trial in range(4)]
    found = measure_codelength(graph, find_shortest(flow_graph, 4, seed=seed))
    assert found == pytest.approx(min(lengths), abs=1e-9)
