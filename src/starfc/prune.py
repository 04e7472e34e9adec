"""Pruning: graph parsing by tau_1, then graph refinement by node intimacy and tau_2 (Sec. 3.3).

In: ScoredEdges. Out: EdgeGraph, the edges that survive. Parsing keeps edges with score > tau_1. Refinement keeps
those with

    NI(i, j) = aggregate(k / n_1, k / n_2) > tau_2,    aggregate = max | mean | min,  or Jaccard  k / (n_1 + n_2 - k),

where n_1, n_2 are the numbers of edges at i and j, and k the number of their common neighbours. Two readings of "edge":

- `directed` (as the authors released it): i -> j as in i's kNN list; k = #{m: i -> m -> j}, n = out-degree. An edge
  into a face without edges of its own has intimacy 0, as in their code;
- `mutual`: an edge is kept only if both directions survive parsing; k and n count undirected edges.

A.A is never formed: common neighbours are counted only on existing edges (a masked product). Out-lists have at most k
entries, so hubs, which are in many lists, cost no more than others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .errors import InputError
from .score import ScoredEdges
from .scratch import Scratch
from .tiles import run_tiles

AGGREGATES = ("max", "mean", "min", "jaccard")
EDGE_KINDS = ("directed", "mutual")
_TILE_ROWS = 1024
_COMPARED = 1 << 24  # intimacies compared at once
_CELLS_PER_KEY = 32  # of the table that common neighbours are looked up in; it must fit the nearest cache
_N_FACTORS = 32  # hash functions that are tried to keep the keys of a row apart


@dataclass(frozen=True)
class EdgeGraph:
    """Edges i -> targets[offsets[i] : offsets[i + 1]] with their scores, in the order of the kNN lists.

    Attributes
    ----------
    offsets : int64 (n + 1,)
    targets : int32 (n_edges,)
    scores : float32 (n_edges,)
    """

    offsets: NDArray[np.int64]
    targets: NDArray[np.int32]
    scores: NDArray[np.float32]

    @property
    def n_nodes(self) -> int:
        """Number of faces, those without edges included."""
        return len(self.offsets) - 1

    def keep(self, kept: NDArray[np.bool_], *, scratch: Scratch | None = None, name: str = "kept") -> EdgeGraph:
        """Return the graph with only the marked edges, as arrays of that name in the scratch."""
        place = scratch or Scratch()
        offsets = np.zeros(len(self.offsets), dtype=np.int64)
        _for_rows(self.n_nodes, lambda start, stop: _count_kept(start, stop, self.offsets, kept, offsets[1:]), place)
        np.cumsum(offsets, out=offsets)
        targets, scores = _open_edges(int(offsets[-1]), place, name)
        _for_rows(
            self.n_nodes,
            lambda start, stop: _fill_kept(
                start, stop, self.offsets, self.targets, self.scores, kept, offsets, targets, scores
            ),
            place,
        )
        return EdgeGraph(offsets, targets, scores)


def prune_edges(
    scored: ScoredEdges,
    *,
    tau1: float | None,
    tau2: float | None,
    aggregate: str = "max",
    edges: str = "directed",
    scratch: Scratch | None = None,
) -> EdgeGraph:
    """Parse by tau_1, then refine by node intimacy and tau_2.

    Parameters
    ----------
    scored : ScoredEdges
        (n, k).
    tau1 : float or None
        Edges with a score above it stay; None skips parsing ("only graph refinement").
    tau2 : float or None
        Edges with an intimacy above it stay; None skips refinement ("only graph parsing").
    aggregate : {"max", "mean", "min", "jaccard"}
    edges : {"directed", "mutual"}
    scratch : Scratch, optional
        Where the edges go; to memory by default.

    Returns
    -------
    EdgeGraph

    Examples
    --------
    Three faces who all know each other, and a fourth linked to one of them:

    >>> neighbors = np.array([[1, 2], [0, 2], [0, 1], [0, -1]], np.int32)
    >>> scored = ScoredEdges(neighbors, np.full((4, 2), 0.9, np.float32))
    >>> prune_edges(scored, tau1=0.7, tau2=0.4).targets.tolist()
    [1, 2, 0, 2, 0, 1]
    """
    if aggregate not in AGGREGATES:
        raise InputError(f"aggregate ('{aggregate}') must be one of {', '.join(AGGREGATES)}")
    if edges not in EDGE_KINDS:
        raise InputError(f"edges ('{edges}') must be one of {', '.join(EDGE_KINDS)}")
    place = scratch or Scratch()
    graph = parse_edges(scored, tau1, scratch=place)
    if edges == "mutual":
        graph = graph.keep(_find_mutual(graph, place), scratch=place, name="mutual")
    if tau2 is None:
        return graph
    intimacy = measure_intimacy(graph, aggregate=aggregate, scratch=place)
    kept = place.array("intimate", (len(intimacy),), np.bool_)
    for start in range(0, len(kept), _COMPARED):
        np.greater(intimacy[start : start + _COMPARED], np.float32(tau2), out=kept[start : start + _COMPARED])
        place.relieve()
    return graph.keep(kept, scratch=place, name="refined")


def count_surviving(scored: ScoredEdges, tau1: float | None, *, scratch: Scratch | None = None) -> int:
    """Return how many edges have a score > tau_1.

    >>> count_surviving(ScoredEdges(np.array([[1], [0]], np.int32), np.array([[0.5], [0.9]], np.float32)), 0.5)
    1
    """
    return int(_count_rows(scored, tau1, scratch or Scratch())[-1])


def parse_edges(scored: ScoredEdges, tau1: float | None, *, scratch: Scratch | None = None) -> EdgeGraph:
    """Keep the edges with score > tau_1 (all of them if None)."""
    place = scratch or Scratch()
    offsets = _count_rows(scored, tau1, place)
    targets, kept = _open_edges(int(offsets[-1]), place, "parsed")
    threshold = _as_threshold(tau1)
    _for_rows(
        len(scored.neighbors),
        lambda start, stop: _fill_surviving(
            start, stop, scored.neighbors, scored.scores, threshold, offsets, targets, kept
        ),
        place,
    )
    return EdgeGraph(offsets, targets, kept)


def measure_intimacy(
    graph: EdgeGraph, *, aggregate: str = "max", scratch: Scratch | None = None
) -> NDArray[np.float32]:
    """Return the node intimacy of every edge, float32 (n_edges,)."""
    place = scratch or Scratch()
    intimacy = place.array("intimacy", (len(graph.targets),), np.float32)
    kind = AGGREGATES.index(aggregate)
    _for_rows(
        graph.n_nodes,
        lambda start, stop: _measure_rows(start, stop, graph.offsets, graph.targets, kind, intimacy),
        place,
    )
    return intimacy


def _find_mutual(graph: EdgeGraph, scratch: Scratch) -> NDArray[np.bool_]:
    """Mark the edges i -> j for which j -> i is there too."""
    mutual = scratch.array("back", (len(graph.targets),), np.bool_)
    _for_rows(
        graph.n_nodes, lambda start, stop: _mark_mutual(start, stop, graph.offsets, graph.targets, mutual), scratch
    )
    return mutual


def _count_rows(scored: ScoredEdges, tau1: float | None, scratch: Scratch) -> NDArray[np.int64]:
    """Return where the surviving edges of each row begin, int64 (n + 1,)."""
    offsets = np.zeros(len(scored.neighbors) + 1, dtype=np.int64)
    threshold = _as_threshold(tau1)
    _for_rows(
        len(scored.neighbors),
        lambda start, stop: _count_surviving(start, stop, scored.neighbors, scored.scores, threshold, offsets[1:]),
        scratch,
    )
    return np.cumsum(offsets, out=offsets)


def _as_threshold(tau1: float | None) -> np.float32:
    return np.float32(-np.inf if tau1 is None else tau1)


def _open_edges(n_edges: int, scratch: Scratch, name: str) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Return arrays for the targets and the scores of edges."""
    return (
        scratch.array(f"{name}-targets", (n_edges,), np.int32),
        scratch.array(f"{name}-scores", (n_edges,), np.float32),
    )


def _for_rows(n: int, work: Callable[[int, int], None], scratch: Scratch) -> None:
    """Call work(start, stop) for all rows, in runs short enough to balance the threads; one run needs none."""
    if n <= _TILE_ROWS:
        work(0, n)
    else:
        run_tiles(n, _TILE_ROWS, work, "", after=scratch.relieve)


@njit(cache=True, nogil=True)
def _count_surviving(start, stop, neighbors, scores, threshold, counts):  # type: ignore[no-untyped-def]
    """Count the edges of each row with a score above the threshold."""
    for i in range(start, stop):
        for slot in range(neighbors.shape[1]):
            if neighbors[i, slot] >= 0 and scores[i, slot] > threshold:
                counts[i] += 1


@njit(cache=True, nogil=True)
def _fill_surviving(start, stop, neighbors, scores, threshold, offsets, targets, kept):  # type: ignore[no-untyped-def]
    """Write the edges of each row with a score above the threshold."""
    for i in range(start, stop):
        e = offsets[i]
        for slot in range(neighbors.shape[1]):
            if neighbors[i, slot] >= 0 and scores[i, slot] > threshold:
                targets[e] = neighbors[i, slot]
                kept[e] = scores[i, slot]
                e += 1


@njit(cache=True, nogil=True)
def _count_kept(start, stop, offsets, kept, counts):  # type: ignore[no-untyped-def]
    """Count the marked edges of each row."""
    for i in range(start, stop):
        for e in range(offsets[i], offsets[i + 1]):
            counts[i] += kept[e]


@njit(cache=True, nogil=True)
def _fill_kept(start, stop, offsets, targets, scores, kept, new_offsets, new_targets, new_scores):  # type: ignore[no-untyped-def]
    """Write the marked edges of each row."""
    for i in range(start, stop):
        new = new_offsets[i]
        for e in range(offsets[i], offsets[i + 1]):
            if kept[e]:
                new_targets[new] = targets[e]
                new_scores[new] = scores[e]
                new += 1


@njit(cache=True, nogil=True)
def _mark_mutual(start, stop, offsets, targets, mutual):  # type: ignore[no-untyped-def]
    """Mark the edges of some rows whose other end has an edge back."""
    for i in range(start, stop):
        for e in range(offsets[i], offsets[i + 1]):
            j = targets[e]
            found = False
            for back in range(offsets[j], offsets[j + 1]):  # without a break it runs in vector lanes
                found |= targets[back] == i
            mutual[e] = found


@njit(cache=True, nogil=True)
def _hash(key, factor, last):  # type: ignore[no-untyped-def]
    """Return a cell from 0 to `last`, a power of two less one; unsigned, or every use would be checked for its sign."""
    return ((np.uint64(key) * np.uint64(factor)) >> np.uint64(16)) & np.uint64(last)


@njit(cache=True, nogil=True)
def _place_apart(own, keys):  # type: ignore[no-untyped-def]
    """Put a row's targets into the table, each in the cell of its hash, under the first factor that keeps them apart.

    Return the factor, 0 if none does and the table is left empty.
    """
    last = len(keys) - 1
    factor = np.int64(0x9E3779B1)
    for _ in range(_N_FACTORS):
        n_placed = 0
        for j in own:
            cell = _hash(j, factor, last)
            if keys[cell] >= 0 and keys[cell] != j:
                break
            keys[cell] = j
            n_placed += 1
        if n_placed == len(own):
            return factor
        for s in range(n_placed):
            keys[_hash(own[s], factor, last)] = -1
        factor = (factor * 0x5DEECE66D + 11) & 0x7FFFFFFF
    return np.int64(0)


@njit(cache=True, nogil=True)
def _count_by_hash(own, offsets, targets, factor, keys, counts):  # type: ignore[no-untyped-def]
    """Count how often two steps lead from a row to each of its targets; a look-up is one comparison, no branch."""
    last = len(keys) - 1
    for m in own:
        for reached in targets[offsets[m] : offsets[m + 1]]:
            cell = _hash(reached, factor, last)
            counts[cell] += np.int32(keys[cell] == reached)


@njit(cache=True, nogil=True)
def _count_by_search(own, offsets, targets, wanted):  # type: ignore[no-untyped-def]
    """Count the steps that lead from a row's targets to the wanted node; slow, for rows that no hash keeps apart."""
    count = 0
    for m in own:
        for reached in targets[offsets[m] : offsets[m + 1]]:
            count += reached == wanted
    return np.int32(count)


@njit(cache=True, nogil=True)
def _measure_rows(start, stop, offsets, targets, aggregate, intimacy):  # type: ignore[no-untyped-def]
    """Write the intimacy of every edge of some rows; `aggregate` is the position in AGGREGATES.

    The row's targets are in a hash table that fits the nearest cache; every node that two steps lead to is looked up
    in it. Lists have at most k entries, so a row costs at most k² whoever is in it.
    """
    longest = 0
    for i in range(start, stop):
        longest = max(longest, offsets[i + 1] - offsets[i])
    n_cells = 64
    while n_cells < _CELLS_PER_KEY * longest:
        n_cells *= 2
    keys = np.full(n_cells, -1, dtype=np.int32)
    counts = np.zeros(n_cells, dtype=np.int32)
    for i in range(start, stop):
        own = targets[offsets[i] : offsets[i + 1]]
        factor = _place_apart(own, keys)
        if factor:
            _count_by_hash(own, offsets, targets, factor, keys, counts)
        for s in range(len(own)):
            cell = _hash(own[s], factor, n_cells - 1)
            common = counts[cell] if factor else _count_by_search(own, offsets, targets, own[s])
            n_2 = offsets[own[s] + 1] - offsets[own[s]]
            intimacy[offsets[i] + s] = _aggregate(common, len(own), n_2, aggregate)
        for j in own:
            cell = _hash(j, factor, n_cells - 1)
            keys[cell] = -1
            counts[cell] = 0


@njit(cache=True, nogil=True)
def _aggregate(common, n_1, n_2, aggregate):  # type: ignore[no-untyped-def]
    """Turn a count of common neighbours into the intimacy."""
    if n_2 == 0:
        return 0.0
    if aggregate == 0:
        return max(common / n_1, common / n_2)
    if aggregate == 1:
        return (common / n_1 + common / n_2) / 2
    if aggregate == 2:
        return min(common / n_1, common / n_2)
    return common / (n_1 + n_2 - common)
