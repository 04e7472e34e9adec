"""Subgraphs: the parts of the graph that a training sees, ready for the network.

In: Features, labels, the people to draw from and a plan. Out: Subgraph: the drawn faces' own kNN graph, their rows
aggregated over it, and for every edge whether both ends are one person. The graph is rebuilt (Algorithm 1 ends with
it), because most neighbours of a face were not drawn with it. A step sees a slice: all edges of some of the faces, so
that an edge's source need not be gathered.

Drawing and reading the rows is all that depends on the size of the data, and on the disk; a thread does it for the next
subgraph while the present one is trained on. It is apart from the rest, which keeps all cores busy anyway.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType

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


@dataclass(frozen=True)
class DrawnRows:
    """Faces of a subgraph as they were read: unit rows float32 (n, d), and who they are, int64 (n,)."""

    rows: NDArray[np.float32]
    labels: NDArray[np.int64]

    def connect(self, k: int) -> Subgraph:
        """Rebuild the kNN graph of these faces, and aggregate their rows over it."""
        graph = join_rows(self.rows, min(k, len(self.rows) - 1))
        same = self.labels[graph.neighbors] == self.labels[:, None]
        return Subgraph(prepare_nodes(self.rows, graph), graph.neighbors, same)


def draw_rows(
    features: Features,
    labels: NDArray[np.int64],
    people: PersonIndex,
    plan: SamplingPlan,
    rng: np.random.Generator,
) -> DrawnRows:
    """Sample faces of the people and read them."""
    drawn = sample_subgraph(people, plan, rng)
    return DrawnRows(features.take(drawn), labels[drawn])


class SubgraphStream:
    """Subgraphs by their turn, the rows of the next one being read ahead.

    Parameters
    ----------
    draw : callable
        From a turn to its rows; called in another thread.
    k : int
        Neighbours per face.

    Examples
    --------
    >>> rows = np.eye(4, dtype=np.float32)
    >>> with SubgraphStream(lambda turn: DrawnRows(rows, np.arange(4) // 2), k=2) as stream:
    ...     stream.get(0).same.shape
    (4, 2)
    """

    def __init__(self, draw: Callable[[int], DrawnRows], k: int, *, ahead: bool = True) -> None:
        self._draw, self._k, self._reads_ahead = draw, k, ahead
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="starfc-read")
        self._ahead: tuple[int, Future[DrawnRows]] | None = None
        self._present: tuple[int, Subgraph] | None = None

    def __enter__(self) -> SubgraphStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._reader.shutdown(cancel_futures=True)

    def get(self, turn: int) -> Subgraph:
        """Return the subgraph of a turn, and begin to read the next one."""
        if self._present is None or self._present[0] != turn:
            self._present = None  # before the next is made: one at a time in memory
            ahead = self._ahead
            drawn = ahead[1].result() if ahead is not None and ahead[0] == turn else self._draw(turn)
            if self._reads_ahead:
                self._ahead = (turn + 1, self._reader.submit(self._draw, turn + 1))
            self._present = (turn, drawn.connect(self._k))
        return self._present[1]


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
