"""Stages: how one run of the pipeline gets its graph and its scores, from the work folder or anew.

In: Features, Settings, a model. Out: KnnGraph and ScoredEdges. Keeps the run's clock, notes, memory plan and work
folder. With a work folder, finished stages are kept there, and the search in cells and the scores go on behind the last
tile that a killed run had finished; without one, arrays that do not fit in memory go to a temporary folder that is
removed in the end.
"""

from __future__ import annotations

import json
import logging
import mmap
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from . import __version__
from .atomic import temporary_folder
from .background import find_threshold
from .cellknn import BITS as CELL_BITS
from .convolution import reads_in_place
from .errors import InputError
from .features import Features, map_npy
from .knn import COMPARED_BITS, KnnGraph, build_knn, compare_anew, load_knn, prefers_cells, save_knn
from .memoryplan import MemoryPlan, Sizes, measure_pruning, plan_memory, require_disk
from .model import Model
from .profiles import Profiles, choose_k, measure_profiles
from .progress import Progress
from .prune import count_surviving
from .relational import BITS, SCORES, load_shipped, score_by_relations
from .relational_model import SCORERS as RELATIONAL
from .relational_model import combine_scores, open_network, open_space
from .score import BITS as GCN_BITS
from .score import ScoredEdges, score_by_cosine, score_edges
from .scratch import KeptPages, Scratch, identify_boot, read_facts, remove_scratch
from .settings import Settings
from .space import Space, map_features
from .strictness import balance_strictness
from .tiles import run_tiles
from .workdir import Workdir, digest_arrays, digest_features

logger = logging.getLogger(__name__)
_CHECK_ROWS = 4096
_KNN_PARTS = "knn.parts"
_MAPPED_PARTS = "mapped.parts"
_PRUNING_PARTS = "pruning.parts"


class Run:
    """One call of `cluster`: its clock, its notes, its memory plan and its work folder."""

    def __init__(self, progress: Progress) -> None:
        self.workdir = Workdir(None)
        self.progress = progress
        self.started = time.perf_counter()
        self.seconds: dict[str, float] = {}
        self.notes: list[str] = []
        self.depends_on: dict[str, Any] = {}
        self.pages = Scratch()  # the mapped inputs, to be let go of when there is too much in memory
        self._space: Space | None = None  # that the features were mapped to
        self._mapped: Features | None = None
        self._mapped_in_files = 0  # bytes of them that are on the disk already
        self._profiles: Profiles | None = None
        self._temporary: Path | None = None

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Add the wall time of the block to the stage's account."""
        started = time.perf_counter()
        yield
        self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - started

    @contextmanager
    def opened(self, workdir: str | Path | None, beside: Path) -> Iterator[None]:
        """Open the work folder; close it, and remove the temporary one, when the block ends."""
        with ExitStack() as stack:
            self.workdir = Workdir.open(workdir)
            stack.enter_context(self.workdir.locked())
            if self.workdir.folder is not None:
                remove_scratch(self.workdir.folder / _MAPPED_PARTS)  # of a killed run
            self._stack, self._beside = stack, beside
            yield

    def settle_memory(
        self,
        features: Features,
        model: Model | None,
        graph: KnnGraph | None,
        method: str,
        recall: float,
        settings: Settings,
        memory_gb: float | None,
    ) -> MemoryPlan:
        """Settle how the run keeps to its memory; refuse what neither memory nor disk can hold."""
        sizes = measure_sizes(features, model, graph, method, recall, settings)
        if self._mapped is not None and self._mapped_in_files == 0:
            sizes = replace(sizes, mapped_row_bytes=0)  # they are in the memory of the process already
        plan = plan_memory(sizes, memory_gb=memory_gb, in_files=self.workdir.folder is not None)
        if self.workdir.folder is not None:
            there = self._mapped_in_files + _count_kept_bytes(self.workdir.folder)
            require_disk(self.workdir.folder, plan.disk_bytes - there)
        elif plan.in_files:
            require_disk(self._beside.resolve().parent, plan.disk_bytes - self._mapped_in_files)
        self.plan = plan
        self.pages = Scratch(limit_bytes=plan.budget_bytes)
        self.pages.watch(features.raw)
        if self._mapped is not None:
            self.pages.watch(self._mapped.raw)
        return plan

    def _folder(self) -> Path:
        """Return where files go: the work folder, else a temporary one."""
        if self.workdir.folder is not None:
            return self.workdir.folder
        if self._temporary is None:
            self._temporary = self._stack.enter_context(temporary_folder(self._beside))
        return self._temporary

    def _progress(self, stage: str, done: int, total: int) -> None:
        """Tell of the progress, and let go of mapped pages if there are too many: for stages that know of none."""
        self.progress(stage, done, total)
        self.pages.relieve()

    def check(self, features: Features) -> None:
        """Read everything once, so that a bad row is named before hours of work and not after."""

        def check_rows(start: int, stop: int) -> None:
            features.read(start, stop)

        with self.timed("check"):
            run_tiles(len(features), _CHECK_ROWS, check_rows, "check", self.progress, self.pages.relieve)

    def map_features(self, features: Features, space: Space) -> Features:
        """Return the features in the model's space; files with them are made anew by every run, and gone after it."""
        self._space, in_files = space, self.plan.in_files
        folder = self._folder() / _MAPPED_PARTS if in_files else None
        with self.timed("map"), Scratch(folder, limit_bytes=self.plan.budget_bytes) as scratch:
            scratch.watch(features.raw)
            mapped = map_features(features, space, scratch=scratch, progress=self.progress)
        if folder is not None:
            remove_scratch(folder)  # what is mapped of it stays readable
            self._mapped_in_files = mapped.raw.nbytes
        self._mapped = mapped
        self.pages.watch(mapped.raw)
        return mapped

    def choose_neighbors(
        self, features: Features, settings: Settings, model: Model | None, *, most: int | None
    ) -> Settings:
        """Measure the background of every face where relations score edges; find k, unless `most` is None."""
        if settings.scorer not in RELATIONAL:
            return settings
        with self.timed("profiles"):
            self._profiles = measure_profiles(features, progress=self._progress)
            if most is None:
                return settings
            k = min(choose_k(features, self._profiles, progress=self._progress), most)
        whose = "model's network of relations" if model is not None else "shipped relational model"
        self.notes.append(f"edges are scored by the {whose}; {k} neighbours per face, from the data")
        return replace(settings, n_neighbors=k)

    def choose_threshold(self, features: Features, settings: Settings, seed: int) -> Settings:
        """Find the cosine from the data from which on edges are kept, where neither the caller nor a model gave one."""
        if settings.tau1 is not None or settings.scorer != "cosine":
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
        graph = self._get_graph(features, settings, ready, method, recall, seed)
        self.pages.watch(graph.neighbors, graph.similarities)
        return graph

    def _get_graph(
        self, features: Features, settings: Settings, ready: KnnGraph | None, method: str, recall: float, seed: int
    ) -> KnnGraph:
        with self.timed("knn"):
            if self.workdir.folder is not None:
                self.depends_on = {"features": digest_features(features, self.progress, self.pages.relieve)}
            k = settings.n_neighbors
            if ready is not None:
                if self.workdir.folder is not None:
                    remove_scratch(self.workdir.folder / _KNN_PARTS)  # of a killed run that had none
                    self.pages.watch(ready.neighbors, ready.similarities)
                    relieve = self.pages.relieve
                    digest = digest_arrays(relieve, neighbors=ready.neighbors, similarities=ready.similarities)
                    order = None if ready.order is None else digest_arrays(order=ready.order)
                    self.depends_on |= {"graph": digest, "order": order}
                if self._space is not None:
                    ready = self._compare_anew(features, ready)
                return KnnGraph(ready.neighbors[:, :k], ready.similarities[:, :k], ready.order)
            wanted = {"k": k, "method": method, "recall": recall, "seed": seed, "bits": CELL_BITS}
            self.depends_on |= {"knn": wanted}

            def build() -> KnnGraph:
                return build_knn(
                    features, k=k, method=method, recall=recall, seed=seed,
                    folder=self._folder() / _KNN_PARTS if self.plan.in_files else None,
                    facts=self.depends_on, memory=self.plan.budget_bytes, progress=self._progress,
                )  # fmt: skip

            graph = self.workdir.stage("knn", self.depends_on, build, save_knn, load_knn)
            if self.plan.in_files:
                remove_scratch(self._folder() / _KNN_PARTS)  # what is mapped of it stays readable
            return graph

    def _compare_anew(self, features: Features, graph: KnnGraph) -> KnnGraph:
        """Return a ready-made graph with the similarities that its edges have in the model's space."""
        self.notes.append(
            "the model sees faces in a space of its own: the given kNN graph's edges are compared anew there, and"
            " nobody is found who is not on its lists"
        )
        folder = self._folder() / _KNN_PARTS if self.plan.in_files else None

        def build() -> KnnGraph:
            with Scratch(folder, limit_bytes=self.plan.budget_bytes) as scratch:
                scratch.watch(features.raw, graph.neighbors)
                return compare_anew(features, graph, scratch=scratch, progress=self._progress)

        compared = self.workdir.stage(
            "knn", self.depends_on | {"compared": graph.k, "bits": COMPARED_BITS}, build, save_knn, load_knn
        )
        if folder is not None:
            remove_scratch(folder)  # what is mapped of it stays readable
        return compared

    def get_scores(self, features: Features, graph: KnnGraph, settings: Settings, model: Model | None) -> ScoredEdges:
        """Return the scored edges, by cosine or by the model."""
        with self.timed("score"):
            if self.workdir.folder is not None:  # what killed runs with other scorers have left
                for stage in {"cosine": ("scores", "relations"), "combined": ()}.get(settings.scorer, ("relations",)):
                    remove_scratch(self.workdir.folder / f"{stage}.parts")
            if settings.scorer == "relational":
                return self._score_relations(features, graph, settings, model)
            if settings.scorer == "cosine" or model is None:
                return score_by_cosine(graph)
            if settings.scorer == "gcn":
                return self._score_gcn(features, graph, model)
            k = model.config.n_neighbors  # what the GCN was trained with
            near = KnnGraph(graph.neighbors[:, :k], graph.similarities[:, :k], graph.order)
            relations = self._score_relations(features, graph, settings, model, stage="relations")
            return combine_scores(relations, self._score_gcn(features, near, model), model.config.gcn_weight)

    def _score_gcn(self, features: Features, graph: KnnGraph, model: Model) -> ScoredEdges:
        """Return the edges scored by the model's GCN."""
        facts = self.depends_on | {"k": graph.k, "model": digest_arrays(**model.tensors), "bits": GCN_BITS}

        def build(scratch: Scratch) -> ScoredEdges:
            scratch.watch(features.raw)
            columns = scratch.facts["columns"]
            return score_edges(features, graph, model, columns=columns, scratch=scratch, progress=self.progress)

        return self._keep_scores("scores", facts, graph, build)

    def _score_relations(
        self, features: Features, graph: KnnGraph, settings: Settings, model: Model | None, stage: str = "scores"
    ) -> ScoredEdges:
        """Return the edges scored by the relational model that was given, else by the shipped one."""
        is_own = model is not None and model.config.scorer in RELATIONAL
        network = open_network(model) if model is not None and is_own else load_shipped()
        facts = self.depends_on | {"k": settings.n_neighbors, "model": digest_arrays(**network.tensors), "bits": BITS}

        def build(scratch: Scratch) -> ScoredEdges:
            if self.plan.in_files:
                self.pages.let_go()
            return score_by_relations(
                features, graph, model=network, profiles=self._profiles, scratch=scratch, progress=self._progress
            )

        return self._keep_scores(stage, facts, graph, build)

    def _keep_scores(
        self, stage: str, facts: dict[str, Any], graph: KnnGraph, build: Callable[[Scratch], ScoredEdges]
    ) -> ScoredEdges:
        """Return scores from the work folder, or build them in files that a killed run goes on with, and keep them."""
        opened: list[Scratch] = []  # only if there is work to do

        def start() -> ScoredEdges:
            opened.append(self._open_scratch(facts, f"{stage}.parts"))
            return build(opened[0])

        def save(scored: ScoredEdges, path: Path) -> None:
            opened[0].publish(SCORES, path)

        scored = self.workdir.stage(stage, facts, start, save, partial(_load_scores, graph), ending=".npy")
        if self.plan.in_files:
            remove_scratch(self._folder() / f"{stage}.parts")  # what is mapped of it stays readable
        if opened and self.workdir.folder is not None:
            return _load_scores(graph, self.workdir.folder / f"{stage}.npy")  # what was built writes into the file
        return scored

    def balance(self, scored: ScoredEdges, settings: Settings) -> Settings:
        """Find the probability from which on edges are kept, where neither the caller nor a model gave one."""
        if settings.tau1 is not None or settings.scorer != "relational":
            return settings
        pages = Scratch(limit_bytes=self.plan.budget_bytes)
        pages.watch(scored.scores)
        with self.timed("threshold"):
            found, n_matches = balance_strictness(scored, scratch=pages)
        self.notes.append(f"links with p > {found:g} are kept: the median face has {n_matches:.3g} likely matches")
        return replace(settings, tau1=found)

    @contextmanager
    def pruning(self, scored: ScoredEdges, settings: Settings) -> Iterator[Scratch]:
        """Yield where the edges that survive tau_1 go: to memory or, where they do not fit, to files for the time."""
        if self.workdir.folder is not None:
            remove_scratch(self.workdir.folder / _PRUNING_PARTS)  # of a killed run
        if self.plan.peak_bytes >= self.plan.budget_bytes:
            self.pages.let_go()
        pages = Scratch(limit_bytes=self.plan.budget_bytes)
        pages.watch(scored.neighbors, scored.scores)
        n, n_edges = len(scored.neighbors), count_surviving(scored, settings.tau1, scratch=pages)
        held, mapped = measure_pruning(n, n_edges, settings.partition)
        spare = self.plan.measure_spare()
        if held > spare and settings.partition != "components":
            raise InputError(
                f"{n_edges} edges survive tau1 ({settings.tau1}); partition '{settings.partition}' needs about"
                f" {held / 1e9:.1f} GB for them and memory_gb ({self.plan.budget_bytes / 1e9:.3g}) leaves"
                f" {max(spare, 0) / 1e9:.1f}; raise it or tau1, or use partition 'components'"
            )
        if held + mapped <= spare:
            yield pages
            return
        folder = self._folder() / _PRUNING_PARTS
        require_disk(folder.parent, mapped)
        with Scratch(folder, limit_bytes=self.plan.budget_bytes) as scratch:
            scratch.watch(scored.neighbors, scored.scores)
            yield scratch
        remove_scratch(folder)

    def _open_scratch(self, facts: dict[str, Any], name: str) -> Scratch:
        """Open the files of scoring; where a killed run has left some, its number of columns stands."""
        limit = self.plan.budget_bytes
        if not self.plan.in_files:
            return Scratch(limit_bytes=limit, facts={"columns": self.plan.columns})
        folder = self._folder() / name
        wanted = json.loads(json.dumps({"starfc": __version__, **facts}))
        left = read_facts(folder) or {}
        same = left.get("boot") == identify_boot() and {name: left.get(name) for name in wanted} == wanted
        columns = left.get("columns") if same else self.plan.columns
        return Scratch(folder, facts=wanted | {"columns": columns}, limit_bytes=limit)


def measure_sizes(
    features: Features, model: Model | None, graph: KnnGraph | None, method: str, recall: float, settings: Settings
) -> Sizes:
    """Return what the memory of a run depends on."""
    is_mapped = model is not None and open_space(model, settings.scorer) is not None
    in_cells = prefers_cells(method, len(features), settings.n_neighbors, recall)
    return Sizes(
        n=len(features),
        k=settings.n_neighbors,
        row_bytes=features.dim * features.raw.dtype.itemsize,
        features_in_memory=not _is_mapped(features.raw),
        graph_in_memory=graph is not None and not _is_mapped(graph.neighbors),
        dim=features.dim,
        copied_row_bytes=0 if reads_in_place(features) else 4 * features.dim,
        mapped_row_bytes=2 * features.dim if is_mapped else 0,
        compared_row_bytes=8 * graph.k if is_mapped and graph is not None else 0,
        knn="" if graph is not None else "cells" if in_cells else "exact",
        scorer=settings.scorer,
        hidden=model.config.hidden if settings.scorer in ("gcn", "combined") and model is not None else (),
        partition=settings.partition,
    )


def _load_scores(graph: KnnGraph, path: Path) -> ScoredEdges:
    """Open scores that were kept, as a map of which nothing is written back.

    Kernels are compiled for arrays that can be written; nobody does, so that its pages can be let go of.
    """
    known: Any = map_npy(path)  # names what is wrong with it
    with path.open("rb") as file:
        pages = KeptPages(file.fileno(), 0, access=mmap.ACCESS_COPY)
    return ScoredEdges(graph.neighbors, np.ndarray(known.shape, known.dtype, buffer=pages, offset=known.offset))


def _is_mapped(array: Any) -> bool:  # noqa: ANN401
    """Tell whether an array is a memory map or a view of one."""
    while isinstance(array, np.ndarray):
        if isinstance(array, np.memmap):
            return True
        array = array.base
    return False


def _count_kept_bytes(folder: Path) -> int:
    """Return the size of what earlier runs left in a work folder, which this one replaces; other files may be there."""
    ours = (path for stage in ("knn", "scores", "relations", "pruning") for path in folder.glob(f"{stage}.*"))
    files = (file for path in ours for file in ([path] if path.is_file() else path.rglob("*")))
    return sum(file.stat().st_size for file in files if file.is_file())
