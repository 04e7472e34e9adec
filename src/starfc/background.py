"""Background: how similar two faces of different people are by chance, learned without labels.

In: Features. Out: Background, a fit of the survival function S(s) = P(cosine of a random pair > s). Almost all random
pairs show two people, and the fit uses only the range of S (.6 to .15) which same-person pairs cannot have touched.
For random directions S is close to (1 - s²)^(d/2), so log S is fitted by a parabola in x(s) = ± sqrt(-log(1 - s²)),
which is s itself for small cosines and grows without bound towards 1, and extrapolated to the rare high cosines. Two
quantities follow:

- the cosine beyond which a face expects `false_neighbors` strangers among n faces: S(s) = false_neighbors / n;
- the evidence e(s) = -log10(n S(s)), which is comparable between collections, sizes and embedders where cosines are
  not.

The trade-off: where everybody has a hundred faces the threshold is safe but stricter than need be.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .features import Features
from .workers import one_blas_thread

_SAMPLE_ROWS = 3000
_FITTED_SURVIVAL = (0.6, 0.15)
_SMALLEST_SAMPLE = 30
_HIGHEST_THRESHOLD = 0.98
_TYPICAL = (0.0, 0.0, -50.0)  # strangers' cosines of .1 standard deviation, as face embedders have


@dataclass(frozen=True)
class Background:
    """Fit of log S = constant + linear x + quadratic x², x = x(s), for a collection of n faces."""

    constant: float
    linear: float
    quadratic: float
    n_faces: int

    def evidence(self, similarities: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return -log10 of the false neighbours expected beyond each cosine; higher is surer."""
        x = np.maximum(stretch_cosines(similarities), self.peak)
        log_survival = self.constant + self.linear * x + self.quadratic * x * x
        return np.asarray(-(np.log(self.n_faces) + log_survival) / np.log(10.0), dtype=np.float32)

    def threshold(self, false_neighbors: float = 1e-3) -> float:
        """Return the cosine beyond which a face expects `false_neighbors` strangers.

        >>> round(Background(constant=0.0, linear=0.0, quadratic=-50.0, n_faces=1000).threshold(1e-3), 3)
        0.491
        """
        x = self.find_height(false_neighbors)
        return float(np.sign(x) * np.sqrt(-np.expm1(-x * x)))

    def find_height(self, false_neighbors: float) -> float:
        """Return the x (or z) beyond which a face expects `false_neighbors` strangers."""
        target = np.log(false_neighbors / self.n_faces)
        if self.quadratic == 0.0:
            return float((target - self.constant) / self.linear)
        root = np.sqrt(max(0.0, self.linear**2 - 4 * self.quadratic * (self.constant - target)))
        return float((-self.linear - root) / (2 * self.quadratic))

    @property
    def peak(self) -> float:
        """Return the x below which the parabola turns around; evidence is flat there."""
        return -self.linear / (2 * self.quadratic) if self.quadratic else -np.inf


def find_threshold(features: Features, *, seed: int = 0) -> tuple[float, str]:
    """Find a cosine above which two faces are linked, from the data alone.

    Returns
    -------
    threshold : float
    reason : str
        How it was found, for the user.

    Examples
    --------
    >>> faces = np.repeat(np.eye(8), 5, axis=0) + 0.05 * np.random.default_rng(0).normal(size=(40, 8))
    >>> threshold, reason = find_threshold(Features(faces))
    >>> 0.05 < threshold < 0.98
    True
    """
    threshold = fit_background(features, seed=seed).threshold()
    if threshold < _HIGHEST_THRESHOLD:
        return threshold, "a thousandth of a stranger expected per face"
    # In few dimensions even the highest cosines happen by chance, so the tail says nothing; look for two groups of
    # pairs instead.
    return _split_in_two(_draw_cosines(features, seed)), "the best split of random pairs into two groups"


def fit_background(features: Features, *, seed: int = 0) -> Background:
    """Fit the chance similarities of a collection from the cosines of up to 4.5 million random pairs.

    Parameters
    ----------
    features : Features
        (n, d), n >= 2.
    seed : int
        Which rows are drawn.

    Returns
    -------
    Background

    Examples
    --------
    >>> rows = np.random.default_rng(0).normal(size=(2000, 64))
    >>> background = fit_background(Features(rows))
    >>> 0.5 < background.threshold() < 0.7
    True
    """
    return fit_survival(stretch_cosines(_draw_cosines(features, seed)), len(features))


def fit_survival(
    heights: NDArray[np.floating[Any]], n_faces: int, *, typical: tuple[float, float, float] = _TYPICAL
) -> Background:
    """Fit log S by a parabola over the survivals .6 to .15 of a sample of heights x (or z, see `profiles.py`).

    Parameters
    ----------
    heights : float (m,)
        Of random pairs.
    n_faces : int
        In the collection.
    typical : constant, linear, quadratic
        Taken where there is too little to fit.

    Returns
    -------
    Background

    Examples
    --------
    >>> background = fit_survival(np.random.default_rng(0).normal(size=100_000), 1000)
    >>> bool(abs(background.quadratic + 0.33) < 0.05)
    True
    """
    survivals = np.linspace(*_FITTED_SURVIVAL, 46)
    x = np.quantile(heights, 1.0 - survivals) if len(heights) else np.zeros(1)
    if n_faces < _SMALLEST_SAMPLE or len(np.unique((x / (np.abs(x).max() + 1e-30)).round(3))) < 5:
        return Background(*typical, n_faces)  # too few, or all alike: nothing to fit
    quadratic, linear, constant = np.polyfit(x, np.log(survivals), 2)
    if quadratic >= 0:  # a tail heavier than exponential cannot be told from same-person pairs; a line is the limit
        linear, constant = np.polyfit(x, np.log(survivals), 1)
        quadratic = 0.0
    return Background(float(constant), float(linear), float(quadratic), n_faces)


def stretch_cosines(cosines: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """Map cosines to x(s) = sign(s) sqrt(-log(1 - s²)); 1 itself to a large finite number."""
    s = np.clip(cosines.astype(np.float64), -1 + 1e-12, 1 - 1e-12)
    return np.asarray(np.sign(s) * np.sqrt(-np.log1p(-s * s)))


@one_blas_thread()
def _draw_cosines(features: Features, seed: int) -> NDArray[np.float32]:
    """Return the cosines of all pairs among up to 3,000 random rows."""
    n = len(features)
    drawn = np.sort(np.random.default_rng(seed).choice(n, size=min(n, _SAMPLE_ROWS), replace=False))
    rows = features.take(drawn)
    return np.asarray((rows @ rows.T)[np.triu_indices(len(rows), 1)])


def _split_in_two(values: NDArray[np.float32]) -> float:
    """Return the cut with the least variance within its two sides (Otsu's)."""
    ordered = np.sort(values.astype(np.float64))
    below = np.arange(1, len(ordered))
    sums = np.cumsum(ordered)
    gap = sums[:-1] / below - (sums[-1] - sums[:-1]) / (len(ordered) - below)
    best = int(np.argmax(below * (len(ordered) - below) * gap**2)) if len(ordered) > 1 else 0
    return float(ordered[best : best + 2].mean())
