"""Profiles: how similar each face is to strangers, and what a similarity is worth between two such faces.

In: Features. Out: Profiles: for each face the centre and the scale of its cosines with a cohort of the collection, and
one Background of cosines measured in these. Faces differ: babies, profiles and blurred pictures are similar to many
strangers, so the same cosine is weak evidence between two of them and strong evidence between two others. With
x = x(s) as in `background.py`, an edge is measured as its height over the strangers of both ends,

    z_ij = ½ (x - centre_i) / scale_i + ½ (x - centre_j) / scale_j,

whose survival function over random pairs is nearly the same for all collections and embedders, and its evidence is

    e_ij = -log10(n S(z_ij)):  minus the log of the strangers expected beyond it per face.

Centre and scale are trimmed means of the middle of a face's cosines (survival .6 to .4) and of its shoulder (.25 to
.1), after those are left out that stand too high for strangers by what the lower half says: somebody may have a fifth
of the collection. Where a few people fill it, a face's cosines fall into two groups, its person and strangers; then
only the lower group counts. Where one person fills all of it there is no stranger to learn from. Such a collection is
known by three signs (`_is_one_person`), and measured against the strangers of a typical embedder; so are a handful of
faces, which tell nothing.

The cohort is the whole collection if it is small, else every (n / 2048)-th row in the order of similarity to the mean
face: the order of rows, their scale and a rotation change next to nothing. The price is a product with 2,048 columns.
Of copies one counts: a placeholder that is there a thousand times is one stranger.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .background import Background, fit_survival, stretch_cosines
from .features import Features
from .kernels import leaf
from .knn import KnnGraph
from .progress import Progress, silent
from .tiles import run_tiles
from .workers import one_blas_thread

_COHORT = 2048
_WHOLE = 12_000  # faces up to which all are everybody's cohort
_TILE_ROWS = 512
_BINS = 4096
_BINS_AT_ONCE = 64  # that are skipped together: most are empty
_MIDDLE = (0.6, 0.4)
_SHOULDER = (0.25, 0.1)
_LOW = (0.9, 0.75)
_HIGHEST_STRANGER = 4.5  # standard deviations above the middle, as the lower half knows them
_HIGHEST_IN_CROWD = 2.5  # where a few people fill the collection and most of what is higher is of one person
_SHOULDER_HEIGHT = 0.949  # of a standard normal: what makes the scale a standard deviation
_SMALLEST_SCALE = 1e-4
_ENOUGH = 200  # strangers from which a face's centre and scale are its own
_MOST_EVIDENCE = 30.0  # of copies, whose cosine of 1 would be worth hundreds
_STAGE, _CHOICE = "profiles", "choose k"
_PROBES = 512
_APART = 3.5  # standard deviations of the lower group between two groups; one group cut in two has 2.7 if it is normal
_CROWD = 0.2  # share of the collection from which the upper group is worth a look
_SPLIT_PROBES = 256
_SPLIT_SHARE = 0.05  # of the probes with two groups, from which all faces are looked at so
_SPLIT_BY_CHANCE = 14  # by as many faces: so few that by chance 47 % of 30 and 20 % of 60 have two groups, at most
_LIKELY = 0.01  # strangers expected beyond a likely match
_CERTAIN = 1e-3  # and beyond a match that stands out
_QUARTILES = 1.349  # standard deviations between the quartiles of normal numbers
# Shares of the faces whose likely matches fit in the list, and lists beyond which they need not. People with more faces
# than a list holds may fall apart; where few faces are theirs, lists long enough for them would drown those with two.
_SERVED = (0.9, 512), (0.97, 256)
_FEWEST_NEIGHBORS = 80
_TYPICAL = (-0.69, -0.79, -0.3)  # of normal z; real collections differ by a few hundredths
_TYPICAL_SCALE = 0.1  # of strangers' x, whose centre is 0; embedders of 512 to 64 dimensions have .065 to .15
# One person, alone in a collection: measured on 17 people with 20 to 225 faces, and in brackets on strangers of the
# same embedder; an embedder far off its centre has the first sign but not the others.
_ALIKE = 0.25  # mean cosine of two faces is above: .26 to .65 (0)
_TOO_ALIKE = 0.75  # and below: else the embedder is far off its centre, and of few dimensions if it has the next sign
_WIDE = 0.16  # standard deviation of the cosines / (1 - their mean) is above: .17 to .39 (.07; in 64 dimensions .15)
_STANDING_OUT = 0.45  # share of faces with a neighbour that no stranger explains is below: 0 to .36
_FEWEST_ALONE = 20  # faces from which this can be seen
_HANDFUL = 20  # faces up to which nothing is measured
_NOT_COUNTED = -2.0  # in place of a face's cosine with itself


@dataclass(frozen=True)
class Profiles:
    """Chance similarities of every face, and of the collection in these units.

    Attributes
    ----------
    centres, scales : float32 (n,)
        Of x(s) between the face and strangers; scales are positive.
    background : Background
        Survival of z over random pairs.
    """

    centres: NDArray[np.float32]
    scales: NDArray[np.float32]
    background: Background

    def weigh_edges(self, graph: KnnGraph) -> NDArray[np.float32]:
        """Return the evidence e of every edge, float32 (n, k); meaningless where there is no neighbour.

        >>> profiles = Profiles(np.zeros(2, np.float32), np.full(2, 0.1, np.float32), Background(0, 0, -0.5, 2))
        >>> graph = KnnGraph(np.array([[1], [0]], np.int32), np.full((2, 1), 0.5, np.float32))
        >>> profiles.weigh_edges(graph).ravel().round(3)
        array([5.946, 5.946], dtype=float32)
        """
        evidence = np.empty(graph.neighbors.shape, dtype=np.float32)
        curve = self.background
        coefficients = np.array([curve.constant + np.log(curve.n_faces), curve.linear, curve.quadratic, curve.peak])

        def weigh_tile(start: int, stop: int) -> None:
            arguments = (start, stop, graph.neighbors, graph.similarities, self.centres, self.scales)
            _weigh_rows(*arguments, coefficients, evidence)

        run_tiles(len(evidence), _TILE_ROWS, weigh_tile, "evidence")
        return evidence


@one_blas_thread()
def measure_profiles(features: Features, *, progress: Progress = silent) -> Profiles:
    """Measure every face's similarity to strangers.

    Parameters
    ----------
    features : Features
        (n, d), n >= 2.
    progress : callable
        Called as ``progress("profiles", done, total)``.

    Returns
    -------
    Profiles

    Examples
    --------
    >>> faces = np.random.default_rng(0).normal(size=(2000, 64))
    >>> profiles = measure_profiles(Features(faces))
    >>> bool(abs(profiles.scales.mean() - 0.125) < 0.01)  # 1 / sqrt(64)
    True
    """
    n = len(features)
    cohort = _drop_copies(features, _choose_cohort(features, _COHORT, lambda: progress(_STAGE, 0, n)))
    if len(cohort) <= _HANDFUL:
        return _assume_typical(n)
    sample = features.take(cohort)
    strangers = _drop_copies(features, np.arange(n)) if n <= _WHOLE else cohort
    centres, scales = np.empty(n, np.float32), np.empty(n, np.float32)
    heights = stretch_cosines((np.arange(_BINS) + 0.5) * (2.0 / _BINS) - 1.0)
    columns = np.ascontiguousarray(features.take(strangers).T)
    place = np.full(n, -1, dtype=np.int64)
    place[strangers] = np.arange(len(strangers))

    def compare(rows: NDArray[np.int64], own_rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the cosines of rows with strangers; a face is none to itself."""
        cosines = own_rows @ columns
        listed = np.flatnonzero(place[rows] >= 0)
        cosines[listed, place[rows[listed]]] = _NOT_COUNTED
        return np.asarray(cosines)

    probes = cohort[:: -(-len(cohort) // _SPLIT_PROBES)]
    near = compare(probes, features.take(probes))
    crowded = _count_split_rows(near, heights) > max(_SPLIT_SHARE, _SPLIT_BY_CHANCE / len(strangers)) * len(probes)

    def measure_tile(start: int, stop: int) -> None:
        cosines = compare(np.arange(start, stop), features.read(start, stop))
        _measure_rows(cosines, heights, crowded, centres[start:stop], scales[start:stop])

    run_tiles(n, _TILE_ROWS, measure_tile, _STAGE, progress)
    if len(strangers) < _ENOUGH:  # too few to know each face by itself: lean on what all have in common
        own = len(strangers) / _ENOUGH
        centres = np.float32(own) * centres + np.float32((1 - own) * np.median(centres))
        scales = np.float32(own) * scales + np.float32((1 - own) * np.median(scales))
    pairs = np.triu_indices(len(cohort), 1)
    x = stretch_cosines(sample @ sample.T)
    z = (x - centres[cohort]) / scales[cohort]
    heights_of_pairs = (0.5 * (z + z.T))[pairs]
    strange = heights_of_pairs[heights_of_pairs < (_HIGHEST_IN_CROWD if crowded else _HIGHEST_STRANGER)]
    measured = Profiles(centres, scales, fit_survival(strange, n, typical=_TYPICAL))
    if not crowded and n <= _WHOLE and _is_one_person(measured, probes, strangers, near):
        return _assume_typical(n)
    return measured


@one_blas_thread()
def choose_k(
    features: Features, profiles: Profiles, *, most_edges: int = 64_000_000, progress: Progress = silent
) -> int:
    """Choose how many neighbours to look at: as many as nine faces in ten have likely matches, or more.

    Parameters
    ----------
    features : Features
        (n, d), n >= 2.
    profiles : Profiles
        Of these faces.
    most_edges : int
        Bound on n k, for memory and time; 80 neighbours are taken in any case.
    progress : callable
        Called as ``progress("choose k", done, total)``.

    Returns
    -------
    int
        From 80 to 512, and less than n.

    Examples
    --------
    >>> faces = np.random.default_rng(0).normal(size=(1000, 64))
    >>> choose_k(Features(faces), measure_profiles(Features(faces)))
    80
    """
    n = len(features)
    probes = _choose_cohort(features, min(n, _PROBES), lambda: progress(_CHOICE, 0, n))
    columns = np.ascontiguousarray(features.take(probes).T)
    height = profiles.background.find_height(_LIKELY)
    # z > height needs x above centre + height scale of one end at least: most pairs fail at the lowest of these.
    x = float((profiles.centres + height * profiles.scales).min())
    lowest = np.float32(np.sign(x) * np.sqrt(-np.expm1(-x * x)))

    def count_tile(start: int, stop: int) -> NDArray[np.int64]:
        cosines = features.read(start, stop) @ columns
        counts = _count_likely(cosines, start, probes, profiles.centres, profiles.scales, height, lowest)
        return np.asarray(counts)

    counts = np.sum(run_tiles(n, _TILE_ROWS, count_tile, _CHOICE, progress), axis=0)
    wanted = max(min(int(np.quantile(counts, share)), most) for share, most in _SERVED)
    return min(n - 1, max(_FEWEST_NEIGHBORS, min(wanted, most_edges // n)))


def _is_one_person(
    profiles: Profiles, probes: NDArray[np.int64], faces: NDArray[np.int64], cosines: NDArray[np.float32]
) -> bool:
    """Tell whether all are one person: much alike, as widely as one's pictures differ, and few nearer than others.

    `cosines` (probes, faces) are of some faces with all, but not with themselves. Strangers of an embedder that is off
    its centre are alike, too, but differ in as many directions as there are: their cosines are close together. And
    people stand out from them.
    """
    if cosines.shape[1] < _FEWEST_ALONE:
        return False
    others = cosines != _NOT_COUNTED
    values = cosines[others].astype(np.float64)
    mean, (low, high) = values.mean(), np.quantile(values, [0.25, 0.75])
    if not _ALIKE <= mean <= _TOO_ALIKE or (high - low) / _QUARTILES < _WIDE * (1 - mean):
        return False
    x = stretch_cosines(np.maximum(cosines, -1))
    own = (x - profiles.centres[probes, None]) / profiles.scales[probes, None]
    z = np.where(others, 0.5 * own + 0.5 * (x - profiles.centres[faces]) / profiles.scales[faces], -np.inf)
    return bool((z.max(axis=1) > profiles.background.find_height(_CERTAIN)).mean() < _STANDING_OUT)


def _assume_typical(n_faces: int) -> Profiles:
    """Return the profiles of n faces in a typical embedder, where nothing can be measured."""
    scales = np.full(n_faces, _TYPICAL_SCALE, dtype=np.float32)
    return Profiles(np.zeros(n_faces, dtype=np.float32), scales, Background(*_TYPICAL, n_faces))


def _choose_cohort(features: Features, size: int, after: Callable[[], None]) -> NDArray[np.int64]:
    """Return evenly spaced rows in the order of similarity to the mean face; calls `after` per tile."""
    n = len(features)
    toward = np.empty(n)

    def sum_tile(start: int, stop: int) -> NDArray[np.float64]:
        return np.asarray(features.read(start, stop).sum(axis=0, dtype=np.float64))

    mean = np.sum(run_tiles(n, _TILE_ROWS, sum_tile, _STAGE, after=after), axis=0)
    mean /= np.linalg.norm(mean) + 1e-30

    def compare_tile(start: int, stop: int) -> None:
        toward[start:stop] = features.read(start, stop) @ mean

    run_tiles(n, _TILE_ROWS, compare_tile, _STAGE, after=after)
    n_chosen = min(n, size)
    return np.argsort(toward, kind="stable")[((np.arange(n_chosen) + 0.5) * n / n_chosen).astype(np.int64)]


def _drop_copies(features: Features, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the rows without those whose face is that of one before.

    >>> _drop_copies(Features(np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])), np.arange(3))
    array([0, 1])
    """
    taken = np.ascontiguousarray(features.take(rows))
    whole = taken.view(np.dtype((np.void, taken.shape[1] * taken.itemsize)))[:, 0]
    return rows[np.sort(np.unique(whole, return_index=True)[1])]


@njit(cache=True, nogil=True)
def _measure_rows(cosines, heights, crowded, centres, scales):  # type: ignore[no-untyped-def]
    """Write the centre and the scale of every row of cosines, whose bins have the given heights."""
    counts = np.empty(len(heights), dtype=np.int32)
    for i in range(len(cosines)):
        n_strangers = _count_bins(cosines[i], counts)
        if crowded:
            n_strangers = _drop_upper_group(counts, heights, n_strangers)
        n_strangers = _drop_acquaintances(counts, heights, n_strangers)
        middle = _average_range(counts, heights, n_strangers, _MIDDLE)
        shoulder = _average_range(counts, heights, n_strangers, _SHOULDER)
        centres[i] = middle
        scales[i] = max((shoulder - middle) / _SHOULDER_HEIGHT, _SMALLEST_SCALE)


@leaf
def _count_bins(cosines, counts):  # type: ignore[no-untyped-def]
    """Fill the histogram of some cosines; return how many there are."""
    n_bins, n_counted = len(counts), 0
    counts[:] = 0
    for column in range(len(cosines)):
        if cosines[column] != np.float32(_NOT_COUNTED):
            at = int((cosines[column] + np.float32(1)) * np.float32(0.5 * n_bins))
            counts[min(max(at, 0), n_bins - 1)] += 1
            n_counted += 1
    return n_counted


@njit(cache=True, nogil=True)
def _count_split_rows(cosines, heights):  # type: ignore[no-untyped-def]
    """Count the rows of cosines that fall into two groups."""
    counts = np.empty(len(heights), dtype=np.int32)
    n_split = 0
    for i in range(len(cosines)):
        n = _count_bins(cosines[i], counts)
        n_split += _drop_upper_group(counts, heights, n) < n
    return n_split


@leaf
def _drop_upper_group(counts, heights, n):  # type: ignore[no-untyped-def]
    """Empty the bins of the upper of two groups (Otsu's) if it is large and far above; return how many are left."""
    total = 0.0
    for at in range(len(counts)):
        total += counts[at] * heights[at]
    below, first, second = 0, 0.0, 0.0
    best, cut, n_lower, variance, distance = -1.0, -1, n, 0.0, 0.0
    for at in range(len(counts)):
        below += counts[at]
        first += counts[at] * heights[at]
        second += counts[at] * heights[at] ** 2
        if counts[at] == 0 or below == n:
            continue
        apart = (total - first) / (n - below) - first / below
        if below * (n - below) * apart**2 > best:
            best, cut, n_lower, distance = below * (n - below) * apart**2, at, below, apart
            variance = max(second / below - (first / below) ** 2, 0.0)
    if n - n_lower < _CROWD * n or distance < _APART * max(np.sqrt(variance), _SMALLEST_SCALE):
        return n
    counts[cut + 1 :] = 0
    return n_lower


@leaf
def _drop_acquaintances(counts, heights, n):  # type: ignore[no-untyped-def]
    """Empty the bins that stand too far above the lower half for strangers; return how many values are left."""
    middle = _average_range(counts, heights, n, _MIDDLE)
    low = _average_range(counts, heights, n, _LOW)
    highest = middle + _HIGHEST_STRANGER * max((middle - low) / _SHOULDER_HEIGHT, _SMALLEST_SCALE)
    at = len(counts) - 1
    while heights[at] > highest:
        n -= counts[at]
        counts[at] = 0
        at -= 1
    return n


@leaf
def _average_range(counts, heights, n, survivals):  # type: ignore[no-untyped-def]
    """Return the mean height of the values whose survival lies in the range."""
    first, last = (1 - survivals[0]) * n, (1 - survivals[1]) * n
    start, n_below = _skip_bins(counts, first)
    below, total = float(n_below), 0.0
    for at in range(start, len(counts)):
        if counts[at] > 0:
            inside = min(below + counts[at], last) - max(below, first)
            if inside > 0:
                total += inside * heights[at]
            below += counts[at]
            if below >= last:
                break
    return total / (last - first)


@leaf
def _skip_bins(counts, most):  # type: ignore[no-untyped-def]
    """Return a bin, and how many values are in those before it: no more than `most`. Whole runs of bins are skipped."""
    start, n_below = 0, 0
    while start + _BINS_AT_ONCE < len(counts):
        n_here = 0
        for at in range(start, start + _BINS_AT_ONCE):
            n_here += counts[at]
        if n_below + n_here > most:
            break
        start, n_below = start + _BINS_AT_ONCE, n_below + n_here
    return start, n_below


@njit(cache=True, nogil=True)
def _count_likely(cosines, start, probes, centres, scales, height, lowest):  # type: ignore[no-untyped-def]
    """Count for each probe the rows from start on whose z with it is above the height, itself included."""
    counts = np.zeros(len(probes), dtype=np.int64)
    for row in range(len(cosines)):
        i = start + row
        for column in range(len(probes)):
            if cosines[row, column] < lowest:
                continue
            s = min(max(np.float64(cosines[row, column]), -1 + 1e-12), 1 - 1e-12)
            x = np.sign(s) * np.sqrt(-np.log1p(-s * s))
            j = probes[column]
            if 0.5 * (x - centres[i]) / scales[i] + 0.5 * (x - centres[j]) / scales[j] > height:
                counts[column] += 1
    return counts


@leaf
def _weigh_rows(start, stop, neighbors, similarities, centres, scales, coefficients, evidence):  # type: ignore[no-untyped-def]
    """Write the evidence of the edges of rows start..stop."""
    constant, linear, quadratic, peak = coefficients
    for i in range(start, stop):
        for slot in range(neighbors.shape[1]):
            j = neighbors[i, slot]
            if j < 0:
                evidence[i, slot] = 0
                continue
            s = min(max(np.float64(similarities[i, slot]), -1 + 1e-12), 1 - 1e-12)
            x = np.sign(s) * np.sqrt(-np.log1p(-s * s))
            z = 0.5 * (x - centres[i]) / scales[i] + 0.5 * (x - centres[j]) / scales[j]
            z = max(z, peak)
            evidence[i, slot] = min(-(constant + linear * z + quadratic * z * z) / np.log(10.0), _MOST_EVIDENCE)
