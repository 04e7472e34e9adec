"""Crowds against a slow oracle, and on graphs where it is known what is one."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_graphs import make_graph
from starfc import crowds
from starfc.crowds import find_crowds


def look_elsewhere(graph, labels, cluster, barred):
    """Return the mean of the best scores to other clusters, and how many of them there are effectively."""
    scores, homes = [], Counter()
    for i in np.flatnonzero(labels == cluster):
        links = [
            (graph.scores[e], labels[graph.targets[e]])
            for e in range(graph.offsets[i], graph.offsets[i + 1])
            if labels[graph.targets[e]] not in {cluster, *barred}
        ]
        best = max(links, key=lambda link: link[0], default=(0.0, None))
        scores.append(float(best[0]))
        if best[1] is not None:
            homes[int(best[1])] += 1
    total = sum(homes.values())
    return np.mean(scores), total**2 / sum(count**2 for count in homes.values()) if total else 0.0


def find_slowly(graph, labels):
    """Apply the definition to one cluster after another, twice, and then with more asked for."""
    sizes = np.bincount(labels)

    def leads_away(cluster, barred, least):
        score, homes = look_elsewhere(graph, labels, cluster, barred)
        enough = least * math.log(crowds._HOMES) / math.log(homes) if homes > 1 else math.inf
        return sizes[cluster] >= crowds._FEWEST_FACES and homes >= crowds._HOMES and score >= enough

    first = {cluster for cluster in range(len(sizes)) if leads_away(cluster, set(), crowds._ELSEWHERE)}
    found = {cluster for cluster in first if leads_away(cluster, first, crowds._ELSEWHERE)}
    of_others = [
        look_elsewhere(graph, labels, cluster, first)[0] for cluster in labels.tolist() if cluster not in found
    ]
    least = max(crowds._ELSEWHERE, crowds._TIMES_OTHERS * float(np.mean(of_others or [0.0])))
    return [cluster in found and leads_away(cluster, first, least) for cluster in range(len(sizes))]


def make_people(n_people, size, *, blurred, others=(), alone=0):
    """Link all faces of a person; the last of each of the first `blurred` people are linked to one another as well.

    `others` are further edges, and `alone` further faces, which the labels leave out.
    """
    n = n_people * size
    faces = np.arange(n).reshape(n_people, size)
    edges = [(int(i), int(j), 0.9) for person in faces[:, :-1] for i in person for j in person if i != j]
    edges += [(int(person[-1]), int(j), 0.8) for person in faces for j in person[:-1]]
    last = faces[:blurred, -1]
    edges += [(int(i), int(j), 0.97) for i in last for j in last if i != j]
    labels = np.repeat(np.arange(n_people), size)
    labels[last] = n_people
    return make_graph(n + alone, [*edges, *others]), labels.astype(np.int32)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32 - 1), st.integers(2, 9), st.integers(1, 6))
def test_crowds_equal_those_of_the_definition(seed, n_clusters, degree):
    rng = np.random.default_rng(seed)
    n = 14 * n_clusters
    labels = np.unique(rng.integers(0, n_clusters, n), return_inverse=True)[1].astype(np.int32)
    scores = rng.permutation(n * degree) / (n * degree)  # no two are equal
    near = rng.random(n * degree) < rng.random()
    ends = np.where(near, np.repeat(np.arange(n), degree), rng.integers(0, n, n * degree))
    graph = make_graph(n, list(zip(np.repeat(np.arange(n), degree), ends, scores, strict=True)))
    assert find_crowds(graph, labels).tolist() == find_slowly(graph, labels)


def test_blurred_faces_of_many_people_are_a_crowd():
    graph, labels = make_people(12, 6, blurred=10)
    assert np.flatnonzero(find_crowds(graph, labels)).tolist() == [12]


@pytest.mark.parametrize("blurred", [2, 7])
def test_few_faces_are_no_crowd(blurred):
    assert not find_crowds(*make_people(12, 6, blurred=blurred)).any()


def test_a_person_and_a_look_alike_are_no_crowds():
    n = 40
    edges = [(i, j, 0.9) for i in range(n) for j in range(n) if i != j]
    assert not find_crowds(make_graph(n, edges), np.repeat(np.arange(2, dtype=np.int32), n // 2)).any()


def test_the_parts_of_one_person_are_no_crowds():
    n = 80
    edges = [(i, (i + 8 * (1 + i % 9)) % n, 0.9) for i in range(n)]  # from each part to eight others
    graph, parts = make_graph(n, edges), (np.arange(n) // 8).astype(np.int32)
    alone = [look_elsewhere(graph, parts, part, set()) for part in range(10)]
    assert all(score >= crowds._ELSEWHERE and homes >= crowds._HOMES for score, homes in alone)
    assert not find_crowds(graph, parts).any()


def test_noisy_people_are_no_crowd():
    """Those of one person lead elsewhere as those of a crowd do, but so do all others, half as surely."""
    for score, is_crowd in ((0.0, True), (0.3, False)):
        others = [(i, (i + 6 * (1 + i % 5)) % 72, score) for i in range(72)] if score else []
        graph, labels = make_people(12, 6, blurred=10, others=others)
        assert find_crowds(graph, labels)[12] == is_crowd


def test_without_faces_or_links():
    assert find_crowds(make_graph(3, []), np.arange(3, dtype=np.int32)).tolist() == [False] * 3
    assert find_crowds(make_graph(0, []), np.empty(0, np.int32)).tolist() == []


def test_of_many_homes_fewer_links_are_enough():
    """Two faces in five of a crowd still list their person."""
    graph, labels = make_people(30, 6, blurred=30)
    kept = [
        (i, int(graph.targets[e]), float(graph.scores[e]))
        for i in range(graph.n_nodes)
        for e in range(graph.offsets[i], graph.offsets[i + 1])
        if labels[i] < 30 or labels[graph.targets[e]] == 30 or i // 6 < 12
    ]
    score, homes = look_elsewhere(make_graph(graph.n_nodes, kept), labels, 30, set())
    assert score < crowds._ELSEWHERE and homes == 12
    assert find_crowds(make_graph(graph.n_nodes, kept), labels)[30]
