import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from starfc.expansion import Paths, choose_followed, expand_lists
from starfc.neighborlists import Lists, mark_fresh
from starfc.probes import draw_sample
from starfc.steps import Steps


def expand(rows, order, lists, before, n_before, n_followed):
    steps = Steps()
    scratch = steps.open("round")
    paths = Paths(rows, order, lists, mark_fresh(lists, before, scratch, steps), n_before)
    return expand_lists(paths, n_followed, scratch, steps)


def expand_slowly(rows, order, lists, before, n_before, n_followed):
    """Follow every path of two edges, one by one; of what has been followed only those with a new edge."""
    found, k = [], lists.places.shape[1]
    for place in range(len(rows)):
        known = [int(other) for other in lists.places[place] if other >= 0]
        reached = set()
        if len(known) < k or not set(known) <= set(before.places[place].tolist()):
            for at, other in enumerate(known[:n_followed]):
                is_new = at >= n_before or other not in before.places[place]
                reached |= {
                    int(target) for target in lists.places[other] if is_new or target not in before.places[other]
                }
        reached -= {-1, place, *known}
        scored = [(-lists.similarities[place, at], order[other], other) for at, other in enumerate(known)]
        scored += [(-float(rows[place] @ rows[other]), order[other], other) for other in reached]
        found.append(sorted(scored)[:k])
    return found


def draw_lists(rng, rows, k):
    n = len(rows)
    lists = Lists(np.full((n, k), -1, dtype=np.int32), np.zeros((n, k), dtype=np.float32))
    for place in range(n):
        others = rng.permutation(np.delete(np.arange(n), place))[: rng.integers(k // 2, k + 1)]
        others = others[np.argsort(-(rows[others] @ rows[place]), kind="stable")]
        lists.places[place, : len(others)] = others
        lists.similarities[place, : len(others)] = rows[others] @ rows[place]
    return lists


@settings(deadline=None, max_examples=120)
@given(st.integers(0, 2**32 - 1), st.integers(2, 30), st.integers(1, 6), st.integers(1, 6))
def test_rounds_equal_a_search(seed, n, k, n_followed):
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((n, 4)).astype(np.float32)
    order = rng.permutation(n).astype(np.int32)
    lists, before, n_before = draw_lists(rng, rows, k), draw_lists(rng, rows, k), 0
    kept = rng.random(n) < 0.5  # half of the lists have nothing new
    before.places[kept] = lists.places[kept]
    for n_now in (min(k, n_followed), k, k):
        better = expand(rows, order, lists, before, n_before, n_now)
        for place, expected in enumerate(expand_slowly(rows, order, lists, before, n_before, n_now)):
            size = len(expected)
            assert better.places[place, :size].tolist() == [entry[2] for entry in expected]
            np.testing.assert_allclose(better.similarities[place, :size], [-entry[0] for entry in expected], atol=1e-5)
            assert (better.places[place, size:] == -1).all()
        lists, before, n_before = better, lists, n_now


def test_copies_are_ordered_by_row():
    rows = np.ones((6, 2), dtype=np.float32)
    order = np.array([5, 3, 4, 0, 2, 1], dtype=np.int32)
    places = np.array([[1, 2], [2, 3], [3, 4], [4, 5], [5, 0], [0, 1]], dtype=np.int32)
    before = Lists(np.full((6, 2), -1, np.int32), np.zeros((6, 2), np.float32))
    better = expand(rows, order, Lists(places, np.full((6, 2), 2, np.float32)), before, 0, 2)
    assert order[better.places[0]].tolist() == [0, 2]  # rows 3 and 4 were on the list, 0 and 2 on the lists of those


def test_no_more_are_followed_than_it_takes():
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((60, 4)).astype(np.float32)
    order = np.arange(60, dtype=np.int32)
    lists = draw_lists(rng, rows, 16)
    steps = Steps()
    sample = draw_sample(rows, order, 16, 0, steps)
    fresh = np.ones(lists.places.shape, dtype=np.bool_)
    paths = Paths(rows, order, lists, fresh, 0)
    reached = [sample.measure(expand_lists(paths, n, steps.open("x"), steps), 0.9)[0] for n in range(1, 17)]
    chosen = choose_followed(paths, 16, sample, 0.9)
    assert True in reached[1:15]  # else the test would say nothing
    assert chosen > 2
    assert reached[chosen - 1]
    assert not reached[chosen - 3]  # tried are the even numbers
    assert choose_followed(paths, 2, sample, 1.0) == 2
