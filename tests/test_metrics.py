"""Metrics against O(n²) definitions and scikit-learn."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import normalized_mutual_info_score
from sklearn.metrics.cluster import pair_confusion_matrix

from starfc.errors import InputError
from starfc.metrics import PrecisionRecall, bcubed, evaluate, nmi, pairwise


@st.composite
def label_pairs(draw, lowest=0):
    """Two label arrays of one length: few or many groups, small or far-apart numbers."""
    n = draw(st.integers(1, 30))
    largest = draw(st.sampled_from([1, 3, 40, 2**62]))
    label = st.integers(lowest, 3) | st.sampled_from([largest, largest - 1]) | st.integers(0, largest)
    return [draw(st.lists(label, min_size=n, max_size=n)) for _ in range(2)]


def set_noise_apart(truth, predicted):
    """Drop unlabelled rows and give each -1 a fresh name: the definition, for the oracles."""
    kept = [
        (t, p if p >= 0 else f"alone {row}") for row, (t, p) in enumerate(zip(truth, predicted, strict=True)) if t >= 0
    ]
    return [t for t, _ in kept], [p for _, p in kept]


def count_pairs_one_by_one(truth, predicted):
    same_both = same_true = same_predicted = 0
    for i in range(len(truth)):
        for j in range(i):
            same_true += truth[i] == truth[j]
            same_predicted += predicted[i] == predicted[j]
            same_both += truth[i] == truth[j] and predicted[i] == predicted[j]
    precision = same_both / same_predicted if same_predicted else 1.0
    recall = same_both / same_true if same_true else 1.0
    return precision, recall, 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def score_faces_one_by_one(truth, predicted):
    n = len(truth)
    precisions, recalls = [], []
    for i in range(n):
        cluster = {j for j in range(n) if predicted[j] == predicted[i]}
        person = {j for j in range(n) if truth[j] == truth[i]}
        precisions.append(len(cluster & person) / len(cluster))
        recalls.append(len(cluster & person) / len(person))
    precision, recall = math.fsum(precisions) / n, math.fsum(recalls) / n
    return precision, recall, 2 * precision * recall / (precision + recall)


def as_tuple(scores: PrecisionRecall):
    return scores.precision, scores.recall, scores.f


@given(label_pairs(lowest=-1))
def test_pairwise_and_bcubed_equal_their_definitions(labels):
    truth, predicted = labels
    if max(truth) < 0:
        return
    kept = set_noise_apart(truth, predicted)
    assert as_tuple(pairwise(truth, predicted)) == count_pairs_one_by_one(*kept)
    assert as_tuple(bcubed(truth, predicted)) == pytest.approx(score_faces_one_by_one(*kept), abs=1e-12)


@given(label_pairs())
def test_equals_sklearn(labels):
    truth, predicted = labels
    assert nmi(truth, predicted) == pytest.approx(normalized_mutual_info_score(truth, predicted), abs=1e-9)
    (_, only_predicted), (only_true, both) = pair_confusion_matrix(truth, predicted)
    scores = pairwise(truth, predicted)
    assert scores.precision == (both / (both + only_predicted) if both + only_predicted else 1.0)
    assert scores.recall == (both / (both + only_true) if both + only_true else 1.0)


@given(label_pairs(lowest=-1))
def test_nmi_leaves_out_unlabelled_and_isolates_noise(labels):
    truth, predicted = labels
    if max(truth) < 0:
        return
    kept_truth, kept_predicted = set_noise_apart(truth, predicted)
    expected = normalized_mutual_info_score(kept_truth, [str(name) for name in kept_predicted])
    assert nmi(truth, predicted) == pytest.approx(expected, abs=1e-9)


@given(label_pairs(lowest=-1))
def test_evaluate_is_the_metrics_and_the_counts(labels):
    truth, predicted = labels
    if max(truth) < 0:
        return
    kept_truth, kept_predicted = set_noise_apart(truth, predicted)
    result = evaluate(truth, predicted)
    assert result.pairwise == pairwise(truth, predicted)
    assert result.bcubed == bcubed(truth, predicted)
    assert result.nmi == nmi(truth, predicted)
    assert result.n_true == len(set(kept_truth))
    assert result.n_clusters == len(set(kept_predicted))
    assert result.n_faces == len(truth)
    assert result.n_unlabelled == truth.count(-1)
    assert result.n_unassigned == sum(isinstance(name, str) for name in kept_predicted)


def test_larger_random_labels_equal_sklearn():
    rng = np.random.default_rng(0)
    truth, predicted = rng.integers(0, 300, 20_000), rng.integers(0, 500, 20_000)
    predicted[:12_000] = truth[:12_000]
    (_, only_predicted), (only_true, both) = pair_confusion_matrix(truth, predicted)
    scores = evaluate(truth, predicted)
    assert scores.pairwise.precision == both / (both + only_predicted)
    assert scores.pairwise.recall == both / (both + only_true)
    assert scores.nmi == pytest.approx(normalized_mutual_info_score(truth, predicted), abs=1e-12)


def test_known_figures():
    truth, predicted = [0, 0, 0, 1, 1, 2], [0, 0, 1, 1, 1, 2]
    assert as_tuple(pairwise(truth, predicted)) == (0.5, 0.5, 0.5)
    # Shares of the cluster: 1, 1, 1/3, 2/3, 2/3, 1; of the person: 2/3, 2/3, 1/3, 1, 1, 1.
    assert as_tuple(bcubed(truth, predicted)) == pytest.approx((7 / 9, 7 / 9, 7 / 9))


def test_all_alone_against_all_together():
    alone, together = np.arange(5), np.zeros(5, dtype=np.int64)
    assert as_tuple(pairwise(alone, alone)) == (1.0, 1.0, 1.0)
    assert as_tuple(pairwise(alone, together)) == (0.0, 1.0, 0.0)
    assert as_tuple(pairwise(together, alone)) == (1.0, 0.0, 0.0)
    assert nmi(together, together) == 1.0
    assert nmi(alone, together) == nmi(together, alone) == 0.0
    assert nmi(alone, alone) == 1.0
    assert as_tuple(pairwise([0, 0, 1, 1], [0, 1, 0, 1])) == (0.0, 0.0, 0.0)


def test_pairs_of_a_huge_cluster_do_not_overflow():
    n = 12_000_000
    truth = np.zeros(n, dtype=np.int64)
    truth[n // 2 :] = 1
    scores = pairwise(truth, np.zeros(n, dtype=np.int64))
    assert scores.precision == 2 * math.comb(n // 2, 2) / math.comb(n, 2)
    assert scores.recall == 1.0


def test_names_are_labels_too():
    assert as_tuple(pairwise(["ann", "bob", "ann", ""], [4, 2, 4, 2])) == (1.0, 1.0, 1.0)


def test_json_shape():
    content = json.loads(json.dumps(evaluate([0, 0, 1, -1], [3, 3, -1, 3]).as_dict()))
    assert set(content["pairwise"]) == set(content["bcubed"]) == {"precision", "recall", "f"}
    assert content["nmi"] == 1.0
    counts = [content[name] for name in ("n_clusters", "n_true", "n_faces", "n_unlabelled", "n_unassigned")]
    assert counts == [2, 2, 4, 1, 1]


@pytest.mark.parametrize("metric", [evaluate, pairwise, bcubed, nmi])
def test_unusable_labels_are_named(metric):
    with pytest.raises(InputError, match="truth has 3 labels and predicted has 2"):
        metric([0, 1, 2], [0, 1])
    with pytest.raises(InputError, match="no labelled row among 2"):
        metric([-1, -1], [0, 1])
    with pytest.raises(InputError, match="no labelled row among 0"):
        metric([], [])
    with pytest.raises(InputError, match="label -2 in row 1"):
        metric([0, 1], [0, -2])
