import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import starfc
from neighbors import unit_rows
from starfc.features import Features
from starfc.quality import group_faces
from starfc.questions import (
    STRICTER,
    History,
    cut_into_parts,
    divide_cluster,
    find_centrals,
    find_questions,
    make_traits,
    predict_same,
    value_questions,
)


@pytest.fixture(scope="module")
def mixed():
    """30 people of 8 faces; every third cluster holds two people, every third person is in two clusters."""
    rng = np.random.default_rng(3)
    rows = np.repeat(rng.normal(size=(30, 24)), 8, axis=0) + 0.45 * rng.normal(size=(240, 24))
    truth = np.repeat(np.arange(30), 8)
    labels = truth.copy()
    for person in range(0, 30, 3):
        labels[truth == person + 1] = person
        labels[np.flatnonzero(truth == person + 2)[:4]] = 100 + person
    return Features(rows.astype(np.float32)), labels, truth, starfc.cluster(rows, k=20, tau1=0.5).scored


def test_parts_are_the_clusters_cut_by_the_stricter_components(mixed):
    _, labels, _, scored = mixed
    parts = cut_into_parts(scored, labels, tau1=0.5)
    strict = starfc.partition.label_components(starfc.prune.parse_edges(scored, 0.5 + STRICTER * 0.5))
    pairs = {(a, b) for a, b in zip(labels.tolist(), strict.tolist(), strict=True)}
    assert len(set(parts.tolist())) == len(pairs)
    for part in set(parts.tolist()):
        assert len(set(labels[parts == part])) == len(set(strict[parts == part])) == 1


def test_the_pool_holds_the_right_questions(mixed):
    features, labels, truth, scored = mixed
    pool = find_questions(features, scored, labels, tau1=0.5)
    groups = group_faces(pool.parts.astype(np.int64))
    assert (pool.parts[pool.faces] == np.arange(len(pool.faces))).all()
    np.testing.assert_array_equal(groups.sizes, pool.sizes)
    rows = features.read(0, len(features))
    for place in range(0, len(pool.first), 7):
        across = rows[groups.members(pool.first[place])] @ rows[groups.members(pool.second[place])].T
        np.testing.assert_allclose(pool.link[place], across.mean(), atol=1e-5)
    joined = labels[pool.faces[pool.first]] == labels[pool.faces[pool.second]]
    same = truth[pool.faces[pool.first]] == truth[pool.faces[pool.second]]
    smaller = np.minimum(pool.sizes[pool.first], pool.sizes[pool.second])
    traits = make_traits(pool.link, pool.strongest, smaller, tau1=0.5)
    probability = predict_same(traits, joined, History())
    worth = value_questions(probability, joined, pool.sizes[pool.first], pool.sizes[pool.second])
    best = np.argsort(-worth)[:8]
    assert (joined[best] != same[best]).mean() > 0.7  # it asks where the clustering is wrong
    keys = {(a, b) for a, b in zip(pool.first.tolist(), pool.second.tolist(), strict=True)}
    assert len(keys) == len(pool.first) and (pool.first < pool.second).all()
    owners = labels[pool.faces]
    for label in set(owners.tolist()):  # the largest part of a cluster is paired with all its others
        mine = np.flatnonzero(owners == label)
        hub = mine[np.argmax(pool.sizes[mine])]
        assert all((min(hub, part), max(hub, part)) in keys for part in mine if part != hub)


def test_centrals():
    groups = group_faces(np.array([5, 5, 5, 8]))
    assert find_centrals(groups, np.array([0.1, 0.9, 0.9, 1], np.float32)).tolist() == [1, 3]


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 9), st.integers(0, 99), st.data())
def test_a_cluster_is_divided_as_little_as_possible(m, seed, data):
    sums = unit_rows(m, 4, seed=seed)
    sizes = np.random.default_rng(seed).integers(1, 5, m)
    apart = np.zeros((m, m), dtype=bool)
    for _ in range(data.draw(st.integers(0, 3))):
        i, j = data.draw(st.integers(0, m - 1)), data.draw(st.integers(0, m - 1))
        if i != j:
            apart[i, j] = apart[j, i] = True
    groups = divide_cluster(sums * sizes[:, None], sizes, apart)
    assert not apart[groups[:, None] == groups[None, :]].any()
    for a in set(groups.tolist()):
        for b in set(groups.tolist()) - {a}:
            assert apart[np.ix_(groups == a, groups == b)].any()  # no two groups could have been one
    if not apart.any():
        assert set(groups.tolist()) == {0}


def test_the_nearest_stay_together():
    sums = np.array([[1, 0], [0.95, 0.3], [0, 1], [0.1, 0.99]], np.float32)
    apart = np.zeros((4, 4), dtype=bool)
    apart[0, 2] = apart[2, 0] = True
    assert divide_cluster(sums, np.ones(4, int), apart).tolist() == [0, 0, 1, 1]


def test_answers_teach():
    rng = np.random.default_rng(0)
    traits = np.column_stack((np.ones(200), rng.normal(-0.1, 0.1, 200), rng.normal(0, 0.1, 200), rng.random(200)))
    joined = np.zeros(200, dtype=bool)
    same = traits[:, 1] > -0.25  # in this collection people are the same far below the threshold
    history = History()
    before = predict_same(traits, joined, history)
    for place in range(80):
        history = history.add(traits[place], False, bool(same[place]))
    after = predict_same(traits, joined, history)
    rest = slice(80, None)
    assert np.abs(after[rest] - same[rest]).mean() < 0.5 * np.abs(before[rest] - same[rest]).mean()
    kept = predict_same(traits, ~joined, history)
    np.testing.assert_array_equal(kept, predict_same(traits, ~joined, History()))  # joined pairs have their own weights


def test_any_answers_leave_probabilities():
    rng = np.random.default_rng(1)
    history = History(rng.normal(size=(40, 4)) * 30, rng.random(40) < 0.5, rng.random(40) < 0.5)
    found = predict_same(rng.normal(size=(30, 4)) * 30, rng.random(30) < 0.5, history)
    assert ((found >= 0) & (found <= 1)).all()
