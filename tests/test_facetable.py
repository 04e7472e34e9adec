"""Tables of faces against dictionaries."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from starfc.facetable import (
    LANES,
    clear_faces,
    fill_up,
    find_place,
    find_shift,
    list_faces,
    look_up,
    look_up_one,
    make_table,
)


def look_up_all(listed, bits, their_list):
    """What the table and its left-over faces say, how many were left over, and whether the table is empty again."""
    shift = find_shift(max(1, len(listed)))
    table, spare = make_table(shift), np.empty(len(listed), np.int32)
    factor, n_spare = list_faces(listed, bits, shift, table, spare)
    found = np.empty(len(their_list), np.int32)
    look_up(their_list, factor, shift, table, np.int32(-7), found)
    for slot in spare[:n_spare]:
        look_up_one(their_list, listed[slot], bits[slot], found)
    clear_faces(listed, factor, shift, table)
    return found, n_spare, bool((table == -1).all())


def check(listed, bits, their_list):
    found, n_spare, is_empty = look_up_all(listed, bits, their_list)
    known = dict(zip(listed.tolist(), bits.tolist(), strict=True))
    assert found.tolist() == [known.get(face, -7) for face in their_list.tolist()]
    assert is_empty
    return n_spare


@settings(deadline=None, max_examples=60)
@given(k=st.integers(0, 40), highest=st.sampled_from([60, 10**5, 2**31 - 2]), seed=st.integers(0, 10**6))
def test_bits_are_found_by_face(k, highest, seed):
    rng = np.random.default_rng(seed)
    listed = np.unique(rng.integers(0, highest, k)).astype(np.int32)
    bits = rng.integers(-(2**31), 2**31, len(listed)).astype(np.int32)
    others = rng.integers(0, highest, 30).astype(np.int32)
    check(listed, bits, rng.permutation(np.concatenate([others, listed[::2]])))


def test_faces_that_share_a_cell_are_found_too():
    """Of 300 faces with large numbers some are left over whatever the hash."""
    rng = np.random.default_rng(0)
    n_spare = 0
    for _ in range(20):
        listed = rng.choice(10**6, 300, replace=False).astype(np.int32)
        n_spare += check(listed, rng.integers(0, 99, 300).astype(np.int32), rng.permutation(listed))
    assert n_spare > 20


@pytest.mark.parametrize(("face", "place"), [(5, 0), (9, 2), (7, 3)])
def test_a_place_in_a_list(face, place):
    assert find_place(np.array([5, 2, 9], np.int32), face) == place


def test_lists_are_filled_up_to_whole_lanes():
    values = np.arange(2 * LANES, dtype=np.float32)
    assert fill_up(values, LANES + 1, np.float32(-1)) == 2 * LANES
    assert (values[: LANES + 1] == np.arange(LANES + 1)).all() and (values[LANES + 1 :] == -1).all()
    assert fill_up(values, 0, np.float32(0)) == 0
