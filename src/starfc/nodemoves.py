"""Node moves: nodes change to the module where the map equation becomes shortest, until none of them gains.

In: FlowGraph, labels to begin with, an order of its nodes. Out: labels, what was saved and in how many moves.

Nodes wait in a queue, in the given order at first; later those next to a moved node, outside its new module, wait
again. Nodes without a link that leaves their module need not wait at first, unless they stand for several, with walks
inside of them: all that they could do is to be alone, which saves nothing. With p the node's flow, q_m the flow that
leaves its module, q >= q_m that of all modules and f(x) = x log x, the description becomes longer by

    2 p + f(q + 2p) - f(q) - 2 (f(q_m + p) - f(q_m)) >= 2 p,    because f' rises.

Moves run on one core, each depends on the last. Only those inside of groups, each a network of its own, run on all of
them: group by group, which also keeps what a group needs in the cache, and with the same result in any order.
"""

from __future__ import annotations

import math
from collections import namedtuple

import numpy as np
from numba import njit, prange
from numpy.typing import NDArray

from .flowgraph import FlowGraph, accumulate, enough_threads

# What the kernels know of the modules. `state` has a row for each, side by side so that a visit costs one cache miss:
# flow; exit; term = -2 plogp(exit) + plogp(exit + flow); weight from the node at hand. `leaving` holds the sum of exits
# of each group of modules; `vacant` are unused module ids, of which there are n_vacant[0].
_Modules = namedtuple("_Modules", ["state", "size", "leaving", "vacant", "n_vacant"])
_FLOW, _EXIT, _TERM, _TOWARD = range(4)


def move_nodes(
    graph: FlowGraph, labels: NDArray[np.int32], order: NDArray[np.int32], *, smallest: float
) -> tuple[NDArray[np.int32], int, float]:
    """Move nodes to better modules until no waiting one gains.

    Parameters
    ----------
    graph : FlowGraph
        With n nodes.
    labels : int32 (n,)
        Of the modules to begin with, below n.
    order : int32 (n,)
        In which nodes wait at first.
    smallest : float
        What a move must save, in nats and weights.

    Returns
    -------
    labels : int32 (n,)
    n_moves : int
    saved : float
        In nats and weights.
    """
    outward = graph.sum_links(labels, inside=False)
    # sums of the same links in the same order, so that they are equal to the bit where no walk is inside of a node
    waits = (outward > 0) | (graph.flows > graph.sum_links(labels, inside=True))
    queue, first = np.empty(graph.n_nodes, dtype=np.int32), order[waits[order]]
    queue[: len(first)] = first
    moved = labels.copy()
    n_moves, saved = _move_all(
        graph.offsets, graph.targets, graph.weights, graph.flows, outward, moved, queue, len(first), smallest
    )
    return moved, int(n_moves), float(saved)


def move_within(
    graph: FlowGraph,
    flows: NDArray[np.float64],
    groups: NDArray[np.int32],
    order: NDArray[np.int32],
    *,
    smallest: float,
) -> tuple[NDArray[np.int32], int, float]:
    """Begin with single nodes and move them to modules inside their group, as if it were the whole network.

    Parameters
    ----------
    graph : FlowGraph
        With n nodes.
    flows : float64 (n,)
        Of the nodes, without what leaves their group.
    groups : int32 (n,)
        Dense.
    order, smallest
        As of :func:`move_nodes`, which also says what is returned.
    """
    labels = np.arange(graph.n_nodes, dtype=np.int32)
    starts = accumulate(np.bincount(groups))
    ordered = order[np.argsort(groups[order], kind="stable")]
    outward = graph.sum_links(groups, inside=True)
    with enough_threads(len(graph.targets)) as n_workers:
        n_moves, saved = _move_within(
            graph.offsets, graph.targets, graph.weights, flows, outward, labels, groups, starts, ordered, smallest,
            n_workers,
        )  # fmt: skip
    return labels, int(n_moves.sum()), float(saved.sum())


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
def _move_all(offsets, targets, weights, flows, outward, labels, queue, n_waiting, smallest):  # type: ignore[no-untyped-def]
    """Move nodes, of which the first n_waiting of the queue wait; labels change in place."""
    n = len(flows)
    state, sizes = np.zeros((n, 4)), np.zeros(n, np.int32)
    modules = _Modules(state, sizes, np.zeros(1), np.empty(n, np.int32), np.zeros(1, np.int64))
    for i in range(n):
        state[labels[i], _FLOW] += flows[i]
        state[labels[i], _EXIT] += outward[i]
        modules.size[labels[i]] += 1
        modules.leaving[0] += outward[i]
    for module in range(n):
        state[module, _TERM] = _weigh_module(state[module, _EXIT], state[module, _FLOW])
        if modules.size[module] == 0:
            _vacate(modules, module)
    waiting = np.zeros(n, dtype=np.bool_)
    waiting[queue[:n_waiting]] = True
    touched, no_groups = np.empty(n, dtype=np.int32), np.empty(0, np.int32)
    return _work_off(
        queue, n_waiting, waiting, offsets, targets, weights, flows, labels, no_groups, modules, touched, smallest
    )


@njit(cache=True, parallel=True)
def _move_within(offsets, targets, weights, flows, outward, labels, groups, starts, order, smallest, n_workers):  # type: ignore[no-untyped-def]
    """Move nodes, each a module at first, within their groups, whose nodes follow each other in the given order.

    Labels change in place; returns the number of moves in each group and what they save.
    """
    n, n_groups = len(flows), len(starts) - 1
    state, sizes, waiting = np.zeros((n, 4)), np.ones(n, np.int32), np.ones(n, np.bool_)
    n_moves, saved = np.zeros(n_groups, np.int64), np.zeros(n_groups)
    leaving, largest = np.zeros(n_groups), 0
    for group in range(n_groups):
        largest = max(largest, starts[group + 1] - starts[group])
    for worker in prange(n_workers):
        touched, vacant = np.empty(largest, dtype=np.int32), np.empty(largest, dtype=np.int32)
        for group in range(worker, n_groups, n_workers):
            queue = order[starts[group] : starts[group + 1]].copy()
            for i in queue:
                state[i, _FLOW], state[i, _EXIT] = flows[i], outward[i]
                state[i, _TERM] = _weigh_module(outward[i], flows[i])
                leaving[group] += outward[i]
            modules = _Modules(state, sizes, leaving, vacant, np.zeros(1, np.int64))
            n_moves[group], saved[group] = _work_off(
                queue, len(queue), waiting, offsets, targets, weights, flows, labels, groups, modules, touched, smallest
            )
    return n_moves, saved


@njit(cache=True)
def _work_off(queue, n_waiting, waiting, offsets, targets, weights, flows, labels, groups, modules, touched, smallest):  # type: ignore[no-untyped-def]
    """Look at the nodes of a queue until none waits; return the number of moves and what they save."""
    n = len(queue)
    head, n_moves, all_saved = 0, 0, 0.0
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
        if (len(groups) == 0 or groups[j] == groups[i]) and labels[j] != labels[i] and not waiting[j]:
            tail = head + n_waiting
            queue[tail if tail < n else tail - n] = j
            waiting[j] = True
            n_waiting += 1
    return n_waiting
