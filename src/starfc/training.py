"""Training: labelled faces become a model of edges.

In: Features and labels. Out: Model. The default preset fits the scorer of relations (`relational_fit.py`); the others
train the paper's network (Sec. 3.2), and that is what the rest of this file does. Each round draws a subgraph
(Algorithm 1), rebuilds its kNN graph and takes a few steps of the cross entropy over slices of its edges; the loop is
:func:`_run_steps`. Some of the *people* are kept aside (`heldout.py`): they say how good the model is on people it has
never seen, which weights to keep, and choose tau_1 and tau_2.

Every random number is drawn from (seed, what for, step), so the state of a training is its weights, the optimiser's and
the step: one file in `workdir` (`checkpoints.py`). A killed training, started again, has the weights an uninterrupted
one would have, bit for bit, on the same number of threads.

What a step costs does not depend on how many faces there are: features stay on disk, the index of people is built once
and kept in `workdir` (`people.py`), the rows of the next subgraph are read while the present one is trained on
(`subgraphs.py`), and mapped pages are let go of when there are too many.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
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
from .people import PersonIndex, keep_index, link_people
from .presets import PRESETS as PRESETS
from .presets import Preset
from .presets import TrainingReport as TrainingReport
from .progress import Progress, silent
from .relational_fit import train_relations
from .sampling import PLANS, SamplingPlan, fit_plan
from .scratch import Scratch
from .subgraphs import DrawnRows, SubgraphStream, draw_rows, fit_odds
from .threads import limited_threads
from .workdir import Workdir, digest_arrays

import torch  # isort: skip  (after network.py, which says what to install where it is missing)

logger = logging.getLogger(__name__)

# What a random number is for: streams of one seed must differ.
_SPLIT, _FIRST_WEIGHTS, _SUBGRAPH, _SLICE, _HELD_OUT = range(5)

_FEWEST_PEOPLE = 4
_REPORTS = 10
_COMBINED_STEPS = 80  # of a GCN that is to help the scorer of relations
_LARGEST_PERSON = 10  # times k faces of one person in a subgraph at most
_PATIENCE = 3  # reports without a lower loss on held-out people after which a training stops
_MOST_RESIDENT = 4 << 30  # bytes beyond which the pages of mapped features are let go


def train(
    X: Features | ArrayLike | str | Path,
    y: ArrayLike,
    *,
    preset: str = "default",
    steps: int | None = None,
    hidden: tuple[int, ...] | None = None,
    k: int | None = None,
    held_out: float | None = None,
    plan: SamplingPlan | str | None = None,
    cluster_randomness: bool = True,
    sample_randomness: bool = True,
    full_graph: bool = False,
    seed: int = 0,
    threads: int | None = None,
    workdir: str | Path | None = None,
    checkpoint_s: float = 20.0,
    progress: Progress = silent,
    on_report: Callable[[Any], None] | None = None,
) -> Model:
    """Train a scorer of edges on faces of known people.

    Parameters
    ----------
    X : array (n, d), Features or path
        Face vectors.
    y : int or str (n,)
        Who they are; -1 (or an empty name) is unlabelled and left out. People with one face stay in: they are what the
        others must not be linked to.
    preset : {"default", "gcn", "paper"}
        The scorer of relations fitted to these people (`relational_fit.py`), which a few hundred are enough for; the
        paper's network, started as a distance; the published method.
    steps : int, optional
        Optimiser steps; the preset's.
    hidden : tuple of int, optional
        Width of each GCN layer, (512,) by default; with the default preset one number: what is added to the network.
    k : int, optional
        Neighbours per face; 80, less with "gcn" if nobody has that many faces, from the data with "default".
    held_out : float, optional
        Share of the people kept aside, from 0 (nobody; thresholds are then those without labels, or the paper's) to .5;
        .1 by default, and a quarter, in turns, with the default preset.
    plan : SamplingPlan or {"ms1m", "webface", "released"}, optional
        How subgraphs are drawn: as it is, or a published plan by its name, fitted to the data; the preset's. Like the
        three switches that follow, not for the default preset.
    cluster_randomness, sample_randomness : bool
        False switches CR or SR off.
    full_graph : bool
        Train on all faces at once, without sampling.
    seed, threads
        Random seed; cores to use (all).
    workdir : path, optional
        Folder for checkpoints: the same call goes on where a killed one stopped.
    checkpoint_s : float
        Seconds between checkpoints.
    progress, on_report : callable
        Called as ``progress("train", step, steps)``, and with a report that can be printed about ten times.

    Returns
    -------
    Model
        With the facts of the training in ``model.config.training``.

    Examples
    --------
    >>> from starfc.synth import make_faces
    >>> faces, people = make_faces(400, people=40, dim=16)
    >>> model = train(faces, people, preset="gcn", steps=2, hidden=(8,))
    >>> model.config.training["n_people"], model.config.training["steps"]
    (40, 2)
    """
    features, labels = as_features(X), as_labels(y)
    is_default = preset == "default"
    share = held_out if held_out is not None else 0.25 if is_default else 0.1
    widths = hidden if hidden is not None else (32,) if is_default else (512,)
    switches = (plan, cluster_randomness, sample_randomness, full_graph)
    _check_settings(preset, plan, steps, widths, share)
    if is_default and switches != (None, True, True, False):
        raise InputError("plan, cluster_randomness, sample_randomness and full_graph need preset 'gcn' or 'paper'")
    _check_people(features, labels)
    kept = Workdir.open(workdir)
    with limited_threads(threads) as n_threads, _torch_threads(n_threads), kept.locked(), ExitStack() as ending:
        pages = Scratch(limit_bytes=_MOST_RESIDENT)
        pages.watch(features.raw)
        depends_on = fingerprint_data(features, labels) if kept.folder is not None else {}
        index = keep_index(features, labels, workdir=kept, depends_on=depends_on, after_block=pages.relieve)
        say = on_report or (lambda report: None)
        pages.expect_random_reads(True)
        ending.callback(pages.expect_random_reads, False)  # whoever gave the features may read them in order
        if is_default:

            def train_gcn(name: str, people: PersonIndex) -> Model:
                whose = digest_arrays(people=people.people)
                own = Workdir.open(None if kept.folder is None else kept.folder / f"gcn.{name}.{whose[:12]}")
                people = link_people(people, workdir=own, depends_on=depends_on, progress=progress)
                chosen = replace(PRESETS["gcn"], steps=min(steps or _COMBINED_STEPS, _COMBINED_STEPS))
                settled = _fit_preset(chosen, "gcn", people)
                nobody = people.select(np.arange(0))
                task = _Task(features, labels, people, nobody, chosen, settled, (512,), seed, pages)
                facts = _list_facts(task, "gcn", n_threads)
                checkpoints = Checkpoints(own.folder, _fingerprint(task, facts), checkpoint_s)
                return _run(task, facts, checkpoints, progress, lambda report: None)

            return train_relations(
                features, labels, index, train_gcn=train_gcn, steps=steps, hidden=widths[0], k=k, held_out=share,
                seed=seed, workdir=kept, depends_on=depends_on, progress=progress, on_report=say,
                facts=_list_general((index,), labels, preset, seed, n_threads),
            )  # fmt: skip
        learned, held = split_people(index, share, np.random.default_rng([seed, _SPLIT]))
        del index  # the centres of millions of people, once more
        split = depends_on | {"held_out": share, "seed": seed}
        learned = link_people(learned, workdir=kept, depends_on=split, progress=progress)
        chosen = replace(PRESETS[preset], steps=steps or PRESETS[preset].steps)
        settled = _settle_plan(chosen, preset, learned, k, *switches)
        task = _Task(features, labels, learned, held, chosen, settled, widths, seed, pages)
        facts = _list_facts(task, preset, n_threads)
        checkpoints = Checkpoints(kept.folder, _fingerprint(task, facts), checkpoint_s)
        return _run(task, facts, checkpoints, progress, say)


def _settle_plan(
    chosen: Preset,
    preset: str,
    learned: PersonIndex,
    k: int | None,
    plan: SamplingPlan | str | None,
    cluster_randomness: bool,
    sample_randomness: bool,
    full_graph: bool,
) -> SamplingPlan:
    """Return the caller's plan, or the named or the preset's one fitted to the people, with the switches applied."""
    if isinstance(plan, str):
        chosen, plan = replace(chosen, plan=PLANS[plan]), None
    fitted = plan or _fit_preset(chosen, preset, learned)
    return replace(
        fitted,
        k=k or fitted.k,
        cluster_randomness=fitted.cluster_randomness if cluster_randomness else None,
        sample_randomness=fitted.sample_randomness if sample_randomness else None,
        full_graph=full_graph or fitted.full_graph,
    )


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
    pages: Scratch  # the mapped features, to be let go of when there is too much in memory

    @property
    def starts_as_distance(self) -> bool:
        """Whether the first weights are those of a distance; only a network of one layer can have them."""
        return self.preset.start_as_distance and len(self.hidden) == 1 and self.hidden[0] > 1

    def rng(self, *purpose: int) -> np.random.Generator:
        """Return the generator of a purpose and step: it depends on nothing that happened before."""
        return np.random.default_rng([self.seed, *purpose])

    def draw_rows(self, turn: int) -> DrawnRows:
        """Draw the faces of a turn's subgraph from the people to learn from, and read them."""
        drawn = draw_rows(self.features, self.labels, self.learned, self.plan, self.rng(_SUBGRAPH, turn))
        self.pages.relieve()
        return drawn


def _run(
    task: _Task,
    facts: dict[str, Any],
    checkpoints: Checkpoints,
    progress: Progress,
    on_report: Callable[[TrainingReport], None],
) -> Model:
    """Start or go on, train to the end, choose the thresholds, and make the model."""
    state = _start(task)
    with SubgraphStream(task.draw_rows, task.plan.k, ahead=not task.plan.full_graph) as subgraphs:
        if not checkpoints.restore(state) and task.starts_as_distance:
            fit_odds(state.network, subgraphs.get(0))
        if state.result is None:
            seed = [task.seed, _HELD_OUT]
            held_out = HeldOut.build(task.features, task.labels, task.held, task.learned, k=task.plan.k, seed=seed)
            _run_steps(task, state, subgraphs, held_out, checkpoints, progress, on_report)
            state.result = _conclude(task, state, held_out, facts)
            checkpoints.save(state)
    return _make_model(task, state)


def _run_steps(
    task: _Task,
    state: TrainingState,
    subgraphs: SubgraphStream,
    held_out: HeldOut | None,
    checkpoints: Checkpoints,
    progress: Progress,
    on_report: Callable[[TrainingReport], None],
) -> None:
    """Train: the loop."""
    preset, network, optimizer = task.preset, state.network, state.optimizer
    progress("train", state.step, preset.steps)
    while state.step < preset.steps and not _is_overdue(state):
        started = time.perf_counter()
        # The whole graph is the same every time.
        subgraph = subgraphs.get(0 if task.plan.full_graph else state.step // preset.steps_per_subgraph)
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
        verdict = held_out.judge(_make_model(task, state), choose=False)
        found = asdict(verdict.thresholds)
        report = replace(report, held_out_loss=verdict.loss, held_out_accuracy=verdict.accuracy, **found)
        if task.preset.choose_best:
            state.note_loss(verdict.loss)
    state.sums = {}
    state.history.append(_round_figures(asdict(report)))
    logger.info(str(report))
    return report


def _is_overdue(state: TrainingState) -> bool:
    """Tell whether the least loss on held-out people was several reports ago."""
    since = [report for report in state.history if report["step"] > state.best_step]
    return state.best is not None and len(since) >= _PATIENCE


def _round_figures(figures: dict[str, Any]) -> dict[str, Any]:
    """Round to what is worth keeping."""
    return {name: round(value, 6) if isinstance(value, float) else value for name, value in figures.items()}


def _conclude(task: _Task, state: TrainingState, held_out: HeldOut | None, facts: dict[str, Any]) -> dict[str, Any]:
    """Take the best weights, choose the thresholds, and return these and the facts of the finished training."""
    if state.best is not None:
        state.network.load_tensors(state.best)
    figures: dict[str, Any] = {"loss": state.history[-1]["loss"], "best_step": state.best_step or state.step}
    chosen = {"tau1": task.preset.tau1, "tau2": task.preset.tau2, "pairwise_f": None, "bcubed_f": None}
    if held_out is not None:
        verdict = held_out.judge(_make_model(task, state), choose=task.preset.choose_thresholds)
        figures |= {"held_out_loss": verdict.loss, "held_out_accuracy": verdict.accuracy}
        chosen = asdict(verdict.thresholds)
    figures |= {name: chosen.pop(name) for name in ("pairwise_f", "bcubed_f")}
    return chosen | {"training": facts | _round_figures(figures) | {"history": state.history}}


def _make_model(task: _Task, state: TrainingState) -> Model:
    """Make a model of the present weights, with thresholds and facts once the training is finished."""
    result = state.result or {"tau1": task.preset.tau1, "tau2": task.preset.tau2}
    config = ModelConfig(dim=task.features.dim, hidden=task.hidden, k=task.plan.k, **result)
    return Model(config, state.network.get_tensors())


def _fingerprint(task: _Task, facts: dict[str, Any]) -> dict[str, Any]:
    """Name what a checkpoint must agree in."""
    names = ("preset", "plan", "hidden", "seed", "n_held_out_people", "threads")
    settings = {name: facts[name] for name in names}
    people = digest_arrays(people=task.learned.people)
    return {**fingerprint_data(task.features, task.labels), **asdict(task.preset), **settings, "people": people}


def _list_facts(task: _Task, preset: str, n_threads: int) -> dict[str, Any]:
    """Return what the model folder shall say about the training of a GCN."""
    general = _list_general((task.learned, task.held), task.labels, preset, task.seed, n_threads)
    return general | {
        "steps": task.preset.steps,
        "n_held_out_people": len(task.held),
        "hidden": list(task.hidden),
        "plan": asdict(task.plan),
    }


def _list_general(
    people: tuple[PersonIndex, ...], labels: NDArray[np.int64], preset: str, seed: int, n_threads: int
) -> dict[str, Any]:
    """Return what the model folder shall say about any training."""
    return {
        "preset": preset,
        "seed": seed,
        "threads": n_threads,
        "n_faces": sum(len(index.rows) for index in people),
        "n_people": sum(len(index) for index in people),
        "n_unlabelled": int((labels < 0).sum()),
        "versions": {"starfc": __version__, "torch": torch.__version__, "numpy": np.__version__},
    }


def _fit_preset(chosen: Preset, preset: str, learned: PersonIndex) -> SamplingPlan:
    """Fit the preset's plan to the people at hand; "gcn" also fits k to how often they occur, and has a limit."""
    plan = fit_plan(chosen.plan, n_people=len(learned), n_faces=len(learned.rows), max_nodes=chosen.max_nodes)
    if preset == "paper":
        return plan
    # Longer lists than anybody has faces add only strangers: easy edges, and most of the cost.
    sizes = np.diff(learned.offsets)
    usual = max(20, int(np.percentile(np.repeat(sizes, sizes), 90)))
    return replace(plan, k=min(plan.k, usual), most_faces=_LARGEST_PERSON * plan.k)


def _check_settings(
    preset: str, plan: SamplingPlan | str | None, steps: int | None, hidden: tuple[int, ...], held_out: float
) -> None:
    """Refuse what cannot be trained with."""
    if preset not in ("default", *PRESETS):
        raise InputError(f"preset ('{preset}') must be one of default, {', '.join(PRESETS)}")
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
