"""Fit of the relational scorer to known people: what `--preset default` does.

In: Features, labels, an index of the people, and a way to train a GCN. Out: a Model, with the threshold and the
partition that suit it. Relations do not depend on the embedder, so a network that knows thousands of worlds is a good
start, and a few hundred people are enough to learn what is different here: how alike relatives are, how often people
occur, what the embedder confuses. A GCN reads the features themselves, and needs more people; where it helps, the two
are combined (`relational_model.py`).

A collection is one draw from what the user may have to cluster. So the network learns from several: all faces, halves
and quarters of the people, and a few faces of everybody, each with its own kNN graph and its own chance similarities,
because an edge means something else among two thousand faces than among ten thousand, and where people have hundreds of
faces than where they have two. Without the last, a network fitted to people with 5 and 167 faces lost nearly all links
of a collection in which most have one or two.

Few people teach little, and what they teach is partly of them alone. So there is a network to which only half of what
was learned is added, the mean of old and new, with a GCN that has a quarter of the say; and one with all of it, with a
GCN that has half. And there is the former in a space (`space.py`), a linear map of the features that brings pictures of
one person nearer: of half the change that it was taught, and of all of it.

People are held out in turns: a share of them, then others, up to three times. Each time network, GCN and space learn
from the rest, and the faces held out are clustered, by themselves and in company: by the shipped network, by the new
ones, by these with the GCN or in the space, at several thresholds, by components and by the refined partition. What
knows their edges best on average is chosen, unless something else clusters them clearly better; then all is learned
from everybody. The price is four short trainings in place of one, and three searches for the neighbours of whoever is
judged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from .atomic import replacing
from .errors import ModelError
from .features import Features
from .heldout import split_people
from .judging import KINDS, Choice, Judged, Kind, choose_setting
from .model import Model
from .people import PersonIndex, draw_people
from .progress import Progress, silent
from .relational import BITS, RelationalModel, load_shipped
from .relational_model import make_model
from .relational_training import EdgeSample, fit_residual, halve_residual, sample_edges
from .space import Space, read_space
from .space_training import BITS as SPACE_BITS
from .space_training import learn_space
from .strictness import PREFERENCES
from .workdir import Workdir, digest_arrays

_MOST_FACES = 16_000  # of a collection: more would take longer and teach the same
# A collection has this part of the people, and so many faces of each at most.
_PARTS = ((1, None), (2, None), (2, None), (4, None), (4, None), (1, 4), (1, 2))
_EDGES = 120_000  # described of a collection, at most: of 2,000 people more can be learned than 30,000 tell
_MOST_ROUNDS = 3
_FEWEST_FOR_FEATURES = 50  # people; of fewer, what reads features would only ever know these
# What a random number is for: streams of one seed must differ.
_ROUND, _COLLECTION, _COMPANY, _SPACE = range(4)


TrainGcn = Callable[[str, PersonIndex], Model]


@dataclass(frozen=True)
class Fitted:
    """What a fit has brought.

    Attributes
    ----------
    network : RelationalModel
    gcn : Model or None
        To be combined with it, if that was chosen.
    space : Space or None
        Of the features, if that was chosen.
    choice : Choice or None
        None when nobody was held out. Where nobody could be, though it was asked for, the network is the one given.
    """

    network: RelationalModel
    gcn: Model | None = None
    space: Space | None = None
    choice: Choice | None = None


@dataclass(frozen=True)
class RoundReport:
    """How well the people held out in a round were found, by kind.

    Mean of both F scores, at the best of the thresholds, and mean cross entropy of their edges.
    """

    number: int
    rounds: int
    n_people: int
    scores: dict[str, float]
    losses: dict[str, float]

    def __str__(self) -> str:
        found = ", ".join(f"{kind} {score:.4f} (loss {self.losses[kind]:.4f})" for kind, score in self.scores.items())
        return f"held-out people, round {self.number}/{self.rounds} ({self.n_people} people): F {found}"


def train_relations(
    features: Features,
    labels: NDArray[np.int64],
    index: PersonIndex,
    *,
    facts: dict[str, Any],
    on_report: Callable[[RoundReport], None] = lambda report: None,
    **settings: Any,  # noqa: ANN401
) -> Model:
    """Fit the scorer of relations (settings: see :func:`fit_people`) and make a model of it.

    Examples
    --------
    >>> from starfc.people import index_people
    >>> from starfc.synth import make_faces
    >>> faces, people = make_faces(300, people=60, dim=32)
    >>> features = Features(faces)
    >>> model = train_relations(features, people, index_people(features, people), facts={}, steps=2)
    >>> model.config.scorer, model.config.partition
    ('relational', 'refined')
    """
    history: list[dict[str, Any]] = []

    def report(found: RoundReport) -> None:
        history.append(asdict(found))
        on_report(found)

    fitted = fit_people(features, labels, index, on_report=report, **settings)
    network, choice = fitted.network, fitted.choice
    is_new = "start" in network.facts
    training = facts | _list_choice(choice, is_new) | (network.facts if is_new else {}) | {"history": history}
    tau1, partition = (PREFERENCES["balanced"], "refined") if choice is None else (choice.tau1, choice.partition)
    gcn_weight = _find_kind(choice).gcn_weight
    return make_model(
        network, dim=features.dim, tau1=tau1, training=training, gcn=fitted.gcn, gcn_weight=gcn_weight,
        space=fitted.space, partition=partition,
    )  # fmt: skip


def fit_people(
    features: Features,
    labels: NDArray[np.int64],
    index: PersonIndex,
    *,
    train_gcn: TrainGcn | None = None,
    start: RelationalModel | None = None,
    steps: int | None = None,
    hidden: int = 32,
    k: int | None = None,
    held_out: float = 0.25,
    seed: int = 0,
    workdir: Workdir | None = None,
    depends_on: dict[str, Any] | None = None,
    progress: Progress = silent,
    on_report: Callable[[RoundReport], None] = lambda report: None,
) -> Fitted:
    """Fit the network to people and choose, on others, its threshold and whether a GCN or a space is to help it.

    Parameters
    ----------
    features : Features
        (n, d); memory-mapped ones are read in collections of some thousand faces.
    labels : int64 (n,)
    index : PersonIndex
        Of these.
    train_gcn : callable, optional
        From a name and people to a GCN trained on them; none is tried by default.
    start : RelationalModel, optional
        What is known before; the shipped one.
    steps, hidden : int
        Of the optimiser in each fit, a few times through the edges by default; units of what is added to `start`.
    k : int, optional
        Neighbours per face; from the data.
    held_out : float
        Share of the people held out in each round; 0 for nobody.
    seed : int
    workdir : Workdir, optional
        Where described edges are kept, so that a killed fit need not describe them again.
    depends_on : dict, optional
        What tells these data from others, for JSON; needed with `workdir`.
    progress, on_report : callable
        Called as ``progress("fit", done, total)``, and with a RoundReport after every round.

    Returns
    -------
    Fitted
    """
    known = start or load_shipped()
    kept = workdir or Workdir(None), depends_on or {}
    describe = _Describer(features, labels, k, seed, *kept, known)
    fit = _Fitter(describe, known, steps, hidden, seed)
    are_many = len(index) >= _FEWEST_FOR_FEATURES
    make_gcn = train_gcn if train_gcn is not None and are_many else lambda name, people: None
    learn = _SpaceLearner(features, labels, steps, seed, *kept, progress) if are_many else lambda name, people: None
    judged: list[tuple[NDArray[np.float64], NDArray[np.float64]]] = []
    rounds = divide_rounds(index, held_out, seed)
    for number, held_out_people in enumerate(rounds):
        learned, held = split_at(index, held_out_people)
        progress("held-out people", number, len(rounds))
        fitted = fit(learned, f"round{number}") or known
        networks = {0.0: known, 0.5: halve_residual(fitted, known), 1.0: fitted}
        gcn, space = make_gcn(f"round{number}", learned), learn(f"round{number}", learned)
        seen = gather_judged(features, labels, learned, held, [seed, _COMPANY, number])
        judged += [collection.score(networks, gcn, space, k) for collection in seen]
        scores, losses = (np.mean(figures, axis=0) for figures in zip(*judged[-len(seen) :], strict=True))
        best = scores.mean(axis=3).max(axis=(1, 2))
        on_report(RoundReport(number + 1, len(rounds), len(held), _name_kinds(best), _name_kinds(losses)))
    progress("held-out people", len(rounds), len(rounds))
    choice = choose_setting(*(np.mean(figures, axis=0) for figures in zip(*judged, strict=True))) if judged else None
    is_unproved = choice is None and held_out > 0
    if is_unproved or (choice is not None and choice.kind == "shipped"):
        return Fitted(known, choice=choice)
    network = fit(index, "all", progress)
    if network is None:
        return Fitted(known)
    kind = _find_kind(choice)
    if kind.share < 1:
        network = halve_residual(network, known)
    gcn = make_gcn("all", index) if kind.gcn_weight > 0 else None
    space = learn("all", index) if kind.change > 0 else None
    return Fitted(network, gcn, None if space is None else space.take_share(kind.change), choice)


def _find_kind(choice: Choice | None) -> Kind:
    """Return what was chosen; all that was learned where there was no choice."""
    return KINDS["fitted" if choice is None else choice.kind]


def _name_kinds(figures: NDArray[np.float64]) -> dict[str, float]:
    """Return figures by kind; without a GCN or a space there are fewer."""
    named = zip(KINDS, figures, strict=True)
    return {kind: round(float(figure), 6) for kind, figure in named if np.isfinite(figure)}


def _list_choice(choice: Choice | None, is_new: bool) -> dict[str, Any]:
    """Return what a model folder shall say about the choice."""
    if choice is None:
        return {"kind": "fitted" if is_new else "shipped", "pairwise_f": None, "bcubed_f": None}
    return {name: round(value, 6) if isinstance(value, float) else value for name, value in asdict(choice).items()}


class _Describer:
    """Described edges of collections, each kept in the work folder once it is there."""

    def __init__(
        self,
        features: Features,
        labels: NDArray[np.int64],
        k: int | None,
        seed: int,
        workdir: Workdir,
        depends_on: dict[str, Any],
        start: RelationalModel,
    ) -> None:
        self._features, self._labels, self._k, self._seed, self._start = features, labels, k, seed, start
        self._workdir = workdir
        self._depends_on = depends_on | {
            "k": k, "seed": seed, "start": digest_arrays(**start.tensors), "bits": BITS, "n_edges": _EDGES,
        }  # fmt: skip

    def __call__(self, name: str, rows: NDArray[np.int64]) -> EdgeSample:
        """Describe the edges among the given rows."""

        def build() -> EdgeSample:
            taken = Features(self._features.take(rows))
            k = None if self._k is None else min(self._k, len(rows) - 1)
            return sample_edges(taken, self._labels[rows], n_edges=_EDGES, k=k, model=self._start, seed=self._seed)

        facts = self._depends_on | {"rows": digest_arrays(rows=rows)}
        return self._workdir.stage(f"edges.{name}", facts, build, _save_sample, _load_sample)


@dataclass(frozen=True)
class _Fitter:
    """How networks are fitted."""

    describe: _Describer
    start: RelationalModel
    steps: int | None
    hidden: int
    seed: int

    def __call__(self, index: PersonIndex, name: str, progress: Progress = silent) -> RelationalModel | None:
        """Describe several collections of the people and learn from them; None where there is nothing to learn."""
        samples = []
        for number, (part, most) in enumerate(_PARTS):
            progress("describe edges", number, len(_PARTS))
            rng = np.random.default_rng([self.seed, _COLLECTION, number])
            rows = draw_people(index, min(len(index.rows) // part, _MOST_FACES), rng, most=most)
            samples.append(self.describe(f"{name}.{number}", rows))
        progress("describe edges", len(_PARTS), len(_PARTS))
        targets = np.concatenate([sample.targets for sample in samples])
        if len(targets) == 0 or targets.min() == targets.max():
            return None
        facts = {"start": "shipped", "n_edges": len(targets)}
        return fit_residual(
            samples, self.start, steps=self.steps, hidden=self.hidden, seed=self.seed, facts=facts, progress=progress
        )


@dataclass(frozen=True)
class _SpaceLearner:
    """How spaces are learned; each is kept in the work folder once it is there."""

    features: Features
    labels: NDArray[np.int64]
    steps: int | None
    seed: int
    workdir: Workdir
    depends_on: dict[str, Any]
    progress: Progress

    def __call__(self, name: str, index: PersonIndex) -> Space:
        """Learn the space of some people."""
        seed = [self.seed, _SPACE]

        def build() -> Space:
            return learn_space(self.features, self.labels, index, steps=self.steps, seed=seed, progress=self.progress)

        whose: dict[str, Any] = {"people": digest_arrays(people=index.people), "steps": self.steps, "seed": seed}
        whose |= {"bits": SPACE_BITS, "threads": numba.get_num_threads()}
        return self.workdir.stage(f"space.{name}", self.depends_on | whose, build, _save_space, _load_space)


def divide_rounds(index: PersonIndex, share: float, seed: int) -> list[NDArray[np.int64]]:
    """Return who is held out in every round, positions in `people`, ascending; no one is twice."""
    if share <= 0:
        return []
    n_rounds = max(1, min(_MOST_ROUNDS, int(1 / share)))
    left, rounds = index, []
    for number in range(n_rounds):
        own = min(0.5, share * len(index) / max(1, len(left)))  # of those that were not held out yet
        rest, held = split_people(left, own, np.random.default_rng([seed, _ROUND, number]))
        if not (np.diff(held.offsets) > 1).any():
            break
        rounds.append(np.searchsorted(index.people, held.people))
        left = rest
    return rounds


def split_at(index: PersonIndex, held: NDArray[np.int64]) -> tuple[PersonIndex, PersonIndex]:
    """Return the people to learn from and those held out; only now, because centres of millions of people are large."""
    is_held = np.zeros(len(index), dtype=np.bool_)
    is_held[held] = True
    return index.select(np.flatnonzero(~is_held)), index.select(held)


def gather_judged(
    features: Features, labels: NDArray[np.int64], learned: PersonIndex, held: PersonIndex, seed: list[int]
) -> list[Judged]:
    """Return the held-out people by themselves, and in the company of as many faces again."""
    rng = np.random.default_rng(seed)
    own = draw_people(held, min(len(held.rows), _MOST_FACES // 2), rng)
    company = draw_people(learned, min(len(learned.rows), len(own)), rng)
    together = np.sort(np.concatenate([own, company]))
    gathered = []
    for rows in (own, together):
        gathered.append(Judged(Features(features.take(rows)), labels[rows], np.isin(rows, own)))
    return gathered


def _save_sample(sample: EdgeSample, path: Path) -> None:
    """Write the arrays, whole or not at all."""
    with replacing(path) as aside, aside.open("wb") as file:
        np.savez(file, allow_pickle=False, inputs=sample.inputs, targets=sample.targets)


def _save_space(space: Space, path: Path) -> None:
    """Write its tensors, whole or not at all."""
    with replacing(path) as aside, aside.open("wb") as file:
        np.savez(file, allow_pickle=False, **space.tensors)


def _load_space(path: Path) -> Space:
    """Read what :func:`_save_space` wrote."""
    with np.load(path, allow_pickle=False) as arrays:
        found = read_space(arrays)
    if found is None:
        raise ModelError(f"{path} holds no space; remove it")  # it is made anew
    return found


def _load_sample(path: Path) -> EdgeSample:
    """Read what :func:`_save_sample` wrote."""
    with np.load(path, allow_pickle=False) as arrays:
        return EdgeSample(arrays["inputs"], arrays["targets"])
