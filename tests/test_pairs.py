"""Edges that both ends list, against dictionaries."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from starfc.pairs import ALONE, NOBODYS, OTHERS, divide_edges, write_both


def draw_graph(n, k, seed, *, is_symmetric):
    """Lists of different lengths, levels of their edges, and ranks with ties."""
    rng = np.random.default_rng(seed)
    neighbors = np.full((n, k), -1, np.int32)
    for i in range(n):
        others = rng.permutation(np.delete(np.arange(n), i))[: rng.integers(0, k + 1)]
        neighbors[i, : len(others)] = others
    levels = rng.normal(size=(n, n)).astype(np.float32)
    levels = np.maximum(levels, levels.T) if is_symmetric else levels
    return neighbors, np.take_along_axis(levels, np.maximum(neighbors, 0), 1), rng.integers(0, 4, n).astype(np.float32)


@settings(deadline=None, max_examples=60)
@given(n=st.integers(2, 15), k=st.integers(1, 14), seed=st.integers(0, 10**6), is_symmetric=st.booleans())
def test_every_edge_is_judged_once_and_written_in_both_lists(n, k, seed, is_symmetric):
    neighbors, levels, ranks = draw_graph(n, k, seed, is_symmetric=is_symmetric)
    above = {
        (i, int(neighbors[i, s])): s for i in range(n) for s in range(k) if neighbors[i, s] >= 0 and levels[i, s] > 0
    }
    judged, out = [], np.full((n, k), np.nan)
    for rows in np.array_split(np.random.default_rng(seed).permutation(n), 3):
        own, places = divide_edges(neighbors, levels, 0.0, ranks=ranks, rows=rows)
        ends = [(int(rows[p // k]), int(neighbors[rows[p // k], p % k])) for p in own]
        judged += ends
        for at, i in enumerate(rows):
            for s in range(k):
                j = int(neighbors[i, s])
                expected = NOBODYS
                if (i, j) in above:
                    is_ahead = (ranks[i], i) > (ranks[j], j)
                    expected = ALONE if (j, i) not in above else above[j, i] if is_ahead else OTHERS
                assert places[at, s] == expected
        rest = np.full((len(rows), k), -1.0)
        values = np.array([1.0 * min(i, j) * n + max(i, j) for i, j in ends])
        write_both(values, own, rest, neighbors=neighbors, places=places, rows=rows, out=out)
    assert {frozenset(ends) for ends in judged} == {frozenset(ends) for ends in above}
    n_alone = sum((j, i) not in above for i, j in above)
    assert len(judged) == n_alone + (len(above) - n_alone) // 2
    for i in range(n):
        for s in range(k):
            j = int(neighbors[i, s])
            assert out[i, s] == (min(i, j) * n + max(i, j) if (i, j) in above else -1)
