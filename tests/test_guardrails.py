"""Sentences about what looks wrong, and silence where nothing does."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphs import scored_graphs
from starfc.features import Features
from starfc.guardrails import Sureness, find_warnings, measure_sureness
from starfc.score import ScoredEdges


def make_people(n_people, n_faces, *, dim=64, noise=0.5, seed=0):
    """Draw rows and labels of equally many faces per person."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(n_people), n_faces)
    return (rng.normal(size=(n_people, dim))[labels] + noise * rng.normal(size=(len(labels), dim))), labels


def list_nearest(rows):
    """Return every face's nearest one as a graph with a certain edge each."""
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    cosines = unit @ unit.T
    np.fill_diagonal(cosines, -2)
    return ScoredEdges(cosines.argmax(axis=1).astype(np.int32)[:, None], np.ones((len(rows), 1), np.float32))


def warn(rows, labels):
    return find_warnings(Features(rows), labels, list_nearest(rows))


@settings(deadline=None)
@given(scored_graphs(), st.integers(0, 9))
def test_sureness_is_counted_edge_by_edge(scored, seed):
    labels = np.random.default_rng(seed).integers(-1, 3, len(scored.neighbors))
    within, likely = [], 0.0
    for i, line in enumerate(scored.neighbors):
        for slot, j in enumerate(line):
            if j >= 0:
                likely += float(scored.scores[i, slot])
                if labels[i] >= 0 and labels[i] == labels[j]:
                    within.append(float(scored.scores[i, slot]))
    sure = measure_sureness(labels, scored)
    assert sure.right == pytest.approx(np.mean(within) if within else 1.0, abs=1e-6)
    assert sure.found == pytest.approx(sum(within) / likely if likely else 1.0, abs=1e-6)


def test_sureness_speaks():
    assert "98.4 % of the neighbours" in Sureness(0.984, 0.9).describe()
    assert "no neighbours were put together, and 0.0 %" in Sureness(1.0, 0.0).describe()


def test_a_good_clustering_gives_no_sentence():
    assert warn(*make_people(40, 10)) == []
    assert warn(*make_people(2, 100)) == []  # two people are no two embedders, and half of the faces no chain
    assert warn(*make_people(1, 100)) == []
    assert warn(np.random.default_rng(0).normal(size=(10, 8)), np.zeros(10, np.int64)) == []  # too few to judge


def test_a_chain_that_is_not_the_largest_cluster_is_named():
    rows, labels = make_people(102, np.repeat([3, 400, 3], [50, 1, 51]))
    joined = np.where((labels < 50) | (labels > 80), 0, labels)
    (sentence,) = warn(rows, joined)
    assert sentence.startswith("a large cluster holds 30 % of all faces")


def test_one_person_in_pieces_is_no_second_embedder():
    rows, labels = make_people(40, np.repeat([3, 120], [39, 1]), noise=0.4)
    pieces = np.where(labels == 39, 100 + np.arange(len(labels)), labels)
    assert warn(rows, pieces) == []


def test_lengths_beyond_all_squares(recwarn):
    rows, labels = make_people(40, 10)
    assert find_warnings(Features(rows * 1e200), labels, list_nearest(rows)) == []
    assert not recwarn


@pytest.mark.parametrize("share", [0.3, 1.0])
def test_a_chain_of_people_is_named(share):
    rows, labels = make_people(100, 6)
    joined = np.where(labels < share * 100, 0, labels)
    (sentence,) = warn(rows, joined)
    assert sentence.startswith(f"the largest cluster holds {100 * share:.0f} % of all faces")
    assert "--prefer precision" in sentence
    (sentence,) = find_warnings(Features(rows), joined, list_nearest(rows), by_relations=False)
    assert "try a higher --tau1" in sentence


def test_a_chain_is_named_where_all_faces_are_alike_and_where_it_is_a_small_part():
    rows, labels = make_people(100, 6)
    (sentence,) = warn(rows + 1.5, np.where(labels < 70, 0, labels))  # an embedder off its centre
    assert sentence.startswith("the largest cluster holds 70 % of all faces")
    rows, labels = make_people(600, 5)
    (sentence,) = warn(rows, np.where(labels < 60, 0, labels))
    assert sentence.startswith("the largest cluster holds 10 % of all faces")
    assert warn(rows, np.where(labels < 20, 0, labels)) == []  # a hundred faces may be one person's


def test_faces_that_are_all_alone():
    rows, labels = make_people(300, 1)
    (sentence,) = warn(rows, labels)
    assert "100 % of the faces are alone: either" in sentence
    one, _ = make_people(1, 100)
    (sentence,) = warn(one, np.arange(100))
    assert "may be one person" in sentence


def test_copies_are_counted():
    rows, labels = make_people(50, 6)
    copied = np.repeat(rows, 2, axis=0)
    (sentence,) = warn(copied, np.repeat(labels, 2))
    assert sentence.startswith("about 600 faces (100 %) are copies")


def test_pixels_are_no_embeddings():
    rows, labels = make_people(40, 5)
    assert any("no value is negative" in sentence for sentence in warn(np.abs(rows), labels))


def test_two_embedders():
    first, labels = make_people(60, 5, seed=1)
    second, _ = make_people(60, 5, seed=2)
    both = np.concatenate([labels, labels + 60])
    assert any("two quite different lengths" in sentence for sentence in warn(np.r_[first, 30 * second], both))
    offset = 8 * np.eye(64)[:1]
    assert any("nothing in common" in sentence for sentence in warn(np.r_[first + offset, second - offset], both))


def test_what_is_no_face_is_nobody():
    rows, labels = make_people(40, 10)
    labels[:120] = -1
    assert warn(rows, labels) == []
