"""STAR-FC (Shen et al., "Structure-aware face clustering on a large-scale graph with 10^7 nodes", CVPR 2021).

Ourselves, through the same door as the others. `preset` "paper" is the published method: edges scored by the GCN,
parsed by tau_1, refined by node intimacy and tau_2, connected components, with the published training and thresholds.
"default" is what `starfc train` makes of labels, without a model what `starfc cluster` does without any, except that
the number of neighbours is that of the given graph and not found from the data. Nothing is left to tune from outside.
Deviation: "paper" is trained for 400 steps unless told otherwise, the most that any other method has in the tables;
`starfc train --preset paper` takes 2,000.
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
from .frame import Lesson, learns
from .weights import Weights

GRID: tuple[dict[str, Any], ...] = ()
_PAPER_STEPS = 400


def cluster_faces(
    features: Features, graph: KnnGraph, *, model: Weights | None = None, preset: str = "default", seed: int = 0
) -> NDArray[np.int64]:
    """Cluster with the model, or without one; `preset` is what the model was trained with."""
    own = None
    if model is not None:
        lists = {name: tuple(value) for name, value in model.facts.items() if isinstance(value, list)}
        own = Model(ModelConfig(**model.facts | lists), model.tensors)
    return cluster(features, model=own, knn_graph=graph, seed=seed).labels


@learns
def train_model(lesson: Lesson, *, preset: str = "default", **settings: Any) -> Weights:  # noqa: ANN401
    """Train with starfc's own training; the graph is not used, because subgraphs have their own."""
    from ..training import train

    steps = lesson.steps or (_PAPER_STEPS if preset == "paper" else None)
    model = train(
        lesson.features, lesson.labels, preset=preset, steps=steps, seed=lesson.seed, progress=lesson.progress,
        **settings,
    )  # fmt: skip
    facts = asdict(model.config)
    facts["training"] = {name: value for name, value in facts["training"].items() if name != "history"}
    return Weights(model.tensors, facts)
