"""Map equation: from surviving edges to clusters in which a random walker stays long.

In: EdgeGraph. Out: int64 labels (n,), numbered by first appearance, that make the two-level map equation small,

    L(M) = q H(Q) + sum_i p_i H(P_i)
         = plogp(q) - 2 sum_i plogp(q_i) - sum_a plogp(p_a) + sum_i plogp(q_i + p_i)    bits per step,

the shortest description of an undirected random walk by a codebook per module and one for the steps between modules
(Rosvall, Axelsson and Bergstrom 2009). The weight of {i, j} is the SUM of all scores given in either direction, so that
a mutual pair of neighbours binds twice as much as a one-sided one; scores <= 0 and self loops are dropped. Then
p_a = (weight at node a) / 2m, p_i is the sum over module i, q_i = (weight leaving module i) / 2m, q = sum_i q_i. Since
(q - 2q + q) + (sum p_i - sum p_a) = 0, every logarithm of 2m cancels and the kernels work in plain weights.

The search is greedy: nodes in random order move to the neighbouring module that saves most, those around a moved node
are looked at again, modules become the nodes of a smaller graph, and so on until nothing moves. Then single nodes
(fine-tuning) and sub-modules (coarse-tuning) are let loose again from what was found, in turns, until neither helps.

Unlike connected components it forgives a few wrong edges; in return it is a heuristic optimum, the same for the same
seed and any number of threads. Moves run on one core (each depends on the last), everything else on all of them.
Memory: 8 bytes for each of the at most 2 E entries of the symmetric graph, as much again for half of them while it is
built, and a few arrays of n.
"""

from __future__ import annotations

import math
from collections import namedtuple
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numba
import numpy as np
from numba import njit, prange
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from .errors import InputError
from .progress import Progress, silent
from .prune import EdgeGraph

_STAGE = "map equation"
_MAX_ROUNDS = 20
_SMALLEST_MOVE = 1e-12  # bits a move must save: far above rounding, far below what any real move saves
_SMALLEST_ROUND = 1e-4  # share of the codelength that a round of tuning must save for another one
_WORTH_THREADS = 2_000_000
_MAX_BLOCKS = 8  # each block of sources has a counter per node while the graph is turned around


@dataclass(frozen=True)
class _FlowGraph:
    """A symmetric graph without self loops, and the weight of all walks through each node (inner ones included)."""

    offsets: NDArray[np.int64]
    targets: NDArray[np.int32]
    weights: NDArray[np.floating[Any]]
    flows: NDArray[np.float64]

    @property
    def n_nodes(self) -> int:
        return len(self.flows)


@dataclass(frozen=True)
class _Found:
    """Dense labels, the bits saved and the moves made on the way to them, and the last graph that was looked at."""

    labels: NDArray[np.int32]
    saved: float
    n_moves: int
    level: _FlowGraph


# What the kernels know of the modules. `state` has a row for each, side by side so that a visit costs one cache miss:
# flow; exit; term = -2 plogp(exit) + plogp(exit + flow); weight from the node at hand. `leaving` holds the sum of exits
# of each group of modules; `vacant` are unused module ids, of which there are n_vacant[0].
_Modules = namedtuple("_Modules", ["state", "size", "leaving", "vacant", "n_vacant"])
_FLOW, _EXIT, _TERM, _TOWARD = range(4)


def label_by_map_equation(graph: EdgeGraph, *, seed: int = 0, progress: Progress = silent) -> NDArray[np.int64]:
    """Label the modules of a near-optimal two-level map equation.

    Parameters
    ----------
    graph : EdgeGraph
        With n nodes; edges are taken as undirected, scores as weights.
    seed : int
        Order in which nodes are tried.
    progress : callable
        Told of each round of tuning.

    Returns
    -------
    int64 (n,)
        Numbered by first appearance; a node without edges is a cluster of its own.

    Examples
    --------
    Two triangles and an edge between them:

    >>> targets = np.array([1, 2, 2, 3, 4, 5, 5], np.int32)
    >>> graph = EdgeGraph(np.array([0, 2, 3, 4, 6, 7, 7]), targets, np.ones(7, np.float32))
    >>> label_by_map_equation(graph).tolist()
    [0, 0, 0, 1, 1, 1]
    """
    progress(_STAGE, 0, _MAX_ROUNDS)
    flow_graph = _symmetrise(graph)
    rng = np.random.default_rng(seed)
    found = _merge_components(_climb(flow_graph, _number_singletons(flow_graph), rng))
    smallest = _SMALLEST_ROUND * _measure(flow_graph, found.labels)
    for done in range(1, _MAX_ROUNDS):
        progress(_STAGE, done, _MAX_ROUNDS)
        coarse = _tune_coarsely(flow_graph, found.labels, rng)
        found = _climb(flow_graph, coarse.labels, rng)
        if coarse.saved + found.saved <= smallest:
            break
    labels = _settle_nodes(flow_graph, found, rng)
    progress(_STAGE, _MAX_ROUNDS, _MAX_ROUNDS)
    return labels.astype(np.int64)


def measure_codelength(graph: EdgeGraph, labels: NDArray[np.int64]) -> float:
    """Return L(M) of a partition in bits per step; 0 for a graph without edges.

    Parameters
    ----------
    graph : EdgeGraph
        With n nodes.
    labels : int64 (n,)
        Any integers; equal ones share a module.

    Examples
    --------
    One edge, as one module: a walker alternates between two nodes, one bit each.

    >>> graph = EdgeGraph(np.array([0, 1, 1]), np.array([1], np.int32), np.array([0.7], np.float32))
    >>> measure_codelength(graph, np.array([0, 0]))
    1.0
    """
    if len(labels) != graph.n_nodes:
        raise InputError(f"labels ({len(labels)}) must be as many as nodes ({graph.n_nodes}); pass one for each node")
    dense = np.unique(labels, return_inverse=True)[1].reshape(-1).astype(np.int32)
    return _measure(_symmetrise(graph), dense)


def _symmetrise(graph: EdgeGraph) -> _FlowGraph:
    """Add up both directions of every edge."""
    edges = (graph.offsets, graph.targets, graph.scores)
    with _enough_threads(len(graph.targets)) as n_workers:
        incoming = _list_incoming(*edges, min(n_workers, _MAX_BLOCKS))
        rows = _accumulate(_count_neighbors(*edges, *incoming, n_workers))
        targets, weights = _merge_directions(*edges, *incoming, rows, n_workers)
        return _FlowGraph(rows, targets, weights, _sum_rows(rows, targets, weights, np.empty(0, np.int32)))


def _list_incoming(
    offsets: NDArray[np.int64], targets: NDArray[np.int32], scores: NDArray[np.float32], n_blocks: int
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.float32]]:
    """Turn the usable edges around: offsets, sources and scores of those into each node, by rising source."""
    cuts = np.searchsorted(offsets, np.linspace(0, offsets[-1], n_blocks + 1)[1:-1])
    blocks = np.concatenate(([0], cuts, [len(offsets) - 1])).astype(np.int64)
    counts = _count_incoming(offsets, targets, scores, blocks)
    incoming = _accumulate(counts.sum(axis=0))
    cursors = incoming[:-1] + np.cumsum(counts, axis=0) - counts  # where each block writes its edges into each node
    sources, returned = _turn_around(offsets, targets, scores, blocks, cursors, incoming[-1])
    return incoming, sources, returned


@contextmanager
def _enough_threads(n_entries: int) -> Iterator[int]:
    """Let kernels run on one thread where waking the others would take longer than the work."""
    n_threads = numba.get_num_threads()
    n_needed = n_threads if n_entries >= _WORTH_THREADS else 1
    numba.set_num_threads(n_needed)
    try:
        yield n_needed
    finally:
        numba.set_num_threads(n_threads)


def _climb(graph: _FlowGraph, labels: NDArray[np.int32], rng: np.random.Generator) -> _Found:
    """Move nodes, then modules, then modules of modules, until nothing moves."""
    step = _move(graph, labels, rng)
    found, saved, n_moves, level = step.labels, step.saved, step.n_moves, graph
    while step.n_moves > 0:
        level = _aggregate(level, step.labels)
        step = _move(level, _number_singletons(level), rng)
        found, saved, n_moves = step.labels[found], saved + step.saved, n_moves + step.n_moves
    return _Found(found, saved, n_moves, level)


def _tune_coarsely(graph: _FlowGraph, labels: NDArray[np.int32], rng: np.random.Generator) -> _Found:
    """Split each module as if it were the whole network, and let the parts move between modules."""
    parts = _move(graph, _number_singletons(graph), rng, groups=labels).labels
    level = _aggregate(graph, parts)
    module_of_part = np.empty(level.n_nodes, dtype=np.int32)
    module_of_part[parts] = labels
    found = _climb(level, module_of_part, rng)
    return replace(found, labels=found.labels[parts])


def _settle_nodes(graph: _FlowGraph, found: _Found, rng: np.random.Generator) -> NDArray[np.int32]:
    """Move single nodes until a look at every one of them finds nothing to save."""
    for _ in range(_MAX_ROUNDS):
        if found.n_moves == 0:
            break
        found = _move(graph, found.labels, rng)
    return found.labels


def _merge_components(found: _Found) -> _Found:
    """Take connected components instead if they are shorter: no chain of saving moves may lead there."""
    level = found.level  # whose nodes are the modules
    shape = (level.n_nodes, level.n_nodes)
    _, components = connected_components(csr_array((level.weights, level.targets, level.offsets), shape=shape))
    # what both leave out is the same: the flows of single nodes
    if _measure(level, components) < _measure(level, _number_singletons(level)):
        return replace(found, labels=np.asarray(components[found.labels], dtype=np.int32))
    return found


def _move(
    graph: _FlowGraph, labels: NDArray[np.int32], rng: np.random.Generator, *, groups: NDArray[np.int32] | None = None
) -> _Found:
    """Move nodes of a graph between modules; with groups, each group is a network of its own."""
    order = rng.permutation(graph.n_nodes).astype(np.int32)
    moved = labels.copy()
    if groups is None:
        groups, flows = np.empty(0, np.int32), graph.flows
    else:
        with _enough_threads(len(graph.targets)):
            flows = _sum_rows(graph.offsets, graph.targets, graph.weights, groups)
    bit = float(flows.sum()) * math.log(2.0)  # the kernel counts in nats and weights
    n_moves, saved = _move_nodes(
        graph.offsets, graph.targets, graph.weights, flows, moved, groups, order, _SMALLEST_MOVE * bit
    )
    return _Found(_number_densely(moved), saved / bit if n_moves else 0.0, n_moves, graph)


def _aggregate(graph: _FlowGraph, labels: NDArray[np.int32]) -> _FlowGraph:
    """Make a node of every module; labels are dense."""
    n_modules = int(labels.max(initial=-1)) + 1
    starts = _accumulate(np.bincount(labels, minlength=n_modules))
    members = _list_members(labels, starts)
    with _enough_threads(len(graph.targets)) as n_workers:
        rows = _accumulate(_count_links(graph.offsets, graph.targets, labels, starts, members, n_workers))
        targets, weights = _fill_links(
            graph.offsets, graph.targets, graph.weights, labels, starts, members, rows, n_workers
        )
    flows = np.bincount(labels, weights=graph.flows, minlength=n_modules).astype(np.float64)
    return _FlowGraph(rows, targets, weights, flows)


def _measure(graph: _FlowGraph, labels: NDArray[np.int32]) -> float:
    """Return the codelength of dense labels in bits."""
    total = graph.flows.sum()
    if total == 0.0:
        return 0.0
    with _enough_threads(len(graph.targets)):
        outward = _sum_exits(graph.offsets, graph.targets, graph.weights, labels)
    exits = np.bincount(labels, weights=outward) / total
    flows = np.bincount(labels, weights=graph.flows) / total
    nodes = graph.flows / total
    return float(_sum_plogp(exits.sum()) - 2 * _sum_plogp(exits) - _sum_plogp(nodes) + _sum_plogp(exits + flows))


def _sum_plogp(shares: NDArray[np.float64]) -> float:
    """Return the sum of p log2 p, 0 at p = 0."""
    positive = np.where(shares > 0, shares, 1.0)
    return float(np.sum(positive * np.log2(positive)))


def _number_singletons(graph: _FlowGraph) -> NDArray[np.int32]:
    """Give each node a module of its own."""
    return np.arange(graph.n_nodes, dtype=np.int32)


def _accumulate(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Turn counts into offsets."""
    return np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))


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
def _turn_around(offsets, targets, scores, blocks, cursors, n_edges):  # type: ignore[no-untyped-def]
    """List the usable edges into each node by source; `cursors` is used up."""
    sources = np.empty(n_edges, dtype=np.int32)
    returned = np.empty(n_edges, dtype=np.float32)
    for block in prange(len(blocks) - 1):
        for i in range(blocks[block], blocks[block + 1]):
            for e in range(offsets[i], offsets[i + 1]):
                if scores[e] > 0 and targets[e] != i:
                    at = cursors[block, targets[e]]
                    cursors[block, targets[e]] = at + 1
                    sources[at] = i
                    returned[at] = scores[e]
    return sources, returned


@njit(cache=True, parallel=True)
def _count_neighbors(offsets, targets, scores, incoming, sources, returned, n_workers):  # type: ignore[no-untyped-def]
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
def _merge_directions(offsets, targets, scores, incoming, sources, returned, rows, n_workers):  # type: ignore[no-untyped-def]
    """Write each node's neighbours with the sum of the scores of both directions.

    A worker's rows come in rising order, so a remembered position before the row's start is that of an older row.
    """
    n = len(offsets) - 1
    merged = np.empty(rows[-1], dtype=np.int32)
    weights = np.empty(rows[-1], dtype=np.float32)
    for worker in prange(n_workers):
        position = np.full(n, -1, dtype=np.int64)
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


@njit(cache=True, parallel=True)
def _sum_rows(offsets, targets, weights, groups):  # type: ignore[no-untyped-def]
    """Sum the weights at each node, only those within its group if there are groups."""
    sums = np.zeros(len(offsets) - 1, dtype=np.float64)
    for i in prange(len(sums)):
        total = 0.0
        for e in range(offsets[i], offsets[i + 1]):
            if len(groups) == 0 or groups[targets[e]] == groups[i]:
                total += weights[e]
        sums[i] = total
    return sums


@njit(cache=True, parallel=True)
def _sum_exits(offsets, targets, weights, labels):  # type: ignore[no-untyped-def]
    """Sum the weights of each node's links that leave its module."""
    sums = np.zeros(len(offsets) - 1, dtype=np.float64)
    for i in prange(len(sums)):
        total = 0.0
        for e in range(offsets[i], offsets[i + 1]):
            if labels[targets[e]] != labels[i]:
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
    """Count the other modules each module is linked with."""
    n_modules = len(starts) - 1
    counts = np.zeros(n_modules, dtype=np.int64)
    for worker in prange(n_workers):
        seen_by = np.full(n_modules, -1, dtype=np.int32)
        for module in range(worker, n_modules, n_workers):
            seen_by[module] = module
            for slot in range(starts[module], starts[module + 1]):
                i = members[slot]
                for e in range(offsets[i], offsets[i + 1]):
                    other = labels[targets[e]]
                    if seen_by[other] != module:
                        seen_by[other] = module
                        counts[module] += 1
    return counts


@njit(cache=True, parallel=True)
def _fill_links(offsets, targets, weights, labels, starts, members, rows, n_workers):  # type: ignore[no-untyped-def]
    """Write each module's links to other modules, weights summed."""
    n_modules = len(starts) - 1
    linked = np.empty(rows[-1], dtype=np.int32)
    sums = np.empty(rows[-1], dtype=np.float64)
    for worker in prange(n_workers):
        position = np.full(n_modules, -1, dtype=np.int64)
        for module in range(worker, n_modules, n_workers):
            end = rows[module]
            for slot in range(starts[module], starts[module + 1]):
                i = members[slot]
                for e in range(offsets[i], offsets[i + 1]):
                    other = labels[targets[e]]
                    if other != module:
                        end = _add_link(other, weights[e], rows[module], end, position, linked, sums)
    return linked, sums


@njit(cache=True)
def _number_densely(labels):  # type: ignore[no-untyped-def]
    """Renumber labels (all below their number) by first appearance."""
    new = np.full(len(labels), -1, dtype=np.int32)
    dense = np.empty(len(labels), dtype=np.int32)
    n_labels = 0
    for i in range(len(labels)):
        if new[labels[i]] < 0:
            new[labels[i]] = n_labels
            n_labels += 1
        dense[i] = new[labels[i]]
    return dense


@njit(cache=True)
def _plogp(weight):  # type: ignore[no-untyped-def]
    """Return w ln w, 0 for what rounding left of nothing."""
    return weight * math.log(weight) if weight > 0.0 else 0.0


@njit(cache=True)
def _shift_plogp(weight, log_weight, shift):  # type: ignore[no-untyped-def]
    """Return plogp(weight + shift) - plogp(weight): by its series for small shifts, cheaper and more precise."""
    if abs(shift) < 1e-3 * weight:
        x = shift / weight
        return shift * (log_weight + 1.0 + x * (1 / 2 - x * (1 / 6 - x / 12)))
    return _plogp(weight + shift) - _plogp(weight)


@njit(cache=True)
def _weigh_module(leaving, flow):  # type: ignore[no-untyped-def]
    """Return a module's own share of the codelength."""
    return -2.0 * _plogp(leaving) + _plogp(leaving + flow)


@njit(cache=True)
def _open_modules(offsets, targets, weights, flows, labels, groups):  # type: ignore[no-untyped-def]
    """Sum up flows and exits of the modules."""
    n = len(flows)
    n_groups = groups.max() + 1 if len(groups) > 0 else 1
    state = np.zeros((n, 4))
    modules = _Modules(state, np.zeros(n, np.int32), np.zeros(n_groups), np.empty(n, np.int32), np.zeros(1, np.int64))
    for i in range(n):
        state[labels[i], _FLOW] += flows[i]
        modules.size[labels[i]] += 1
        outward = 0.0
        for e in range(offsets[i], offsets[i + 1]):
            j = targets[e]
            if labels[j] != labels[i] and (len(groups) == 0 or groups[j] == groups[i]):
                outward += weights[e]
        state[labels[i], _EXIT] += outward
        modules.leaving[groups[i] if len(groups) > 0 else 0] += outward
    for module in range(n):
        state[module, _TERM] = _weigh_module(state[module, _EXIT], state[module, _FLOW])
        if modules.size[module] == 0:
            _vacate(modules, module)
    return modules


@njit(cache=True)
def _vacate(modules, module):  # type: ignore[no-untyped-def]
    """Put an empty module aside for whoever wants to be alone."""
    modules.state[module, :_TOWARD] = 0.0
    modules.vacant[modules.n_vacant[0]] = module
    modules.n_vacant[0] += 1


@njit(cache=True)
def _gather_flows(i, offsets, targets, weights, labels, groups, state, touched):  # type: ignore[no-untyped-def]
    """Sum node i's weights toward each module, list these modules, and return their number."""
    n_touched = 0
    for e in range(offsets[i], offsets[i + 1]):
        j = targets[e]
        if len(groups) == 0 or groups[j] == groups[i]:
            module = labels[j]
            if state[module, _TOWARD] == 0.0:
                touched[n_touched] = module
                n_touched += 1
            state[module, _TOWARD] += weights[e]
    return n_touched


@njit(cache=True)
def _choose_module(own, flow, outward, leaving, modules, touched, n_touched):  # type: ignore[no-untyped-def]
    """Return the module in which a node saves most, and what it saves there (in nats and weights)."""
    state = modules.state
    left_exit, left_flow = 0.0, 0.0
    if modules.size[own] > 1:
        left_exit = max(0.0, state[own, _EXIT] - outward + 2.0 * state[own, _TOWARD])
        left_flow = state[own, _FLOW] - flow
    left = left_exit - state[own, _EXIT]
    base = _weigh_module(left_exit, left_flow) - state[own, _TERM]
    log_leaving = math.log(leaving) if leaving > 0.0 else 0.0
    chosen, least = own, 0.0
    if modules.size[own] > 1 and modules.n_vacant[0] > 0:
        alone = base + _shift_plogp(leaving, log_leaving, left + outward) + _weigh_module(outward, flow)
        if alone < least:
            chosen, least = modules.vacant[modules.n_vacant[0] - 1], alone
    for slot in range(n_touched):
        other = touched[slot]
        if other != own:
            joint_exit = max(0.0, state[other, _EXIT] + outward - 2.0 * state[other, _TOWARD])
            change = _weigh_module(joint_exit, state[other, _FLOW] + flow) - state[other, _TERM]
            change += base + _shift_plogp(leaving, log_leaving, left + joint_exit - state[other, _EXIT])
            if change < least:
                chosen, least = other, change
    return chosen, -least


@njit(cache=True)
def _transfer(own, chosen, flow, outward, group, modules):  # type: ignore[no-untyped-def]
    """Book a node's move from one module to another."""
    state = modules.state
    modules.leaving[group] -= state[own, _EXIT] + state[chosen, _EXIT]
    if modules.size[chosen] == 0:
        modules.n_vacant[0] -= 1
    state[own, _EXIT] = max(0.0, state[own, _EXIT] - outward + 2.0 * state[own, _TOWARD])
    state[chosen, _EXIT] = max(0.0, state[chosen, _EXIT] + outward - 2.0 * state[chosen, _TOWARD])
    state[own, _FLOW] -= flow
    state[chosen, _FLOW] += flow
    modules.size[own] -= 1
    modules.size[chosen] += 1
    state[own, _TERM] = _weigh_module(state[own, _EXIT], state[own, _FLOW])
    state[chosen, _TERM] = _weigh_module(state[chosen, _EXIT], state[chosen, _FLOW])
    if modules.size[own] == 0:
        _vacate(modules, own)
    modules.leaving[group] += state[own, _EXIT] + state[chosen, _EXIT]


@njit(cache=True)
def _visit_node(i, offsets, targets, weights, flows, labels, groups, modules, touched, smallest):  # type: ignore[no-untyped-def]
    """Move a node to the module where it saves most; return what it saves, 0 if it stays."""
    state = modules.state
    n_touched = _gather_flows(i, offsets, targets, weights, labels, groups, state, touched)
    outward = 0.0
    for slot in range(n_touched):
        outward += state[touched[slot], _TOWARD]
    group = groups[i] if len(groups) > 0 else 0
    leaving = modules.leaving[group]
    chosen, saved = _choose_module(labels[i], flows[i], outward, leaving, modules, touched, n_touched)
    moves = saved > smallest
    if moves:
        _transfer(labels[i], chosen, flows[i], outward, group, modules)
        labels[i] = chosen
    for slot in range(n_touched):
        state[touched[slot], _TOWARD] = 0.0
    return saved if moves else 0.0


@njit(cache=True)
def _move_nodes(offsets, targets, weights, flows, labels, groups, order, smallest):  # type: ignore[no-untyped-def]
    """Move nodes to better modules until no waiting one gains; labels change in place.

    All nodes wait at first, in the given order; later those next to a moved node, outside its new module, wait again.
    Returns the number of moves and what they save.
    """
    n = len(flows)
    modules = _open_modules(offsets, targets, weights, flows, labels, groups)
    touched = np.empty(n, dtype=np.int32)
    queue = order.copy()
    waiting = np.ones(n, dtype=np.bool_)
    head, n_waiting, n_moves, all_saved = 0, n, 0, 0.0
    while n_waiting > 0:
        i = queue[head]
        head = head + 1 if head + 1 < n else 0
        n_waiting -= 1
        waiting[i] = False
        saved = _visit_node(i, offsets, targets, weights, flows, labels, groups, modules, touched, smallest)
        if saved > 0.0:
            n_moves += 1
            all_saved += saved
            n_waiting = _wake_neighbors(i, offsets, targets, labels, groups, queue, waiting, head, n_waiting)
    return n_moves, all_saved


@njit(cache=True)
def _wake_neighbors(i, offsets, targets, labels, groups, queue, waiting, head, n_waiting):  # type: ignore[no-untyped-def]
    """Let the neighbours of a moved node that are not in its module wait again; return how many wait now."""
    n = len(queue)
    for e in range(offsets[i], offsets[i + 1]):
        j = targets[e]
        if labels[j] != labels[i] and not waiting[j] and (len(groups) == 0 or groups[j] == groups[i]):
            tail = head + n_waiting
            queue[tail if tail < n else tail - n] = j
            waiting[j] = True
            n_waiting += 1
    return n_waiting
