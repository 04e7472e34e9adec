"""Stability of the label-free default: the same data in another guise, parts of it, and two sets put together.

    python benchmarks/stability.py [--sets lfw fiw_a pins105] [--data ../shared/data] [--seed 0]

Guises: rows permuted, all features times a factor, features rotated by a random orthogonal matrix; adjusted Rand index
against the partition of the data as it is. Parts: each half of the people, a third of the faces of each person. Two
sets of one width put together. BCubed F of these, beside what is to be expected: of halves and thirds what the
partition of the whole set has on just these faces (a part is easier than the whole if half of the relatives are gone),
then what it has on all; of two sets the mean of theirs, weighted by faces; people who are in both count as two, so
putting them together costs. Prints markdown and saves JSON; what is in the JSON, of the same code and seed, is not run
again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import adjusted_rand_score

import starfc
from starfc.features import load_features
from starfc.labels import load_labels
from starfc.metrics import evaluate
from unsupervised import name_code

Collection = tuple[NDArray[np.float32], NDArray[np.int64]]


def disguise(rows: NDArray[np.float32], rng: np.random.Generator) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Yield the rows scaled and rotated."""
    for factor in (1e-3, 37.0):
        yield f"times {factor:g}", rows * np.float32(factor)
    rotation = np.linalg.qr(rng.normal(size=(rows.shape[1], rows.shape[1])))[0]
    yield "rotated", (rows @ rotation).astype(np.float32)


def take_parts(labels: NDArray[np.int64], rng: np.random.Generator) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """Yield each half of the people, and a third of the faces of each person, at least one."""
    first = np.isin(labels, rng.permutation(np.unique(labels))[::2])
    yield "half of the people", first
    yield "the other half", ~first
    order = np.lexsort((rng.random(len(labels)), labels))
    starts = np.flatnonzero(np.diff(labels[order], prepend=labels.min() - 1))
    sizes = np.diff(starts, append=len(labels))
    third = np.zeros(len(labels), dtype=np.bool_)
    third[order] = np.arange(len(labels)) - np.repeat(starts, sizes) < np.repeat(np.maximum(1, sizes // 3), sizes)
    yield "a third of each one's faces", third


def score(found: NDArray[np.int64], labels: NDArray[np.int64]) -> float:
    """Return BCubed F in percent."""
    return 100 * evaluate(labels, found).bcubed.f


def run(options: argparse.Namespace) -> dict[str, list[float]]:
    """Fill the table, row by row: (ARI,) of a guise, (F, F to be expected, ...) of the others."""
    kept = json.loads(options.output.read_text()) if options.output.exists() else {}
    script = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]
    made_by = {"code": name_code("*.py", "shipped/*"), "script": script, "seed": options.seed}
    rows: dict[str, list[float]] = kept["rows"] if kept.get("made_by") == made_by else {}
    sets: dict[str, Collection] = {}
    whole: dict[str, float] = {}

    def keep(name: str, *figures: float) -> None:
        rows[name] = [round(figure, 5) for figure in figures]
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps({"made_by": made_by, "rows": rows}, indent=1), encoding="utf-8")
        print(name, rows[name], flush=True)

    for name in options.sets:
        features = load_features(options.data / f"{name}.features.npy")
        data, labels = features.read(0, len(features)), load_labels(options.data / f"{name}.labels.npy")
        sets[name] = data, labels
        plain = starfc.cluster(data).labels
        whole[name] = score(plain, labels)
        rng = np.random.default_rng(options.seed)
        order = rng.permutation(len(data))
        if f"{name}: permuted" not in rows:
            keep(f"{name}: permuted", adjusted_rand_score(plain[order], starfc.cluster(data[order]).labels))
        for guise, changed in disguise(data, rng):
            if f"{name}: {guise}" not in rows:
                keep(f"{name}: {guise}", adjusted_rand_score(plain, starfc.cluster(changed).labels))
        for part, taken in take_parts(labels, rng):
            if f"{name}: {part}" not in rows:
                found = starfc.cluster(data[taken]).labels
                keep(f"{name}: {part}", score(found, labels[taken]), score(plain[taken], labels[taken]), whole[name])
    for one, other in combinations(options.sets, 2):
        if sets[one][0].shape[1] == sets[other][0].shape[1] and f"{one} and {other}" not in rows:
            (first, people), (second, others) = sets[one], sets[other]
            labels = np.concatenate((people, others + people.max() + 1))
            expected = (len(first) * whole[one] + len(second) * whole[other]) / (len(first) + len(second))
            keep(f"{one} and {other}", score(starfc.cluster(np.concatenate((first, second))).labels, labels), expected)
    return rows


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", default=["lfw", "fiw_a", "pins105"])
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path, default=Path("bench/stability.json"))
    options = parser.parse_args()
    rows = run(options)
    print("\n| | ARI, or BCubed F | to be expected |\n|---|---|---|")
    for name, figures in rows.items():
        print(
            f"| {name} | {figures[0]:.{5 if len(figures) == 1 else 2}f} | {' '.join(f'{x:.2f}' for x in figures[1:])} |"
        )


if __name__ == "__main__":
    main()
