"""STAR-FC (Shen et al., "Structure-aware face clustering on a large-scale graph with 10^7 nodes", CVPR 2021).

Ourselves, through the same door as the others. With a model: edges scored by the GCN, parsed by tau_1, refined by
node intimacy and tau_2, connected components (`preset` "paper": the published training and thresholds; "default":
what starfc does, thresholds from held-out people). Without one: cosines, the threshold from the data, the map
equation. Nothing is left to tune from outside.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..features import Features
from ..knn import KnnGraph
from ..model import Model, ModelConfig
from ..pipeline import cluster
from ..progress import Progress, silent
from .weights import Weights

GRID: tuple[dict[str, Any], ...] = ()


def cluster_faces(
    features: Features, graph: KnnGraph, *, model: Weights | None = None, preset: str = "default", seed: int = 0
) -> NDArray[np.int64]:
    """Cluster with the model, or without one.

    Parameters
    ----------
    features : Features
        (n, d).
    graph : KnnGraph
        (n, k).
    model : Weights, optional
        From :func:`train_model`.
    preset : str
        Not used: what the model was trained with counts.
    seed : int
        Of the map equation.

    Returns
    -------
    int64 (n,)
    """
    own = None
    if model is not None:
        config = dict(model.facts)
        own = Model(ModelConfig(**config | {"hidden": tuple(config["hidden"])}), model.tensors)
    return cluster(features, model=own, knn_graph=graph, seed=seed).labels


def train_model(
    features: Features,
    graph: KnnGraph,
    labels: NDArray[np.int64],
    *,
    preset: str = "default",
    steps: int | None = None,
    seed: int = 0,
    progress: Progress = silent,
    **settings: Any,  # noqa: ANN401
) -> Weights:
    """Train with starfc's own training; the graph is not used, because subgraphs have their own."""
    from ..training import train

    model = train(features, labels, preset=preset, steps=steps, seed=seed, progress=progress, **settings)
    facts = asdict(model.config)
    facts["training"] = {name: value for name, value in facts["training"].items() if name != "history"}
    return Weights(model.tensors, facts)
