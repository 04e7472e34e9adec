"""Calibration: thresholds for an existing model from a small labelled sample of the user's own faces.

In: Features, and what is known of some of them: labels (-1 for the others), or pairs that are the same person or not.
Out: the model with the settings whose clusters agree best with that, and an interval for the F to expect. All faces
are clustered, because strangers around are what a threshold must stand; only the known ones are counted.

Every setting is tried on the scored graph, without scoring again. Choosing the best flatters it, so the interval comes
from the bootstrap: draw people (or pairs) with replacement, choose on those drawn, and score the choice on those left
out, many times. Its width says whether the sample was enough.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import InputError
from .features import Features, reading
from .model import Model
from .pipeline import Clusters, cluster
from .progress import Progress, silent
from .relational import load_shipped
from .relational_model import make_model
from .strictness import PREFERENCES

_TAU1 = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
_TAU2 = (None, 0.3, 0.5, 0.72, 0.85)
_DRAWS = 400
_INTERVAL = (0.05, 0.95)
_FEWEST = 4  # people or pairs; fewer leave nothing to score a choice on
_PAIR_COLUMNS = ("a", "b", "same")


@dataclass(frozen=True)
class Calibration:
    """What was chosen, and what to expect of it.

    Attributes
    ----------
    model : Model
        With the chosen settings.
    tau1, tau2, partition
        These.
    f, f_low, f_high : float
        Mean of pairwise and BCubed F on the sample (pairs: their F), and the 5 % and 95 % quantiles of what a choice
        like this gives on people it was not made on.
    n_known : int
        People, or pairs, that it was chosen by.
    """

    model: Model
    tau1: float
    tau2: float | None
    partition: str
    f: float
    f_low: float
    f_high: float
    n_known: int

    def as_dict(self) -> dict[str, Any]:
        """Return the figures of `starfc calibrate --json`."""
        figures = {name: value for name, value in self.__dict__.items() if name != "model"}
        return {name: round(value, 4) if isinstance(value, float) else value for name, value in figures.items()}


def calibrate(
    features: Features,
    known: NDArray[np.int64],
    *,
    model: Model | None = None,
    seed: int = 0,
    threads: int | None = None,
    progress: Progress = silent,
) -> Calibration:
    """Choose thresholds and partition for a model by what is known of some faces.

    Parameters
    ----------
    features : Features
        (n, d), all faces.
    known : int64 (n,) or (m, 3)
        A label per face, -1 for unknown; or pairs of rows, and 1 for the same person, 0 for two.
    model : Model, optional
        The shipped scorer of relations by default.
    seed, threads, progress
        As in :func:`starfc.cluster`.

    Returns
    -------
    Calibration

    Examples
    --------
    >>> from starfc.synth import make_faces
    >>> faces, people = make_faces(400, people=40, dim=32)
    >>> known = np.where(people < 20, people, -1)
    >>> found = calibrate(Features(faces), known)
    >>> found.n_known, bool(found.f_low <= found.f_high)
    (20, True)
    """
    _check_known(features, known)
    start = model or make_model(load_shipped(), dim=features.dim, tau1=PREFERENCES["balanced"], training={})
    result = cluster(features, model=start, seed=seed, threads=threads, progress=progress)
    grid = _list_settings(start)
    sums = np.stack([_sum_up(_rethreshold(result, setting), known) for setting in grid])  # (settings, units, 6)
    if sums.shape[1] < _FEWEST:
        raise InputError(
            f"{sums.shape[1]} people or pairs are known; a threshold needs at least {_FEWEST}, better 50 or more"
        )
    scores = _combine(sums.sum(axis=1))
    best = _choose(scores)
    expected = _expect(sums, np.random.default_rng(seed))
    chosen = grid[best]
    figures: dict[str, Any] = {"f": float(scores[best]), "f_low": float(expected[0]), "f_high": float(expected[1])}
    figures |= {"n_known": sums.shape[1]}
    facts = {"calibration": chosen | figures}
    calibrated = start.with_config(**chosen, training=start.config.training | facts)
    return Calibration(calibrated, **chosen, **figures)


def load_pairs(path: str | Path) -> NDArray[np.int64] | None:
    r"""Read a table of pairs with the columns a, b (rows of the features) and same (1 or 0); None if it is none.

    >>> path = getfixture("tmp_path") / "pairs.csv"
    >>> _ = path.write_text("a,b,same\n0,1,1\n0,5,0\n")
    >>> load_pairs(path)
    array([[0, 1, 1], [0, 5, 0]])
    """
    path = Path(path)
    if path.suffix.lower() != ".csv":
        return None
    with reading(path), path.open(newline="", encoding="utf-8-sig") as file:
        table = csv.DictReader(file)
        if not set(_PAIR_COLUMNS) <= set(table.fieldnames or ()):
            return None
        try:
            return np.array([[int(row[name]) for name in _PAIR_COLUMNS] for row in table], np.int64).reshape(-1, 3)
        except (TypeError, ValueError) as error:
            raise InputError(
                f"{path} has a line that is no pair ({error}); columns a and b are rows, same is 1 or 0"
            ) from error


def _check_known(features: Features, known: NDArray[np.int64]) -> None:
    """Refuse labels or pairs that do not fit the features."""
    n = len(features)
    if known.ndim == 1 and len(known) != n:
        raise InputError(f"{len(known)} labels were given for {n} faces; there must be one per face, -1 for unknown")
    if known.ndim == 2 and len(known):
        rows = known[:, :2]
        if rows.min() < 0 or rows.max() >= n or (rows[:, 0] == rows[:, 1]).any():
            raise InputError(f"pairs must name two different rows from 0 to {n - 1}")
        if not np.isin(known[:, 2], (0, 1)).all():
            raise InputError("the third column of pairs must be 1 (same person) or 0 (two people)")
        if known[:, 2].min() == known[:, 2].max():
            kind = "the same person" if known[0, 2] else "two people"
            raise InputError(f"all {len(known)} pairs are of {kind}; a threshold needs pairs of both kinds")


def _list_settings(model: Model) -> list[dict[str, Any]]:
    """Return what is tried: no refinement for relations, which have common neighbours in them."""
    tau2_grid = (None,) if model.config.relations else _TAU2
    tau1_grid = sorted({*_TAU1, model.config.tau1})
    usual = "refined" if model.config.relations else "mapequation"
    partitions = dict.fromkeys((usual, "components", model.config.partition))
    tried = product(tau1_grid, tau2_grid, partitions)
    return [{"tau1": tau1, "tau2": tau2, "partition": partition} for tau1, tau2, partition in tried]


def _rethreshold(result: Clusters, setting: dict[str, Any]) -> NDArray[np.int64]:
    """Cluster the scored graph with a setting."""
    return result.rethreshold(**setting).labels


def _sum_up(clusters: NDArray[np.int64], known: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return, for every known person or pair, what the F scores are sums of, float64 (units, 6).

    Pairs found rightly, linked and wanted; sums of BCubed precision and recall, and the faces. Of pairs the last three
    are 0. Where faces are not labelled, each wrong link among those that are stands for others to faces that are not:
    as many more as there are more faces.
    """
    if known.ndim == 2:
        linked = clusters[known[:, 0]] == clusters[known[:, 1]]
        same = known[:, 2] == 1
        columns = [linked & same, linked, same, *[np.zeros(len(known))] * 3]
        return np.stack(columns, axis=1).astype(np.float64)
    labelled = known >= 0
    people, person = np.unique(known[labelled], return_inverse=True)
    _, cluster_of = np.unique(clusters[labelled], return_inverse=True)
    _, cell, together = np.unique(cluster_of * len(people) + person, return_inverse=True, return_counts=True)
    in_cell = together[cell]
    wrong = (np.bincount(cluster_of)[cluster_of] - in_cell) / labelled.mean()
    in_cluster, in_person = in_cell + wrong, np.bincount(person)[person]
    per_face = [in_cell - 1, in_cluster - 1, in_person - 1, in_cell / in_cluster, in_cell / in_person, in_cell * 0 + 1]
    return np.stack([np.bincount(person, weights=values) for values in per_face], axis=1)


def _combine(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mean of pairwise and BCubed F from sums (..., 6); of pairs the pairwise F alone."""
    right, linked, wanted, precision, recall, faces = np.moveaxis(sums, -1, 0)
    both = linked + wanted
    pairwise = np.where(both > 0, 2 * right / np.maximum(both, 1e-30), 1.0)
    bcubed = 2 * precision * recall / np.maximum((precision + recall) * faces, 1e-30)
    return np.where(faces > 0, (pairwise + bcubed) / 2, pairwise)


def _choose(scores: NDArray[np.float64]) -> int:
    """Return the best setting; of equals the last, of the highest tau1: wrong links multiply, lost ones do not."""
    return len(scores) - 1 - int(scores[::-1].argmax())


def _expect(sums: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.float64]:
    """Return the interval of F of a choice on those it was not made on, by the bootstrap; sums (settings, units, 6)."""
    n_units = sums.shape[1]
    found = []
    for _ in range(_DRAWS):
        counts = np.bincount(rng.integers(0, n_units, n_units), minlength=n_units).astype(np.float64)
        left_out = (counts == 0).astype(np.float64)
        best = _choose(_combine(np.tensordot(sums, counts, axes=(1, 0))))
        if left_out.any():
            found.append(float(_combine(np.tensordot(sums[best], left_out, axes=(0, 0)))))
    return np.quantile(found, _INTERVAL)


def describe(found: Calibration) -> str:
    """Say in one sentence what was chosen."""
    tau2 = "none" if found.tau2 is None else f"{found.tau2:g}"
    return (
        f"tau1 {found.tau1:g}, tau2 {tau2}, {found.partition}; F {found.f:.3f} on the {found.n_known} known people or"
        f" pairs, {found.f_low:.3f} to {found.f_high:.3f} to be expected on others"
    )
