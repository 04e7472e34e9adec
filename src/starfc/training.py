"""Training: labelled faces become a model of edges (Sec. 3.2).

In: Features and labels. Out: Model. Each round draws a subgraph (Algorithm 1), rebuilds its kNN graph and takes a few
steps of the cross entropy over slices of its edges; the loop is :func:`_run_steps`. Some of the *people* are kept aside
(`heldout.py`): they say how good the model is on people it has never seen, and choose tau_1 and tau_2.

Every random number is drawn from (seed, what for, step), so the state of a training is its weights, the optimiser's and
the step: one file in `workdir` (`checkpoints.py`). A killed training, started again, has the weights an uninterrupted
one would have, bit for bit, on the same number of threads.

Where the paper and the authors' released code differ, the `paper` preset takes the published sampling, and from the
code what the paper does not say: one GCN layer of 512, SGD (.01, momentum .9, decay 1e-5), and that a subgraph is gone
through twice in small steps. Theirs are 80 of 1/40 of the edges; here 16 of 1/8, because on a CPU a step has a price of
its own.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import __version__
from .checkpoints import Checkpoints, TrainingState, fingerprint_data
from .errors import InputError
from .features import Features, as_features
from .heldout import HeldOut, split_people
from .labels import as_labels
from .model import Model, ModelConfig
from .network import EdgeNetwork, draw_distance_tensors, draw_tensors
from .progress import Progress, silent
from .sampling import PLANS, PersonIndex, SamplingPlan, fit_plan, index_people
from .subgraphs import Subgraph, draw_subgraph, fit_odds
from .threads import limited_threads
from .workdir import Workdir

import torch  # isort: skip  (after network.py, which says what to install where it is missing)

logger = logging.getLogger(__name__)

# What a random number is for: streams of one seed must differ.
_SPLIT, _FIRST_WEIGHTS, _SUBGRAPH, _SLICE, _HELD_OUT = range(5)

_FEWEST_PEOPLE = 4
_SUBGRAPH_NODES = 5_000  # half of the paper's: on a CPU more steps are worth more than larger ones
_REPORTS = 10


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
        Faces of subgraphs run through the GCN, and edges through the head, per second (without evaluation).
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
    plan: SamplingPlan | str | None = None,
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
        Who they are; -1 (or an empty name) is unlabelled and left out. People with one face stay in: they are what the
        others must not be linked to.
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
    plan : SamplingPlan or {"ms1m", "webface", "released"}, optional
        How subgraphs are drawn: as it is, or a published plan by its name, fitted to the data; the preset's.
    cluster_randomness, sample_randomness : bool
        False switches CR or SR off.
    full_graph : bool
        Train on all faces at once, without sampling.
    seed, threads
        Random seed; cores to use (all).
    workdir : path, optional
        Folder for checkpoints: the same call goes on where a killed one stopped, or returns what it had finished.
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
    _check_settings(preset, plan, steps, hidden, held_out)
    _check_people(features, labels)
    with limited_threads(threads) as n_threads, _torch_threads(n_threads):
        index = index_people(features, labels)
        learned, held = split_people(index, held_out, np.random.default_rng([seed, _SPLIT]))
        chosen = replace(PRESETS[preset], steps=steps or PRESETS[preset].steps)
        if isinstance(plan, str):
            chosen, plan = replace(chosen, plan=PLANS[plan]), None
        fitted = plan or _fit_preset(chosen, preset, learned, k)
        switched = replace(
            fitted,
            k=k or fitted.k,
            cluster_randomness=fitted.cluster_randomness if cluster_randomness else None,
            sample_randomness=fitted.sample_randomness if sample_randomness else None,
            full_graph=full_graph or fitted.full_graph,
        )
        task = _Task(features, labels, learned, held, chosen, switched, hidden, seed)
        facts = _list_facts(task, preset, n_threads)
        checkpoints = Checkpoints(Workdir.open(workdir).folder, _fingerprint(task, facts), checkpoint_s)
        return _run(task, facts, checkpoints, progress, on_report or (lambda report: None))


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

    def draw_subgraph(self, turn: int) -> Subgraph:
        """Draw the subgraph of a turn from the people to learn from."""
        return draw_subgraph(self.features, self.labels, self.learned, self.plan, self.rng(_SUBGRAPH, turn))


def _run(
    task: _Task,
    facts: dict[str, Any],
    checkpoints: Checkpoints,
    progress: Progress,
    on_report: Callable[[TrainingReport], None],
) -> Model:
    """Start or go on, train to the end, choose the thresholds, and make the model."""
    state = _start(task)
    if not checkpoints.restore(state) and task.starts_as_distance:
        fit_odds(state.network, task.draw_subgraph(0))
    if state.result is None:
        seed = [task.seed, _HELD_OUT]
        held_out = HeldOut.build(task.features, task.labels, task.held, task.learned, k=task.plan.k, seed=seed)
        _run_steps(task, state, held_out, checkpoints, progress, on_report)
        state.result = _conclude(task, state, held_out, facts)
        checkpoints.save(state)
    return _make_model(task, state)


def _run_steps(
    task: _Task,
    state: TrainingState,
    held_out: HeldOut | None,
    checkpoints: Checkpoints,
    progress: Progress,
    on_report: Callable[[TrainingReport], None],
) -> None:
    """Train: the loop."""
    preset, network, optimizer = task.preset, state.network, state.optimizer
    subgraph = None
    progress("train", state.step, preset.steps)
    while state.step < preset.steps:
        started = time.perf_counter()
        if subgraph is None or state.step % preset.steps_per_subgraph == 0:
            subgraph = task.draw_subgraph(state.step // preset.steps_per_subgraph)
        sources, targets, same = subgraph.slice(preset.slice_share, task.rng(_SLICE, state.step))

        _set_learning_rate(optimizer, preset, state.step)
        odds = network(subgraph.nodes, sources, targets)  # (m, k)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(odds, same)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

        right = ((odds > 0) == (same > 0)).float().mean().item()
        sizes = {"nodes": len(subgraph.neighbors), "edges": targets.numel()}
        state.add_step(steps=1, loss=loss.item(), right=right, **sizes, seconds=time.perf_counter() - started)
        if state.step == preset.steps or state.step % max(1, preset.steps // _REPORTS) == 0:
            on_report(_report(task, state, held_out))
        checkpoints.save_if_due(state)
        progress("train", state.step, preset.steps)


def _start(task: _Task) -> TrainingState:
    """Draw the first weights and make the optimiser."""
    dim, hidden, rng = task.features.dim, task.hidden, task.rng(_FIRST_WEIGHTS)
    as_distance = task.starts_as_distance
    tensors = draw_distance_tensors(dim, hidden[0], rng) if as_distance else draw_tensors(dim, hidden, rng)
    network = EdgeNetwork(dim, hidden, tensors)
    weights, rate, decay = network.parameters(), task.preset.learning_rate, task.preset.weight_decay
    if task.preset.optimizer == "sgd":
        return TrainingState(network, torch.optim.SGD(weights, lr=rate, momentum=0.9, weight_decay=decay))
    return TrainingState(network, torch.optim.Adam(weights, lr=rate, weight_decay=decay))


def _set_learning_rate(optimizer: torch.optim.Optimizer, preset: Preset, step: int) -> None:
    """Follow the cosine from the preset's rate to 0, if the preset says so."""
    factor = (1 + math.cos(math.pi * step / preset.steps)) / 2 if preset.decay else 1.0
    for group in optimizer.param_groups:
        group["lr"] = preset.learning_rate * factor


def _report(task: _Task, state: TrainingState, held_out: HeldOut | None) -> TrainingReport:
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
        choose = task.preset.choose_thresholds and state.step == task.preset.steps
        accuracy, found = held_out.judge(_make_model(task, state), choose=choose)
        report = replace(report, held_out_accuracy=accuracy, **asdict(found))
    state.sums = {}
    figures = asdict(report).items()
    state.history.append({name: round(value, 6) if isinstance(value, float) else value for name, value in figures})
    logger.info(str(report))
    return report


def _conclude(task: _Task, state: TrainingState, held_out: HeldOut | None, facts: dict[str, Any]) -> dict[str, Any]:
    """Return the thresholds and facts of the finished training."""
    last = state.history[-1]
    chosen = asdict(task.preset) if held_out is None else last
    figures = {name: last[name] for name in ("loss", "held_out_accuracy", "pairwise_f", "bcubed_f")}
    training = facts | figures | {"history": state.history}
    return {"tau1": chosen["tau1"], "tau2": chosen["tau2"], "training": training}


def _make_model(task: _Task, state: TrainingState) -> Model:
    """Make a model of the present weights, with thresholds and facts once the training is finished."""
    result = state.result or {"tau1": task.preset.tau1, "tau2": task.preset.tau2}
    config = ModelConfig(dim=task.features.dim, hidden=task.hidden, k=task.plan.k, **result)
    return Model(config, state.network.get_tensors())


def _fingerprint(task: _Task, facts: dict[str, Any]) -> dict[str, Any]:
    """Name what a checkpoint must agree in."""
    names = ("preset", "plan", "hidden", "seed", "n_held_out_people", "threads")
    settings = {name: facts[name] for name in names}
    return {**fingerprint_data(task.features, task.labels), **asdict(task.preset), **settings}


def _list_facts(task: _Task, preset: str, n_threads: int) -> dict[str, Any]:
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
    sizes = np.diff(learned.offsets)
    usual = int(np.percentile(np.repeat(sizes, sizes), 90))
    return replace(plan, k=min(plan.k, max(20, usual)))


def _check_settings(
    preset: str, plan: SamplingPlan | str | None, steps: int | None, hidden: tuple[int, ...], held_out: float
) -> None:
    """Refuse what cannot be trained with."""
    if preset not in PRESETS:
        raise InputError(f"preset ('{preset}') must be one of {', '.join(PRESETS)}")
    if isinstance(plan, str) and plan not in PLANS:
        raise InputError(f"plan ('{plan}') must be one of {', '.join(PLANS)}")
    if steps is not None and steps < 1:
        raise InputError(f"steps ({steps}) must be at least 1")
    if not hidden or min(hidden) < 1:
        raise InputError(f"hidden ({hidden}) must name the width of at least one layer, each 1 or more")
    if not 0 <= held_out <= 0.5:
        raise InputError(f"held_out ({held_out}) is a share of the people between 0 and .5")


def _check_people(features: Features, labels: NDArray[np.int64]) -> None:
    """Refuse labels that nothing can be learned from."""
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
