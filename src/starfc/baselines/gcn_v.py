"""GCN-V (Yang et al., "Learning to cluster faces via confidence and connectivity estimation", CVPR 2020).

Vertices only. The confidence of a face says how sure its neighbourhood is of one person, with a_ij the cosine:

    c_i = 1/|N_i|  sum over j in N_i of  (1[y_j = y_i] - 1[y_j != y_i]) a_ij.

A graph convolution  h = relu([F, A~ F] W + b)  and a two-layer head learn it by least squares. Every face then links
to the nearest of its neighbours with a higher confidence and a similarity of at least tau; what hangs together is a
person. Similarities are those of the learned h, on a kNN graph of its own (`learned_features`, as published), or the
cosines.

Published for MS1M: k = 80, h of 512, tau = .8. With one layer the aggregated rows do not change in training, so
batches of faces take the place of the whole graph: the same network, any number of faces.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..affinity import build_affinity
from ..features import Features
from ..knn import KnnGraph, build_knn
from .frame import Lesson, in_two_steps, learns
from .learning import get_arrays, load_arrays, run_steps, start_network
from .pairs import COSINES
from .peaks import find_denser, label_followers
from .weights import Weights

import torch  # isort: skip
from torch import Tensor, nn  # isort: skip

GRID: tuple[dict[str, Any], ...] = tuple(
    {"tau": tau, "learned_features": learned}
    for learned, taus in ((True, (0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.93, 0.96, 0.98)), (False, COSINES))
    for tau in taus
)
_BATCH = 1024
_FACES = 1


@dataclass(frozen=True)
class Evidence:
    """Confidence (n,), the learned rows h (n, width) of unit length, and the given graph."""

    confidence: NDArray[np.float32]
    hidden: Features
    given: KnnGraph

    @cached_property
    def learned(self) -> KnnGraph:
        """The kNN graph of h, built when it is first asked for."""
        return build_knn(self.hidden, k=self.given.k)

    def get_graph(self, *, learned: bool) -> KnnGraph:
        """Return the graph of h or the given one."""
        return self.learned if learned else self.given


class VertexNetwork(nn.Module):
    """[F, A~ F] (b, 2d) -> h (b, width) -> confidence (b,)."""

    def __init__(self, dim: int, width: int) -> None:
        super().__init__()
        self.convolution = nn.Linear(2 * dim, width)
        self.head = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))

    def embed(self, stacked: Tensor) -> Tensor:
        """Return h."""
        return torch.relu(self.convolution(stacked))

    def forward(self, stacked: Tensor) -> Tensor:
        """Return the confidence."""
        confidence: Tensor = self.head(self.embed(stacked))[:, 0]
        return confidence


@learns
def train_model(lesson: Lesson, *, width: int = 512) -> Weights:
    """Learn the confidence of faces in 400 steps of 1,024 faces; h is of the given width."""
    network = start_network(VertexNetwork(lesson.features.dim, width), lesson)
    stacked = stack_rows(lesson.features, lesson.graph)
    wanted = measure_confidence(lesson.graph, lesson.labels)

    def measure_loss(step: int) -> Tensor:
        drawn = lesson.draw_known(_BATCH, _FACES, step)
        return nn.functional.mse_loss(network(torch.from_numpy(stacked[drawn])), torch.from_numpy(wanted[drawn]))

    run_steps(network, measure_loss, lesson, steps=400)
    return Weights(get_arrays(network), {"width": width})


def cluster_evidence(
    evidence: Evidence, *, tau: float = 0.8, learned_features: bool = True, seed: int = 0
) -> NDArray[np.int64]:
    """Let every face follow its nearest neighbour of higher confidence, by h or by the cosines, from tau on."""
    graph = evidence.get_graph(learned=learned_features)
    return label_followers(find_denser(graph.neighbors, graph.similarities, evidence.confidence, tau))


def measure_evidence(features: Features, graph: KnnGraph, model: Weights) -> Evidence:
    """Compute confidence and h."""
    network = VertexNetwork(features.dim, model.facts["width"])
    load_arrays(network, model.tensors)
    stacked = stack_rows(features, graph)
    hidden = np.empty((graph.n, model.facts["width"]), dtype=np.float32)
    confidence = np.empty(graph.n, dtype=np.float32)
    with torch.no_grad():
        for start in range(0, graph.n, _BATCH):
            batch = torch.from_numpy(stacked[start : start + _BATCH])
            hidden[start : start + _BATCH] = network.embed(batch).numpy()
            confidence[start : start + _BATCH] = network(batch).numpy()
    hidden += np.float32(1e-6)  # a row of zeros has no direction
    unit = Features(hidden / np.sqrt(np.einsum("nd,nd->n", hidden, hidden))[:, None])
    return Evidence(confidence, unit, graph)


cluster_faces = in_two_steps(measure_evidence, cluster_evidence)


def measure_confidence(graph: KnnGraph, labels: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return c_i of every face, float32 (n,); neighbours whose person is not known (-1) are not in N_i.

    >>> graph = KnnGraph(np.array([[1, 2], [0, 2], [0, 1]], np.int32), np.full((3, 2), 0.5, np.float32))
    >>> measure_confidence(graph, np.array([0, 0, 1])).tolist()
    [0.0, 0.0, -0.5]
    """
    listed = (graph.neighbors >= 0) & (labels[graph.neighbors] >= 0)
    same = (labels[graph.neighbors] == labels[:, None]) & (labels[:, None] >= 0)
    signed = np.where(same, graph.similarities, -graph.similarities) * listed
    return np.asarray(signed.sum(axis=1) / np.maximum(listed.sum(axis=1), 1), dtype=np.float32)


def stack_rows(features: Features, graph: KnnGraph) -> NDArray[np.float32]:
    """Return [F, A~ F], float32 (n, 2d)."""
    rows = features.read(0, len(features))
    return np.concatenate([rows, build_affinity(graph).tocsr() @ rows], axis=1)
