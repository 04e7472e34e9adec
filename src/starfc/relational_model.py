"""Networks of relations in a model folder, alone or together with a GCN.

In: a Model whose scorer is "relational" or "combined". Out: the RelationalModel that scores edges, and the probability
of edges that both have scored: with o the log-odds of each and w the weight of the GCN, a quarter or a half,

    log p / (1 - p) = (1 - w) o_relations + w o_gcn.

They make different mistakes: relations know the embedder and the collection only by their statistics, the GCN reads the
features themselves. The folder is that of any model (`model.py`); its tensors are the layers of both networks of
relations and the ranges of their inputs, the GCN's, and those of the space (`space.py`) that features are mapped to
before anything else; its configuration names the inputs of the last network, because it is of no use with others.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from .errors import ModelError
from .model import Model, ModelConfig
from .relational import RelationalModel, read_model
from .score import ScoredEdges
from .space import Space, read_space
from .tiles import run_tiles

SCORERS = ("relational", "combined")
_USUAL_K = 80  # for the record: k is found from the data each time
_LEAST = np.float32(1e-6)  # probability: beyond it float32 tells no more
_TILE_ROWS = 4096


def make_model(
    network: RelationalModel,
    *,
    dim: int,
    tau1: float,
    training: dict[str, Any],
    gcn: Model | None = None,
    gcn_weight: float = 0.5,
    space: Space | None = None,
    partition: str = "refined",
) -> Model:
    """Make a model of a network, with a GCN beside it or in a space of its own, to be saved and used like any other.

    >>> from starfc.relational import load_shipped
    >>> make_model(load_shipped(), dim=128, tau1=0.6, training={}).config.scorer
    'relational'
    """
    shared: dict[str, Any] = {"tau1": tau1, "tau2": None, "partition": partition, "relations": network.inputs}
    tensors = network.tensors | ({} if space is None else space.tensors)
    if gcn is not None:
        config = replace(gcn.config, scorer="combined", gcn_weight=gcn_weight, training=training, **shared)
        return Model(config, tensors | gcn.tensors)
    widths = tuple(len(bias) for bias in network.first.biases[:-1])
    config = ModelConfig(dim=dim, hidden=widths, scorer="relational", k=_USUAL_K, training=training, **shared)
    return Model(config, tensors)


def open_network(model: Model) -> RelationalModel:
    """Return the network of relations of a model, checked.

    >>> from starfc.relational import load_shipped
    >>> model = make_model(load_shipped(), dim=128, tau1=0.6, training={})
    >>> bool((open_network(model).first.weights[0] == load_shipped().first.weights[0]).all())
    True
    """
    if model.config.scorer not in SCORERS:
        raise ModelError(f"the model's scorer is '{model.config.scorer}'; one of relations is needed here")
    try:
        return read_model(model.tensors, tuple(model.config.relations or ()), model.config.training)
    except KeyError as error:
        raise ModelError(f"the model lacks the tensor {error}; the folder is damaged, train it again") from error


def open_space(model: Model, scorer: str) -> Space | None:
    """Return the space that a model maps features to, checked; None if it has none, or another scorer is wanted.

    >>> from starfc.relational import load_shipped
    >>> open_space(make_model(load_shipped(), dim=128, tau1=0.6, training={}), "relational") is None
    True
    """
    space = read_space(model.tensors) if scorer == model.config.scorer else None
    if space is not None and len(space.shift) != model.config.dim:
        raise ModelError(
            f"the model is of dimension {model.config.dim} and its space of {len(space.shift)}; the folder is damaged,"
            " train it again"
        )
    return space


def combine_scores(relations: ScoredEdges, gcn: ScoredEdges, gcn_weight: float = 0.5) -> ScoredEdges:
    """Combine what both say of the edges that both have scored; beyond the GCN's lists, relations have the word alone.

    Parameters
    ----------
    relations : ScoredEdges
        (n, k) probabilities; 0 where there is no evidence, and so in the result.
    gcn : ScoredEdges
        (n, k' <= k) probabilities of the first k' neighbours.
    gcn_weight : float
        Of its log-odds, from 0 to 1; those of relations have the rest.

    Returns
    -------
    ScoredEdges
        (n, k).

    Examples
    --------
    >>> neighbors = np.zeros((1, 2), np.int32)
    >>> one, other = (ScoredEdges(neighbors, np.array([row], np.float32)) for row in ([0.9, 0.0], [0.1, 0.9]))
    >>> combine_scores(one, other).scores.round(3)
    array([[0.5, 0. ]], dtype=float32)
    """
    k = gcn.scores.shape[1]
    scores = np.empty(relations.scores.shape, dtype=np.float32)

    def combine_tile(start: int, stop: int) -> None:
        first, second = relations.scores[start:stop, :k], gcn.scores[start:stop]
        odds = [p / (1 - p) for p in (np.clip(part, _LEAST, 1 - _LEAST) for part in (first, second))]
        both = odds[0] ** np.float32(1 - gcn_weight) * odds[1] ** np.float32(gcn_weight)
        scores[start:stop, :k] = np.where(first > 0, both / (1 + both), 0)
        scores[start:stop, k:] = relations.scores[start:stop, k:]

    run_tiles(len(scores), _TILE_ROWS, combine_tile, "combine")
    return ScoredEdges(relations.neighbors, scores)
