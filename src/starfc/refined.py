"""The refined partition: the map equation, then what it cannot see from a list of links.

In: EdgeGraph whose scores are probabilities. Out: int64 labels (n,), numbered by first appearance.

1. Crowds, clusters of faces that are alike because they are blurred (`crowds.py`), are told, links among their faces
   taken away, and each of them moves to the people it has other links to, if that shortens the description. Modules
   need not be tuned before: over 90 development sets that was worth nothing.
2. The map equation has a limit of resolution: a step between modules costs about log2(number of modules) bits, so the
   more people there are, the fewer wrong links it takes for two of them to become one. Whether two groups of faces are
   one person does not depend on who else is there. So each module is described once more as if it were the whole
   network, and where two or more modules are shorter there, it is split.

People with many faces have parts as well, by day and by night, or those that found no place in each other's full lists.
A sure link tells them from two people: of the modules that would be split in 70 synthetic worlds and fiw_a, a third
were one person, but seven in ten of those with a link of p >= .95 between the parts. Such parts stay together. So does
a splinter with the main part, twice as large and of a dozen faces at least, if its links go there rather than among its
own: of the faces of such splinters of fourteen collections eight in ten were at home there (p > .7).

Moves are greedy, and where they end depends on where they begin: on fiw_a, partitions of other seeds have an adjusted
Rand index of .984 to .998 with each other, and a rounding of the features is as good as another seed. So small graphs
are solved several times, and the shortest description is taken; of the large ones, whose clusters are few among many,
no time is spent on that.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from .crowds import find_crowds
from .flowgraph import build_flow_graph, drop_links
from .mapequation import climb_modules, find_shortest, improve_modules, split_modules
from .prune import EdgeGraph

_MOST_TRIALS = 8
_EDGES_TRIED = 1 << 22  # in all trials: more than that, and there is one
_SURE = 0.95  # P(same person) of a link that keeps two parts of a module together
_FEWEST_OF_MAIN = 12  # faces of a main part
_TIMES_SPLINTER = 2


def label_refined(graph: EdgeGraph, *, seed: int = 0) -> NDArray[np.int64]:
    """Label the modules of the map equation, without crowds, and split where one is two by itself.

    Parameters
    ----------
    graph : EdgeGraph
        With n nodes; edges are taken as undirected, scores as weights and probabilities.
    seed : int
        Order in which nodes are tried.

    Returns
    -------
    int64 (n,)
        Numbered by first appearance; a node without edges is a cluster of its own.

    Examples
    --------
    >>> targets = np.array([1, 2, 2, 3, 4, 5, 5], np.int32)
    >>> graph = EdgeGraph(np.array([0, 2, 3, 4, 6, 7, 7]), targets, np.full(7, 0.9, np.float32))
    >>> label_refined(graph).tolist()
    [0, 0, 0, 1, 1, 1]
    """
    flow_graph = build_flow_graph(graph)
    n_trials = min(_MOST_TRIALS, _EDGES_TRIED // max(1, len(graph.targets)))
    modules = climb_modules(flow_graph, seed=seed) if n_trials < 2 else find_shortest(flow_graph, n_trials, seed=seed)
    crowds = find_crowds(graph, modules)
    if not crowds.any():
        return _join_parts(graph, modules, split_modules(flow_graph, modules, seed=seed))
    crowded = crowds[modules]
    flow_graph = drop_links(flow_graph, crowded)
    modules = improve_modules(flow_graph, _let_alone(modules, crowded), seed=seed)
    return _join_parts(_silence(graph, crowded), modules, split_modules(flow_graph, modules, seed=seed))


def _let_alone(modules: NDArray[np.int32], crowded: NDArray[np.bool_]) -> NDArray[np.int32]:
    """Make a module of each of the marked nodes, and number modules densely.

    >>> _let_alone(np.array([0, 1, 1, 2], np.int32), np.array([False, True, True, False]))
    array([0, 1, 2, 3], dtype=int32)
    """
    first = np.unique(modules, return_index=True)[1]
    alone = np.where(crowded, np.arange(len(modules)), first[modules])
    return np.unique(alone, return_inverse=True)[1].astype(np.int32)


def _silence(graph: EdgeGraph, crowded: NDArray[np.bool_]) -> EdgeGraph:
    """Return the graph in which links between two of the marked faces have the score 0, which no walk follows."""
    scores = np.array(graph.scores)
    _clear_links(graph.offsets, graph.targets, crowded, scores)
    return EdgeGraph(graph.offsets, graph.targets, scores)


def _join_parts(graph: EdgeGraph, modules: NDArray[np.int32], parts: NDArray[np.int32]) -> NDArray[np.int64]:
    """Join parts of one module that a sure link ties, and splinters with the main one."""
    n_parts = int(parts.max(initial=-1)) + 1
    module_of = np.empty(n_parts, dtype=np.int32)
    module_of[parts] = modules
    split = (np.bincount(module_of) > 1)[modules]  # the others, nearly all, need not be gone through
    ties = _list_ties(graph.offsets, graph.targets, graph.scores, split, modules, parts, np.float32(_SURE))
    tied = coo_array((np.ones(len(ties), np.int8), (ties[:, 0], ties[:, 1])), shape=(n_parts, n_parts))
    # parts are numbered by first appearance, and components by their first part
    joined = np.asarray(connected_components(tied, directed=False)[1], dtype=np.int64)[parts]
    return _keep_splinters(graph, modules, joined, split)


def _keep_splinters(
    graph: EdgeGraph, modules: NDArray[np.int32], parts: NDArray[np.int64], split: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Leave splinters with the main part of their module, the largest, the first of equals."""
    sizes = np.bincount(parts)
    module_of = np.empty(len(sizes), dtype=np.int32)
    module_of[parts] = modules
    order = np.lexsort((-np.arange(len(sizes)), sizes))
    main_of = np.empty(int(modules.max(initial=-1)) + 1, dtype=np.int64)
    main_of[module_of[order]] = order  # the last one written stays
    mains = main_of[module_of]
    inside, to_main = _weigh_parts(graph.offsets, graph.targets, graph.scores, split, parts, mains)
    is_main_large = sizes[mains] >= np.maximum(_FEWEST_OF_MAIN, _TIMES_SPLINTER * sizes)
    is_splinter = is_main_large & (to_main > 0) & (to_main >= inside)
    kept = np.where(is_splinter, mains, np.arange(len(sizes)))[parts]
    _, firsts, codes = np.unique(kept, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(firsts))[codes]


@njit(cache=True, nogil=True, parallel=True)
def _clear_links(offsets, targets, crowded, scores):  # type: ignore[no-untyped-def]
    """Set the scores of links between two marked faces to 0."""
    for i in prange(len(crowded)):
        if crowded[i]:
            for e in range(offsets[i], offsets[i + 1]):
                if crowded[targets[e]]:
                    scores[e] = 0.0


@njit(cache=True, nogil=True)
def _weigh_parts(offsets, targets, scores, split, parts, mains):  # type: ignore[no-untyped-def]
    """Return the sum of the scores of each part's links among its own, and to and from the main part of its module.

    `split` marks the nodes whose module has more than one part; of others nothing is counted.
    """
    inside, to_main = np.zeros(len(mains)), np.zeros(len(mains))
    for i in np.flatnonzero(split):
        for e in range(offsets[i], offsets[i + 1]):
            own, other = parts[i], parts[targets[e]]
            if own == other:
                inside[own] += scores[e]
            elif mains[own] == other:
                to_main[own] += scores[e]
            elif mains[other] == own:
                to_main[other] += scores[e]
    return inside, to_main


@njit(cache=True, nogil=True)
def _list_ties(offsets, targets, scores, split, modules, parts, sure):  # type: ignore[no-untyped-def]
    """List the pairs of parts of one module between which there is a sure link, once for each such link.

    `split` marks the nodes whose module has more than one part.
    """
    ties = np.empty((16, 2), dtype=np.int32)
    n_ties = 0
    for i in np.flatnonzero(split):
        for e in range(offsets[i], offsets[i + 1]):
            j = targets[e]
            if scores[e] >= sure and modules[i] == modules[j] and parts[i] != parts[j]:
                if n_ties == len(ties):
                    grown = np.empty((2 * n_ties, 2), dtype=np.int32)
                    grown[:n_ties] = ties
                    ties = grown
                ties[n_ties, 0], ties[n_ties, 1] = parts[i], parts[j]
                n_ties += 1
    return ties[:n_ties]
