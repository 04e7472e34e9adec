"""Learning a space from known people."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from starfc import space_training  # noqa: E402
from starfc.features import Features  # noqa: E402
from starfc.people import index_people  # noqa: E402
from starfc.space_training import _draw_pictures, _measure_loss, learn_space  # noqa: E402


def draw_faces(n_people, each, *, seed):
    """Return faces in 24 dimensions, half of which say when a picture was taken and nothing of who is on it."""
    rng = np.random.default_rng(seed)
    people = np.repeat(np.arange(n_people), each)
    who = rng.normal(size=(n_people, 12))[people] + 0.5 * rng.normal(size=(len(people), 12))
    return np.hstack((who, 1.5 * rng.normal(size=(len(people), 12)))).astype(np.float32), people


def find_share_of_own(rows, people):
    """Return the share of faces whose nearest other is of the same person."""
    cosines = rows @ rows.T
    np.fill_diagonal(cosines, -2)
    return float((people[cosines.argmax(axis=1)] == people).mean())


def learn(rows, people, **settings):
    features = Features(rows)
    return learn_space(features, people, index_people(features, people), **settings)


def test_pictures_of_people_never_seen_are_nearer(monkeypatch):
    monkeypatch.setattr(space_training, "_LEARNING_RATE", 3e-3)  # of few dimensions more is to be changed
    rows, people = draw_faces(150, 6, seed=0)
    space = learn(rows, people)
    others, truth = draw_faces(100, 6, seed=1)
    plain = Features(others).read(0, len(others))
    assert find_share_of_own(space.map_rows(plain), truth) > find_share_of_own(plain, truth) + 0.1


def test_the_loss_is_as_written():
    rng = np.random.default_rng(0)
    mapped = rng.normal(size=(12, 5)).astype(np.float32)
    mapped /= np.linalg.norm(mapped, axis=1, keepdims=True)
    people, faces = np.array([0, 0, 0, 1, 1, 2, 3, 4, 5, 5, 6, 7]), np.array([0, 3, 9])
    total = 0.0
    for i in faces:
        strangers = sum(np.exp(mapped[i] @ mapped[m] / 0.07) for m in range(12) if people[m] != people[i])
        own = [j for j in range(12) if j != i and people[j] == people[i]]
        total += np.mean([np.log1p(np.exp(np.log(strangers) - mapped[i] @ mapped[j] / 0.07)) for j in own])
    found = _measure_loss(torch, torch.from_numpy(mapped), people, faces, rng)
    assert found.item() == pytest.approx(total / 3, rel=1e-4)


def test_no_more_pictures_are_drawn_than_there_is_use_for():
    same = np.zeros((2, 40), bool)
    same[0], same[1, [3, 7]] = True, True
    pairs, weights = _draw_pictures(same, np.random.default_rng(0))
    assert np.bincount(pairs[:, 0]).tolist() == [8, 2]
    assert pairs[8:].tolist() == [[1, 3], [1, 7]]
    assert weights.sum() == pytest.approx(1) and weights[-1] == pytest.approx(0.25)


def test_it_repeats_and_unlabelled_faces_count_for_nothing():
    rows, people = draw_faces(60, 4, seed=2)
    first, again = (learn(rows, people, steps=5, seed=3) for _ in range(2))
    assert np.array_equal(first.change, again.change) and np.abs(first.change).max() > 0
    more = np.vstack((rows, np.random.default_rng(0).normal(size=(50, 24)).astype(np.float32)))
    found = learn(more, np.append(people, np.full(50, -1)), steps=5, seed=3)
    assert np.array_equal(first.change, found.change)


def test_of_many_faces_others_are_compared_in_turn(monkeypatch):
    monkeypatch.setattr(space_training, "_COMPARED", 40)
    monkeypatch.setattr(space_training, "_TURN", 2)
    rows, people = draw_faces(60, 4, seed=2)
    taken = []
    monkeypatch.setattr(Features, "take", lambda self, chosen: taken.append(chosen) or rows[chosen])
    learn(rows, people, steps=6)
    assert len(taken) == 3 and len({tuple(chosen) for chosen in taken}) == 3
    assert all(40 <= len(chosen) < 48 for chosen in taken)


def test_where_nobody_has_two_faces_nothing_changes():
    rows = np.eye(6, dtype=np.float32)
    space = learn(rows, np.arange(6), steps=3)
    assert not space.change.any() and not space.shift.any()
