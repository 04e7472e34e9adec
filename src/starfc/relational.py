"""Relational scoring: P(same person) for every edge from relations alone, with a model that is shipped with starfc.

In: Features and their KnnGraph. Out: ScoredEdges with probabilities. Each face's own chance similarities
(`profiles.py`) turn cosines into evidence, evidence becomes relations r (`relations.py`), and a small network
(`perceptron.py`) turns those into log-odds. With the probabilities of all edges at hand, those that are not hopeless
get a second look: what their ends' matches think of each other (`looks.py`), l, tells a second network what to add,

    o_1 = first(r),    log p / (1 - p) = o_1 + second(r, l(o_1)).

Others keep o_1; it is cut to ±9 then, and kept in steps of 1/3640.

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
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import ModelError
from .features import Features
from .knn import KnnGraph
from .looks import HOPELESS, LOOKS, Beliefs, decode_chances, encode_log_odds, look_again, mark_hopeful, sum_beliefs
from .model import read_tensors, write_folder
from .pairs import divide_edges, write_both
from .perceptron import Perceptron, read_perceptron
from .profiles import Profiles, measure_profiles
from .progress import Progress, silent
from .relations import LOWEST_EVIDENCE, RELATIONS, Surroundings, relate_edges, survey_graph
from .roworder import order_rows
from .score import ScoredEdges
from .scratch import Scratch
from .tiles import run_tiles

FORMAT = "starfc-relational"
INPUTS = (*RELATIONS, *LOOKS)  # of the second network; the first has the relations alone
SCORES = "scores0"  # the array that the scores are in, in files
BITS = 8  # counted up when a change here, or of what is measured for it, changes scores: kept ones are made anew
_CODES = "first"  # the array of first probabilities
_STAGES = "relations", "second look"
FIRST_ODDS = INPUTS.index("log_odds")
_SECOND = "second."  # before the names of the second network's tensors
_NOTHING = 1e-30
_DISCOVERY = RELATIONS.index("discovery_hi")
_MOST_DISCOVERY = 3.0
_DECADE = np.float32(np.log(10.0))  # ten times the strangers are a tenth of the odds
# Fewer than in any world it has learned from: what it says counts as far as chance pairs among all of them allow.
_FEWEST_FACES = 60
_LOW_MATCHES = 4.0  # evidence of the lower tenth of best neighbours down to which nothing is asked for
_TILE_ROWS = 128  # few enough for the relations of their edges to stay in the cache


@dataclass(frozen=True)
class RelationalModel:
    """Networks from relations to log-odds.

    Attributes
    ----------
    first : Perceptron
        From RELATIONS.
    second : Perceptron, optional
        From RELATIONS and LOOKS to what is added to the log-odds of the first; without it there is no second look.
    facts : dict
        What they were trained on.
    """

    first: Perceptron
    second: Perceptron | None = None
    facts: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.first.require_inputs(len(RELATIONS))
        if self.second is not None:
            self.second.require_inputs(len(INPUTS))

    @property
    def tensors(self) -> dict[str, NDArray[np.float32]]:
        """All numbers of the model by name."""
        second = {} if self.second is None else self.second.name_tensors(_SECOND)
        return self.first.name_tensors() | second

    @property
    def inputs(self) -> tuple[str, ...]:
        """What the last network takes: it says whether there is a second look."""
        return RELATIONS if self.second is None else INPUTS

    def save(self, folder: str | Path, card: str) -> None:
        """Write `model.safetensors`, `config.json` and the model card, all or none."""
        config = {"format": FORMAT, "scorer": "relational", "relations": list(self.inputs), "training": self.facts}
        write_folder(Path(folder), self.tensors, config, card)


def read_model(
    tensors: Mapping[str, NDArray[np.float32]], inputs: tuple[str, ...], facts: dict[str, Any]
) -> RelationalModel:
    """Return the model whose numbers have these names and whose last network takes these inputs.

    KeyError where a number is missing, ModelError where this version has other inputs.
    """
    if inputs not in (RELATIONS, INPUTS):
        raise ModelError("the model was trained on other relations than this version of starfc has; train it again")
    second = read_perceptron(tensors, _SECOND) if inputs == INPUTS else None
    return RelationalModel(read_perceptron(tensors), second, facts)


def load_relational(folder: str | Path) -> RelationalModel:
    """Read a relational model folder."""
    folder = Path(folder)
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        tensors = read_tensors(folder, config)
    except ModelError:
        raise
    except Exception as error:  # safetensors has an exception of its own
        raise ModelError(f"{folder} is no relational model ({error}); pass a folder that starfc has written") from error
    if config.get("format") != FORMAT:
        raise ModelError(f"{folder} is no relational model; pass a folder that starfc has written")
    try:
        return read_model(tensors, tuple(config.get("relations", ())), config.get("training", {}))
    except KeyError as error:
        raise ModelError(f"{folder} lacks the tensor {error}; pass a folder that starfc has written") from error


@cache
def load_shipped() -> RelationalModel:
    """Return the model that comes with starfc.

    >>> load_shipped().first.weights[0].shape[0] == len(RELATIONS)
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
        Called as ``progress("relations", done, total)``, then as ``progress("second look", done, total)``.

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
    visits = _Visits(len(around.neighbors), 1 if model.second is None else 2, order, scratch or Scratch(), progress)
    scores = visits.place.array(SCORES, around.neighbors.shape, np.float32)
    if model.second is None:
        _judge_first(visits, around, model.first, _squash, scores)
        return scores
    codes = visits.place.array(_CODES, around.neighbors.shape, np.uint16)
    _judge_first(visits, around, model.first, encode_log_odds, codes)
    _judge_again(visits, around, model.second, codes, scores)
    visits.place.drop(_CODES)
    return scores


def predict_codes(around: Surroundings, first: Perceptron) -> NDArray[np.uint16]:
    """Return the first probability of every edge as a code (`looks.py`), uint16 (n, k)."""
    codes = np.empty(around.neighbors.shape, dtype=np.uint16)
    _judge_first(_Visits(len(codes), 1, None, Scratch(), silent), around, first, encode_log_odds, codes)
    return codes


class _Visits:
    """Passes over the tiles of n rows in some order; what a killed run has finished is not done again."""

    def __init__(
        self, n: int, n_passes: int, order: NDArray[np.int32] | None, place: Scratch, progress: Progress
    ) -> None:
        self.place, self._progress = place, progress
        self._order = np.arange(n, dtype=np.int32) if order is None else order
        self._n_tiles = -(-n // _TILE_ROWS)
        place.start_journal(n_passes * self._n_tiles)

    def run(self, number: int, work: Callable[[NDArray[np.int32]], None]) -> None:
        """Do the work of a pass for the rows of each tile."""

        def visit(start: int, stop: int) -> None:
            unit = number * self._n_tiles + start // _TILE_ROWS
            if not self.place.is_done(unit):
                work(self._order[start:stop])
                self.place.mark(unit)

        run_tiles(len(self._order), _TILE_ROWS, visit, _STAGES[number], self._progress, self.place.relieve)


def _judge_first(
    visits: _Visits,
    around: Surroundings,
    first: Perceptron,
    form: Callable[[NDArray[np.float32]], NDArray[Any]],
    out: NDArray[Any],
) -> None:
    """Write the first log-odds of all edges in some form, 0 where there is no evidence."""
    least, ranks, neighbors = find_least_discovery(around), around.rank_faces(), around.neighbors

    def work(rows: NDArray[np.int32]) -> None:
        own, places = divide_edges(neighbors, around.evidence, LOWEST_EVIDENCE, ranks=ranks, rows=rows)
        found = form(predict_log_odds(first, relate_edges(around, rows, own), least))
        rest = np.zeros(places.shape, dtype=out.dtype)
        write_both(found, own, rest, neighbors=neighbors, places=places, rows=rows, out=out)

    visits.run(0, work)


def _judge_again(
    visits: _Visits, around: Surroundings, second: Perceptron, codes: NDArray[np.uint16], scores: NDArray[np.float32]
) -> None:
    """Write the probabilities after the second look; edges that get none keep what they had."""
    beliefs, ranks, neighbors = sum_beliefs(around.neighbors, codes), around.rank_faces(), around.neighbors

    def work(rows: NDArray[np.int32]) -> None:
        own, places = divide_edges(neighbors, codes, HOPELESS, ranks=ranks, rows=rows)
        found = _squash(add_second(second, describe_edges(around, beliefs, rows, own)))
        rest = decode_chances(codes[rows])
        write_both(found, own, rest, neighbors=neighbors, places=places, rows=rows, out=scores)

    visits.run(1, work)


def describe_again(
    around: Surroundings, beliefs: Beliefs, rows: NDArray[Any]
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Describe the edges of some rows that get a second look.

    Returns
    -------
    inputs : float32 (m, len(INPUTS))
    positions : int64 (m,)
        Of the edges in the flattened (rows, k) block.
    """
    positions = np.flatnonzero(mark_hopeful(beliefs, rows))
    return describe_edges(around, beliefs, rows, positions), positions


def describe_edges(
    around: Surroundings, beliefs: Beliefs, rows: NDArray[Any], positions: NDArray[np.int64]
) -> NDArray[np.float32]:
    """Describe some edges of rows at a second look, float32 (m, len(INPUTS))."""
    return np.hstack((relate_edges(around, rows, positions), look_again(beliefs, rows, positions)))


def add_second(second: Perceptron, inputs: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the log-odds after the second look, of inputs (m, len(INPUTS))."""
    return np.asarray(inputs[:, FIRST_ODDS] + second.predict(inputs), dtype=np.float32)


def predict_log_odds(first: Perceptron, relations: NDArray[np.float32], least: float) -> NDArray[np.float32]:
    """Return the log-odds of described edges (m,), less where fewer strangers are asked for than a face links."""
    missing = np.maximum(np.float32(least) - relations[:, _DISCOVERY], 0)
    return np.asarray(first.predict(relations) - _DECADE * missing, dtype=np.float32)


def _squash(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Turn log-odds into probabilities, in place."""
    np.clip(values, -80, 30, out=values)
    np.negative(values, out=values)
    np.exp(values, out=values)
    values += 1
    np.reciprocal(values, out=values)
    values[values < _NOTHING] = 0
    return values


def find_least_discovery(around: Surroundings) -> float:
    """Return how sure a face must be of what it links down to an edge: minus log10 of the share of strangers in it.

    Where nine in ten best neighbours stand very high, what stands low are look-alikes, not matches: up to a thousandth
    of strangers is asked for. Where matches reach down to what chance gives, nothing is.
    """
    return float(min(max((around.typical[1] - _LOW_MATCHES) / 2, 0.0), _MOST_DISCOVERY))
