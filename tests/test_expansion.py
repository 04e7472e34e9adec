import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from starfc import expansion
from starfc.expansion import expand_lists
from starfc.steps import Steps


def expand(rows, order, lists):
    steps = Steps()
    return expand_lists(rows, order, lists, steps.open("round"), steps)


def expand_slowly(rows, order, lists, similarities, fresh, n_followed):
    """Follow every path of two edges of which one is fresh, one by one."""
    found = []
    for place in range(len(rows)):
        known = [other for other in lists[place] if other >= 0]
        reached = set()
        for at, other in enumerate(known[:n_followed]):
            for rank, target in enumerate(lists[other]):
                if target >= 0 and (fresh[place, at] or fresh[other, rank]):
                    reached.add(int(target))
        reached -= {place, *known}
        scored = [(-similarities[place, at], order[other], other, False) for at, other in enumerate(known)]
        scored += [(-float(rows[place] @ rows[other]), order[other], other, True) for other in reached]
        found.append(sorted(scored)[: lists.shape[1]])
    return found


@settings(deadline=None, max_examples=80)
@given(st.integers(0, 2**32 - 1), st.integers(2, 30), st.integers(1, 6), st.integers(1, 6))
def test_expansion_equals_a_search(seed, n, k, n_followed):
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((n, 4)).astype(np.float32)
    order = rng.permutation(n).astype(np.int32)
    lists = np.full((n, k), -1, dtype=np.int32)
    similarities = np.zeros((n, k), dtype=np.float32)
    for place in range(n):
        others = rng.permutation(np.delete(np.arange(n), place))[: rng.integers(0, k + 1)]
        others = others[np.argsort(-(rows[others] @ rows[place]), kind="stable")]
        lists[place, : len(others)] = others
        similarities[place, : len(others)] = rows[others] @ rows[place]
    fresh = rng.random((n, k)) < 0.6
    before, expansion._FOLLOWED = expansion._FOLLOWED, n_followed
    try:
        places, found, new = expand(rows, order, (lists, similarities, fresh))
    finally:
        expansion._FOLLOWED = before
    for place, expected in enumerate(expand_slowly(rows, order, lists, similarities, fresh, n_followed)):
        size = len(expected)
        assert places[place, :size].tolist() == [entry[2] for entry in expected]
        assert new[place, :size].tolist() == [entry[3] for entry in expected]
        np.testing.assert_allclose(found[place, :size], [-entry[0] for entry in expected], atol=1e-5)
        assert (places[place, size:] == -1).all()


def test_copies_are_ordered_by_row():
    rows = np.ones((6, 2), dtype=np.float32)
    order = np.array([5, 3, 4, 0, 2, 1], dtype=np.int32)
    lists = np.array([[1, 2], [2, 3], [3, 4], [4, 5], [5, 0], [0, 1]], dtype=np.int32)
    similarities, fresh = np.full((6, 2), 2, np.float32), np.ones((6, 2), bool)
    places, _, _ = expand(rows, order, (lists, similarities, fresh))
    assert order[places[0]].tolist() == [0, 2]  # rows 3 and 4 were on the list, 0 and 2 on the lists of those
