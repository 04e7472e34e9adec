"""Guard rails: what looks wrong with a clustering, each in one sentence, and how sure the clustering is of itself.

In: Features, labels (n,), ScoredEdges. Out: sentences for the user, none if all is well, and Sureness. With p_ij the
probabilities of the listed edges and W those within a cluster,

    right = sum_W p / |W|,    found = sum_W p / sum p:

the share of neighbours put together that are the same person, and the share of likely pairs that are together. Both are
the scorer's own opinion: it cannot know what it does not see, so kin whom it takes for one person count as right.

Everything but Sureness and the sizes of clusters looks at 2,000 faces, so it costs the same for any collection and may
miss what is rare.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .features import Features
from .score import ScoredEdges
from .tiles import run_tiles

_SAMPLE = 2000
_FEWEST = 20  # faces from which there is anything to say
_TILE_ROWS = 8192
_LARGE = 0.25  # share of all faces from which a cluster is looked at; of 200 faces and more a fifth of it will do
_MANY_FACES = 200
_OUTSIDE = 20  # faces of others from which they say how alike strangers are
_LOOSE = 0.3  # of the way from strangers to nearest neighbours: below, two of its faces are hardly alike
_ALONE = 0.98
_ALIKE = 0.3  # mean cosine of random pairs
_COPY = 0.9999
_NEAR_COPY = 0.98
_MANY_COPIES = 1000
_FEWEST_COPIES = 5  # of the faces looked at: fewer say too little of all
_COPIED_SHARE = 0.2
_TWO_KINDS = 6.0  # standard deviations between two groups
_SMALLEST_KIND = 0.05
_TORN = 0.6  # of the way from strangers to nearest neighbours: two faces of one person are that alike on average
_MANY_PEOPLE = 20  # clusters in each of two groups: fewer may simply be two people


@dataclass(frozen=True)
class Sureness:
    """What the probabilities say of a clustering, both 0 to 1.

    Attributes
    ----------
    right : float
        Share of the neighbours put together that are the same person; 1 where none are.
    found : float
        Share of the likely pairs among neighbours that are together; 1 where there are none.
    """

    right: float
    found: float

    def describe(self) -> str:
        """Return it as a sentence.

        >>> Sureness(right=0.984, found=0.971).describe()
        'by its own probabilities, 98.4 % of the neighbours put together are the same person, and 97.1 % of the
        likely pairs are together'
        """
        right = f"{100 * self.right:.1f} % of the neighbours put together are the same person"
        if self.found == 0:
            right = "no neighbours were put together"
        return f"by its own probabilities, {right}, and {100 * self.found:.1f} % of the likely pairs are together"


def measure_sureness(labels: NDArray[np.int64], scored: ScoredEdges) -> Sureness:
    """Sum up the probabilities within clusters and beyond.

    Parameters
    ----------
    labels : int64 (n,)
        -1 counts as nobody.
    scored : ScoredEdges
        (n, k), of a scorer that gives probabilities.

    Returns
    -------
    Sureness

    Examples
    --------
    >>> scored = ScoredEdges(np.array([[1], [2], [1]], np.int32), np.array([[0.9], [0.3], [0.3]], np.float32))
    >>> sure = measure_sureness(np.array([0, 0, 1]), scored)
    >>> round(sure.right, 2), round(sure.found, 2)
    (0.9, 0.6)
    """

    def sum_tile(start: int, stop: int) -> tuple[float, int, float]:
        neighbors, scores = scored.neighbors[start:stop], scored.scores[start:stop]
        mine = labels[start:stop, None]
        together = (labels[neighbors] == mine) & (neighbors >= 0) & (mine >= 0)
        likely = float(scores.sum(where=neighbors >= 0, dtype=np.float64))
        return float(scores.sum(where=together, dtype=np.float64)), int(together.sum()), likely

    sums = run_tiles(len(labels), _TILE_ROWS, sum_tile, "sureness")
    right, n_together, likely = (sum(part[at] for part in sums) for at in range(3))
    return Sureness(right / n_together if n_together else 1.0, right / likely if likely else 1.0)


def find_warnings(
    features: Features, labels: NDArray[np.int64], scored: ScoredEdges, *, by_relations: bool = True, seed: int = 0
) -> list[str]:
    """Say what looks wrong, one sentence each.

    Parameters
    ----------
    features : Features
        (n, d).
    labels : int64 (n,)
        What came out.
    scored : ScoredEdges
        (n, k); each list begins with the nearest face.
    by_relations : bool
        Whether the scorer is the one that `--prefer` works with; else thresholds are advised.
    seed : int
        Which faces are looked at.

    Returns
    -------
    list of str

    Examples
    --------
    >>> people = np.random.default_rng(0).normal(size=(8, 64))
    >>> faces = Features(np.repeat(people, 10, axis=0) + 0.4 * np.random.default_rng(1).normal(size=(80, 64)))
    >>> scored = ScoredEdges((np.arange(80, dtype=np.int32)[:, None] + 1) % 80, np.ones((80, 1), np.float32))
    >>> find_warnings(faces, np.repeat(np.arange(8), 10), scored)
    []
    >>> print(*find_warnings(faces, np.zeros(80, np.int64), scored))  # doctest: +ELLIPSIS
    the largest cluster holds 100 % of all faces, ...: several people are probably joined; try --prefer precision
    """
    if len(labels) < _FEWEST:
        return []
    rng = np.random.default_rng(seed)
    faces = _draw(rng, np.arange(len(labels)))
    rows = features.take(faces)
    strangers = _average_pairs(rows)
    nearest = _compare_nearest(features, scored, faces, rows)
    stricter, looser = (
        ("--prefer precision", "--prefer recall") if by_relations else ("a higher --tau1", "a lower --tau1")
    )
    found = (
        _judge_large(features, labels, strangers, float(np.median(nearest)), stricter, rng),
        _judge_alone(labels, strangers, looser),
        _judge_copies(nearest, len(labels)),
        _judge_kinds(features, faces, rows, labels[faces]),
    )
    return [sentence for sentence in found if sentence]


def _draw(rng: np.random.Generator, faces: NDArray[np.int64]) -> NDArray[np.int64]:
    """Draw up to 2,000 of the faces, in row order."""
    return np.sort(rng.permutation(faces)[:_SAMPLE])


def _average_pairs(rows: NDArray[np.float32]) -> float:
    """Return the mean cosine of two different rows, from the length of their sum."""
    n = len(rows)
    total = rows.sum(axis=0, dtype=np.float64)
    return float((total @ total - n) / (n * (n - 1)))


def _compare_nearest(
    features: Features, scored: ScoredEdges, faces: NDArray[np.int64], rows: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Return each face's cosine with the first of its list, -1 where there is none."""
    first = scored.neighbors[faces, 0].astype(np.int64)
    cosines = np.einsum("nd,nd->n", rows, features.take(np.maximum(first, 0)))
    return np.where(first >= 0, cosines, np.float32(-1)).astype(np.float32)


def _judge_large(
    features: Features,
    labels: NDArray[np.int64],
    strangers: float,
    nearest: float,
    advice: str,
    rng: np.random.Generator,
) -> str:
    """Tell of a large cluster, the largest such, whose faces are hardly more alike than strangers."""
    ids, codes, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    sizes[ids < 0] = 0
    least = np.where(sizes < _MANY_FACES, _LARGE, 0.2 * _LARGE)
    for rank, large in enumerate(np.argsort(-sizes, kind="stable")[: int(5 / _LARGE)]):
        share = sizes[large] / len(labels)
        if share < least[large]:
            continue
        inside = codes == large
        rows, others = (features.take(_draw(rng, np.flatnonzero(part))) for part in (inside, ~inside))
        cohesion = _average_pairs(rows)
        # Where one cluster is nearly everything, its faces are what random pairs are made of: strangers may have less.
        base = float(rows.mean(axis=0) @ others.mean(axis=0)) if len(others) >= _OUTSIDE else min(strangers, 0.0)
        if cohesion - base < _LOOSE * (nearest - base):
            return (
                f"{'a large' if rank else 'the largest'} cluster holds {100 * share:.0f} % of all faces, and two of"
                f" them are hardly more alike than strangers (mean cosine {cohesion:.2f}, nearest neighbours"
                f" {nearest:.2f}): several people are probably joined; try {advice}"
            )
    return ""


def _judge_alone(labels: NDArray[np.int64], strangers: float, advice: str) -> str:
    """Tell of a collection in which hardly anybody has a second face."""
    sizes = np.unique(labels[labels >= 0], return_counts=True)[1]
    share = (sizes == 1).sum() / len(labels)
    if share < _ALONE:
        return ""
    if strangers > _ALIKE:
        return (
            f"{100 * share:.0f} % of the faces are alone, but all are much alike (mean cosine {strangers:.2f}): they"
            " may be one person, who cannot be told without others to compare with; add faces of other people"
        )
    return (
        f"{100 * share:.0f} % of the faces are alone: either hardly anybody is in it twice, or these are not vectors of"
        f" one face embedder; try {advice} to see the next likely pairs"
    )


def _judge_copies(nearest: NDArray[np.float32], n_faces: int) -> str:
    """Tell of many faces that are copies of others."""
    n_seen, share = int((nearest > _COPY).sum()), float((nearest > _COPY).mean())
    if n_seen < _FEWEST_COPIES or (share * n_faces < _MANY_COPIES and share < _COPIED_SHARE):
        return ""
    return (
        f"about {share * n_faces:.0f} faces ({100 * share:.0f} %) are copies of another one (cosine above {_COPY});"
        " they crowd out real neighbours: remove copies first if pictures were imported twice"
    )


def _judge_kinds(
    features: Features,
    faces: NDArray[np.int64],
    rows: NDArray[np.float32],
    labels: NDArray[np.int64],
) -> str:
    """Tell of vectors that are not embeddings of one kind."""
    raw = np.asarray(features.raw[faces], dtype=np.float64)
    if (raw >= 0).all():
        return "no value is negative, as in pixels or histograms: these are probably not embeddings of faces"
    largest = np.maximum(np.abs(raw).max(axis=1, keepdims=True), 1e-30)  # their squares may be beyond all numbers
    lengths = np.log(np.maximum(np.linalg.norm(raw / largest, axis=1), 1e-30)) + np.log(largest[:, 0])
    if _find_two_groups(lengths, labels) is not None:
        return (
            "the vectors have two quite different lengths: they may come from two embedders or two stages of one;"
            " cluster each kind by itself"
        )
    centred = rows - rows.mean(axis=0)
    direction = np.linalg.svd(centred[: _SAMPLE // 2], full_matrices=False)[2][0]
    above = _find_two_groups((centred @ direction).astype(np.float64), labels)
    if above is not None and not any(_is_one_person(rows, part) for part in (above, ~above)):
        return (
            "the vectors fall into two groups of many people each that have nothing in common: they may come from two"
            " embedders; cluster each kind by itself"
        )
    return ""


def _is_one_person(rows: NDArray[np.float32], part: NDArray[np.bool_]) -> bool:
    """Tell whether the faces of one part are as alike as those of one person: it is in pieces, and no other kind."""
    cosines = rows[part] @ rows[part].T
    nearest = np.where(cosines > _NEAR_COPY, -1, cosines).max(axis=1)
    base = max(float(rows[part].mean(axis=0) @ rows[~part].mean(axis=0)), 0.0)
    return _average_pairs(rows[part]) - base >= _TORN * (float(np.median(nearest)) - base)


def _find_two_groups(values: NDArray[np.float64], labels: NDArray[np.int64]) -> NDArray[np.bool_] | None:
    """Return which of the numbers are the higher of two groups far apart (Otsu's cut), each of many clusters."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    n = len(ordered)
    below = np.arange(1, n)
    sums = np.cumsum(ordered)[:-1]
    apart = (ordered.sum() - sums) / (n - below) - sums / below
    cut = int(np.argmax(below * (n - below) * apart**2)) + 1
    spread = max(float(ordered[:cut].std()), float(ordered[cut:].std()), 1e-6)
    people = min(len(np.unique(labels[order[:cut]])), len(np.unique(labels[order[cut:]])))
    large = min(cut, n - cut) >= _SMALLEST_KIND * n
    if not (large and people >= _MANY_PEOPLE and apart[cut - 1] > _TWO_KINDS * spread):
        return None
    above = np.zeros(n, dtype=np.bool_)
    above[order[cut:]] = True
    return above
