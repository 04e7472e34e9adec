"""DA-Net (Guo et al., "Density-aware feature embedding for face clustering", CVPR 2020).

A better embedding for clustering, from two paths. Local: a graph convolution  g = relu([F, A~ F] W + b).  Non-local:
the density chain of a face, from it to its nearest denser neighbour, from there on likewise, so from the rim of a
person to the middle, with  density_i = sum over j of cos_ij;  an LSTM reads the g of the chain. The new embedding is

    e_i = x_i + U lstm(g along the chain of i),   scaled to length one,

trained to tell the training people apart (cosine softmax with a margin, as face recognition does). It is clustered by
density: on the kNN graph of e every face follows its nearest denser neighbour with a similarity of at least tau.

Written from the paper's abstract and summary; chain length, widths, margin and tau are ours (8; 128; .2 at scale 16;
.7). Deviation: the x_i in e_i and first class vectors at the people's centres, so that training begins at the given
embedding; a random start was not tried.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..features import Features
from ..knn import KnnGraph, build_knn
from ..sampling import index_people
from .frame import Lesson, in_two_steps, learns
from .gcn_v import stack_rows
from .learning import get_arrays, load_arrays, run_steps, start_network
from .pairs import COSINES
from .peaks import find_denser, label_followers
from .weights import Weights

import torch  # isort: skip
from torch import Tensor, nn  # isort: skip

Evidence = KnnGraph
GRID: tuple[dict[str, Any], ...] = tuple({"tau": tau} for tau in (*COSINES, 0.85, 0.9))
_BATCH = 256
_SCALE, _MARGIN = 16.0, 0.2
_FACES = 1


class ChainNetwork(nn.Module):
    """[F, A~ F] along chains (b, t, 2d) and own rows (b, d) -> embeddings of length one (b, d)."""

    def __init__(self, dim: int, width: int) -> None:
        super().__init__()
        self.local = nn.Linear(2 * dim, width)
        self.chain = nn.LSTM(width, width, batch_first=True)
        self.out = nn.Linear(width, dim)

    def forward(self, stacked: Tensor, rows: Tensor) -> Tensor:
        """Return the embeddings."""
        _, (last, _) = self.chain(torch.relu(self.local(stacked)))
        return nn.functional.normalize(rows + self.out(last[0]), dim=1)


@learns
def train_model(lesson: Lesson, *, width: int = 128, length: int = 8) -> Weights:
    """Learn the embedding in 300 steps of 256 faces; unknown people are only in chains, of `length` faces."""
    network = start_network(ChainNetwork(lesson.features.dim, width), lesson)
    nn.init.zeros_(network.out.weight)
    index = index_people(lesson.features, lesson.labels)
    network.register_parameter("people", nn.Parameter(torch.from_numpy(index.centers.copy())))
    stacked, chains = stack_rows(lesson.features, lesson.graph), follow_density(lesson.graph, length)

    def measure_loss(step: int) -> Tensor:
        drawn = lesson.draw_known(_BATCH, _FACES, step)
        found = _embed(network, stacked, chains[drawn])
        own = torch.from_numpy(np.searchsorted(index.people, lesson.labels[drawn]))
        cosines = found @ nn.functional.normalize(network.get_parameter("people"), dim=1).T  # (b, people)
        margins = _MARGIN * nn.functional.one_hot(own, len(index))
        return nn.functional.cross_entropy(_SCALE * (cosines - margins), own)

    run_steps(network, measure_loss, lesson, steps=300)
    arrays = get_arrays(network)
    arrays.pop("people")
    return Weights(arrays, {"width": width, "length": length})


def cluster_evidence(evidence: Evidence, *, tau: float = 0.7, seed: int = 0) -> NDArray[np.int64]:
    """Let every face follow its nearest denser neighbour of the new embedding, from a similarity of tau on."""
    density = evidence.similarities.sum(axis=1)
    return label_followers(find_denser(evidence.neighbors, evidence.similarities, density, tau))


def measure_evidence(features: Features, graph: KnnGraph, model: Weights) -> Evidence:
    """Embed all faces and build the kNN graph of the embeddings."""
    network = ChainNetwork(features.dim, model.facts["width"])
    load_arrays(network, model.tensors)
    stacked, chains = stack_rows(features, graph), follow_density(graph, model.facts["length"])
    rows = np.empty((graph.n, features.dim), dtype=np.float32)
    with torch.no_grad():
        for start in range(0, graph.n, _BATCH):
            rows[start : start + _BATCH] = _embed(network, stacked, chains[start : start + _BATCH]).numpy()
    return build_knn(Features(rows), k=graph.k)


cluster_faces = in_two_steps(measure_evidence, cluster_evidence)


def follow_density(graph: KnnGraph, length: int) -> NDArray[np.int64]:
    """Return the density chain of every face, itself first, its end repeated, int64 (n, length).

    >>> graph = KnnGraph(np.array([[1], [2], [1]], np.int32), np.array([[0.5], [0.6], [0.6]], np.float32))
    >>> follow_density(graph, 3).tolist()
    [[0, 1, 1], [1, 1, 1], [2, 1, 1]]
    """
    density = graph.similarities.sum(axis=1)
    denser = find_denser(graph.neighbors, graph.similarities, density, -1.0)
    following = np.where(denser >= 0, denser, np.arange(graph.n))
    chains = [np.arange(graph.n)]
    for _ in range(length - 1):
        chains.append(following[chains[-1]])
    return np.stack(chains, axis=1)


def _embed(network: ChainNetwork, stacked: NDArray[np.float32], chains: NDArray[np.int64]) -> Tensor:
    """Return the embeddings of the faces at the head of the chains."""
    along = torch.from_numpy(stacked[chains])  # (b, t, 2d)
    rows: Tensor = along[:, 0, : stacked.shape[1] // 2]
    embedded: Tensor = network(along, rows)
    return embedded
