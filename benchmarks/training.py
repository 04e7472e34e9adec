"""Training: what a trained model adds, on people it has never seen.

    python benchmarks/training.py [--faces 20000] [--people 330] [--dim 128] [--paper-steps 400]
    python benchmarks/training.py --features F.npy --labels L.npy [--folds 5]

Without --features: trains on one synthetic collection and clusters another of the same embedder (seeds nothing was
tuned on). With --features: folds by people; the people of one fold are clustered as one collection, the others train.
Rows: the label-free default; cosine edges with the threshold that is best for the TEST labels, by components and by the
map equation (an oracle no user has); `--preset paper`; `--preset default`. Thresholds of the models come from the
preset or from held-out training people. Prints markdown and saves JSON.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import starfc
from starfc.features import Features, load_features
from starfc.knn import build_knn
from starfc.labels import load_labels
from starfc.metrics import evaluate
from starfc.pipeline import Clusters
from starfc.synth import make_faces

Collection = tuple[Features, NDArray[np.int64]]
ORACLE_GRID = np.arange(0.25, 0.71, 0.025)


def draw_synthetic(options: argparse.Namespace) -> Iterator[tuple[Collection, Collection]]:
    """Yield (training, test) collections of different people through the same embedder."""
    for fold in range(options.folds):
        parts = []
        for seed in (1000 + fold, 2000 + fold):
            rows, people = make_faces(options.faces, people=options.people, dim=options.dim, seed=seed)
            parts.append((Features(rows), people))
        yield parts[0], parts[1]


def fold_by_people(options: argparse.Namespace) -> Iterator[tuple[Collection, Collection]]:
    """Yield (training, test) parts of a labelled collection that share no person."""
    features, labels = load_features(options.features), load_labels(options.labels)
    people = np.random.default_rng(options.seed).permutation(np.unique(labels))
    for fold in range(options.folds):
        tested = np.isin(labels, people[fold :: options.folds])
        yield (
            (Features(features.raw[~tested]), labels[~tested]),
            (Features(features.raw[tested]), labels[tested]),
        )


def run_methods(train: Collection, test: Collection, options: argparse.Namespace) -> dict[str, list[float]]:
    """Return pairwise F, BCubed F and training seconds of every method on one test collection."""
    features, truth = test
    results: dict[str, list[float]] = {}

    def record(name: str, found: Clusters, seconds: float = 0.0) -> None:
        figures = evaluate(truth, found.labels)
        results[name] = [figures.pairwise.f, figures.bcubed.f, seconds]

    graph = build_knn(features, k=min(80, len(features) - 1))
    plain = starfc.cluster(features, knn_graph=graph)
    record("no labels (default)", plain)
    for partition in ("components", "mapequation"):
        tried = [plain.rethreshold(tau1=float(tau1), partition=partition) for tau1 in ORACLE_GRID]
        best = max(tried, key=lambda found: evaluate(truth, found.labels).pairwise.f)
        record(f"cosine, {partition}, best threshold for these labels", best)
    for preset, steps in (("paper", options.paper_steps), ("default", None)):
        started = time.perf_counter()
        model = starfc.train(*train, preset=preset, steps=steps, seed=options.seed)
        seconds = time.perf_counter() - started
        record(f"trained, --preset {preset}", starfc.cluster(features, model=model), seconds)
    return results


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faces", type=int, default=20_000)
    parser.add_argument("--people", type=int, default=330)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--folds", type=int, default=3)
    parser.add_argument("--paper-steps", type=int, default=400)
    parser.add_argument("--features", type=Path)
    parser.add_argument("--labels", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path, default=Path("bench/training.json"))
    options = parser.parse_args()
    draw = fold_by_people if options.features else draw_synthetic
    folds = []
    for train, test in draw(options):
        folds.append(run_methods(train, test, options))
        print(json.dumps(folds[-1]), flush=True)
    print("| method | pairwise F | BCubed F | training, s |\n|---|---|---|---|")
    for name in folds[0]:
        mean, spread = (reduce([fold[name] for fold in folds], axis=0) for reduce in (np.mean, np.std))
        print(f"| {name} | {mean[0]:.4f} ± {spread[0]:.4f} | {mean[1]:.4f} ± {spread[1]:.4f} | {mean[2]:.0f} |")
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(folds, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
