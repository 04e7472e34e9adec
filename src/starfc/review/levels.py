"""Levels: the clusters at any strictness, from the stored scores and without clustering again.

In: the edges above a floor, the clusters as they were read off at tau_1. Out: clusters at a level t. The clusters of
all levels are nested, so moving the slider a little changes little, and at tau_1 they are the given ones:

- t > tau_1: a cluster falls apart where no chain of its own edges with a score above t holds it together;
- t < tau_1: two clusters are one if three quarters of the faces of the smaller have an edge above t to the larger.
  One wrong edge joins nobody, which is what the map equation is used for in the first place.

One pass over the edges at worst, where the map equation at t takes many and gives much the same (docs/benchmarks.md).
Where clusters are connected components, a level is exactly that: the components of the edges above t, pruned by node
intimacy where that was used.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ..partition import find_root, label_components, number_trees
from ..pipeline import Settings
from ..prune import EdgeGraph, measure_intimacy
from ..quality import group_faces

_SHARE = 0.75  # of the smaller cluster's faces that must know the larger


class Levels:
    """The clusters of every strictness.

    >>> graph = EdgeGraph(np.array([0, 1, 2, 3]), np.array([1, 0, 1], np.int32), np.array([.8, .8, .4], np.float32))
    >>> levels = Levels(graph, np.array([0, 0, 1]), Settings(1, "relational", 0.5, None, partition="mapequation"))
    >>> [levels.cut(t).tolist() for t in (0.9, 0.5, 0.3)]
    [[0, 1, 2], [0, 0, 1], [0, 0, 0]]
    """

    def __init__(self, graph: EdgeGraph, labels: NDArray[np.int64], settings: Settings) -> None:
        self._graph, self._settings = graph, settings
        self._tau1 = -1.0 if settings.tau1 is None else settings.tau1
        self._components = settings.partition == "components"
        self._refined = self._components and (settings.tau2 is not None or settings.edges == "mutual")
        self._codes = np.unique(labels, return_inverse=True)[1].astype(np.int32)
        self._links: tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float32]] | None = None

    def cut(self, level: float) -> NDArray[np.int64]:
        """Return the cluster of each face at a level, int64 (n,)."""
        if level == self._tau1:
            return self._codes.astype(np.int64)
        if self._refined:
            return label_components(_prune_again(self._graph, self._settings, level))
        if self._components or level > self._tau1:
            parent = np.arange(self._graph.n_nodes, dtype=np.int32)
            _join_faces(*self._edges, self._owners, np.float32(level), np.float32(np.inf), parent)
            return _number(parent).astype(np.int64)
        first, second, strength = self.find_links()
        parent = np.arange(int(self._codes.max(initial=-1)) + 1, dtype=np.int32)
        _join_clusters(first, second, strength, np.float32(level), parent)
        return _number(parent)[self._codes].astype(np.int64)

    def count(self, levels: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return how many clusters there are at each of the levels, which must ascend.

        >>> graph = EdgeGraph(np.array([0, 1, 1]), np.array([1], np.int32), np.array([.7], np.float32))
        >>> levels = Levels(graph, np.array([0, 0]), Settings(1, "relational", 0.5, None, partition="mapequation"))
        >>> levels.count(np.array([0.5, 0.6, 0.9])).tolist()
        [1, 1, 2]
        """
        counts = np.empty(len(levels), dtype=np.int64)
        n_left = self._graph.n_nodes
        parent = np.arange(n_left, dtype=np.int32)
        upper = np.float32(np.inf)
        for place in range(len(levels) - 1, -1, -1):  # from the strictest on, each edge is looked at once
            level = float(levels[place])
            if self._refined or level == self._tau1 or (level < self._tau1 and not self._components):
                counts[place] = int(self.cut(level).max(initial=-1)) + 1
                continue
            n_left -= _join_faces(*self._edges, self._owners, np.float32(level), upper, parent)
            counts[place], upper = n_left, np.float32(level)
        return counts

    def find_links(self) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float32]]:
        """Return the pairs of clusters that could be one, and the level below which they are."""
        if self._links is None:
            groups = group_faces(self._codes.astype(np.int64))
            self._links = _link_clusters(*self._edges, self._codes, groups.order, groups.offsets, _SHARE)
        return self._links

    @property
    def _edges(self) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.float32]]:
        return self._graph.offsets, self._graph.targets, self._graph.scores

    @property
    def _owners(self) -> NDArray[np.int32]:
        """Clusters beyond which edges do not count; all faces are of one where components may grow."""
        return np.zeros_like(self._codes) if self._components else self._codes


def _prune_again(graph: EdgeGraph, settings: Settings, level: float) -> EdgeGraph:
    """Prune edges that have passed a lower threshold already."""
    kept = graph.keep(graph.scores > np.float32(level))
    if settings.edges == "mutual":
        sources = np.repeat(np.arange(kept.n_nodes, dtype=np.int64), np.diff(kept.offsets))
        there, back = sources * kept.n_nodes + kept.targets, kept.targets.astype(np.int64) * kept.n_nodes + sources
        kept = kept.keep(np.isin(there, back))
    if settings.tau2 is None:
        return kept
    return kept.keep(measure_intimacy(kept, aggregate=settings.aggregate) > np.float32(settings.tau2))


def _number(parent: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return the number of each node's tree, by first appearance."""
    return np.asarray(number_trees(parent), dtype=np.int32)


@njit(cache=True, nogil=True)
def _unite(parent, x, y):  # type: ignore[no-untyped-def]
    """Join two trees under the smaller root; tell whether they were two."""
    a, b = find_root(parent, x), find_root(parent, y)
    if a == b:
        return False
    parent[max(a, b)] = min(a, b)
    return True


@njit(cache=True, nogil=True)
def _join_faces(offsets, targets, scores, owners, above, upto, parent):  # type: ignore[no-untyped-def]
    """Join the ends of the edges with above < score <= upto within an owner; return how many joins there were."""
    n_joined = 0
    for i in range(len(owners)):
        for e in range(offsets[i], offsets[i + 1]):
            j = targets[e]
            if scores[e] > above and scores[e] <= upto and owners[i] == owners[j]:
                n_joined += _unite(parent, i, j)
    return n_joined


@njit(cache=True, nogil=True)
def _join_clusters(first, second, strength, above, parent):  # type: ignore[no-untyped-def]
    """Join the pairs of clusters that are stronger than the level."""
    for p in range(len(first)):
        if strength[p] > above:
            _unite(parent, first[p], second[p])


@njit(cache=True, nogil=True)
def _link_clusters(offsets, targets, scores, codes, order, starts, share):  # type: ignore[no-untyped-def]
    """Find for each cluster the larger ones that enough of its faces know: the level that so many of them reach."""
    n_clusters = len(starts) - 1
    best = np.full(n_clusters, -np.inf, dtype=np.float32)  # of one face, for each cluster it knows
    first, second = np.empty(1024, dtype=np.int32), np.empty(1024, dtype=np.int32)
    strength = np.empty(1024, dtype=np.float32)
    n_found = 0
    for cluster in range(n_clusters):
        members = order[starts[cluster] : starts[cluster + 1]]
        others, reached = _list_known(members, cluster, offsets, targets, scores, codes, starts, best)
        needed = int(np.ceil(share * len(members)))
        ranked = np.argsort(others, kind="mergesort")
        begin = 0
        while begin < len(ranked):
            end = begin
            while end < len(ranked) and others[ranked[end]] == others[ranked[begin]]:
                end += 1
            if end - begin >= needed:
                if n_found == len(first):
                    first, second = np.append(first, np.empty_like(first)), np.append(second, np.empty_like(second))
                    strength = np.append(strength, np.empty_like(strength))
                first[n_found], second[n_found] = cluster, others[ranked[begin]]
                strength[n_found] = np.sort(reached[ranked[begin:end]])[end - begin - needed]
                n_found += 1
            begin = end
    return first[:n_found].copy(), second[:n_found].copy(), strength[:n_found].copy()


@njit(cache=True, nogil=True)
def _list_known(members, cluster, offsets, targets, scores, codes, starts, best):  # type: ignore[no-untyped-def]
    """List which larger clusters each member has edges to, with its best score for each; `best` is left as it was."""
    size = len(members)
    room = 0
    for i in members:
        room += offsets[i + 1] - offsets[i]
    others, reached = np.empty(room, dtype=np.int32), np.empty(room, dtype=np.float32)
    n_known = 0
    for i in members:
        begin = n_known
        for e in range(offsets[i], offsets[i + 1]):
            other = codes[targets[e]]
            theirs = starts[other + 1] - starts[other]
            if other == cluster or theirs < size or (theirs == size and other < cluster):
                continue
            if best[other] == -np.inf:
                others[n_known] = other
                n_known += 1
            best[other] = max(best[other], scores[e])
        for place in range(begin, n_known):
            reached[place] = best[others[place]]
            best[others[place]] = -np.inf
    return others[:n_known], reached[:n_known]
