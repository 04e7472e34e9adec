"""Affinity: the kNN lists as a row-normalised symmetric matrix (Sec. 3.2).

In: KnnGraph. Out: Affinity, the matrix  A~ = D~^-1 (A + I)  with  A_ij = max(s_ij, s_ji)  over the lists that contain
the pair, negative similarities left out. It is not written out: a row is the face itself, its own list as it stands in
the graph, and the faces that list it without being listed, by id, which alone are stored. Sums over a row run in that
order, so that they always give the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numba
import numpy as np
from numba import njit
from numpy.typing import NDArray

from .knn import KnnGraph
from .progress import Progress, silent
from .scratch import Scratch
from .tiles import run_tiles

_TILE_ROWS = 1024
_BLOCK_ROWS = 1 << 18  # gone through before mapped pages are let go of
# What i's list says of an entry i -> j:
_ABSENT, _MUTUAL, _ONE_SIDED, _RAISED = 0, 1, 2, 3  # no edge; j agrees; j does not list i; j lists i with a higher s


@dataclass(frozen=True)
class Affinity:
    """Rows of A + I: row i has 1 at i, `weights` at its `neighbors`, and `unlisted_weights` at `unlisted`.

    Entries of the lists with a neighbour of -1 or a weight that is not positive are none. The last two are those of
    row i at offsets[i] : offsets[i + 1]. A~ is every row divided by its sum.
    """

    neighbors: NDArray[np.int32]
    weights: NDArray[np.float32]
    offsets: NDArray[np.int64]
    unlisted: NDArray[np.int32]
    unlisted_weights: NDArray[np.float32]

    def tocsr(self) -> Any:  # noqa: ANN401
        """Return A~ as scipy.sparse.csr_array (n, n)."""
        from scipy.sparse import csr_array

        listed = (self.neighbors >= 0) & (self.weights > 0)
        starts = np.zeros(len(self.offsets), dtype=np.int64)
        np.cumsum(1 + listed.sum(axis=1) + np.diff(self.offsets), out=starts[1:])
        columns, weights = _write_rows(
            self.neighbors, self.weights, self.offsets, self.unlisted, self.unlisted_weights, starts
        )
        return csr_array((weights, columns, starts), shape=(len(starts) - 1, len(starts) - 1))


def build_affinity(
    graph: KnnGraph,
    *,
    order: NDArray[np.int32] | None = None,
    scratch: Scratch | None = None,
    progress: Progress = silent,
) -> Affinity:
    """Make A~ from the kNN lists.

    Parameters
    ----------
    graph : KnnGraph
        (n, k).
    order : int32 (n,), optional
        Rows in an order that is good for the cache; the result does not depend on it.
    scratch : Scratch, optional
        Where the arrays live; in memory by default.
    progress : callable
        Called as ``progress("affinity", done, total)``.

    Returns
    -------
    Affinity
        n rows; the lists are those of the graph, not copied unless two faces disagree about their similarity.

    Examples
    --------
    >>> graph = KnnGraph(np.array([[1], [0]], np.int32), np.array([[0.5], [0.5]], np.float32))
    >>> build_affinity(graph).tocsr().toarray().round(3)
    array([[0.667, 0.333],
           [0.333, 0.667]], dtype=float32)
    """
    neighbors, similarities = graph.neighbors, graph.similarities
    n = len(neighbors)
    rows = np.arange(n, dtype=np.int32) if order is None else order
    place = scratch or Scratch()
    kinds = place.array("kinds", neighbors.shape, np.uint8)

    def match_tile(start: int, stop: int) -> bool:
        return bool(_match_lists(rows[start:stop], neighbors, similarities, kinds))

    def classify_tile(start: int, stop: int) -> None:
        _classify_entries(start, stop, neighbors, similarities, kinds)

    run_tiles(n, _TILE_ROWS, classify_tile, "", after=place.relieve)
    disagreeing = run_tiles(n, _TILE_ROWS, match_tile, "affinity", progress, place.relieve)
    weights = similarities
    if any(disagreeing):
        weights = _raise_all(neighbors, similarities, kinds, place)
    return Affinity(neighbors, weights, *_transpose_one_sided(neighbors, similarities, kinds, place))


def _raise_all(
    neighbors: NDArray[np.int32], similarities: NDArray[np.float32], kinds: NDArray[np.uint8], scratch: Scratch
) -> NDArray[np.float32]:
    """Return the similarities with the higher of two where both ends list an edge."""
    weights = scratch.array("weights", similarities.shape, np.float32)

    def raise_tile(start: int, stop: int) -> None:
        weights[start:stop] = similarities[start:stop]
        _raise_weights(start, stop, neighbors, similarities, kinds, weights)

    run_tiles(len(neighbors), _TILE_ROWS, raise_tile, "", after=scratch.relieve)
    return weights


def _transpose_one_sided(
    neighbors: NDArray[np.int32], similarities: NDArray[np.float32], kinds: NDArray[np.uint8], scratch: Scratch
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.float32]]:
    """List for every face, by id, those that list it without being listed; each thread does a range of the faces."""
    n = len(neighbors)
    offsets = np.zeros(n + 1, dtype=np.int64)

    def count(rows: slice, first: int, last: int) -> None:
        _count_unlisted(first, last, neighbors[rows], kinds[rows], offsets[1:])

    _go_through_lists(n, count, scratch)
    np.cumsum(offsets, out=offsets)
    next_free = offsets[:-1].copy()
    unlisted = scratch.array("unlisted", (int(offsets[-1]),), np.int32)
    weights = scratch.array("unlisted-weights", (int(offsets[-1]),), np.float32)

    def fill(rows: slice, first: int, last: int) -> None:
        lists = (neighbors[rows], similarities[rows], kinds[rows])
        _fill_unlisted(first, last, rows.start, *lists, next_free, unlisted, weights)

    _go_through_lists(n, fill, scratch)
    return offsets, unlisted, weights


def _go_through_lists(n: int, work: Callable[[slice, int, int], None], scratch: Scratch) -> None:
    """Call work(rows, first, last) for all lists, a block at a time, with the range of faces of each thread."""
    n_faces = -(-n // numba.get_num_threads())
    for begin in range(0, n, _BLOCK_ROWS):
        rows = slice(begin, min(begin + _BLOCK_ROWS, n))
        run_tiles(n, n_faces, partial(work, rows), "", after=scratch.relieve)


@njit(cache=True, nogil=True)
def _find_slot(members, wanted):  # type: ignore[no-untyped-def]
    """Return where a row number stands in a list, -1 if nowhere; without a break it runs in vector lanes."""
    slot = np.int32(-1)
    for s in range(len(members)):
        slot = max(slot, np.int32(s) if members[s] == wanted else np.int32(-1))
    return slot


@njit(cache=True, nogil=True)
def _classify_entries(start, stop, neighbors, similarities, kinds):  # type: ignore[no-untyped-def]
    """Take every edge for one-sided, until the other end is found to list it too."""
    for i in range(start, stop):
        for slot in range(neighbors.shape[1]):
            is_edge = neighbors[i, slot] >= 0 and similarities[i, slot] > 0
            kinds[i, slot] = _ONE_SIDED if is_edge else _ABSENT


@njit(cache=True, nogil=True)
def _match_lists(rows, neighbors, similarities, kinds):  # type: ignore[no-untyped-def]
    """Mark the edges that both ends list, each pair from its smaller end; tell whether two similarities disagree."""
    disagree = False
    for i in rows:
        for slot in range(neighbors.shape[1]):
            j = neighbors[i, slot]
            if j <= i or kinds[i, slot] == _ABSENT:
                continue
            back = _find_slot(neighbors[j], i)
            if back < 0 or kinds[j, back] == _ABSENT:
                continue
            kinds[i, slot] = kinds[j, back] = _MUTUAL
            if similarities[j, back] > similarities[i, slot]:
                kinds[i, slot] = _RAISED
            elif similarities[j, back] < similarities[i, slot]:
                kinds[j, back] = _RAISED
            disagree |= similarities[j, back] != similarities[i, slot]
    return disagree


@njit(cache=True, nogil=True)
def _raise_weights(start, stop, neighbors, similarities, kinds, weights):  # type: ignore[no-untyped-def]
    """Put the higher similarity of both ends where the lists disagree."""
    for i in range(start, stop):
        for slot in range(neighbors.shape[1]):
            if kinds[i, slot] == _RAISED:
                j = neighbors[i, slot]
                weights[i, slot] = similarities[j, _find_slot(neighbors[j], i)]


@njit(cache=True, nogil=True)
def _count_unlisted(first, last, neighbors, kinds, counts):  # type: ignore[no-untyped-def]
    """Count the one-sided edges into each face of a range."""
    for i in range(len(neighbors)):
        for slot in range(neighbors.shape[1]):
            if kinds[i, slot] == _ONE_SIDED and first <= neighbors[i, slot] < last:
                counts[neighbors[i, slot]] += 1


@njit(cache=True, nogil=True)
def _fill_unlisted(first, last, begin, neighbors, similarities, kinds, next_free, unlisted, weights):  # type: ignore[no-untyped-def]
    """Write the one-sided edges of the lists of the rows from `begin` on into each face of a range."""
    for i in range(len(neighbors)):
        for slot in range(neighbors.shape[1]):
            j = neighbors[i, slot]
            if kinds[i, slot] == _ONE_SIDED and first <= j < last:
                unlisted[next_free[j]] = begin + i
                weights[next_free[j]] = similarities[i, slot]
                next_free[j] += 1


@njit(cache=True)
def _write_rows(neighbors, listed_weights, offsets, unlisted, unlisted_weights, starts):  # type: ignore[no-untyped-def]
    """Write the rows of A~ one after the other."""
    columns = np.empty(starts[-1], dtype=np.int32)
    weights = np.empty(starts[-1], dtype=np.float32)
    for i in range(len(neighbors)):
        e = starts[i]
        columns[e], weights[e] = i, 1
        for slot in range(neighbors.shape[1]):
            if neighbors[i, slot] >= 0 and listed_weights[i, slot] > 0:
                e += 1
                columns[e], weights[e] = neighbors[i, slot], listed_weights[i, slot]
        for u in range(offsets[i], offsets[i + 1]):
            e += 1
            columns[e], weights[e] = unlisted[u], unlisted_weights[u]
        weights[starts[i] : starts[i + 1]] /= weights[starts[i] : starts[i + 1]].sum()
    return columns, weights
