"""Imaginary embedder: vectors that behave like those a face network would give.

In: who is on each picture, the number of the picture, and two seeds. Out: unit vectors. A face is

    x = rotate(normalise((1 - w) · normalise(identity + mode + noise) + w · blur))

- identity: a population's average (shared by all seeds of one embedder), a family's look (families of look-alikes are
  the hard negatives) and the person's own;
- mode: one of up to four looks of the person (ages), and a pose on axes that everybody shares;
- noise: fresh for each face, stronger for bad ones, of a flatter spectrum than identities;
- blur: the one point that bad faces drift to, whoever they are; w is nearly 0 for most faces;
- rotate: a random rotation, so that no axis means anything by itself. Variances decay along the hidden axes.

The embedder's seed fixes what a trained network would: populations, pose axes, blur point, spectrum and rotation.

Nothing is stored per person: every random number is a hash of (seed, what it is for, who, coordinate), so any row can
be made from its label and number alone. The price is that a person's vectors are computed again for each of their
faces.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit, prange
from numpy.typing import NDArray

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
class Embedder:
    """What collections of one embedder share, on the hidden axes, before the rotation.

    Attributes
    ----------
    identity_scale, noise_scale : float32 (d,)
        Standard deviation of identities and of noise along each hidden axis.
    populations : float32 (n_populations, d)
    pose_axes : float32 (n_pose_axes, d)
    blur : float32 (d,)
        Unit.
    pairs : int32 (n_turns, d // 2, 2)
        Axes turned in their plane, turn after turn.
    cosines, sines : float32 (n_turns, d // 2)
        By which angles.
    """

    identity_scale: NDArray[np.float32]
    noise_scale: NDArray[np.float32]
    populations: NDArray[np.float32]
    pose_axes: NDArray[np.float32]
    blur: NDArray[np.float32]
    pairs: NDArray[np.int32]
    cosines: NDArray[np.float32]
    sines: NDArray[np.float32]


def draw_embedder(seed: int, dim: int) -> Embedder:
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
    return Embedder(
        identity_scale=identity_scale.astype(np.float32),
        noise_scale=np.sqrt(flatter / flatter.sum()).astype(np.float32),
        populations=populations.astype(np.float32),
        pose_axes=pose_axes.astype(np.float32),
        blur=(blur / np.linalg.norm(blur)).astype(np.float32),
        pairs=orders.reshape(n_turns, dim // 2, 2).astype(np.int32),
        cosines=np.cos(angles).astype(np.float32),
        sines=np.sin(angles).astype(np.float32),
    )


def draw_faces(
    embedder: Embedder,
    labels: NDArray[np.int32],
    first_row: int,
    *,
    seed: int,
    noise: float = 1.0,
    kinship: float = 1.0,
) -> NDArray[np.float32]:
    """Draw a picture of each of the people, as consecutive rows of a collection.

    Parameters
    ----------
    embedder : Embedder
        Of d dimensions.
    labels : int32 (n,)
        Who is on each picture.
    first_row : int
        Number of the first picture in the collection.
    seed, noise, kinship
        Of the collection, see `synth.py`.

    Returns
    -------
    float32 (n, d)
        Unit rows.

    Examples
    --------
    >>> faces = draw_faces(draw_embedder(0, 64), np.array([7, 7, 8], np.int32), 0, seed=0, noise=0.0)
    >>> bool(faces[0] @ faces[1] > faces[0] @ faces[2])
    True
    """
    faces = np.empty((len(labels), len(embedder.blur)), dtype=np.float32)
    shared = (embedder.identity_scale, embedder.noise_scale, embedder.populations, embedder.pose_axes, embedder.blur)
    _fill_faces(faces, labels, first_row, np.uint64(seed), noise, kinship, *shared)
    _rotate_rows(faces, embedder.pairs, embedder.cosines, embedder.sines)
    return faces


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
