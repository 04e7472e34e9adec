import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphs import random_knn_graph, scored_graphs
from starfc.errors import InputError
from starfc.prune import AGGREGATES, EDGE_KINDS, count_surviving, measure_intimacy, parse_edges, prune_edges
from starfc.score import ScoredEdges
from starfc.scratch import Scratch
from starfc.threads import limited_threads

THRESHOLDS = st.sampled_from([None, 0.0, 0.3, 0.5, 0.7, 0.72, 1.0])


def surviving_sets(scored, tau1, edges):
    """Out-neighbours of every node as Python sets."""
    out = [
        {int(j) for j, s in zip(row, scores, strict=True) if j >= 0 and (tau1 is None or s > np.float32(tau1))}
        for row, scores in zip(scored.neighbors, scored.scores, strict=True)
    ]
    return out if edges == "directed" else [{j for j in out[i] if i in out[j]} for i in range(len(out))]


def set_intimacy(out, i, j, aggregate):
    """Node intimacy by sets: who do both ends know, on the way from i to j."""
    common = sum(j in out[m] for m in out[i])
    n_1, n_2 = len(out[i]), len(out[j])
    if n_2 == 0:
        return 0.0
    if aggregate == "jaccard":
        return common / (n_1 + n_2 - common)
    return {"max": max, "min": min, "mean": lambda a, b: (a + b) / 2}[aggregate](common / n_1, common / n_2)


def as_pairs(graph):
    return {(i, int(j)) for i in range(graph.n_nodes) for j in graph.targets[graph.offsets[i] : graph.offsets[i + 1]]}


@pytest.mark.parametrize("edges", EDGE_KINDS)
@pytest.mark.parametrize("aggregate", AGGREGATES)
@settings(deadline=None, max_examples=60)
@given(scored=scored_graphs(), tau1=THRESHOLDS, tau2=THRESHOLDS)
def test_equals_sets(scored, tau1, tau2, aggregate, edges):
    out = surviving_sets(scored, tau1, edges)
    expected = {
        (i, j)
        for i in range(len(out))
        for j in out[i]
        if tau2 is None or np.float32(set_intimacy(out, i, j, aggregate)) > np.float32(tau2)
    }
    assert as_pairs(prune_edges(scored, tau1=tau1, tau2=tau2, aggregate=aggregate, edges=edges)) == expected


@settings(deadline=None)
@given(scored=scored_graphs())
def test_directed_counts_equal_the_matrix_product(scored):
    """The paper's matrix form: A A, read off on the edges; intimacy by max of both divisions."""
    graph = parse_edges(scored, 0.3)
    n = graph.n_nodes
    adjacency = np.zeros((n, n))
    for i, j in as_pairs(graph):
        adjacency[i, j] = 1
    product, degree = adjacency @ adjacency, adjacency.sum(axis=1)
    sources = np.repeat(np.arange(n), np.diff(graph.offsets))
    common = product[sources, graph.targets]
    with np.errstate(divide="ignore", invalid="ignore"):
        expected = np.where(
            degree[graph.targets] > 0, np.maximum(common / degree[sources], common / degree[graph.targets]), 0
        )
    np.testing.assert_allclose(measure_intimacy(graph), expected, atol=1e-6)


@pytest.mark.parametrize("aggregate", AGGREGATES)
def test_long_lists_equal_sets(aggregate):
    """Too long for a hash that keeps all of a row's targets apart."""
    knn = random_knn_graph(420, 400)
    graph = parse_edges(ScoredEdges(knn.neighbors, knn.similarities), None)
    rows = [0, 7, 419]
    out = surviving_sets(ScoredEdges(knn.neighbors, knn.similarities), None, "directed")
    intimacy = measure_intimacy(graph, aggregate=aggregate)
    for i in rows:
        here = slice(graph.offsets[i], graph.offsets[i + 1])
        expected = [set_intimacy(out, i, int(j), aggregate) for j in graph.targets[here]]
        np.testing.assert_allclose(intimacy[here], expected, atol=1e-6)


def test_scores_travel_with_their_edges():
    scored = ScoredEdges(
        np.array([[1, 2], [2, 0], [0, 1]], np.int32),
        np.array([[0.9, 0.1], [0.2, 0.8], [0.7, 0.6]], np.float32),
    )
    graph = prune_edges(scored, tau1=0.5, tau2=None)
    assert graph.targets.tolist() == [1, 0, 0, 1]
    np.testing.assert_allclose(graph.scores, [0.9, 0.8, 0.7, 0.6])


def test_same_bits_for_any_number_of_threads():
    knn = random_knn_graph(3000, 12)
    results = []
    for threads in (1, 2):
        with limited_threads(threads):
            graph = parse_edges(ScoredEdges(knn.neighbors, knn.similarities), 0.3)
            results.append(measure_intimacy(graph).tobytes())
    assert results[0] == results[1]


@pytest.mark.parametrize("edges", EDGE_KINDS)
def test_files_hold_the_same_edges(tmp_path, edges):
    knn = random_knn_graph(1100, 500)
    scored = ScoredEdges(knn.neighbors, knn.similarities)
    settings = {"tau1": 0.3, "tau2": 0.05, "edges": edges}
    expected = prune_edges(scored, **settings)
    found = prune_edges(scored, **settings, scratch=Scratch(tmp_path / "parts", limit_bytes=1))
    assert len(expected.targets) > 0 and count_surviving(scored, 0.3) == len(parse_edges(scored, 0.3).targets)
    for name in ("offsets", "targets", "scores"):
        assert getattr(found, name).tobytes() == getattr(expected, name).tobytes()


def test_a_hub_known_by_all():
    n = 500
    scored = ScoredEdges(np.zeros((n, 1), np.int32), np.ones((n, 1), np.float32))
    scored.neighbors[0] = 1
    graph = parse_edges(scored, 0.5)
    # everyone links the hub, the hub links 1: nobody has a common neighbour
    assert measure_intimacy(graph).tolist() == [0.0] * n


@pytest.mark.parametrize(("name", "value"), [("aggregate", "median"), ("edges", "undirected")])
def test_unknown_names_are_refused(name, value):
    scored = ScoredEdges(np.array([[1], [0]], np.int32), np.ones((2, 1), np.float32))
    with pytest.raises(InputError, match=value):
        prune_edges(scored, tau1=0.5, tau2=0.5, **{name: value})
