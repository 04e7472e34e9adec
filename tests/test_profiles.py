"""Each face's own chance similarities."""

from __future__ import annotations

import numpy as np
import pytest

import starfc
from starfc.background import Background, stretch_cosines
from starfc.features import Features
from starfc.knn import KnnGraph, join_rows
from starfc.profiles import Profiles, _average_range, _count_bins, _drop_upper_group, choose_k, measure_profiles
from starfc.synth import make_faces


def measure_slowly(cosines):
    """Centre and scale of one face, by sorting."""
    x = np.sort(stretch_cosines(cosines))
    n = len(x)

    def average(values, first, last):
        return values[round(first * len(values)) : round(last * len(values))].mean()

    middle, low = average(x, 0.4, 0.6), average(x, 0.1, 0.25)
    x = x[x <= middle + 4.5 * (middle - low) / 0.949]
    assert len(x) > 0.5 * n
    return average(x, 0.4, 0.6), (average(x, 0.75, 0.9) - average(x, 0.4, 0.6)) / 0.949


def test_centres_and_scales_are_trimmed_means():
    rows, _ = make_faces(500, people=50, dim=32)
    profiles = measure_profiles(Features(rows))
    slow = np.array([measure_slowly(np.delete(line, at)) for at, line in enumerate(rows @ rows.T)])
    np.testing.assert_allclose(profiles.centres, slow[:, 0], atol=3e-3)
    np.testing.assert_allclose(profiles.scales, slow[:, 1], rtol=0.03)


@pytest.mark.parametrize(("people", "each"), [(2, 2), (2, 3), (3, 3), (2, 5), (2, 9), (4, 8), (6, 2)])
def test_a_handful_of_faces_is_told_apart(people, each):
    """A face is no stranger to itself: among so few it would be most of what is known."""
    labels = np.repeat(np.arange(people), each)
    for seed in range(5):
        rng = np.random.default_rng(seed)
        rows = rng.normal(size=(people, 128))[labels] + 0.7 * rng.normal(size=(len(labels), 128))
        assert starfc.cluster(rows).labels.tolist() == labels.tolist()
    assert len(np.unique(starfc.cluster(rng.normal(size=(people * each, 128))).labels)) == people * each


def test_many_copies_are_one_stranger():
    rows, _ = make_faces(1000, people=100, dim=32)
    alone = measure_profiles(Features(rows))
    for n_copies in (3000, 15000):  # all are everybody's cohort, and not
        crowd = np.concatenate([rows, np.repeat(np.ones((1, 32), np.float32), n_copies, axis=0)])
        among = measure_profiles(Features(crowd))
        assert np.median(among.scales[:1000] / alone.scales) == pytest.approx(1, abs=0.1)
        assert among.scales[:1000].min() > 0.5 * alone.scales.min()


def test_evidence_is_the_log_of_expected_strangers():
    rng = np.random.default_rng(0)
    profiles = Profiles(
        rng.normal(size=9).astype(np.float32) / 10, rng.uniform(0.05, 0.2, 9).astype(np.float32),
        Background(-0.7, -0.8, -0.3, 9),
    )  # fmt: skip
    graph = join_rows(Features(rng.normal(size=(9, 5))).read(0, 9), 4)
    found = profiles.weigh_edges(graph)
    for i in range(9):
        for slot, j in enumerate(graph.neighbors[i]):
            x = stretch_cosines(graph.similarities[i, slot : slot + 1])[0]
            z = ((x - profiles.centres[i]) / profiles.scales[i] + (x - profiles.centres[j]) / profiles.scales[j]) / 2
            z = max(z, -0.8 / 0.6)
            expected = min(30.0, -np.log10(9 * np.exp(-0.7 - 0.8 * z - 0.3 * z * z)))
            assert found[i, slot] == pytest.approx(expected, abs=1e-4)


def test_missing_neighbours_have_no_evidence():
    profiles = Profiles(np.zeros(2, np.float32), np.ones(2, np.float32), Background(0.0, -0.1, -0.5, 2))
    graph = KnnGraph(np.array([[1, -1], [0, -1]], np.int32), np.array([[0.9, 0], [0.9, 0]], np.float32))
    assert (profiles.weigh_edges(graph)[:, 1] == 0).all()


def test_strangers_are_as_many_as_expected():
    rows = np.random.default_rng(1).normal(size=(3000, 48)).astype(np.float32)
    features = Features(rows)
    graph = join_rows(features.read(0, 3000), 40)
    evidence = measure_profiles(features).weigh_edges(graph)
    for level in (-1, 0):  # ten and one per face
        assert np.log10((evidence > level).sum(axis=1).mean()) == pytest.approx(-level, abs=0.35)


def test_order_scale_and_rotation_change_nothing():
    rows, _ = make_faces(5000, people=500, dim=32)
    rng = np.random.default_rng(2)
    order = rng.permutation(5000)
    rotation = np.linalg.qr(rng.normal(size=(32, 32)))[0].astype(np.float32)
    before, after = measure_profiles(Features(rows)), measure_profiles(Features(7 * (rows @ rotation)[order]))
    np.testing.assert_allclose(after.scales, before.scales[order], rtol=0.02)
    assert after.background.quadratic == pytest.approx(before.background.quadratic, rel=0.02)


def test_one_person_may_have_a_fifth_of_the_faces():
    rng = np.random.default_rng(3)
    person = rng.normal(size=64)
    strangers, faces = rng.normal(size=(1600, 64)), person + 0.7 * rng.normal(size=(400, 64))
    alone, joined = (
        measure_profiles(Features(strangers)),
        measure_profiles(Features(np.concatenate([strangers, faces]))),
    )
    np.testing.assert_allclose(joined.scales[1600:].mean(), alone.scales.mean(), rtol=0.15)


@pytest.mark.parametrize("n_people", [2, 3])
def test_a_few_people_may_fill_the_collection(n_people):
    rng = np.random.default_rng(4)
    labels = np.repeat(np.arange(n_people), 100)
    rows = rng.normal(size=(n_people, 64))[labels] + 0.7 * rng.normal(size=(len(labels), 64))
    features = Features(rows)
    graph = join_rows(features.read(0, len(rows)), 80)
    evidence = measure_profiles(features).weigh_edges(graph)
    assert np.median(evidence) > 3  # all 80 are the same person, more than a third of the collection


def average_slowly(counts, heights, survivals):
    """Average the values between two ranks, some of which may be shared, one by one."""
    values, n = np.repeat(heights, counts), counts.sum()
    first, last = (1 - survivals[0]) * n, (1 - survivals[1]) * n
    ranks = np.arange(n)
    shares = np.clip(np.minimum(ranks + 1, last) - np.maximum(ranks, first), 0, None)
    return (shares * values).sum() / (last - first)


@pytest.mark.parametrize("n_bins", [1, 7, 63, 64, 65, 128, 129, 1000])
@pytest.mark.parametrize("survivals", [(0.6, 0.4), (0.25, 0.125), (1.0, 0.5), (0.75, 0.0)])
def test_the_middle_of_a_histogram_is_averaged(n_bins, survivals):
    rng, heights = np.random.default_rng(n_bins), np.arange(n_bins) ** 2.0
    for most in (1, 2, 50):
        counts = rng.integers(0, most + 1, n_bins).astype(np.int32)
        counts[rng.integers(n_bins)] += 4
        found = _average_range(counts, heights, int(counts.sum()), survivals)
        assert found == pytest.approx(average_slowly(counts, heights, survivals), rel=1e-9, abs=1e-9)
    even = np.full(n_bins, 4, np.int32)  # ranks at the edges of runs of bins
    found = _average_range(even, heights, 4 * n_bins, survivals)
    assert found == pytest.approx(average_slowly(even, heights, survivals), rel=1e-9, abs=1e-9)


def split_slowly(cosines):
    """Return which cosines are of the lower of two groups, all if there is one."""
    x = np.sort(stretch_cosines(cosines))
    cuts = range(1, len(x))
    between = [cut * (len(x) - cut) * (x[cut:].mean() - x[:cut].mean()) ** 2 for cut in cuts]
    cut = cuts[int(np.argmax(between))]
    apart = x[cut:].mean() - x[:cut].mean()
    return cut if len(x) - cut >= 0.2 * len(x) and apart >= 3.5 * x[:cut].std() else len(x)


@pytest.mark.parametrize("n_upper", [0, 100, 300, 800])
def test_the_upper_of_two_groups_is_left_out(n_upper):
    rng = np.random.default_rng(5)
    cosines = np.concatenate([rng.normal(0, 0.06, 1000 - n_upper), rng.normal(0.6, 0.08, n_upper)]).clip(-0.9, 0.9)
    counts = np.empty(4096, np.int32)
    heights = stretch_cosines((np.arange(4096) + 0.5) / 2048 - 1)
    assert _count_bins(cosines.astype(np.float32), counts) == 1000
    assert _drop_upper_group(counts, heights, 1000) == split_slowly(cosines) == counts.sum()
    assert counts.sum() == (1000 if n_upper in (0, 100) else 1000 - n_upper)


def test_lists_are_as_long_as_people_have_faces():
    rows, _ = make_faces(3000, people=10, dim=64, noise=0.3)
    features = Features(rows)
    assert 150 < choose_k(features, measure_profiles(features)) <= 512
    few = Features(rows[:50])
    assert choose_k(few, measure_profiles(few)) == 49


def test_likely_matches_are_counted():
    rows, _ = make_faces(400, people=8, dim=32, noise=0.5)
    features = Features(rows)
    profiles = measure_profiles(features)
    z = (stretch_cosines(rows @ rows.T) - profiles.centres) / profiles.scales
    counts = ((z + z.T) / 2 > profiles.background.find_height(0.01)).sum(axis=0)
    wanted = int(np.quantile(counts, 0.9))
    assert choose_k(features, profiles) == pytest.approx(max(80, wanted), abs=2)
    assert choose_k(features, profiles, most_edges=400 * 90) <= max(80, min(90, wanted))


def test_copies_only():
    features = Features(np.ones((40, 8)))
    profiles = measure_profiles(features)
    assert np.isfinite(profiles.weigh_edges(join_rows(features.read(0, 40), 5))).all()


def draw_one_person(rng, n, dim=128):
    """Pictures of one person: a face, a few directions in which it varies, and noise of varied strength."""
    looks = rng.normal(size=(n, 6)) @ rng.normal(size=(6, dim)) / np.sqrt(6 * dim)
    noise = rng.lognormal(0, 0.5, size=(n, 1)) * rng.normal(size=(n, dim)) / np.sqrt(dim)
    return rng.normal(size=(1, dim)) / np.sqrt(dim) + 0.7 * looks + 0.6 * noise


@pytest.mark.parametrize("n", [30, 300])
def test_one_person_alone_is_measured_against_a_typical_embedder(n):
    rng = np.random.default_rng(n)
    alone = measure_profiles(Features(draw_one_person(rng, n)))
    assert (alone.centres == 0).all() and (alone.scales == np.float32(0.1)).all()


@pytest.mark.parametrize(("dim", "offset"), [(128, 1.0), (24, 2.2)])  # mean cosine .5 and .83
def test_strangers_of_an_embedder_off_its_centre_are_not_one_person(dim, offset):
    rng = np.random.default_rng(5)
    rows = rng.normal(size=(300, dim)) / np.sqrt(dim)
    centre = rng.normal(size=(1, dim)) / np.sqrt(dim)
    profiles = measure_profiles(Features(rows + offset * centre))
    assert np.median(profiles.centres) > 0.4
