"""Calibration against plain counting, on labels and on pairs."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

import starfc
from starfc.calibration import _combine, _expect, _list_settings, _sum_up, calibrate, load_pairs
from starfc.cli import commands
from starfc.errors import InputError
from starfc.features import Features
from starfc.metrics import evaluate
from starfc.model import Model, ModelConfig, expected_shapes, load_model
from starfc.relational import load_shipped
from starfc.relational_model import make_model
from starfc.synth import make_faces


@pytest.fixture(scope="module")
def faces():
    return make_faces(500, people=70, dim=32, seed=1, kinship=1.0)


def draw_pairs(labels, n, seed=0):
    """Return half same, half different pairs."""
    rng = np.random.default_rng(seed)
    pairs = []
    while len(pairs) < n:
        a, b = rng.choice(len(labels), 2, replace=False)
        if len(pairs) % 2 == int(labels[a] == labels[b]):
            pairs.append([a, b, int(labels[a] == labels[b])])
    return np.array(pairs)


def test_sums_are_those_of_the_metrics():
    rng = np.random.default_rng(0)
    labels, clusters = rng.integers(0, 9, 80), rng.integers(0, 12, 80)
    scores = evaluate(labels, clusters)
    expected = (scores.pairwise.f + scores.bcubed.f) / 2
    assert _combine(_sum_up(clusters, labels).sum(axis=0)) == pytest.approx(expected)


def test_links_to_unknown_faces_are_estimated():
    """Of people drawn at random the sums expect what all people together have, where mistakes are as common."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(2000), 4)
    clusters = labels // 2  # every cluster holds two people
    scores = evaluate(labels, clusters)
    whole = (scores.pairwise.f + scores.bcubed.f) / 2
    known = np.where(np.isin(labels, rng.permutation(2000)[:1000]), labels, -1)
    seen = evaluate(labels[known >= 0], clusters[known >= 0])
    assert (seen.pairwise.f + seen.bcubed.f) / 2 > whole + 0.05  # what counting the known faces only would say
    sums = _sum_up(clusters, known).sum(axis=0)
    assert 2 * sums[0] / (sums[1] + sums[2]) == pytest.approx(scores.pairwise.f, abs=0.02)


def test_sums_of_pairs_are_a_plain_count():
    clusters = np.array([0, 0, 1, 1, 2])
    pairs = np.array([[0, 1, 1], [0, 2, 0], [2, 3, 0], [3, 4, 1]])  # right, right, wrong link, lost link
    assert _combine(_sum_up(clusters, pairs).sum(axis=0)) == pytest.approx(0.5)
    assert _combine(_sum_up(clusters, pairs[1:2]).sum(axis=0)) == 1.0  # nothing to find, nothing found


def test_the_choice_is_the_best_of_all_settings(faces):
    rows, labels = faces
    known = np.where(labels < 50, labels, -1)
    found = calibrate(Features(rows), known, threads=1)
    clusters = starfc.cluster(rows, model=found.model, threads=1)
    assert (clusters.settings.tau1, clusters.settings.partition) == (found.tau1, found.partition)
    judged = known >= 0
    assert found.f == pytest.approx(_combine(_sum_up(clusters.labels, known).sum(axis=0)))
    for tau1 in (0.3, 0.6, 0.9):
        other = clusters.rethreshold(tau1=tau1).labels
        assert found.f >= _combine(_sum_up(other, known).sum(axis=0)) - 1e-12
    assert 0 < found.f_low <= found.f_high <= 1
    assert found.n_known == len(np.unique(known[judged]))
    assert found.model.config.training["calibration"]["n_known"] == found.n_known
    json.dumps(found.as_dict())


def test_the_interval_narrows_with_more_people():
    """A choice among settings that are all alike: the interval is that of a mean."""
    rng = np.random.default_rng(0)

    def draw(n):
        right = rng.random(n) < 0.7
        return np.stack([[right * 2.0, np.full(n, 2.0), np.full(n, 2.0), *np.zeros((3, n))]] * 2).transpose(0, 2, 1)

    few, many = (np.ptp(_expect(draw(n), np.random.default_rng(1))) for n in (20, 2000))
    assert many < 0.3 * few


def test_a_gcn_can_be_calibrated_too(faces):
    rows, labels = faces
    rng = np.random.default_rng(0)
    tensors = {name: rng.normal(size=shape).astype(np.float32) for name, shape in expected_shapes(32, (4,)).items()}
    model = Model(ModelConfig(dim=32, hidden=(4,), k=20), tensors)
    found = calibrate(Features(rows), labels, model=model, threads=1)
    assert found.model.config.scorer == "gcn"
    assert found.model.config.tau2 == found.tau2


@pytest.mark.parametrize("kind", ["labels", "pairs"])
def test_on_the_command_line(faces, tmp_path, kind):
    rows, labels = faces
    np.save(tmp_path / "faces.npy", rows)
    if kind == "pairs":
        known = tmp_path / "known.csv"
        lines = [",".join(map(str, pair)) for pair in draw_pairs(labels, 60).tolist()]
        known.write_text("\n".join(["a,b,same", *lines]))
        assert load_pairs(known).shape == (60, 3)
    else:
        known = tmp_path / "known.npy"
        np.save(known, np.where(labels < 40, labels, -1))
    folder = tmp_path / "model"
    arguments = ["calibrate", str(tmp_path / "faces.npy"), str(known), "-o", str(folder), "--json"]
    done = CliRunner().invoke(commands, arguments, catch_exceptions=False)
    figures = json.loads(done.stdout)
    assert figures["n_known"] == (60 if kind == "pairs" else len(np.unique(labels[labels < 40])))
    assert load_model(folder).config.tau1 == figures["tau1"]
    assert np.array_equal(starfc.cluster(rows, model=folder).labels, starfc.cluster(rows, model=str(folder)).labels)
    plain = CliRunner().invoke(commands, arguments[:-1], catch_exceptions=False)
    assert "to be expected on others" in plain.stdout


@pytest.mark.parametrize(
    ("known", "words"),
    [
        (np.zeros(7, np.int64), "7 labels were given for 500 faces"),
        (np.where(np.arange(500) < 3, np.arange(500), -1), "3 people or pairs are known"),
        (np.array([[0, at, 1] for at in range(1, 60)]), "all 59 pairs are of the same person"),
        (np.array([[0, at, 0] for at in range(1, 60)]), "all 59 pairs are of two people"),
        (np.array([[0, 500, 1]]), "rows from 0 to 499"),
        (np.array([[3, 3, 1]]), "two different rows"),
        (np.array([[3, 4, 2]]), "must be 1"),
    ],
)
def test_what_cannot_be_used_is_named(faces, known, words):
    with pytest.raises(InputError, match=words):
        calibrate(Features(faces[0]), known, threads=1)


def test_a_table_of_labels_is_no_table_of_pairs(tmp_path):
    (tmp_path / "labels.csv").write_text("label\n1\n2\n")
    assert load_pairs(tmp_path / "labels.csv") is None
    assert load_pairs(tmp_path / "labels.npy") is None
    (tmp_path / "pairs.csv").write_text("a,b,same\n1,2,maybe\n")
    with pytest.raises(InputError, match="no pair"):
        load_pairs(tmp_path / "pairs.csv")


def test_a_partition_that_the_model_has_is_tried_too():
    model = make_model(load_shipped(), dim=8, tau1=0.7, training={}, partition="mapequation")
    tried = {setting["partition"] for setting in _list_settings(model)}
    assert tried == {"refined", "components", "mapequation"}
