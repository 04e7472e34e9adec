from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from starfc.errors import InputError
from starfc.sampling import PLANS, SamplingPlan, fit_plan, index_people, sample_subgraph
from test_people import make_faces, nearest_by_hand


def test_without_randomness_a_subgraph_is_the_union_of_the_neighbourhoods():
    features, labels = make_faces()
    index = index_people(features, labels)
    plan = SamplingPlan(seeds=3, near=6, cluster_randomness=None, sample_randomness=None, k=5)
    overlaps = set()
    for seed in range(20):
        rows = sample_subgraph(index, plan, np.random.default_rng(seed))
        seeds = np.random.default_rng(seed).choice(len(index), size=3, replace=False)
        people = set()
        for person in index.people[seeds]:
            people |= {person, *nearest_by_hand(features, labels, person, 6)}
        assert rows.tolist() == np.flatnonzero(np.isin(labels, list(people))).tolist()
        overlaps.add(plan.people_found - len(people))
    assert len(overlaps) > 1  # some seeds shared people, and these came once


def people_in(labels, rows):
    return set(labels[rows].tolist())


def test_cluster_randomness_keeps_exactly_k1_people_with_all_their_faces():
    features, labels = make_faces()
    index = index_people(features, labels)
    plan = SamplingPlan(seeds=1, near=20, cluster_randomness=13, sample_randomness=None, k=5)
    everyone = replace(plan, cluster_randomness=None)
    kept = set()
    for seed in range(10):
        rows = sample_subgraph(index, plan, np.random.default_rng(seed))
        people = people_in(labels, rows)
        assert len(people) == 13
        assert rows.tolist() == np.flatnonzero(np.isin(labels, list(people))).tolist()
        assert people <= people_in(labels, sample_subgraph(index, everyone, np.random.default_rng(seed)))
        kept.add(frozenset(people))
    assert len(kept) > 5


def test_cluster_randomness_above_the_union_keeps_everyone():
    features, labels = make_faces()
    index = index_people(features, labels)
    plan = SamplingPlan(seeds=5, near=38, cluster_randomness=150, sample_randomness=None, k=5)
    rows = sample_subgraph(index, plan, np.random.default_rng(0))
    assert rows.tolist() == np.flatnonzero(labels >= 0).tolist()


@pytest.mark.parametrize("share", [0.5, 0.9, 1.0])
def test_sample_randomness_keeps_its_share_of_the_faces(share):
    features, labels = make_faces()
    index = index_people(features, labels)
    plan = SamplingPlan(seeds=2, near=10, cluster_randomness=None, sample_randomness=share, k=5)
    whole = sample_subgraph(index, replace(plan, sample_randomness=None), np.random.default_rng(4))
    rows = sample_subgraph(index, plan, np.random.default_rng(4))
    assert len(rows) == round(share * len(whole))
    assert set(rows) <= set(whole)


def test_full_graph_takes_every_labelled_face():
    features, labels = make_faces()
    index = index_people(features, labels)
    rows = sample_subgraph(index, replace(PLANS["ms1m"], full_graph=True), np.random.default_rng(0))
    assert rows.tolist() == np.flatnonzero(labels >= 0).tolist()


@settings(max_examples=60, deadline=None)
@given(
    n_people=st.integers(2, 30),
    seeds=st.integers(1, 5),
    near=st.integers(1, 40),
    kept=st.one_of(st.none(), st.integers(2, 40)),
    share=st.one_of(st.none(), st.floats(0.01, 1)),
    seed=st.integers(0, 99),
)
def test_any_plan_gives_sorted_unique_labelled_rows(n_people, seeds, near, kept, share, seed):
    features, labels = make_faces(n_people, seed=seed)
    index = index_people(features, labels)
    if len(index) < 2:
        return
    plan = SamplingPlan(seeds, near, kept, share, k=3)
    rows = sample_subgraph(index, plan, np.random.default_rng(seed))
    assert len(rows) >= 1
    assert (np.diff(rows) > 0).all()
    assert rows.dtype == np.int64
    assert (labels[rows] >= 0).all()
    assert kept is None or len(people_in(labels, rows)) <= kept
    assert np.array_equal(rows, sample_subgraph(index, plan, np.random.default_rng(seed)))


def test_published_plans():
    paper, web, released = PLANS["ms1m"], PLANS["webface"], PLANS["released"]
    assert (paper.seeds, paper.near, paper.cluster_randomness, paper.sample_randomness, paper.k) == (
        2,
        750,
        1300,
        0.9,
        80,
    )
    assert (web.seeds, web.near, web.cluster_randomness, web.sample_randomness, web.k) == (
        4,
        1100,
        4000,
        0.9,
        30,
    )
    assert (released.seeds, released.people_found, released.cluster_randomness) == (1, 1500, 1300)


def test_fit_plan_leaves_the_published_plan_alone_on_the_published_data():
    assert fit_plan(PLANS["ms1m"], n_people=8573, n_faces=576_494) == PLANS["ms1m"]
    assert fit_plan(PLANS["webface"], n_people=200_000, n_faces=4_000_000) == PLANS["webface"]


@settings(max_examples=200, deadline=None)
@given(
    name=st.sampled_from(sorted(PLANS)),
    n_people=st.integers(3, 3_000_000),
    faces_each=st.floats(1, 500),
    limit=st.one_of(st.none(), st.integers(50, 100_000)),
)
def test_fit_plan_fits_and_leaves_someone_out(name, n_people, faces_each, limit):
    n_faces = int(n_people * faces_each)
    plan = fit_plan(PLANS[name], n_people=n_people, n_faces=n_faces, max_nodes=limit)
    assert plan.people_found <= n_people
    assert 2 <= plan.cluster_randomness < plan.people_found
    assert plan.k == PLANS[name].k
    if limit is not None:
        smallest = 3 * faces_each  # a subgraph is never less than a few people
        assert plan.cluster_randomness * faces_each * plan.sample_randomness <= max(1.5 * limit, smallest)
    if plan.seeds > 1:
        assert 2 * plan.people_found <= n_people


def test_fit_plan_keeps_what_was_switched_off():
    off = replace(PLANS["ms1m"], cluster_randomness=None, sample_randomness=None)
    plan = fit_plan(off, n_people=100, n_faces=1000, max_nodes=500)
    assert plan.cluster_randomness is None
    assert plan.sample_randomness is None
    assert 400 <= plan.people_found * 10 <= 500


def test_fit_plan_aims_at_the_wanted_number_of_nodes():
    plan = fit_plan(PLANS["ms1m"], n_people=8573, n_faces=576_494, max_nodes=10_000)
    nodes = plan.cluster_randomness * 576_494 / 8573 * plan.sample_randomness
    assert 9_000 < nodes < 11_000


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seeds": 0}, "seeds"),
        ({"near": 0}, "near"),
        ({"k": 0}, "k"),
        ({"cluster_randomness": 1}, "cluster_randomness"),
        ({"sample_randomness": 1.5}, "sample_randomness"),
    ],
)
def test_impossible_plans_are_refused(change, words):
    with pytest.raises(InputError, match=words):
        replace(PLANS["ms1m"], **change)
