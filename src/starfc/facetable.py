"""Face table: what a face's list says of its neighbours, looked up for every entry of another list.

In: a list of faces with 32 bits each. Out: for the faces of another list the bits that the first has for them, by a
hash table that fits the nearest cache, where a look-up is one comparison without a branch. Two lists of k faces are
compared in O(k), and no table of n is needed, so tiles of rows are independent of each other.

Loops over what two lists have in common run in vector lanes; lists are filled up to whole ones, because a loop's
remainder would take longer.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .kernels import leaf

LANES: Final = 32  # numbers that a loop takes at a time
# Sums may be in any order, which lets them run in vector lanes; infinite values stay what they are.
REORDERED: Final = {"reassoc", "nsz", "nnan", "contract"}
_CELLS_PER_FACE = 32
_N_FACTORS = 6  # hash functions that are tried to keep the faces of a list apart
_LOW_HALF = 0xFFFFFFFF


@leaf
def find_shift(k) -> int:  # type: ignore[no-untyped-def]
    """Return by how many bits a hash is shifted, so that there are cells enough for k faces."""
    shift = 26
    while 1 << (32 - shift) < _CELLS_PER_FACE * k:
        shift -= 1
    return shift


@njit(cache=True, nogil=True)
def make_table(shift) -> NDArray[np.int64]:  # type: ignore[no-untyped-def]
    """Return an empty table."""
    return np.full(1 << (32 - shift), -1, np.int64)


@leaf
def _find_cell(face, factor, shift) -> np.uint32:  # type: ignore[no-untyped-def]
    """Return the cell of a face; unsigned, or every use would be checked for its sign."""
    return np.uint32(np.uint32(np.uint32(face) * np.uint32(factor)) >> np.uint32(shift))


@leaf
def list_faces(listed, bits, shift, table, spare) -> tuple[np.uint32, int]:  # type: ignore[no-untyped-def]
    """Put the faces of a list and their bits (int32) into an empty table, each into the cell of its hash.

    Of faces that share a cell only the first is there. A few factors are tried until there are none; the places of
    those that are left over go to `spare`. Returns the factor and how many are left over.
    """
    factor = np.uint32(0x9E3779B1)
    for attempt in range(_N_FACTORS):
        n_spare = 0
        for slot in range(len(listed)):
            cell = _find_cell(listed[slot], factor, shift)
            if table[cell] >= 0:
                spare[n_spare] = slot
                n_spare += 1
            else:
                table[cell] = (np.int64(listed[slot]) << 32) | (np.int64(bits[slot]) & _LOW_HALF)
        if n_spare == 0 or attempt == _N_FACTORS - 1:
            break
        clear_faces(listed, factor, shift, table)
        factor = np.uint32(np.uint32(factor) * np.uint32(0x2C9277B5) + np.uint32(0xAC564B05)) | np.uint32(1)
    return factor, n_spare


@leaf
def clear_faces(listed, factor, shift, table) -> None:  # type: ignore[no-untyped-def]
    """Empty the cells of a list's faces."""
    for face in listed:
        table[_find_cell(face, factor, shift)] = -1


@leaf
def look_up(their_list, factor, shift, table, absent, found) -> None:  # type: ignore[no-untyped-def]
    """Write for each face of a list the bits that the table has for it, `absent` where it has none."""
    for other in range(len(their_list)):
        entry = table[_find_cell(their_list[other], factor, shift)]
        found[other] = np.int32(entry) if (entry >> 32) == their_list[other] else absent


@leaf
def look_up_one(their_list, face, bits, found) -> None:  # type: ignore[no-untyped-def]
    """Write the bits of one face, where the list has it."""
    for other in range(len(their_list)):
        found[other] = bits if their_list[other] == face else found[other]


@leaf
def find_place(listed, face) -> np.int32:  # type: ignore[no-untyped-def]
    """Return where a list has a face, its length if nowhere; without a way out of the loop, in vector lanes."""
    n = np.int32(len(listed))
    place = n
    for slot in range(n):
        place = min(place, np.int32(slot) if listed[slot] == face else n)
    return place


@leaf
def fill_up(values, length, absent) -> int:  # type: ignore[no-untyped-def]
    """Let the absent follow a list up to full vector lanes; return their end."""
    end: int = -(-length // LANES) * LANES
    for at in range(length, end):
        values[at] = absent
    return end
