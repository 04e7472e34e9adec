"""The paper's ablations: what each part of the method is worth, beside the paper's figures.

In: people to train on and others to test on. Out: ablations.md, ablations.json and two pictures in a folder.

1. Training: the whole graph in every step, subgraphs (SPSS), with cluster randomness (CR), with sample randomness (SR),
   with both.
2. Inference, with the last of these models: pruning by dynamic thresholds and by node intimacy with each aggregate;
   only parsing, only refinement, both.
3. F over tau_1 x tau_2, and how the scores of the same and of different people are distributed, as pictures.

The presets train the paper's network: `gcn` starts it as a distance and takes the weights and thresholds that suit
held-out training people, `paper` has the published start and thresholds. A finished training is not done again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..atomic import replacing, write_json
from ..features import Features
from ..metrics import evaluate
from ..model import Model
from ..pipeline import Clusters, cluster
from ..plots import draw_comparison, draw_sweep
from ..progress import Progress, silent
from ..sweep import sweep_thresholds
from .tables import format_markdown

Collection = tuple[Features, NDArray[np.int64]]

_SAMPLING: dict[str, dict[str, Any]] = {
    "a: the whole graph": {"full_graph": True},
    "b: SPSS": {"cluster_randomness": False, "sample_randomness": False},
    "c: SPSS + CR": {"sample_randomness": False},
    "d: SPSS + SR": {"cluster_randomness": False},
    "e: SPSS + CR + SR": {},
}
# Pairwise and BCubed F on MS1M, trained on 0.5M and tested on 0.5M faces.
_PAPER = {
    "a: the whole graph": "90.45 / 88.06",
    "b: SPSS": "91.21 / 89.19",
    "c: SPSS + CR": "91.80 / 90.05",
    "d: SPSS + SR": "91.92 / 90.06",
    "e: SPSS + CR + SR": "91.97 / 90.21",
    "naive pruning": "82.50 / 80.93",
    "NI (mean)": "89.35 / 87.58",
    "NI (min)": "88.06 / 86.08",
    "NI (max)": "90.45 / 88.06",
    "Jaccard": "88.39 / n/s",
    "only refinement": "80.00 / n/s",
    "only parsing": "82.50 / n/s",
    "parsing and refinement": "90.45 / n/s",
}
_TAU1 = (0.3, 0.5, 0.6, 0.7, 0.8, 0.9)
_TAU2 = (None, 0.3, 0.5, 0.6, 0.72, 0.8, 0.9)
_PAPER_TAU2 = 0.72  # where held-out people want no refinement, the rows that refine take the paper's


@dataclass(frozen=True)
class Ablation:
    """How to train and where to keep what was trained."""

    folder: Path
    preset: str = "gcn"
    steps: int | None = None
    k: int | None = None
    seed: int = 0
    threads: int | None = None
    progress: Progress = silent
    say: Callable[[str], None] = lambda line: None


def ablate(train: Collection, test: Collection, options: Ablation) -> dict[str, Any]:
    """Return all tables for one pair of collections: precision, recall, F and BCubed F in percent; and draw them."""
    sampling, model = _ablate_sampling(train, test, options)
    features, truth = test
    found = cluster(features, model=model, threads=options.threads, progress=options.progress)
    tau2 = _PAPER_TAU2 if model.config.tau2 is None else model.config.tau2
    pruning = _ablate_pruning(found, truth, tau2)
    surface = sweep_thresholds(found.scored, found.settings, tau1=_TAU1, tau2=_TAU2, truth=truth)
    draw_sweep(surface, options.folder / "thresholds.png")
    scores = {"trained": (found.scored, found.settings.tau1)}
    draw_comparison(truth, {"trained": found.labels}, scores, options.folder / "scores.png")
    return {
        "sampling": sampling,
        "pruning": pruning,
        "surface": [row.as_dict() for row in surface],
        "thresholds": [model.config.tau1, tau2],
    }


def _ablate_sampling(train: Collection, test: Collection, options: Ablation) -> tuple[dict[str, list[float]], Model]:
    """Train with every way of sampling; return the scores, and the model of the last."""
    from ..training import train as train_model

    scores = {}
    for name, switches in _SAMPLING.items():
        model = train_model(
            *train,
            preset=options.preset,
            steps=options.steps,
            k=options.k,
            seed=options.seed,
            threads=options.threads,
            workdir=options.folder / "training" / name[0],
            progress=options.progress,
            **switches,
        )
        found = cluster(test[0], model=model, threads=options.threads, progress=options.progress)
        scores[name] = _measure(test[1], found)
        options.say(f"{name}: pairwise F {scores[name][2]:.2f}, BCubed F {scores[name][3]:.2f}")
    return scores, model


def _ablate_pruning(found: Clusters, truth: NDArray[np.int64], tau2: float) -> dict[str, list[float]]:
    """Prune and partition the same scores in other ways; tau_2 is for the rows that refine."""
    changes: dict[str, dict[str, Any]] = {
        "naive pruning": {"tau2": None, "partition": "dynamic"},
        "NI (mean)": {"tau2": tau2, "aggregate": "mean"},
        "NI (min)": {"tau2": tau2, "aggregate": "min"},
        "NI (max)": {"tau2": tau2, "aggregate": "max"},
        "Jaccard": {"tau2": tau2, "aggregate": "jaccard"},
        "only refinement": {"tau1": None, "tau2": tau2},
        "only parsing": {"tau2": None, "partition": "dynamic"},
        "only parsing, components": {"tau2": None},
        "parsing and refinement": {"tau2": tau2},
        "only parsing, map equation": {"tau2": None, "partition": "mapequation"},
    }
    return {name: _measure(truth, found.rethreshold(**setting)) for name, setting in changes.items()}


def _measure(truth: NDArray[np.int64], found: Clusters) -> list[float]:
    """Return pairwise precision, recall, F and BCubed F in percent."""
    scores = evaluate(truth, found.labels)
    pairs = scores.pairwise
    return [100 * value for value in (pairs.precision, pairs.recall, pairs.f, scores.bcubed.f)]


def save_ablations(folder: Path, folds: list[dict[str, Any]], command: str) -> str:
    """Write ablations.md and ablations.json, means over the folds, and return the markdown."""
    thresholds = "; ".join(f"{tau1:g} and {tau2:g}" for tau1, tau2 in (fold["thresholds"] for fold in folds))
    text = "\n\n".join(
        (
            f"`{command}`",
            f"tau_1 and tau_2: {thresholds}. In percent, means of {len(folds)} fold(s).",
            _format_rows(folds, "sampling"),
            _format_rows(folds, "pruning"),
            "Pairwise F over tau_1 (down) and tau_2 (across):",
            _format_surface(folds),
        )
    )
    with replacing(folder / "ablations.md") as part:
        part.write_text(text + "\n", encoding="utf-8")
    write_json(folder / "ablations.json", {"command": command, "folds": folds})
    return text


def _format_rows(folds: list[dict[str, Any]], table: str) -> str:
    """Format a table of means, and the paper's figures."""
    lines = [["", "precision", "recall", "pairwise F", "BCubed F", "paper, MS1M (pairwise / BCubed F)"]]
    for name in folds[0][table]:
        values = np.mean([fold[table][name] for fold in folds], axis=0)
        lines.append([name, *(f"{value:.2f}" for value in values), _PAPER.get(name, "")])
    return format_markdown(lines)


def _format_surface(folds: list[dict[str, Any]]) -> str:
    """Format pairwise F over the thresholds."""
    surfaces = np.array([[row["pairwise_f"] for row in fold["surface"]] for fold in folds], dtype=np.float64)
    values = surfaces.mean(axis=0).reshape(len(_TAU1), len(_TAU2))
    lines = [["", *("none" if tau2 is None else f"{tau2:g}" for tau2 in _TAU2)]]
    lines += [[f"{tau1:g}", *(f"{100 * f:.2f}" for f in line)] for tau1, line in zip(_TAU1, values, strict=True)]
    return format_markdown(lines)
