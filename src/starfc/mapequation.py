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
seed and any number of threads. Moves run on one core (each depends on the last), everything else on all of them.
Memory: a few arrays of n beside the graph.
"""

from __future__ import annotations

import math
from collections import namedtuple
from dataclasses import dataclass, replace

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components
from scipy.special import xlogy

from .errors import InputError
from .flowgraph import FlowGraph, aggregate_modules, build_flow_graph
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
    parts = _climb(flow_graph, _number_singletons(flow_graph), rng, groups=labels).labels
    modules = _group_modules(parts, labels)
    splits = _describe_shorter(aggregate_modules(flow_graph, parts), modules)
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
    """Move nodes of a graph between modules; with groups, each group is a network of its own."""
    # By their flow, then shuffled: the same order whatever the numbers of the nodes, unless flows are equal.
    order = np.argsort(graph.flows, kind="stable")[rng.permutation(graph.n_nodes)].astype(np.int32)
    moved = labels.copy()
    if groups is None:
        groups, flows = np.empty(0, np.int32), graph.flows
    else:
        flows = _take_alone(graph, groups)
    bit = float(flows.sum()) * math.log(2.0)  # the kernel counts in nats and weights
    n_moves, saved = _move_nodes(
        graph.offsets, graph.targets, graph.weights, flows, moved, groups, order, _SMALLEST_MOVE * bit
    )
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
