"""Crowds: clusters of faces that are alike for another reason than being one person.

In: EdgeGraph whose scores are probabilities, and clusters of it. Out: which clusters are crowds.

Blurred pictures, profiles and masks are drawn to one another, whoever is on them, and become a cluster of hundreds of
faces of hundreds of people. From within it looks like a person. But each of its faces also lists somebody of its own,
and these are many different people, while the faces of a person with a look-alike, or of a person in several
parts, all point to the same few. So a crowd is a cluster

    whose faces lead to different people: the effective number of clusters where their best links elsewhere end, h =
    (sum c)² / sum c² with c faces to each, is `_HOMES` or more;
    and do so surely: the mean probability of these links, 0 for a face without any, is `_ELSEWHERE` or more where h =
    `_HOMES`, and less the more there are, as 1 / ln h: the lists of a large crowd are full of it, and leave room for
    somebody else to few; and this is so when links to other crowds are not counted, which keeps the parts of one large
    person, all pointing to each other, from being taken for crowds (parts of eight faces or more);
    and more surely than others: where pictures are noisy, everybody has a likely link or two to strangers. So what is
    asked for is at least `_TIMES_OTHERS` times the mean of the faces that are in no crowd. Without that, people with a
    hundred noisy pictures each (pins105 with noise, or in 48 dimensions) were taken for crowds, and up to three points
    of BCubed F lost with them.

Only a face's own list counts: who lists a face, good or blurred, is not up to it (with both directions lfw lost 5
points of pairwise F at k = 20, and other sets gained little).

The numbers were chosen on 70 synthetic worlds (seeds 900 to 969) and fifteen collections of `synth.py`, with the three
real sets in sight, none of which has a crowd; .3 or .5, and 4, in their place hardly matter. The last was chosen on
parts and guises of pins105, and checked on the others (`docs/benchmarks.md`).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit, prange
from numpy.typing import NDArray

from .prune import EdgeGraph

_ELSEWHERE = 0.4
_HOMES = 3.0
_TIMES_OTHERS = 10.0
_FEWEST_FACES = 8  # of a crowd: of fewer it cannot be told


def find_crowds(graph: EdgeGraph, labels: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Tell which clusters are crowds.

    Parameters
    ----------
    graph : EdgeGraph
        With n nodes and probabilities as scores.
    labels : int32 (n,)
        From 0 on, without gaps.

    Returns
    -------
    bool (clusters,)

    Examples
    --------
    Eight faces, each with one neighbour of its own:

    >>> offsets, targets = np.array([*range(9), *[8] * 8]), np.arange(8, 16, dtype=np.int32)
    >>> graph = EdgeGraph(offsets, targets, np.full(8, 0.9, np.float32))
    >>> find_crowds(graph, np.array([0] * 8 + list(range(1, 9)), np.int32)).tolist()[:3]
    [True, False, False]
    """
    none = np.zeros(int(labels.max(initial=-1)) + 1, dtype=np.bool_)
    crowds = _look_elsewhere(graph, labels, none).tell_crowds(_ELSEWHERE)
    if not crowds.any():
        return none
    ways = _look_elsewhere(graph, labels, crowds)
    crowds &= ways.tell_crowds(_ELSEWHERE)
    others = np.average(ways.surely[~crowds], weights=ways.sizes[~crowds]) if not crowds.all() else 0.0
    return crowds & ways.tell_crowds(max(_ELSEWHERE, _TIMES_OTHERS * float(others)))


class _Ways(NamedTuple):
    """Where the faces of each cluster lead."""

    sizes: NDArray[np.int64]
    surely: NDArray[np.float64]  # mean probability of their best links elsewhere, 0 for a face without any
    n_homes: NDArray[np.float64]  # effective number of clusters where these end

    def tell_crowds(self, least: float) -> NDArray[np.bool_]:
        """Tell which clusters lead to different places, and at least so surely, or as much less as there are more."""
        surely = self.surely * np.log(np.maximum(self.n_homes, 1.0)) >= least * math.log(_HOMES)
        return np.asarray((self.sizes >= _FEWEST_FACES) & (self.n_homes >= _HOMES) & surely)


def _look_elsewhere(graph: EdgeGraph, labels: NDArray[np.int32], barred: NDArray[np.bool_]) -> _Ways:
    """Follow the best link of each face to another cluster, those that are barred not counted."""
    n_clusters = len(barred)
    best, homes = _find_homes(graph.offsets, graph.targets, graph.scores, labels, barred)
    sizes = np.bincount(labels, minlength=n_clusters)
    led = homes >= 0
    ways, n_led = np.unique(labels[led].astype(np.int64) * n_clusters + homes[led], return_counts=True)
    own, counts = ways // max(n_clusters, 1), n_led.astype(np.float64)
    total = np.bincount(own, weights=counts, minlength=n_clusters)
    squares = np.bincount(own, weights=counts**2, minlength=n_clusters)
    surely = np.bincount(labels, weights=best, minlength=n_clusters) / np.maximum(sizes, 1)
    return _Ways(sizes, surely, total**2 / np.maximum(squares, 1.0))


@njit(cache=True, nogil=True, parallel=True)
def _find_homes(offsets, targets, scores, labels, barred):  # type: ignore[no-untyped-def]
    """Return the best score of each face's links to other clusters, 0 without any, and the cluster there, or -1."""
    n = len(labels)
    best, homes = np.zeros(n, dtype=np.float32), np.full(n, -1, dtype=np.int32)
    for i in prange(n):
        for e in range(offsets[i], offsets[i + 1]):
            other = labels[targets[e]]
            if other != labels[i] and not barred[other] and scores[e] > best[i]:
                best[i], homes[i] = scores[e], other
    return best, homes
