"""The picture of docs/methods.md: what every method makes of the same few faces.

    python benchmarks/methods.py [-o docs/methods.png]

72 synthetic faces of 8 people are drawn by their two main directions; lines are kNN edges above a cosine of .3.
Colours are clusters, hollow dots faces alone. The settings of each method are chosen, and the trained ones are
trained, on other people (1,000 faces of 50, 40 steps): the picture shows how a method thinks, not how good it is.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from starfc.atomic import replacing
from starfc.baselines import METHODS, Method
from starfc.comparison.tune import separate_noise, train_tuned, tune_method
from starfc.features import Features
from starfc.knn import KnnGraph, build_knn
from starfc.metrics import evaluate
from starfc.plots import import_pyplot
from starfc.synth import make_faces

DIM, K, STEPS = 128, 24, 40


def make_collection(n: int, people: int, seed: int) -> tuple[Features, KnnGraph, NDArray[np.int64]]:
    """Return faces, their graph and who they are."""
    rows, labels = make_faces(n, people=people, dim=DIM, seed=seed)
    features = Features(rows)
    return features, build_knn(features, k=K), labels


def run_method(method: Method, train: Any, test: Any) -> NDArray[np.int64]:  # noqa: ANN401
    """Choose settings or train on one collection, and cluster the other."""
    features, graph, labels = train
    options: dict[str, Any] = {}
    if method.trained:
        options["model"], chosen = train_tuned(method, features, graph, labels, steps=STEPS)
    else:
        chosen = tune_method(method, features, graph, labels)
    options |= method.settings | chosen
    return separate_noise(method.load().cluster_faces(test[0], test[1], **options))


def draw(axis: Any, points: NDArray[Any], graph: KnnGraph, labels: NDArray[np.int64], title: str) -> None:  # noqa: ANN401
    """Draw edges, then faces in the colour of their cluster; faces alone are hollow."""
    for i in range(graph.n):
        for j, cosine in zip(graph.neighbors[i], graph.similarities[i], strict=True):
            if cosine > 0.3:
                axis.plot(*points[[i, j]].T, color="#cccccc", linewidth=0.3, zorder=1)
    sizes = np.bincount(labels)
    order = np.argsort(-sizes, kind="stable")
    colour = {label: f"C{place % 10}" for place, label in enumerate(order)}
    for marker, chosen in (("o", np.flatnonzero(sizes[labels] > 1)), ("$\\circ$", np.flatnonzero(sizes[labels] == 1))):
        colours = [colour[label] if marker == "o" else "black" for label in labels[chosen]]
        axis.scatter(*points[chosen].T, c=colours, marker=marker, s=22, linewidths=0.5, zorder=2)
    axis.set_title(title, fontsize=9)
    axis.set_xticks([])
    axis.set_yticks([])


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, default=Path("docs/methods.png"))
    options = parser.parse_args()
    train, test = make_collection(1000, 50, 1), make_collection(72, 8, 11)
    rows = test[0].read(0, len(test[0]))
    points = rows @ np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)[2][:2].T
    pyplot = import_pyplot()
    figure, axes = pyplot.subplots(3, 8, figsize=(19.5, 7.6), layout="constrained")
    draw(axes.flat[0], points, test[1], test[2], "who they are")
    for axis, method in zip(list(axes.flat)[1:], METHODS.values(), strict=True):
        labels = run_method(method, train, test)
        figures = evaluate(test[2], labels)
        title = f"{method.title}\nF {100 * figures.pairwise.f:.0f} / {100 * figures.bcubed.f:.0f}"
        print(title.replace("\n", ": "), flush=True)
        draw(axis, points, test[1], labels, title)
    with replacing(options.output) as aside:
        figure.savefig(aside, dpi=90)


if __name__ == "__main__":
    main()
