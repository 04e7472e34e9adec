"""Avatars: a small drawn face for every embedding, so that vectors without pictures can be looked at.

In: Features. Out: numbers in 0 to 1 per face, and an SVG drawing made of them. The numbers are the face's coordinates
on the principal axes of a sample, by rank within the sample: the axes along which a collection varies most are those
that tell its people apart, so two faces that are alike are drawn alike. A dozen numbers cannot tell thousands of people
apart; the drawing is a hint, the cosine beside it is the measure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .errors import InputError
from .features import Features, map_npy

N_TRAITS = 12
_SAMPLE_ROWS = 2000


@dataclass(frozen=True)
class AvatarAxes:
    """What turns an embedding into traits.

    Attributes
    ----------
    mean : float32 (d,)
    axes : float32 (d, N_TRAITS)
    spread : float32 (N_TRAITS,)
        Standard deviation of the sample along each axis.
    """

    mean: NDArray[np.float32]
    axes: NDArray[np.float32]
    spread: NDArray[np.float32]

    def find_traits(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the traits of unit rows, float32 (len(rows), N_TRAITS) in 0 to 1, about evenly spread."""
        along = np.clip((rows - self.mean) @ self.axes / self.spread, -9, 9)
        return np.asarray(1 / (1 + np.exp(-1.7 * along)), dtype=np.float32)  # close to the normal distribution's rank


def fit_avatars(features: Features, *, seed: int = 0) -> AvatarAxes:
    """Find the axes along which a collection varies most, from 2,000 random rows.

    >>> axes = fit_avatars(Features(np.random.default_rng(0).normal(size=(50, 20))))
    >>> axes.axes.shape, axes.find_traits(np.eye(20, dtype=np.float32)[:3]).shape
    ((20, 12), (3, 12))
    """
    rng = np.random.default_rng(seed)
    n, dim = len(features), features.dim
    rows = features.take(np.sort(rng.choice(n, size=min(n, _SAMPLE_ROWS), replace=False)))
    mean = rows.mean(axis=0)
    _, values, directions = np.linalg.svd(rows - mean, full_matrices=False)
    axes = np.zeros((N_TRAITS, dim), dtype=np.float32)
    found = min(N_TRAITS, len(directions))
    # The sign of a principal axis is arbitrary: the largest entry is made positive so that it is always the same.
    signs = np.sign(np.take_along_axis(directions, np.abs(directions).argmax(axis=1)[:, None], axis=1))
    axes[:found] = (directions * np.where(signs == 0, 1, signs))[:found]
    spread = np.ones(N_TRAITS, dtype=np.float32)
    spread[:found] = np.maximum(values[:found] / np.sqrt(len(rows)), 1e-6)
    return AvatarAxes(mean, np.ascontiguousarray(axes.T), spread)


def imagine_traits(labels: NDArray[np.int64], *, seed: int = 0) -> NDArray[np.float32]:
    """Invent a face for every person and a slightly different picture of it for every row, float32 (n, N_TRAITS).

    For made-up collections, whose embeddings were never pictures: drawn from these, a wrong grouping shows at once.

    >>> traits = imagine_traits(np.array([0, 0, 1]))
    >>> bool(np.abs(traits[0] - traits[1]).max() < np.abs(traits[0] - traits[2]).max())
    True
    """
    rng = np.random.default_rng(seed)
    _, people = np.unique(labels, return_inverse=True)
    faces = rng.random((int(people.max(initial=-1)) + 1, N_TRAITS))[people]
    return np.clip(faces + rng.normal(0, 0.03, faces.shape), 0, 1).astype(np.float32)


def load_traits(path: str | Path, *, n_faces: int) -> NDArray[np.float32]:
    """Read traits to draw faces from, `.npy` of (n_faces, N_TRAITS) numbers in 0 to 1."""
    traits = map_npy(Path(path))
    if traits.shape != (n_faces, N_TRAITS) or traits.dtype.kind != "f":
        raise InputError(
            f"{path} has shape {traits.shape} of {traits.dtype}; traits are ({n_faces}, {N_TRAITS}) float numbers"
        )
    return np.asarray(traits, dtype=np.float32)


def draw_avatar(traits: NDArray[np.float32], *, size: int = 64) -> str:
    """Draw a face from its traits as an SVG element.

    >>> draw_avatar(np.full(N_TRAITS, 0.5, np.float32))[:25]
    '<svg class="avatar" viewB'
    """
    t = [float(np.clip(value, 0, 1)) for value in traits]
    hue = int(300 * t[0])  # not 360: both ends would be red
    skin = f"hsl({18 + 22 * t[1]:.0f} {40 + 25 * t[2]:.0f}% {38 + 42 * t[1]:.0f}%)"
    shade = f"hsl({18 + 22 * t[1]:.0f} {40 + 25 * t[2]:.0f}% {30 + 38 * t[1]:.0f}%)"
    hair = f"hsl({int(8 + 46 * t[3])} {25 + 50 * t[4]:.0f}% {12 + 50 * t[5]:.0f}%)"
    width, height = 17 + 6 * t[6], 21 + 5 * t[7]
    return (
        f'<svg class="avatar" viewBox="0 0 64 64" width="{size}" height="{size}" xmlns="http://www.w3.org/2000/svg">'
        f'<rect width="64" height="64" fill="hsl({hue} 45% 82%)"/>'
        f'<path d="M6 66q2-15 26-15t26 15z" fill="hsl({hue} 40% 45%)"/>'
        f'<rect x="27" y="46" width="10" height="12" fill="{shade}"/>'
        + _draw_hair(t, hair, width, height)
        + f'<ellipse cx="32" cy="34" rx="{width:.1f}" ry="{height:.1f}" fill="{skin}"/>'
        + _draw_fringe(t, hair, width, height)
        + _draw_features(t, shade, hair)
        + "</svg>"
    )


def draw_sheet(avatars: Sequence[str], *, columns: int = 3) -> str:
    """Put avatars side by side into one SVG: a browser draws one picture of six faces far sooner than six pictures.

    >>> draw_sheet([draw_placeholder()] * 4).count("<svg")
    5
    """
    rows = -(-len(avatars) // columns)
    placed = "".join(
        f'<g transform="translate({67 * (place % columns)} {67 * (place // columns)})" clip-path="url(#c)">{avatar}</g>'
        for place, avatar in enumerate(avatars)
    )
    return (
        f'<svg viewBox="0 0 {67 * columns - 3} {max(64, 67 * rows - 3)}" xmlns="http://www.w3.org/2000/svg">'
        f'<clipPath id="c"><rect width="64" height="64" rx="6"/></clipPath>{placed}</svg>'
    )


def draw_placeholder(*, size: int = 64) -> str:
    """Draw what stands for a picture that cannot be shown."""
    return (
        f'<svg class="avatar" viewBox="0 0 64 64" width="{size}" height="{size}" xmlns="http://www.w3.org/2000/svg">'
        '<rect width="64" height="64" fill="#e5e7eb"/>'
        '<path d="M20 20l24 24M44 20l-24 24" stroke="#9ca3af" stroke-width="4" stroke-linecap="round"/></svg>'
    )


def _draw_hair(t: list[float], hair: str, width: float, height: float) -> str:
    """Draw the hair behind the head, short to long."""
    length = 22 + 30 * t[8]
    return (
        f'<path d="M{32 - width - 3:.1f} {12 + length:.1f}V32q0-{height + 3:.1f} {width + 3:.1f}-{height + 3:.1f}'
        f't{width + 3:.1f} {height + 3:.1f}V{12 + length:.1f}z" fill="{hair}"/>'
    )


def _draw_fringe(t: list[float], hair: str, width: float, height: float) -> str:
    """Draw the hair over the forehead, parted somewhere."""
    part, depth = 32 + (t[9] - 0.5) * 1.4 * width, 20 + 6 * t[10]
    left, right, top = 32 - width, 32 + width, 33 - height
    return (
        f'<path d="M{left:.1f} 31Q{left:.1f} {top - 1:.1f} 32 {top - 1:.1f}T{right:.1f} 31'
        f'Q{right - 4:.1f} {depth:.1f} {part:.1f} {depth - 4:.1f}Q{left + 3:.1f} {depth:.1f} {left:.1f} 31z" '
        f'fill="{hair}"/>'
    )


def _draw_features(t: list[float], shade: str, hair: str) -> str:
    """Draw eyes, brows, nose and mouth."""
    gap, eye = 6 + 3.5 * t[9], 1.6 + 1.5 * t[10]
    iris = f"hsl({int(25 + 195 * t[11])} 45% 28%)"
    tilt, curve, mouth = 3 * (t[2] - 0.5), 1 + 6 * t[4], 4 + 4 * t[7]
    parts = []
    for side in (-1, 1):
        x = 32 + side * gap
        parts.append(f'<ellipse cx="{x:.1f}" cy="34" rx="{eye + 1.4:.1f}" ry="{eye:.1f}" fill="#fff"/>')
        parts.append(f'<circle cx="{x:.1f}" cy="34" r="{eye * 0.8:.1f}" fill="{iris}"/>')
        parts.append(
            f'<path d="M{x - 3.4:.1f} {29.5 + side * tilt:.1f}L{x + 3.4:.1f} {29.5 - side * tilt:.1f}" '
            f'stroke="{hair}" stroke-width="{1 + 1.5 * t[5]:.1f}" stroke-linecap="round"/>'
        )
    parts.append(
        f'<path d="M32 35l{-1 - 2 * t[6]:.1f} {4 + 3 * t[3]:.1f}h{2 + 2 * t[6]:.1f}" fill="none" stroke="{shade}"'
        ' stroke-width="1.4" stroke-linejoin="round"/>'
    )
    parts.append(
        f'<path d="M{32 - mouth:.1f} {46 - curve / 3:.1f}q{mouth:.1f} {curve:.1f} {2 * mouth:.1f} 0" fill="none"'
        ' stroke="#8f2d3a" stroke-width="1.8" stroke-linecap="round"/>'
    )
    return "".join(parts)
