"""Relations of an edge, against sets and loops."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from starfc.knn import KnnGraph
from starfc.relations import RELATIONS, _see_more, relate_rows, survey_graph


def draw_graph(n, k, seed):
    """A graph with symmetric evidence and lists of different lengths."""
    rng = np.random.default_rng(seed)
    evidence = rng.normal(0.5, 2.5, size=(n, n))
    evidence = (evidence + evidence.T).round(3)
    neighbors, values = np.full((n, k), -1, np.int32), np.zeros((n, k), np.float32)
    for i in range(n):
        others = np.array([j for j in np.argsort(-evidence[i]) if j != i][: rng.integers(0, k + 1)], dtype=np.int32)
        neighbors[i, : len(others)], values[i, : len(others)] = others, evidence[i, others]
    return KnnGraph(neighbors, np.zeros((n, k), np.float32)), values


def weigh(e):
    """How much a neighbour counts."""
    return min(max(e + 0.5, 0.0), 6.0)


def relate_slowly(graph, evidence, i, slot):
    """Relations of one edge that are not of the collection, by name."""
    k = graph.k
    lists = [
        {int(j): float(e) for j, e in zip(graph.neighbors[f], evidence[f], strict=True) if j >= 0}
        for f in range(graph.n)
    ]
    deep = [
        dict(list(known.items())[: max((at + 1 for at, e in enumerate(known.values()) if e > -1), default=0)])
        for known in lists
    ]
    j = int(graph.neighbors[i, slot])
    e = float(evidence[i, slot])
    capped = min(e, 12.0)
    out = {"evidence": capped}

    def put(name, values):
        out[f"{name}_lo"], out[f"{name}_hi"] = min(values), max(values)

    ends = (i, j)
    back = list(deep[j]).index(i) if i in deep[j] else k
    put("rank", [np.log2(1 + slot), np.log2(1 + back)])
    above = [sum(v > e for v in lists[f].values()) for f in ends]
    put("discovery", [capped + np.log10(1 + a) for a in above])
    around = [max(1, sum(np.float32(e) - 1 < v <= e for v in lists[f].values())) for f in ends]
    put("level", [capped + np.log10(a) for a in around])
    put("over_best", [capped - min(max(lists[f].values(), default=-1), 12) for f in ends])
    weights = [sum(weigh(v) for v in lists[f].values()) for f in ends]
    sums = [sum(weigh(v) * min(v, 12) for v in lists[f].values()) for f in ends]
    put("over_average", [capped - (s / w if w > 0 else 0) for s, w in zip(sums, weights, strict=True)])
    put("last", [min(max(min(lists[f].values(), default=-1), -3), 3) for f in ends])
    shared = [m for m in deep[i] if m in deep[j] and m not in ends]
    listed = (1, int(i in deep[j]))
    for level in (0, 1, 3):
        counts = [
            max(0, sum(v > level for v in lists[f].values()) - (e > level) * own)
            for f, own in zip(ends, listed, strict=True)
        ]
        common = sum(min(deep[i][m], deep[j][m]) > level for m in shared)
        put(f"count{level}", [np.log2(1 + c) for c in counts])
        out[f"common{level}"] = np.log2(1 + common)
        put(f"share{level}", [(common + 0.25) / (c + 0.5) for c in counts])
    rest = [max(0.0, w - weigh(e) * own) for w, own in zip(weights, listed, strict=True)]
    overlap = sum(min(weigh(deep[i][m]), weigh(deep[j][m])) for m in shared)
    put("overlap", [(overlap + 0.5) / (r + 1) for r in rest])
    toward = [
        sum(weigh(deep[a][m]) * (min(max(deep[b][m], -1), 8) + 1) for m in shared) / (r + 0.5)
        for (a, b), r in zip(((i, j), (j, i)), rest, strict=True)
    ]
    put("toward", toward)
    paths = sorted([min(deep[i][m], deep[j][m]) for m in shared] + [-1.0, -1.0])[::-1]
    out["path_best"], out["path_second"] = (min(max(path, -1.0), 12.0) for path in paths[:2])
    return out


@settings(deadline=None, max_examples=40)
@given(n=st.integers(2, 14), k=st.integers(1, 12), seed=st.integers(0, 10**6))
def test_relations_agree_with_sets(n, k, seed):
    graph, evidence = draw_graph(n, k, seed)
    around = survey_graph(graph, evidence)
    lines, positions = relate_rows(around, np.arange(n))
    wanted = [(i, s) for i in range(n) for s in range(k) if graph.neighbors[i, s] >= 0 and evidence[i, s] > -1]
    assert [(int(p) // k, int(p) % k) for p in positions] == wanted
    for (i, slot), found in zip(wanted, lines, strict=True):
        for name, value in relate_slowly(graph, evidence, i, slot).items():
            assert found[RELATIONS.index(name)] == pytest.approx(value, abs=2e-4), name


def test_an_edge_looks_the_same_from_both_sides():
    graph, evidence = draw_graph(30, 29, 5)
    lines, positions = relate_rows(survey_graph(graph, evidence), np.arange(30))
    known = {
        (int(p) // 29, int(graph.neighbors[p // 29, p % 29])): line for p, line in zip(positions, lines, strict=True)
    }
    n_mutual = 0
    for (i, j), line in known.items():
        if (j, i) in known:
            np.testing.assert_allclose(line, known[j, i], rtol=1e-4, atol=1e-4)
            n_mutual += 1
    assert n_mutual > 50


def test_tiles_are_independent():
    graph, evidence = draw_graph(40, 10, 6)
    around = survey_graph(graph, evidence)
    whole = relate_rows(around, np.arange(40))[0]
    parts = np.concatenate([relate_rows(around, np.arange(start, start + 8))[0] for start in range(0, 40, 8)])
    assert (whole == parts).all()


def test_the_numbers_of_the_faces_do_not_matter():
    """Of 300 neighbours with large numbers some share a cell of the table (`test_facetable.py`), of 0 to 359 none."""
    graph, evidence = draw_graph(360, 300, 7)
    numbers = np.sort(np.random.default_rng(8).choice(60_000, 360, replace=False)).astype(np.int32)
    neighbors, values = np.full((60_000, 300), -1, np.int32), np.zeros((60_000, 300), np.float32)
    neighbors[numbers] = np.where(graph.neighbors < 0, -1, numbers[graph.neighbors])
    values[numbers] = evidence
    spread = survey_graph(KnnGraph(neighbors, np.zeros(neighbors.shape, np.float32)), values)
    found, positions = relate_rows(spread, numbers)
    expected, expected_positions = relate_rows(survey_graph(graph, evidence), np.arange(360))
    assert (positions == expected_positions).all()
    assert (found[:, :34] == expected[:, :34]).all()


def test_the_collection_is_described():
    rng = np.random.default_rng(0)
    strangers = np.full((4000, 3), -2.0, np.float32)
    strangers[:, 0] = -np.log10(-np.log(rng.random(4000)))  # the best of Poisson strangers
    graph = KnnGraph(rng.integers(0, 4000, size=(4000, 3)).astype(np.int32), np.zeros((4000, 3), np.float32))
    around = survey_graph(graph, strangers)
    assert np.abs(around.excess[:6]).max() < 0.15
    assert around.typical[2] < 0.01
    matched = strangers.copy()
    matched[:1000, 0] = 8.0
    around = survey_graph(graph, matched)
    assert around.typical[0] == 8.0 and around.typical[2] == pytest.approx(0.25, abs=0.01)
    assert around.excess[18] > 2


@pytest.mark.parametrize(
    ("more", "over_typical", "over_best", "shares", "expected"),
    [
        (4.0, 0.0, 0.0, (0.0, 1.0), 4.0),
        (4.0, 2.0, 0.0, (0.0, 0.7), 4.0),
        (1.0, 0.0, 0.0, (1.0, 1.0), 0.0),  # only twice as many
        (1.5, 0.0, 0.0, (1.0, 1.0), 0.75),
        (-2.0, 0.0, 0.0, (1.0, 1.0), 0.0),
        (4.0, -1.5, 0.0, (0.0, 1.0), 2.0),
        (4.0, -3.0, 0.0, (0.0, 1.0), 0.0),  # too low for a match
        (4.0, -1.5, -1.5, (0.0, 1.0), 1.0),
        (4.0, 0.0, 0.0, (0.0, 0.6), 2.0),
        (4.0, 0.0, 0.0, (0.8, 0.5), 0.0),  # each has its own
        (4.0, -9.0, -9.0, (0.95, 0.0), 4.0),  # low, but among the same faces
        (4.0, -9.0, -9.0, (0.875, 0.0), 2.0),
    ],
)
def test_people_seem_to_have_more_faces_where_much_says_so(more, over_typical, over_best, shares, expected):
    assert _see_more(more, over_typical, over_best, shares) == pytest.approx(expected)


def test_both_ends_must_have_many_neighbors():
    """Twenty faces that all know each other, among pairs."""
    n_pairs, n_many = 40, 20
    lists = [[i ^ 1] for i in range(2 * n_pairs)]
    many = range(2 * n_pairs, 2 * n_pairs + n_many)
    lists += [[j for j in many if j != i] for i in many]
    neighbors = np.full((len(lists), n_many - 1), -1, np.int32)
    for i, listed in enumerate(lists):
        neighbors[i, : len(listed)] = listed
    around = survey_graph(KnnGraph(neighbors, np.zeros(neighbors.shape, np.float32)), np.full(neighbors.shape, 9, "f4"))
    relations, _ = relate_rows(around, np.arange(len(lists)))
    seen, count = relations[:, RELATIONS.index("typical_count")], relations[:, RELATIONS.index("count3_lo")]
    assert np.allclose(seen[: 2 * n_pairs], around.typical[3])
    assert np.allclose(seen[2 * n_pairs :], count[2 * n_pairs :])
    assert around.typical[3] < 2 < 4 < count[-1]
