"""Levels of strictness against an oracle that reads them off edge by edge."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from starfc.pipeline import Settings
from starfc.prune import EdgeGraph
from starfc.review.levels import Levels

N = 9
LEVELS = (0.3, 0.45, 0.5, 0.62, 0.75, 0.9)
edges = st.lists(
    st.tuples(st.integers(0, N - 1), st.integers(0, N - 1), st.sampled_from([0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 1.0])),
    max_size=40,
)
owners = st.lists(st.integers(0, 4), min_size=N, max_size=N)


def make_settings(partition="mapequation", **changes):
    return Settings(5, "relational", 0.5, changes.pop("tau2", None), partition=partition, **changes)


def make_graph(listed):
    distinct = {(i, j): score for i, j, score in listed if i != j}
    rows = [[(j, score) for (source, j), score in distinct.items() if source == i] for i in range(N)]
    offsets = np.cumsum([0, *map(len, rows)])
    flat = [entry for row in rows for entry in row]
    targets = np.array([j for j, _ in flat], dtype=np.int32)
    return EdgeGraph(offsets, targets, np.array([score for _, score in flat], dtype=np.float32)), distinct


def as_sets(labels):
    return {frozenset(np.flatnonzero(labels == label).tolist()) for label in np.unique(labels)}


def join(sets, pairs):
    """Join sets by pairs of faces until nothing changes."""
    parts = [set(part) for part in sets]
    for i, j in pairs:
        first, second = (next(part for part in parts if face in part) for face in (i, j))
        if first is not second:
            parts.remove(second)
            first |= second
    return {frozenset(part) for part in parts}


def cut_slowly(distinct, labels, level):
    """Say by the definition who is together at a level, tau_1 being .5."""
    clusters = as_sets(labels)
    if level > 0.5:
        within = [(i, j) for (i, j), score in distinct.items() if np.float32(score) > np.float32(level)]
        return join([{i} for i in range(N)], [(i, j) for i, j in within if labels[i] == labels[j]])
    if level == 0.5:
        return clusters
    order = sorted(clusters, key=lambda part: (len(part), labels[min(part)]))
    pairs = []
    for place, small in enumerate(order):
        for large in order[place + 1 :]:
            known = [any(distinct.get((i, j), 0) > np.float32(level) for j in large) for i in small]
            if sum(known) >= 0.75 * len(small):
                pairs.append((min(small), min(large)))
    return join(clusters, pairs)


@settings(max_examples=150, deadline=None)
@given(edges, owners)
def test_levels_are_what_their_definition_says(listed, labels):
    graph, distinct = make_graph(listed)
    labels = np.array(labels)
    levels = Levels(graph, labels, make_settings())
    counts = levels.count(np.array(LEVELS))
    finer = None
    for place in range(len(LEVELS) - 1, -1, -1):
        found = as_sets(levels.cut(LEVELS[place]))
        assert found == cut_slowly(distinct, labels, LEVELS[place])
        assert counts[place] == len(found)
        assert finer is None or all(any(small <= large for large in found) for small in finer)  # nested
        finer = found


@settings(max_examples=60, deadline=None)
@given(edges)
def test_components_are_those_of_the_edges_above(listed):
    graph, distinct = make_graph(listed)
    labels = np.zeros(N, dtype=np.int64)
    for part in join([{i} for i in range(N)], _above(distinct, 0.5)):
        labels[list(part)] = min(part)
    levels = Levels(graph, labels, make_settings("components"))
    counts = levels.count(np.array(LEVELS))
    for level, count in zip(LEVELS, counts, strict=True):
        expected = join([{i} for i in range(N)], _above(distinct, level))
        assert as_sets(levels.cut(level)) == expected
        assert count == len(expected)


def _above(distinct, level):
    return [pair for pair, score in distinct.items() if np.float32(score) > np.float32(level)]


@pytest.mark.parametrize("changes", [{"tau2": 0.3}, {"edges": "mutual"}])
def test_refined_components_are_pruned_again(changes):
    from starfc.partition import label_components
    from starfc.prune import prune_edges
    from starfc.score import ScoredEdges

    rng = np.random.default_rng(0)
    neighbors = np.array([rng.choice(np.delete(np.arange(30), i), 6, replace=False) for i in range(30)], np.int32)
    scored = ScoredEdges(neighbors, rng.random((30, 6)).astype(np.float32))
    chosen = make_settings("components", **changes)
    loose = prune_edges(scored, tau1=0.25, tau2=None)
    levels = Levels(loose, np.zeros(30, np.int64), chosen)
    expected = label_components(prune_edges(scored, tau1=0.4, tau2=chosen.tau2, edges=chosen.edges))
    assert as_sets(levels.cut(0.4)) == as_sets(expected)
    assert levels.count(np.array([0.4, 0.5])).tolist() == [len(as_sets(expected)), 1]
