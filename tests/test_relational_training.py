"""Fitting the relational scorer."""

from __future__ import annotations

import numpy as np
import pytest

from starfc.errors import InputError
from starfc.features import Features
from starfc.knn import build_knn
from starfc.relational import load_shipped
from starfc.relational_training import EdgeSample, fit_network, fit_residual, halve_residual, sample_edges
from starfc.relations import RELATIONS
from starfc.synth import make_faces


def loss(model, sample):
    """Mean cross entropy."""
    odds = model.predict(sample.relations).astype(np.float64)
    return np.mean(np.logaddexp(0, odds) - sample.targets * odds)


@pytest.fixture(scope="module")
def faces():
    rows, labels = make_faces(800, people=80, dim=48, seed=1)
    return Features(rows), labels


def test_samples_are_labelled_edges(faces):
    features, labels = faces
    sample = sample_edges(features, labels, n_edges=3000, k=20)
    assert sample.relations.shape == (3000, len(RELATIONS))
    strong = sample.relations[:, 0] > 6
    assert sample.targets[strong].mean() > 0.95 > 0.5 > sample.targets[sample.relations[:, 0] < 0].mean()


def test_unlabelled_faces_are_left_out(faces):
    features, labels = faces
    some = np.where(labels < 40, labels, -1)
    graph = build_knn(features, k=20)
    every, fewer = (sample_edges(features, y, n_edges=10**6, graph=graph) for y in (labels, some))
    assert 0 < len(fewer.targets) < len(every.targets)
    with pytest.raises(InputError, match="one per face"):
        sample_edges(features, labels[:-1])


def test_training_lowers_the_loss_and_repeats(faces):
    sample = sample_edges(*faces, n_edges=5000, k=20)
    short, long = (fit_network([sample], epochs=epochs, hidden=(8,)) for epochs in (1, 60))
    assert loss(long, sample) < 0.7 * loss(short, sample)
    again = fit_network([sample], epochs=1, hidden=(8,))
    assert all((a == b).all() for a, b in zip(short.weights, again.weights, strict=True))


def test_small_collections_have_a_say():
    rng = np.random.default_rng(0)

    def draw(size, sign):
        relations = rng.normal(size=(size, len(RELATIONS))).astype(np.float32)
        return EdgeSample(relations, (sign * relations[:, 0] > 0).astype(np.float32))

    large, small = draw(3000, 1), draw(1000, -1)  # three times the weight each: a draw
    model = fit_network([large, small], epochs=30, hidden=(4,))
    assert np.abs(np.median(model.predict(large.relations))) < 1.0


def test_what_is_added_equals_the_sum_of_both_networks(faces):
    """The single network against the known one plus the residual, layer by layer, in float64."""
    sample = sample_edges(*faces, n_edges=3000, k=20)
    shipped = load_shipped()
    fitted = fit_residual([sample], shipped, hidden=6, steps=30)
    assert [len(b) for b in fitted.biases] == [len(b) + 6 for b in shipped.biases[:-1]] + [1]
    inputs = np.clip(sample.relations, shipped.lowest, shipped.highest).astype(np.float64)
    n_first = len(shipped.biases[0])
    hidden = np.maximum(inputs @ fitted.weights[0][:, n_first:] + fitted.biases[0][n_first:], 0)
    added = hidden @ fitted.weights[-1][-6:, 0] + (fitted.biases[-1] - shipped.biases[-1])
    np.testing.assert_allclose(fitted.predict(sample.relations), shipped.predict(sample.relations) + added, atol=1e-3)
    assert np.abs(added).max() > 0.05


def test_a_residual_lowers_the_loss_and_repeats(faces):
    sample = sample_edges(*faces, n_edges=5000, k=20)
    fitted, again = (fit_residual([sample], load_shipped(), steps=100, seed=3) for _ in range(2))
    assert loss(fitted, sample) < loss(load_shipped(), sample)
    assert all((a == b).all() for a, b in zip(fitted.weights, again.weights, strict=True))
    other = fit_residual([sample], load_shipped(), steps=100, seed=4)
    assert not (other.weights[0] == fitted.weights[0]).all()


def test_half_of_what_was_learned_is_the_mean_of_both_log_odds(faces):
    sample = sample_edges(*faces, n_edges=3000, k=20)
    whole = fit_residual([sample], load_shipped(), steps=30)
    half = halve_residual(whole, load_shipped())
    before, after = (model.predict(sample.relations) for model in (load_shipped(), whole))
    np.testing.assert_allclose(half.predict(sample.relations), (before + after) / 2, atol=1e-3)
    assert np.abs(before - after).max() > 0.05


def test_fitting_to_ones_own_people_helps_with_others():
    rows, labels = make_faces(1500, people=300, dim=48, seed=9, kinship=1.0, noise=1.5)
    known = labels < 150
    sample = sample_edges(Features(rows[known]), labels[known], n_edges=20_000)
    others = sample_edges(Features(rows[~known]), labels[~known], n_edges=10_000)
    fitted = fit_residual([sample], load_shipped())
    assert loss(fitted, others) < loss(load_shipped(), others)


def test_labels_must_teach_something(faces):
    features, _ = faces
    alone = sample_edges(features, np.arange(len(features)), n_edges=100, k=5)
    with pytest.raises(InputError, match="both kinds"):
        fit_residual([alone], load_shipped())
