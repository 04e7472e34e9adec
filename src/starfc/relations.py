"""Relations: what the two ends of an edge have in common, in units that no embedder, dimension or size changes.

In: a kNN graph and the evidence e of its edges (`profiles.py`). Out: for each edge whose evidence is above -1 (fewer
than ten strangers expected) the numbers of RELATIONS, which a scorer turns into a probability. Those that belong to one
end come as the lower and the higher of both, so an edge looks the same from either side:

- evidence, and against what the ends' other neighbours have (their best, their average, their last);
- ranks; how many neighbours stand as high or higher, as evidence: e + log10(count) is minus the log of the false
  discovery rate of a face that links everything down to this edge;
- neighbours with e above 0, 1, 3 of each end, and common ones: counts, shares, overlap weighted by evidence, the
  evidence of each end towards the other's neighbours, the best and second best path over a third face;
- of the collection: how often a face's best neighbour has such an evidence against what strangers would give, the
  typical and the low evidence of best neighbours, how many have one, and how many faces people have.

Faces are looked up in a small hash table per row: O(n k²), no table of n, so that tiles of rows are independent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .knn import KnnGraph
from .tiles import run_tiles

RELATIONS = (
    "evidence", "rank_lo", "rank_hi", "discovery_lo", "discovery_hi", "level_lo", "level_hi",
    "over_best_lo", "over_best_hi", "over_average_lo", "over_average_hi", "last_lo", "last_hi",
    "count0_lo", "count0_hi", "count1_lo", "count1_hi", "count3_lo", "count3_hi",
    "common0", "common1", "common3", "share0_lo", "share0_hi", "share1_lo", "share1_hi", "share3_lo", "share3_hi",
    "overlap_lo", "overlap_hi", "toward_lo", "toward_hi", "path_best", "path_second",
    "typical_excess", "typical_over", "typical_over_low", "typical_linked", "typical_count",
)  # fmt: skip
LOWEST_EVIDENCE = -1.0
_N_RELATIONS = len(RELATIONS)
_TILE_ROWS = 2048
_MOST = 12.0  # evidence beyond which more says nothing
# Columns of what is known of a face.
_DEPTH, _COUNT0, _COUNT1, _COUNT3, _BEST, _AVERAGE, _WEIGHT, _LAST = range(8)
_BIN_STARTS = np.arange(-1.0, _MOST, 0.5)
_CELLS_PER_FACE = 32  # of the table that neighbours are looked up in; it must fit the nearest cache
_N_FACTORS = 6  # hash functions that are tried to keep the neighbours of a face apart
_LANES = 32  # numbers that a loop takes at a time
_LOW_HALF = 0xFFFFFFFF
_HIGHEST = np.float32(1e6)
_ABSENT = np.float32(-1e30)  # evidence of a face that is not in a list: it weighs nothing
# Sums may be in any order, which lets them run in vector lanes; infinite values stay what they are.
_REORDERED = {"reassoc", "nsz", "nnan", "contract"}


@dataclass(frozen=True)
class Surroundings:
    """What the relations of an edge are computed from.

    Attributes
    ----------
    neighbors : int32 (n, k)
    evidence : float32 (n, k)
        Of each neighbour.
    faces : float32 (n, 8)
        Of each face: how deep its list is looked at, counts of neighbours above 0, 1, 3, best, average, summed and last
        evidence.
    excess : float64 (bins,)
        log10 of how many best neighbours have an evidence in each bin against what strangers would give.
    typical : float64 (4,)
        Median and lower tenth of the evidence of best neighbours above 3, share of faces with one, mean log2 of 1 +
        neighbours above 3.
    """

    neighbors: NDArray[np.int32]
    evidence: NDArray[np.float32]
    faces: NDArray[np.float32]
    excess: NDArray[np.float64]
    typical: NDArray[np.float64]


def survey_graph(graph: KnnGraph, evidence: NDArray[np.float32]) -> Surroundings:
    """Gather what is known of every face and of the collection.

    Parameters
    ----------
    graph : KnnGraph
        (n, k).
    evidence : float32 (n, k)
        Of its edges.

    Returns
    -------
    Surroundings

    Examples
    --------
    >>> graph = KnnGraph(np.array([[1], [0], [1]], np.int32), np.full((3, 1), 0.5, np.float32))
    >>> survey_graph(graph, np.array([[4], [4], [0.5]], np.float32)).faces[:, 1]
    array([1., 1., 1.], dtype=float32)
    """
    faces = np.empty((graph.n, 8), dtype=np.float32)

    def survey_tile(start: int, stop: int) -> None:
        _survey_rows(start, stop, graph.neighbors, evidence, faces)

    run_tiles(graph.n, _TILE_ROWS, survey_tile, "survey")
    return Surroundings(graph.neighbors, evidence, faces, _measure_excess(faces), _find_typical(faces))


def relate_rows(
    around: Surroundings, rows: NDArray[Any], *, only: NDArray[np.bool_] | None = None
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Describe the edges of some rows that have enough evidence; rows that are near each other share what they read.

    Parameters
    ----------
    around : Surroundings
    rows : int (m,)
    only : bool (m, k), optional
        Which of these edges; all by default.

    Returns
    -------
    relations : float32 (m, len(RELATIONS))
    positions : int64 (m,)
        Of the edges in the flattened (rows, k) block.
    """
    listed = (around.evidence[rows] > LOWEST_EVIDENCE) & (around.neighbors[rows] >= 0)
    positions = np.flatnonzero(listed if only is None else listed & only)
    relations = np.empty((len(positions), _N_RELATIONS), dtype=np.float32)
    _relate_edges(
        rows, positions, around.neighbors, around.evidence, around.faces, around.excess, around.typical, relations
    )  # fmt: skip
    return relations, positions


def _measure_excess(faces: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return log10 of the best neighbours in each bin of evidence over those of strangers only (Poisson)."""
    edges = np.append(_BIN_STARTS, np.inf)
    found = np.histogram(faces[:, _BEST], np.append(_BIN_STARTS, 1e9))[0]
    expected = len(faces) * np.diff(np.exp(-(10.0**-edges)))
    return np.asarray(np.log10((found + 0.5) / (expected + 0.5)))


def _find_typical(faces: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return median and lower tenth of the best evidence above 3, the share of faces with one, mean log2 count."""
    linked = faces[faces[:, _BEST] > 3]
    if len(linked) == 0:
        return np.array([3.0, 3.0, 0.0, 0.0])
    median, low = np.minimum(np.quantile(linked[:, _BEST], [0.5, 0.1]), _MOST)
    return np.array([median, low, len(linked) / len(faces), float(np.log2(1.0 + linked[:, _COUNT3]).mean())])


@njit(cache=True, nogil=True, fastmath=_REORDERED)
def _weight(evidence):  # type: ignore[no-untyped-def]
    """Return how much a neighbour counts."""
    return _cut(evidence + np.float32(0.5), np.float32(0), np.float32(6))


@njit(cache=True, nogil=True, fastmath=_REORDERED)
def _cut(value, lowest, highest):  # type: ignore[no-untyped-def]
    """Return a value cut to a range; unlike min and max of Python, in vector lanes."""
    above = value if value > lowest else lowest
    return above if above < highest else highest


@njit(cache=True, nogil=True)
def _survey_rows(start, stop, neighbors, evidence, faces):  # type: ignore[no-untyped-def]
    """Fill what is known of the faces start..stop."""
    for i in range(start, stop):
        faces[i] = 0
        best, last, total = -np.inf, np.inf, 0.0
        for slot in range(neighbors.shape[1]):
            if neighbors[i, slot] < 0:
                break
            e = evidence[i, slot]
            if e > LOWEST_EVIDENCE:
                faces[i, _DEPTH] = slot + 1
            faces[i, _COUNT0] += e > 0
            faces[i, _COUNT1] += e > 1
            faces[i, _COUNT3] += e > 3
            faces[i, _WEIGHT] += _weight(e)
            total += _weight(e) * min(e, _MOST)
            best, last = max(best, e), min(last, e)
        faces[i, _BEST] = best if best > -np.inf else LOWEST_EVIDENCE
        faces[i, _LAST] = last if last < np.inf else LOWEST_EVIDENCE
        faces[i, _AVERAGE] = total / faces[i, _WEIGHT] if faces[i, _WEIGHT] > 0 else 0.0


@njit(cache=True, nogil=True)
def find_cell(face, factor, shift) -> np.uint32:  # type: ignore[no-untyped-def]
    """Return the cell of a face; unsigned, or every use would be checked for its sign."""
    return np.uint32(np.uint32(np.uint32(face) * np.uint32(factor)) >> np.uint32(shift))


@njit(cache=True, nogil=True)
def _list_face(i, depth, neighbors, evidence, shift, table, spare):  # type: ignore[no-untyped-def]
    """Put a face's neighbours and the bits of their evidence into an empty table, each into the cell of its hash.

    Of neighbours that share a cell only the first is there. A few factors are tried until there are none; the places of
    those that are left over go to `spare`. Returns the factor and how many are left over.
    """
    factor = np.uint32(0x9E3779B1)
    for attempt in range(_N_FACTORS):
        n_spare = 0
        for slot in range(depth):
            face = neighbors[i, slot]
            cell = find_cell(face, factor, shift)
            if table[cell] >= 0:
                spare[n_spare] = slot
                n_spare += 1
            elif face != i:
                bits = np.int64(np.float32(evidence[i, slot]).view(np.int32)) & _LOW_HALF
                table[cell] = (np.int64(face) << 32) | bits
        if n_spare == 0 or attempt == _N_FACTORS - 1:
            break
        _clear_table(i, depth, neighbors, factor, shift, table)
        factor = np.uint32(np.uint32(factor) * np.uint32(0x2C9277B5) + np.uint32(0xAC564B05)) | np.uint32(1)
    return factor, n_spare


@njit(cache=True, nogil=True)
def _clear_table(i, depth, neighbors, factor, shift, table):  # type: ignore[no-untyped-def]
    """Empty the cells of a face's neighbours."""
    for slot in range(depth):
        table[find_cell(neighbors[i, slot], factor, shift)] = -1


@njit(cache=True, nogil=True)
def _put(relations, at, one, other):  # type: ignore[no-untyped-def]
    """Write the lower and the higher of two values."""
    relations[at] = min(one, other)
    relations[at + 1] = max(one, other)


@njit(cache=True, nogil=True)
def _relate_edges(rows, positions, neighbors, evidence, faces, excess, typical, relations):  # type: ignore[no-untyped-def]
    """Describe the edges at the given positions of the block of rows.

    A row's list is in a hash table in the nearest cache, where a look-up is one comparison without a branch; sums over
    what two lists have in common run in vector lanes, the absent standing at an evidence that adds nothing.
    """
    k = neighbors.shape[1]
    shift = 26
    while 1 << (32 - shift) < _CELLS_PER_FACE * k:
        shift -= 1
    table, spare = np.full(1 << (32 - shift), -1, np.int64), np.empty(k, np.int32)
    mine, theirs = np.empty(k + _LANES, np.float32), np.empty(k + _LANES, np.float32)
    shared, least = np.empty(k + _LANES, np.float32), np.empty(k + _LANES, np.int32)
    common, numbers = np.empty(8), np.arange(k + 1)
    terms = np.log2(1.0 + numbers), np.log10(1.0 + numbers), 1 / (numbers + 0.5)  # of counts: no logarithm per edge
    row, depth, factor, n_spare = -1, 0, np.uint32(1), 0
    for e in range(len(positions)):
        i, slot = rows[positions[e] // k], positions[e] % k
        if i != row:
            if row >= 0:
                _clear_table(row, depth, neighbors, factor, shift, table)
            row, depth = i, int(faces[i, _DEPTH])
            factor, n_spare = _list_face(i, depth, neighbors, evidence, shift, table, spare)
            mine[:depth] = evidence[i, :depth]
            _fill_up(mine, depth)
        j, full = neighbors[i, slot], evidence[i, slot]
        length = int(faces[j, _DEPTH])
        their_list = neighbors[j, :length]
        _look_up(their_list, evidence[j], factor, shift, table, shared.view(np.int32), theirs)
        for left_over in spare[:n_spare]:
            _find_one(their_list, neighbors[i, left_over], evidence[i, left_over], shared)
        back = _find_back(their_list, i, k)
        n_lanes = _fill_up(theirs, length)
        _fill_up(shared, length)
        _sum_common(theirs[:n_lanes], shared, least, common)
        above = (
            _count_above(mine, depth, neighbors[i], evidence[i], full),
            _count_above(theirs, length, neighbors[j], evidence[j], full),
        )
        _describe_edge(faces[i], faces[j], slot, back, k, full, above, common, terms, relations[e])
        _place_edge(min(full, _MOST), excess, typical, relations[e])


@njit(cache=True, nogil=True)
def _fill_up(values, length):  # type: ignore[no-untyped-def]
    """Let the absent follow a list up to full vector lanes, whose remainders would take longer; return their end."""
    end = -(-length // _LANES) * _LANES
    for at in range(length, end):
        values[at] = _ABSENT
    return end


@njit(cache=True, nogil=True)
def _look_up(their_list, evidence, factor, shift, table, shared, theirs):  # type: ignore[no-untyped-def]
    """Write for each face of a list the bits of the evidence that the table has for it, and copy the list's own."""
    absent = np.float32(_ABSENT).view(np.int32)
    for other in range(len(their_list)):
        entry = table[find_cell(their_list[other], factor, shift)]
        shared[other] = np.int32(entry) if (entry >> 32) == their_list[other] else absent
        theirs[other] = evidence[other]


@njit(cache=True, nogil=True)
def _find_one(their_list, face, evidence, shared):  # type: ignore[no-untyped-def]
    """Write the evidence for one face, where the list has it."""
    for other in range(len(their_list)):
        shared[other] = evidence if their_list[other] == face else shared[other]


@njit(cache=True, nogil=True)
def _find_back(their_list, i, k):  # type: ignore[no-untyped-def]
    """Return a face's place in a list, k if it is not there."""
    for other in range(len(their_list)):
        if their_list[other] == i:
            return other
    return k


@njit(cache=True, nogil=True, fastmath=_REORDERED)
def _count_above(known, depth, listed, evidence, level):  # type: ignore[no-untyped-def]
    """Count a face's neighbours with an evidence above a level, and above 1 less.

    `known` is what it has down to its depth, filled up. Behind that, evidence is too low for the first count.
    """
    one, none, below = np.float32(1), np.float32(0), level - np.float32(1)
    n_above, n_around = none, none
    for slot in range(-(-depth // _LANES) * _LANES):
        n_above += one if known[slot] > level else none
        n_around += one if known[slot] > below else none
    if below < np.float32(LOWEST_EVIDENCE):
        for slot in range(depth, len(listed)):
            n_around += one if (listed[slot] >= 0) & (evidence[slot] > below) else none
    return int(n_above), int(n_around)


@njit(cache=True, nogil=True, fastmath=_REORDERED)
def _sum_common(theirs, shared, least, common):  # type: ignore[no-untyped-def]
    """Sum up what i's and j's lists have in common, of j's evidence and i's evidence of the same faces.

    common: counts above 0, 1, 3; overlap; evidence of i's neighbours towards j, of j's towards i; best and second path.
    Paths are compared by the bits of what they have above the lowest evidence, which are in the same order.
    """
    one, none = np.float32(1), np.float32(0)
    above0, above1, above3, overlap, toward_j, toward_i = none, none, none, none, none, none
    best = np.int32(0)
    for other in range(len(theirs)):
        my, their = shared[other], theirs[other]
        lower = my if my < their else their
        above0 += one if lower > none else none
        above1 += one if lower > one else none
        above3 += one if lower > np.float32(3) else none
        my_weight, their_weight = _weight(my), _weight(their)
        overlap += my_weight if my_weight < their_weight else their_weight
        toward_j += my_weight * (_cut(their, -one, np.float32(8)) + one)
        toward_i += their_weight * (_cut(my, -one, np.float32(8)) + one)
        least[other] = np.float32(_cut(lower - np.float32(LOWEST_EVIDENCE), none, _HIGHEST)).view(np.int32)
        best = max(best, least[other])
    second, n_best = np.int32(0), none
    for other in range(len(theirs)):
        n_best += one if least[other] == best else none
        second = max(second, least[other] if least[other] < best else np.int32(0))
    common[0], common[1], common[2] = above0, above1, above3
    common[3], common[4], common[5] = overlap, toward_j, toward_i
    common[6] = np.int32(best).view(np.float32) + LOWEST_EVIDENCE
    common[7] = np.int32(best if n_best > one else second).view(np.float32) + LOWEST_EVIDENCE


@njit(cache=True, nogil=True)
def _describe_edge(my, their, slot, back, k, full, above, common, terms, out):  # type: ignore[no-untyped-def]
    """Write the relations of an edge that are not of the collection, of what is known of both faces."""
    log2, log10, share = terms
    e = min(full, _MOST)
    listed = 1.0 if back < k else 0.0
    out[0] = e
    _put(out, 1, log2[slot], log2[back])
    _put(out, 3, e + log10[above[0][0]], e + log10[above[1][0]])
    level_i, level_j = max(1, above[0][1] - above[0][0]), max(1, above[1][1] - above[1][0])
    _put(out, 5, e + log10[level_i - 1], e + log10[level_j - 1])
    _put(out, 7, e - min(my[_BEST], _MOST), e - min(their[_BEST], _MOST))
    _put(out, 9, e - my[_AVERAGE], e - their[_AVERAGE])
    _put(out, 11, min(max(my[_LAST], -3.0), 3.0), min(max(their[_LAST], -3.0), 3.0))
    for level in range(3):
        passes = 1.0 if full > (0.0, 1.0, 3.0)[level] else 0.0
        n_i = int(max(0.0, my[_COUNT0 + level] - passes))
        n_j = int(max(0.0, their[_COUNT0 + level] - passes * listed))
        _put(out, 13 + 2 * level, log2[n_i], log2[n_j])
        out[19 + level] = log2[int(common[level])]
        _put(out, 22 + 2 * level, (common[level] + 0.25) * share[n_i], (common[level] + 0.25) * share[n_j])
    rest_i = max(0.0, my[_WEIGHT] - _weight(full))
    rest_j = max(0.0, their[_WEIGHT] - _weight(full) * listed)
    _put(out, 28, (common[3] + 0.5) / (rest_i + 1.0), (common[3] + 0.5) / (rest_j + 1.0))
    _put(out, 30, common[4] / (rest_i + 0.5), common[5] / (rest_j + 0.5))
    out[32] = min(common[6], _MOST)
    out[33] = min(common[7], _MOST)


@njit(cache=True, nogil=True)
def _place_edge(e, excess, typical, out):  # type: ignore[no-untyped-def]
    """Write where the edge stands in the collection."""
    at = min(max(2.0 * (e + 1.0) - 0.5, 0.0), len(excess) - 1.0)
    low = int(at)
    high = min(low + 1, len(excess) - 1)
    out[34] = excess[low] + (at - low) * (excess[high] - excess[low])
    out[35] = e - typical[0]
    out[36] = e - typical[1]
    out[37] = typical[2]
    out[38] = typical[3]
