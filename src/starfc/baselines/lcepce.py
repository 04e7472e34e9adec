"""Density linking after LCEPCE (Shin et al., "Local connectivity-based density estimation", CVPR 2023), no labels.

With cosines s_ij, a connectivity c_ij (how sure i is that its neighbour j is the same person), and
c̄_ij = (c_ij + c_ji) / 2  with c_ji = 0 where j does not list i,

    ρ_i = sum over j in the list of i of c̄_ij s_ij

is the density of a face. Each face links its denser neighbour of the largest s c̄, if that link is judged right, and all
denser neighbours with  s c̄ >= τ,  τ the mean cosine of everybody's first three neighbours; linked faces are one
cluster. The paper learns c with one network and judges links of the first kind with another (p > .5), both from labels.

Deviations: without labels, c is NEP, the neighbour-based edge probability of `fc_es.py`, or starfc's own P(same person)
(`relational.py`: then the linking is the paper's, the scores are not); a link is judged right if c̄ >= `least`; of
equally dense faces the lower id counts as denser, where the authors link neither. k = 80 with the face itself there,
without it here. Written from the summary in the field's notes and the authors' code, read for its formulas; of the
paper only the abstract was at hand.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numba import njit, prange
from numpy.typing import NDArray

from ..errors import InputError
from ..features import Features
from ..knn import KnnGraph
from ..partition import label_components
from ..prune import EdgeGraph, parse_edges
from ..relational import score_by_relations
from ..score import ScoredEdges
from .fc_es import measure_edge_probability
from .frame import in_two_steps
from .peaks import mark_denser

CONNECTIVITIES = ("nep", "relational")
GRID: tuple[dict[str, Any], ...] = tuple(
    {"least": value} for value in (0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.45, 0.5, 0.55, 0.6, 0.7, 0.8, 0.9)
)
_FIRST = 3  # neighbours whose mean cosine is τ


@dataclass(frozen=True)
class Evidence:
    """Features and their graph; connectivities c̄, float32 (n, k), are computed when first asked for."""

    features: Features
    graph: KnnGraph

    @cached_property
    def nep(self) -> NDArray[np.float32]:
        """Neighbour-based edge probability."""
        return average_directions(self.graph.neighbors, measure_edge_probability(self.graph))

    @cached_property
    def relational(self) -> NDArray[np.float32]:
        """P(same person) of the shipped scorer."""
        return average_directions(self.graph.neighbors, score_by_relations(self.features, self.graph).scores)


def cluster_evidence(
    evidence: Evidence, *, least: float = 0.5, connectivity: str = "nep", seed: int = 0
) -> NDArray[np.int64]:
    """Link faces to denser neighbours, the best of them where its connectivity is at least `least`.

    `connectivity` is "nep" or "relational".
    """
    if connectivity not in CONNECTIVITIES:
        raise InputError(f"connectivity ('{connectivity}') must be one of {', '.join(CONNECTIVITIES)}")
    return label_components(link_denser(evidence.graph, getattr(evidence, connectivity), least=least))


measure_evidence = Evidence
cluster_faces = in_two_steps(measure_evidence, cluster_evidence)


def link_denser(graph: KnnGraph, connectivity: NDArray[np.float32], *, least: float) -> EdgeGraph:
    """Return the links from faces to denser neighbours: the best one, and all that are alike enough.

    Parameters
    ----------
    graph : KnnGraph
        (n, k).
    connectivity : float32 (n, k)
        c̄ of its edges.
    least : float
        c̄ from which on the link to the best denser neighbour is judged right.

    Returns
    -------
    EdgeGraph
        With s c̄ as scores.

    Examples
    --------
    >>> pair = KnnGraph(np.array([[1], [0]], np.int32), np.full((2, 1), 0.8, np.float32))
    >>> link_denser(pair, np.full((2, 1), 0.5, np.float32), least=0.5).offsets  # the second face follows the first
    array([0, 0, 1])
    """
    neighbors = graph.neighbors
    weights = np.where(neighbors >= 0, graph.similarities * connectivity, np.float32(0))
    denser = mark_denser(neighbors, weights.sum(axis=1, dtype=np.float32), np.arange(len(neighbors))) & (weights > 0)
    best = np.argmax(np.where(denser, weights, np.float32(-1)), axis=1)[:, None]
    right = np.take_along_axis(connectivity, best, axis=1) >= np.float32(least)
    linked = (weights >= _measure_tau(graph)) | ((np.arange(graph.k) == best) & right)
    return parse_edges(ScoredEdges(neighbors, np.where(denser & linked, weights, np.float32(0))), 0.0)


def _measure_tau(graph: KnnGraph) -> np.float32:
    """Return the mean cosine of everybody's first three neighbours."""
    listed = graph.neighbors[:, :_FIRST] >= 0
    total = graph.similarities[:, :_FIRST].sum(where=listed, dtype=np.float64)
    return np.float32(total / max(np.count_nonzero(listed), 1))


def average_directions(neighbors: NDArray[np.int32], scores: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return half the sum of the scores of i -> j and j -> i, 0 for an edge that is not there, float32 (n, k).

    >>> average_directions(np.array([[1], [2], [1]], np.int32), np.array([[0.8], [0.4], [0.6]], np.float32)).tolist()
    [[0.4000000059604645], [0.5], [0.5]]
    """
    return np.asarray(_average_directions(neighbors, scores))


@njit(cache=True, nogil=True, parallel=True)
def _average_directions(neighbors, scores):  # type: ignore[no-untyped-def]
    """Look every edge up in the list at its other end."""
    n, k = neighbors.shape
    means = np.zeros((n, k), dtype=np.float32)
    for i in prange(n):
        for slot in range(k):
            j = neighbors[i, slot]
            if j < 0:
                continue
            back = np.float32(0)
            for other in range(k):
                if neighbors[j, other] == i:
                    back = scores[j, other]
            means[i, slot] = (scores[i, slot] + back) / 2
    return means
