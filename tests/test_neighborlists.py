import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from starfc.neighborlists import Lists, find_place, insert_place, mark_fresh, offer_back
from starfc.steps import Steps


def draw_lists(rng, n, k, similarity_of):
    """Lists of up to k others each, best first, ties by place."""
    places = np.full((n, k), -1, dtype=np.int32)
    similarities = np.zeros((n, k), dtype=np.float32)
    for place in range(n):
        others = rng.permutation(np.delete(np.arange(n), place))[: rng.integers(0, k + 1)]
        others = sorted(others, key=lambda other: (-similarity_of[place, other], other))
        places[place, : len(others)] = others
        similarities[place, : len(others)] = similarity_of[place, others]
    return Lists(places, similarities)


@settings(deadline=None, max_examples=80)
@given(st.integers(0, 2**32 - 1), st.integers(2, 20), st.integers(1, 6))
def test_whoever_lists_a_place_is_offered_to_it(seed, n, k):
    rng = np.random.default_rng(seed)
    similarity_of = rng.choice(np.linspace(-1, 1, 6), (n, n)).astype(np.float32)
    similarity_of = np.maximum(similarity_of, similarity_of.T)
    lists = draw_lists(rng, n, k, similarity_of)
    steps = Steps()
    better = offer_back(lists, None, np.arange(n, dtype=np.int32), steps.open("back"), steps)
    for place in range(n):
        known = {int(other) for other in lists.places[place] if other >= 0}
        known |= {other for other in range(n) if place in lists.places[other]}
        expected = sorted(known, key=lambda other: (-similarity_of[place, other], other))[:k]
        assert better.places[place].tolist() == expected + [-1] * (k - len(expected))
        assert (better.similarities[place, : len(expected)] == similarity_of[place, expected]).all()
        assert (better.similarities[place, len(expected) :] == 0).all()


@settings(deadline=None, max_examples=80)
@given(st.integers(0, 2**32 - 1), st.integers(2, 20), st.integers(1, 6))
def test_only_what_is_new_need_be_offered(seed, n, k):
    rng = np.random.default_rng(seed)
    similarity_of = rng.choice(np.linspace(-1, 1, 6), (n, n)).astype(np.float32)
    similarity_of = np.maximum(similarity_of, similarity_of.T)
    steps, order = Steps(), np.arange(n, dtype=np.int32)
    before = offer_back(draw_lists(rng, n, k, similarity_of), None, order, steps.open("first"), steps)
    lists = Lists(before.places.copy(), before.similarities.copy())
    for place, other in zip(rng.integers(0, n, n), rng.integers(0, n, n), strict=True):
        if place != other and find_place(lists.places[place], other) < 0:
            insert_place(order, lists.places[place], lists.similarities[place], other, similarity_of[place, other])
    fresh = mark_fresh(lists, before, steps.open("fresh"), steps)
    for place in range(n):
        assert fresh[place].tolist() == [other not in before.places[place] for other in lists.places[place]]
    some = offer_back(lists, before, order, steps.open("some"), steps)
    everything = offer_back(lists, None, order, steps.open("all"), steps)
    assert (some.places == everything.places).all() and (some.similarities == everything.similarities).all()


def test_floors_are_open_while_there_is_room():
    lists = Lists(np.array([[1, 2], [0, -1]], dtype=np.int32), np.array([[0.5, 0.25], [0.5, 0]], dtype=np.float32))
    assert lists.find_floors(Steps()).tolist() == [0.25, -2]


def test_ties_are_ordered_by_row_and_the_last_drops_out():
    order = np.array([5, 3, 4, 0], dtype=np.int32)
    places, similarities = np.array([0, 2], dtype=np.int32), np.array([0.5, 0.25], dtype=np.float32)
    assert insert_place(order, places, similarities, 3, np.float32(0.25)) == 1
    assert places.tolist() == [0, 3]
    assert insert_place(order, places, similarities, 2, np.float32(0.25)) == -1
    assert insert_place(order, places, similarities, 1, np.float32(0.5)) == 0
    assert places.tolist() == [1, 0] and similarities.tolist() == [0.5, 0.5]
    assert find_place(places, 0) == 1 and find_place(places, 7) == -1
