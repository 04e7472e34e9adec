"""A network that sees a face's surroundings from that face, and says who is the same person.

In: for a batch of pivots, the faces around each (padded lists), their rows and the edges among them. Out: the
log-odds that each is the pivot's person. Rows are given as differences  x_j - x_pivot,  which tells the network who
asks. It is the network of L-GCN, and of GCN-E on another choice of faces; both papers have four layers of 512, 512,
256, 256, here half as wide for the sake of a CPU. Deviation: the network's answer is added to  a (b - |x_j -
x_pivot|²),  a and b learned, and begins at 0. Without that, from random weights, L-GCN reached a pairwise / BCubed F
of 49 / 76 on half of Families in the Wild, with it 60 / 86 (one run each, 250 steps).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from .learning import DenseGcn
from .padded import build_adjacency

import torch  # isort: skip
from torch import Tensor, nn  # isort: skip

WIDTHS = (256, 256, 128, 128)
ReadRows = Callable[[NDArray[np.int32]], NDArray[np.float32]]


class PivotNetwork(nn.Module):
    """Graph convolutions and a two-layer head: (b, m, d) differences -> (b, m) log-odds."""

    def __init__(self, dim: int, widths: Sequence[int] = WIDTHS) -> None:
        super().__init__()
        self.gcn = DenseGcn(dim, widths)
        self.head = nn.Sequential(nn.Linear(widths[-1], widths[-1]), nn.ReLU(), nn.Linear(widths[-1], 1))
        self.slope, self.center = nn.Parameter(torch.empty(1)), nn.Parameter(torch.empty(1))

    def forward(self, rows: Tensor, adjacency: Tensor) -> Tensor:
        """Return the log-odds of every face of every graph."""
        distances = (rows * rows).sum(dim=2)
        odds: Tensor = self.head(self.gcn(rows, adjacency))[..., 0] + self.slope * (self.center - distances)
        return odds

    def start_as_distance(self) -> None:
        """Begin with log-odds of 0 at a cosine of .5 and 5 more at a cosine of 1, and no say of the graph yet."""
        with torch.no_grad():
            self.slope.fill_(5.0)
            self.center.fill_(1.0)
            nn.init.zeros_(self.head.get_submodule("2").get_parameter("weight"))


def judge_surroundings(
    network: PivotNetwork,
    pivots: NDArray[np.int64],
    nodes: NDArray[np.int32],
    read: ReadRows,
    neighbors: NDArray[np.int32],
    weights: NDArray[np.float32],
) -> Tensor:
    """Return the log-odds that the faces around each pivot are its person, (b, m); meaningless at padding."""
    b, m = nodes.shape
    rows = read(np.maximum(nodes, 0).ravel()).reshape(b, m, -1)
    differences = (rows - read(pivots.astype(np.int32))[:, None]) * (nodes >= 0)[..., None]
    adjacency = build_adjacency(nodes, neighbors, weights)
    odds: Tensor = network(torch.from_numpy(differences.astype(np.float32)), torch.from_numpy(adjacency))
    return odds


def measure_link_loss(odds: Tensor, same: NDArray[np.bool_], counted: NDArray[np.bool_]) -> Tensor:
    """Return the mean cross entropy over the faces that count."""
    losses = nn.functional.binary_cross_entropy_with_logits(
        odds, torch.from_numpy(same.astype(np.float32)), reduction="none"
    )
    weights = torch.from_numpy(counted.astype(np.float32))
    return (losses * weights).sum() / weights.sum().clamp(min=1)
