"""Pipeline: the one place that knows the order of the stages.

    Features -> KnnGraph -> ScoredEdges -> EdgeGraph -> Clusters

Settings come from the caller, else from the model, else from the data.
"""

from __future__ import annotations

import logging
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .atomic import replacing
from .background import find_threshold
from .errors import InputError
from .features import Features, as_features, open_npz_array
from .knn import KnnGraph, build_knn, load_knn, save_knn
from .labels import save_labels
from .model import Model, load_model
from .partition import PARTITIONS, partition_graph
from .progress import Progress, silent
from .prune import AGGREGATES, EDGE_KINDS, prune_edges
from .score import ScoredEdges, score_by_cosine, score_edges
from .threads import limited_threads
from .workdir import Workdir, digest_arrays, digest_features

logger = logging.getLogger(__name__)
SCORERS = ("gcn", "cosine")
DEFAULT_K = 80


@dataclass(frozen=True)
class Settings:
    """How the graph is scored, pruned and partitioned."""

    n_neighbors: int  # per face, the face itself not counted
    scorer: str
    tau1: float | None
    tau2: float | None
    aggregate: str = "max"
    edges: str = "directed"
    partition: str = "components"
    k_counts_self: bool = False
    seed: int = 0  # of the map equation

    @property
    def k(self) -> int:
        """K as its user counts it: with the face itself for models of the authors' release."""
        return self.n_neighbors + int(self.k_counts_self)

    def __post_init__(self) -> None:
        for name, allowed in (
            ("scorer", SCORERS),
            ("aggregate", AGGREGATES),
            ("edges", EDGE_KINDS),
            ("partition", PARTITIONS),
        ):
            if getattr(self, name) not in allowed:
                raise InputError(f"{name} ('{getattr(self, name)}') must be one of {', '.join(allowed)}")
        if self.seed < 0:
            raise InputError(f"seed ({self.seed}) must be 0 or more")
        for name, lowest in (("tau1", -1.0), ("tau2", 0.0)):
            value = getattr(self, name)
            if value is not None and not lowest <= value <= 1.0:
                raise InputError(f"{name} ({value}) must be between {lowest:g} and 1")


@dataclass(frozen=True)
class Clusters:
    """Who is who, and what led there.

    Attributes
    ----------
    labels : int64 (n,)
        Cluster of each face, 0 and up, numbered by first appearance.
    settings : Settings
        What was used, also where it was found from the data.
    scored : ScoredEdges
        The scored kNN graph, kept for `rethreshold`.
    seconds : dict
        Wall time per stage and `total`.
    notes : tuple of str
        What the user should know about how this came about.
    """

    labels: NDArray[np.int64]
    settings: Settings
    scored: ScoredEdges = field(repr=False)
    seconds: dict[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Faces per cluster, int64 (n_clusters,)."""
        return np.bincount(self.labels)

    def summary(self) -> dict[str, Any]:
        """Return the figures of `starfc cluster --json`."""
        sizes = self.sizes
        return {
            "n": len(self.labels),
            "k": self.settings.k,
            "n_neighbors": self.settings.n_neighbors,
            "n_clusters": len(sizes),
            "n_singletons": int((sizes == 1).sum()),
            "largest": int(sizes.max(initial=0)),
            "scorer": self.settings.scorer,
            "tau1": self.settings.tau1,
            "tau2": self.settings.tau2,
            "partition": self.settings.partition,
            "seconds": {stage: round(seconds, 3) for stage, seconds in self.seconds.items()},
            "peak_rss_gb": round(peak_rss_gb(), 3),
        }

    def rethreshold(self, **changes: Any) -> Clusters:  # noqa: ANN401
        """Prune and partition the same scores with other settings (tau1, tau2, aggregate, edges, partition, seed).

        >>> import starfc
        >>> rows = np.random.default_rng(0).normal(size=(50, 8))
        >>> clusters = starfc.cluster(rows, k=5, tau1=0.5)
        >>> clusters.rethreshold(tau1=1.0).summary()["n_clusters"]
        50
        """
        fixed = {"n_neighbors", "k_counts_self", "scorer"} & changes.keys()
        if fixed:
            raise InputError(f"{', '.join(sorted(fixed))} cannot be changed without scoring again; call cluster()")
        unknown = changes.keys() - Settings.__dataclass_fields__.keys()
        if unknown:
            raise InputError(
                f"{', '.join(sorted(unknown))} is no setting; use tau1, tau2, aggregate, edges, partition or seed"
            )
        started = time.perf_counter()
        settings = replace(self.settings, **changes)
        labels = _partition(self.scored, settings)
        seconds = {"total": time.perf_counter() - started}
        return replace(self, labels=labels, settings=settings, seconds=seconds, notes=())

    def save(self, path: str | Path) -> None:
        """Write the labels as `.npy`, `.csv`, `.parquet` or `.meta`."""
        save_labels(self.labels, path)


def cluster(
    X: Features | ArrayLike | str | Path,
    *,
    model: Model | str | Path | None = None,
    k: int | None = None,
    scorer: str | None = None,
    tau1: float | None = None,
    tau2: float | None = None,
    aggregate: str | None = None,
    edges: str | None = None,
    partition: str | None = None,
    knn: str = "auto",
    knn_graph: KnnGraph | str | Path | None = None,
    recall: float = 0.95,
    workdir: str | Path | None = None,
    memory_gb: float | None = None,
    seed: int = 0,
    threads: int | None = None,
    progress: Progress = silent,
) -> Clusters:
    """Group face vectors by person.

    Parameters
    ----------
    X : array (n, d), Features or path
        Face vectors of any scale and float type.
    model : Model or path, optional
        A trained or imported model. Without one, edges are scored by cosine, with a threshold found from the data.
    k : int, optional
        Neighbours per face; the model's, else 80. For an imported checkpoint k counts the face itself, as its authors
        do.
    scorer : {"gcn", "cosine"}, optional
        The model's, else "cosine".
    tau1, tau2 : float, optional
        Thresholds on score and intimacy; the model's. Without a model tau1 is found from the data and tau2 is not used.
    aggregate, edges : str, optional
        See :func:`starfc.prune.prune_edges`.
    partition : {"components", "mapequation", "dynamic"}, optional
        The model's, else "mapequation".
    knn : {"auto", "exact", "cells"}
        How the kNN graph is built.
    knn_graph : KnnGraph or path, optional
        A ready-made graph in place of building one.
    recall : float
        Recall asked of an approximate kNN graph.
    workdir : path, optional
        Folder in which finished stages are kept: the same call goes on where a killed one stopped.
    memory_gb : float, optional
        Refuse to start if more is needed.
    seed, threads, progress
        Random seed; cores to use (all); callable for progress.

    Returns
    -------
    Clusters

    Examples
    --------
    >>> import starfc
    >>> rng = np.random.default_rng(0)
    >>> people = rng.normal(size=(20, 64))
    >>> faces = np.repeat(people, 10, axis=0) + 0.3 * rng.normal(size=(200, 64))
    >>> clusters = starfc.cluster(faces)
    >>> clusters.labels[:12]
    array([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1])
    """
    features = as_features(X)
    loaded = load_model(model) if isinstance(model, str | Path) else model
    graph = load_knn(knn_graph, n_expected=len(features)) if isinstance(knn_graph, str | Path) else knn_graph
    if graph is not None and len(graph.neighbors) != len(features):
        raise InputError(
            f"the kNN graph has {len(graph.neighbors)} rows for {len(features)} faces; build it from these features"
        )
    settings = _settle(features, loaded, graph, k, scorer, tau1, tau2, aggregate, edges, partition, seed)
    if loaded is not None and settings.scorer == "gcn":
        loaded.require_dim(features.dim)
    _require_memory(features, settings, loaded, memory_gb)
    run = _Run(progress)
    with limited_threads(threads):
        with run.timed("check"):
            features.check(progress)
        run.workdir = Workdir.open(workdir)
        settings = run.choose_threshold(features, settings, seed)
        graph = run.get_graph(features, settings, graph, knn, recall, seed)
        scored = run.get_scores(features, graph, settings, loaded)
        with run.timed("partition"):
            labels = _partition(scored, settings)
    run.seconds["total"] = time.perf_counter() - run.started
    return Clusters(labels, settings, scored, run.seconds, tuple(run.notes))


class _Run:
    """One call of `cluster`: its clock, its notes and its work folder."""

    def __init__(self, progress: Progress) -> None:
        self.workdir = Workdir(None)
        self.progress = progress
        self.started = time.perf_counter()
        self.seconds: dict[str, float] = {}
        self.notes: list[str] = []
        self.depends_on: dict[str, Any] = {}

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Add the wall time of the block to the stage's account."""
        started = time.perf_counter()
        yield
        self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - started

    def choose_threshold(self, features: Features, settings: Settings, seed: int) -> Settings:
        """Find tau_1 from the data where neither the caller nor a model gave one."""
        if settings.tau1 is not None:
            return settings
        with self.timed("threshold"):
            found, reason = find_threshold(features, seed=seed)
        self.notes.append(
            f"no tau1 given: edges are scored by cosine, threshold {found:.3f} found from the data ({reason})"
        )
        logger.info(self.notes[-1])
        return replace(settings, tau1=found)

    def get_graph(
        self,
        features: Features,
        settings: Settings,
        ready: KnnGraph | None,
        method: str,
        recall: float,
        seed: int,
    ) -> KnnGraph:
        """Return the kNN graph with the wanted number of neighbours: the ready-made one, a kept one, or a new one."""
        with self.timed("knn"):
            if ready is not None:
                if self.workdir.folder is not None:
                    digest = digest_arrays(neighbors=ready.neighbors, similarities=ready.similarities)
                    self.depends_on = {"features": digest_features(features), "graph": digest}
                return KnnGraph(
                    ready.neighbors[:, : settings.n_neighbors], ready.similarities[:, : settings.n_neighbors]
                )
            if self.workdir.folder is not None:
                facts = {"k": settings.n_neighbors, "method": method, "recall": recall, "seed": seed}
                self.depends_on = {"features": digest_features(features, self.progress), "knn": facts}

            def build() -> KnnGraph:
                return build_knn(
                    features,
                    k=settings.n_neighbors,
                    method=method,
                    recall=recall,
                    seed=seed,
                    progress=self.progress,
                )

            return self.workdir.stage("knn", self.depends_on, build, save_knn, load_knn)

    def get_scores(self, features: Features, graph: KnnGraph, settings: Settings, model: Model | None) -> ScoredEdges:
        """Return the scored edges, by cosine or by the model."""
        with self.timed("score"):
            if settings.scorer == "cosine" or model is None:
                return score_by_cosine(graph)

            def build() -> ScoredEdges:
                return score_edges(features, graph, model, progress=self.progress)

            def load(path: Path) -> ScoredEdges:
                return ScoredEdges(graph.neighbors, np.asarray(open_npz_array(path, "scores")))

            depends_on = self.depends_on | {
                "k": settings.n_neighbors,
                "model": digest_arrays(**model.tensors),
            }
            return self.workdir.stage("scores", depends_on, build, _save_scores, load)


def peak_rss_gb() -> float:
    """Return the largest resident memory of this process so far, in GB."""
    status = Path("/proc/self/status")
    if status.exists():  # getrusage keeps the peak of the process that started this one
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024 / 1e9
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e9 if sys.platform == "darwin" else peak * 1024 / 1e9


def _settle(
    features: Features,
    model: Model | None,
    graph: KnnGraph | None,
    k: int | None,
    scorer: str | None,
    tau1: float | None,
    tau2: float | None,
    aggregate: str | None,
    edges: str | None,
    partition: str | None,
    seed: int,
) -> Settings:
    """Fill what the caller left open from the model, else with the defaults."""
    chosen_scorer = scorer or (model.config.scorer if model else "cosine")
    if chosen_scorer == "gcn" and model is None:
        raise InputError("scorer 'gcn' needs a model; pass --model (model=...) or use scorer 'cosine'")
    config = model.config if model is not None and chosen_scorer != "cosine" else None
    if config is not None:
        tau1 = config.tau1 if tau1 is None else tau1
        tau2 = config.tau2 if tau2 is None else tau2
    return Settings(
        n_neighbors=_settle_neighbors(len(features), model, graph, k),
        scorer=chosen_scorer,
        tau1=tau1,
        tau2=tau2,
        aggregate=aggregate or (config.aggregate if config else "max"),
        edges=edges or (config.edges if config else "directed"),
        partition=partition or (config.partition if config else "mapequation"),
        k_counts_self=model is not None and model.config.k_counts_self,
        seed=seed,
    )


def _settle_neighbors(n: int, model: Model | None, graph: KnnGraph | None, k: int | None) -> int:
    """Return the neighbours per face: the caller's k is checked, a default one is cut to what there is."""
    if n < 2:
        raise InputError(f"there are {n} vectors; clustering needs at least 2")
    if k is not None and (isinstance(k, bool) or not isinstance(k, int | np.integer)):
        raise InputError(f"k ({k!r}) must be a whole number; leave it out for the default")
    counts_self = int(model is not None and model.config.k_counts_self)
    available = graph.neighbors.shape[1] if graph is not None else n - 1
    if k is None:
        return max(1, min((model.config.k if model else DEFAULT_K) - counts_self, available))
    if graph is not None and k - counts_self > available:
        raise InputError(
            f"k ({k}) is more than the {available} neighbours of the given kNN graph;"
            f" pass k={available + counts_self} or fewer"
        )
    if k - counts_self < 1:
        raise InputError(f"k ({k}) must be at least {1 + counts_self}; leave it out for the default")
    if k - counts_self >= n:
        raise InputError(
            f"k ({k}) must be smaller than the number of vectors ({n}); pass k={n - 1 + counts_self} or fewer"
        )
    return k - counts_self


def _require_memory(features: Features, settings: Settings, model: Model | None, memory_gb: float | None) -> None:
    """Refuse to start what will not fit."""
    if memory_gb is None:
        return
    per_face = 4 * features.dim + 34 * settings.n_neighbors
    if settings.scorer == "gcn" and model is not None:
        per_face += 8 * (2 * settings.n_neighbors + 1) + 4 * sum(model.config.hidden) + 8 * model.config.hidden[-1]
    needed = 0.3 + per_face * len(features) / 1e9
    if needed > memory_gb:
        raise InputError(
            f"{len(features)} faces of dimension {features.dim} with k {settings.k} need about {needed:.1f} GB, more"
            f" than memory_gb ({memory_gb:g}); raise it or use a smaller k"
        )


def _partition(scored: ScoredEdges, settings: Settings) -> NDArray[np.int64]:
    graph = prune_edges(
        scored, tau1=settings.tau1, tau2=settings.tau2, aggregate=settings.aggregate, edges=settings.edges
    )
    return partition_graph(graph, partition=settings.partition, seed=settings.seed)


def _save_scores(scored: ScoredEdges, path: Path) -> None:
    with replacing(path) as aside, aside.open("wb") as file:
        np.savez(file, scores=scored.scores)
