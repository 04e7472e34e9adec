"""The tables of docs/benchmarks.md that compare every method, on folds, and on data that is put together first.

    python benchmarks/tables.py fiw -o t_fiw --data ../shared/data [--folds 2]     folds by people of fiw_a
    python benchmarks/tables.py lfw -o t_lfw --data ../shared/data                 train fiw_a + pins105, test lfw
    python benchmarks/tables.py synthetic -o t_syn [--faces 100000 --people 1500]  MS1M-like, others to train and test

Each is `starfc bench table --tune` (every method in its own process, resumable: the same command goes on where it was
stopped; further options are passed on). Of folds, the mean of the tables is written to folds.md. Some 15 people of
pins105 are also in lfw.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np

from starfc.features import Features, load_features, save_features
from starfc.labels import load_labels, save_labels
from starfc.synth import synthesise


def split_folds(data: Path, folder: Path, folds: int, seed: int) -> list[tuple[Path, Path]]:
    """Write train and test parts of each fold, people apart; return their features."""
    features, labels = load_features(data / "fiw_a.features.npy"), load_labels(data / "fiw_a.labels.npy")
    people = np.unique(labels)
    fold_of = np.random.default_rng(seed).permutation(len(people)) % folds
    parts = []
    for fold in range(folds):
        tested = np.isin(labels, people[fold_of == fold])
        named = [("train", ~tested), ("test", tested)]
        parts.append(
            tuple(write_part(folder / f"{name}{fold}", features.raw[kept], labels[kept]) for name, kept in named)
        )
    return parts


def write_part(prefix: Path, rows, labels) -> Path:
    """Write features and labels side by side, unless they are there; return the features."""
    target = prefix.with_name(f"{prefix.name}.features.npy")
    if not target.exists():
        prefix.parent.mkdir(parents=True, exist_ok=True)
        save_labels(labels.astype(np.int64), prefix.with_name(f"{prefix.name}.labels.npy"))
        save_features(Features(np.ascontiguousarray(rows)), target)
    return target


def join_sets(data: Path, folder: Path, names: tuple[str, ...]) -> Path:
    """Write several sets as one, their people apart."""
    rows, labels, n_people = [], [], 0
    for name in names:
        rows.append(np.load(data / f"{name}.features.npy"))
        _, codes = np.unique(load_labels(data / f"{name}.labels.npy"), return_inverse=True)
        labels.append(codes + n_people)
        n_people += int(codes.max()) + 1
    return write_part(folder / "_".join(names), np.concatenate(rows), np.concatenate(labels))


def make_synthetic(folder: Path, faces: int, people: int) -> tuple[Path, Path]:
    """Write two collections of different people as one embedder would see them."""
    paths = []
    for name, seed in (("train", 3000), ("test", 4000)):
        target = folder / f"{name}.features.npy"
        if not target.exists():
            folder.mkdir(parents=True, exist_ok=True)
            synthesise(folder / name, faces=faces, people=people, dim=256, seed=seed, embedder_seed=7)
        paths.append(target)
    return paths[0], paths[1]


def run_table(train: Path, test: Path, output: Path, more: list[str]) -> list[dict]:
    """Run `starfc bench table` and return its rows."""
    words = ["bench", "table", "--features", train, "--test", test, "--tune", "-o", output, *more]
    command = [str(word) for word in words]
    print("starfc " + shlex.join(command), flush=True)
    subprocess.run([sys.executable, "-m", "starfc.cli", *command], check=True)
    return json.loads((output / "table.json").read_text())["rows"]


def average(tables: list[list[dict]]) -> str:
    """Return a table of the mean (and spread) of F over folds."""
    lines = ["| method | pairwise F | BCubed F | training, CPU-s | CPU-s |", "|---|---|---|---|---|"]
    for rows in zip(*tables, strict=True):
        done = [row for row in rows if row["status"] == "done"]
        if len(done) < len(rows):
            failed = next(row["status"] for row in rows if row["status"] != "done")
            lines.append(f"| {rows[0]['title']} | {failed} | | | |")
            continue
        cells = []
        for kind in ("pairwise", "bcubed"):
            values = [100 * row["figures"][kind]["f"] for row in done]
            cells.append(f"{np.mean(values):.2f} ± {np.std(values):.2f}")
        for cost in ("train_cpu_s", "cpu_s"):
            values = [row[cost] for row in done if row[cost] is not None]
            cells.append(f"{np.mean(values):.1f}" if values else "")
        lines.append(f"| {rows[0]['title']} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Make the parts, run the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("which", choices=("fiw", "lfw", "synthetic"))
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--folds", type=int, default=2)
    parser.add_argument("--faces", type=int, default=100_000)
    parser.add_argument("--people", type=int, default=1_500)
    parser.add_argument("--seed", type=int, default=0)
    options, more = parser.parse_known_args()
    # data of other settings is other data, with other folders for what is made of it
    about = {"fiw": (options.folds, options.seed), "lfw": (), "synthetic": (options.faces, options.people)}
    parts = options.output / "-".join(["data", *map(str, about[options.which])])
    if options.which == "fiw":
        pairs = split_folds(options.data, parts, options.folds, options.seed)
        folders = [options.output / f"fold{fold}of{options.folds}-{options.seed}" for fold in range(options.folds)]
        tables = [run_table(*pair, folder, more) for pair, folder in zip(pairs, folders, strict=True)]
        text = average(tables)
        (options.output / "folds.md").write_text(text + "\n")
        print(text)
    elif options.which == "lfw":
        train = join_sets(options.data, parts, ("fiw_a", "pins105"))
        test = write_part(
            parts / "lfw", np.load(options.data / "lfw.features.npy"), load_labels(options.data / "lfw.labels.npy")
        )
        run_table(train, test, options.output, more)
    else:
        run_table(*make_synthetic(parts, options.faces, options.people), options.output, more)


if __name__ == "__main__":
    main()
