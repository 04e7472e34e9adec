"""Training: labelled faces become a model of edges (Sec. 3.2).

In: Features and labels. Out: Model. Each round draws a subgraph (Algorithm 1), rebuilds its kNN graph and
takes a few steps of the cross entropy over slices of its edges; the loop is :func:`_run_steps`. Some of the
*people* are kept aside: they say how good the model is on people it has never seen, and choose tau_1 and
tau_2.

Every random number is drawn from (seed, what for, step), so the state of a training is its weights, the
optimiser's and the step: one file in `workdir`, replaced by rename. A killed training, started again, has the
weights an uninterrupted one would have, bit for bit, on the same number of threads.

Where the paper and the authors' released code differ, the `paper` preset takes the published sampling, and
from the code what the paper does not say: one GCN layer of 512, SGD (.01, momentum .9, decay 1e-5), and that
a subgraph is gone through twice in small steps. Theirs are 80 of 1/40 of the edges; here 16 of 1/8, because
on a CPU a step has a price of its own. A slice is all edges of some of the faces, so that an edge's source
need not be gathered.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import __version__
from .atomic import replacing
from .errors import InputError
from .features import Features, as_features
from .knn import KnnGraph, join_rows
from .labels import as_labels
from .model import Model, ModelConfig
from .network import EdgeNetwork, NodeInput, draw_distance_tensors, draw_tensors, prepare_nodes
from .partition import label_components
from .progress import Progress, silent
from .prune import measure_intimacy, parse_edges
from .sampling import PLANS, PersonIndex, SamplingPlan, fit_plan, index_people, sample_subgraph
from .score import ScoredEdges, score_edges
from .threads import limited_threads
from .workdir import Workdir, digest_arrays

import torch  # isort: skip  (after network.py, which says what to install where it is missing)

logger = logging.getLogger(__name__)

# What a random number is for: streams of one seed must differ.
_SPLIT, _FIRST_WEIGHTS, _SUBGRAPH, _SLICE, _HELD_OUT = range(5)

_SUMS = ("loss", "right", "steps", "nodes", "edges", "seconds")
_FEWEST_PEOPLE = 4
_HELD_OUT_FACES = 20_000  # enough to tell settings apart to a tenth of a point; more would only take time
_SUBGRAPH_NODES = 5_000  # half of the paper's: on a CPU more steps are worth more than larger ones
_REPORTS = 10
_TAU1_GRID = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
_TAU2_GRID = (None, 0.2, 0.3, 0.4, 0.5, 0.6, 0.72, 0.8, 0.9)
_AS_GOOD = 0.005  # held-out F scores nearer than this do not tell two settings apart


@dataclass(frozen=True)
class Preset:
    """What a training does unless it is told otherwise.

    Attributes
    ----------
    plan : SamplingPlan
        How subgraphs are drawn, where the data has enough people.
    max_nodes : int or None
        Faces wanted in a subgraph; None leaves it to the plan.
    optimizer : {"sgd", "adam"}
    learning_rate, weight_decay : float
    decay : bool
        Lower the learning rate to 0 along a cosine.
    steps : int
        Of the optimiser, in all.
    steps_per_subgraph : int
        For how many of them a subgraph is used.
    slice_share : float
        Share of a subgraph's faces whose edges one step sees.
    tau1, tau2 : float
        Thresholds of the model, unless the held-out people choose them.
    choose_thresholds : bool
    start_as_distance : bool
        Begin with weights that make the network a distance of smoothed faces, in place of random ones.
    """

    plan: SamplingPlan
    max_nodes: int | None
    optimizer: str
    learning_rate: float
    weight_decay: float
    decay: bool
    steps: int
    steps_per_subgraph: int
    slice_share: float
    tau1: float = 0.7
    tau2: float = 0.72
    choose_thresholds: bool = True
    start_as_distance: bool = True


PRESETS = {
    "paper": Preset(
        plan=PLANS["ms1m"], max_nodes=None, optimizer="sgd", learning_rate=0.01, weight_decay=1e-5, decay=False,
        steps=2000, steps_per_subgraph=16, slice_share=1 / 8, choose_thresholds=False, start_as_distance=False,
    ),
    "default": Preset(
        plan=PLANS["ms1m"], max_nodes=_SUBGRAPH_NODES, optimizer="adam", learning_rate=3e-4, weight_decay=0.0,
        decay=True, steps=150, steps_per_subgraph=4, slice_share=1 / 2,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class TrainingReport:
    """How a training stands. Figures on held-out people are None when nobody is held out.

    Attributes
    ----------
    step, steps : int
        Done, and in all.
    loss, accuracy : float
        Mean cross entropy and share of edges judged rightly since the last report, on people trained on.
    held_out_accuracy, pairwise_f, bcubed_f : float or None
        The same share, and the F of the clusters at `tau1` and `tau2`, on people never trained on.
    tau1, tau2 : float or None
        Thresholds used for these: the preset's, and in the last report those chosen for the model.
    nodes_per_s, edges_per_s : float
        Faces of subgraphs run through the GCN, and edges through the head, per second (evaluation not
        counted).
    """

    step: int
    steps: int
    loss: float
    accuracy: float
    nodes_per_s: float
    edges_per_s: float
    held_out_accuracy: float | None = None
    pairwise_f: float | None = None
    bcubed_f: float | None = None
    tau1: float | None = None
    tau2: float | None = None

    def __str__(self) -> str:
        speed = f"{self.nodes_per_s:,.0f} nodes/s, {self.edges_per_s:,.0f} edges/s"
        line = f"step {self.step}/{self.steps}: loss {self.loss:.4f}, edge accuracy {self.accuracy:.4f}"
        if self.held_out_accuracy is None:
            return f"{line} ({speed})"
        return (
            f"{line}; held-out people: edge accuracy {self.held_out_accuracy:.4f}, F pairwise {self.pairwise_f:.4f},"
            f" BCubed {self.bcubed_f:.4f} ({speed})"
        )


def train(
    X: Features | ArrayLike | str | Path,
    y: ArrayLike,
    *,
    preset: str = "default",
    steps: int | None = None,
    hidden: tuple[int, ...] = (512,),
    k: int | None = None,
    held_out: float = 0.1,
    plan: SamplingPlan | None = None,
    cluster_randomness: bool = True,
    sample_randomness: bool = True,
    full_graph: bool = False,
    seed: int = 0,
    threads: int | None = None,
    workdir: str | Path | None = None,
    checkpoint_s: float = 20.0,
    progress: Progress = silent,
    on_report: Callable[[TrainingReport], None] | None = None,
) -> Model:
    """Train the paper's network on faces of known people.

    Parameters
    ----------
    X : array (n, d), Features or path
        Face vectors.
    y : int or str (n,)
        Who they are; -1 (or an empty name) is unlabelled and left out. People with one face stay in: they are
        what the others must not be linked to.
    preset : {"default", "paper"}
        What trains well in a minute or two on a CPU, or the published method.
    steps : int, optional
        Optimiser steps; the preset's.
    hidden : tuple of int
        Width of each GCN layer.
    k : int, optional
        Neighbours per face; 80, or less in the default preset if nobody has that many faces.
    held_out : float
        Share of the people kept aside, from 0 (nobody; thresholds are then the paper's) to .5.
    plan : SamplingPlan, optional
        How subgraphs are drawn, taken as it is; the preset's, fitted to the data.
    cluster_randomness, sample_randomness : bool
        False switches CR or SR off.
    full_graph : bool
        Train on all faces at once, without sampling.
    seed, threads
        Random seed; cores to use (all).
    workdir : path, optional
        Folder for checkpoints: the same call goes on where a killed one stopped, or returns what it had
        finished.
    checkpoint_s : float
        Seconds between checkpoints.
    progress, on_report : callable
        Called as ``progress("train", step, steps)``, and with a :class:`TrainingReport` about ten times.

    Returns
    -------
    Model
        With the facts of the training in ``model.config.training``.

    Examples
    --------
    >>> from starfc.synth import make_faces
    >>> faces, people = make_faces(400, people=40, dim=16)
    >>> model = train(faces, people, steps=2, hidden=(8,))
    >>> model.config.training["n_people"], model.config.training["steps"]
    (40, 2)
    """
    features, labels = as_features(X), as_labels(y)
    _check_input(features, labels, preset, steps, hidden, held_out)
    with limited_threads(threads) as n_threads, _torch_threads(n_threads):
        index = index_people(features, labels)
        learned, held = split_people(index, held_out, seed)
        chosen = replace(PRESETS[preset], steps=steps or PRESETS[preset].steps)
        plan = plan or _fit_preset(chosen, preset, learned, k)
        plan = _switch_off(plan, cluster_randomness, sample_randomness, full_graph)
        task = _Task(features, labels, learned, held, chosen, replace(plan, k=k or plan.k), hidden, seed)
        facts = _state_facts(task, preset, n_threads)
        checkpoints = _Checkpoints(Workdir.open(workdir).folder, _fingerprint(task, facts), checkpoint_s)
        return _run(task, facts, checkpoints, progress, on_report or _ignore)


@dataclass(frozen=True)
class _Task:
    """Everything that decides what the weights will be."""

    features: Features
    labels: NDArray[np.int64]
    learned: PersonIndex
    held: PersonIndex
    preset: Preset
    plan: SamplingPlan
    hidden: tuple[int, ...]
    seed: int

    @property
    def starts_as_distance(self) -> bool:
        """Whether the first weights are those of a distance; only a network of one layer can have them."""
        return self.preset.start_as_distance and len(self.hidden) == 1 and self.hidden[0] > 1

    def rng(self, *purpose: int) -> np.random.Generator:
        """Return the generator of a purpose and step: it depends on nothing that happened before."""
        return np.random.default_rng([self.seed, *purpose])


@dataclass(frozen=True)
class _Subgraph:
    """A drawn part of the graph, ready for the network."""

    nodes: NodeInput
    neighbors: NDArray[np.int32]  # (n, k)
    same: NDArray[np.bool_]  # (n, k), the truth of every edge

    def slice(self, share: float, rng: np.random.Generator) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return sources (m,), targets (m, k) and truths (m, k): all edges of a random share of the faces."""
        n = len(self.neighbors)
        sources = np.sort(rng.choice(n, size=max(1, round(share * n)), replace=False))
        truths = self.same[sources].astype(np.float32)
        return torch.from_numpy(sources), torch.from_numpy(self.neighbors[sources]), torch.from_numpy(truths)


@dataclass
class _State:
    """How far a training is; what a checkpoint holds."""

    network: EdgeNetwork
    optimizer: torch.optim.Optimizer
    step: int = 0
    sums: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_SUMS, 0.0))  # since the last report
    history: list[dict[str, Any]] = field(default_factory=list)
    result: dict[str, Any] | None = None  # tau_1, tau_2 and the facts of a finished training


def _run(
    task: _Task,
    facts: dict[str, Any],
    checkpoints: _Checkpoints,
    progress: Progress,
    on_report: Callable[[TrainingReport], None],
) -> Model:
    """Start or go on, train to the end, choose the thresholds, and make the model."""
    state = _start(task)
    if not checkpoints.restore(state) and task.starts_as_distance:
        _fit_odds(state.network, _draw_subgraph(task, task.rng(_SUBGRAPH, 0)))
    if state.result is None:
        held_out = _HeldOut.build(task)
        _run_steps(task, state, held_out, checkpoints, progress, on_report)
        state.result = _conclude(task, state, held_out, facts)
        checkpoints.save(state)
    return _make_model(task, state, state.result)


def _run_steps(
    task: _Task,
    state: _State,
    held_out: _HeldOut | None,
    checkpoints: _Checkpoints,
    progress: Progress,
    on_report: Callable[[TrainingReport], None],
) -> None:
    """Train: the loop."""
    preset, network, optimizer = task.preset, state.network, state.optimizer
    subgraph, drawn_for = None, -1
    progress("train", state.step, preset.steps)
    while state.step < preset.steps:
        started = time.perf_counter()
        turn = state.step // preset.steps_per_subgraph
        if subgraph is None or turn != drawn_for:
            subgraph, drawn_for = _draw_subgraph(task, task.rng(_SUBGRAPH, turn)), turn
        sources, targets, same = subgraph.slice(preset.slice_share, task.rng(_SLICE, state.step))

        _set_learning_rate(optimizer, preset, state.step)
        odds = network(subgraph.nodes, sources, targets)  # (m, k)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(odds, same)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

        state.step += 1
        right = ((odds > 0) == (same > 0)).float().mean().item()
        _count(state, loss.item(), right, len(subgraph.neighbors), targets.numel(), time.perf_counter() - started)
        if state.step == preset.steps or state.step % max(1, preset.steps // _REPORTS) == 0:
            on_report(_report(task, state, held_out))
        checkpoints.save_if_due(state)
        progress("train", state.step, preset.steps)


def _draw_subgraph(task: _Task, rng: np.random.Generator) -> _Subgraph:
    """Sample faces, rebuild their kNN graph, and aggregate their rows over it."""
    drawn = sample_subgraph(task.learned, task.plan, rng)
    rows = task.features.take(drawn)
    graph = join_rows(rows, min(task.plan.k, len(rows) - 1))
    return _Subgraph(prepare_nodes(rows, graph), graph.neighbors, _find_same(task.labels[drawn], graph))


def _find_same(labels: NDArray[np.int64], graph: KnnGraph) -> NDArray[np.bool_]:
    """Tell for every edge whether both ends are one person, bool (n, k)."""
    return np.asarray(labels[graph.neighbors] == labels[:, None])


def _start(task: _Task) -> _State:
    """Draw the first weights and make the optimiser."""
    preset, dim, rng = task.preset, task.features.dim, task.rng(_FIRST_WEIGHTS)
    if task.starts_as_distance:
        tensors = draw_distance_tensors(dim, task.hidden[0], rng)
    else:
        tensors = draw_tensors(dim, task.hidden, rng)
    network = EdgeNetwork(dim, task.hidden, tensors)
    weights = network.parameters()
    optimizer: torch.optim.Optimizer
    if preset.optimizer == "sgd":
        optimizer = torch.optim.SGD(weights, lr=preset.learning_rate, momentum=0.9, weight_decay=preset.weight_decay)
    else:
        optimizer = torch.optim.Adam(weights, lr=preset.learning_rate, weight_decay=preset.weight_decay)
    return _State(network, optimizer)


def _fit_odds(network: EdgeNetwork, subgraph: _Subgraph) -> None:
    """Turn first weights that only order the edges into probabilities, by logistic regression on a subgraph."""
    n = len(subgraph.neighbors)
    with torch.no_grad():
        odds = network(subgraph.nodes, torch.arange(n), torch.from_numpy(subgraph.neighbors)).numpy()
    inputs = np.stack([odds.ravel(), np.ones(odds.size)], axis=1).astype(np.float64)  # (n_edges, 2)
    truths = subgraph.same.ravel()
    center, scale = inputs[:, 0].mean(), inputs[:, 0].std() + 1e-9
    inputs[:, 0] = (inputs[:, 0] - center) / scale
    found = np.zeros(2)
    for _ in range(20):  # Newton; the ridge keeps it finite where one threshold separates everything
        p = 1 / (1 + np.exp(-inputs @ found))
        curvature = (inputs * (p * (1 - p))[:, None]).T @ inputs + 1e-3 * len(p) * np.eye(2)
        found -= np.linalg.solve(curvature, inputs.T @ (p - truths) + 1e-3 * len(p) * found)
    network.scale_odds(found[0] / scale, found[1] - found[0] * center / scale)


def _set_learning_rate(optimizer: torch.optim.Optimizer, preset: Preset, step: int) -> None:
    """Follow the cosine from the preset's rate to 0, if the preset says so."""
    factor = (1 + math.cos(math.pi * step / preset.steps)) / 2 if preset.decay else 1.0
    for group in optimizer.param_groups:
        group["lr"] = preset.learning_rate * factor


def _count(state: _State, loss: float, right: float, n_nodes: int, n_edges: int, seconds: float) -> None:
    """Add a step to the sums since the last report."""
    for name, value in zip(_SUMS, (loss, right, 1, n_nodes, n_edges, seconds), strict=True):
        state.sums[name] += value


def _report(task: _Task, state: _State, held_out: _HeldOut | None) -> TrainingReport:
    """Say how the training stands, and begin the next sums."""
    sums, n_steps = state.sums, state.sums["steps"]
    report = TrainingReport(
        step=state.step,
        steps=task.preset.steps,
        loss=sums["loss"] / n_steps,
        accuracy=sums["right"] / n_steps,
        nodes_per_s=sums["nodes"] / sums["seconds"],
        edges_per_s=sums["edges"] / sums["seconds"],
    )
    if held_out is not None:
        report = held_out.judge(_make_model(task, state), report)
    state.sums = dict.fromkeys(_SUMS, 0.0)
    state.history.append({name: _round(value) for name, value in asdict(report).items()})
    logger.info(str(report))
    return report


def _conclude(task: _Task, state: _State, held_out: _HeldOut | None, facts: dict[str, Any]) -> dict[str, Any]:
    """Return the thresholds and facts of the finished training."""
    last = state.history[-1]
    tau1, tau2 = task.preset.tau1, task.preset.tau2
    if held_out is not None:
        tau1, tau2 = last["tau1"], last["tau2"]
    figures = {name: last[name] for name in ("loss", "held_out_accuracy", "pairwise_f", "bcubed_f")}
    return {"tau1": tau1, "tau2": tau2, "training": facts | figures | {"history": state.history}}


def _make_model(task: _Task, state: _State, result: dict[str, Any] | None = None) -> Model:
    """Make a model of the present weights."""
    result = result or {"tau1": task.preset.tau1, "tau2": task.preset.tau2, "training": {}}
    config = ModelConfig(dim=task.features.dim, hidden=task.hidden, k=task.plan.k, **result)
    return Model(config, state.network.get_tensors())


def split_people(index: PersonIndex, share: float, seed: int) -> tuple[PersonIndex, PersonIndex]:
    """Keep a share of the people aside: (those to learn from, those held out).

    People with several faces and people with one are split alike, at least two of the former are held out if
    there are four, and at least half of them stay.
    """
    rng = np.random.default_rng([seed, _SPLIT])
    several = np.flatnonzero(np.diff(index.offsets) > 1)
    single = np.flatnonzero(np.diff(index.offsets) == 1)
    n_several = min(max(2, round(share * len(several))), len(several) // 2) if share > 0 else 0
    parts = (several, n_several), (single, round(share * len(single)))
    held = np.sort(np.concatenate([rng.choice(people, n, replace=False) for people, n in parts]))
    return index.select(np.setdiff1d(np.arange(len(index)), held)), index.select(held)


@dataclass(frozen=True)
class _HeldOut:
    """The kNN graph in which people never trained on must be found.

    People trained on are in it too, as many as there is room for: a few strangers among themselves are easily
    told apart and would ask for thresholds that merge a larger collection. Only the faces held out are
    judged.
    """

    features: Features
    labels: NDArray[np.int64]
    judged: NDArray[np.bool_]
    graph: KnnGraph
    preset: Preset

    @classmethod
    def build(cls, task: _Task) -> _HeldOut | None:
        """Build the graph once; None if there are no two faces of one person to find."""
        held = _gather_held_out(task)
        if len(np.unique(task.labels[held])) == len(held):
            return None
        rows = np.sort(np.concatenate([held, _gather_company(task, _HELD_OUT_FACES - len(held))]))
        features = Features(task.features.take(rows))
        graph = join_rows(features.raw, min(task.plan.k, len(rows) - 1))
        return cls(features, task.labels[rows], np.isin(rows, held), graph, task.preset)

    def judge(self, model: Model, report: TrainingReport) -> TrainingReport:
        """Fill in how the model does on these people."""
        scored, preset = score_edges(self.features, self.graph, model), self.preset
        chosen = preset.choose_thresholds and report.step == report.steps  # the grid takes as long as many steps
        grid = (_TAU1_GRID, _TAU2_GRID) if chosen else ((preset.tau1,), (preset.tau2,))
        found = choose_thresholds(scored, self.labels, self.judged, *grid)
        right = (scored.scores > 0.5) == _find_same(self.labels, self.graph)
        return replace(
            report,
            held_out_accuracy=float(right[self.judged].mean()),
            pairwise_f=found.pairwise_f,
            bcubed_f=found.bcubed_f,
            tau1=found.tau1,
            tau2=found.tau2,
        )


def _gather_held_out(task: _Task) -> NDArray[np.int64]:
    """Return the rows of the held-out people; of too many, those of a person and the people nearest to them."""
    held = task.held
    if len(held.rows) <= _HELD_OUT_FACES or len(held) < 2:
        return np.sort(held.rows)
    first = task.rng(_HELD_OUT).integers(len(held), size=1)
    people = np.concatenate([first, held.nearest_people(first, len(held))[0]])
    return held.faces_of(people[: max(2, _count_fitting(held, people, _HELD_OUT_FACES))])


def _gather_company(task: _Task, room: int) -> NDArray[np.int64]:
    """Return the rows of random people trained on, as many as fit."""
    people = task.rng(_HELD_OUT).permutation(len(task.learned))
    return task.learned.faces_of(people[: _count_fitting(task.learned, people, room)])


def _count_fitting(index: PersonIndex, people: NDArray[np.int64], room: int) -> int:
    """Count how many of the people, in this order, have no more faces together than there is room for."""
    return int(np.searchsorted(np.cumsum(np.diff(index.offsets)[people]), room, side="right"))


@dataclass(frozen=True)
class Thresholds:
    """Thresholds, and the F scores that they gave."""

    tau1: float
    tau2: float | None
    pairwise_f: float
    bcubed_f: float

    @property
    def mean_f(self) -> float:
        """What the choice goes by."""
        return (self.pairwise_f + self.bcubed_f) / 2


def choose_thresholds(
    scored: ScoredEdges,
    labels: NDArray[np.int64],
    judged: NDArray[np.bool_],
    tau1_grid: tuple[float, ...] = _TAU1_GRID,
    tau2_grid: tuple[float | None, ...] = _TAU2_GRID,
) -> Thresholds:
    """Find the thresholds whose clusters agree best with the labels: the highest mean of pairwise and BCubed F.

    Of settings that are as good (within .005), the one with the highest tau_1 is taken, and of those the one
    whose tau_2 is nearest to the paper's .72: wrong links multiply in a collection of more people than these,
    lost ones do not. The scores are not computed again.

    Parameters
    ----------
    scored : ScoredEdges
        (n, k).
    labels : int64 (n,)
    judged : bool (n,)
        The faces that count, see :func:`score_faces`.
    tau1_grid, tau2_grid : tuple
        What is tried; None is no refinement.

    Returns
    -------
    Thresholds
    """
    tried = []
    for tau1 in tau1_grid:
        graph = parse_edges(scored, tau1)
        intimacy = measure_intimacy(graph)
        for tau2 in tau2_grid:
            kept = graph if tau2 is None else graph.keep(intimacy > np.float32(tau2))
            tried.append(Thresholds(tau1, tau2, *score_faces(labels, label_components(kept), judged)))
    best = max(setting.mean_f for setting in tried)
    good = [setting for setting in tried if setting.mean_f >= best - _AS_GOOD]
    return min(good, key=lambda setting: (-setting.tau1, abs((setting.tau2 or 0.0) - 0.72)))


def score_faces(
    labels: NDArray[np.int64], clusters: NDArray[np.int64], judged: NDArray[np.bool_]
) -> tuple[float, float]:
    """Return pairwise and BCubed F as the judged faces see them, in clusters that hold others too.

    A pair counts once for each of its judged faces; with all faces judged these are the F scores of
    `metrics.py`.

    >>> score_faces(np.array([0, 0, 1, 1]), np.array([0, 0, 0, 1]), np.array([True, True, False, False]))
    (0.6666666666666666, 0.8)
    """
    people, person = np.unique(labels, return_inverse=True)
    _, cell, together = np.unique(clusters * len(people) + person, return_inverse=True, return_counts=True)
    in_cell = together[cell][judged]  # faces of the same person in the same cluster, for each judged face
    in_cluster, in_person = np.bincount(clusters)[clusters][judged], np.bincount(person)[person][judged]
    right, linked, wanted = ((counts - 1).sum() for counts in (in_cell, in_cluster, in_person))
    pairwise = 2 * right / (linked + wanted) if linked + wanted else 1.0
    precision, recall = (in_cell / in_cluster).mean(), (in_cell / in_person).mean()
    return float(pairwise), float(2 * precision * recall / (precision + recall))


@dataclass
class _Checkpoints:
    """One file that holds all of a training's state, replaced by rename; no folder, no file."""

    folder: Path | None
    fingerprint: dict[str, Any]
    every_s: float
    saved_at: float = field(default_factory=time.perf_counter)

    @property
    def path(self) -> Path | None:
        return None if self.folder is None else self.folder / "training.safetensors"

    def save_if_due(self, state: _State) -> None:
        """Save when the last checkpoint is old enough."""
        if time.perf_counter() - self.saved_at >= self.every_s:
            self.save(state)

    def save(self, state: _State) -> None:
        """Write the file, whole or not at all."""
        from safetensors.numpy import save

        if self.path is None:
            return
        tensors = {f"network.{name}": tensor for name, tensor in state.network.get_tensors().items()}
        for number, entries in state.optimizer.state_dict()["state"].items():
            for name, tensor in entries.items():
                if tensor is not None:
                    tensors[f"optimizer.{number}.{name}"] = tensor.numpy()
        facts = {name: getattr(state, name) for name in ("step", "sums", "history", "result")}
        metadata = {"starfc": json.dumps(facts | {"fingerprint": self.fingerprint})}
        with replacing(self.path) as aside:
            aside.write_bytes(save(tensors, metadata))
        self.saved_at = time.perf_counter()

    def restore(self, state: _State) -> bool:
        """Bring `state` to where the last checkpoint left it, and say whether there was one."""
        from safetensors import SafetensorError, safe_open

        if self.path is None or not self.path.is_file():
            return False
        try:
            with safe_open(self.path, framework="np") as file:
                facts = json.loads((file.metadata() or {})["starfc"])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, KeyError, ValueError) as error:
            raise InputError(f"checkpoint {self.path} cannot be read ({error}); delete it to start again") from error
        self._require_same_training(facts.pop("fingerprint", {}))
        _restore_tensors(state, tensors)
        for name, value in facts.items():
            setattr(state, name, value)
        logger.info("training goes on from step %d of %s", state.step, self.path)
        return True

    def _require_same_training(self, found: dict[str, Any]) -> None:
        """Refuse the checkpoint of another training, naming what differs."""
        wanted = json.loads(json.dumps(self.fingerprint))
        differing = [name for name in wanted if found.get(name) != wanted[name]]
        if differing:
            changes = ", ".join(f"{name} ({found.get(name)}, now {wanted[name]})" for name in differing)
            raise InputError(
                f"work folder {self.folder} holds a training with other {changes};"
                " use another workdir, or delete it to start again"
            )


def _restore_tensors(state: _State, tensors: dict[str, NDArray[Any]]) -> None:
    """Put the weights and the optimiser's averages back."""
    prefix = "network."
    weights = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    state.network.load_tensors(weights)
    entries: dict[int, dict[str, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        if name.startswith("optimizer."):
            _, number, key = name.split(".")
            entries.setdefault(int(number), {})[key] = torch.from_numpy(tensor.copy())
    groups = state.optimizer.state_dict()["param_groups"]
    state.optimizer.load_state_dict({"state": entries, "param_groups": groups})


def _fingerprint(task: _Task, facts: dict[str, Any]) -> dict[str, Any]:
    """Name what a checkpoint must agree in; the features are represented by up to 4,096 of their rows."""
    raw = task.features.raw
    sample = raw[:: max(1, len(raw) // 4096)]
    return {
        "faces": f"{raw.shape[0]} x {raw.shape[1]} {raw.dtype}",
        "features": digest_arrays(rows=np.ascontiguousarray(sample)),
        "labels": hashlib.sha256(task.labels.tobytes()).hexdigest()[:16],
        **asdict(task.preset),
        **{name: facts[name] for name in ("preset", "plan", "hidden", "seed", "n_held_out_people", "threads")},
    }


def _state_facts(task: _Task, preset: str, n_threads: int) -> dict[str, Any]:
    """Return what the model folder shall say about its training."""
    return {
        "preset": preset,
        "steps": task.preset.steps,
        "seed": task.seed,
        "threads": n_threads,
        "n_faces": len(task.learned.rows) + len(task.held.rows),
        "n_people": len(task.learned) + len(task.held),
        "n_unlabelled": int((task.labels < 0).sum()),
        "n_held_out_people": len(task.held),
        "hidden": list(task.hidden),
        "plan": asdict(task.plan),
        "versions": {"starfc": __version__, "torch": torch.__version__, "numpy": np.__version__},
    }


def _fit_preset(chosen: Preset, preset: str, learned: PersonIndex, k: int | None) -> SamplingPlan:
    """Fit the preset's plan to the people at hand; the default preset also fits k to how often they occur."""
    plan = fit_plan(chosen.plan, n_people=len(learned), n_faces=len(learned.rows), max_nodes=chosen.max_nodes)
    if preset == "paper" or k is not None:
        return plan
    # Longer lists than anybody has faces add only strangers: easy edges, and most of the cost.
    usual = int(np.percentile(np.repeat(np.diff(learned.offsets), np.diff(learned.offsets)), 90))
    return replace(plan, k=min(plan.k, max(20, usual)))


def _switch_off(
    plan: SamplingPlan, cluster_randomness: bool, sample_randomness: bool, full_graph: bool
) -> SamplingPlan:
    """Apply the switches of the paper's sampling table."""
    return replace(
        plan,
        cluster_randomness=plan.cluster_randomness if cluster_randomness else None,
        sample_randomness=plan.sample_randomness if sample_randomness else None,
        full_graph=full_graph or plan.full_graph,
    )


def _check_input(
    features: Features,
    labels: NDArray[np.int64],
    preset: str,
    steps: int | None,
    hidden: tuple[int, ...],
    held_out: float,
) -> None:
    """Refuse what cannot be trained on or with."""
    if preset not in PRESETS:
        raise InputError(f"preset ('{preset}') must be one of {', '.join(PRESETS)}")
    if steps is not None and steps < 1:
        raise InputError(f"steps ({steps}) must be at least 1")
    if not hidden or min(hidden) < 1:
        raise InputError(f"hidden ({hidden}) must name the width of at least one layer, each 1 or more")
    if not 0 <= held_out <= 0.5:
        raise InputError(f"held_out ({held_out}) is a share of the people between 0 and .5")
    if len(labels) != len(features):
        raise InputError(f"{len(labels)} labels were given for {len(features)} faces; there must be one per face")
    people, counts = np.unique(labels[labels >= 0], return_counts=True)
    if len(people) < _FEWEST_PEOPLE:
        raise InputError(f"the labels name {len(people)} people; training needs at least {_FEWEST_PEOPLE}")
    if counts.max() < 2:
        raise InputError(f"all {len(people)} people have one face; training needs people with two or more")


@contextmanager
def _torch_threads(n_threads: int) -> Iterator[None]:
    """Run the block with torch on `n_threads` cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(n_threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _ignore(report: TrainingReport) -> None:
    """Do nothing with a report."""


def _round(value: Any) -> Any:  # noqa: ANN401
    return round(value, 6) if isinstance(value, float) else value
