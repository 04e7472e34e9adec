"""Tuning: the settings of an opponent that suit the training people best, so that no comparison is with a straw man.

In: a method and a labelled collection. Out: the settings of its grid with the highest mean of pairwise and BCubed F;
for a trained method also the weights. A method without training is judged on the training people (at most 20,000 faces:
some people and those nearest to them); a trained one on the tenth of the people that is kept out of its training, among
the others (`heldout.py`). Its weights stay those learned from the other nine tenths, where starfc's default training
holds out a quarter up to three times and then learns from everybody. Nothing ever sees the test labels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..baselines import Method
from ..baselines.weights import Weights
from ..errors import InputError
from ..features import Features
from ..heldout import HeldOut, score_faces, split_people
from ..knn import KnnGraph, build_knn, join_rows
from ..progress import Progress, silent
from ..sampling import SamplingPlan, fit_plan, index_people, sample_subgraph

_MOST_FACES = 20_000
_HELD_OUT = 0.1
_SPLIT, _SAMPLE, _GRAPH = range(3)

Settings = dict[str, Any]


def tune_method(
    method: Method, features: Features, graph: KnnGraph, labels: NDArray[np.int64], *, seed: int = 0,
    progress: Progress = silent,
) -> Settings:  # fmt: skip
    """Choose the settings of a method that needs no training.

    Parameters
    ----------
    method : Method
    features : Features
        (n, d).
    graph : KnnGraph
        (n, k).
    labels : int64 (n,)
    seed : int
        Of the sample, where there are too many faces, and of the method.

    Returns
    -------
    dict
        Settings to pass to ``cluster_faces`` beside the method's own; empty if it has none to choose.
    """
    return _search_grid(method, _gather_people(features, graph, labels, seed), None, seed, progress)


def train_tuned(
    method: Method, features: Features, graph: KnnGraph, labels: NDArray[np.int64], *, seed: int = 0,
    steps: int | None = None, progress: Progress = silent,
) -> tuple[Weights, Settings]:  # fmt: skip
    """Train on nine tenths of the people and choose the settings on the others."""
    module = method.load()
    if not module.GRID:  # it chooses for itself
        return module.train_model(
            features, graph, labels, seed=seed, steps=steps, progress=progress, **method.settings
        ), {}
    index = index_people(features, labels)
    learned, held = split_people(index, _HELD_OUT, np.random.default_rng([seed, _SPLIT]))
    judged = HeldOut.build(features, labels, held, learned, k=graph.k, seed=[seed, _GRAPH])
    if judged is None:
        raise InputError("nobody held out has two faces; tune on a collection with more people of several faces")
    rows = np.sort(learned.rows)
    part = Features(np.asarray(features.raw[rows]))
    own = build_knn(part, k=min(graph.k, len(part) - 1), seed=seed)
    before = module.choose_training(part, own, labels[rows]) if hasattr(module, "choose_training") else {}
    model: Weights = module.train_model(
        part, own, labels[rows], seed=seed, steps=steps, progress=progress, **method.settings, **before
    )
    return model, _search_grid(method, judged, model, seed, progress)


def _gather_people(features: Features, graph: KnnGraph, labels: NDArray[np.int64], seed: int) -> HeldOut:
    """Return the collection with its graph, or a part of near people with a graph of its own if it is large."""
    if len(features) <= _MOST_FACES and (labels >= 0).all():
        return HeldOut(features, labels, np.ones(len(labels), dtype=np.bool_), graph)
    index = index_people(features, labels)
    whole = SamplingPlan(seeds=1, near=len(index), cluster_randomness=None, sample_randomness=None, k=graph.k)
    plan = fit_plan(whole, n_people=len(index), n_faces=len(index.rows), max_nodes=_MOST_FACES)
    rows = sample_subgraph(index, plan, np.random.default_rng([seed, _SAMPLE]))
    taken = Features(features.take(rows))
    own = join_rows(taken.raw, min(graph.k, len(rows) - 1))
    return HeldOut(taken, labels[rows], np.ones(len(rows), dtype=np.bool_), own)


def _search_grid(method: Method, people: HeldOut, model: Weights | None, seed: int, progress: Progress) -> Settings:
    """Return the settings of the grid with the highest mean F; of equals the first."""
    grid = method.load().GRID
    if len(grid) < 2:
        return dict(grid[0]) if grid else {}
    cluster = _prepare(method, people.features, people.graph, model, seed)
    scores = []
    progress(f"tune {method.name}", 0, len(grid))
    for settings in grid:
        found = separate_noise(cluster(settings))
        scores.append(sum(score_faces(people.labels, found, people.judged)))
        progress(f"tune {method.name}", len(scores), len(grid))
    return dict(grid[int(np.argmax(scores))])


def _prepare(
    method: Method, features: Features, graph: KnnGraph, model: Weights | None, seed: int
) -> Callable[[Settings], NDArray[np.int64]]:
    """Return a function from settings to labels that does once what does not depend on them."""
    module = method.load()
    learned = {} if model is None else {"model": model}
    if hasattr(module, "measure_evidence"):
        evidence = module.measure_evidence(features, graph, **learned)
        return lambda settings: module.cluster_evidence(evidence, seed=seed, **method.settings | settings)
    return lambda settings: module.cluster_faces(features, graph, seed=seed, **learned, **method.settings | settings)


def separate_noise(labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Give every face labelled -1 a cluster of its own.

    >>> separate_noise(np.array([0, -1, 0, -1]))
    array([0, 1, 0, 2])
    """
    alone = labels < 0
    separated = labels.copy()
    separated[alone] = labels.max(initial=-1) + 1 + np.arange(np.count_nonzero(alone))
    return separated
