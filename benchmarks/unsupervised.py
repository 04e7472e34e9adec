"""Without labels: the default against methods that are given their best parameter for each set, chosen WITH the labels.

    python benchmarks/unsupervised.py [--sets lfw fiw_a pins105] [--worlds 10000 10012] [--data ../shared/data]

Sets: the real ones in --data, and worlds of `worlds.py` that no model was trained on and nothing was chosen on
(training: 0 to 249 and from 30,000 on, but for development: 900 to 989, 20,000 to 20,149, 38,000 to 38,999, 44,000 to
48,999). Ours looks at as many neighbours as it finds right, the opponents at 80. Ours has no option. Each opponent has
its grid (`starfc.baselines`): "oracle" is the best of it for that set and metric, "one for all" the setting with the
best mean BCubed F over all sets. k-means is given the true number of people. Every finished cell is kept in -o (ours
only until its code or its model changes), and a run that was stopped goes on. Prints markdown; draws FILE.png beside
the JSON.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import starfc
from starfc.features import Features
from starfc.knn import KnnGraph, build_knn
from starfc.metrics import evaluate
from starfc.workdir import digest_arrays
from worlds import draw_world

OURS = "starfc"
OPPONENTS = ("infomap_cosine", "dbscan", "hdbscan", "hac", "kmeans", "chinese_whispers", "fc_es", "face_map", "lcepce")
_FIXED: dict[str, dict[str, Any]] = {
    "hac": {"linkage": "average"},
    "lcepce": {"connectivity": "nep"},
    "lcepce_relational": {"connectivity": "relational"},  # on our scores, so no opponent; for --opponents
}
_GRAPH_K = 80
# What describes the edges of a world, from its kNN graph on.
_DESCRIBING = (
    "exact.py", "knn.py", "selection.py", "background.py", "profiles.py", "relations.py", "facetable.py",
    "relational_training.py",
)  # fmt: skip


def name_code(*others: str) -> str:
    """Return a name for the code that describes the edges of worlds, and other files of the package: their digest."""
    folder, files = Path(starfc.__file__).parent, [Path(__file__).with_name("worlds.py")]
    for name in (*_DESCRIBING, *others):
        files += sorted(path for path in folder.glob(name) if path.is_file())
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:12]


def cluster_without_labels(features: Features) -> NDArray[np.int64]:
    """Run what `starfc cluster FEATURES -o OUT` does."""
    return starfc.cluster(features).labels


def open_sets(options: argparse.Namespace) -> Iterator[tuple[str, Features, NDArray[np.int64]]]:
    """Yield name, features and labels of every set."""
    for name in options.sets:
        features = np.load(options.data / f"{name}.features.npy")
        yield name, Features(features), np.load(options.data / f"{name}.labels.npy").astype(np.int64)
    for seed in range(*options.worlds):
        rows, labels, _ = draw_world(seed)
        yield f"world {seed}", Features(rows), labels


def measure(labels: NDArray[np.int64], found: NDArray[np.int64]) -> list[float]:
    """Return pairwise and BCubed F in percent."""
    result = evaluate(labels, found)
    return [round(100 * result.pairwise.f, 2), round(100 * result.bcubed.f, 2)]


def run_opponent(name: str, features: Features, graph: KnnGraph, labels: NDArray[np.int64]) -> dict[str, list[float]]:
    """Measure a method at every setting of its grid."""
    module = import_module(f"starfc.baselines.{name.removesuffix('_relational')}")
    grid = module.GRID
    if name == "kmeans":
        grid = ({"faces_per_cluster": len(labels) / len(np.unique(labels))},)
    cluster = partial(module.cluster_faces, features, graph)
    if hasattr(module, "measure_evidence"):  # what takes long and is the same for every setting
        cluster = partial(module.cluster_evidence, module.measure_evidence(features, graph))
    scores = {}
    for setting in grid:
        found = cluster(**setting, **_FIXED.get(name, {}))
        key = "true number" if name == "kmeans" else json.dumps(setting)
        scores[key] = measure(labels, found)
    return scores


def run_all(options: argparse.Namespace) -> dict[str, Any]:
    """Fill the table, cell by cell."""
    results: dict[str, Any] = json.loads(options.output.read_text()) if options.output.exists() else {}
    for name, features, labels in open_sets(options):
        digest = digest_arrays(features=features.raw, labels=labels)
        if results.get(name, {}).get("digest") != digest:  # new, or drawn otherwise today
            people = len(np.unique(labels))
            results[name] = {"digest": digest, "faces": len(labels), "people": people, "scores": {}}
        row = results[name]
        graph: KnnGraph | None = None
        code = name_code("*.py", "shipped/*")
        if row.get("code") != code:
            row["code"] = code
            row["scores"].pop(OURS, None)
        for method in (OURS, *options.opponents):
            if method in row["scores"]:
                continue
            started = time.perf_counter()
            if method == OURS:
                row["scores"][method] = {"": measure(labels, cluster_without_labels(features))}
            else:
                graph = graph or build_knn(features, k=min(_GRAPH_K, len(features) - 1))
                row["scores"][method] = run_opponent(method, features, graph, labels)
            options.output.parent.mkdir(parents=True, exist_ok=True)
            options.output.write_text(json.dumps(results, indent=1), encoding="utf-8")
            print(f"{name}: {method} in {time.perf_counter() - started:.1f} s", flush=True)
    return results


def find_best(row: dict[str, Any], method: str) -> list[float]:
    """Return the best pairwise and the best BCubed F over a method's settings."""
    return [max(score[metric] for score in row["scores"][method].values()) for metric in (0, 1)]


def find_one_for_all(results: dict[str, Any], method: str) -> str:
    """Return the setting with the best mean BCubed F over all sets."""
    settings = next(iter(results.values()))["scores"][method]
    return max(settings, key=lambda key: float(np.mean([row["scores"][method][key][1] for row in results.values()])))


def print_table(results: dict[str, Any], opponents: list[str]) -> None:
    """Print pairwise / BCubed F of every set and method, oracle settings, then the means with one setting for all."""
    print(
        f"\n| set | faces | people | {OURS}, no options | " + " | ".join(f"{name}, oracle" for name in opponents) + " |"
    )
    print("|" + "---|" * (4 + len(opponents)))
    methods = [OURS, *opponents]
    for name, row in results.items():
        cells = ["{:.2f}/{:.2f}".format(*find_best(row, method)) for method in methods]
        print(f"| {name} | {row['faces']} | {row['people']} | " + " | ".join(cells) + " |")
    means = [np.mean([find_best(row, method) for row in results.values()], axis=0) for method in methods]
    print("| mean, oracle | | | " + " | ".join("{:.2f}/{:.2f}".format(*mean) for mean in means) + " |")
    fixed = []
    for method in methods:
        key = find_one_for_all(results, method)
        fixed.append(np.mean([row["scores"][method][key] for row in results.values()], axis=0))
    print("| mean, one for all | | | " + " | ".join("{:.2f}/{:.2f}".format(*mean) for mean in fixed) + " |")


def draw_chart(results: dict[str, Any], opponents: list[str], path: Path) -> None:
    """Draw BCubed F per set: ours, each opponent's best, and each opponent with one setting for all."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axis = plt.subplots(figsize=(9, 0.34 * len(results) + 1.2))
    for place, (name, row) in enumerate(results.items()):
        best = [find_best(row, method)[1] for method in opponents]
        fixed = [row["scores"][method][find_one_for_all(results, method)][1] for method in opponents]
        axis.plot(fixed, [place] * len(fixed), "|", color="#bbbbbb", markersize=11)
        axis.plot(best, [place] * len(best), "o", color="#7f9fbf", markersize=5)
        axis.plot(row["scores"][OURS][""][1], place, "D", color="#c0392b", markersize=7)
        axis.text(-0.01, place, name, ha="right", va="center", transform=axis.get_yaxis_transform(), fontsize=8)
    axis.set(yticks=[], xlabel="BCubed F, %", xlim=(40, 100.5))
    axis.set_title(
        "red: starfc without options; blue: opponents tuned with the labels; grey: one setting for all", fontsize=9
    )
    axis.invert_yaxis()
    figure.tight_layout()
    figure.savefig(path, dpi=150)


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="*", default=["lfw", "fiw_a", "pins105"])
    parser.add_argument("--worlds", type=int, nargs=2, default=[10_000, 10_012])
    parser.add_argument("--opponents", nargs="*", default=list(OPPONENTS))
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("-o", "--output", type=Path, default=Path("bench/unsupervised.json"))
    options = parser.parse_args()
    results = run_all(options)
    print_table(results, options.opponents)
    draw_chart(results, options.opponents, options.output.with_suffix(".png"))


if __name__ == "__main__":
    main()
