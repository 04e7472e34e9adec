"""Relational scoring: P(same person) for every edge from relations alone, with a model that is shipped with starfc.

In: Features and their KnnGraph. Out: ScoredEdges with probabilities. Each face's own chance similarities
(`profiles.py`) turn cosines into evidence, evidence becomes relations (`relations.py`), and a small network turns those
into log-odds,

    log p / (1 - p) = W_3 relu(W_2 relu(W_1 r + b_1) + b_2) + b_3.

How likely a match is differs between collections; the relations that tell of the collection carry it. Where all matches
stand very high, what stands low are look-alikes: edges lose the odds by which they fall short of what is asked for
there (`find_least_discovery`).

Nothing in it depends on the embedder, its dimension or the size of the collection, so one model, trained over many
worlds (`benchmarks/worlds.py`), serves all; `relational_training.py` fits it to labelled faces. Edges without evidence
(ten or more strangers expected) have p = 0. No world has fewer than 60 faces; among fewer, p is at most 1 less the
chance pairs expected among all of them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .atomic import replacing_folder
from .errors import ModelError
from .features import Features
from .knn import KnnGraph
from .profiles import Profiles, measure_profiles
from .progress import Progress, silent
from .relations import RELATIONS, Surroundings, relate_rows, survey_graph
from .roworder import order_rows
from .score import ScoredEdges
from .scratch import Scratch
from .tiles import run_tiles

# An edge is kept if p is above: what a user prefers, in words.
PREFERENCES = {"precision": 0.9, "balanced": 0.7, "recall": 0.4}
FORMAT = "starfc-relational"
SCORES = "scores0"  # the array that the scores are in, in files
BITS = 4  # counted up when a change here, or of what is measured for it, changes scores: kept ones are made anew
_NOTHING = 1e-30
_DISCOVERY = RELATIONS.index("discovery_hi")
_MOST_DISCOVERY = 3.0
_DECADE = np.float32(np.log(10.0))  # ten times the strangers are a tenth of the odds
# Fewer than in any world it has learned from: what it says counts as far as chance pairs among all of them allow.
_FEWEST_FACES = 60
_LOW_MATCHES = 4.0  # evidence of the lower tenth of best neighbours down to which nothing is asked for
_EDGES_AT_A_TIME = 256  # through the network
_TILE_ROWS = 128  # few enough for the relations of their edges to stay in the cache


@dataclass(frozen=True)
class RelationalModel:
    """A network from relations to log-odds.

    Attributes
    ----------
    weights : tuple of float32 (inputs, outputs)
        Of each layer; the first takes RELATIONS, the last gives one number.
    biases : tuple of float32 (outputs,)
    lowest, highest : float32 (relations,)
        Range of each relation in training. Beyond it a network says anything, so relations are cut to it.
    facts : dict
        What it was trained on.
    """

    weights: tuple[NDArray[np.float32], ...]
    biases: tuple[NDArray[np.float32], ...]
    lowest: NDArray[np.float32]
    highest: NDArray[np.float32]
    facts: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        widths = [len(RELATIONS), *(len(bias) for bias in self.biases)]
        shapes = [weight.shape for weight in self.weights]
        if widths[-1] != 1 or shapes != list(pairwise(widths)):
            raise ModelError(
                f"a relational model takes {len(RELATIONS)} relations and gives one number; its layers have shapes"
                f" {shapes}: the folder is damaged or of another version"
            )
        if self.lowest.shape != (len(RELATIONS),) or self.highest.shape != (len(RELATIONS),):
            raise ModelError(f"a relational model needs a range for each of {len(RELATIONS)} relations; train it again")
        if not all(np.isfinite(tensor).all() for tensor in (*self.weights, *self.biases, self.lowest, self.highest)):
            raise ModelError("the model holds NaN or infinite weights; train it again")

    @property
    def tensors(self) -> dict[str, NDArray[np.float32]]:
        """All numbers of the model by name."""
        tensors = {f"layer{at}.weight": np.ascontiguousarray(weight) for at, weight in enumerate(self.weights)}
        tensors |= {f"layer{at}.bias": np.ascontiguousarray(bias) for at, bias in enumerate(self.biases)}
        return tensors | {"lowest": np.ascontiguousarray(self.lowest), "highest": np.ascontiguousarray(self.highest)}

    def predict(self, relations: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the log-odds of edges, (m, relations) -> (m,)."""
        weights = tuple(np.ascontiguousarray(weight) for weight in self.weights)
        rows = np.ascontiguousarray(relations)
        return np.asarray(_run_network(rows, self.lowest, self.highest, weights, self.biases))

    def save(self, folder: str | Path, card: str) -> None:
        """Write `model.safetensors`, `config.json` and the model card, all or none."""
        from safetensors.numpy import save

        config = {"format": FORMAT, "scorer": "relational", "relations": list(RELATIONS), "training": self.facts}
        with replacing_folder(Path(folder)) as aside:
            (aside / "model.safetensors").write_bytes(save(self.tensors))
            (aside / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
            (aside / "README.md").write_text(card, encoding="utf-8")


def load_relational(folder: str | Path) -> RelationalModel:
    """Read a relational model folder."""
    from safetensors.numpy import load

    folder = Path(folder)
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        tensors = load((folder / "model.safetensors").read_bytes())
        n_layers = len(tensors) // 2 - 1
        weights = tuple(tensors[f"layer{at}.weight"] for at in range(n_layers))
        biases = tuple(tensors[f"layer{at}.bias"] for at in range(n_layers))
        ranges = tensors["lowest"], tensors["highest"]
    except Exception as error:  # safetensors has an exception of its own
        raise ModelError(f"{folder} is no relational model ({error}); pass a folder that starfc has written") from error
    if config.get("format") != FORMAT or config.get("relations") != list(RELATIONS):
        raise ModelError(f"{folder} is a model of other relations than this version's; train it again")
    return RelationalModel(weights, biases, *ranges, config.get("training", {}))


@cache
def load_shipped() -> RelationalModel:
    """Return the model that comes with starfc.

    >>> load_shipped().weights[0].shape[0] == len(RELATIONS)
    True
    """
    return load_relational(Path(str(files("starfc") / "shipped")))


def score_by_relations(
    features: Features,
    graph: KnnGraph,
    *,
    model: RelationalModel | None = None,
    profiles: Profiles | None = None,
    scratch: Scratch | None = None,
    progress: Progress = silent,
) -> ScoredEdges:
    """Score every edge by what its ends have in common.

    Parameters
    ----------
    features : Features
        (n, d); of any embedder.
    graph : KnnGraph
        (n, k) over the same faces.
    model : RelationalModel, optional
        The shipped one by default.
    profiles : Profiles, optional
        Of the same faces, where they have been measured already.
    scratch : Scratch, optional
        Where the scores live; in memory by default. In files, what a killed run has scored is not scored again.
    progress : callable
        Called as ``progress("relations", done, total)``.

    Returns
    -------
    ScoredEdges
        (n, k) probabilities that both ends are the same person.

    Examples
    --------
    >>> from starfc.knn import build_knn
    >>> people = np.random.default_rng(0).normal(size=(40, 64))
    >>> faces = Features(np.repeat(people, 10, axis=0) + 0.5 * np.random.default_rng(1).normal(size=(400, 64)))
    >>> scores = score_by_relations(faces, build_knn(faces, k=20)).scores
    >>> bool(scores[:, :9].mean() > 0.9), bool(scores[:, 9:].mean() < 0.1)
    (True, True)
    """
    chosen = model or load_shipped()
    measured = profiles or measure_profiles(features, progress=progress)
    around = survey_graph(graph, measured.weigh_edges(graph))
    order = order_rows(graph)
    scores = predict_edges(around, chosen, order=order, scratch=scratch, progress=progress)
    if graph.n < _FEWEST_FACES:
        scores[:] = np.minimum(scores, np.clip(1 - graph.n * 10.0**-around.evidence, 0, 1))
    return ScoredEdges(graph.neighbors, scores)


def predict_edges(
    around: Surroundings,
    model: RelationalModel,
    *,
    order: NDArray[np.int32] | None = None,
    scratch: Scratch | None = None,
    progress: Progress = silent,
) -> NDArray[np.float32]:
    """Return the probability of every edge, float32 (n, k); 0 where there is no evidence.

    Rows are visited in the given order: where neighbours follow each other, their lists are still in the cache.
    """
    place, least = scratch or Scratch(), find_least_discovery(around)
    n, k = around.neighbors.shape
    visited = np.arange(n, dtype=np.int32) if order is None else order
    place.start_journal(-(-n // _TILE_ROWS))
    scores = place.array(SCORES, (n, k), np.float32)

    def predict_tile(start: int, stop: int) -> None:
        if place.is_done(start // _TILE_ROWS):
            return
        rows = visited[start:stop]
        relations, positions = relate_rows(around, rows)
        log_odds = np.full((stop - start, k), -np.inf, dtype=np.float32)
        log_odds.reshape(-1)[positions] = predict_log_odds(model, relations, least)
        _squash(log_odds)
        scores[rows] = log_odds
        place.mark(start // _TILE_ROWS)

    run_tiles(n, _TILE_ROWS, predict_tile, "relations", progress, place.relieve)
    return scores


def predict_log_odds(model: RelationalModel, relations: NDArray[np.float32], least: float) -> NDArray[np.float32]:
    """Return the log-odds of described edges (m,), less where fewer strangers are asked for than a face links."""
    missing = np.maximum(np.float32(least) - relations[:, _DISCOVERY], 0)
    return np.asarray(model.predict(relations) - _DECADE * missing, dtype=np.float32)


@njit(cache=True, nogil=True)
def _run_network(relations, lowest, highest, weights, biases):  # type: ignore[no-untyped-def]
    """Return the log-odds of edges, so few at a time that what is between the layers stays in the cache."""
    out = np.empty(len(relations), dtype=np.float32)
    widest = relations.shape[1]
    for bias in biases:
        widest = max(widest, len(bias))
    below, above = np.empty(_EDGES_AT_A_TIME * widest, np.float32), np.empty(_EDGES_AT_A_TIME * widest, np.float32)
    for start in range(0, len(relations), _EDGES_AT_A_TIME):
        block = relations[start : start + _EDGES_AT_A_TIME]
        width = block.shape[1]
        _cut_to_range(block, lowest, highest, below)
        for layer in range(len(weights)):
            values = below[: len(block) * width].reshape(len(block), width)
            width = len(biases[layer])
            product = above[: len(block) * width].reshape(len(block), width)
            np.dot(values, weights[layer], product)
            _add_bias(product, biases[layer], np.float32(0 if layer + 1 < len(weights) else -np.inf))
            below, above = above, below
        out[start : start + len(block)] = below[: len(block)]
    return out


@njit(cache=True, nogil=True)
def _cut_to_range(block, lowest, highest, out):  # type: ignore[no-untyped-def]
    """Write the relations of some edges one after the other, each cut to its range."""
    width = block.shape[1]
    for edge in range(len(block)):
        for at in range(width):
            value = block[edge, at] if block[edge, at] > lowest[at] else lowest[at]
            out[edge * width + at] = value if value < highest[at] else highest[at]


@njit(cache=True, nogil=True)
def _add_bias(values, bias, lowest):  # type: ignore[no-untyped-def]
    """Add the bias to every row, and raise what is below the lowest to it."""
    for row in range(len(values)):
        for at in range(len(bias)):
            value = values[row, at] + bias[at]
            values[row, at] = value if value > lowest else lowest


def _squash(values: NDArray[np.float32]) -> None:
    """Turn log-odds into probabilities in place."""
    np.clip(values, -80, 30, out=values)
    np.negative(values, out=values)
    np.exp(values, out=values)
    values += 1
    np.reciprocal(values, out=values)
    values[values < _NOTHING] = 0


def find_least_discovery(around: Surroundings) -> float:
    """Return how sure a face must be of what it links down to an edge: minus log10 of the share of strangers in it.

    Where nine in ten best neighbours stand very high, what stands low are look-alikes, not matches: up to a thousandth
    of strangers is asked for. Where matches reach down to what chance gives, nothing is.
    """
    return float(min(max((around.typical[1] - _LOW_MATCHES) / 2, 0.0), _MOST_DISCOVERY))
