"""Scoring by relations, with the shipped model."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from safetensors.numpy import save

from starfc import relational
from starfc.errors import ModelError
from starfc.features import Features
from starfc.knn import KnnGraph, build_knn
from starfc.looks import HOPEFUL, decode_chances, sum_beliefs
from starfc.metrics import bcubed
from starfc.partition import label_components
from starfc.perceptron import Perceptron
from starfc.profiles import measure_profiles
from starfc.prune import parse_edges
from starfc.relational import (
    INPUTS,
    RelationalModel,
    describe_again,
    find_least_discovery,
    load_relational,
    load_shipped,
    predict_codes,
    predict_edges,
    score_by_relations,
)
from starfc.relations import RELATIONS, relate_rows, survey_graph
from starfc.scratch import Scratch
from starfc.strictness import PREFERENCES
from starfc.synth import make_faces
from starfc.threads import limited_threads


def draw_perceptron(n_inputs, seed=0, hidden=(5, 3)):
    """A random network."""
    rng = np.random.default_rng(seed)
    widths = [n_inputs, *hidden, 1]
    weights = tuple(rng.normal(size=shape).astype(np.float32) / 9 for shape in pairwise(widths))
    biases = tuple(rng.normal(size=width).astype(np.float32) for width in widths[1:])
    lowest, highest = np.full(widths[0], -5, np.float32), np.full(widths[0], 8, np.float32)
    return Perceptron(weights, biases, lowest, highest)


def draw_model():
    """A random network for the first sight, and no second look."""
    return RelationalModel(draw_perceptron(len(RELATIONS)))


@pytest.fixture(scope="module")
def album():
    rows, labels = make_faces(600, people=40, dim=64, singletons=0.3, seed=3)
    features = Features(rows)
    return features, build_knn(features, k=30), labels


def test_scores_are_those_of_the_network_edge_by_edge(album):
    features, graph, _ = album
    model = draw_model()
    scores = score_by_relations(features, graph, model=model).scores
    around = survey_graph(graph, measure_profiles(features).weigh_edges(graph))
    log_odds = np.full(graph.neighbors.shape, -np.inf)
    for i in range(600):
        relations, positions = relate_rows(around, np.array([i]))
        for line, position in zip(relations.astype(np.float64), positions, strict=True):
            values = np.minimum(np.maximum(line, -5), 8)
            for layer in range(3):
                values = values @ model.first.weights[layer].astype(np.float64) + model.first.biases[layer]
                values = np.maximum(values, 0) if layer < 2 else values
            log_odds[i, position] = values[0]
            short = find_least_discovery(around) - line[RELATIONS.index("discovery_hi")]
            log_odds[i, position] -= np.log(10) * max(short, 0)
    np.testing.assert_allclose(scores, 1 / (1 + np.exp(-log_odds)), atol=1e-4)


def test_a_second_look_is_added_to_the_first(album):
    """Edge by edge: hopeful ones have the sum of both networks' log-odds, others what they had."""
    features, graph, _ = album
    around = survey_graph(graph, measure_profiles(features).weigh_edges(graph))
    first, second = load_shipped().first, draw_perceptron(len(INPUTS), seed=3)
    codes = predict_codes(around, first)
    beliefs = sum_beliefs(graph.neighbors, codes)
    scores = predict_edges(around, RelationalModel(first, second))
    seen = np.zeros(scores.shape, dtype=bool)
    for i in range(0, 600, 7):
        inputs, positions = describe_again(around, beliefs, np.array([i]))
        seen[i, positions] = True
        odds = np.exp((codes[i, positions] - 32768.0) / 3640 + second.predict(inputs).astype(np.float64))
        np.testing.assert_allclose(scores[i, positions], odds / (1 + odds), atol=1e-4)
        np.testing.assert_allclose(scores[i, ~seen[i]], decode_chances(codes[i, ~seen[i]]), atol=1e-6)
        assert (decode_chances(codes[i, ~seen[i]]) <= HOPEFUL).all()
    assert seen.any()


def test_low_edges_lose_odds_where_all_matches_stand_high(album):
    features, graph, _ = album
    around = survey_graph(graph, measure_profiles(features).weigh_edges(graph))
    model = draw_model()
    for low, least in ((3.0, 0.0), (7.0, 1.5), (20.0, 3.0)):
        placed = replace(around, typical=np.array([25.0, low, 0.5, 2.0]))
        assert find_least_discovery(placed) == least
        scores = predict_edges(placed, model)
        for i in (0, 300):
            relations, positions = relate_rows(placed, np.array([i]))
            short = np.maximum(least - relations[:, RELATIONS.index("discovery_hi")].astype(np.float64), 0)
            odds = np.exp(model.first.predict(relations).astype(np.float64)) / 10**short
            np.testing.assert_allclose(scores[i, positions], odds / (1 + odds), rtol=1e-4, atol=1e-7)


def test_the_order_in_which_rows_are_visited_changes_nothing(album):
    features, graph, _ = album
    around = survey_graph(graph, measure_profiles(features).weigh_edges(graph))
    order = np.random.default_rng(0).permutation(graph.n).astype(np.int32)
    for model in (draw_model(), load_shipped()):
        # Edges are in other tiles, so the last bits of log-odds differ; a code of 1/3640 may be the next one then.
        np.testing.assert_allclose(predict_edges(around, model, order=order), predict_edges(around, model), atol=1e-4)


def test_strangers_stay_alone():
    for n, dim in ((5, 64), (20, 128), (300, 512)):
        features = Features(np.random.default_rng(n).normal(size=(n, dim)))
        scored = score_by_relations(features, build_knn(features, k=min(80, n - 1)))
        assert len(np.unique(label_components(parse_edges(scored, PREFERENCES["balanced"])))) > 0.97 * n


def test_one_person_alone_is_one_cluster():
    rng = np.random.default_rng(8)
    looks = rng.normal(size=(150, 6)) @ rng.normal(size=(6, 128)) / np.sqrt(6 * 128)
    noise = rng.lognormal(0, 0.5, size=(150, 1)) * rng.normal(size=(150, 128)) / np.sqrt(128)
    features = Features(rng.normal(size=(1, 128)) / np.sqrt(128) + 0.7 * looks + 0.6 * noise)
    scored = score_by_relations(features, build_knn(features, k=80))
    found = label_components(parse_edges(scored, PREFERENCES["balanced"]))
    assert np.bincount(found).max() > 0.9 * 150


def test_the_shipped_model_tells_people_apart(album):
    features, graph, labels = album
    scored = score_by_relations(features, graph)
    same = labels[graph.neighbors] == labels[:, None]
    assert scored.scores[same].mean() > 0.85 and scored.scores[~same].mean() < 0.2
    found = label_components(parse_edges(scored, PREFERENCES["precision"]))
    assert bcubed(labels, found).f > 0.8


def test_scale_rotation_and_order_change_little(album):
    features, graph, _ = album
    rng = np.random.default_rng(0)
    order = rng.permutation(600)
    rotation = np.linalg.qr(rng.normal(size=(64, 64)))[0]
    turned = Features(3 * (features.read(0, 600) @ rotation)[order])
    before, after = score_by_relations(features, graph), score_by_relations(turned, build_knn(turned, k=30))
    np.testing.assert_allclose(after.scores, before.scores[order], atol=0.02)


def test_bits_do_not_depend_on_threads(album):
    features, graph, _ = album
    whole = score_by_relations(features, graph).scores
    with limited_threads(1):
        assert (score_by_relations(features, graph).scores == whole).all()


def test_missing_neighbours_score_nothing(album):
    features, graph, _ = album
    neighbors = graph.neighbors.copy()
    neighbors[:, 20:] = -1
    cut = KnnGraph(neighbors, np.where(neighbors < 0, 0, graph.similarities).astype(np.float32))
    assert (score_by_relations(features, cut).scores[:, 20:] == 0).all()


@pytest.mark.parametrize("model", [draw_model(), load_shipped()], ids=["first", "both"])
def test_a_model_is_saved_and_read_back(tmp_path, model):
    model.save(tmp_path / "model", "# card\n")
    again = load_relational(tmp_path / "model")
    assert model.tensors.keys() == again.tensors.keys()
    assert all((tensor == again.tensors[name]).all() for name, tensor in model.tensors.items())
    assert (tmp_path / "model" / "README.md").read_text() == "# card\n"


def test_foreign_and_damaged_folders_are_refused(tmp_path):
    with pytest.raises(ModelError, match="no relational model"):
        load_relational(tmp_path)
    load_shipped().save(tmp_path / "model", "")
    weights = tmp_path / "model" / "model.safetensors"
    weights.write_bytes(save(load_shipped().first.name_tensors()))
    with pytest.raises(ModelError, match=r"not the file that config\.json was written with"):
        load_relational(tmp_path / "model")
    config = tmp_path / "model" / "config.json"
    known = json.loads(config.read_text())
    del known["sha256"]
    config.write_text(json.dumps(known))
    with pytest.raises(ModelError, match=r"lacks the tensor 'second\."):
        load_relational(tmp_path / "model")
    config.write_text(json.dumps({**known, "relations": ["cosine"]}))
    with pytest.raises(ModelError, match="other relations"):
        load_relational(tmp_path / "model")


def test_wrong_shapes_and_values_are_refused():
    first = draw_model().first
    with pytest.raises(ModelError, match="layers have shapes"):
        RelationalModel(replace(first, weights=first.weights[:2], biases=first.biases[:2]))
    with pytest.raises(ModelError, match="range for each"):
        RelationalModel(replace(first, lowest=first.lowest[:3]))
    with pytest.raises(ModelError, match="NaN"):
        RelationalModel(replace(first, biases=(first.biases[0] * np.nan, *first.biases[1:])))
    with pytest.raises(ModelError, match="layers have shapes"):
        RelationalModel(first, first)


def test_the_shipped_model_is_small_and_has_a_card():
    from importlib.resources import files

    folder = files("starfc") / "shipped"
    assert len((folder / "model.safetensors").read_bytes()) < 3e6
    assert "synthetic" in (folder / "README.md").read_text(encoding="utf-8")
    assert all(load_shipped().facts[network]["n_edges"] > 100_000 for network in ("first", "second"))


@pytest.mark.parametrize("at", [3, 10])
def test_a_killed_scoring_goes_on_behind_the_last_tile(tmp_path, monkeypatch, at):
    """Killed at first sight, or in the second look."""
    rows, _ = make_faces(400, people=40, dim=32)
    features = Features(rows)
    graph = build_knn(features, k=20)
    monkeypatch.setattr(relational, "_TILE_ROWS", 64)
    whole = score_by_relations(features, graph).scores
    calls, divide = [], relational.divide_edges

    def divide_some(neighbors, levels, least, *, ranks, rows):
        calls.append((int(rows[0]), levels.dtype == np.float32))
        if len(calls) == at + 1:
            raise KeyboardInterrupt
        return divide(neighbors, levels, least, ranks=ranks, rows=rows)

    monkeypatch.setattr(relational, "divide_edges", divide_some)
    with limited_threads(1):
        with pytest.raises(KeyboardInterrupt):
            score_by_relations(features, graph, scratch=Scratch(tmp_path / "work"))
        done = set(calls[:at])
        found = score_by_relations(features, graph, scratch=Scratch(tmp_path / "work")).scores
    assert np.array_equal(found, whole)
    assert not done & set(calls[at + 1 :]) and len(calls) == at + 1 + 2 * 7 - at
