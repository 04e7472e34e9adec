"""Without labels, on parts of the real sets and on what other embedders might have made of them.

    python benchmarks/guises.py [--data ../shared/data] [--only lfw] [--opponents infomap_cosine hac chinese_whispers]
    python benchmarks/guises.py --only lfw fiw_a --matching uneven
    python benchmarks/guises.py --matching among

Parts: people with so many faces, so many faces of each, one face of nearly everybody, one person with many faces among
people with few, as many faces of each as chance says from 2 to 150 (both "uneven"), a few people with many faces among
people who are there once ("among"; those of pins105 among people of lfw), the smaller of these also with near-copies.
Guises: random projections to fewer dimensions, principal components, noise, an embedder off its centre, one whose
numbers are never negative. Ours has no option; of the opponents, each with the setting that is best for the labels of
that very collection, the best counts. Prints markdown.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import starfc
from starfc.features import Features
from starfc.knn import build_knn
from unsupervised import measure, run_opponent

Rows = NDArray[np.float32]
Labels = NDArray[np.int64]
Collection = tuple[str, Rows, Labels]
_DENSE = 100  # faces of each of pins105 that guises are made of
_AMONG = ((1, 60, 300), (3, 50, 2000), (10, 30, 3000), (1, 110, 800), (1, 600, 300), (1, 600, 2000), (1, 600, 5000),
          (2, 600, 2000), (4, 600, 2000), (10, 600, 2000),
          (30, 600, 1500))  # people, faces of each at most, people who are there once  # fmt: skip
_FEW_FACES = 110  # of each at most, where near-copies are added too
_N_COPIES = 50
_SAME = 0.5  # cosine to somebody's centre at which a face is taken for one of this person


def normalise(rows: Rows) -> Rows:
    """Scale rows to length one."""
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), dtype=np.float32)


def load_set(data: Path, name: str) -> tuple[Rows, Labels]:
    """Read a set as unit rows."""
    rows = np.load(data / f"{name}.features.npy").astype(np.float32)
    return normalise(rows), np.load(data / f"{name}.labels.npy").astype(np.int64)


def take_part(
    rows: Rows, labels: Labels, rng: np.random.Generator, *, sizes: tuple[int, int] = (1, 1 << 30), most: int = 1 << 30
) -> tuple[Rows, Labels]:
    """Take people with so many faces, and at most so many faces of each."""
    people, counts = np.unique(labels, return_counts=True)
    chosen = people[(counts >= sizes[0]) & (counts <= sizes[1])]
    faces = [rng.permutation(np.flatnonzero(labels == person))[:most] for person in chosen]
    kept = np.sort(np.concatenate(faces))
    return rows[kept], labels[kept]


def take_sparse(rows: Rows, labels: Labels, rng: np.random.Generator) -> tuple[Rows, Labels]:
    """Take one face of everybody, and a second one of every tenth person who has two: hardly any match."""
    order = rng.permutation(len(labels))
    people, firsts, counts = np.unique(labels[order], return_index=True, return_counts=True)
    again = np.isin(labels[order], rng.choice(people[counts > 1], (counts > 1).sum() // 10, replace=False))
    again[firsts] = False
    _, seconds = np.unique(labels[order][again], return_index=True)
    kept = np.sort(order[np.concatenate([firsts, np.flatnonzero(again)[seconds]])])
    return rows[kept], labels[kept]


def take_uneven(rows: Rows, labels: Labels, rng: np.random.Generator, most: Labels) -> tuple[Rows, Labels]:
    """Take people with two faces or more, and at most so many of the first, the second ... by their number of faces."""
    people, counts = np.unique(labels, return_counts=True)
    order = np.argsort(-counts, kind="stable")[: (counts > 1).sum()]
    faces = [
        rng.permutation(np.flatnonzero(labels == person))[:n]
        for person, n in zip(people[order], most[: len(order)], strict=True)
    ]
    kept = np.sort(np.concatenate(faces))
    return rows[kept], labels[kept]


def draw_uneven(rows: Rows, labels: Labels, seed: int) -> Iterator[tuple[str, Rows, Labels]]:
    """Yield parts in which some have many more faces than most."""
    n_people = len(np.unique(labels))
    for n_large in (25, 60, 90, 150):
        most = np.full(n_people, 5)
        most[0] = n_large
        title = f"uneven: one of {n_large}, others of 2 to 5"
        yield title, *take_uneven(rows, labels, np.random.default_rng([seed, n_large]), most)
    for draw in range(3):
        rng = np.random.default_rng([seed, draw])
        most = np.exp(rng.uniform(np.log(2), np.log(150), n_people)).astype(np.int64)
        yield f"uneven: 2 to 150 of each, draw {draw + 1}", *take_uneven(rows, labels, rng, most)


def draw_among(
    rows: Rows, labels: Labels, others: Rows, people_of_others: Labels | None, seed: int
) -> Iterator[tuple[str, Rows, Labels]]:
    """Yield a few people with many faces among others who are there once.

    `others` are faces of as many people: whose, where they are of the same set; else those who look like one of the few
    are left out.
    """
    people, counts = np.unique(labels, return_counts=True)
    largest = people[np.argsort(-counts, kind="stable")]
    for n_people, most, n_once in _AMONG:
        rng = np.random.default_rng([seed, n_people, most, n_once])
        chosen = [rng.permutation(np.flatnonzero(labels == person))[:most] for person in largest[:n_people]]
        if people_of_others is None:
            centres = normalise(np.stack([rows[faces].mean(axis=0) for faces in chosen]))
            is_stranger = (others @ centres.T).max(axis=1) < _SAME
        else:
            is_stranger = ~np.isin(people_of_others, largest[:n_people])
        if np.count_nonzero(is_stranger) < n_once:
            continue
        strangers = rng.permutation(np.flatnonzero(is_stranger))[:n_once]
        who = np.repeat(np.arange(n_people + n_once), [*map(len, chosen)] + [1] * n_once)
        title = f"{n_people} of up to {max(map(len, chosen))} faces among {n_once} of one"
        yield title, np.concatenate((rows[np.concatenate(chosen)], others[strangers])), who


def add_copies(rows: Rows, labels: Labels, seed: int) -> tuple[Rows, Labels]:
    """Add near-copies of some pictures, as a second export or a burst makes them: noise of a tenth of their length."""
    rng = np.random.default_rng([seed, 2])
    again = rng.permutation(len(rows))[:_N_COPIES]
    noise = normalise(rng.standard_normal((len(again), rows.shape[1]), dtype=np.float32))
    copies = normalise(rows[again] + np.float32(0.1) * noise)
    return np.concatenate((rows, copies)), np.concatenate((labels, labels[again]))


def take_once(rows: Rows, labels: Labels, seed: int) -> tuple[Rows, Labels]:
    """Take one face of everybody."""
    order = np.random.default_rng([seed, 1]).permutation(len(labels))
    kept = order[np.unique(labels[order], return_index=True)[1]]
    return rows[kept], labels[kept]


def draw_guises(rows: Rows, rng: np.random.Generator) -> Iterator[tuple[str, Rows]]:
    """Yield the rows as other embedders might have made them."""
    dim = rows.shape[1]
    for width in (128, 64):
        yield f"projected to {width}", normalise(rows @ rng.standard_normal((dim, width), dtype=np.float32))
    centred = rows - rows.mean(axis=0)
    axes = np.linalg.svd(centred[::3], full_matrices=False)[2][:64]
    yield "64 principal components", normalise(centred @ axes.T)
    for strength in (0.7, 1.2):
        noise = normalise(rng.standard_normal(rows.shape, dtype=np.float32))
        yield f"noise {strength}", normalise(rows + np.float32(strength) * noise)
    yield "off centre", normalise(rows + normalise(rng.standard_normal((1, dim), dtype=np.float32)))
    yield "never negative", normalise(np.maximum(rows @ rng.standard_normal((dim, 256), dtype=np.float32), 0))


def open_collections(data: Path, only: list[str], seed: int) -> Iterator[Collection]:
    """Yield parts and guises of the sets."""
    parts = {
        "lfw": [((2, 1 << 30), 1 << 30), ((2, 5), 1 << 30), ((2, 2), 2), ((10, 1 << 30), 1 << 30)],
        "pins105": [((1, 1 << 30), most) for most in (2, 5, 20, 60)],
        "fiw_a": [((5, 1 << 30), 1 << 30), ((1, 4), 4), ((2, 1 << 30), 3)],
    }
    for name in only:
        rng = np.random.default_rng(seed)
        rows, labels = load_set(data, name)
        for sizes, most in parts[name]:
            title = f"{name}, people of {sizes[0]} to {min(sizes[1], len(rows))} faces, at most {min(most, len(rows))}"
            yield title, *take_part(rows, labels, rng, sizes=sizes, most=most)
        yield f"{name}, one face each, two of one in ten who have two", *take_sparse(rows, labels, rng)
        for title, *part in draw_uneven(rows, labels, seed):
            yield f"{name}, {title}", *part
        others, who = take_once(*(load_set(data, "lfw") if name == "pins105" else (rows, labels)), seed)
        for title, *part in draw_among(rows, labels, others, None if name == "pins105" else who, seed):
            yield f"{name}, {title}", *part
            if np.bincount(part[1]).max() <= _FEW_FACES:
                yield f"{name}, {title}, {_N_COPIES} near-copies", *add_copies(*part, seed)
        if name == "pins105":
            rows, labels = take_part(rows, labels, rng, most=_DENSE)
        for title, guise in draw_guises(rows, rng):
            yield f"{name}, {title}", guise, labels


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--only", nargs="+", default=["lfw", "fiw_a", "pins105"])
    parser.add_argument("--matching", default="", help="only collections with this in their title")
    parser.add_argument("--opponents", nargs="*", default=["infomap_cosine", "hac", "chinese_whispers"])
    parser.add_argument("--seed", type=int, default=5)
    options = parser.parse_args()
    print("| collection | faces | people | starfc, no options | best opponent, label-tuned |\n|---|---|---|---|---|")
    for title, rows, labels in open_collections(options.data, options.only, options.seed):
        if options.matching not in title:
            continue
        features = Features(rows)
        ours = measure(labels, starfc.cluster(features).labels)
        graph = build_knn(features, k=min(80, len(features) - 1))
        tried = [s for name in options.opponents for s in run_opponent(name, features, graph, labels).values()]
        best = [max((score[metric] for score in tried), default=np.nan) for metric in (0, 1)]
        counts = f"{len(labels):,} | {len(np.unique(labels)):,}"
        print("| {} | {} | {:.2f} / {:.2f} | {:.2f} / {:.2f} |".format(title, counts, *ours, *best), flush=True)


if __name__ == "__main__":
    main()
