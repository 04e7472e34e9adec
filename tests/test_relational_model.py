"""Networks of relations in model folders."""

from dataclasses import replace

import numpy as np
import pytest

import starfc
from starfc.errors import InputError, ModelError
from starfc.features import Features
from starfc.knn import build_knn
from starfc.model import Model, ModelConfig, expected_shapes, load_model
from starfc.relational import load_shipped
from starfc.relational_model import combine_scores, make_model, open_network
from starfc.score import ScoredEdges, score_edges
from starfc.strictness import PREFERENCES
from starfc.synth import make_faces


@pytest.fixture
def model():
    return make_model(load_shipped(), dim=32, tau1=PREFERENCES["balanced"], training={"n_people": 3})


@pytest.fixture(scope="module")
def faces():
    return make_faces(400, people=40, dim=32, seed=1)[0]


def test_a_folder_gives_back_the_network(model, tmp_path):
    model.save(tmp_path / "model")
    loaded = load_model(tmp_path / "model")
    assert loaded.config == model.config
    network = open_network(loaded)
    for name, tensor in load_shipped().tensors.items():
        assert np.array_equal(network.tensors[name], tensor)
    assert "relations of their ends" in (tmp_path / "model" / "README.md").read_text()


def test_the_same_network_clusters_as_the_shipped_one(model, faces):
    plain = starfc.cluster(faces, scorer="relational", tau1=PREFERENCES["balanced"])
    own = starfc.cluster(faces, model=model)
    assert np.array_equal(plain.labels, own.labels)
    assert np.array_equal(plain.scored.scores, own.scored.scores)
    assert "model's network of relations" in own.notes[0]
    assert own.settings.partition == "refined" and own.settings.tau1 == PREFERENCES["balanced"]


def test_settings_come_from_the_model(model, faces):
    strict = model.with_config(tau1=0.9)
    assert starfc.cluster(faces, model=strict).settings.tau1 == 0.9
    assert starfc.cluster(faces, model=strict, tau1=0.5).settings.tau1 == 0.5
    assert starfc.cluster(faces, model=model, prefer="recall").settings.tau1 == PREFERENCES["recall"]
    assert starfc.cluster(faces, model=strict, prefer="precision").settings.tau1 > 0.9
    assert starfc.cluster(faces, model=model, scorer="cosine").settings.scorer == "cosine"


def test_a_work_folder_tells_networks_apart(model, faces, tmp_path):
    first = starfc.cluster(faces, model=model, workdir=tmp_path)
    network = open_network(model)
    shifted = replace(network.first, biases=(*network.first.biases[:-1], network.first.biases[-1] + 5))
    changed = replace(network, first=shifted)
    other = starfc.cluster(
        faces, model=make_model(changed, dim=32, tau1=PREFERENCES["balanced"], training={}), workdir=tmp_path
    )
    assert not np.array_equal(first.scored.scores, other.scored.scores)


@pytest.fixture(params=[0.25, 0.5])
def combined(model, request):
    rng = np.random.default_rng(0)
    tensors = {name: rng.normal(size=shape).astype(np.float32) for name, shape in expected_shapes(32, (4,)).items()}
    gcn = Model(ModelConfig(dim=32, hidden=(4,), k=12), tensors)
    return make_model(
        load_shipped(), dim=32, tau1=0.4, training={}, gcn=gcn, gcn_weight=request.param, partition="components"
    )


def test_combined_scores_are_the_mean_of_log_odds(combined, faces, tmp_path):
    """Through a model folder and a work folder, against both scorers run by themselves, edge by edge."""
    combined.save(tmp_path / "model")
    assert "beside them, by the GCN" in (tmp_path / "model" / "README.md").read_text()
    found = starfc.cluster(faces, model=tmp_path / "model", workdir=tmp_path / "work")
    again = starfc.cluster(faces, model=tmp_path / "model", workdir=tmp_path / "work")
    assert (found.settings.scorer, found.settings.partition, found.settings.tau1) == ("combined", "components", 0.4)
    assert np.array_equal(found.labels, again.labels)
    relations = starfc.cluster(faces).scored
    graph = build_knn(Features(faces), k=12)
    assert np.array_equal(found.scored.neighbors, relations.neighbors)
    gcn = score_edges(Features(faces), graph, combined.with_config(scorer="gcn")).scores.astype(np.float64)
    assert np.array_equal(found.scored.neighbors[:, :12], graph.neighbors)
    assert np.array_equal(found.scored.scores[:, 12:], relations.scores[:, 12:])  # where the GCN has nothing to say
    for i in range(0, 400, 37):
        for slot in range(12):
            p, q = (np.clip(scores[i, slot], 1e-6, 1 - 1e-6) for scores in (relations.scores.astype(np.float64), gcn))
            weight = combined.config.gcn_weight
            odds = np.exp((1 - weight) * np.log(p / (1 - p)) + weight * np.log(q / (1 - q)))
            expected = odds / (1 + odds) if relations.scores[i, slot] > 0 else 0.0
            assert found.scored.scores[i, slot] == pytest.approx(expected, rel=2e-2, abs=1e-4)


def test_sure_edges_stay_numbers():
    neighbors = np.zeros((1, 3), np.int32)
    sure = ScoredEdges(neighbors, np.array([[1.0, 1e-30, 1.0]], np.float32))
    other = ScoredEdges(neighbors, np.array([[1.0, 0.0, 0.0]], np.float32))
    found = combine_scores(sure, other).scores
    assert (
        np.isfinite(found).all()
        and found[0, 0] > 0.999
        and found[0, 1] < 1e-3
        and found[0, 2] == pytest.approx(0.5, abs=0.05)
    )


def test_combined_needs_its_model(model, faces):
    with pytest.raises(InputError, match="needs a model"):
        starfc.cluster(faces, scorer="combined")
    with pytest.raises(InputError, match="this one is of 'relational'"):
        starfc.cluster(faces, model=model, scorer="combined")


def test_what_is_damaged_is_named(model, faces):
    tensors = {name: tensor for name, tensor in model.tensors.items() if name != "lowest"}
    with pytest.raises(ModelError, match="lacks the tensor 'lowest'"):
        starfc.cluster(faces, model=Model(model.config, tensors))
    with pytest.raises(ModelError, match="other relations"):
        open_network(model.with_config(relations=("evidence",)))
    with pytest.raises(InputError, match="needs a model"):
        starfc.cluster(faces, scorer="gcn")
