"""Metrics: how well a clustering agrees with the truth.

In: two label arrays of one length. Out: pairwise and BCubed precision, recall and F (fractions of 1) and NMI,
exact. All three are sums over the non-empty cells n_ij of the contingency table (person i, cluster j; a_i and
b_j are their sizes), which one sort of the pairs of labels finds: 12 million faces take seconds, and no table
of people times clusters is ever formed.

- Pairwise: precision = sum C(n_ij, 2) / sum C(b_j, 2), recall = sum C(n_ij, 2) / sum C(a_i, 2). A face is not
  paired with itself. Large people dominate, because pairs grow with the square of their faces.
- BCubed: precision = 1/n sum n_ij² / b_j, recall = 1/n sum n_ij² / a_i. Each face has one vote
  and counts itself.
- NMI: mutual information over the arithmetic mean of the two entropies.

A true label of -1 is unlabelled: the row is left out. A predicted label of -1 (the noise of DBSCAN and the
like) is a face alone in a cluster of its own. Where there is nothing to be wrong about, the score is 1: no
predicted pair gives pairwise precision 1, no true pair gives recall 1. F is 0 when both are 0.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .errors import InputError
from .labels import as_labels


@dataclass(frozen=True)
class PrecisionRecall:
    """Precision, recall and their harmonic mean, as fractions of 1."""

    precision: float
    recall: float
    f: float


@dataclass(frozen=True)
class Evaluation:
    """Every score of one clustering.

    Attributes
    ----------
    pairwise, bcubed : PrecisionRecall
        Over pairs of faces, and over faces.
    nmi : float
        Normalised mutual information, arithmetic mean.
    n_clusters, n_true : int
        Clusters and people among the rows that count; each unassigned row is a cluster.
    n_faces : int
        All rows, counted or not.
    n_unlabelled : int
        Rows left out because their true label is -1.
    n_unassigned : int
        Rows that count and whose predicted label is -1.
    """

    pairwise: PrecisionRecall
    bcubed: PrecisionRecall
    nmi: float
    n_clusters: int
    n_true: int
    n_faces: int
    n_unlabelled: int
    n_unassigned: int

    def as_dict(self) -> dict[str, Any]:
        """Return the scores as plain numbers, in the shape of `starfc evaluate --json`."""
        return asdict(self)


@dataclass(frozen=True)
class _Contingency:
    """The non-empty cells of the table of people by clusters, and the sizes of both."""

    counts: NDArray[np.int64]  # n_ij of every non-empty cell
    cell_true: NDArray[np.int64]  # i of the cell
    cell_predicted: NDArray[np.int64]  # j of the cell
    true_sizes: NDArray[np.int64]  # a_i
    predicted_sizes: NDArray[np.int64]  # b_j
    n_unlabelled: int
    n_unassigned: int


def evaluate(truth: ArrayLike, predicted: ArrayLike) -> Evaluation:
    """Compare a clustering with the truth by every metric at once.

    Parameters
    ----------
    truth : (n,) labels
        True people; -1 is unlabelled and left out.
    predicted : (n,) labels
        Clusters; -1 is a cluster of one.

    Returns
    -------
    Evaluation

    Examples
    --------
    >>> result = evaluate([0, 0, 1, 1, -1], [5, 5, 5, -1, 5])
    >>> result.pairwise
    PrecisionRecall(precision=0.3333333333333333, recall=0.5, f=0.4)
    >>> result.n_clusters, result.n_true, result.n_unlabelled, result.n_unassigned
    (2, 2, 1, 1)
    """
    table = _count_cells(truth, predicted)
    return Evaluation(
        pairwise=_score_pairs(table),
        bcubed=_score_faces(table),
        nmi=_score_information(table),
        n_clusters=len(table.predicted_sizes),
        n_true=len(table.true_sizes),
        n_faces=int(table.true_sizes.sum()) + table.n_unlabelled,
        n_unlabelled=table.n_unlabelled,
        n_unassigned=table.n_unassigned,
    )


def pairwise(truth: ArrayLike, predicted: ArrayLike) -> PrecisionRecall:
    """Score every pair of different faces: same person against same cluster.

    Parameters
    ----------
    truth, predicted : (n,) labels
        As in :func:`evaluate`.

    Returns
    -------
    PrecisionRecall

    Examples
    --------
    >>> pairwise([0, 0, 1, 1], [0, 0, 0, 0])
    PrecisionRecall(precision=0.3333333333333333, recall=1.0, f=0.5)
    """
    return _score_pairs(_count_cells(truth, predicted))


def bcubed(truth: ArrayLike, predicted: ArrayLike) -> PrecisionRecall:
    """Score every face by the share of its cluster, and of its person, that it shares both with.

    Parameters
    ----------
    truth, predicted : (n,) labels
        As in :func:`evaluate`.

    Returns
    -------
    PrecisionRecall

    Examples
    --------
    >>> bcubed([0, 0, 1, 1], [0, 0, 0, 0])
    PrecisionRecall(precision=0.5, recall=1.0, f=0.6666666666666666)
    """
    return _score_faces(_count_cells(truth, predicted))


def nmi(truth: ArrayLike, predicted: ArrayLike) -> float:
    """Return the normalised mutual information; 1 if both put everyone together, 0 if only one does.

    Parameters
    ----------
    truth, predicted : (n,) labels
        As in :func:`evaluate`.

    Returns
    -------
    float

    Examples
    --------
    >>> nmi([0, 0, 1, 1], [7, 7, 3, 3])
    1.0
    """
    return _score_information(_count_cells(truth, predicted))


def _count_cells(truth: ArrayLike, predicted: ArrayLike) -> _Contingency:
    """Count the faces of every pair of labels that occurs, by one sort of the pairs."""
    true, clusters = as_labels(truth, "truth"), as_labels(predicted, "predicted")
    if len(true) != len(clusters):
        raise InputError(f"truth has {len(true)} labels and predicted has {len(clusters)}; both need one per face")
    labelled = true >= 0
    n_labelled = int(np.count_nonzero(labelled))
    if n_labelled == 0:
        raise InputError(
            f"truth has no labelled row among {len(true)}; evaluation needs at least one label other than -1"
        )
    if n_labelled < len(true):
        true, clusters = true[labelled], clusters[labelled]
    row_true, true_sizes = _number_densely(true)
    row_predicted, predicted_sizes, n_unassigned = _number_clusters(clusters)
    # People and clusters are at most n each, so the product stays far inside int64.
    cells = np.sort(row_true * len(predicted_sizes) + row_predicted)
    starts = np.flatnonzero(np.concatenate(([True], cells[1:] != cells[:-1])))
    cell_true, cell_predicted = np.divmod(cells[starts], len(predicted_sizes))
    return _Contingency(
        counts=np.diff(starts, append=len(cells)),
        cell_true=cell_true,
        cell_predicted=cell_predicted,
        true_sizes=true_sizes,
        predicted_sizes=predicted_sizes,
        n_unlabelled=len(labelled) - n_labelled,
        n_unassigned=n_unassigned,
    )


def _number_clusters(clusters: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """Renumber clusters to 0, 1, ..., each -1 as one of its own; return numbers, sizes, how many were -1."""
    alone = clusters < 0
    n_alone = int(np.count_nonzero(alone))
    if n_alone == 0:
        return *_number_densely(clusters), 0
    numbers = np.empty(len(clusters), dtype=np.int64)
    numbers[~alone], sizes = _number_densely(clusters[~alone])
    numbers[alone] = len(sizes) + np.arange(n_alone)
    return numbers, np.concatenate([sizes, np.ones(n_alone, dtype=np.int64)]), n_alone


def _number_densely(labels: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Renumber non-negative labels to 0, 1, ... without gaps, in order; also return how often each occurs."""
    # Labels are nearly always small integers, for which counting is several times faster than sorting.
    if len(labels) and int(labels.max()) <= 4 * len(labels):
        occurrences = np.bincount(labels)
        used = occurrences > 0
        return (np.cumsum(used) - 1)[labels], occurrences[used].astype(np.int64, copy=False)
    _, numbers, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    return numbers.astype(np.int64, copy=False), sizes.astype(np.int64, copy=False)


def _score_pairs(table: _Contingency) -> PrecisionRecall:
    """Pairwise precision and recall from the cells; sums of integers, so exact."""
    both = _count_pairs(table.counts)
    n_predicted, n_true = _count_pairs(table.predicted_sizes), _count_pairs(table.true_sizes)
    return _combine(both / n_predicted if n_predicted else 1.0, both / n_true if n_true else 1.0)


def _count_pairs(sizes: NDArray[np.int64]) -> int:
    """Count the pairs inside groups of these sizes (int64 holds those of 4 billion faces)."""
    return int((sizes * (sizes - 1) // 2).sum())


def _score_faces(table: _Contingency) -> PrecisionRecall:
    """BCubed precision and recall from the cells."""
    squares = table.counts.astype(np.float64) ** 2
    n_faces = int(table.true_sizes.sum())
    precision = float((squares / table.predicted_sizes[table.cell_predicted]).sum()) / n_faces
    recall = float((squares / table.true_sizes[table.cell_true]).sum()) / n_faces
    return _combine(precision, recall)


def _combine(precision: float, recall: float) -> PrecisionRecall:
    """Add F, the harmonic mean, to precision and recall."""
    total = precision + recall
    return PrecisionRecall(precision, recall, 2 * precision * recall / total if total else 0.0)


def _score_information(table: _Contingency) -> float:
    """NMI from the cells: I(truth, predicted) / mean(H(truth), H(predicted))."""
    if len(table.true_sizes) == len(table.predicted_sizes) == 1:
        return 1.0
    n_faces = int(table.true_sizes.sum())
    shares = table.counts / n_faces
    expected = np.log(table.true_sizes / n_faces)[table.cell_true]
    expected = expected + np.log(table.predicted_sizes / n_faces)[table.cell_predicted]
    information = float((shares * (np.log(shares) - expected)).sum())
    mean_entropy = (_measure_entropy(table.true_sizes) + _measure_entropy(table.predicted_sizes)) / 2
    # Rounding leaves independent labels a hair beside 0 and equal ones a hair beside 1.
    if information <= np.finfo(np.float64).eps:
        return 0.0
    return min(information / mean_entropy, 1.0)


def _measure_entropy(sizes: NDArray[np.int64]) -> float:
    """Entropy, in nats, of a random face's group."""
    shares = sizes / sizes.sum()
    return float(-(shares * np.log(shares)).sum())
