"""Strays against a slow oracle, and on collections in which it is known where they belong."""

import statistics
from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from starfc import strays
from starfc.score import ScoredEdges
from starfc.strays import place_strays


def find_home_slowly(scored, labels, i, strays_too):
    """Return where one face is at home; faces of these clusters have no vote."""
    everybody = zip(scored.neighbors[i], scored.scores[i], strict=True)
    listed = [(labels[j], p) for j, p in everybody if j >= 0 and labels[j] not in strays_too][: strays._LOOKED_AT]
    votes = Counter(label for label, _ in listed)
    hopeful = [label for label, p in listed if p >= np.float32(strays._HOPELESS)]
    homes = [home for home in hopeful if votes[home] >= len(listed) / 2]
    return homes[0] if homes else labels[i]


def place_slowly(scored, labels):
    """Apply the definition to one face after another."""
    sizes = Counter(labels.tolist())
    tiny = {label for label, size in sizes.items() if size <= strays._LARGEST}
    median = statistics.median(sizes[label] for label in labels.tolist())
    small = tiny | {label for label, size in sizes.items() if size * strays._SMALL <= median}
    left_over = set(tiny)
    for label in small - tiny:
        homes = {find_home_slowly(scored, labels, i, small) for i in np.flatnonzero(labels == label)}
        if len(homes - {label}) > 1:
            left_over.add(label)
    if sum(sizes[label] for label in tiny) > strays._FEW * len(labels):
        left_over = tiny
    placed = labels.tolist()
    left = [i for i, label in enumerate(labels) if label in left_over]
    if len(left) <= strays._FEW * len(labels):
        for i in left:
            placed[i] = find_home_slowly(scored, labels, i, left_over)
    numbers = {}
    return [numbers.setdefault(label, len(numbers)) for label in placed]


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_against_the_definition(data):
    rng = np.random.default_rng(data.draw(st.integers(0, 10_000)))
    n, k = 400, data.draw(st.integers(1, 40))
    labels = np.sort(rng.integers(0, data.draw(st.integers(1, 4)), n))
    alone = rng.choice(n, data.draw(st.integers(0, 10)), replace=False)
    labels[alone] = 10 + np.arange(len(alone)) // data.draw(st.integers(1, 6))
    labels = np.unique(labels, return_inverse=True)[1]
    neighbors = rng.integers(-1, n, (n, k)).astype(np.int32)
    scores = rng.choice(np.array([0, 0.02, 0.05, 0.3, 0.9], np.float32), (n, k))
    scored = ScoredEdges(neighbors, scores)
    first = {label: number for number, label in enumerate(dict.fromkeys(labels.tolist()))}
    numbered = np.array([first[label] for label in labels])
    assert place_strays(scored, numbered).tolist() == place_slowly(scored, numbered)


def make_collection(n_strays, p):
    """Link strays, the last faces, to ten faces of one of four people of 250 faces each."""
    labels = np.concatenate([np.repeat(np.arange(4), 250), 4 + np.arange(n_strays)])
    starts = 250 * (np.arange(len(labels)) % 4)
    neighbors = (starts[:, None] + np.arange(10)).astype(np.int32)
    return ScoredEdges(neighbors, np.full(neighbors.shape, p, np.float32)), labels, starts // 250


def test_few_strays_join_the_people_around_them():
    scored, labels, people = make_collection(12, 0.3)
    assert place_strays(scored, labels).tolist() == [*labels[:1000], *people[1000:]]


def test_a_small_group_of_several_people_is_no_person():
    scored, labels, people = make_collection(12, 0.3)
    together = np.where(labels >= 4, 4, labels)  # twelve faces: more than a 24th of 250
    assert np.array_equal(place_strays(scored, together), together)
    together[-2:] = 5
    assert place_strays(scored, together).tolist() == [*labels[:1000], *people[1000:]]


def test_a_person_with_few_faces_and_one_look_alike_stays_whole():
    scored, labels, _ = make_collection(10, 0.3)
    labels = np.minimum(labels, 4)
    scored.neighbors[1000:] = np.arange(500, 510)  # all of them lead to one person
    assert np.array_equal(place_strays(scored, labels), labels)


def test_where_many_are_alone_they_stay_alone():
    scored, labels, _ = make_collection(60, 0.3)
    assert place_strays(scored, labels) is labels


def test_a_face_like_nobody_stays_alone():
    scored, labels, _ = make_collection(12, 0.01)
    assert np.array_equal(place_strays(scored, labels), labels)


def test_no_faces():
    nothing = ScoredEdges(np.empty((0, 3), np.int32), np.empty((0, 3), np.float32))
    assert len(place_strays(nothing, np.empty(0, np.int64))) == 0
