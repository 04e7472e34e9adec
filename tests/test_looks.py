"""The second look against a slow transcription of its definition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from starfc.looks import HOPEFUL, LOOKS, decode_chances, encode_log_odds, look_again, mark_hopeful, sum_beliefs


def draw_graph(n, k, seed, share_known=0.8, share_missing=0.0):
    """A random kNN graph with codes; lists end where evidence does, and some have room left."""
    rng = np.random.default_rng(seed)
    neighbors = np.array([rng.choice(np.delete(np.arange(n), i), k, replace=False) for i in range(n)], np.int32)
    codes = rng.integers(8, 65529, (n, k)).astype(np.uint16)
    depths = np.minimum(rng.binomial(k, share_known, n), k)
    codes[np.arange(k) >= depths[:, None]] = 0
    missing = rng.random(n) < share_missing
    neighbors[missing, k // 2 :], codes[missing, k // 2 :] = -1, 0
    return neighbors, codes


def odds_of(code):
    return (int(code) - 32768) / 3640 if code else -9.0


def chance_of(code):
    return 1 / (1 + np.exp(-odds_of(code))) if code else 0.0


def look_slowly(neighbors, codes, i, slot):
    """The numbers of one edge, from dictionaries of what both ends think of whom."""
    n, k = neighbors.shape
    beliefs = [{int(m): c for m, c in zip(neighbors[f], codes[f], strict=True) if m >= 0 and c} for f in range(n)]
    end = []
    for f in range(n):
        is_full = k >= 5 and neighbors[f, -1] >= 0
        last = np.mean([max(odds_of(c), -6) for c in codes[f, -5:]]) if is_full else -6.0
        end.append(min(last, 2.0))
    j = int(neighbors[i, slot])
    own = odds_of(codes[i, slot])
    ends = []
    for a, b in ((i, j), (j, i)):
        others = {m: c for m, c in beliefs[a].items() if m != b}
        matches = sum(map(chance_of, others.values()))
        common = sum(min(chance_of(c), chance_of(beliefs[b].get(m, 0))) for m, c in others.items())
        known = {m: c for m, c in others.items() if m in beliefs[b]}
        thought = sum(chance_of(c) * max(odds_of(beliefs[b][m]), -6) for m, c in known.items())
        thought += sum(chance_of(c) for m, c in others.items() if m not in beliefs[b]) * end[b]
        ends.append(
            {
                "total": matches,
                "whole_doubt": sum(chance_of(c) * (1 - chance_of(c)) for c in codes[a]),
                "matches": np.log2(1 + matches),
                "share": (common + 0.25) / (matches + 0.5),
                "toward": (thought + 0.5 * max(own, -6)) / (matches + 0.5),
                "best": max((odds_of(c) for c in others.values()), default=-9.0),
                "doubt": np.log2(1 + sum(chance_of(c) * (1 - chance_of(c)) for c in others.values())),
            }
        )
    ways = sorted(min(odds_of(c), odds_of(beliefs[j][m])) for m, c in beliefs[i].items() if m in beliefs[j] and m != j)
    found = {"log_odds": own, "common": np.log2(1 + common)}
    found["way_best"], found["way_second"] = [*ways[::-1], -9.0, -9.0][:2]
    for by in ("total", "toward", "whole_doubt"):
        if abs(ends[0][by] - ends[1][by]) >= 1e-3 or by == "whole_doubt":
            ends.sort(key=lambda end: end[by])
            break
    few, many = ends
    for name in ("matches", "share", "toward", "best", "doubt"):
        found[f"{name}_few"], found[f"{name}_many"] = few[name], many[name]
    sums = [sum(map(chance_of, codes[f])) for f in range(n)]
    doubts = [sum(chance_of(c) * (1 - chance_of(c)) for c in codes[f]) for f in range(n)]
    found["all_matches"], found["all_doubt"] = np.log2(1 + np.array(sums)).mean(), np.log2(1 + np.array(doubts)).mean()
    found["all_linked"] = np.mean([any(odds_of(c) > 0 for c in codes[f]) for f in range(n)])
    return [found[name] for name in LOOKS]


@settings(max_examples=25, deadline=None)
@given(
    st.integers(2, 30),
    st.integers(1, 9),
    st.integers(0, 10**6),
    st.sampled_from([0.3, 0.8, 1.0]),
    st.sampled_from([0.0, 0.4]),
)
def test_looks_are_those_of_the_definition(n, most, seed, share_known, share_missing):
    k = min(n - 1, most)
    neighbors, codes = draw_graph(n, k, seed, share_known, share_missing)
    positions = np.flatnonzero(codes > 0)
    found = look_again(sum_beliefs(neighbors, codes), np.arange(n), positions)
    for line, position in zip(found, positions, strict=True):
        expected = look_slowly(neighbors, codes, position // k, position % k)
        np.testing.assert_allclose(line, expected, rtol=1e-4, atol=1e-4)


def test_an_edge_looks_the_same_from_both_sides():
    neighbors, codes = draw_graph(20, 19, 4, share_known=1.0)
    both = {(i, int(j)): codes[min(i, j), 0] for i in range(20) for j in neighbors[i]}
    codes = np.array([[both[i, int(j)] for j in neighbors[i]] for i in range(20)], np.uint16)
    looks = look_again(sum_beliefs(neighbors, codes), np.arange(20), np.arange(20 * 19))
    at = {(i, int(j)): looks[19 * i + s] for i in range(20) for s, j in enumerate(neighbors[i])}
    for (i, j), line in at.items():
        np.testing.assert_allclose(line, at[j, i], rtol=1e-4, atol=1e-4)


def test_ends_that_are_equal_but_for_a_rounding_do_not_change_places():
    """Codes of two values, so that many ends expect the same number of matches."""
    n_ties = 0
    for seed in range(20):
        neighbors, _ = draw_graph(12, 5, seed)
        levels = np.random.default_rng(seed).choice([20000, 60000], (12, 12))
        codes = np.array([[max(levels[i, j], levels[j, i]) for j in neighbors[i]] for i in range(12)], np.uint16)
        beliefs = sum_beliefs(neighbors, codes)
        looks = look_again(beliefs, np.arange(12), np.arange(60))
        at = {(i, int(j)): looks[5 * i + s] for i in range(12) for s, j in enumerate(neighbors[i])}
        for (i, j), line in at.items():
            if (j, i) in at:
                n_ties += abs(line[1] - line[2]) < 1e-4
                np.testing.assert_allclose(line, at[j, i], rtol=1e-4, atol=1e-4)
    assert n_ties > 20


def test_some_rows_in_any_order_give_the_same():
    neighbors, codes = draw_graph(40, 12, 1)
    beliefs = sum_beliefs(neighbors, codes)
    rows = np.array([17, 3, 30])
    positions = np.flatnonzero(codes[rows] > 0)
    whole = {i: look_again(beliefs, np.array([i]), np.flatnonzero(codes[i] > 0)) for i in rows}
    np.testing.assert_array_equal(look_again(beliefs, rows, positions), np.concatenate([whole[i] for i in rows]))


def test_codes_keep_log_odds():
    odds = np.linspace(-9, 9, 500).astype(np.float32)
    chances = decode_chances(encode_log_odds(odds)).astype(np.float64)
    np.testing.assert_allclose(np.log(chances / (1 - chances)), odds, atol=2e-3)


def test_the_hopeless_get_no_second_look():
    neighbors, codes = draw_graph(30, 10, 2)
    hopeful = mark_hopeful(sum_beliefs(neighbors, codes), np.arange(30))
    assert np.array_equal(hopeful, decode_chances(codes) > HOPEFUL)
    assert 0 < hopeful.sum() < hopeful.size


@pytest.mark.parametrize("k", [1, 4])
def test_short_lists_and_no_edges(k):
    neighbors, codes = np.full((3, k), -1, np.int32), np.zeros((3, k), np.uint16)
    beliefs = sum_beliefs(neighbors, codes)
    assert look_again(beliefs, np.arange(3), np.empty(0, np.int64)).shape == (0, len(LOOKS))
    assert (beliefs.whole == 0).all()
