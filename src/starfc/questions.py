"""Questions: which "same person?" to ask next, so that the answers change most.

In: Features, ScoredEdges, labels. Out: pairs of *parts*, the pieces that the clusters fall into at a stricter level.
Two parts of different clusters ask for a merge, two parts of one cluster for a split. A question is worth

    P(the clustering is wrong about the pair) x 2 a b / (a + b),

the second factor being what BCubed recall (or precision) gains in faces if two sets of a and b faces are rightly joined
(or cut): the harmonic mean, so that two halves of a person count for more than a straggler. P(same) is logistic in the
mean cosine across, the strongest edge and the smaller size, with weights of their own for pairs that are joined; it
starts from weights found on other collections and is fitted anew with the answers given so far, so that the queue
learns what this collection is like. Pairs that are apart are judged, shown and merged as whole clusters, pairs that
are joined as the two parts.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from .features import Features
from .partition import label_components
from .progress import Progress, silent
from .prune import parse_edges
from .quality import ClusterPairs, Groups, find_pairs, group_faces, measure_links, measure_shapes
from .score import ScoredEdges

# Weights of 1, the mean cosine above the threshold, the strongest score above tau_1 and the log of the smaller side,
# and how far answers may pull each away; for pairs that are apart and for pairs that are joined. Found on LFW,
# pins105 and two synthetic collections (docs/review.md).
_PRIORS = (np.array([1.5, 18.0, 10.0, -1.8]), np.array([1.8, 6.0, 0.0, -1.0]))
_SPREADS = (np.array([4.0, 6.0, 4.0, 1.0]), np.array([4.0, 5.0, 3.0, 1.0]))
_POOL = 20_000
_BLOCK = 1 << 18  # pairs that are judged at once
STRICTER = 0.3  # of the way from tau_1 to 1


@dataclass(frozen=True)
class Pool:
    """Pairs of parts that may be asked about.

    Attributes
    ----------
    parts : int32 (n,)
        Part of each face.
    faces : int32 (n_parts,)
        The face of each part that is nearest to its centre, which stands for it.
    sizes : int64 (n_parts,)
    first, second : int32 (n_pairs,)
        Parts of each pair.
    link, strongest : float32 (n_pairs,)
        Mean cosine between the two parts; best score of an edge between them.
    """

    parts: NDArray[np.int32]
    faces: NDArray[np.int32]
    sizes: NDArray[np.int64]
    first: NDArray[np.int32]
    second: NDArray[np.int32]
    link: NDArray[np.float32]
    strongest: NDArray[np.float32]


@dataclass(frozen=True)
class History:
    """Answers given so far: traits (m, 4) of the pairs as they were asked, joined (m,) then or not, same (m,)."""

    traits: NDArray[np.float64] = field(default_factory=lambda: np.empty((0, 4)))
    joined: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, bool))
    same: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, bool))

    def add(self, traits: NDArray[np.float64], joined: bool, same: bool) -> History:
        """Return the history with one more answer."""
        return History(
            np.vstack((self.traits, traits[None])), np.append(self.joined, joined), np.append(self.same, same)
        )


def find_questions(
    features: Features,
    scored: ScoredEdges,
    labels: NDArray[np.int64],
    *,
    tau1: float,
    threshold: float | None = None,
    progress: Progress = silent,
) -> Pool:
    """Cut the clusters into parts and find the pairs of parts that are worth asking about.

    Parameters
    ----------
    features : Features
        (n, d).
    scored : ScoredEdges
        (n, k), with scores that tau1 applies to.
    labels : int64 (n,)
        The clustering to be reviewed; negative labels are faces alone.
    tau1 : float
        The score at which it was made.
    threshold : float, optional
        The cosine at which strangers end; tau1 by default (right for cosine scores).

    Returns
    -------
    Pool
        Of at most 20,000 pairs, the worthiest before any answer.

    Examples
    --------
    >>> import starfc
    >>> rng = np.random.default_rng(0)
    >>> faces = np.repeat(rng.normal(size=(5, 16)), 8, axis=0) + 0.5 * rng.normal(size=(40, 16))
    >>> clusters = starfc.cluster(faces, k=10)
    >>> pool = find_questions(Features(faces), clusters.scored, clusters.labels, tau1=clusters.settings.tau1)
    >>> len(pool.first) == len(pool.second) > 0
    True
    """
    groups = group_faces(cut_into_parts(scored, labels, tau1=tau1))
    shapes = measure_shapes(features, groups, progress=progress)
    owners = labels[groups.order[groups.offsets[:-1]]]
    pairs = _add_stars(find_pairs(scored, groups, shapes.sums), owners, groups.sizes, shapes.sums, tau1)
    joined = (owners[pairs.first] == owners[pairs.second]) & (owners[pairs.first] >= 0)
    faces = find_centrals(groups, shapes.closeness)
    del shapes  # a sum per part: the largest thing there is
    worth = np.empty(len(pairs))
    for start in range(0, len(pairs), _BLOCK):
        block = slice(start, start + _BLOCK)
        a, b = groups.sizes[pairs.first[block]], groups.sizes[pairs.second[block]]
        traits = make_traits(
            pairs.link[block], pairs.strongest[block], np.minimum(a, b), tau1=tau1, threshold=threshold
        )
        worth[block] = value_questions(predict_same(traits, joined[block], History()), joined[block], a, b)
    kept = np.sort(np.argsort(-worth, kind="stable")[:_POOL])
    chosen = pairs.take(kept)
    return Pool(groups.codes, faces, groups.sizes, chosen.first, chosen.second, chosen.link, chosen.strongest)


def _add_stars(
    pairs: ClusterPairs,
    owners: NDArray[np.int64],
    sizes: NDArray[np.int64],
    sums: NDArray[np.float32],
    tau1: float,
) -> ClusterPairs:
    """Add the pairs of each cluster's largest part with its others: two people in one need not know each other."""
    order = np.lexsort((np.arange(len(owners)), -sizes, owners))
    starts = np.flatnonzero(np.diff(owners[order], prepend=owners[order[0]] - 1))
    hubs = np.repeat(order[starts], np.diff(np.append(starts, len(order))))
    rest = (hubs != order) & (owners[order] >= 0)
    first, second = np.minimum(hubs, order)[rest], np.maximum(hubs, order)[rest]
    known = pairs.first.astype(np.int64) * len(owners) + pairs.second  # ascends, as find_pairs has it
    wanted = first * len(owners) + second
    places = np.minimum(np.searchsorted(known, wanted), max(0, len(known) - 1))
    new = known[places] != wanted if len(known) else np.ones(len(wanted), dtype=bool)
    first, second = first[new], second[new]
    return ClusterPairs(
        np.concatenate((pairs.first, first.astype(np.int32))),
        np.concatenate((pairs.second, second.astype(np.int32))),
        np.concatenate((pairs.link, measure_links(first, second, sums, sizes))),
        np.concatenate((pairs.strongest, np.full(len(first), tau1, dtype=np.float32))),
        np.concatenate((pairs.n_edges, np.zeros(len(first), dtype=np.int32))),
    )


def make_traits(
    link: NDArray[np.float32],
    strongest: NDArray[np.float32],
    smaller: NDArray[np.int64],
    *,
    tau1: float,
    threshold: float | None = None,
) -> NDArray[np.float64]:
    """Put together what P(same) is judged by, float64 (m, 4)."""
    level = tau1 if threshold is None else threshold
    return np.column_stack((np.ones(len(link)), link - level, strongest - tau1, np.log(smaller))).astype(np.float64)


def cut_into_parts(scored: ScoredEdges, labels: NDArray[np.int64], *, tau1: float) -> NDArray[np.int64]:
    """Cut every cluster where a stricter threshold would, int64 (n,) numbers of parts."""
    finer = label_components(parse_edges(scored, tau1 + STRICTER * (1 - tau1)))
    groups = group_faces(labels)
    keys = groups.codes.astype(np.int64) * (int(finer.max(initial=0)) + 1) + finer
    return np.asarray(np.unique(keys, return_inverse=True)[1], dtype=np.int64)


def find_centrals(groups: Groups, closeness: NDArray[np.float32]) -> NDArray[np.int32]:
    """Return the face of each cluster that is closest to the others, int32 (n_clusters,).

    >>> find_centrals(group_faces(np.array([0, 0, 1])), np.array([0.5, 0.9, 1.0], np.float32))
    array([1, 2], dtype=int32)
    """
    order = np.lexsort((-closeness, groups.codes))
    return order[groups.offsets[:-1]].astype(np.int32)


def value_questions(
    probability: NDArray[np.float64], joined: NDArray[np.bool_], a: NDArray[np.int64], b: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return what each answer is expected to change, in faces.

    >>> value_questions(np.array([0.5, 0.75]), np.array([False, True]), np.array([4, 4]), np.array([4, 1]))
    array([2. , 0.4])
    """
    return np.asarray(np.where(joined, 1 - probability, probability) * 2 * a * b / (a + b))


def divide_cluster(sums: NDArray[np.float32], sizes: NDArray[np.int64], apart: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Divide the parts of a cluster so that no two that are apart stay together, changing as little as possible.

    Parts are merged from the nearest pair on (average linkage) and only merges that would join two that are apart are
    refused, so a stranger is left alone and the others stay one.

    Parameters
    ----------
    sums : float32 (m, d)
        Sum of the unit rows of each part.
    sizes : int64 (m,)
    apart : bool (m, m)
        Symmetric: pairs that must not be together.

    Returns
    -------
    int64 (m,)
        Group of each part, numbered by first appearance.

    Examples
    --------
    >>> sums = np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]], np.float32)
    >>> apart = np.zeros((3, 3), bool)
    >>> apart[1, 2] = apart[2, 1] = True
    >>> divide_cluster(sums, np.ones(3, int), apart).tolist()
    [0, 0, 1]
    """
    totals, counts, refused = sums.astype(np.float64), sizes.astype(np.float64), apart.copy()
    np.fill_diagonal(refused, True)
    links = np.where(refused, -np.inf, totals @ totals.T / np.outer(counts, counts))
    group = np.arange(len(sizes))
    while len(sizes) and (best := int(links.argmax())) >= 0 and links.flat[best] > -np.inf:
        keep, gone = sorted(divmod(best, len(sizes)))
        group[group == gone] = keep
        totals[keep] += totals[gone]
        counts[keep] += counts[gone]
        refused[keep] |= refused[gone]
        refused[:, keep] |= refused[:, gone]
        refused[gone, :] = refused[:, gone] = True
        row = np.where(refused[keep], -np.inf, totals @ totals[keep] / (counts * counts[keep]))
        links[keep], links[:, keep] = row, row
        links[gone], links[:, gone] = -np.inf, -np.inf
    return np.asarray(np.unique(group, return_inverse=True)[1], dtype=np.int64)


def predict_same(traits: NDArray[np.float64], joined: NDArray[np.bool_], history: History) -> NDArray[np.float64]:
    """Return P(same person) of pairs with the given traits (m, 4), after the answers so far.

    >>> unsure, apart = np.array([[1.0, -0.1, 0.05, 0.0]]), np.array([False])
    >>> before = predict_same(unsure, apart, History())
    >>> after = predict_same(unsure, apart, History().add(unsure[0], False, False))
    >>> bool(after[0] < before[0])
    True
    """
    out = np.empty(len(traits))
    for kind in (0, 1):
        mine, asked = joined == bool(kind), history.joined == bool(kind)
        weights = _fit_weights(history.traits[asked], history.same[asked].astype(np.float64), kind)
        out[mine] = _squash(traits[mine] @ weights)
    return out


def _squash(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(1 / (1 + np.exp(-np.clip(values, -40, 40))))


def _fit_weights(traits: NDArray[np.float64], same: NDArray[np.float64], kind: int) -> NDArray[np.float64]:
    """Fit logistic weights to the answers, held by the prior; Newton's steps are halved until they lead downhill."""
    prior, spread = _PRIORS[kind], _SPREADS[kind]
    weights = prior.copy()

    def cost(at: NDArray[np.float64]) -> float:
        values = traits @ at
        return float(np.logaddexp(0, values).sum() - same @ values + (((at - prior) / spread) ** 2).sum() / 2)

    for _ in range(20 if len(same) else 0):
        p = _squash(traits @ weights)
        slope = traits.T @ (same - p) - (weights - prior) / spread**2
        curve = (traits * (p * (1 - p))[:, None]).T @ traits + np.diag(1 / spread**2)
        step = np.linalg.solve(curve, slope)
        while cost(weights + step) > cost(weights) and np.abs(step).max() > 1e-6:
            step = step / 2
        weights = weights + step
        if np.abs(step).max() < 1e-4:
            break
    return weights
