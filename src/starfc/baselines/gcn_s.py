"""GCN-S, the segmentation of GCN-D (Yang et al., "Learning to cluster faces on an affinity graph", CVPR 2019).

A proposal that mixes people is cleaned: one of its faces, the seed, is marked by a 1 beside its row (0 for the others),
and a graph network says of each face whether it is the seed's person. Of several seeds the answer that keeps most faces
wins. It learns from proposals of middling purity (IoP between .3 and .7) and is applied to those that GCN-D predicts to
be between .1 and .9, or, if tuning says so, .3 and .7: better ones need no cleaning, worse ones are lost. Deviations:
half the published width, three seeds, edges weighted by their cosines; of a proposal with more than `most` faces the
others are not looked at and stay.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..features import Features
from ..knn import KnnGraph
from .frame import Lesson
from .learning import DenseGcn, run_steps, start_network
from .padded import build_adjacency, pad_lists
from .pivot_gcn import measure_link_loss
from .proposals import Proposals

import torch  # isort: skip
from torch import Tensor, nn  # isort: skip

_BATCH = 16
_PURITY = (0.3, 0.7)  # of proposals to learn from
PREDICTED = (0.1, 0.9)  # of proposals to clean
_SEEDS = 3
_DRAW, _SEED_FACES = 21, 22


class SegmentNetwork(nn.Module):
    """Rows and a mark (b, m, d + 1) -> log-odds of being the marked face's person (b, m)."""

    def __init__(self, dim: int, widths: Sequence[int]) -> None:
        super().__init__()
        self.gcn = DenseGcn(dim + 1, widths)
        self.head = nn.Linear(widths[-1], 1)

    def forward(self, rows: Tensor, adjacency: Tensor) -> Tensor:
        """Return the log-odds."""
        odds: Tensor = self.head(self.gcn(rows, adjacency))[..., 0]
        return odds


def find_mixed(purity: NDArray[np.float32], bounds: tuple[float, float]) -> NDArray[np.int64]:
    """Return the proposals of middling purity."""
    return np.flatnonzero((purity > bounds[0]) & (purity < bounds[1]))


def train_segments(
    lesson: Lesson, proposals: Proposals, purity: NDArray[np.float32], *, widths: Sequence[int], most: int
) -> SegmentNetwork:
    """Learn to clean proposals, in 250 steps of 16; with nothing to learn from the first weights stay."""
    network = start_network(SegmentNetwork(lesson.features.dim, widths), lesson, _DRAW)
    mixed = find_mixed(purity, _PURITY)
    if len(mixed) == 0:
        return network

    def measure_loss(step: int) -> Tensor:
        rng = lesson.rng(_DRAW, step)
        nodes = pad_lists([proposals.get(p) for p in rng.choice(mixed, _BATCH)], most)
        seeds = _draw_seeds(nodes, rng)
        people = np.where(nodes >= 0, lesson.labels[np.maximum(nodes, 0)], -1)
        own = people[np.arange(len(nodes)), seeds][:, None]
        odds = _judge(network, lesson.features, lesson.graph, nodes, seeds)
        return measure_link_loss(odds, people == own, (people >= 0) & (own >= 0))

    run_steps(network, measure_loss, lesson, steps=250, stage="train segments")
    return network


def clean_proposals(
    network: SegmentNetwork, features: Features, graph: KnnGraph, proposals: Proposals, purity: NDArray[np.float32],
    *, most: int, seed: int = 0,
) -> NDArray[np.bool_]:  # fmt: skip
    """Mark the members of all proposals that stay, bool (sum of sizes,); only mixed ones lose any."""
    stays = np.ones(len(proposals.members), dtype=np.bool_)
    mixed = find_mixed(purity, PREDICTED)
    for start in range(0, len(mixed), _BATCH):
        batch = mixed[start : start + _BATCH]
        nodes = pad_lists([proposals.get(p) for p in batch], most)
        rng = np.random.default_rng([seed, _SEED_FACES, start])
        with torch.no_grad():
            answers = [_judge(network, features, graph, nodes, _draw_seeds(nodes, rng)) for _ in range(_SEEDS)]
        positive = np.stack([(odds > 0).numpy() for odds in answers]) & (nodes >= 0)  # (seeds, b, m)
        best = np.argmax(positive.sum(axis=2), axis=0)
        for row, p in enumerate(batch):
            first, size = proposals.offsets[p], min(nodes.shape[1], len(proposals.get(p)))
            stays[first : first + size] = positive[best[row], row, :size]
    return stays


def _draw_seeds(nodes: NDArray[np.int32], rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw a face of each proposal, as a place in its list."""
    return np.asarray(rng.random(len(nodes)) * (nodes >= 0).sum(axis=1), dtype=np.int64)


def _judge(
    network: SegmentNetwork, features: Features, graph: KnnGraph, nodes: NDArray[np.int32], seeds: NDArray[np.int64]
) -> Tensor:
    """Return the log-odds that each face is the seed's person."""
    rows = read_padded(features, nodes)
    marks = np.zeros((*nodes.shape, 1), dtype=np.float32)
    marks[np.arange(len(nodes)), seeds] = 1
    adjacency = build_adjacency(nodes, graph.neighbors, graph.similarities)
    odds: Tensor = network(torch.from_numpy(np.concatenate([rows, marks], axis=2)), torch.from_numpy(adjacency))
    return odds


def read_padded(features: Features, nodes: NDArray[np.int32]) -> NDArray[np.float32]:
    """Return the rows of padded lists, 0 at padding, float32 (b, m, d)."""
    rows = features.take(np.maximum(nodes, 0).ravel()).reshape(*nodes.shape, -1)
    return np.asarray(rows * (nodes >= 0)[..., None], dtype=np.float32)
