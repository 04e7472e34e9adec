"""Map equation: from surviving edges to clusters in which a random walker stays long.

In: EdgeGraph. Out: int64 labels (n,), numbered by first appearance, that make the two-level map equation small,

    L(M) = q H(Q) + sum_i p_i H(P_i)
         = plogp(q) - 2 sum_i plogp(q_i) - sum_a plogp(p_a) + sum_i plogp(q_i + p_i)    bits per step,

the shortest description of an undirected random walk by a codebook per module and one for the steps between modules
(Rosvall, Axelsson and Bergstrom 2009). In the graph of `flowgraph.py`, p_a = (weight at node a) / 2m, p_i is the sum
over module i, q_i = (weight leaving module i) / 2m, q = sum_i q_i. Since (q - 2q + q) + (sum p_i - sum p_a) = 0, every
logarithm of 2m cancels and the kernels work in plain weights.

The search is greedy: nodes in random order move to the neighbouring module that saves most, those around a moved node
are looked at again, modules become the nodes of a smaller graph, and so on until nothing moves. Then single nodes
(fine-tuning) and sub-modules (coarse-tuning) are let loose again from what was found, in turns, until neither helps.

Unlike connected components it forgives a few wrong edges; in return it is a heuristic optimum, the same for the same
seed and any number of threads. Moves (`nodemoves.py`) run on one core, those inside of groups and everything else on
all. Memory: a few arrays of n beside the graph.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components
from scipy.special import xlogy

from .errors import InputError
from .flowgraph import FlowGraph, aggregate_modules, build_flow_graph
from .nodemoves import move_nodes, move_within
from .progress import Progress, silent
from .prune import EdgeGraph

_STAGE = "map equation"
_MAX_ROUNDS = 20
_SMALLEST_MOVE = 1e-12  # bits a move must save: far above rounding, far below what any real move saves
_SMALLEST_ROUND = 1e-4  # share of the codelength that a round of tuning must save for another one


@dataclass(frozen=True)
class _Found:
    """Dense labels, the bits saved and the moves made on the way to them, and the last graph that was looked at."""

    labels: NDArray[np.int32]
    saved: float
    n_moves: int
    level: FlowGraph


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
    return find_modules(build_flow_graph(graph), seed=seed, progress=progress).astype(np.int64)


def find_modules(flow_graph: FlowGraph, *, seed: int = 0, progress: Progress = silent) -> NDArray[np.int32]:
    """Find the modules of a flow graph: what :func:`label_by_map_equation` does, int32 (n,)."""
    progress(_STAGE, 0, _MAX_ROUNDS)
    rng = np.random.default_rng(seed)
    found = _climb_from_singles(flow_graph, rng)
    smallest = _SMALLEST_ROUND * _measure(flow_graph, found.labels)
    for done in range(1, _MAX_ROUNDS):
        progress(_STAGE, done, _MAX_ROUNDS)
        coarse = _tune_coarsely(flow_graph, found.labels, rng)
        found = _climb(flow_graph, coarse.labels, rng)
        if coarse.saved + found.saved <= smallest:
            break
    labels = _settle_nodes(flow_graph, found, rng)
    progress(_STAGE, _MAX_ROUNDS, _MAX_ROUNDS)
    return labels


def find_shortest(flow_graph: FlowGraph, n_trials: int, *, seed: int = 0) -> NDArray[np.int32]:
    """Find modules several times, nodes tried in other orders, and return the shortest description, int32 (n,).

    >>> targets = np.array([1, 2, 2, 3, 4, 5, 5], np.int32)
    >>> graph = EdgeGraph(np.array([0, 2, 3, 4, 6, 7, 7]), targets, np.ones(7, np.float32))
    >>> find_shortest(build_flow_graph(graph), 3).tolist()
    [0, 0, 0, 1, 1, 1]
    """
    trials = [find_modules(flow_graph, seed=seed + trial) for trial in range(n_trials)]
    return min(trials, key=lambda labels: _measure(flow_graph, labels))


def climb_modules(flow_graph: FlowGraph, *, seed: int = 0) -> NDArray[np.int32]:
    """Find modules without tuning them, int32 (n,), in a third of the time: for a start that is worked on further.

    >>> graph = EdgeGraph(np.array([0, 2, 3, 3]), np.array([1, 2, 2], np.int32), np.ones(3, np.float32))
    >>> climb_modules(build_flow_graph(graph)).tolist()
    [0, 0, 0]
    """
    return _climb_from_singles(flow_graph, np.random.default_rng(seed)).labels


def improve_modules(flow_graph: FlowGraph, labels: NDArray[np.int32], *, seed: int = 0) -> NDArray[np.int32]:
    """Move nodes and modules from a partition that is near a good one, dense int32 (n,), until nothing moves.

    >>> graph = EdgeGraph(np.array([0, 2, 3, 3]), np.array([1, 2, 2], np.int32), np.ones(3, np.float32))
    >>> improve_modules(build_flow_graph(graph), np.array([0, 0, 1], np.int32)).tolist()
    [0, 0, 0]
    """
    rng = np.random.default_rng(seed)
    return _settle_nodes(flow_graph, _climb(flow_graph, labels, rng), rng)


def split_modules(flow_graph: FlowGraph, labels: NDArray[np.int32], *, seed: int = 0) -> NDArray[np.int32]:
    """Split every module as if it were the whole network, where that makes its own description shorter.

    Parameters
    ----------
    flow_graph : FlowGraph
        With n nodes.
    labels : int32 (n,)
        Dense, as of :func:`find_modules`.
    seed : int
        Order in which nodes are tried.

    Returns
    -------
    int32 (n,)
        Dense; nodes with one of these share one of the given labels.

    Examples
    --------
    Two triangles and an edge between them, taken for one module:

    >>> targets = np.array([1, 2, 2, 3, 4, 5, 5], np.int32)
    >>> graph = EdgeGraph(np.array([0, 2, 3, 4, 6, 7, 7]), targets, np.ones(7, np.float32))
    >>> split_modules(build_flow_graph(graph), np.zeros(6, np.int32)).tolist()
    [0, 0, 0, 1, 1, 1]
    """
    rng = np.random.default_rng(seed)
    found = _climb(flow_graph, _number_singletons(flow_graph), rng, groups=labels)
    parts = found.labels
    modules = _group_modules(parts, labels)
    splits = _describe_shorter(found.level, modules)  # whose nodes are the parts
    one_of_module = np.empty(len(splits), dtype=np.int32)
    one_of_module[modules] = np.arange(len(modules))
    return np.asarray(_number_densely(np.where(splits[labels], parts, one_of_module[labels])))


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
    return _measure(build_flow_graph(graph), dense)


def _climb(
    graph: FlowGraph, labels: NDArray[np.int32], rng: np.random.Generator, *, groups: NDArray[np.int32] | None = None
) -> _Found:
    """Move nodes, then modules, then modules of modules, until nothing moves; with groups, inside each of them."""
    inside = groups
    step = _move(graph, labels, rng, groups=inside)
    found, saved, n_moves, level = step.labels, step.saved, step.n_moves, graph
    while step.n_moves > 0:
        level = aggregate_modules(level, step.labels)
        inside = None if inside is None else _group_modules(step.labels, inside)
        step = _move(level, _number_singletons(level), rng, groups=inside)
        found, saved, n_moves = step.labels[found], saved + step.saved, n_moves + step.n_moves
    return _Found(found, saved, n_moves, level)


def _climb_from_singles(graph: FlowGraph, rng: np.random.Generator) -> _Found:
    """Begin with single nodes, and take connected components where they are shorter in the end."""
    return _merge_components(_climb(graph, _number_singletons(graph), rng))


def _tune_coarsely(graph: FlowGraph, labels: NDArray[np.int32], rng: np.random.Generator) -> _Found:
    """Split each module as if it were the whole network, and let the parts move between modules."""
    parts = _move(graph, _number_singletons(graph), rng, groups=labels).labels
    level = aggregate_modules(graph, parts)
    found = _climb(level, _group_modules(parts, labels), rng)
    return replace(found, labels=found.labels[parts])


def _group_modules(modules: NDArray[np.int32], groups: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return the group of each module, whose nodes all have the same."""
    of_module = np.empty(int(modules.max(initial=-1)) + 1, dtype=np.int32)
    of_module[modules] = groups
    return of_module


def _settle_nodes(graph: FlowGraph, found: _Found, rng: np.random.Generator) -> NDArray[np.int32]:
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
    graph: FlowGraph, labels: NDArray[np.int32], rng: np.random.Generator, *, groups: NDArray[np.int32] | None = None
) -> _Found:
    """Move nodes between modules; with groups, each a network of its own, labels are those of single nodes."""
    order = graph.by_flow[rng.permutation(graph.n_nodes)]
    flows = graph.flows if groups is None else _take_alone(graph, groups)
    bit = float(flows.sum()) * math.log(2.0)  # the kernels count in nats and weights
    if groups is None:
        moved, n_moves, saved = move_nodes(graph, labels, order, smallest=_SMALLEST_MOVE * bit)
    else:
        moved, n_moves, saved = move_within(graph, flows, groups, order, smallest=_SMALLEST_MOVE * bit)
    return _Found(_number_densely(moved), saved / bit if n_moves else 0.0, n_moves, graph)


def _measure(graph: FlowGraph, labels: NDArray[np.int32]) -> float:
    """Return the codelength of dense labels in bits."""
    total = graph.flows.sum()
    if total == 0.0:
        return 0.0
    exits = np.bincount(labels, weights=graph.sum_links(labels, inside=False)) / total
    flows = np.bincount(labels, weights=graph.flows) / total
    nodes = graph.flows / total
    return float(_sum_plogp(exits.sum()) - 2 * _sum_plogp(exits) - _sum_plogp(nodes) + _sum_plogp(exits + flows))


def _describe_shorter(graph: FlowGraph, groups: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Tell of each group, a network of its own, whether its nodes as modules take fewer bits than one module."""
    exits, flows = graph.sum_links(groups, inside=True), _take_alone(graph, groups)

    def add_up(values: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(np.bincount(groups, weights=values), dtype=np.float64)

    apart = xlogy(add_up(exits), add_up(exits)) - 2 * add_up(xlogy(exits, exits))
    apart += add_up(xlogy(exits + flows, exits + flows))
    whole = add_up(flows)
    return np.asarray(apart + _SMALLEST_MOVE * whole < xlogy(whole, whole))


def _take_alone(graph: FlowGraph, groups: NDArray[np.int32]) -> NDArray[np.float64]:
    """Return the flows of the nodes without what leaves their group."""
    return np.maximum(graph.flows - graph.sum_links(groups, inside=False), 0.0)


def _sum_plogp(shares: NDArray[np.float64]) -> float:
    """Return the sum of p log2 p, 0 at p = 0."""
    positive = np.where(shares > 0, shares, 1.0)
    return float(np.sum(positive * np.log2(positive)))


def _number_singletons(graph: FlowGraph) -> NDArray[np.int32]:
    """Give each node a module of its own."""
    return np.arange(graph.n_nodes, dtype=np.int32)


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
