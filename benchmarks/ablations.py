"""The paper's ablations: what each part of the method is worth, beside the paper's figures.

    python benchmarks/ablations.py [--faces 20000] [--people 330] [--dim 128] [--steps 150] [--preset gcn]
    python benchmarks/ablations.py --features F.npy --labels L.npy --folds 5

Without --features: trains on one synthetic collection and tests on another (seeds 1000 and 2000); with them, folds by
people. Tables: the whole graph in every step, subgraphs (SPSS), with cluster randomness (CR), with sample randomness
(SR), with both; pruning by dynamic thresholds and by node intimacy with each aggregate; only parsing, only refinement,
both; and F over tau_1 x tau_2. The presets train the paper's network: `gcn` starts it as a distance and takes the
weights and thresholds that suit held-out training people, `paper` has the published start and thresholds. In the tables
after the first, tau_1 and tau_2 are those of the model trained with both CR and SR. Prints markdown, saves JSON, and
draws the surface and the distribution of scores beside it.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import starfc
from starfc.features import Features
from starfc.metrics import evaluate
from starfc.model import Model
from starfc.pipeline import Clusters
from starfc.plots import draw_comparison, draw_sweep
from starfc.sweep import SweepRow, sweep_thresholds
from training import Collection, draw_synthetic, fold_by_people

SAMPLING: dict[str, dict[str, Any]] = {
    "a: the whole graph": {"full_graph": True},
    "b: SPSS": {"cluster_randomness": False, "sample_randomness": False},
    "c: SPSS + CR": {"sample_randomness": False},
    "d: SPSS + SR": {"cluster_randomness": False},
    "e: SPSS + CR + SR": {},
}
# Pairwise and BCubed F on MS1M, trained on 0.5M and tested on 0.5M faces.
PAPER = {
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
TAU1 = (0.3, 0.5, 0.6, 0.7, 0.8, 0.9)
TAU2 = (None, 0.3, 0.5, 0.6, 0.72, 0.8, 0.9)


def measure(truth: NDArray[np.int64], found: Clusters) -> list[float]:
    """Return pairwise precision, recall, F and BCubed F in percent."""
    scores = evaluate(truth, found.labels)
    pairs = scores.pairwise
    return [100 * value for value in (pairs.precision, pairs.recall, pairs.f, scores.bcubed.f)]


def ablate_sampling(train: Collection, test: Collection, options: argparse.Namespace) -> tuple[dict[str, Any], Model]:
    """Train with every way of sampling; return the scores, and the model of the last."""
    scores = {}
    for name, switches in SAMPLING.items():
        model = starfc.train(*train, preset=options.preset, steps=options.steps, seed=options.seed, **switches)
        scores[name] = measure(test[1], starfc.cluster(test[0], model=model))
        print(name, np.round(scores[name], 2).tolist(), flush=True)
    return scores, model


def ablate_pruning(found: Clusters, truth: NDArray[np.int64], tau2: float) -> dict[str, list[float]]:
    """Prune and partition the same scores in other ways; tau_2 is for the rows that refine."""
    changes: dict[str, dict[str, Any]] = {
        "naive pruning": {"tau2": None, "partition": "dynamic"},
        "NI (mean)": {"tau2": tau2, "aggregate": "mean"},
        "NI (min)": {"tau2": tau2, "aggregate": "min"},
        "NI (max)": {"tau2": tau2, "aggregate": "max"},
        "Jaccard": {"tau2": tau2, "aggregate": "jaccard"},
        "only refinement": {"tau1": None, "tau2": tau2},
        "only parsing": {"tau2": None},
        "parsing and refinement": {"tau2": tau2},
        "only parsing, map equation": {"tau2": None, "partition": "mapequation"},
    }
    return {name: measure(truth, found.rethreshold(**setting)) for name, setting in changes.items()}


def run_fold(train: Collection, test: Collection, options: argparse.Namespace, number: int) -> dict[str, Any]:
    """Return all tables of one pair of collections."""
    sampling, model = ablate_sampling(train, test, options)
    features, truth = test
    found = starfc.cluster(Features(features.raw), model=model)
    tau2 = model.config.tau2 if model.config.tau2 is not None else 0.72
    pruning = ablate_pruning(found, truth, tau2)
    surface = sweep_thresholds(found.scored, found.settings, tau1=TAU1, tau2=TAU2, truth=truth)
    if number == 0:
        draw_sweep(surface, options.output.with_suffix(".thresholds.png"))
        picture = options.output.with_suffix(".scores.png")
        draw_comparison(truth, {"trained": found.labels}, {"trained": (found.scored, found.settings.tau1)}, picture)
    return {
        "sampling": sampling,
        "pruning": pruning,
        "surface": [row.as_dict() for row in surface],
        "thresholds": [model.config.tau1, tau2],
    }


def print_rows(folds: list[dict[str, Any]], table: str) -> None:
    """Print a table: means over the folds, and the paper's figures."""
    print("\n| | precision | recall | pairwise F | BCubed F | paper, MS1M (pairwise / BCubed F) |")
    print("|" + "---|" * 6)
    for name in folds[0][table]:
        values = np.mean([fold[table][name] for fold in folds], axis=0)
        print(f"| {name} | " + " | ".join(f"{value:.2f}" for value in values) + f" | {PAPER.get(name, '')} |")


def print_surface(folds: list[dict[str, Any]]) -> None:
    """Print pairwise F over the thresholds."""
    rows = [[SweepRow(**row) for row in fold["surface"]] for fold in folds]
    values = np.mean([[row.pairwise_f for row in table] for table in rows], axis=0).reshape(len(TAU1), len(TAU2))
    print("\n| tau1 \\ tau2 | " + " | ".join("none" if t is None else f"{t:g}" for t in TAU2) + " |")
    print("|" + "---|" * (1 + len(TAU2)))
    for tau1, line in zip(TAU1, values, strict=True):
        print(f"| {tau1:g} | " + " | ".join(f"{100 * value:.2f}" for value in line) + " |")


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faces", type=int, default=20_000)
    parser.add_argument("--people", type=int, default=330)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--folds", type=int, default=1)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--preset", choices=["gcn", "paper"], default="gcn")
    parser.add_argument("--features", type=Path)
    parser.add_argument("--labels", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path, default=Path("bench/ablations.json"))
    options = parser.parse_args()
    options.output.parent.mkdir(parents=True, exist_ok=True)
    draw = fold_by_people if options.features else draw_synthetic
    folds = []
    for number, (train, test) in enumerate(draw(options)):
        folds.append(run_fold(train, test, options, number))
        options.output.write_text(json.dumps(folds, indent=1) + "\n", encoding="utf-8")
    print("tau1, tau2:", [fold["thresholds"] for fold in folds])
    print_rows(folds, "sampling")
    print_rows(folds, "pruning")
    print_surface(folds)


if __name__ == "__main__":
    main()
