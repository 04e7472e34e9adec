"""Subgraphs: the parts of the graph that a training sees, ready for the network.

In: Features, labels, the people to draw from and a plan. Out: Subgraph: the drawn faces' own kNN graph, their rows
aggregated over it, and for every edge whether both ends are one person. The graph is rebuilt (Algorithm 1 ends with
it), because most neighbours of a face were not drawn with it. A step sees a slice: all edges of some of the faces, so
that an edge's source need not be gathered.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .features import Features
from .knn import join_rows
from .network import EdgeNetwork, NodeInput, prepare_nodes
from .sampling import PersonIndex, SamplingPlan, sample_subgraph

import torch  # isort: skip  (after network.py, which says what to install where it is missing)


@dataclass(frozen=True)
class Subgraph:
    """A drawn part of the graph.

    Attributes
    ----------
    nodes : NodeInput
        Of n faces.
    neighbors : int32 (n, k)
    same : bool (n, k)
        The truth of every edge.
    """

    nodes: NodeInput
    neighbors: NDArray[np.int32]
    same: NDArray[np.bool_]

    def slice(self, share: float, rng: np.random.Generator) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return sources (m,), targets (m, k) and truths (m, k): all edges of a random share of the faces."""
        n = len(self.neighbors)
        sources = np.sort(rng.choice(n, size=max(1, round(share * n)), replace=False))
        truths = self.same[sources].astype(np.float32)
        return torch.from_numpy(sources), torch.from_numpy(self.neighbors[sources]), torch.from_numpy(truths)


def draw_subgraph(
    features: Features,
    labels: NDArray[np.int64],
    people: PersonIndex,
    plan: SamplingPlan,
    rng: np.random.Generator,
) -> Subgraph:
    """Sample faces of the people, rebuild their kNN graph, and aggregate their rows over it."""
    drawn = sample_subgraph(people, plan, rng)
    rows, own = features.take(drawn), labels[drawn]
    graph = join_rows(rows, min(plan.k, len(rows) - 1))
    return Subgraph(prepare_nodes(rows, graph), graph.neighbors, own[graph.neighbors] == own[:, None])


def fit_odds(network: EdgeNetwork, subgraph: Subgraph) -> None:
    """Turn first weights that only order the edges into probabilities, by logistic regression on a subgraph."""
    n = len(subgraph.neighbors)
    with torch.no_grad():
        odds = network(subgraph.nodes, torch.arange(n), torch.from_numpy(subgraph.neighbors)).numpy()
    inputs = np.stack([odds.ravel(), np.ones(odds.size)], axis=1).astype(np.float64)  # (n_edges, 2)
    truths = subgraph.same.ravel()
    center, scale = inputs[:, 0].mean(), inputs[:, 0].std() + 1e-9
    inputs[:, 0] = (inputs[:, 0] - center) / scale
    found = np.zeros(2)
    for _ in range(20):  # Newton; the ridge keeps it finite where one threshold separates everything
        p = 1 / (1 + np.exp(-inputs @ found))
        curvature = (inputs * (p * (1 - p))[:, None]).T @ inputs + 1e-3 * len(p) * np.eye(2)
        found -= np.linalg.solve(curvature, inputs.T @ (p - truths) + 1e-3 * len(p) * found)
    network.scale_odds(found[0] / scale, found[1] - found[0] * center / scale)
