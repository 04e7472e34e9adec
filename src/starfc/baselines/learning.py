"""What the trained baselines share: first weights, a training loop, and graph convolutions on small padded graphs.

In: a torch network and a function that draws a batch and returns its loss. Out: the trained network, as arrays. All
random numbers come from numpy, so a seed means the same weights on the same number of threads. Deviation of all of
them from their papers: Adam with a rate that falls to 0 along a cosine, and hundreds of steps, where they took SGD
and tens of thousands on a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ..network import EdgeNetwork as _  # noqa: F401  (says what to install where torch is missing)
from .frame import Lesson

import torch  # isort: skip
from torch import Tensor, nn  # isort: skip

Network = TypeVar("Network", bound=nn.Module)
_RATE = 1e-3


def run_steps(
    network: nn.Module, measure_loss: Callable[[int], Tensor], lesson: Lesson, *, steps: int, stage: str = "train"
) -> None:
    """Train in place for so many steps, or as the lesson says; `measure_loss(step)` draws a batch, returns its loss."""
    optimizer = torch.optim.Adam(network.parameters(), lr=_RATE)
    n_steps = lesson.steps or steps
    network.train()
    lesson.progress(stage, 0, n_steps)
    for step in range(n_steps):
        for group in optimizer.param_groups:
            group["lr"] = _RATE * (1 + math.cos(math.pi * step / n_steps)) / 2
        loss = measure_loss(step)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        lesson.progress(stage, step + 1, n_steps)
    network.eval()


def start_network(network: Network, lesson: Lesson, stream: int = 0) -> Network:
    """Give every matrix Xavier's uniform first weights and every vector zeros; return the network."""
    rng = lesson.rng(stream)
    with torch.no_grad():
        for weight in network.parameters():
            if weight.ndim < 2:
                weight.zero_()
                continue
            bound = math.sqrt(6 / (weight.shape[0] + weight.shape[1]))
            drawn = rng.uniform(-bound, bound, tuple(weight.shape)).astype(np.float32)
            weight.copy_(torch.from_numpy(drawn))
    return network


def get_arrays(network: nn.Module, prefix: str = "") -> dict[str, NDArray[np.float32]]:
    """Return copies of all weights under their names with a prefix."""
    return {prefix + name: tensor.detach().numpy().copy() for name, tensor in network.state_dict().items()}


def load_arrays(network: nn.Module, arrays: dict[str, NDArray[np.float32]]) -> None:
    """Take over weights under the names that :func:`get_arrays` gave them, without its prefix."""
    network.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in arrays.items()})
    network.eval()


class DenseGcn(nn.Module):
    """Graph convolutions  F <- relu([F, A F] W + b)  on padded graphs: (b, m, d), (b, m, m) -> (b, m, width)."""

    def __init__(self, dim: int, widths: Sequence[int]) -> None:
        super().__init__()
        pairs = zip((dim, *widths[:-1]), widths, strict=True)
        self.layers = nn.ModuleList(nn.Linear(2 * width_in, width_out) for width_in, width_out in pairs)

    def forward(self, rows: Tensor, adjacency: Tensor) -> Tensor:
        """Apply all layers."""
        for layer in self.layers:
            rows = torch.relu(layer(torch.cat([rows, torch.bmm(adjacency, rows)], dim=2)))
        return rows
