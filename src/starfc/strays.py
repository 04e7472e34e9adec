"""Strays: faces that were left over in a collection where nearly nobody is alone.

In: labels, and the scored edges that led there. Out: labels in which strays have joined the people around them.

How likely it is that a face without a sure link is somebody seen once depends on the collection. Where thousands of
people have one face it nearly always is; where a hundred people have a hundred faces each, the two in a thousand faces
that nobody claims are blurred pictures of the hundred. The share of faces left over tells the two apart: 43 % of lfw,
14 % of fiw_a, .2 % of pins105, where nine in ten of those left over belong to whom most of their neighbours belong to.

1. Faces in clusters of one or two are strays.
2. So are those of a mixed group: one `_SMALL` times smaller than the cluster of the median face, whose faces are at
   home with two or more others. That is no person, but blurred pictures of several. A person with few faces may have
   one look-alike.
3. Where no more than `_FEW` of the faces are strays, each goes home: to the cluster that has half or more of its
   nearest neighbours, those left out that are strays themselves, if any link to it is not hopeless.

Chosen on pins105 and parts of it, lfw, fiw_a, and worlds from 900 to 969 and 20,000 to 20,149 (`docs/benchmarks.md`).
No more can be lost by it than the strays there are.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .score import ScoredEdges

_LARGEST = 2  # faces of a cluster whose faces are strays
_SMALL = 24  # times smaller than the cluster of the median face are groups that may be mixed
_FEW = 0.02  # share of strays up to which they are taken for people who are there more often
_LOOKED_AT = 20  # nearest neighbours of a stray that are not strays themselves
_HOPELESS = 0.05  # P(same person) of the best link to a cluster, below which a stray stays alone


def place_strays(scored: ScoredEdges, labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Let strays join whom most of their neighbours belong to, where strays are few.

    Parameters
    ----------
    scored : ScoredEdges
        (n, k), with probabilities, nearest neighbours first.
    labels : int64 (n,)
        Clusters, from 0 on.

    Returns
    -------
    int64 (n,)
        Numbered by first appearance.

    Examples
    --------
    >>> neighbors = (np.arange(100)[:, None] + np.arange(1, 6)) % 100
    >>> scored = ScoredEdges(neighbors.astype(np.int32), np.full((100, 5), 0.5, np.float32))
    >>> labels = np.repeat([0, 1, 2], [50, 1, 49])
    >>> place_strays(scored, labels)[49:53].tolist()
    [0, 1, 1, 1]
    """
    if len(labels) == 0:
        return labels
    sizes = np.bincount(labels)[labels]
    is_stray = sizes <= _LARGEST
    if np.count_nonzero(is_stray) <= _FEW * len(labels):
        is_stray |= _mark_mixed(scored, labels, sizes)
    strays = np.flatnonzero(is_stray)
    if not 0 < len(strays) <= _FEW * len(labels):
        return labels
    placed = labels.copy()
    placed[strays] = _find_homes(strays, scored.neighbors, scored.scores, labels, is_stray)
    _, firsts, codes = np.unique(placed, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(firsts))[codes]


def _mark_mixed(scored: ScoredEdges, labels: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Mark the faces of small groups that are at home with two or more others, bool (n,)."""
    is_small = sizes <= max(_LARGEST, float(np.median(sizes)) / _SMALL)
    grouped = np.flatnonzero(is_small & (sizes > _LARGEST))
    homes = _find_homes(grouped, scored.neighbors, scored.scores, labels, is_small)
    leads_away = homes != labels[grouped]
    ways = np.unique(np.column_stack((labels[grouped], homes))[leads_away], axis=0)
    n_ways = np.bincount(ways[:, 0], minlength=int(labels.max()) + 1)
    return n_ways[labels] > 1


@njit(cache=True)
def _find_homes(rows, neighbors, scores, labels, is_stray):  # type: ignore[no-untyped-def]
    """Return the cluster that half of each row's neighbours belong to, the first of two, or its own, int64 (s,)."""
    homes = labels[rows]
    clusters, links = np.empty(_LOOKED_AT, dtype=np.int64), np.empty(_LOOKED_AT, dtype=np.float32)
    for i in range(len(rows)):
        n_listed = 0
        for j in range(neighbors.shape[1]):
            other = neighbors[rows[i], j]
            if other >= 0 and not is_stray[other]:
                clusters[n_listed], links[n_listed] = labels[other], scores[rows[i], j]
                n_listed += 1
                if n_listed == _LOOKED_AT:
                    break
        for j in range(n_listed):
            if links[j] >= _HOPELESS and 2 * np.sum(clusters[:n_listed] == clusters[j]) >= n_listed:
                homes[i] = clusters[j]
                break
    return homes
