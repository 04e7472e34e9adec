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


@dataclass(frozen=True)
class Surroundings:
    """What the relations of an edge are computed from.

    Attributes
    ----------
    neighbors : int32 (n, k)
    evidence, ordered : float32 (n, k)
        Evidence of each neighbour; the same, falling.
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
    ordered: NDArray[np.float32]
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
    ordered = np.empty(graph.neighbors.shape, dtype=np.float32)

    def survey_tile(start: int, stop: int) -> None:
        _survey_rows(start, stop, graph.neighbors, evidence, ordered, faces)

    run_tiles(graph.n, _TILE_ROWS, survey_tile, "survey")
    return Surroundings(graph.neighbors, evidence, ordered, faces, _measure_excess(faces), _find_typical(faces))


def relate_rows(around: Surroundings, start: int, stop: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Describe the edges of rows start..stop that have enough evidence.

    Returns
    -------
    relations : float32 (m, len(RELATIONS))
    positions : int64 (m,)
        Of the edges in the flattened (stop - start, k) block.
    """
    block = around.evidence[start:stop]
    listed = (block > LOWEST_EVIDENCE) & (around.neighbors[start:stop] >= 0)
    positions = np.flatnonzero(listed)
    relations = np.empty((len(positions), _N_RELATIONS), dtype=np.float32)
    _relate_edges(
        start, positions, around.neighbors, around.evidence, around.ordered, around.faces,
        around.excess, around.typical, relations,
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


@njit(cache=True, nogil=True)
def _weight(evidence):  # type: ignore[no-untyped-def]
    """Return how much a neighbour counts."""
    return min(max(evidence + 0.5, 0.0), 6.0)


@njit(cache=True, nogil=True)
def _survey_rows(start, stop, neighbors, evidence, ordered, faces):  # type: ignore[no-untyped-def]
    """Fill what is known of the faces start..stop, and sort their evidence."""
    for i in range(start, stop):
        faces[i] = 0
        n_listed, total = 0, 0.0
        for slot in range(neighbors.shape[1]):
            if neighbors[i, slot] < 0:
                break
            e = evidence[i, slot]
            n_listed += 1
            if e > LOWEST_EVIDENCE:
                faces[i, _DEPTH] = slot + 1
            faces[i, _COUNT0] += e > 0
            faces[i, _COUNT1] += e > 1
            faces[i, _COUNT3] += e > 3
            faces[i, _WEIGHT] += _weight(e)
            total += _weight(e) * min(e, _MOST)
            at = slot
            while at > 0 and ordered[i, at - 1] < e:
                ordered[i, at] = ordered[i, at - 1]
                at -= 1
            ordered[i, at] = e
        ordered[i, n_listed:] = -np.inf
        faces[i, _BEST] = ordered[i, 0] if n_listed > 0 else LOWEST_EVIDENCE
        faces[i, _LAST] = ordered[i, n_listed - 1] if n_listed > 0 else LOWEST_EVIDENCE
        faces[i, _AVERAGE] = total / faces[i, _WEIGHT] if faces[i, _WEIGHT] > 0 else 0.0


@njit(cache=True, nogil=True)
def _count_above(ordered, level):  # type: ignore[no-untyped-def]
    """Count the entries of a falling row that are above a level."""
    low, high = 0, len(ordered)
    while low < high:
        middle = (low + high) // 2
        if ordered[middle] > level:
            low = middle + 1
        else:
            high = middle
    return low


@njit(cache=True, nogil=True)
def _find_slot(ids, face):  # type: ignore[no-untyped-def]
    """Return where a face stands in the hash table, or the free place where it would."""
    mask = len(ids) - 1
    at = ((np.int64(face) * np.int64(2654435761)) >> 7) & mask
    while ids[at] != face and ids[at] != -1:
        at = (at + 1) & mask
    return at


@njit(cache=True, nogil=True)
def _put(relations, at, one, other):  # type: ignore[no-untyped-def]
    """Write the lower and the higher of two values."""
    relations[at] = min(one, other)
    relations[at + 1] = max(one, other)


@njit(cache=True, nogil=True)
def _relate_edges(start, positions, neighbors, evidence, ordered, faces, excess, typical, relations):  # type: ignore[no-untyped-def]
    """Describe the edges at the given positions of the block of rows from start on."""
    k = neighbors.shape[1]
    size = 16
    while size < 6 * k:
        size *= 2
    ids, slots = np.full(size, -1, np.int32), np.empty(size, np.int32)
    common = np.empty(8)
    row = -1
    for e in range(len(positions)):
        i, slot = start + positions[e] // k, positions[e] % k
        if i != row:
            row = i
            ids[:] = -1
            for other in range(int(faces[i, _DEPTH])):
                at = _find_slot(ids, neighbors[i, other])
                ids[at] = neighbors[i, other]
                slots[at] = other
        j = neighbors[i, slot]
        back = _compare_lists(i, j, neighbors, evidence, faces, ids, slots, common)
        _describe_edge(i, j, slot, back, k, evidence[i, slot], ordered, faces, common, relations[e])
        _place_edge(min(evidence[i, slot], _MOST), excess, typical, relations[e])


@njit(cache=True, nogil=True)
def _compare_lists(i, j, neighbors, evidence, faces, ids, slots, common):  # type: ignore[no-untyped-def]
    """Sum up what i's and j's lists have in common; return i's place in j's list, k if it is not there.

    common: counts above 0, 1, 3; overlap; evidence of i's neighbours towards j, of j's towards i; best and second path.
    """
    back = neighbors.shape[1]
    common[:6] = 0
    common[6:] = LOWEST_EVIDENCE
    for other in range(int(faces[j, _DEPTH])):
        face = neighbors[j, other]
        if face == i:
            back = other
            continue
        at = _find_slot(ids, face)
        if ids[at] != face:
            continue
        mine, theirs = evidence[i, slots[at]], evidence[j, other]
        least = min(mine, theirs)
        common[0] += least > 0
        common[1] += least > 1
        common[2] += least > 3
        common[3] += min(_weight(mine), _weight(theirs))
        common[4] += _weight(mine) * (min(max(theirs, -1.0), 8.0) + 1)
        common[5] += _weight(theirs) * (min(max(mine, -1.0), 8.0) + 1)
        if least > common[6]:
            common[7] = common[6]
            common[6] = least
        elif least > common[7]:
            common[7] = least
    return back


@njit(cache=True, nogil=True)
def _describe_edge(i, j, slot, back, k, full, ordered, faces, common, out):  # type: ignore[no-untyped-def]
    """Write the relations of an edge that are not of the collection."""
    e = min(full, _MOST)
    listed = 1.0 if back < k else 0.0
    out[0] = e
    _put(out, 1, np.log2(1.0 + slot), np.log2(1.0 + back))
    above_i, above_j = _count_above(ordered[i], full), _count_above(ordered[j], full)
    _put(out, 3, e + np.log10(1.0 + above_i), e + np.log10(1.0 + above_j))
    level_i = max(1.0, _count_above(ordered[i], full - 1) - above_i)
    level_j = max(1.0, _count_above(ordered[j], full - 1) - above_j)
    _put(out, 5, e + np.log10(level_i), e + np.log10(level_j))
    _put(out, 7, e - min(faces[i, _BEST], _MOST), e - min(faces[j, _BEST], _MOST))
    _put(out, 9, e - faces[i, _AVERAGE], e - faces[j, _AVERAGE])
    _put(out, 11, min(max(faces[i, _LAST], -3.0), 3.0), min(max(faces[j, _LAST], -3.0), 3.0))
    for level in range(3):
        passes = 1.0 if full > (0.0, 1.0, 3.0)[level] else 0.0
        n_i, n_j = faces[i, _COUNT0 + level] - passes, max(0.0, faces[j, _COUNT0 + level] - passes * listed)
        _put(out, 13 + 2 * level, np.log2(1.0 + n_i), np.log2(1.0 + n_j))
        out[19 + level] = np.log2(1.0 + common[level])
        _put(out, 22 + 2 * level, (common[level] + 0.25) / (n_i + 0.5), (common[level] + 0.25) / (n_j + 0.5))
    rest_i = max(0.0, faces[i, _WEIGHT] - _weight(full))
    rest_j = max(0.0, faces[j, _WEIGHT] - _weight(full) * listed)
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
