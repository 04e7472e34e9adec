"""Held-out people: a split by people, a graph in which they must be found, and thresholds against plain counts."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from starfc.features import Features
from starfc.heldout import HeldOut, choose_thresholds, score_faces, split_people
from starfc.metrics import evaluate
from starfc.model import Model, ModelConfig, expected_shapes
from starfc.partition import label_components
from starfc.prune import prune_edges
from starfc.sampling import index_people
from starfc.score import ScoredEdges, score_edges
from starfc.synth import make_faces


def test_split_is_by_people():
    vectors, labels = make_faces(900, people=100, dim=16, seed=1, singletons=0.4)
    index = index_people(Features(vectors), labels)
    learned, held = split_people(index, 0.2, np.random.default_rng(5))
    assert not set(learned.people) & set(held.people)
    assert sorted([*learned.people, *held.people]) == sorted(set(labels))
    assert not set(learned.rows) & set(held.rows)
    assert set(held.rows) == set(np.flatnonzero(np.isin(labels, held.people)))
    assert (np.diff(held.offsets) == 1).sum() == 8 and len(held) == 20
    again = split_people(index, 0.2, np.random.default_rng(5))[1]
    assert np.array_equal(held.people, again.people)
    assert not np.array_equal(held.people, split_people(index, 0.2, np.random.default_rng(6))[1].people)


def test_few_people_are_split_in_halves_at_most():
    index = index_people(Features(np.eye(8)), np.array([0, 0, 1, 1, 2, 2, 3, 3]))
    learned, held = split_people(index, 0.1, np.random.default_rng(0))
    assert (len(learned), len(held)) == (2, 2)


@pytest.mark.parametrize(("share", "is_cut"), [(0.5, True), (0.05, False)])
def test_many_held_out_faces_are_cut_to_look_alikes(monkeypatch, share, is_cut):
    monkeypatch.setattr("starfc.heldout._MOST_FACES", 200)
    vectors, labels = make_faces(1500, people=60, dim=24, seed=1)
    features = Features(vectors)
    learned, held = split_people(index_people(features, labels), share, np.random.default_rng(0))
    built = HeldOut.build(features, labels, held, learned, k=30, seed=[0])
    assert 0 < built.judged.sum() <= len(built.labels) == len(built.features) <= 200
    assert (built.judged.sum() < len(held.rows)) == is_cut
    assert set(built.labels[built.judged]) <= set(held.people)
    assert set(built.labels[~built.judged]) <= set(learned.people)
    if not is_cut:
        assert len(built.labels) > built.judged.sum()  # company


def test_nobody_to_find_is_no_graph():
    features = Features(np.eye(8))
    index = index_people(features, np.array([0, 0, 1, 1, 2, 2, 3, 4]))
    learned, held = index.select(np.arange(3)), index.select(np.array([3, 4]))
    labels = np.array([0, 0, 1, 1, 2, 2, 3, 4])
    assert HeldOut.build(features, labels, held, learned, k=3, seed=[0]) is None


@pytest.mark.parametrize("choose", [False, True])
def test_a_model_is_judged_on_the_held_out_faces_only(choose):
    vectors, labels = make_faces(400, people=20, dim=16, seed=1)
    features = Features(vectors)
    learned, held = split_people(index_people(features, labels), 0.3, np.random.default_rng(0))
    built = HeldOut.build(features, labels, held, learned, k=20, seed=[0])
    tensors = {
        name: np.random.default_rng(0).normal(size=shape).astype(np.float32)
        for name, shape in expected_shapes(16, (8,)).items()
    }
    model = Model(ModelConfig(dim=16, hidden=(8,), tau1=0.45, tau2=None), tensors)
    verdict = built.judge(model, choose=choose)
    accuracy, found = verdict.accuracy, verdict.thresholds
    scored = score_edges(built.features, built.graph, model)
    own = np.flatnonzero(built.judged)
    same = built.labels[built.graph.neighbors[own]] == built.labels[own][:, None]
    assert accuracy == pytest.approx(np.mean((scored.scores[own] > 0.5) == same))
    scores = scored.scores[own].astype(np.float64)
    chance = np.clip(np.where(same, scores, 1 - scores), 1e-7, 1)
    assert verdict.loss == pytest.approx(-np.log(chance).mean(), rel=1e-4)
    fixed = choose_thresholds(scored, built.labels, built.judged, (0.45,), (None,))
    if choose:
        assert found == choose_thresholds(scored, built.labels, built.judged)
        assert found.mean_f >= fixed.mean_f - 0.005
    else:
        assert found == fixed


def test_thresholds_are_the_best_of_the_grid():
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(12), 10)
    neighbors = np.array([rng.choice(np.delete(np.arange(120), i), 15, replace=False) for i in range(120)])
    for i in range(120):  # mostly own people
        own = np.flatnonzero((labels == labels[i]) & (np.arange(120) != i))
        neighbors[i, :9] = own
        neighbors[i, 9:] = rng.choice(np.flatnonzero(labels != labels[i]), 6, replace=False)
    same = labels[neighbors] == labels[:, None]
    scores = np.clip(rng.normal(np.where(same, 0.75, 0.3), 0.2), 0, 1).astype(np.float32)
    scored = ScoredEdges(neighbors.astype(np.int32), scores)
    found = choose_thresholds(scored, labels, np.ones(120, dtype=bool))
    best = 0.0
    for first in (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95):
        for second in (None, 0.2, 0.3, 0.4, 0.5, 0.6, 0.72, 0.8, 0.9):
            scores = evaluate(labels, label_components(prune_edges(scored, tau1=first, tau2=second)))
            best = max(best, (scores.pairwise.f + scores.bcubed.f) / 2)
    assert found.mean_f >= best - 0.005
    again = evaluate(labels, label_components(prune_edges(scored, tau1=found.tau1, tau2=found.tau2)))
    assert (again.pairwise.f, again.bcubed.f) == pytest.approx((found.pairwise_f, found.bcubed_f))


def test_of_equally_good_thresholds_the_strictest_is_taken():
    neighbors = np.array([[1], [0], [3], [2]], np.int32)
    scored = ScoredEdges(neighbors, np.ones((4, 1), np.float32))
    found = choose_thresholds(scored, np.array([0, 0, 1, 1]), np.ones(4, dtype=bool))
    assert found.pairwise_f == 1.0
    assert (found.tau1, found.tau2) == (0.95, None)  # pairs have no common neighbours, so any tau_2 would cut them


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.booleans()), min_size=1, max_size=30))
def test_scores_of_judged_faces_equal_a_plain_count(faces):
    labels, clusters, judged = (np.array(column) for column in zip(*faces, strict=True))
    if not judged.any():
        return
    right = linked = wanted = 0
    precision, recall = [], []
    for i in np.flatnonzero(judged):
        own, near = labels == labels[i], clusters == clusters[i]
        right += (own & near).sum() - 1
        linked += near.sum() - 1
        wanted += own.sum() - 1
        precision.append((own & near).sum() / near.sum())
        recall.append((own & near).sum() / own.sum())
    pairwise, bcubed = score_faces(labels, clusters, judged)
    assert pairwise == pytest.approx(2 * right / (linked + wanted) if linked + wanted else 1.0)
    p, r = np.mean(precision), np.mean(recall)
    assert bcubed == pytest.approx(2 * p * r / (p + r))
    if judged.all() and right:
        scores = evaluate(labels, clusters)
        assert (pairwise, bcubed) == pytest.approx((scores.pairwise.f, scores.bcubed.f))
