"""Partition: from surviving edges to one label per face.

In: EdgeGraph. Out: int64 labels (n,), numbered by first appearance. Connected components are the paper's way. The map
equation (`mapequation.py`) forgives a few wrong edges; refined (`refined.py`), which needs scores that are
probabilities, also sees crowds and resolves the same however many people there are. Dynamic edge pruning is the "naive"
way the paper compares with (from CDP): components larger than `max_size` are cut again at a threshold raised towards 1,
until all are small enough.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .errors import InputError
from .mapequation import label_by_map_equation
from .prune import EdgeGraph
from .refined import label_refined
from .scratch import Scratch

PARTITIONS = ("components", "mapequation", "refined", "dynamic")
_BLOCK_ROWS = 1 << 18  # whose edges are gone through before mapped pages are let go of


def partition_graph(
    graph: EdgeGraph, *, partition: str = "components", seed: int = 0, scratch: Scratch | None = None
) -> NDArray[np.int64]:
    """Label the faces by the named way of reading clusters off the graph, whose arrays may be in a scratch."""
    if partition == "components":
        return label_components(graph, scratch=scratch)
    if partition == "mapequation":
        return label_by_map_equation(graph, seed=seed)
    if partition == "refined":
        return label_refined(graph, seed=seed)
    if partition == "dynamic":
        return label_by_dynamic_pruning(graph)
    raise InputError(f"partition ('{partition}') must be one of {', '.join(PARTITIONS)}")


def label_components(graph: EdgeGraph, *, scratch: Scratch | None = None) -> NDArray[np.int64]:
    """Label connected components, edges taken as undirected: union-find, which goes through the edges once.

    >>> graph = EdgeGraph(np.array([0, 1, 1, 1]), np.array([2], np.int32), np.array([1.0], np.float32))
    >>> label_components(graph).tolist()
    [0, 1, 0]
    """
    parent = np.arange(graph.n_nodes, dtype=np.int32)
    for start in range(0, graph.n_nodes, _BLOCK_ROWS):
        _join_edges(start, min(start + _BLOCK_ROWS, graph.n_nodes), graph.offsets, graph.targets, parent)
        if scratch is not None:
            scratch.relieve()
    return np.asarray(number_trees(parent))


def label_by_dynamic_pruning(
    graph: EdgeGraph, *, max_size: int = 300, start: float | None = None, step: float = 0.05
) -> NDArray[np.int64]:
    """Label components, cutting those above `max_size` again at a threshold raised towards 1.

    Parameters
    ----------
    graph : EdgeGraph
        With scores in [0, 1].
    max_size : int
        Largest cluster that is left as it is (CDP's published setting: 300).
    start : float, optional
        First threshold; the smallest score by default.
    step : float
        The threshold th becomes th + (1 - th) * step (published: .05) for what is too large.

    Returns
    -------
    int64 (n,)
    """
    if max_size < 1 or not 0 < step < 1:
        raise InputError(f"max_size ({max_size}) must be at least 1 and step ({step}) between 0 and 1")
    threshold = start if start is not None else float(graph.scores.min(initial=1.0))
    kept = graph.scores >= np.float32(threshold)
    labels = label_components(graph.keep(kept))
    while True:
        too_large = np.bincount(labels)[labels] > max_size
        if not too_large.any() or not kept.any():
            return labels
        threshold += (1.0 - threshold) * step
        sources = np.repeat(np.arange(graph.n_nodes), np.diff(graph.offsets))
        # Raising stops for good when no float32 lies between the threshold and 1: then equal scores of 1 are cut as
        # well.
        exhausted = np.float32(threshold) >= np.float32(1.0)
        kept &= ~too_large[sources] | ((graph.scores >= np.float32(threshold)) & (not exhausted))
        labels = label_components(graph.keep(kept))


@njit(cache=True)
def find_root(parent, node: int) -> int:  # type: ignore[no-untyped-def]
    """Return the root of a node's tree, halving the path on the way."""
    while parent[node] != node:
        parent[node] = parent[parent[node]]
        node = parent[node]
    return node


@njit(cache=True)
def _join_edges(start, stop, offsets, targets, parent):  # type: ignore[no-untyped-def]
    """Join the trees of both ends of the edges of some rows; the smallest id of a tree is its root."""
    for i in range(start, stop):
        for e in range(offsets[i], offsets[i + 1]):
            a, b = find_root(parent, i), find_root(parent, targets[e])
            if a < b:
                parent[b] = a
            elif b < a:
                parent[a] = b


@njit(cache=True)
def number_trees(parent) -> NDArray[np.int64]:  # type: ignore[no-untyped-def]
    """Give every tree the number of its first appearance, which is that of the root."""
    labels = np.empty(len(parent), dtype=np.int64)
    n_labels = 0
    for i in range(len(parent)):
        root = find_root(parent, i)
        if root == i:
            labels[i] = n_labels
            n_labels += 1
        else:
            labels[i] = labels[root]
    return labels
