"""Fitting the relational scorer."""

from __future__ import annotations

import numpy as np
import pytest

from starfc.errors import InputError, ModelError
from starfc.features import Features
from starfc.knn import build_knn
from starfc.relational import FIRST_ODDS, INPUTS, RelationalModel, add_second, load_shipped
from starfc.relational_training import EdgeSample, fit_network, fit_residual, halve_residual, sample_edges
from starfc.relations import RELATIONS
from starfc.synth import make_faces


def loss(odds, sample):
    """Mean cross entropy."""
    odds = odds.astype(np.float64)
    return np.mean(np.logaddexp(0, odds) - sample.targets * odds)


def look_twice(model, sample):
    """Log-odds after the second look."""
    return add_second(model.second, sample.inputs)


@pytest.fixture(scope="module")
def faces():
    rows, labels = make_faces(800, people=80, dim=48, seed=1)
    return Features(rows), labels


def test_samples_are_labelled_edges(faces):
    features, labels = faces
    sample = sample_edges(features, labels, n_edges=3000, k=20)
    assert sample.inputs.shape == (3000, len(RELATIONS))
    strong = sample.inputs[:, 0] > 6
    assert sample.targets[strong].mean() > 0.95 > 0.5 > sample.targets[sample.inputs[:, 0] < 0].mean()


def test_unlabelled_faces_are_left_out(faces):
    features, labels = faces
    some = np.where(labels < 40, labels, -1)
    graph = build_knn(features, k=20)
    every, fewer = (sample_edges(features, y, n_edges=10**6, graph=graph) for y in (labels, some))
    assert 0 < len(fewer.targets) < len(every.targets)
    with pytest.raises(InputError, match="one per face"):
        sample_edges(features, labels[:-1])


def test_no_face_makes_most_of_a_sample():
    rows, labels = make_faces(400, people=8, dim=48, seed=3)
    others = np.random.default_rng(0).normal(size=(400, 48)).astype(np.float32)
    features, people = Features(np.concatenate((rows, others))), np.concatenate((labels, 8 + np.arange(400)))
    graph = build_knn(features, k=80)
    every = sample_edges(features, people, n_edges=10**6, graph=graph)
    some = sample_edges(features, people, n_edges=10**6, graph=graph, most_per_face=5)
    assert len(some.targets) <= 5 * len(features) < len(every.targets)
    assert some.targets.mean() < every.targets.mean()  # those with fifty faces have fewer edges in it
    listed = {row.tobytes() for row in every.inputs}
    assert all(row.tobytes() in listed for row in some.inputs)


def test_training_lowers_the_loss_and_repeats(faces):
    sample = sample_edges(*faces, n_edges=5000, k=20)
    short, long = (fit_network([sample], epochs=epochs, hidden=(8,)) for epochs in (1, 60))
    assert loss(long.predict(sample.inputs), sample) < 0.7 * loss(short.predict(sample.inputs), sample)
    again = fit_network([sample], epochs=1, hidden=(8,))
    assert all((a == b).all() for a, b in zip(short.weights, again.weights, strict=True))


def test_small_collections_have_a_say():
    rng = np.random.default_rng(0)

    def draw(size, sign):
        relations = rng.normal(size=(size, len(RELATIONS))).astype(np.float32)
        return EdgeSample(relations, (sign * relations[:, 0] > 0).astype(np.float32))

    large, small = draw(3000, 1), draw(1000, -1)  # three times the weight each: a draw
    model = fit_network([large, small], epochs=30, hidden=(4,))
    assert np.abs(np.median(model.predict(large.inputs))) < 1.0


def test_a_second_network_learns_what_to_add(faces):
    sample = sample_edges(*faces, n_edges=5000, k=20, model=load_shipped())
    assert sample.inputs.shape[1] == len(INPUTS) and sample.inputs[:, FIRST_ODDS].min() > -5
    second = fit_network([sample], epochs=40, hidden=(8,))
    assert loss(add_second(second, sample.inputs), sample) < 0.9 * loss(sample.inputs[:, FIRST_ODDS], sample)


def test_what_is_added_equals_the_sum_of_both_networks(faces):
    """The single network against the known one plus the residual, layer by layer, in float64."""
    sample = sample_edges(*faces, n_edges=3000, k=20, model=load_shipped())
    fitted, shipped = fit_residual([sample], load_shipped(), hidden=6, steps=30), load_shipped()
    assert fitted.first is shipped.first
    new, old = fitted.second, shipped.second
    assert [len(b) for b in new.biases] == [len(b) + 6 for b in old.biases[:-1]] + [1]
    inputs = np.clip(sample.inputs, old.lowest, old.highest).astype(np.float64)
    n_first = len(old.biases[0])
    hidden = np.maximum(inputs @ new.weights[0][:, n_first:] + new.biases[0][n_first:], 0)
    added = hidden @ new.weights[-1][-6:, 0] + (new.biases[-1] - old.biases[-1])
    np.testing.assert_allclose(new.predict(sample.inputs), old.predict(sample.inputs) + added, atol=1e-3)
    assert np.abs(added).max() > 0.05


def test_a_residual_lowers_the_loss_and_repeats(faces):
    sample = sample_edges(*faces, n_edges=5000, k=20, model=load_shipped())
    fitted, again = (fit_residual([sample], load_shipped(), steps=100, seed=3) for _ in range(2))
    assert loss(look_twice(fitted, sample), sample) < loss(look_twice(load_shipped(), sample), sample)
    assert all((a == b).all() for a, b in zip(fitted.second.weights, again.second.weights, strict=True))
    other = fit_residual([sample], load_shipped(), steps=100, seed=4)
    assert not (other.second.weights[0] == fitted.second.weights[0]).all()


def test_half_of_what_was_learned_is_the_mean_of_both_log_odds(faces):
    sample = sample_edges(*faces, n_edges=3000, k=20, model=load_shipped())
    whole = fit_residual([sample], load_shipped(), steps=30)
    half = halve_residual(whole, load_shipped())
    before, after, between = (look_twice(model, sample) for model in (load_shipped(), whole, half))
    np.testing.assert_allclose(between, (before + after) / 2, atol=1e-3)
    assert np.abs(before - after).max() > 0.05


def test_fitting_to_ones_own_people_helps_with_others():
    rows, labels = make_faces(1500, people=300, dim=48, seed=9, kinship=1.0, noise=1.5)
    known, model = labels < 150, load_shipped()
    sample = sample_edges(Features(rows[known]), labels[known], n_edges=20_000, model=model)
    others = sample_edges(Features(rows[~known]), labels[~known], n_edges=10_000, model=model)
    fitted = fit_residual([sample], model)
    assert loss(look_twice(fitted, others), others) < loss(look_twice(model, others), others)


def test_a_model_without_a_second_look_cannot_be_fitted(faces):
    sample = sample_edges(*faces, n_edges=500, k=20, model=load_shipped())
    with pytest.raises(ModelError, match="no second look"):
        fit_residual([sample], RelationalModel(load_shipped().first))


def test_labels_must_teach_something(faces):
    features, _ = faces
    alone = sample_edges(features, np.arange(len(features)), n_edges=100, k=5, model=load_shipped())
    with pytest.raises(InputError, match="both kinds"):
        fit_residual([alone], load_shipped())
