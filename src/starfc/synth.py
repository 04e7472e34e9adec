"""Synthetic collections: faces of known people, at any size.

In: how many faces and people, and two seeds. Out: unit vectors and labels, in memory or streamed to disk. What a face
looks like is the business of `embedder.py`; here is decided how many faces everybody has (a long tail, and as many
people with a single face as asked for) and in which order they come.

`seed` draws the people and their pictures, `embedder_seed` the network they are seen through. Two seeds with one
embedder are two collections of different people through the same network: train on the first, test on the second.

Memory is one block of rows and the labels (4 bytes a face) however many people there are, and the bytes do not depend
on blocks or threads.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from math import ceil
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from .atomic import replacing, require_writable
from .embedder import draw_embedder, draw_faces
from .errors import InputError
from .progress import Progress, silent

FACES_PER_PERSON = 60
SMALLEST_DIM = 8
_BLOCK_ROWS = 1 << 14
_LARGEST_SEED = 2**63 - 1
_MOST_FACES = 2**31 - 1


@dataclass(frozen=True)
class SynthFacts:
    """What was written, and where.

    Attributes
    ----------
    features, labels : Path
        The two files.
    n_faces, n_people, n_singletons, largest, dim : int
        Rows, people, people with one face, faces of the person with most, numbers per row.
    seed, embedder_seed : int
        What it takes to make them again.
    """

    features: Path
    labels: Path
    n_faces: int
    n_people: int
    n_singletons: int
    largest: int
    dim: int
    seed: int
    embedder_seed: int

    def as_dict(self) -> dict[str, Any]:
        """Return the facts as plain numbers and strings, for JSON."""
        return {**asdict(self), "features": str(self.features), "labels": str(self.labels)}


@dataclass(frozen=True)
class _World:
    """Checked parameters of a collection."""

    n_faces: int
    n_people: int
    n_singletons: int
    dim: int
    seed: int
    embedder_seed: int
    noise: float
    kinship: float


def synthesise(
    prefix: str | Path,
    *,
    faces: int = 10_000,
    people: int | None = None,
    dim: int = 256,
    seed: int = 0,
    embedder_seed: int = 0,
    singletons: float = 0.0,
    dtype: str = "float16",
    noise: float = 1.0,
    kinship: float = 1.0,
    progress: Progress = silent,
) -> SynthFacts:
    """Write PREFIX.features.npy and PREFIX.labels.npy, block by block.

    Parameters
    ----------
    prefix : str or Path
        Start of both file names; its folder must exist.
    faces, people : int
        Rows, and different people among them (default: 60 faces each, apart from `singletons`).
    dim : int
        Numbers per row, 8 or more.
    seed, embedder_seed : int
        Who is in the collection, and through which network they were seen.
    singletons : float
        Share of the people who have one face; all others have two or more, with a long tail.
    dtype : str
        "float16" or "float32".
    noise : float
        How bad the pictures are; 1 is like real collections, 0 leaves identities and modes only.
    kinship : float
        How much look-alikes have in common, from 0 (only chance) to 1.

    Returns
    -------
    SynthFacts

    Examples
    --------
    >>> facts = synthesise(getfixture("tmp_path") / "small", faces=100, people=5, dim=32)
    >>> facts.features.name, facts.n_people
    ('small.features.npy', 5)
    >>> np.load(facts.features).shape
    (100, 32)
    """
    if dtype not in ("float16", "float32"):
        raise InputError(f"dtype ('{dtype}') must be float16 or float32")
    world = _check_world(faces, people, dim, seed, embedder_seed, singletons, noise, kinship)
    targets = Path(f"{prefix}.features.npy"), Path(f"{prefix}.labels.npy")
    for target in targets:
        require_writable(target)
    sizes = _draw_sizes(world)
    labels = _shuffle_people(world, sizes)
    with replacing(targets[0]) as features_aside, replacing(targets[1]) as labels_aside:
        _write_features(features_aside, world, labels, np.dtype(dtype), progress)
        _write_labels(labels_aside, labels)
    return SynthFacts(
        features=targets[0],
        labels=targets[1],
        n_faces=world.n_faces,
        n_people=world.n_people,
        n_singletons=world.n_singletons,
        largest=int(sizes.max()),
        dim=world.dim,
        seed=world.seed,
        embedder_seed=world.embedder_seed,
    )


def make_faces(
    n_faces: int,
    *,
    people: int | None = None,
    dim: int = 256,
    seed: int = 0,
    embedder_seed: int = 0,
    singletons: float = 0.0,
    noise: float = 1.0,
    kinship: float = 1.0,
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Make a small collection in memory: the rows that :func:`synthesise` would write.

    Parameters
    ----------
    n_faces : int
        Rows.
    people, dim, seed, embedder_seed, singletons, noise, kinship
        As in :func:`synthesise`.

    Returns
    -------
    features : float32 (n_faces, dim)
        Unit rows.
    labels : int64 (n_faces,)
        People, numbered from 0.

    Examples
    --------
    >>> features, labels = make_faces(200, people=10, dim=64)
    >>> features.shape, len(np.unique(labels))
    ((200, 64), 10)
    """
    world = _check_world(n_faces, people, dim, seed, embedder_seed, singletons, noise, kinship)
    labels = _shuffle_people(world, _draw_sizes(world))
    features = np.empty((n_faces, dim), dtype=np.float32)
    for start, block in _draw_blocks(world, labels):
        features[start : start + len(block)] = block
    return features, labels.astype(np.int64)


def _check_world(
    faces: int,
    people: int | None,
    dim: int,
    seed: int,
    embedder_seed: int,
    singletons: float,
    noise: float,
    kinship: float,
) -> _World:
    """Refuse parameters that no collection can have, and fill in the number of people."""
    if not 2 <= faces <= _MOST_FACES:
        raise InputError(f"faces ({faces}) must be between 2 and {_MOST_FACES}")
    if dim < SMALLEST_DIM:
        raise InputError(f"dim ({dim}) must be at least {SMALLEST_DIM}; people cannot be told apart in fewer")
    for name, value in (("seed", seed), ("embedder_seed", embedder_seed)):
        if not 0 <= value <= _LARGEST_SEED:
            raise InputError(f"{name} ({value}) must be between 0 and {_LARGEST_SEED}")
    for name, share in (("singletons", singletons), ("kinship", kinship)):
        if not 0 <= share <= 1:
            raise InputError(f"{name} ({share}) must be between 0 and 1")
    if not 0 <= noise <= 10:
        raise InputError(f"noise ({noise}) must be between 0 and 10; 1 is like real collections")
    n_people = _choose_people(faces, singletons) if people is None else people
    n_singletons = _count_singletons(faces, n_people, singletons)
    return _World(faces, n_people, n_singletons, dim, seed, embedder_seed, noise, kinship)


def _choose_people(faces: int, singletons: float) -> int:
    """Return how many people give those with several faces about FACES_PER_PERSON each."""
    wanted = round(faces / (singletons + FACES_PER_PERSON * (1 - singletons)))
    # Two people are the fewest that need telling apart, if there are two faces for each.
    return max(wanted, min(2, faces // 2))


def _count_singletons(faces: int, people: int, singletons: float) -> int:
    """Return how many people have one face, after checking that the others can have two or more."""
    if not 1 <= people <= faces:
        raise InputError(f"people ({people}) must be between 1 and the number of faces ({faces})")
    n_singletons = round(singletons * people)
    needed = n_singletons + 2 * (people - n_singletons)
    if needed > faces:
        share = ceil((2 * people - faces) / people * 1e6) / 1e6
        fewer = max(1, int((faces - 0.5) / (2 - singletons)))
        raise InputError(
            f"people ({people}) with singletons={singletons:g} need at least {needed} faces, not {faces}; "
            f"pass singletons={share} or people={fewer}"
        )
    if n_singletons == people < faces:
        raise InputError(
            f"singletons ({singletons:g}) gives all {people} people one face, but there are {faces} faces; "
            f"lower singletons or pass people={faces}"
        )
    return n_singletons


def _draw_sizes(world: _World) -> NDArray[np.int64]:
    """Return the faces of every person: `n_singletons` ones, the others two or more with a long tail."""
    rng = np.random.default_rng([world.seed, 1])
    n_others = world.n_people - world.n_singletons
    sizes = np.ones(world.n_people, dtype=np.int64)
    if n_others:
        shares = rng.lognormal(sigma=0.9, size=n_others)
        n_spare = world.n_faces - world.n_singletons - 2 * n_others
        sizes[world.n_singletons :] = 2 + rng.multinomial(n_spare, shares / shares.sum())
    rng.shuffle(sizes)
    return sizes


def _shuffle_people(world: _World, sizes: NDArray[np.int64]) -> NDArray[np.int32]:
    """Return the person of every row, in random order."""
    labels = np.repeat(np.arange(world.n_people, dtype=np.int32), sizes)
    np.random.default_rng([world.seed, 2]).shuffle(labels)
    return labels


def _write_features(
    path: Path, world: _World, labels: NDArray[np.int32], dtype: np.dtype[Any], progress: Progress
) -> None:
    """Write the rows as `.npy`, one block in memory at a time."""
    progress("synth", 0, world.n_faces)
    with path.open("wb") as file:
        _write_header(file, dtype, (world.n_faces, world.dim))
        for start, block in _draw_blocks(world, labels):
            file.write(block.astype(dtype, copy=False).data)
            progress("synth", start + len(block), world.n_faces)
        _flush(file)


def _write_labels(path: Path, labels: NDArray[np.int32]) -> None:
    """Write the labels as int64 `.npy`, widened block by block."""
    with path.open("wb") as file:
        _write_header(file, np.dtype(np.int64), labels.shape)
        for start in range(0, len(labels), 1 << 20):
            file.write(labels[start : start + (1 << 20)].astype(np.int64).data)
        _flush(file)


def _write_header(file: BinaryIO, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    """Write the head of a `.npy` file."""
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)


def _flush(file: BinaryIO) -> None:
    """Force the bytes out now: a disk found full once the other file is renamed would leave a mixed pair."""
    file.flush()
    os.fsync(file.fileno())


def _draw_blocks(world: _World, labels: NDArray[np.int32]) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """Yield (first row, float32 unit rows) of consecutive blocks."""
    embedder = draw_embedder(world.embedder_seed, world.dim)
    for start in range(0, world.n_faces, _BLOCK_ROWS):
        rows = labels[start : start + _BLOCK_ROWS]
        yield start, draw_faces(embedder, rows, start, seed=world.seed, noise=world.noise, kinship=world.kinship)
