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
  typical and the low evidence of best neighbours, how many have one, and how many faces people have. One person may
  have a hundred where all others have two or three: seen from there, people have more (`_see_more`). Without that,
  a network that has seen many neighbours in such collections of blurred strangers only tore that person to pieces.

Faces are looked up in a small table per row (`facetable.py`): O(n k²), no table of n.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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
from .knn import KnnGraph
from .rowstore import copy_row
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
_HIGHEST = np.float32(1e6)
_COUNT3_LO, _OVER_BEST_LO = RELATIONS.index("count3_lo"), RELATIONS.index("over_best_lo")
_SHARE0_LO, _SHARE3_LO = RELATIONS.index("share0_lo"), RELATIONS.index("share3_lo")
_LOW_BY = 3.0  # evidence below where best neighbours stand, at which many neighbours say nothing of a person
_MOST_COMMON, _ALL_COMMON = (0.5, 0.7), (0.8, 0.95)  # shares of neighbours: from not at all to most, to nearly all
_ABSENT = np.float32(-1e30)  # evidence of a face that is not in a list: it weighs nothing


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

    def rank_faces(self) -> NDArray[np.float32]:
        """Return the summed evidence of every face, float32 (n,): a number of its own, whatever its place."""
        return np.ascontiguousarray(self.faces[:, _WEIGHT])


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


def relate_rows(around: Surroundings, rows: NDArray[Any]) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Describe the edges of some rows that have enough evidence.

    Parameters
    ----------
    around : Surroundings
    rows : int (r,)

    Returns
    -------
    relations : float32 (m, len(RELATIONS))
    positions : int64 (m,)
        Of the edges in the flattened (r, k) block.
    """
    positions = np.flatnonzero((around.evidence[rows] > LOWEST_EVIDENCE) & (around.neighbors[rows] >= 0))
    return relate_edges(around, rows, positions), positions


def relate_edges(around: Surroundings, rows: NDArray[Any], positions: NDArray[np.int64]) -> NDArray[np.float32]:
    """Describe some edges that have enough evidence; rows that are near each other share what they read.

    Parameters
    ----------
    around : Surroundings
    rows : int (r,)
    positions : int64 (m,)
        Of the edges in the flattened (r, k) block, ascending.

    Returns
    -------
    float32 (m, len(RELATIONS))
    """
    relations = np.empty((len(positions), _N_RELATIONS), dtype=np.float32)
    _relate_edges(
        rows, positions, around.neighbors, around.evidence, around.faces, around.excess, around.typical, relations
    )  # fmt: skip
    return relations


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


@leaf_with(fastmath=REORDERED)
def _weight(evidence):  # type: ignore[no-untyped-def]
    """Return how much a neighbour counts."""
    return _cut(evidence + np.float32(0.5), np.float32(0), np.float32(6))


@leaf_with(fastmath=REORDERED)
def _cut(value, lowest, highest):  # type: ignore[no-untyped-def]
    """Return a value cut to a range; unlike min and max of Python, in vector lanes."""
    above = value if value > lowest else lowest
    return above if above < highest else highest


@leaf
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


@leaf
def _put(relations, at, one, other):  # type: ignore[no-untyped-def]
    """Write the lower and the higher of two values."""
    relations[at] = min(one, other)
    relations[at + 1] = max(one, other)


@njit(cache=True, nogil=True)
def _relate_edges(rows, positions, neighbors, evidence, faces, excess, typical, relations):  # type: ignore[no-untyped-def]
    """Describe the edges at the given positions of the block of rows."""
    k = neighbors.shape[1]
    shift, numbers = find_shift(k), np.arange(k + 1)
    mine, theirs = np.empty(k + LANES, np.float32), np.empty(k + LANES, np.float32)
    shared, least = np.empty(k + LANES, np.float32), np.empty(k + LANES, np.int32)
    lines = mine, theirs, shared, least, mine.view(np.int32), shared.view(np.int32)
    room = make_table(shift), np.empty(k, np.int32), np.empty(8)
    terms = np.log2(1.0 + numbers), np.log10(1.0 + numbers), 1 / (numbers + 0.5)  # of counts: no logarithm per edge
    _relate_each(rows, positions, neighbors, evidence, faces, excess, typical, shift, lines, room, terms, relations)


@leaf
def _relate_each(rows, positions, neighbors, evidence, faces, excess, typical, shift, lines, room, terms, relations):  # type: ignore[no-untyped-def]
    """Describe edge by edge, with room for the lists of both ends; a row's list is put into the table once.

    Sums over what two lists have in common run in vector lanes, the absent standing at an evidence that adds nothing.
    """
    k, absent_bits = neighbors.shape[1], np.float32(_ABSENT).view(np.int32)
    (mine, theirs, shared, least, mine_bits, shared_bits), (table, spare, common) = lines, room
    row, depth, factor, n_spare = -1, 0, np.uint32(1), 0
    for e in range(len(positions)):
        i, slot = rows[positions[e] // k], positions[e] % k
        if i != row:
            if row >= 0:
                clear_faces(neighbors[row, :depth], factor, shift, table)
            row, depth = i, int(faces[i, _DEPTH])
            copy_row(evidence[i], mine[:depth])
            factor, n_spare = list_faces(neighbors[i, :depth], mine_bits, shift, table, spare)
            fill_up(mine, depth, _ABSENT)
        j, full = neighbors[i, slot], evidence[i, slot]
        length = int(faces[j, _DEPTH])
        their_list = neighbors[j, :length]
        look_up(their_list, factor, shift, table, absent_bits, shared_bits)
        for left_over in spare[:n_spare]:
            look_up_one(their_list, neighbors[i, left_over], mine_bits[left_over], shared_bits)
        copy_row(evidence[j], theirs[:length])
        place = find_place(their_list, i)
        n_lanes = fill_up(theirs, length, _ABSENT)
        fill_up(shared, length, _ABSENT)
        _sum_common(theirs[:n_lanes], shared, least, common)
        above = (
            _count_above(mine, depth, neighbors[i], evidence[i], full),
            _count_above(theirs, length, neighbors[j], evidence[j], full),
        )
        back = place if place < length else k
        _describe_edge(faces[i], faces[j], slot, back, k, full, above, common, terms, relations[e])
        _place_edge(min(full, _MOST), excess, typical, relations[e])


@leaf_with(fastmath=REORDERED)
def _count_above(known, depth, listed, evidence, level):  # type: ignore[no-untyped-def]
    """Count a face's neighbours with an evidence above a level, and above 1 less.

    `known` is what it has down to its depth, filled up. Behind that, evidence is too low for the first count.
    """
    one, none, below = np.float32(1), np.float32(0), level - np.float32(1)
    n_above, n_around = none, none
    for slot in range(-(-depth // LANES) * LANES):
        n_above += one if known[slot] > level else none
        n_around += one if known[slot] > below else none
    if below < np.float32(LOWEST_EVIDENCE):
        for slot in range(depth, len(listed)):
            n_around += one if (listed[slot] >= 0) & (evidence[slot] > below) else none
    return int(n_above), int(n_around)


@leaf_with(fastmath=REORDERED)
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


@leaf
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


@leaf
def _place_edge(e, excess, typical, out):  # type: ignore[no-untyped-def]
    """Write where the edge stands in the collection."""
    at = min(max(2.0 * (e + 1.0) - 0.5, 0.0), len(excess) - 1.0)
    low = int(at)
    high = min(low + 1, len(excess) - 1)
    out[34] = excess[low] + (at - low) * (excess[high] - excess[low])
    out[35] = e - typical[0]
    out[36] = e - typical[1]
    out[37] = typical[2]
    shares = out[_SHARE0_LO], out[_SHARE3_LO]
    out[38] = typical[3] + _see_more(out[_COUNT3_LO] - typical[3], out[35], out[_OVER_BEST_LO], shares)


@leaf
def _see_more(more, over_typical, over_best, shares):  # type: ignore[no-untyped-def]
    """Return by how much people seem to have more faces, log2, than is typical, seen from an edge.

    Where both ends have more than twice as many neighbours as is typical, that counts, as far as nearly all of them are
    the same (shares at evidence 0 and 3); or as far as the edge stands where best neighbours stand, the typical ones
    and those of its ends, and most of them are the same: of a person with more faces than a list holds, each face lists
    others. Blurred faces have many neighbours too, but each has its own, and lower ones than its person.
    """
    high = _cut(1 + over_typical / _LOW_BY, 0.0, 1.0) * _cut(1 + over_best / _LOW_BY, 0.0, 1.0)
    most_same = _cut((shares[1] - _MOST_COMMON[0]) / (_MOST_COMMON[1] - _MOST_COMMON[0]), 0.0, 1.0)
    all_same = _cut((shares[0] - _ALL_COMMON[0]) / (_ALL_COMMON[1] - _ALL_COMMON[0]), 0.0, 1.0)
    return max(more, 0.0) * _cut(more - 1, 0.0, 1.0) * max(all_same, high * most_same)
