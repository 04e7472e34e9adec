"""The index of people against plain loops, kept and linked."""

import numpy as np
import pytest

from starfc import people as people_module
from starfc.errors import InputError
from starfc.features import Features
from starfc.people import index_people, keep_index, link_people
from starfc.workdir import Workdir


def make_faces(n_people=40, dim=6, seed=0, most=9):
    """People of 1..most faces around random directions, rows shuffled, some unlabelled."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(1, most + 1, n_people)
    labels = np.repeat(rng.permutation(n_people * 3)[:n_people], counts)
    directions = rng.normal(size=(n_people, dim))
    vectors = np.repeat(directions, counts, axis=0) + 0.2 * rng.normal(size=(counts.sum(), dim))
    order = rng.permutation(len(labels))
    labels = labels[order]
    labels[rng.random(len(labels)) < 0.05] = -1
    return Features(vectors[order]), labels.astype(np.int64)


def center_of(features, labels, person):
    unit = features.raw / np.linalg.norm(features.raw, axis=1, keepdims=True)
    mean = unit[labels == person].mean(axis=0)
    return mean / np.linalg.norm(mean)


def nearest_by_hand(features, labels, person, n):
    """Brute force: cosine of the person's centre with every other centre, one at a time."""
    own = center_of(features, labels, person)
    others = [p for p in np.unique(labels[labels >= 0]) if p != person]
    cosines = {p: float(own @ center_of(features, labels, p)) for p in others}
    return sorted(others, key=lambda p: (-cosines[p], p))[:n]


def test_index_lists_every_labelled_face_under_its_person():
    features, labels = make_faces()
    index = index_people(features, labels)
    assert index.people.tolist() == sorted(set(labels.tolist()) - {-1})
    for position, person in enumerate(index.people):
        rows = index.rows[index.offsets[position] : index.offsets[position + 1]]
        assert rows.tolist() == np.flatnonzero(labels == person).tolist()
        assert np.allclose(index.centers[position], center_of(features, labels, person), atol=1e-6)
    assert index.centers.dtype == np.float32


def test_index_does_not_depend_on_the_blocks(monkeypatch):
    features, labels = make_faces()
    whole = index_people(features, labels)
    monkeypatch.setattr("starfc.features._BLOCK_BYTES", 4 * features.dim * 7)
    assert sum(1 for _ in features.blocks()) > 10
    pieces = index_people(features, labels)
    assert np.array_equal(whole.rows, pieces.rows)
    assert np.allclose(whole.centers, pieces.centers, atol=1e-6)


def test_index_refuses_labels_of_another_length():
    with pytest.raises(InputError, match="3 labels were given for 4 faces"):
        index_people(Features(np.eye(4)), np.zeros(3, dtype=np.int64))


def test_opposite_faces_have_a_zero_center():
    index = index_people(Features(np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]])), np.array([0, 0, 1]))
    assert np.array_equal(index.centers, [[0, 0], [0, 1]])


@pytest.mark.parametrize("n", [1, 5, 39, 500])
def test_nearest_people_equal_brute_force(n):
    features, labels = make_faces()
    index = index_people(features, labels)
    seeds = np.array([0, 11, len(index) - 1])
    found = index.nearest_people(seeds, n)
    assert found.shape == (3, min(n, len(index) - 1))
    for row, seed in zip(found, seeds, strict=True):
        assert index.people[row].tolist() == nearest_by_hand(features, labels, index.people[seed], n)


def test_nearest_people_break_ties_by_position():
    index = index_people(Features(np.ones((7, 3))), np.arange(7))
    assert index.nearest_people(np.array([2, 0]), 4).tolist() == [[0, 1, 3, 4], [1, 2, 3, 4]]


def test_faces_of_people_equal_a_plain_loop():
    features, labels = make_faces()
    index = index_people(features, labels)
    persons = np.array([3, 30, 17])
    assert index.faces_of(persons).tolist() == np.flatnonzero(np.isin(labels, index.people[persons])).tolist()
    assert len(index.faces_of(np.empty(0, dtype=np.int64))) == 0


def test_a_large_person_brings_no_more_than_asked_for():
    labels = np.repeat([0, 1, 2], [50, 3, 20])
    index = index_people(Features(np.eye(73)), labels)
    rows = index.faces_of(np.array([0, 1, 2]), most=10, rng=np.random.default_rng(0))
    assert np.bincount(labels[rows]).tolist() == [10, 3, 10]
    assert rows.tolist() == sorted(set(rows.tolist()))


def test_a_selection_of_people_is_the_index_of_their_faces():
    features, labels = make_faces()
    index = index_people(features, labels)
    persons = np.array([0, 4, 20, len(index) - 1])
    expected = index_people(features, np.where(np.isin(labels, index.people[persons]), labels, -1))
    chosen = index.select(persons)
    for name in ("people", "offsets", "rows"):
        assert np.array_equal(getattr(chosen, name), getattr(expected, name))
    assert np.allclose(chosen.centers, expected.centers, atol=1e-6)


def link_all(index, tmp_path=None, **options):
    return link_people(index, workdir=Workdir(tmp_path), depends_on={}, at_most=0, **options)


@pytest.mark.parametrize("n", [1, 5, 12])
def test_linked_people_are_nearly_the_nearest(monkeypatch, n):
    """Links lead to a part of the people only, but to nearly all of those that matter, in the right order."""
    monkeypatch.setattr(people_module, "_LINKS", 6)
    features, labels = make_faces(200, dim=5)
    index = index_people(features, labels)
    linked = link_all(index)
    assert linked.links.shape == (len(index), 6)
    seeds = np.array([0, 50, len(index) - 1])
    exact, found = index.nearest_people(seeds, n), linked.nearest_people(seeds, n)
    assert found.shape == exact.shape
    assert not (found == seeds[:, None]).any()
    assert np.mean([np.isin(row, best).mean() for row, best in zip(found, exact, strict=True)]) > 0.8
    for seed, row in zip(seeds, found, strict=True):
        assert len(np.unique(row)) == n
        assert (np.diff(index.centers[row] @ index.centers[seed]) <= 1e-6).all()


def test_far_too_few_links_fall_back_to_comparing_all():
    """Two islands of three: the third neighbour is on the other one, where no link leads."""
    rows = np.array([[1, 0, 0], [0.9, 0.1, 0], [0.9, 0, 0.1], [-1, 0, 0], [-0.9, 0.1, 0], [-0.9, 0, 0.1]] * 3)
    rows += 0.01 * np.random.default_rng(0).normal(size=rows.shape)
    index = index_people(Features(rows), np.arange(18))
    islands = index.__class__(
        index.people, index.offsets, index.rows, index.centers, np.array([[(i + 6) % 18] for i in range(18)], np.int32)
    )
    assert np.array_equal(islands.nearest_people(np.array([0]), 5), index.nearest_people(np.array([0]), 5))


def test_few_people_are_not_linked():
    index = index_people(*make_faces())
    assert link_people(index, workdir=Workdir(None), depends_on={}) is index


def test_a_person_without_a_direction_can_be_linked():
    rows = np.concatenate([np.eye(5), [[1, 0, 0, 0, 0], [-1, 0, 0, 0, 0]]])
    index = index_people(Features(rows), np.array([0, 1, 2, 3, 4, 5, 5]))
    assert not index.centers[5].any()
    assert link_all(index).links.shape == (6, 5)


def test_the_index_and_the_links_are_kept(tmp_path, monkeypatch):
    features, labels = make_faces()
    kept = Workdir.open(tmp_path)
    blocks = []
    first = keep_index(features, labels, workdir=kept, depends_on={"a": 1}, after_block=lambda: blocks.append(1))
    linked = link_all(first, tmp_path)
    assert blocks
    with monkeypatch.context() as patched:
        patched.setattr(people_module, "index_people", None)  # would fail if they were called
        patched.setattr(people_module, "build_knn", None)
        again = keep_index(features, labels, workdir=kept, depends_on={"a": 1})
        relinked = link_all(again, tmp_path)
    for name in ("people", "offsets", "rows", "centers"):
        assert np.array_equal(getattr(first, name), getattr(again, name))
        assert getattr(first, name).dtype == getattr(again, name).dtype
    assert np.array_equal(linked.links, relinked.links)
    assert {path.name for path in tmp_path.iterdir()} == {
        "people.npz", "people.json", "people.links.npz", "people.links.json",
    }  # fmt: skip
    other = keep_index(features, np.zeros(len(labels), np.int64), workdir=kept, depends_on={"a": 2})
    assert len(other) == 1
