"""Training: what a trained model adds, on people it has never seen.

    python benchmarks/training.py [--faces 20000] [--people 330] [--dim 128] [--presets default gcn paper]
    python benchmarks/training.py --features F.npy --labels L.npy [--folds 5]
    python benchmarks/training.py --train F1.npy L1.npy F2.npy L2.npy --features F.npy --labels L.npy
    python benchmarks/training.py --grow 200 500 1000 2000

First line: trains on one synthetic collection and clusters another of the same embedder (seeds nothing was tuned on).
Second: folds by people; the people of one fold are clustered as one collection, the others train. Third: trains on some
collections and clusters another; people whose centre has a cosine above .5 with one of its people are left out of
training. Fourth: trains on ever more synthetic people and clusters 2,000 others.

Rows: the label-free default; cosine edges with the threshold that is best for the TEST labels, by components and by the
map equation (an oracle no user has); the presets. Thresholds of the models come from the preset or from held-out
training people. Prints markdown and saves JSON; a finished fold in the JSON is not run again.
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
from starfc.people import index_people
from starfc.pipeline import Clusters
from starfc.synth import make_faces

Collection = tuple[Features, NDArray[np.int64]]
ORACLE_GRID = np.arange(0.25, 0.71, 0.025)
_SAME_PERSON = 0.5


def draw_synthetic(options: argparse.Namespace) -> Iterator[tuple[Collection, Collection]]:
    """Yield (training, test) collections of different people through the same embedder."""
    for fold in range(options.folds):
        parts = []
        for seed in (1000 + fold, 2000 + fold):
            rows, people = make_faces(options.faces, people=options.people, dim=options.dim, seed=seed)
            parts.append((Features(rows), people))
        yield parts[0], parts[1]


def draw_growing(options: argparse.Namespace) -> Iterator[tuple[Collection, Collection]]:
    """Yield ever larger training collections, and the same 2,000 people to test on."""
    each = options.faces // 2000
    rows, people = make_faces(2000 * each, people=2000, dim=options.dim, seed=2100)
    for n_people in options.grow:
        learned, who = make_faces(max(options.grow) * each, people=max(options.grow), dim=options.dim, seed=1100)
        known = who < n_people
        yield (Features(learned[known]), who[known]), (Features(rows), people)


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


def cross_sets(options: argparse.Namespace) -> Iterator[tuple[Collection, Collection]]:
    """Yield (the given training sets without the people of the test set, the test set)."""
    test = load_features(options.features), load_labels(options.labels)
    tested = index_people(*test).centers
    rows, people, n_before = [], [], 0
    for path, names in zip(options.train[::2], options.train[1::2], strict=True):
        features, labels = load_features(path), load_labels(names)
        index = index_people(features, labels)
        known = (index.centers @ tested.T).max(axis=1) > _SAME_PERSON
        kept = np.isin(labels, index.people[~known])
        print(f"{path}: {known.sum()} of {len(index)} people left out", flush=True)
        rows.append(features.read(0, len(features))[kept])
        people.append(labels[kept] + n_before)
        n_before += int(labels.max()) + 1
    yield (Features(np.concatenate(rows)), np.concatenate(people)), test


def run_methods(train: Collection, test: Collection, options: argparse.Namespace) -> dict[str, list[float]]:
    """Return pairwise F, BCubed F and training CPU-seconds of every method on one test collection."""
    features, truth = test
    results: dict[str, list[float]] = {}

    def record(name: str, found: Clusters, seconds: float = 0.0) -> None:
        figures = evaluate(truth, found.labels)
        results[name] = [figures.pairwise.f, figures.bcubed.f, seconds]

    record("no labels (default)", starfc.cluster(features))
    graph = build_knn(features, k=min(80, len(features) - 1))
    plain = starfc.cluster(features, knn_graph=graph, scorer="cosine")
    for partition in ("components", "mapequation"):
        tried = [plain.rethreshold(tau1=float(tau1), partition=partition) for tau1 in ORACLE_GRID]
        best = max(tried, key=lambda found: evaluate(truth, found.labels).pairwise.f)
        record(f"cosine, {partition}, best threshold for these labels", best)
    for preset in options.presets:
        started = time.process_time()
        steps = options.paper_steps if preset == "paper" else None
        model = starfc.train(*train, preset=preset, steps=steps, seed=options.seed)
        seconds = time.process_time() - started
        facts = {name: model.config.training.get(name) for name in ("kind", "partition", "pairwise_f", "bcubed_f")}
        print(f"{preset}: tau1 {model.config.tau1}, tau2 {model.config.tau2}, held-out people: {facts}", flush=True)
        record(f"trained, --preset {preset}", starfc.cluster(features, model=model), seconds)
    return results


def print_table(folds: list[dict[str, list[float]]], options: argparse.Namespace) -> None:
    """Print mean and standard deviation over folds; or, of growing collections, each."""
    print("| method | pairwise F | BCubed F | training, CPU-s |\n|---|---|---|---|")
    if options.grow:
        for n_people, fold in zip(options.grow, folds, strict=True):
            for name, (pairwise, bcubed, seconds) in fold.items():
                print(f"| {n_people} people: {name} | {pairwise:.4f} | {bcubed:.4f} | {seconds:.0f} |")
        return
    for name in folds[0]:
        mean, spread = (reduce([fold[name] for fold in folds], axis=0) for reduce in (np.mean, np.std))
        print(f"| {name} | {mean[0]:.4f} ± {spread[0]:.4f} | {mean[1]:.4f} ± {spread[1]:.4f} | {mean[2]:.0f} |")


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faces", type=int, default=20_000)
    parser.add_argument("--people", type=int, default=330)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--folds", type=int, default=3)
    parser.add_argument("--presets", nargs="+", default=["paper", "gcn", "default"])
    parser.add_argument("--paper-steps", type=int, default=400)
    parser.add_argument("--features", type=Path)
    parser.add_argument("--labels", type=Path)
    parser.add_argument("--train", type=Path, nargs="+", help="features and labels, one after the other")
    parser.add_argument("--grow", type=int, nargs="+", help="numbers of people to train on")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path, default=Path("bench/training.json"))
    options = parser.parse_args()
    given = fold_by_people if options.features else draw_synthetic
    draw = cross_sets if options.train else draw_growing if options.grow else given
    options.output.parent.mkdir(parents=True, exist_ok=True)
    folds = json.loads(options.output.read_text()) if options.output.exists() else []
    for number, (train, test) in enumerate(draw(options)):
        if number >= len(folds):
            folds.append(run_methods(train, test, options))
            print(json.dumps(folds[-1]), flush=True)
            options.output.write_text(json.dumps(folds, indent=2) + "\n", encoding="utf-8")
    print_table(folds, options)


if __name__ == "__main__":
    main()
