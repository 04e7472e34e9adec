"""Subgraphs against what they are made of, and the fit of the odds against a general optimiser."""

import numpy as np
import pytest
from scipy.optimize import minimize

torch = pytest.importorskip("torch")

from starfc.errors import InputError  # noqa: E402
from starfc.features import Features  # noqa: E402
from starfc.knn import join_rows  # noqa: E402
from starfc.network import EdgeNetwork, draw_distance_tensors  # noqa: E402
from starfc.sampling import SamplingPlan, index_people, sample_subgraph  # noqa: E402
from starfc.subgraphs import DrawnRows, SubgraphStream, draw_rows, fit_odds  # noqa: E402
from starfc.synth import make_faces  # noqa: E402

PLAN = SamplingPlan(seeds=2, near=6, cluster_randomness=8, sample_randomness=0.9, k=12)


@pytest.fixture(scope="module")
def collection():
    vectors, labels = make_faces(600, people=30, dim=16, seed=1)
    return Features(vectors), labels, index_people(Features(vectors), labels)


@pytest.fixture
def subgraph(collection):
    return draw_rows(*collection, PLAN, np.random.default_rng(3)).connect(PLAN.k)


def test_a_subgraph_is_the_graph_of_the_sampled_faces(collection, subgraph):
    features, labels, people = collection
    drawn = sample_subgraph(people, PLAN, np.random.default_rng(3))
    graph = join_rows(features.take(drawn), 12)
    np.testing.assert_array_equal(subgraph.neighbors, graph.neighbors)
    np.testing.assert_array_equal(subgraph.nodes.stacked.numpy()[:, :16], features.take(drawn))
    for i, row in enumerate(graph.neighbors):
        assert subgraph.same[i].tolist() == [labels[drawn[i]] == labels[drawn[j]] for j in row]


def test_lists_are_no_longer_than_the_subgraph(collection):
    features, labels, people = collection
    plan = SamplingPlan(seeds=1, near=1, cluster_randomness=None, sample_randomness=None, k=500)
    drawn = draw_rows(features, labels, people, plan, np.random.default_rng(0)).connect(plan.k)
    assert drawn.neighbors.shape == (len(drawn.same), len(drawn.same) - 1)


def test_a_stream_gives_every_turn_its_own_rows_in_any_order():
    """What was read ahead is used only for its turn; turns may be skipped or asked for again."""

    def draw(turn):
        rows = np.random.default_rng(turn).normal(size=(6, 4)).astype(np.float32)
        return DrawnRows(rows / np.linalg.norm(rows, axis=1, keepdims=True), np.arange(6) // 2)

    with SubgraphStream(draw, 3) as stream:
        for turn in (0, 0, 1, 4, 5, 0):
            np.testing.assert_array_equal(stream.get(turn).nodes.stacked[:, :4], draw(turn).rows)


def test_a_stream_may_not_read_ahead():
    drawn = []

    def draw(turn):
        drawn.append(turn)
        return DrawnRows(np.eye(4, dtype=np.float32), np.arange(4) // 2)

    with SubgraphStream(draw, 2, ahead=False) as stream:
        stream.get(0)
        stream.get(0)
    assert drawn == [0]


def test_an_error_while_reading_ahead_is_raised_in_its_turn():
    def draw(turn):
        if turn == 1:
            raise InputError("row 7 is bad")
        return DrawnRows(np.eye(3, dtype=np.float32), np.arange(3))

    with SubgraphStream(draw, 1) as stream:
        stream.get(0)
        with pytest.raises(InputError, match="row 7"):
            stream.get(1)


@pytest.mark.parametrize(("share", "n_faces"), [(1.0, None), (0.25, None), (1e-9, 1)])
def test_a_slice_is_all_edges_of_some_faces(subgraph, share, n_faces):
    sources, targets, same = (part.numpy() for part in subgraph.slice(share, np.random.default_rng(0)))
    assert len(sources) == (n_faces or round(share * len(subgraph.neighbors)))
    assert len(np.unique(sources)) == len(sources)
    np.testing.assert_array_equal(targets, subgraph.neighbors[sources])
    np.testing.assert_array_equal(same, subgraph.same[sources])


def test_fitted_odds_are_those_of_a_logistic_regression(subgraph):
    network = EdgeNetwork(16, (8,), draw_distance_tensors(16, 8, np.random.default_rng(0)))

    def list_odds():
        edges = torch.arange(len(subgraph.neighbors)), torch.from_numpy(subgraph.neighbors)
        with torch.no_grad():
            return network(subgraph.nodes, *edges).numpy().ravel().astype(np.float64)

    before = list_odds()
    fit_odds(network, subgraph)
    scaled, signs = (before - before.mean()) / before.std(), 2.0 * subgraph.same.ravel() - 1

    def penalise(line):
        return np.logaddexp(0, -signs * (line[0] * scaled + line[1])).mean() + 0.5e-3 * (line**2).sum()

    slope, shift = minimize(penalise, np.zeros(2), tol=1e-10).x
    np.testing.assert_allclose(list_odds(), slope * scaled + shift, atol=2e-3)
