"""Pipeline: the one place that knows the order of the stages.

    Features -> KnnGraph -> ScoredEdges -> EdgeGraph -> Clusters

Settings come from the caller, else from the model, else from the data. What the run will use of memory is settled and
said before it starts.
"""

from __future__ import annotations

import logging
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .constraints import Constraints, apply_constraints, load_constraints
from .errors import InputError
from .features import Features, as_features
from .knn import KnnGraph, load_knn, require_same_faces
from .labels import save_labels
from .model import Model, load_model
from .partition import partition_graph
from .progress import Progress, silent
from .prune import EdgeGraph, prune_edges
from .relational_model import open_space
from .residency import keep_within
from .score import ScoredEdges
from .scratch import Scratch
from .settings import Settings as Settings
from .settings import settle
from .stages import Run
from .strays import place_strays
from .threads import limited_threads

logger = logging.getLogger(__name__)


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
    memory : dict
        What was planned: `budget_gb`, `planned_gb`, `columns` of P and Q at a time (None: all), `disk_gb`.
    constraints : Constraints, optional
        Corrections that the labels honour; with them, known people keep their ids and -1 is no face.
    """

    labels: NDArray[np.int64]
    settings: Settings
    scored: ScoredEdges = field(repr=False)
    seconds: dict[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    memory: dict[str, Any] = field(default_factory=dict)
    constraints: Constraints | None = field(default=None, repr=False)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Faces per cluster, int64 (n_clusters,)."""
        labels = self.labels if self.labels.min(initial=0) >= 0 else self.labels[self.labels >= 0]
        if labels.max(initial=0) > 2 * len(self.labels):  # ids of known people, which may be any
            return np.unique(labels, return_counts=True)[1]
        counts = np.bincount(labels)
        return counts[counts > 0]

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
            "memory": self.memory,
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
        labels = _partition(self.scored, settings, self.constraints)
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
    prefer: str | None = None,
    constraints: Constraints | str | Path | None = None,
    knn: str = "auto",
    knn_graph: KnnGraph | str | Path | None = None,
    recall: float = 0.95,
    workdir: str | Path | None = None,
    memory_gb: float | None = None,
    seed: int = 0,
    threads: int | None = None,
    progress: Progress = silent,
    say: Callable[[str], None] = logger.info,
    beside: str | Path | None = None,
) -> Clusters:
    """Group face vectors by person.

    Parameters
    ----------
    X : array (n, d), Features or path
        Face vectors of any scale and float type.
    model : Model or path, optional
        A trained or imported model. Without one, edges are scored by the relational model that is shipped.
    k : int, optional
        Neighbours per face; the model's, else from the data. For an imported checkpoint k counts the face itself, as
        its authors do.
    scorer : {"gcn", "relational", "combined", "cosine"}, optional
        The model's, else "relational", or "cosine" where tau1 is given.
    tau1, tau2 : float, optional
        Thresholds on score and intimacy; the model's. Without a model tau1 is that of `prefer`, else found from the
        data, and tau2 is not used.
    aggregate, edges : str, optional
        See :func:`starfc.prune.prune_edges`.
    partition : {"components", "mapequation", "refined", "dynamic"}, optional
        The model's; else "refined" where scores are probabilities, "mapequation" for cosines.
    prefer : {"precision", "balanced", "recall"}, optional
        Which mistakes weigh more, for the relational scorer: strangers together, or one person apart.
    constraints : Constraints or path, optional
        Who must and who cannot be together, as the review page writes it.
    knn : {"auto", "exact", "cells"}
        How the kNN graph is built.
    knn_graph : KnnGraph or path, optional
        A ready-made graph in place of building one. Where the model maps the features, its edges are compared anew.
    recall : float
        Recall asked of an approximate kNN graph.
    workdir : path, optional
        Folder in which finished stages are kept: the same call goes on where a killed one stopped.
    memory_gb : float, optional
        Memory to keep to; 80 % of what is free by default. What does not fit goes to files.
    seed, threads, progress
        Random seed; cores to use (all); callable for progress.
    say : callable
        Is told in one line, before the work starts, how much memory it will take, if that is much or was limited.
    beside : path, optional
        Where a temporary folder is made if memory is short and there is no workdir: in the folder of this path, else
        in the system's.

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
    if graph is not None:
        require_same_faces(features, graph)
    corrections = (
        load_constraints(constraints, n_faces=len(features)) if isinstance(constraints, str | Path) else constraints
    )
    settings = settle(features, loaded, graph, k, scorer, tau1, tau2, aggregate, edges, partition, prefer, seed)
    space = None if loaded is None else open_space(loaded, settings.scorer)
    if loaded is not None and (settings.scorer in ("gcn", "combined") or space is not None):
        loaded.require_dim(features.dim)
    run = Run(progress)
    target = Path(beside) if beside is not None else Path(tempfile.gettempdir()) / "cluster"
    with ExitStack() as stack:
        stack.enter_context(limited_threads(threads))
        stack.enter_context(run.opened(workdir, target))
        inputs = (features, loaded, graph, knn, recall)
        plan = run.settle_memory(*inputs, settings, memory_gb)  # of the fewest neighbours, where their number is open
        stack.enter_context(keep_within(plan.budget_bytes))  # the next plan has the same, but for what is free then
        run.check(features)
        say(plan.describe())
        if space is not None:
            features = run.map_features(features, space)
        most = len(features) - 1 if graph is None else graph.k
        wanted = run.choose_neighbors(features, settings, loaded, most=most if k is None else None)
        if wanted != settings:
            settings = wanted
            plan = run.settle_memory(*inputs, settings, memory_gb)
            say(plan.describe())
        settings = run.choose_threshold(features, settings, seed)
        graph = run.get_graph(features, settings, graph, knn, recall, seed)
        scored = run.get_scores(features, graph, settings, loaded)
        settings = run.balance(scored, settings)
        with run.timed("partition"), run.pruning(scored, settings) as scratch:
            labels = _partition(scored, settings, corrections, scratch)
    run.seconds["total"] = time.perf_counter() - run.started
    return Clusters(labels, settings, scored, run.seconds, tuple(run.notes), plan.as_dict(), corrections)


def peak_rss_gb() -> float:
    """Return the largest resident memory of this process so far, in GB."""
    status = Path("/proc/self/status")
    if status.exists():  # getrusage keeps the peak of the process that started this one
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024 / 1e9
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e9 if sys.platform == "darwin" else peak * 1024 / 1e9


def _partition(
    scored: ScoredEdges, settings: Settings, constraints: Constraints | None = None, scratch: Scratch | None = None
) -> NDArray[np.int64]:
    graph = prune_edges(
        scored, tau1=settings.tau1, tau2=settings.tau2, aggregate=settings.aggregate, edges=settings.edges,
        scratch=scratch,
    )  # fmt: skip
    labels = label_faces(scored, graph, settings, scratch)
    return labels if constraints is None else apply_constraints(labels, graph, constraints)


def label_faces(
    scored: ScoredEdges, graph: EdgeGraph, settings: Settings, scratch: Scratch | None = None
) -> NDArray[np.int64]:
    """Read the clusters off the pruned graph, and find a place for strays unless precision is preferred."""
    labels = partition_graph(graph, partition=settings.partition, seed=settings.seed, scratch=scratch)
    if settings.partition == "refined" and (settings.tau1 or 0.0) <= settings.strays_up_to:
        return place_strays(scored, labels)
    return labels
