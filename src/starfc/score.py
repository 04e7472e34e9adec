"""Scoring: P(same person) for every edge of the kNN graph, without torch.

In: Features, KnnGraph, Model. Out: ScoredEdges. The paper's network (Sec. 3.2) is

    F_{l+1} = relu([F_l, A~ F_l] W_l + b_l),      score(i -> j) = softmax(W_2 prelu(W_1 [h_i; h_j] + b_1) + b_2)[1].

Written out as it stands, an edge costs O(h²). Three identities make it O(h):

- W_1 [h_i; h_j] + b_1 = P_i + Q_j with one projection per node;
- a two-way softmax is the sigmoid of the difference of its logits: w = W_2[1] - W_2[0];
- prelu(v) = (1 + a)/2 v + (1 - a)/2 |v|, so the linear half is a number per node (p_i + q_j) and an edge needs only
  the sum of u |P_i + Q_j|; u is folded into P and Q, up to its sign.

Rows are worked on in tiles of a fixed size, each by one thread with a single-threaded BLAS, so that the scores have
the same bits whatever the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .affinity import Affinity, build_affinity
from .errors import InputError
from .features import Features
from .knn import KnnGraph
from .model import Model
from .progress import Progress, silent
from .workers import start_workers

_TILE_ROWS = 2048


@dataclass(frozen=True)
class ScoredEdges:
    """Edges of the kNN graph with the score of each.

    Attributes
    ----------
    neighbors : int32 (n, k)
        As in KnnGraph; -1 where a row has fewer.
    scores : float32 (n, k)
        Score of the edge from the row to the neighbour: a probability (GCN) or a cosine; meaningless where neighbors
        is -1.
    """

    neighbors: NDArray[np.int32]
    scores: NDArray[np.float32]


@dataclass(frozen=True)
class NodeProjections:
    """What an edge needs of its two ends: logit(i -> j) = p_i + q_j + sum_t sign_t |P_it + Q_jt|.

    The first `n_positive` of the h columns have sign +1, the others -1.
    """

    source: NDArray[np.float32]  # P (n, h)
    target: NDArray[np.float32]  # Q (n, h)
    source_linear: NDArray[np.float32]  # p (n,)
    target_linear: NDArray[np.float32]  # q (n,)
    n_positive: int


def score_by_cosine(graph: KnnGraph) -> ScoredEdges:
    """Take the similarity itself as the score.

    >>> graph = KnnGraph(np.array([[1], [0]], np.int32), np.array([[0.5], [0.5]], np.float32))
    >>> score_by_cosine(graph).scores.tolist()
    [[0.5], [0.5]]
    """
    return ScoredEdges(graph.neighbors, graph.similarities)


def score_edges(features: Features, graph: KnnGraph, model: Model, *, progress: Progress = silent) -> ScoredEdges:
    """Score every edge of the graph with the model's GCN.

    Parameters
    ----------
    features : Features
        (n, d), of the model's dimension.
    graph : KnnGraph
        (n, k) over the same faces.
    model : Model
        Trained or imported.

    Returns
    -------
    ScoredEdges
        (n, k) probabilities that both ends are the same person.
    """
    model.require_dim(features.dim)
    if len(graph.neighbors) != len(features):
        raise InputError(
            f"the kNN graph has {len(graph.neighbors)} rows for {len(features)} faces; build it from these features"
        )
    projections = project_nodes(features, build_affinity(graph), model, progress=progress)
    scores = np.empty(graph.neighbors.shape, dtype=np.float32)

    def score_tile(start: int, stop: int) -> None:
        _score_rows(
            start, stop, graph.neighbors, projections.source, projections.target,
            projections.source_linear, projections.target_linear, projections.n_positive, scores,
        )  # fmt: skip

    _for_each_tile(len(features), score_tile, "score edges", progress)
    return ScoredEdges(graph.neighbors, scores)


def project_nodes(
    features: Features, affinity: Affinity, model: Model, *, progress: Progress = silent
) -> NodeProjections:
    """Run the GCN over all nodes and split the head into per-node projections P, Q, p and q."""
    hidden = _load_rows(features, progress)
    for layer in range(1, len(model.config.hidden) + 1):
        weight, bias = model.tensors[f"conv{layer}.weight"], model.tensors[f"conv{layer}.bias"]
        hidden = convolve(hidden, affinity, weight, bias, progress=progress)
    return _split_head(hidden, model, progress)


def convolve(
    rows: NDArray[np.float32],
    affinity: Affinity,
    weight: NDArray[np.float32],
    bias: NDArray[np.float32],
    *,
    progress: Progress = silent,
) -> NDArray[np.float32]:
    """Apply one graph convolution, relu([F, A~ F] W + b): (n, d) -> (n, h)."""
    out = np.empty((len(rows), weight.shape[1]), dtype=np.float32)
    own, around = weight[: rows.shape[1]], weight[rows.shape[1] :]

    def convolve_tile(start: int, stop: int) -> None:
        aggregated = np.empty((stop - start, rows.shape[1]), dtype=np.float32)
        _aggregate_rows(start, stop, affinity.offsets, affinity.columns, affinity.weights, rows, aggregated)
        values = rows[start:stop] @ own
        values += aggregated @ around
        values += bias
        np.maximum(values, 0, out=out[start:stop])

    _for_each_tile(len(rows), convolve_tile, "graph convolution", progress)
    return out


def _load_rows(features: Features, progress: Progress) -> NDArray[np.float32]:
    rows = np.empty((len(features), features.dim), dtype=np.float32)
    for start, stop in features.blocks():
        rows[start:stop] = features.read(start, stop)
        progress("read features", stop, len(features))
    return rows


def _split_head(hidden: NDArray[np.float32], model: Model, progress: Progress) -> NodeProjections:
    """Project every node so that an edge is one fused add-abs-sum (see the module's docstring)."""
    first, bias = model.tensors["classifier.0.weight"], model.tensors["classifier.0.bias"]
    slope = model.tensors["classifier.1.weight"]
    last, last_bias = model.tensors["classifier.2.weight"], model.tensors["classifier.2.bias"]
    h = first.shape[0]
    difference = last[1] - last[0]
    linear, absolute = difference * (1 + slope) / 2, difference * (1 - slope) / 2
    order = np.argsort(absolute < 0, kind="stable")  # columns with a positive sign first
    scale = np.abs(absolute)[order, None]
    source_weight, target_weight = first[:, :h], first[:, h:]
    scaled_source, scaled_target = (scale * source_weight[order]).T, (scale * target_weight[order]).T
    scaled_bias = scale[:, 0] * bias[order]
    source_line, target_line = source_weight.T @ linear, target_weight.T @ linear
    constant = np.float32(bias @ linear + last_bias[1] - last_bias[0])
    n = len(hidden)
    source, target = np.empty((n, h), np.float32), np.empty((n, h), np.float32)
    source_linear, target_linear = np.empty(n, np.float32), np.empty(n, np.float32)

    def project_tile(start: int, stop: int) -> None:
        tile = hidden[start:stop]
        np.add(tile @ scaled_source, scaled_bias, out=source[start:stop])
        np.matmul(tile, scaled_target, out=target[start:stop])
        source_linear[start:stop] = tile @ source_line + constant
        target_linear[start:stop] = tile @ target_line

    _for_each_tile(n, project_tile, "project nodes", progress)
    return NodeProjections(source, target, source_linear, target_linear, int((absolute >= 0).sum()))


def _for_each_tile(n: int, work: Callable[[int, int], None], stage: str, progress: Progress) -> None:
    """Call work(start, stop) for the fixed tiles of n rows, on as many threads as numba is set to."""
    progress(stage, 0, n)
    starts = range(0, n, _TILE_ROWS)
    with start_workers() as pool:
        jobs = [pool.submit(work, start, min(start + _TILE_ROWS, n)) for start in starts]
        try:
            for start, job in zip(starts, jobs, strict=True):
                job.result()
                progress(stage, min(start + _TILE_ROWS, n), n)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


@njit(cache=True, nogil=True)
def _aggregate_rows(start, stop, offsets, columns, weights, rows, out):  # type: ignore[no-untyped-def]
    """Sum weight * row over the entries of each affinity row of the tile: out = (A~ F)[start:stop]."""
    for i in range(start, stop):
        out[i - start] = 0
        for e in range(offsets[i], offsets[i + 1]):
            weight = weights[e]
            j = columns[e]
            for t in range(rows.shape[1]):
                out[i - start, t] += weight * rows[j, t]


# Reassociation lets the sum over t use vector lanes; an edge is always summed by the same code, so its bits do not
# vary.
@njit(cache=True, nogil=True, fastmath={"reassoc", "nsz", "contract"})
def _score_rows(start, stop, neighbors, source, target, source_linear, target_linear, n_positive, scores):  # type: ignore[no-untyped-def]
    """Score the edges of rows start..stop: sigmoid of p_i + q_j + sum of sign |P_i + Q_j|."""
    h = source.shape[1]
    for i in range(start, stop):
        for slot in range(neighbors.shape[1]):
            j = neighbors[i, slot]
            if j < 0:
                scores[i, slot] = 0
                continue
            positive = np.float32(0)
            for t in range(n_positive):
                positive += abs(source[i, t] + target[j, t])
            negative = np.float32(0)
            for t in range(n_positive, h):
                negative += abs(source[i, t] + target[j, t])
            logit = source_linear[i] + target_linear[j] + positive - negative
            scores[i, slot] = np.float32(1) / (np.float32(1) + np.exp(-logit))
