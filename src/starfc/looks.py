"""A second look: what the first probabilities of the edges around an edge say of it.

In: the kNN graph, and the probability of every edge as `relational.py` has found it at first sight. Out: for each edge
whose probability is not hopeless the numbers of LOOKS. Relations (`relations.py`) count neighbours by their evidence,
likely matches or not. Once every edge has a probability, one can ask more: of those who are probably my person, how
many are probably yours, and what do they think of you?

- the edge's own log-odds;
- of both ends: how many matches they expect without each other, how much of that is in doubt, their best other match;
- common matches, as a number and as shares of what each end expects; the best and second best way over a third face;
- what the matches of each end think of the other on average (their log-odds; whom a list does not hold is no nearer
  than its end);
- of the collection: matches expected per face, how many faces have one, what is in doubt.

Numbers of one end come in the order of the ends, the one that expects fewer matches first, or of whom the other's
matches think worse, so an edge looks the same from either side. Ends that differ by next to nothing count as equal:
else a rounding would decide which comes first.

Probabilities are kept as two bytes an edge, log-odds in steps of 1/3640. Steps of 1/14, one byte, were coarse enough
for a rounding of the features to be seen in the clusters. The exponential that makes them probabilities again is a
polynomial here, which runs in vector lanes.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .facetable import (
    LANES,
    REORDERED,
    clear_faces,
    fill_up,
    find_place,
    find_shift,
    list_faces,
    look_up,
    look_up_one,
    make_table,
)
from .kernels import leaf, leaf_with
from .rowstore import copy_row
from .tiles import run_tiles

LOOKS = (
    "log_odds", "matches_few", "matches_many", "common", "share_few", "share_many", "toward_few", "toward_many",
    "way_best", "way_second", "best_few", "best_many", "doubt_few", "doubt_many",
    "all_matches", "all_linked", "all_doubt",
)  # fmt: skip
HOPEFUL = 0.01  # first probability from which an edge gets a second look
_N_LOOKS = len(LOOKS)
_TILE_ROWS = 2048
_STEPS = 3640.0  # of a code to one of log-odds
_EVEN = 1 << 15  # code of even odds
_HIGHEST = 9.0  # log-odds that a code can say, and their negative
_NONE = -9.0  # log-odds of an edge that is not there
_LEAST = -6.0  # log-odds below which nobody thinks worse of anybody
_MOST_LAST = 2.0
_N_LAST = 5  # entries that are the end of a list
_NEXT_TO_NOTHING = np.float32(1e-3)  # by which two ends must differ for one to come first
_LOG2_E = np.float32(math.log2(math.e))
# 2^x between -1/2 and 1/2, by powers of x: Chebyshev's, off by 2e-7 at most.
_POWERS = tuple(np.float32(c) for c in (1.0000001, 0.69314718, 0.24022107, 0.05550357, 0.00967603, 0.00133909))
HOPELESS = int(_EVEN + _STEPS * math.log(HOPEFUL / (1 - HOPEFUL)))  # the highest code without a second look
# Columns of what is known of a face.
_MATCHES, _DOUBT, _BEST, _SECOND, _LAST = range(5)


class Beliefs(NamedTuple):
    """First probabilities and what they add up to; a named tuple, because kernels take it whole.

    Attributes
    ----------
    neighbors : int32 (n, k)
    codes : uint16 (n, k)
        Of each edge (:func:`encode_log_odds`).
    depths : int32 (n,)
        Entries of each list from which on there is no evidence.
    faces : float32 (n, 5)
        Of each face: expected matches, doubt, log-odds of the best and second best match, and of the end of its list.
    nearest : int32 (n,)
        The best match.
    whole : float32 (3,)
        Of the collection: mean log2 of 1 + expected matches, share of faces with a likely match, mean log2 of 1 +
        doubt.
    """

    neighbors: NDArray[np.int32]
    codes: NDArray[np.uint16]
    depths: NDArray[np.int32]
    faces: NDArray[np.float32]
    nearest: NDArray[np.int32]
    whole: NDArray[np.float32]


def encode_log_odds(log_odds: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Return log-odds as codes, 0 for -inf.

    >>> encode_log_odds(np.array([-np.inf, -20, 0, 0.5, 20], np.float32))
    array([    0,     8, 32768, 34588, 65528], dtype=uint16)
    """
    codes = np.rint(np.clip(log_odds, -_HIGHEST, _HIGHEST) * _STEPS) + _EVEN
    return np.where(np.isneginf(log_odds), 0, codes).astype(np.uint16)


def decode_chances(codes: NDArray[np.uint16]) -> NDArray[np.float32]:
    """Return the probabilities of codes.

    >>> decode_chances(np.array([0, 32768, 65528], np.uint16)).round(4)
    array([0.    , 0.5   , 0.9999], dtype=float32)
    """
    chances = np.empty(codes.shape, dtype=np.float32)
    _decode_codes(np.ascontiguousarray(codes).reshape(-1), chances.reshape(-1))
    return chances


def sum_beliefs(neighbors: NDArray[np.int32], codes: NDArray[np.uint16]) -> Beliefs:
    """Add up the first probabilities of every face's edges, and of all.

    Parameters
    ----------
    neighbors : int32 (n, k)
    codes : uint16 (n, k)

    Returns
    -------
    Beliefs

    Examples
    --------
    >>> beliefs = sum_beliefs(np.array([[1, 2], [0, 2], [0, 1]], np.int32), np.full((3, 2), 1 << 15, np.uint16))
    >>> beliefs.faces[0, :2].round(3).tolist()
    [1.0, 0.5]
    """
    n = len(neighbors)
    faces, nearest, depths = np.empty((n, 5), np.float32), np.empty(n, np.int32), np.empty(n, np.int32)

    def sum_tile(start: int, stop: int) -> None:
        _sum_rows(start, stop, neighbors, codes, faces, nearest, depths)

    run_tiles(n, _TILE_ROWS, sum_tile, "beliefs")
    sums = np.log2(1 + faces[:, [_MATCHES, _DOUBT]].astype(np.float64)).mean(axis=0)
    whole = np.array([sums[0], (faces[:, _BEST] > 0).mean(), sums[1]], dtype=np.float32)
    return Beliefs(neighbors, codes, depths, faces, nearest, whole)


def mark_hopeful(beliefs: Beliefs, rows: NDArray[Any]) -> NDArray[np.bool_]:
    """Mark the edges of some rows that get a second look, bool (rows, k).

    >>> codes = encode_log_odds(np.array([[-6.0, 2.0], [0.0, -9.0], [3.0, 1.0]], np.float32))
    >>> mark_hopeful(sum_beliefs(np.array([[1, 2], [0, 2], [0, 1]], np.int32), codes), np.arange(2))
    array([[False,  True], [ True, False]])
    """
    return np.asarray(beliefs.codes[rows] > HOPELESS)


def look_again(beliefs: Beliefs, rows: NDArray[Any], positions: NDArray[np.int64]) -> NDArray[np.float32]:
    """Describe edges by what the matches of their ends think.

    Parameters
    ----------
    beliefs : Beliefs
    rows : int (r,)
    positions : int64 (m,)
        Of edges in the flattened (rows, k) block, ascending.

    Returns
    -------
    float32 (m, len(LOOKS))

    Examples
    --------
    >>> beliefs = sum_beliefs(np.array([[1, 2], [0, 2], [0, 1]], np.int32), np.full((3, 2), 1 << 15, np.uint16))
    >>> look_again(beliefs, np.arange(3), np.array([0]))[0, :4].round(3)
    array([0.   , 0.585, 0.585, 0.585], dtype=float32)
    """
    looks = np.empty((len(positions), _N_LOOKS), dtype=np.float32)
    _look_at_edges(beliefs, rows, positions, looks)
    return looks


@leaf_with(fastmath=REORDERED)
def _read_odds(code):  # type: ignore[no-untyped-def]
    """Return the log-odds of a code, those of an edge that is not there of none."""
    odds = np.float32(np.int32(code) - _EVEN) * np.float32(1 / _STEPS)
    return odds if code > 0 else np.float32(_NONE)


# Python's error for a division by none would keep a loop from running in vector lanes.
@leaf_with(fastmath=REORDERED, error_model="numpy")
def _read_chance(code):  # type: ignore[no-untyped-def]
    """Return the probability of a code, 0 of none: 2^x / (1 + 2^x), the whole part of x in the exponent's bits."""
    x = np.float32(np.int32(code) - _EVEN) * np.float32(_LOG2_E / _STEPS)
    whole = np.int32(x + np.float32(16.5)) - np.int32(16)
    rest = x - np.float32(whole)
    power = _POWERS[4] + rest * _POWERS[5]
    power = _POWERS[2] + rest * (_POWERS[3] + rest * power)
    power = _POWERS[0] + rest * (_POWERS[1] + rest * power)
    odds = power * np.int32((whole + np.int32(127)) << np.int32(23)).view(np.float32)
    return odds / (np.float32(1) + odds) if code > 0 else np.float32(0)


@leaf
def _decode_codes(codes, chances):  # type: ignore[no-untyped-def]
    """Set the probabilities of codes."""
    for at in range(len(codes)):
        chances[at] = _read_chance(codes[at])


@leaf
def _sum_rows(start, stop, neighbors, codes, faces, nearest, depths):  # type: ignore[no-untyped-def]
    """Fill what is known of the faces start..stop."""
    k = neighbors.shape[1]
    for i in range(start, stop):
        matches, doubt, best, second = np.float32(0), np.float32(0), np.float32(_NONE), np.float32(_NONE)
        nearest[i], depths[i] = -1, 0
        for slot in range(k):
            code = codes[i, slot]
            if code == 0 or neighbors[i, slot] < 0:
                continue
            chance, log_odds = _read_chance(code), _read_odds(code)
            depths[i] = slot + 1
            matches += chance
            doubt += chance * (np.float32(1) - chance)
            if log_odds > best:
                best, second, nearest[i] = log_odds, best, neighbors[i, slot]
            elif log_odds > second:
                second = log_odds
        faces[i, _MATCHES], faces[i, _DOUBT] = matches, doubt
        faces[i, _BEST], faces[i, _SECOND] = best, second
        faces[i, _LAST] = _find_end(neighbors[i], codes[i])


@leaf
def _find_end(listed, codes):  # type: ignore[no-untyped-def]
    """Return the mean log-odds of the last entries of a list; of one with room left, the least."""
    k = len(listed)
    if k < _N_LAST or listed[k - 1] < 0:
        return np.float32(_LEAST)
    total = np.float32(0)
    for slot in range(k - _N_LAST, k):
        total += max(_read_odds(codes[slot]), np.float32(_LEAST))
    return min(total / np.float32(_N_LAST), np.float32(_MOST_LAST))


@njit(cache=True, nogil=True)
def _look_at_edges(beliefs, rows, positions, looks):  # type: ignore[no-untyped-def]
    """Describe the edges at the given positions."""
    k = beliefs.neighbors.shape[1]
    shift = find_shift(k)
    lines = np.empty(k, np.int32), np.empty(k + LANES, np.int32), np.empty(k + LANES, np.int32)
    room = make_table(shift), np.empty(k, np.int32), np.empty(7, np.float32)
    _look_at_each(beliefs, rows, positions, shift, lines, room, looks)


@leaf
def _look_at_each(beliefs, rows, positions, shift, lines, room, looks):  # type: ignore[no-untyped-def]
    """Describe edge by edge, with room for the lists of both ends; a row's list is put into the table once."""
    neighbors, codes, depths = beliefs.neighbors, beliefs.codes, beliefs.depths
    k = neighbors.shape[1]
    (known, mine, theirs), (table, spare, sums) = lines, room
    row, factor, n_spare, none = -1, np.uint32(1), 0, np.int32(0)
    for e in range(len(positions)):
        i, slot = rows[positions[e] // k], positions[e] % k
        if i != row:
            if row >= 0:
                clear_faces(neighbors[row, : depths[row]], factor, shift, table)
            row = i
            copy_row(codes[i], known[: depths[i]])
            factor, n_spare = list_faces(neighbors[i, : depths[i]], known, shift, table, spare)
        j = neighbors[i, slot]
        length = depths[j]
        their_list = neighbors[j, :length]
        look_up(their_list, factor, shift, table, none, mine)
        for left_over in spare[:n_spare]:
            look_up_one(their_list, neighbors[i, left_over], known[left_over], mine)
        copy_row(codes[j], theirs[:length])
        n_lanes = fill_up(mine, length, none)
        fill_up(theirs, length, none)
        _sum_common(mine[:n_lanes], theirs, sums)
        place = find_place(their_list, i)
        back = codes[j, place] if place < length else np.uint16(0)
        _describe_edge(beliefs, i, j, codes[i, slot], back, sums, looks[e])


@leaf_with(fastmath=REORDERED, error_model="numpy")
def _sum_common(mine, theirs, sums):  # type: ignore[no-untyped-def]
    """Sum up what i and j think of the same faces, codes that are 0 where one of them does not list a face.

    sums: common matches; of i's matches that j lists, and of j's that i lists: how many, and what they think of the
    other; best and second best way. Codes are in the order of the odds, so ways are compared by them.
    """
    none, least = np.float32(0), np.float32(_LEAST)
    common, my_sum, their_sum, toward_j, toward_i = none, none, none, none, none
    best = np.int32(0)
    for at in range(len(mine)):
        way = min(mine[at], theirs[at])
        listed = np.float32(1) if way > 0 else none
        my_chance, their_chance = listed * _read_chance(mine[at]), listed * _read_chance(theirs[at])
        my_odds, their_odds = _read_odds(mine[at]), _read_odds(theirs[at])
        common += my_chance if my_chance < their_chance else their_chance
        my_sum += my_chance
        their_sum += their_chance
        toward_j += my_chance * (their_odds if their_odds > least else least)
        toward_i += their_chance * (my_odds if my_odds > least else least)
        best = max(best, way)
    second, n_best = np.int32(0), np.int32(0)
    for at in range(len(mine)):
        way = min(mine[at], theirs[at])
        n_best += np.int32(1) if way == best else np.int32(0)
        second = max(second, way if way < best else np.int32(0))
    sums[0], sums[1], sums[2], sums[3], sums[4] = common, my_sum, their_sum, toward_j, toward_i
    sums[5], sums[6] = _read_odds(best), _read_odds(best if n_best > 1 else second)


@leaf
def _describe_edge(beliefs, i, j, code, back, sums, out):  # type: ignore[no-untyped-def]
    """Write the numbers of an edge from what is known of its ends, and of what they have in common."""
    my, their = beliefs.faces[i], beliefs.faces[j]
    none, half = np.float32(0), np.float32(0.5)
    odds, chance, chance_back = _read_odds(code), _read_chance(code), _read_chance(back)
    my_matches, their_matches = max(none, my[_MATCHES] - chance), max(none, their[_MATCHES] - chance_back)
    own = half * max(odds, np.float32(_LEAST))
    toward_j = (sums[3] + max(none, my_matches - sums[1]) * their[_LAST] + own) / (my_matches + half)
    toward_i = (sums[4] + max(none, their_matches - sums[2]) * my[_LAST] + own) / (their_matches + half)
    ahead = my_matches - their_matches
    if abs(ahead) < _NEXT_TO_NOTHING:
        ahead = toward_j - toward_i
    if abs(ahead) < _NEXT_TO_NOTHING:
        ahead = my[_DOUBT] - their[_DOUBT]
    few, many = (0, 1) if ahead <= 0 else (1, 0)
    common = sums[0] + np.float32(0.25)
    out[0] = odds
    out[1 + few], out[1 + many] = np.log2(1 + my_matches), np.log2(1 + their_matches)
    out[3] = np.log2(1 + sums[0])
    out[4 + few], out[4 + many] = common / (my_matches + half), common / (their_matches + half)
    out[6 + few], out[6 + many] = toward_j, toward_i
    out[8], out[9] = sums[5], sums[6]
    out[10 + few] = my[_SECOND] if beliefs.nearest[i] == j else my[_BEST]
    out[10 + many] = their[_SECOND] if beliefs.nearest[j] == i else their[_BEST]
    out[12 + few] = np.log2(1 + max(none, my[_DOUBT] - chance * (1 - chance)))
    out[12 + many] = np.log2(1 + max(none, their[_DOUBT] - chance_back * (1 - chance_back)))
    out[14], out[15], out[16] = beliefs.whole[0], beliefs.whole[1], beliefs.whole[2]
