"""Synthetic faces: vectors that behave like face embeddings, with known people, at any size.

In: how many faces and people, and two seeds. Out: unit vectors and labels, in memory or streamed to disk.
A face is

    x = rotate(normalise((1 - w) · normalise(identity + mode + noise) + w · blur))

- identity: a population's average (shared by all seeds of one embedder), a family's look (families of
  look-alikes are the hard negatives) and the person's own;
- mode: one of up to four looks of the person (ages), and a pose on axes that everybody shares;
- noise: fresh for each face, stronger for bad ones, of a flatter spectrum than identities;
- blur: the one point that bad faces drift to, whoever they are; w is nearly 0 for most faces;
- rotate: a random rotation, so that no axis means anything by itself. Variances decay along the hidden axes.

`embedder_seed` fixes what an embedding network would: populations, pose axes, blur point, spectrum and
rotation. `seed` draws the people and their pictures. Two seeds with one embedder are two collections of
different people through the same network: train on the first, test on the second.

Nothing is stored per person: every random number is a hash of (seed, what it is for, who, coordinate), so any
row can be made from its label and number alone. Memory is one block of rows and the labels (4 bytes a face)
however many people there are, and the bytes do not depend on blocks or threads. The price is that a person's
vectors are computed again for each of their faces.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from math import ceil
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numba import njit, prange
from numpy.typing import NDArray

from .atomic import replacing, require_writable
from .errors import InputError
from .progress import Progress, silent

FACES_PER_PERSON = 60
SMALLEST_DIM = 8
_BLOCK_ROWS = 1 << 14
_LARGEST_SEED = 2**63 - 1
_MOST_FACES = 2**31 - 1

# Energies (squared lengths) of the parts of a good face. They, and the powers of uniform numbers below, were
# set so that cosines of same-person, random and neighbouring faces follow those of ArcFace on real sets.
_POPULATION_ENERGY = 0.06
_IDENTITY_ENERGY = 1.0
_MODE_ENERGY = 0.55
_POSE_ENERGY = 0.10
_NOISE_ENERGY = 0.70
_N_POPULATIONS = 12
_N_POSE_AXES = 3
_FAMILY_SIZE = 6
_MOST_MODES = 4
# Real spectra fall by a factor of e in about a hundred directions, whatever the dimension.
_SPECTRUM_DECAY = 100.0

# What a hash is for. Streams must differ, or two parts of a face would be the same numbers.
_FAMILY, _PERSON, _MODE, _FACE, _PERSON_TRAITS, _FACE_TRAITS = (np.uint64(stream) for stream in range(1, 7))


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


@dataclass(frozen=True)
class _Embedder:
    """What collections of one `embedder_seed` share, on the hidden axes, before the rotation."""

    identity_scale: NDArray[np.float32]  # (d,) standard deviation of identities along each hidden axis
    noise_scale: NDArray[np.float32]  # (d,) the same for noise: flatter
    populations: NDArray[np.float32]  # (n_populations, d)
    pose_axes: NDArray[np.float32]  # (n_pose_axes, d)
    blur: NDArray[np.float32]  # (d,) unit
    pairs: NDArray[np.int32]  # (n_turns, d // 2, 2) axes turned in their plane, turn after turn
    cosines: NDArray[np.float32]  # (n_turns, d // 2)
    sines: NDArray[np.float32]  # (n_turns, d // 2)


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
    embedder = _draw_embedder(world.embedder_seed, world.dim)
    for start in range(0, world.n_faces, _BLOCK_ROWS):
        rows = labels[start : start + _BLOCK_ROWS]
        out = np.empty((len(rows), world.dim), dtype=np.float32)
        _fill_faces(
            out,
            rows,
            start,
            np.uint64(world.seed),
            world.noise,
            world.kinship,
            embedder.identity_scale,
            embedder.noise_scale,
            embedder.populations,
            embedder.pose_axes,
            embedder.blur,
        )
        _rotate_rows(out, embedder.pairs, embedder.cosines, embedder.sines)
        yield start, out


def _draw_embedder(seed: int, dim: int) -> _Embedder:
    """Draw what a trained network would fix."""
    rng = np.random.default_rng([seed, 3])
    variances = np.exp(-np.arange(dim) / min(_SPECTRUM_DECAY, 0.4 * dim))
    identity_scale = np.sqrt(variances / variances.sum())
    flatter = np.sqrt(variances)
    populations = rng.normal(size=(_N_POPULATIONS, dim)) * identity_scale
    pose_axes = rng.normal(size=(_N_POSE_AXES, dim)) * identity_scale
    blur = rng.normal(size=dim) * identity_scale
    # Turning random pairs of axes by random angles is Kac's walk on rotations: 2 log2(d) turns mix all axes
    # with all, for d log d operations a row and in an order that no BLAS decides.
    n_turns = 2 * int(np.ceil(np.log2(dim)))
    orders = np.stack([rng.permutation(dim)[: dim // 2 * 2] for _ in range(n_turns)])
    angles = rng.uniform(0, 2 * np.pi, size=(n_turns, dim // 2))
    return _Embedder(
        identity_scale=identity_scale.astype(np.float32),
        noise_scale=np.sqrt(flatter / flatter.sum()).astype(np.float32),
        populations=populations.astype(np.float32),
        pose_axes=pose_axes.astype(np.float32),
        blur=(blur / np.linalg.norm(blur)).astype(np.float32),
        pairs=orders.reshape(n_turns, dim // 2, 2).astype(np.int32),
        cosines=np.cos(angles).astype(np.float32),
        sines=np.sin(angles).astype(np.float32),
    )


@njit(cache=True, inline="always")
def _hash(key, index):  # type: ignore[no-untyped-def]
    """Return 64 bits that look random for each (key, index): the SplitMix64 generator."""
    bits = key + (index + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


@njit(cache=True, inline="always")
def _draw_uniform(key, index):  # type: ignore[no-untyped-def]
    """Return a number in [0, 1) for each (key, index)."""
    return np.float64(_hash(key, np.uint64(index)) >> np.uint64(11)) * 2.0**-53


@njit(cache=True)
def _add_normals(row, key, amplitude, scale):  # type: ignore[no-untyped-def]
    """Add independent normals of the given scales, each near enough the sum of a hash's four 16-bit parts."""
    low = np.uint64(0xFFFF)
    factor = np.float32(amplitude * np.sqrt(3.0) / 65536.0)
    for axis in range(len(row)):
        bits = _hash(key, np.uint64(axis))
        total = (
            (bits & low) + ((bits >> np.uint64(16)) & low) + ((bits >> np.uint64(32)) & low) + (bits >> np.uint64(48))
        )
        row[axis] += factor * scale[axis] * np.float32(np.int64(total) - np.int64(2 * 65535))


@njit(cache=True)
def _normalise(row):  # type: ignore[no-untyped-def]
    """Scale `row` to length one, in place."""
    total = 0.0
    for axis in range(len(row)):
        total += np.float64(row[axis]) * np.float64(row[axis])
    row *= np.float32(1.0 / np.sqrt(total))


@njit(cache=True)
def _add_identity(row, person, seed, kinship, scale, populations):  # type: ignore[no-untyped-def]
    """Add who it is: population, family and the person's own part."""
    family = np.uint64(person // _FAMILY_SIZE)
    family_key = _hash(_hash(seed, _FAMILY), family)
    # Most people of a family are alike a little and a few very much: the square of a uniform number.
    alike = kinship * 0.85 * _draw_uniform(_hash(_hash(seed, _PERSON_TRAITS), np.uint64(person)), 0) ** 2
    population = np.int64(_draw_uniform(family_key, 1 << 40) * len(populations))
    row += np.float32(np.sqrt(_POPULATION_ENERGY)) * populations[population]
    _add_normals(row, family_key, np.sqrt(_IDENTITY_ENERGY * alike), scale)
    own_key = _hash(_hash(seed, _PERSON), np.uint64(person))
    _add_normals(row, own_key, np.sqrt(_IDENTITY_ENERGY * (1.0 - alike)), scale)


@njit(cache=True)
def _add_mode(row, person, seed, face_key, scale, pose_axes):  # type: ignore[no-untyped-def]
    """Add how the person looks here: between two of their looks, near the first, and the pose."""
    traits = _hash(_hash(seed, _PERSON_TRAITS), np.uint64(person))
    n_modes = 1 + np.int64(_draw_uniform(traits, 1) * _MOST_MODES)
    energy = _MODE_ENERGY * (0.2 + 1.6 * _draw_uniform(traits, 2))
    first = np.int64(_draw_uniform(face_key, 0) ** 2 * n_modes)
    second = np.int64(_draw_uniform(face_key, 1) * n_modes)
    drift = 0.6 * _draw_uniform(face_key, 2) ** 2
    modes = _hash(_hash(seed, _MODE), np.uint64(person))
    _add_normals(row, _hash(modes, np.uint64(first)), np.sqrt(energy) * (1.0 - drift), scale)
    _add_normals(row, _hash(modes, np.uint64(second)), np.sqrt(energy) * drift, scale)
    for axis in range(len(pose_axes)):
        turn = 2.0 * _draw_uniform(face_key, 3 + axis) - 1.0
        row += np.float32(turn * np.sqrt(3.0 * _POSE_ENERGY / len(pose_axes))) * pose_axes[axis]


@njit(cache=True, parallel=True)
def _fill_faces(  # type: ignore[no-untyped-def]
    out,
    labels,
    first_row,
    seed,
    noise,
    kinship,
    identity_scale,
    noise_scale,
    populations,
    pose_axes,
    blur,
):
    """Write the faces of `labels`, rows first_row onwards of the collection, on the hidden axes."""
    for index in prange(len(labels)):
        row = out[index]
        row[:] = np.float32(0)
        person = np.int64(labels[index])
        traits = _hash(_hash(seed, _FACE_TRAITS), np.uint64(first_row + index))
        _add_identity(row, person, seed, kinship, identity_scale, populations)
        _add_mode(row, person, seed, traits, identity_scale, pose_axes)
        # The 16th power: one face in sixty drifts by .4 or more, most hardly at all.
        badness = (_draw_uniform(traits, 10) ** 2) ** 8
        energy = noise * _NOISE_ENERGY * (0.3 + 1.4 * _draw_uniform(traits, 11)) * (1.0 + 3.0 * badness)
        _add_normals(row, _hash(_hash(seed, _FACE), np.uint64(first_row + index)), np.sqrt(energy), noise_scale)
        _normalise(row)
        drift = min(0.65, 0.53 * noise * badness)
        row *= np.float32(1.0 - drift)
        row += np.float32(drift) * blur
        _normalise(row)


@njit(cache=True, parallel=True)
def _rotate_rows(rows, pairs, cosines, sines):  # type: ignore[no-untyped-def]
    """Turn every row by all turns, in place."""
    for index in prange(len(rows)):
        row = rows[index]
        for turn in range(len(pairs)):
            for plane in range(pairs.shape[1]):
                i, j = pairs[turn, plane, 0], pairs[turn, plane, 1]
                x, y = row[i], row[j]
                row[i] = cosines[turn, plane] * x - sines[turn, plane] * y
                row[j] = sines[turn, plane] * x + cosines[turn, plane] * y
