"""Choosing a scorer, a threshold and a partition on held-out people."""

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import starfc  # noqa: E402
from starfc import judging  # noqa: E402
from starfc.features import Features  # noqa: E402
from starfc.heldout import score_faces  # noqa: E402
from starfc.judging import Judged, choose_setting  # noqa: E402
from starfc.relational import load_shipped  # noqa: E402
from starfc.relational_model import make_model  # noqa: E402
from starfc.space import Space  # noqa: E402
from starfc.synth import make_faces  # noqa: E402
from starfc.training import train  # noqa: E402


@pytest.fixture(scope="module")
def faces():
    return make_faces(700, people=140, dim=32, seed=1, kinship=1.0, noise=1.3)


def test_of_equal_thresholds_the_highest_is_chosen():
    scores = np.full((2, 2, len(judging.THRESHOLDS), 2), 0.5)
    scores[1, 1, 2:6] = 1.0
    assert choose_setting(scores, np.zeros(2)).tau1 == judging.THRESHOLDS[4]  # the next is at the edge of them
    scores[1, 1] = 1.0
    assert choose_setting(scores, np.zeros(2)).tau1 == judging.THRESHOLDS[-1]


def shift_log_odds(network, by):
    second = network.second
    return replace(network, second=replace(second, biases=(*second.biases[:-1], second.biases[-1] + np.float32(by))))


def test_scores_are_those_of_the_pipeline(faces):
    """Of every kind: networks of their own, and what is made of them and a GCN."""
    rows, labels = faces[0][:300], faces[1][:300]
    gcn = train(rows, labels, preset="gcn", steps=2, hidden=(8,), held_out=0.0, threads=1)
    judged = np.arange(300) % 3 > 0
    rng = np.random.default_rng(0)
    space = Space(*(rng.normal(scale=0.1, size=shape).astype(np.float32) for shape in ((32, 32), (32,))))
    networks = {share: shift_log_odds(load_shipped(), 3 * share) for share in (0.0, 0.5, 1.0)}
    scores, losses = Judged(Features(rows), labels, judged).score(networks, gcn, space)
    assert scores.shape == (7, 2, len(judging.THRESHOLDS), 2) and losses.shape == (7,)
    kinds = (
        (0.0, {}),
        (0.5, {}),
        (1.0, {}),
        (0.5, {"gcn": gcn, "gcn_weight": 0.25}),
        (1.0, {"gcn": gcn, "gcn_weight": 0.5}),
        (0.5, {"space": space.take_share(0.5)}),
        (0.5, {"space": space}),
    )
    for number, (share, beside) in enumerate(kinds):
        model = make_model(networks[share], dim=32, tau1=0.5, training={}, **beside)
        edges = starfc.cluster(rows, model=model).scored
        each = []
        for i in np.flatnonzero(judged):
            for j, p in zip(edges.neighbors[i], edges.scores[i].astype(float), strict=True):
                each.append(-np.log(np.clip(p if labels[j] == labels[i] else 1 - p, 1e-5, 1 - 1e-5)))
        assert losses[number] == pytest.approx(np.mean(each), rel=1e-3)
        for place, partition in enumerate(("refined", "components")):
            for at in (1, 5):
                tau1 = judging.THRESHOLDS[at]
                found = starfc.cluster(rows, model=model, tau1=tau1, partition=partition).labels
                assert scores[number, place, at] == pytest.approx(score_faces(labels, found, judged))


def test_what_is_not_there_is_not_chosen(faces):
    rows, labels = faces[0][:300], faces[1][:300]
    networks = dict.fromkeys((0.0, 0.5, 1.0), load_shipped())
    scores, losses = Judged(Features(rows), labels, np.ones(300, bool)).score(networks)
    assert np.isfinite(losses).tolist() == [True] * 3 + [False] * 4
    assert np.isfinite(scores).all(axis=(1, 2, 3)).tolist() == [True] * 3 + [False] * 4
    assert choose_setting(scores, losses).kind == "shipped"


def test_another_kind_must_be_better_to_be_chosen():
    scores = np.full((5, 2, len(judging.THRESHOLDS), 2), 0.5)
    losses = np.array([0.1, 0.2, 0.1, 0.2, 0.3])
    scores[0, 0, 2] = 0.8
    scores[1, 0, 4] = 0.803
    assert choose_setting(scores, losses) == judging.Choice("shipped", "refined", 0.5, 0.8, 0.8)
    scores[4, 1, 4] = [0.8, 0.9]
    found = choose_setting(scores, losses)
    assert found == judging.Choice("combined", "components", 0.7, 0.8, 0.9)
    assert found.mean_f == pytest.approx(0.85)


def test_a_kind_that_knows_the_edges_best_need_not_be_better():
    scores = np.full((2, 2, len(judging.THRESHOLDS), 2), 0.8)
    scores[1, 0] += 0.001
    assert choose_setting(scores, np.array([0.1, 0.11])).kind == "shipped"
    assert choose_setting(scores, np.array([0.1, 0.09])).kind == "leaning"
    scores[1, 0] -= 0.9 * judging._LEAST_GAIN
    assert choose_setting(scores, np.array([0.1, 0.09])).kind == "leaning"
    scores[1, 0] -= 0.4 * judging._LEAST_GAIN
    assert choose_setting(scores, np.array([0.1, 0.09])).kind == "shipped"


def test_components_must_be_clearly_better():
    scores = np.full((2, 2, len(judging.THRESHOLDS), 2), 0.8)
    scores[:, 1] += 0.9 * judging._LEAST_GAIN_OF_COMPONENTS
    assert choose_setting(scores, np.zeros(2)).partition == "refined"
    scores[:, 1] += 0.2 * judging._LEAST_GAIN_OF_COMPONENTS
    assert choose_setting(scores, np.zeros(2)).partition == "components"
