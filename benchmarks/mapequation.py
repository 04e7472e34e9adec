"""Map equation against the infomap package: codelength and time, and what the weights do to accuracy.

    pip install infomap                                    # GPL, for this comparison only
    python benchmarks/mapequation.py --data ../shared/data [--large]

Prints two markdown tables. "ratio" is our codelength over infomap's (below 1: ours is shorter), both measured by
`starfc.mapequation.measure_codelength`, which agrees with the figure infomap reports of itself. infomap runs once
(one trial, two-level, undirected) on the same links; its time includes handing it the links as one array. Ours runs on
`--threads` cores. Both are given the sum of the scores of both directions.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from starfc.background import find_threshold, fit_background
from starfc.features import load_features
from starfc.knn import build_knn
from starfc.labels import load_labels
from starfc.mapequation import label_by_map_equation, measure_codelength
from starfc.metrics import evaluate
from starfc.prune import EdgeGraph, parse_edges
from starfc.score import ScoredEdges
from starfc.threads import limited_threads

SETS = ("lfw", "fiw_a", "pins105")
K = 80
# faces, faces per person (0: long-tailed), links per face, share of links to anybody
PLANTED = (
    (10_000, 20, 10, 0.3),
    (100_000, 5, 5, 0.2),
    (100_000, 60, 40, 0.3),
    (100_000, 0, 20, 0.3),
    (250_000, 60, 40, 0.5),
)
LARGE = ((625_000, 60, 80, 0.2), (625_000, 0, 80, 0.3))


def plant_graph(n: int, size: int, n_links: int, stray: float, *, seed: int = 0) -> EdgeGraph:
    """Draw groups of a size, or of long-tailed sizes, in random node order, with some links to anybody."""
    rng = np.random.default_rng(seed)
    sizes = np.full(n // size + 1, size) if size else np.minimum(1 + rng.pareto(1.1, n).astype(np.int64), 500)
    group = np.repeat(np.arange(len(sizes)), sizes)[:n]
    counts = np.bincount(group)
    starts = np.cumsum(counts) - counts
    targets = (starts[group, None] + rng.random((n, n_links), dtype=np.float32) * counts[group, None]).astype(np.int32)
    strays = rng.random((n, n_links), dtype=np.float32) < stray
    targets[strays] = rng.integers(0, n, int(strays.sum()))
    place = rng.permutation(n).astype(np.int32)
    shuffled = np.empty_like(targets)
    shuffled[place] = place[targets]
    scores = rng.uniform(0.4, 1.0, targets.size).astype(np.float32)
    return EdgeGraph(np.arange(n + 1, dtype=np.int64) * n_links, shuffled.ravel(), scores)


def run_infomap(graph: EdgeGraph) -> tuple[NDArray[np.int64], float]:
    """Return infomap's labels and seconds."""
    from infomap import Infomap

    started = time.perf_counter()
    sources = np.repeat(np.arange(graph.n_nodes), np.diff(graph.offsets))
    search = Infomap("--two-level --silent --flow-model undirected --num-trials 1 --seed 1")
    links = np.column_stack([sources, graph.targets, graph.scores.astype(np.float64)])
    search.add_links(links[sources != graph.targets])  # we drop self loops, infomap would not
    result = search.run()
    seconds = time.perf_counter() - started
    labels = graph.n_nodes + np.arange(graph.n_nodes)  # who has no links is alone
    for node, module in result.modules().items():
        labels[node] = module
    assert np.isclose(result.codelength, measure_codelength(graph, labels), rtol=1e-5)
    return labels, seconds


def run_ours(graph: EdgeGraph, *, repeats: int = 1) -> tuple[NDArray[np.int64], float]:
    """Return our labels and the best of the repeats' seconds."""
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        labels = label_by_map_equation(graph)
        seconds.append(time.perf_counter() - started)
    return labels, min(seconds)


def compare(name: str, graph: EdgeGraph, *, with_infomap: bool = True) -> None:
    """Print one line of the first table."""
    labels, seconds = run_ours(graph, repeats=3 if graph.targets.size < 5_000_000 else 1)
    length = measure_codelength(graph, labels)
    line = (
        f"| {name} | {graph.n_nodes:,} | {graph.targets.size:,} | {labels.max() + 1:,} | {length:.4f} | {seconds:.2f} |"
    )
    if with_infomap:
        theirs, their_seconds = run_infomap(graph)
        their_length = measure_codelength(graph, theirs)
        line += f" {len(np.unique(theirs)):,} | {their_length:.4f} | {their_seconds:.2f} |"
        line += f" {length / their_length:.5f} | {their_seconds / seconds:.1f}x |"
    else:
        line += " | | | | |"
    print(line, flush=True)


def read_sets(folder: Path) -> Iterator[tuple[str, dict[str, EdgeGraph], NDArray[np.int64]]]:
    """Yield each set's name, its graph of cosines above the found threshold with several weights, and its truth."""
    for name in SETS:
        features = load_features(folder / f"{name}.features.npy")
        knn = build_knn(features, k=K)
        threshold, _ = find_threshold(features)
        graph = parse_edges(ScoredEdges(knn.neighbors, knn.similarities), threshold)
        evidence = fit_background(features).evidence(graph.scores)
        weights = {
            "cosine": graph.scores,
            "cosine - t + .01": graph.scores - np.float32(threshold) + np.float32(0.01),
            "evidence e": evidence,
            "1": np.ones_like(graph.scores),
        }
        graphs = {kind: EdgeGraph(graph.offsets, graph.targets, scores) for kind, scores in weights.items()}
        yield f"{name} (cos > {threshold:.3f})", graphs, load_labels(folder / f"{name}.labels.npy")


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--large", action="store_true", help="add graphs of 50M edges, without infomap")
    options = parser.parse_args()
    with limited_threads(options.threads):
        run_ours(plant_graph(1000, 10, 5, 0.1))  # compile
        print("| graph | nodes | edges | modules | bits | s | infomap modules | bits | s | ratio | faster |")
        print("|---|---|---|---|---|---|---|---|---|---|---|")
        sets = list(read_sets(options.data))
        for name, graphs, _ in sets:
            compare(name, graphs["cosine"])
        for shape in PLANTED:
            compare(f"planted, {shape[1] or '1-500'} a person, {shape[3]:.0%} stray", plant_graph(*shape))
        print("\nPairwise / BCubed F, percent\n\n| set | weights | ours | infomap |\n|---|---|---|---|")
        for name, graphs, truth in sets:
            for kind, graph in graphs.items():
                figures = [evaluate(truth, run(graph)[0]) for run in (run_ours, run_infomap)]
                cells = " | ".join(f"{100 * found.pairwise.f:.2f} / {100 * found.bcubed.f:.2f}" for found in figures)
                print(f"| {name} | {kind} | {cells} |", flush=True)
        if options.large:
            print()
            for shape in LARGE:
                compare(
                    f"planted, {shape[1] or '1-500'} a person, {shape[3]:.0%} stray",
                    plant_graph(*shape),
                    with_infomap=False,
                )


if __name__ == "__main__":
    main()
