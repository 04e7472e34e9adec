"""The frame that every method is put into, so that its file holds the method and nothing else.

In: what a method does in its own terms. Out: the functions all of them offer (see `starfc.baselines`). `in_two_steps`
makes `cluster_faces` of what takes long and what the settings change; `learns` makes `train_model` of a function that
learns from a Lesson.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..features import Features
from ..knn import KnnGraph
from ..progress import Progress, silent
from .weights import Weights

Labels = NDArray[np.int64]


@dataclass(frozen=True)
class Lesson:
    """What a method learns from: faces (n, d), their graph (n, k), their people (n,), and for how long.

    A row labelled -1 is nobody's; `steps` None is the method's own number.
    """

    features: Features
    graph: KnnGraph
    labels: Labels
    steps: int | None = None
    seed: int = 0
    progress: Progress = silent

    @property
    def known(self) -> Labels:
        """Rows of which the person is known."""
        return np.flatnonzero(self.labels >= 0)

    def rng(self, *stream: int) -> np.random.Generator:
        """Return the generator of a stream of random numbers of its own, such as that of one step."""
        return np.random.default_rng([self.seed, *stream])

    def draw_known(self, count: int, *stream: int) -> Labels:
        """Draw so many of the known rows, or all if there are fewer, each once."""
        known = self.known
        return self.rng(*stream).choice(known, min(count, len(known)), replace=False)


def learns(learn: Callable[..., Weights]) -> Callable[..., Weights]:
    """Make `train_model(features, graph, labels, *, steps, seed, progress, ...)` of a function of a Lesson.

    >>> @learns
    ... def train_model(lesson, *, width=3):
    ...     return Weights({}, {"width": width, "n": len(lesson.known)})
    >>> train_model(None, None, np.array([0, -1, 2]), width=5).facts
    {'width': 5, 'n': 2}
    """

    @functools.wraps(learn)
    def train_model(
        features: Features, graph: KnnGraph, labels: Labels, *, steps: int | None = None, seed: int = 0,
        progress: Progress = silent, **settings: Any,  # noqa: ANN401
    ) -> Weights:  # fmt: skip
        return learn(Lesson(features, graph, labels, steps, seed, progress), **settings)

    return train_model


def in_two_steps(measure: Callable[..., Any], cluster: Callable[..., Labels]) -> Callable[..., Labels]:
    """Make `cluster_faces(features, graph, *, model, seed, ...)` of `measure_evidence` and `cluster_evidence`.

    >>> cluster_faces = in_two_steps(lambda features, graph: 2, lambda evidence, *, seed=0, tau=1: [evidence * tau])
    >>> cluster_faces(None, None, tau=4)
    [8]
    """

    def cluster_faces(
        features: Features, graph: KnnGraph, *, model: Weights | None = None, seed: int = 0,
        **settings: Any,  # noqa: ANN401
    ) -> Labels:  # fmt: skip
        learned = () if model is None else (model,)
        return cluster(measure(features, graph, *learned), seed=seed, **settings)

    cluster_faces.__doc__ = cluster.__doc__
    return cluster_faces
