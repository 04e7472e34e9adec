"""Scoring: P(same person) for every edge of the kNN graph, without torch.

In: Features, KnnGraph, Model. Out: ScoredEdges. The paper's network (Sec. 3.2) is

    F_{l+1} = relu([F_l, A~ F_l] W_l + b_l),      score(i -> j) = softmax(W_2 prelu(W_1 [h_i; h_j] + b_1) + b_2)[1].

Written out as it stands, an edge costs O(h²). Three identities make it O(h):

- W_1 [h_i; h_j] + b_1 = P_i + Q_j with one projection per node;
- a two-way softmax is the sigmoid of the difference of its logits: w = W_2[1] - W_2[0];
- prelu(v) = (1 + a)/2 v + (1 - a)/2 |v|, so the linear half is a number per node (p_i + q_j) and an edge needs only
  the sum of u |P_i + Q_j|; u is folded into P and Q, up to its sign.

P and Q are the largest arrays by far. Of many faces they are kept in half precision, unless a sample of edges says that
this would move a score by more than .0005: then in single precision, half of the columns at a time. And they need not
be there whole: the sum runs over groups of columns in a fixed order, and any number of groups can be done at a time, at
the price of computing the last convolution again for each pass. Runs of rows have a fixed size, each is done by one
thread with a single-threaded BLAS, and rows are visited in an order that keeps neighbours in the cache. So the scores
have the same bits whatever the threads and the memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .affinity import build_affinity
from .convolution import TILE_ROWS, Layer, RowSource, open_rows
from .errors import InputError
from .features import Features
from .halves import as_single
from .knn import KnnGraph
from .memoryplan import choose_group, measure_column
from .model import Model
from .progress import Progress, silent
from .roworder import order_rows
from .rowstore import narrow_rows
from .scratch import Scratch
from .tiles import run_tiles
from .workers import one_blas_thread

BITS = 2  # counted up when a change here changes scores: kept ones are made anew
_COLUMN_BYTES = 8  # of P and Q in single precision
_MOST_ROUNDING = 5e-4  # of a score in the sample; a rarer edge may be moved by twice as much
_SAMPLED_ROWS = 64
_LARGEST_HALF = np.float32(65504)


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
class Head:
    """The classifier, split: logit(i -> j) = p_i + q_j + sum over groups g of signs[g] * sum |P_i + Q_j| over g.

    P = h source + bias, Q = h target, (p, q) = h lines + (constant, 0). Group g has the columns bounds[g] :
    bounds[g + 1].
    """

    source: NDArray[np.float32]  # (h, h)
    target: NDArray[np.float32]  # (h, h)
    bias: NDArray[np.float32]  # (h,)
    lines: NDArray[np.float32]  # (h, 2)
    constant: np.float32
    bounds: NDArray[np.int64]  # (n_groups + 1,)
    signs: NDArray[np.float32]  # (n_groups,)

    def divide(self, columns: int | None) -> list[tuple[int, int]]:
        """Return the passes, each a run of groups, as many as `columns` at a time need.

        Groups are not all of one width, so a pass may have some columns more: better than a pass for the odd ones.
        """
        width = int(self.bounds[-1])
        n_passes = -(-width // min(width, columns or width))
        limits = np.unique(self.bounds[None, :] - self.bounds[:, None])
        for limit in limits[limits > 0]:
            passes = self._fill_passes(int(limit))
            if len(passes) <= n_passes:
                break
        return passes

    def _fill_passes(self, limit: int) -> list[tuple[int, int]]:
        """Return runs of groups with at most `limit` columns each (but at least one group), filled one by one."""
        passes, first = [], 0
        for group in range(1, len(self.signs) + 1):
            if group == len(self.signs) or self.bounds[group + 1] - self.bounds[first] > limit:
                passes.append((first, group))
                first = group
        return passes


def score_by_cosine(graph: KnnGraph) -> ScoredEdges:
    """Take the similarity itself as the score.

    >>> graph = KnnGraph(np.array([[1], [0]], np.int32), np.array([[0.5], [0.5]], np.float32))
    >>> score_by_cosine(graph).scores.tolist()
    [[0.5], [0.5]]
    """
    return ScoredEdges(graph.neighbors, graph.similarities)


def score_edges(
    features: Features,
    graph: KnnGraph,
    model: Model,
    *,
    columns: int | None = None,
    scratch: Scratch | None = None,
    progress: Progress = silent,
) -> ScoredEdges:
    """Score every edge of the graph with the model's GCN.

    Parameters
    ----------
    features : Features
        (n, d), of the model's dimension.
    graph : KnnGraph
        (n, k) over the same faces.
    model : Model
        Trained or imported.
    columns : int, optional
        Columns of P and Q to hold at a time; all by default. Fewer need less memory and more time.
    scratch : Scratch, optional
        Where the arrays live; in memory by default.
    progress : callable
        Called as ``progress(stage, done, total)``.

    Returns
    -------
    ScoredEdges
        (n, k) probabilities that both ends are the same person; the same bits whatever `columns` and `scratch`.
    """
    model.require_dim(features.dim)
    if len(graph.neighbors) != len(features):
        raise InputError(
            f"the kNN graph has {len(graph.neighbors)} rows for {len(features)} faces; build it from these features"
        )
    scoring = _Scoring(features, graph, model, columns, scratch or Scratch(), progress)
    return ScoredEdges(graph.neighbors, scoring.run())


class _Scoring:
    """One call of `score_edges`: hidden layers one after the other, then passes over the columns of P and Q.

    Its units of work are tiles: of each hidden layer but the last, then of projecting and of scoring in each pass.
    """

    def __init__(
        self,
        features: Features,
        graph: KnnGraph,
        model: Model,
        columns: int | None,
        scratch: Scratch,
        progress: Progress,
    ) -> None:
        self.features, self.graph, self.model = features, graph, model
        self.scratch, self.progress = scratch, progress
        self.head = split_head(model, choose_group(graph.n))
        self.may_halve = measure_column(graph.n) < _COLUMN_BYTES
        self.passes = self.head.divide(columns)
        # In single precision half of the columns fit: all of them at first, some are not needed.
        width = int(self.head.bounds[-1])
        self.single = self.head.divide(max(1, (columns or width) // 2)) if self.may_halve else self.passes
        self.n_tiles = -(-graph.n // TILE_ROWS)
        self.n_hidden = len(model.config.hidden)

    def run(self) -> NDArray[np.float32]:
        """Return the scores, (n, k)."""
        self.scratch.start_journal((self.n_hidden - 1 + 2 * len(self.single)) * self.n_tiles)
        scores = self.scratch.array("scores0", self.graph.neighbors.shape, np.float32)
        if not self.scratch.all_done:
            self.scratch.watch(self.graph.neighbors, self.graph.similarities)
            self.order = order_rows(self.graph)
            self.position = np.empty(self.graph.n, dtype=np.int32)
            self.position[self.order] = np.arange(self.graph.n, dtype=np.int32)
            last = self._convolve_hidden()
            self._score_passes(last, scores)
        return scores

    def _convolve_hidden(self) -> Layer:
        """Compute all layers but the last, which is returned to be applied tile by tile."""
        affinity = build_affinity(self.graph, order=self.order, scratch=self.scratch, progress=self.progress)
        below = open_rows(self.features, self.scratch, self.progress)
        ones = np.ones(self.graph.n, dtype=np.float32)
        for number, width in enumerate(self.model.config.hidden, start=1):
            weight, bias = (self.model.tensors[f"conv{number}.{name}"] for name in ("weight", "bias"))
            layer = Layer(below, affinity, np.ascontiguousarray(weight), bias)
            if number < self.n_hidden:
                states = self.scratch.array(f"layer{number}", (self.graph.n, width), np.float32)
                self._run((number - 1) * self.n_tiles, "graph convolution", _Convolve(layer, self.order, states))
                below = RowSource(states, ones)
        return layer

    def _score_passes(self, last: Layer, scores: NDArray[np.float32]) -> None:
        """Sum up the edges, some columns at a time."""
        bounds, n = self.head.bounds, self.graph.n
        halves = self.may_halve and self._measure_rounding(last) <= _MOST_ROUNDING
        passes, kind_of_number = (self.passes, np.uint16) if halves else (self.single, np.float32)
        width = max(int(bounds[stop] - bounds[first]) for first, stop in passes)
        flat = [self.scratch.array(name, (n * width,), kind_of_number) for name in ("source", "target")]
        linear = self.scratch.array("linear", (n, 2), np.float32)
        # A tile that was cut short must find what it began with, so passes write what the next one reads elsewhere.
        versions = [scores]
        if self.scratch.folder is not None and len(passes) > 1:
            versions.append(self.scratch.array("scores1", scores.shape, np.float32))
        for number, (first, stop) in enumerate(passes):
            n_columns = int(bounds[stop] - bounds[first])
            source, target = (array[: n * n_columns].reshape(n, n_columns) for array in flat)
            n_left = len(passes) - 1 - number  # the last pass writes the first version
            before, after = versions[(n_left + 1) % len(versions)], versions[n_left % len(versions)]
            unit = (self.n_hidden - 1 + 2 * number) * self.n_tiles
            suffix = f" {number + 1}/{len(passes)}" if len(passes) > 1 else ""
            project = _Project(last, self.head, self.order, (first, stop), source, target, linear)
            self._run(unit, f"project nodes{suffix}", project)
            kind = (number == 0, number == len(passes) - 1)
            score = _Score(
                self.graph, self.head, self.order, self.position, (first, stop), source, target, linear,
                before, after, *kind,
            )  # fmt: skip
            self._run(unit + self.n_tiles, f"score edges{suffix}", score)
        for unit in range((self.n_hidden - 1 + 2 * len(passes)) * self.n_tiles, self.scratch.n_units):
            self.scratch.mark(unit)  # passes that were not needed

    @one_blas_thread()
    def _measure_rounding(self, last: Layer) -> float:
        """Return by how much half precision moves the scores of a sample of edges, at most."""
        rows = self.order[:: -(-self.graph.n // _SAMPLED_ROWS)]
        lists = self.graph.neighbors[rows]
        nodes = np.unique(np.concatenate([rows, lists[lists >= 0]])).astype(np.int32)
        hidden = np.concatenate(
            [
                last.apply(nodes[start : start + TILE_ROWS])[: len(nodes) - start]
                for start in range(0, len(nodes), TILE_ROWS)
            ]
        )
        linear = hidden @ self.head.lines
        linear[:, 0] += self.head.constant
        places = np.where(lists < 0, np.int32(-1), np.searchsorted(nodes, lists).astype(np.int32))
        found = []
        for kind in (np.float32, np.uint16):
            source, target = (np.empty(hidden.shape, kind) for _ in range(2))
            _put_block(hidden @ self.head.source + self.head.bias, source)
            _put_block(hidden @ self.head.target, target)
            own = np.searchsorted(nodes, rows)
            sums = np.empty(places.shape, np.float32)
            _sum_edges(
                places, source[own], target, linear[own, 0], linear[:, 1], self.head.bounds, self.head.signs, True, sums
            )
            _squash(places, sums)
            found.append(sums)
        return float(np.abs(found[0] - found[1]).max())

    def _run(self, first_unit: int, stage: str, work: _Convolve | _Project | _Score) -> None:
        """Do the tiles of a stage that are not done yet."""

        def run_tile(start: int, stop: int) -> None:
            unit = first_unit + start // TILE_ROWS
            if not self.scratch.is_done(unit):
                work(start, stop)
                self.scratch.mark(unit)

        run_tiles(self.graph.n, TILE_ROWS, run_tile, stage, self.progress, self.scratch.relieve)


@dataclass(frozen=True)
class _Convolve:
    """A hidden layer: its rows at the places of their faces."""

    layer: Layer
    order: NDArray[np.int32]
    out: NDArray[np.float32]

    def __call__(self, start: int, stop: int) -> None:
        """Do one tile."""
        rows = self.order[start:stop]
        self.out[rows] = self.layer.apply(rows)[: stop - start]


@dataclass(frozen=True)
class _Project:
    """The last layer and from it some columns of P and Q; rows in the order of visiting."""

    layer: Layer
    head: Head
    order: NDArray[np.int32]
    groups: tuple[int, int]
    source: NDArray[Any]  # float32, or uint16 with the bits of halves
    target: NDArray[Any]
    linear: NDArray[np.float32]

    def __call__(self, start: int, stop: int) -> None:
        """Do one tile."""
        hidden = self.layer.apply(self.order[start:stop])
        count, first = stop - start, self.head.bounds[self.groups[0]]
        for group in range(*self.groups):
            lo, hi = self.head.bounds[group : group + 2]
            # A product per group, because the bits of a product depend on its width; of fixed height, even if the
            # last tile is short.
            projected = hidden @ self.head.source[:, lo:hi]
            projected += self.head.bias[lo:hi]
            _put_block(projected[:count], self.source[start:stop, lo - first : hi - first])
            _put_block((hidden @ self.head.target[:, lo:hi])[:count], self.target[start:stop, lo - first : hi - first])
        if self.groups[0] == 0:
            self.linear[start:stop] = (hidden @ self.head.lines)[:count]
            self.linear[start:stop, 0] += self.head.constant


@dataclass(frozen=True)
class _Score:
    """The edges' sums over some columns, and their scores when these are the last."""

    graph: KnnGraph
    head: Head
    order: NDArray[np.int32]
    position: NDArray[np.int32]
    groups: tuple[int, int]
    source: NDArray[Any]
    target: NDArray[Any]
    linear: NDArray[np.float32]
    before: NDArray[np.float32]
    after: NDArray[np.float32]
    is_first: bool
    is_last: bool

    def __call__(self, start: int, stop: int) -> None:
        """Do one tile."""
        rows = self.order[start:stop]
        lists = self.graph.neighbors[rows]
        places = np.where(lists < 0, np.int32(-1), self.position[lists])
        first, last = self.groups
        bounds = self.head.bounds[first : last + 1] - self.head.bounds[first]
        sums = np.empty(places.shape, np.float32) if self.is_first else self.before[rows]
        _sum_edges(
            places, self.source[start:stop], self.target, self.linear[start:stop, 0], self.linear[:, 1], bounds,
            self.head.signs[first:last], self.is_first, sums,
        )  # fmt: skip
        if self.is_last:
            _squash(places, sums)
        self.after[rows] = sums


def split_head(model: Model, group_columns: int) -> Head:
    """Split the classifier so that an edge is one fused add-abs-sum (see the module's docstring)."""
    first, bias = model.tensors["classifier.0.weight"], model.tensors["classifier.0.bias"]
    slope = model.tensors["classifier.1.weight"]
    last, last_bias = model.tensors["classifier.2.weight"], model.tensors["classifier.2.bias"]
    h = first.shape[0]
    difference = last[1] - last[0]
    linear, absolute = difference * (1 + slope) / 2, difference * (1 - slope) / 2
    order = np.argsort(absolute < 0, kind="stable")  # columns with a positive sign first
    scale = np.abs(absolute)[order, None]
    source, target = first[:, :h], first[:, h:]
    n_positive = int((absolute >= 0).sum())
    edges = [*range(0, n_positive, group_columns), *range(n_positive, h, group_columns), h]
    bounds = np.array(edges, dtype=np.int64)
    return Head(
        source=np.ascontiguousarray((scale * source[order]).T),
        target=np.ascontiguousarray((scale * target[order]).T),
        bias=scale[:, 0] * bias[order],
        lines=np.stack([source.T @ linear, target.T @ linear], axis=1),
        constant=np.float32(bias @ linear + last_bias[1] - last_bias[0]),
        bounds=bounds,
        signs=np.where(bounds[:-1] < n_positive, 1, -1).astype(np.float32),
    )


def _put_block(block: NDArray[np.float32], target: NDArray[Any]) -> None:
    """Store a block of P or Q, in half precision where the array has it; no network in use comes near the limit."""
    if target.dtype == np.float32:
        target[:] = block
    else:
        narrow_rows(np.clip(block, -_LARGEST_HALF, _LARGEST_HALF), target)


@njit(cache=True, nogil=True)
def _sum_edges(places, source, target, source_linear, target_linear, bounds, signs, is_first, sums):  # type: ignore[no-untyped-def]
    """Add sign * sum |P_i + Q_j| over some groups of columns to the edges of a tile, four edges of a row at a time."""
    k = places.shape[1]
    for r in range(len(places)):
        p = source[r]
        for slot in range(0, k, 4):
            slot_b, slot_c, slot_d = min(slot + 1, k - 1), min(slot + 2, k - 1), min(slot + 3, k - 1)
            a, b = max(places[r, slot], 0), max(places[r, slot_b], 0)
            c, d = max(places[r, slot_c], 0), max(places[r, slot_d], 0)
            if is_first:
                sum_a = source_linear[r] + target_linear[a]
                sum_b = source_linear[r] + target_linear[b]
                sum_c = source_linear[r] + target_linear[c]
                sum_d = source_linear[r] + target_linear[d]
            else:
                sum_a, sum_b, sum_c, sum_d = sums[r, slot], sums[r, slot_b], sums[r, slot_c], sums[r, slot_d]
            for g in range(len(signs)):
                lo, hi, sign = bounds[g], bounds[g + 1], signs[g]
                add_a, add_b, add_c, add_d = _sum_four(
                    p[lo:hi], target[a, lo:hi], target[b, lo:hi], target[c, lo:hi], target[d, lo:hi]
                )
                sum_a += sign * add_a
                sum_b += sign * add_b
                sum_c += sign * add_c
                sum_d += sign * add_d
            # In a short last run of four a slot repeats, with the same value.
            sums[r, slot], sums[r, slot_b], sums[r, slot_c], sums[r, slot_d] = sum_a, sum_b, sum_c, sum_d


# Reassociation lets the sum use vector lanes; a group is always summed by the same code, so its bits do not vary.
@njit(cache=True, nogil=True, fastmath={"reassoc", "nsz"})
def _sum_four(p, a, b, c, d):  # type: ignore[no-untyped-def]
    """Return the sum of |p + x| for four rows x."""
    sum_a, sum_b, sum_c, sum_d = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
    for t in range(len(p)):
        own = as_single(p[t])
        sum_a += abs(own + as_single(a[t]))
        sum_b += abs(own + as_single(b[t]))
        sum_c += abs(own + as_single(c[t]))
        sum_d += abs(own + as_single(d[t]))
    return sum_a, sum_b, sum_c, sum_d


@njit(cache=True, nogil=True)
def _squash(places, sums):  # type: ignore[no-untyped-def]
    """Turn sums into probabilities, in place; 0 where there is no edge."""
    for r in range(len(places)):
        for slot in range(places.shape[1]):
            score = np.float32(1) / (np.float32(1) + np.exp(-sums[r, slot]))
            sums[r, slot] = score if places[r, slot] >= 0 else np.float32(0)
