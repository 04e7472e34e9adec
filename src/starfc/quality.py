"""Quality: how far a clustering can be trusted, face by face, cluster by cluster and pair by pair of clusters.

In: labels, Features, ScoredEdges. Out:

- Groups: the faces of each cluster;
- Shapes: the sum s_c of each cluster's rows; cohesion (|s_c|² - m) / (m (m - 1)), the mean cosine of two of its m
  faces; closeness of a face, its cosine with the centre of the *others* of its cluster (with its own part in it, a
  face of a small cluster would always be near);
- confidence of a face, 1 / (1 + exp(-(own - rival) / .05)), own and rival being its best score within its cluster and
  beyond. A face that is alone has nobody within, so tau_1, which nobody passed, stands for own;
- ClusterPairs: clusters that a face of one has in its list of neighbours of the other. link = s_a.s_b / (m_a m_b) is
  the mean cosine across, and the same for any order of merging (average linkage).

Two sequential passes over the features and one over the lists; a pair of clusters that no list mentions costs nothing.
The trade-off: a wrong merge of two people who are each compact gives every face a high confidence; cohesion tells it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .errors import InputError
from .features import Features
from .progress import Progress, silent
from .score import ScoredEdges
from .workers import start_workers

MARGIN_SCALE = 0.05
_TILE_ROWS = 8192
_RIVALS = 3  # clusters beyond its own that a face may name


@dataclass(frozen=True)
class Groups:
    """The faces of each cluster.

    Attributes
    ----------
    codes : int32 (n,)
        Cluster of each face, 0 to n_clusters - 1.
    ids : int64 (n_clusters,)
        Label of each cluster in the file, ascending; faces labelled -1 are clusters of their own, after all others.
    order : int32 (n,)
        Faces, those of the first cluster first, each cluster's in row order.
    offsets : int64 (n_clusters + 1,)
        Cluster c is order[offsets[c] : offsets[c + 1]].
    """

    codes: NDArray[np.int32]
    ids: NDArray[np.int64]
    order: NDArray[np.int32]
    offsets: NDArray[np.int64]

    @property
    def n_clusters(self) -> int:
        """Number of clusters, faces that are alone included."""
        return len(self.ids)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Faces per cluster."""
        return np.diff(self.offsets)

    def members(self, cluster: int) -> NDArray[np.int32]:
        """Return the faces of a cluster in row order."""
        return self.order[self.offsets[cluster] : self.offsets[cluster + 1]]


@dataclass(frozen=True)
class Shapes:
    """Where clusters lie and how compact they are.

    Attributes
    ----------
    sums : float32 (n_clusters, d)
        Sum of the unit rows of each cluster; its direction is the centre.
    cohesion : float32 (n_clusters,)
        Mean cosine of two faces of the cluster; NaN for a face alone.
    closeness : float32 (n,)
        Cosine of each face with the centre of the other faces of its cluster; 1 for a face alone.
    """

    sums: NDArray[np.float32]
    cohesion: NDArray[np.float32]
    closeness: NDArray[np.float32]


@dataclass(frozen=True)
class ClusterPairs:
    """Pairs of clusters that know each other, first < second, ordered by (first, second).

    Attributes
    ----------
    first, second : int32 (n_pairs,)
    link : float32 (n_pairs,)
        Mean cosine between the faces of the one and of the other.
    strongest : float32 (n_pairs,)
        Best score of an edge between them.
    n_edges : int32 (n_pairs,)
        How many faces name the other cluster among their nearest.
    """

    first: NDArray[np.int32]
    second: NDArray[np.int32]
    link: NDArray[np.float32]
    strongest: NDArray[np.float32]
    n_edges: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.first)

    def take(self, rows: NDArray[Any]) -> ClusterPairs:
        """Return the given pairs, in the given order."""
        return ClusterPairs(
            self.first[rows], self.second[rows], self.link[rows], self.strongest[rows], self.n_edges[rows]
        )


def group_faces(labels: NDArray[np.int64]) -> Groups:
    """Gather the faces of each cluster; a face labelled -1 is a cluster of its own.

    >>> groups = group_faces(np.array([7, 2, 7, -1]))
    >>> groups.codes, groups.ids
    (array([1, 0, 1, 2], dtype=int32), array([ 2,  7, -1]))
    >>> groups.members(1)
    array([0, 2], dtype=int32)
    """
    alone = labels < 0
    ids, codes = np.unique(labels[~alone], return_inverse=True)
    dense = np.empty(len(labels), dtype=np.int32)
    dense[~alone] = codes
    dense[alone] = len(ids) + np.arange(int(alone.sum()))
    sizes = np.bincount(dense, minlength=len(ids) + int(alone.sum()))
    return Groups(
        dense,
        np.concatenate((ids, np.full(int(alone.sum()), -1, dtype=np.int64))),
        np.argsort(dense, kind="stable").astype(np.int32),
        np.concatenate(([0], np.cumsum(sizes))),
    )


def measure_shapes(features: Features, groups: Groups, *, progress: Progress = silent) -> Shapes:
    """Sum up every cluster and compare each face with the rest of its own.

    Parameters
    ----------
    features : Features
        (n, d).
    groups : Groups
        Of the same n faces.

    Returns
    -------
    Shapes

    Examples
    --------
    >>> faces = Features(np.array([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]]))
    >>> shapes = measure_shapes(faces, group_faces(np.array([0, 0, 1])))
    >>> shapes.cohesion.round(3), shapes.closeness.round(3)
    (array([0.6, nan], dtype=float32), array([0.6, 0.6, 1. ], dtype=float32))
    """
    if len(features) != len(groups.codes):
        raise InputError(
            f"{features.source} has {len(features)} rows for {len(groups.codes)} labels; give the clustered features"
        )
    sums = np.zeros((groups.n_clusters, features.dim), dtype=np.float32)
    for start, stop in features.blocks():
        add_rows(features.read(start, stop), groups.codes[start:stop], sums)
        progress("centres", stop, 2 * len(features))
    squares = np.einsum("cd,cd->c", sums, sums)
    closeness = np.empty(len(features), dtype=np.float32)
    for start, stop in features.blocks():
        compare_rows(features.read(start, stop), groups.codes[start:stop], sums, squares, closeness[start:stop])
        progress("centres", len(features) + stop, 2 * len(features))
    closeness[groups.sizes[groups.codes] == 1] = 1
    return Shapes(sums, measure_cohesion(squares, groups.sizes), closeness)


def measure_confidence(scored: ScoredEdges, groups: Groups, *, tau1: float) -> NDArray[np.float32]:
    """Say for each face how much better it fits its own cluster than any other, float32 (n,) in 0 to 1.

    >>> scored = ScoredEdges(np.array([[1, 2], [0, 2], [1, 0]], np.int32),
    ...                      np.array([[0.8, 0.4], [0.8, 0.6], [0.6, 0.4]], np.float32))
    >>> measure_confidence(scored, group_faces(np.array([0, 0, 1])), tau1=0.5).round(2)
    array([1.  , 0.98, 0.12], dtype=float32)
    """
    n = len(scored.neighbors)
    margins = np.empty(n, dtype=np.float32)
    sizes = groups.sizes

    def measure_tile(start: int, stop: int) -> None:
        _measure_margins(start, stop, scored.neighbors, scored.scores, groups.codes, sizes, np.float32(tau1), margins)

    _for_each_tile(n, measure_tile)
    return np.asarray(1 / (1 + np.exp(-margins / np.float32(MARGIN_SCALE))), dtype=np.float32)


def average_by_cluster(values: NDArray[np.float32], groups: Groups) -> NDArray[np.float32]:
    """Return the mean of a number per face over each cluster.

    >>> average_by_cluster(np.array([1.0, 0.0, 0.5], np.float32), group_faces(np.array([0, 0, 3])))
    array([0.5, 0.5], dtype=float32)
    """
    totals = np.bincount(groups.codes, weights=values, minlength=groups.n_clusters)
    return np.asarray(totals / groups.sizes, dtype=np.float32)


def find_pairs(
    scored: ScoredEdges, groups: Groups, sums: NDArray[np.float32], *, floor: float = -np.inf
) -> ClusterPairs:
    """Find the pairs of clusters that faces name among their nearest beyond their own cluster.

    Parameters
    ----------
    scored : ScoredEdges
        (n, k).
    groups : Groups
        Of the same n faces.
    sums : float32 (n_clusters, d)
        As in Shapes.
    floor : float
        Edges with a lower score do not count.

    Returns
    -------
    ClusterPairs

    Examples
    --------
    >>> scored = ScoredEdges(np.array([[1], [0], [1]], np.int32), np.array([[0.8], [0.8], [0.6]], np.float32))
    >>> groups = group_faces(np.array([0, 0, 1]))
    >>> sums = np.array([[1.8, 0.6], [0.0, 1.0]], np.float32)
    >>> pairs = find_pairs(scored, groups, sums)
    >>> pairs.first.tolist(), pairs.second.tolist(), pairs.link.round(2).tolist()
    ([0], [1], [0.30000001192092896])
    """
    keys, best = _list_rivals(scored, groups, floor)
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    starts = np.flatnonzero(np.diff(keys, prepend=-1))
    first, second = np.divmod(keys[starts], groups.n_clusters)
    counts = np.diff(np.append(starts, len(order)))
    strongest = np.maximum.reduceat(best[order], starts) if len(starts) else np.empty(0, np.float32)
    del keys, order, best, starts  # there are millions of them
    link = measure_links(first, second, sums, groups.sizes)
    return ClusterPairs(first.astype(np.int32), second.astype(np.int32), link, strongest, counts.astype(np.int32))


def _list_rivals(scored: ScoredEdges, groups: Groups, floor: float) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """List the pairs of clusters that faces name, as one number each, with the best score."""
    n = len(scored.neighbors)
    rivals = np.empty((n, _RIVALS), dtype=np.int32)
    best = np.empty((n, _RIVALS), dtype=np.float32)

    def find_tile(start: int, stop: int) -> None:
        _find_rivals(start, stop, scored.neighbors, scored.scores, groups.codes, np.float32(floor), rivals, best)

    _for_each_tile(n, find_tile)
    named = rivals >= 0
    own = np.broadcast_to(groups.codes[:, None], rivals.shape)[named].astype(np.int64)
    other = rivals[named].astype(np.int64)
    return np.minimum(own, other) * groups.n_clusters + np.maximum(own, other), best[named]


def measure_links(
    first: NDArray[np.int64], second: NDArray[np.int64], sums: NDArray[np.float32], sizes: NDArray[np.int64]
) -> NDArray[np.float32]:
    """Return the mean cosine between the faces of two clusters, for each of the given pairs.

    >>> measure_links(np.array([0]), np.array([1]), np.array([[2.0, 0.0], [0.6, 0.8]], np.float32), np.array([2, 1]))
    array([0.6], dtype=float32)
    """
    out = np.empty(len(first), dtype=np.float32)
    _dot_pairs(np.asarray(first, np.int64), np.asarray(second, np.int64), sums, out)
    return np.asarray(out / (sizes[first] * sizes[second]), dtype=np.float32)


def find_mixed(groups: Groups, truth: NDArray[np.int64], *, most: int = 10) -> list[tuple[int, int]]:
    """Return the clusters that hold most pairs of different people, with how many.

    >>> find_mixed(group_faces(np.array([0, 0, 0, 1])), np.array([5, 5, 6, 6]))
    [(0, 2)]
    """
    return _count_split_pairs(groups.codes.astype(np.int64), truth, most)


def find_split(groups: Groups, truth: NDArray[np.int64], *, most: int = 10) -> list[tuple[int, int]]:
    """Return the people with most pairs of faces in different clusters, with how many.

    >>> find_split(group_faces(np.array([0, 0, 0, 1])), np.array([5, 5, 6, 6]))
    [(6, 1)]
    """
    return _count_split_pairs(truth, groups.codes.astype(np.int64), most)


def _count_split_pairs(outer: NDArray[np.int64], inner: NDArray[np.int64], most: int) -> list[tuple[int, int]]:
    """Count, for each outer label, its pairs of faces with different inner labels; unlabelled faces do not count."""
    known = (outer >= 0) & (inner >= 0)
    values, codes = np.unique(outer[known], return_inverse=True)
    sizes = np.bincount(codes, minlength=len(values)).astype(np.int64)
    _, first, counts = np.unique(np.column_stack((codes, inner[known])), axis=0, return_index=True, return_counts=True)
    same = np.bincount(codes[first], weights=(counts * (counts - 1) // 2), minlength=len(values)).astype(np.int64)
    wrong = sizes * (sizes - 1) // 2 - same
    worst = np.argsort(-wrong, kind="stable")[:most]
    return [(int(values[place]), int(wrong[place])) for place in worst if wrong[place]]


def measure_cohesion(squares: NDArray[np.float32], sizes: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return the mean cosine of two members; NaN where there is one."""
    pairs = sizes * (sizes - 1.0)
    cohesion = np.full(len(sizes), np.nan, dtype=np.float32)
    np.divide(squares - sizes, pairs, out=cohesion, where=pairs > 0, casting="unsafe")
    return cohesion


def _for_each_tile(n: int, work: Callable[[int, int], None]) -> None:
    """Call work(start, stop) for the fixed tiles of n rows."""
    with start_workers() as pool:
        list(pool.map(lambda start: work(start, min(start + _TILE_ROWS, n)), range(0, n, _TILE_ROWS)))


@njit(cache=True, nogil=True)
def add_rows(rows, codes, sums):  # type: ignore[no-untyped-def]  # noqa: ANN201
    """Add each row to the sum of its cluster, in row order."""
    for i in range(len(rows)):
        for t in range(rows.shape[1]):
            sums[codes[i], t] += rows[i, t]


@njit(cache=True, nogil=True)
def compare_rows(rows, codes, sums, squares, out):  # type: ignore[no-untyped-def]  # noqa: ANN201
    """Cosine of r with s - r: (s.r - 1) / sqrt(|s|² - 2 s.r + 1); 0 where the others cancel out."""
    for i in range(len(rows)):
        dot = np.float32(0)
        for t in range(rows.shape[1]):
            dot += rows[i, t] * sums[codes[i], t]
        rest = squares[codes[i]] - 2 * dot + 1
        out[i] = min(max((dot - 1) / np.sqrt(rest), -1), 1) if rest > 1e-6 else 0


@njit(cache=True, nogil=True)
def _measure_margins(start, stop, neighbors, scores, codes, sizes, tau1, margins):  # type: ignore[no-untyped-def]
    """Best score within the face's own cluster minus the best beyond, for the rows of a tile.

    Where a list holds nobody of one side, that side is at most as good as the worst of the list; others also at most
    as good as tau_1, else they would probably be in the cluster.
    """
    for i in range(start, stop):
        own, rival, worst = np.float32(-np.inf), np.float32(-np.inf), np.float32(np.inf)
        for slot in range(neighbors.shape[1]):
            j = neighbors[i, slot]
            if j < 0:
                continue
            score = scores[i, slot]
            worst = min(worst, score)
            if codes[j] == codes[i]:
                own = max(own, score)
            else:
                rival = max(rival, score)
        if sizes[codes[i]] == 1:
            own = tau1
        if worst == np.inf:  # no neighbours at all: nothing is known
            margins[i] = 0
            continue
        margins[i] = (own if own > -np.inf else worst) - (rival if rival > -np.inf else min(worst, tau1))


@njit(cache=True, nogil=True)
def _find_rivals(start, stop, neighbors, scores, codes, floor, rivals, best):  # type: ignore[no-untyped-def]
    """Find the clusters beyond its own that a face is nearest to, with its best score for each; -1 where fewer."""
    n_rivals = rivals.shape[1]
    for i in range(start, stop):
        rivals[i] = -1
        best[i] = -np.inf
        for slot in range(neighbors.shape[1]):
            j = neighbors[i, slot]
            if j < 0 or codes[j] == codes[i] or scores[i, slot] <= floor:
                continue
            place = n_rivals - 1  # where it is listed already, or else the last place
            for r in range(n_rivals):
                if rivals[i, r] == codes[j]:
                    place = r
                    break
            if scores[i, slot] <= best[i, place]:
                continue
            while place > 0 and best[i, place - 1] < scores[i, slot]:
                rivals[i, place] = rivals[i, place - 1]
                best[i, place] = best[i, place - 1]
                place -= 1
            rivals[i, place] = codes[j]
            best[i, place] = scores[i, slot]


@njit(cache=True, nogil=True)
def _dot_pairs(first, second, sums, out):  # type: ignore[no-untyped-def]
    """Dot product of the sums of each pair."""
    for p in range(len(first)):
        total = np.float32(0)
        for t in range(sums.shape[1]):
            total += sums[first[p], t] * sums[second[p], t]
        out[p] = total
