"""Flow graph: the undirected graph on which a random walk is described.

In: EdgeGraph. Out: FlowGraph, in which the weight of {i, j} is the SUM of all scores given in either direction, so that
a mutual pair of neighbours binds twice as much as a one-sided one; scores <= 0 and self loops are dropped. Aggregating
it makes a node of every module, with the weights between modules summed; a node's flow then includes the walks inside
it, which have no link.

Every row is summed by one thread in the order of its edges, so the bits do not depend on the number of threads. Memory:
8 bytes for each of the at most 2 E entries of the symmetric graph, as much again for half of them while it is built,
and a few arrays of n for each thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numba
import numpy as np
from numba import njit, prange
from numpy.typing import NDArray

from .prune import EdgeGraph

_WORTH_THREADS = 2_000_000  # entries
_LARGEST_INT32 = 2**31 - 1
_MAX_BLOCKS = 8  # each block of sources has a counter per node while the graph is turned around


@dataclass(frozen=True)
class FlowGraph:
    """A symmetric graph without self loops and repeats.

    Attributes
    ----------
    offsets : int64 (n + 1,)
        The links of node i are entries offsets[i] to offsets[i + 1].
    targets : int32 (entries,)
    weights : float32 or float64 (entries,)
    flows : float64 (n,)
        Weight of all walks through each node, those inside it included.
    """

    offsets: NDArray[np.int64]
    targets: NDArray[np.int32]
    weights: NDArray[np.floating[Any]]
    flows: NDArray[np.float64]

    @property
    def n_nodes(self) -> int:
        """Number of nodes."""
        return len(self.flows)

    @cached_property
    def by_flow(self) -> NDArray[np.int32]:
        """The nodes by rising flow, int32 (n,): the same order whatever their numbers, unless flows are equal."""
        return np.argsort(self.flows, kind="stable").astype(np.int32)

    def sum_links(self, labels: NDArray[np.int32], *, inside: bool) -> NDArray[np.float64]:
        """Sum for each node the weights of its links inside its module, or of those that leave it."""
        with enough_threads(len(self.targets)):
            return np.asarray(_sum_links(self.offsets, self.targets, self.weights, labels, inside))


def build_flow_graph(graph: EdgeGraph) -> FlowGraph:
    """Add up both directions of every edge.

    Examples
    --------
    >>> mutual = EdgeGraph(np.array([0, 1, 2]), np.array([1, 0], np.int32), np.ones(2, np.float32))
    >>> flow_graph = build_flow_graph(mutual)
    >>> flow_graph.targets, flow_graph.weights
    (array([1, 0], dtype=int32), array([2., 2.], dtype=float32))
    """
    with enough_threads(len(graph.targets)) as n_workers:
        incoming = _reverse_edges(graph, min(n_workers, _MAX_BLOCKS))
        edges = (graph.offsets, graph.targets, graph.scores)
        counts = _count_neighbors(*edges, incoming.offsets, incoming.targets, n_workers)
        offsets = accumulate(counts)
        # What is looked up all the time should be small enough for the cache.
        no_position = np.empty(0, dtype=np.int32 if offsets[-1] < _LARGEST_INT32 else np.int64)
        targets, weights = _merge_directions(
            *edges, incoming.offsets, incoming.targets, incoming.scores, offsets, no_position, n_workers
        )
        one_module = np.zeros(graph.n_nodes, dtype=np.int32)
        return FlowGraph(offsets, targets, weights, _sum_links(offsets, targets, weights, one_module, True))


def drop_links(graph: FlowGraph, marked: NDArray[np.bool_]) -> FlowGraph:
    """Return the graph without the links between two of the marked nodes, bool (n,).

    It is made of the memory of the given one, which is of no use afterwards.

    >>> mutual = EdgeGraph(np.array([0, 1, 2]), np.array([1, 0], np.int32), np.ones(2, np.float32))
    >>> drop_links(build_flow_graph(mutual), np.array([True, True])).flows
    array([0., 0.])
    """
    offsets = _close_up(graph.offsets, graph.targets, graph.weights, marked)
    targets, weights = graph.targets[: offsets[-1]], graph.weights[: offsets[-1]]
    with enough_threads(len(targets)):
        one_module = np.zeros(graph.n_nodes, dtype=np.int32)
        return FlowGraph(offsets, targets, weights, _sum_links(offsets, targets, weights, one_module, True))


def aggregate_modules(graph: FlowGraph, labels: NDArray[np.int32]) -> FlowGraph:
    """Make a node of every module; labels are dense."""
    n_modules = int(labels.max(initial=-1)) + 1
    starts = accumulate(np.bincount(labels, minlength=n_modules))
    members = _list_members(labels, starts)
    with enough_threads(len(graph.targets)) as n_workers:
        counts, outer = _count_links(graph.offsets, graph.targets, labels, starts, members, n_workers)
        offsets = accumulate(counts)
        targets, weights = _fill_links(
            graph.offsets, graph.targets, graph.weights, labels, starts, members, outer, offsets, n_workers
        )
    flows = np.bincount(labels, weights=graph.flows, minlength=n_modules).astype(np.float64)
    return FlowGraph(offsets, targets, weights, flows)


def _reverse_edges(graph: EdgeGraph, n_blocks: int) -> EdgeGraph:
    """Turn the usable edges around: those into each node, by rising source."""
    edges = (graph.offsets, graph.targets, graph.scores)
    cuts = np.searchsorted(graph.offsets, np.linspace(0, graph.offsets[-1], n_blocks + 1)[1:-1])
    blocks = np.concatenate(([0], cuts, [graph.n_nodes])).astype(np.int64)
    counts = _count_incoming(*edges, blocks)
    offsets = accumulate(counts.sum(axis=0))
    cursors = offsets[:-1] + np.cumsum(counts, axis=0) - counts  # where each block writes its edges into each node
    # Sources and scores side by side: edges are written all over the memory, where every line is a miss.
    entries = np.empty((int(offsets[-1]), 2), dtype=np.int32)
    _turn_around(*edges, blocks, cursors, entries, entries.view(np.float32))
    return EdgeGraph(offsets, entries[:, 0], entries.view(np.float32)[:, 1])


def accumulate(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Turn counts into offsets."""
    return np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))


@contextmanager
def enough_threads(n_entries: int) -> Iterator[int]:
    """Let kernels run on one thread where waking the others would take longer than the work."""
    n_threads = numba.get_num_threads()
    n_needed = n_threads if n_entries >= _WORTH_THREADS else 1
    numba.set_num_threads(n_needed)
    try:
        yield n_needed
    finally:
        numba.set_num_threads(n_threads)


@njit(cache=True, parallel=True)
def _count_incoming(offsets, targets, scores, blocks):  # type: ignore[no-untyped-def]
    """Count, for each block of sources, the usable edges into each node."""
    counts = np.zeros((len(blocks) - 1, len(offsets) - 1), dtype=np.int64)
    for block in prange(len(blocks) - 1):
        for i in range(blocks[block], blocks[block + 1]):
            for e in range(offsets[i], offsets[i + 1]):
                if scores[e] > 0 and targets[e] != i:
                    counts[block, targets[e]] += 1
    return counts


@njit(cache=True, parallel=True)
def _turn_around(offsets, targets, scores, blocks, cursors, sources, returned):  # type: ignore[no-untyped-def]
    """List the usable edges into each node by source, beside their scores; `cursors` is used up."""
    for block in prange(len(blocks) - 1):
        for i in range(blocks[block], blocks[block + 1]):
            for e in range(offsets[i], offsets[i + 1]):
                if scores[e] > 0 and targets[e] != i:
                    at = cursors[block, targets[e]]
                    cursors[block, targets[e]] = at + 1
                    sources[at, 0] = i
                    returned[at, 1] = scores[e]


@njit(cache=True, parallel=True)
def _count_neighbors(offsets, targets, scores, incoming, sources, n_workers):  # type: ignore[no-untyped-def]
    """Count the different nodes linked with each node in either direction."""
    n = len(offsets) - 1
    counts = np.zeros(n, dtype=np.int64)
    for worker in prange(n_workers):
        seen_by = np.full(n, -1, dtype=np.int32)
        for i in range(worker, n, n_workers):
            seen_by[i] = i
            for e in range(offsets[i], offsets[i + 1]):
                if scores[e] > 0 and seen_by[targets[e]] != i:
                    seen_by[targets[e]] = i
                    counts[i] += 1
            for e in range(incoming[i], incoming[i + 1]):
                if seen_by[sources[e]] != i:
                    seen_by[sources[e]] = i
                    counts[i] += 1
    return counts


@njit(cache=True, parallel=True)
def _merge_directions(offsets, targets, scores, incoming, sources, returned, rows, no_position, n_workers):  # type: ignore[no-untyped-def]
    """Write each node's neighbours with the sum of the scores of both directions.

    A worker's rows come in rising order, so a remembered position before the row's start is that of an older row.
    Positions are of the type of `no_position`.
    """
    n = len(offsets) - 1
    merged = np.empty(rows[-1], dtype=np.int32)
    weights = np.empty(rows[-1], dtype=np.float32)
    for worker in prange(n_workers):
        position = np.full(n, -1, dtype=no_position.dtype)
        for i in range(worker, n, n_workers):
            end = rows[i]
            for e in range(offsets[i], offsets[i + 1]):
                if scores[e] > 0 and targets[e] != i:
                    end = _add_link(targets[e], scores[e], rows[i], end, position, merged, weights)
            for e in range(incoming[i], incoming[i + 1]):
                end = _add_link(sources[e], returned[e], rows[i], end, position, merged, weights)
    return merged, weights


@njit(cache=True)
def _add_link(target, weight, start, end, position, targets, weights):  # type: ignore[no-untyped-def]
    """Add weight to the link to a target in the row from start to end, made at its end if new; return the end."""
    at = position[target]
    if at >= start:
        weights[at] += weight
        return end
    position[target] = end
    targets[end] = target
    weights[end] = weight
    return end + 1


@njit(cache=True)
def _close_up(offsets, targets, weights, marked):  # type: ignore[no-untyped-def]
    """Move up, in place, the links that are not between two marked nodes; return where those of each node begin."""
    rows = np.empty(len(offsets), dtype=np.int64)
    end = 0
    for i in range(len(marked)):
        rows[i] = end
        for e in range(offsets[i], offsets[i + 1]):
            if not (marked[i] and marked[targets[e]]):
                targets[end], weights[end] = targets[e], weights[e]
                end += 1
    rows[len(marked)] = end
    return rows


@njit(cache=True, parallel=True)
def _sum_links(offsets, targets, weights, labels, inside):  # type: ignore[no-untyped-def]
    """Sum the weights of each node's links that stay inside its module, or that leave it."""
    sums = np.zeros(len(offsets) - 1, dtype=np.float64)
    for i in prange(len(sums)):
        total = 0.0
        for e in range(offsets[i], offsets[i + 1]):
            if (labels[targets[e]] == labels[i]) == inside:
                total += weights[e]
        sums[i] = total
    return sums


@njit(cache=True)
def _list_members(labels, starts):  # type: ignore[no-untyped-def]
    """List the nodes of each module, in rising order."""
    cursors = starts.copy()
    members = np.empty(len(labels), dtype=np.int32)
    for i in range(len(labels)):
        members[cursors[labels[i]]] = i
        cursors[labels[i]] += 1
    return members


@njit(cache=True, parallel=True)
def _count_links(offsets, targets, labels, starts, members, n_workers):  # type: ignore[no-untyped-def]
    """Count the other modules each module is linked with, and mark the members that have such links."""
    n_modules = len(starts) - 1
    counts, outer = np.zeros(n_modules, dtype=np.int64), np.zeros(len(members), dtype=np.bool_)
    for worker in prange(n_workers):
        seen_by = np.full(n_modules, -1, dtype=np.int32)
        for module in range(worker, n_modules, n_workers):
            for slot in range(starts[module], starts[module + 1]):
                i = members[slot]
                for e in range(offsets[i], offsets[i + 1]):
                    other = labels[targets[e]]
                    if other != module:
                        outer[slot] = True
                        if seen_by[other] != module:
                            seen_by[other] = module
                            counts[module] += 1
    return counts, outer


@njit(cache=True, parallel=True)
def _fill_links(offsets, targets, weights, labels, starts, members, outer, rows, n_workers):  # type: ignore[no-untyped-def]
    """Write each module's links to other modules, weights summed; most members have none, and are passed over."""
    n_modules = len(starts) - 1
    linked = np.empty(rows[-1], dtype=np.int32)
    sums = np.empty(rows[-1], dtype=np.float64)
    for worker in prange(n_workers):
        position = np.full(n_modules, -1, dtype=np.int64)
        for module in range(worker, n_modules, n_workers):
            end = rows[module]
            for slot in range(starts[module], starts[module + 1]):
                if not outer[slot]:
                    continue
                i = members[slot]
                for e in range(offsets[i], offsets[i + 1]):
                    other = labels[targets[e]]
                    if other != module:
                        end = _add_link(other, weights[e], rows[module], end, position, linked, sums)
    return linked, sums
