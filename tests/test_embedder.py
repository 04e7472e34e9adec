"""The imaginary embedder: promised statistics, and its kernels against plain Python."""

import numpy as np
import pytest

from starfc import embedder
from starfc.embedder import draw_embedder, draw_faces
from starfc.synth import make_faces


@pytest.fixture(scope="module")
def faces():
    return make_faces(6_000, people=120)


@pytest.fixture(scope="module")
def cosines(faces):
    """Cosines of all pairs of 3,000 faces and which pairs are one person."""
    features, labels = faces[0][:3_000], faces[1][:3_000]
    upper = np.triu_indices(len(labels), 1)
    return (features @ features.T)[upper], (labels[:, None] == labels[None, :])[upper]


def span_of_centres(features, labels, size):
    """The `size` directions in which people differ most."""
    centres = np.stack([features[labels == person].mean(axis=0) for person in np.unique(labels)])
    return np.linalg.svd(centres - centres.mean(axis=0), full_matrices=False)[2][:size]


def test_same_person_cosines(cosines):
    values, same = cosines
    assert 0.50 < values[same].mean() < 0.62
    assert 0.10 < values[same].std() < 0.18


def test_random_and_hard_negatives(cosines):
    values, same = cosines
    assert 0 <= values[~same].mean() < 0.05
    assert 0.05 < values[~same].std() < 0.12
    # Look-alikes and bad faces reach what an independent pair (.3 at this rank) never does.
    assert 0.40 < np.quantile(values[~same], 0.9999) < 0.60


def test_without_kinship_and_noise_people_are_far_apart():
    features, labels = make_faces(1_000, people=50, noise=0.0, kinship=0.0)
    similar, same = features @ features.T, labels[:, None] == labels[None, :]
    assert similar[~same].max() < 0.45
    assert similar[same].mean() > 0.7


def test_families_look_alike():
    features, labels = make_faces(4_000, people=120)
    centres = np.stack([features[labels == person].mean(axis=0) for person in range(120)])
    centres /= np.linalg.norm(centres, axis=1, keepdims=True)
    family = np.arange(120) // embedder._FAMILY_SIZE
    kin = (family[:, None] == family[None, :]) & ~np.eye(120, dtype=bool)
    similar = centres @ centres.T
    assert similar[kin].mean() > similar[~kin & ~np.eye(120, dtype=bool)].mean() + 0.1
    assert similar[kin].max() > 0.5


def test_a_person_has_several_modes():
    features, labels = make_faces(6_000, people=120, noise=0.0)
    n_looks = []
    for person in np.flatnonzero(np.bincount(labels) >= 30):
        own = features[labels == person]
        values = np.linalg.svd(own - own.mean(axis=0), compute_uv=False) ** 2 / len(own)
        # m modes span m - 1 directions beside the pose axes; normalising bends the rest by less than .004.
        n_looks.append(1 + np.count_nonzero(values > 0.004) - embedder._N_POSE_AXES)
    counts = np.bincount(n_looks, minlength=embedder._MOST_MODES + 1)
    assert len(counts) == embedder._MOST_MODES + 1 and counts[0] == 0
    assert (counts[1:] >= 5).all()


def test_bad_faces_share_a_direction(faces):
    features, labels = faces
    centres = np.stack([features[labels == person].mean(axis=0) for person in range(120)])[labels]
    to_centre = np.einsum("ij,ij->i", features, centres / np.linalg.norm(centres, axis=1, keepdims=True))
    worst, best = np.argsort(to_centre)[:60], np.argsort(to_centre)[-60:]

    def mean_between_people(rows):
        different = labels[rows][:, None] != labels[rows][None, :]
        return (features[rows] @ features[rows].T)[different].mean()

    assert mean_between_people(worst) > mean_between_people(best) + 0.1


def test_spectrum_decays_along_no_single_axis(faces):
    spectrum = np.linalg.eigvalsh(np.cov(faces[0].T))[::-1]
    assert spectrum[5] > 5 * spectrum[150]
    # The rotation leaves every coordinate about as much variance as the next.
    variances = faces[0].var(axis=0)
    assert variances.max() < 12 * variances.min()


def test_two_seeds_share_the_embedder_but_not_the_people():
    first, other = (
        make_faces(6_000, people=2_000, dim=64, seed=1),
        make_faces(6_000, people=2_000, dim=64, seed=2),
    )
    foreign = make_faces(6_000, people=2_000, dim=64, seed=2, embedder_seed=9)
    own = span_of_centres(*first, 10)
    shared = np.linalg.norm(own @ span_of_centres(*other, 10).T) ** 2 / 10
    unshared = np.linalg.norm(own @ span_of_centres(*foreign, 10).T) ** 2 / 10
    assert shared > 0.6
    assert unshared < 0.3
    assert not np.array_equal(first[1], other[1])
    assert np.quantile(first[0][:500] @ other[0][:500].T, 0.999) < 0.6


def mix_bits(key, index):
    """SplitMix64 in Python's own integers."""
    full = 2**64 - 1
    bits = (key + (index + 1) * 0x9E3779B97F4A7C15) & full
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & full
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & full
    return bits ^ (bits >> 31)


def test_hashes_are_those_of_splitmix64():
    assert mix_bits(0, 0) == 0xE220A8397B1DCDAF  # the generator's published first number for seed 0
    for key, index in [(0, 0), (1, 2), (2**64 - 1, 2**40), (2**63, 7)]:
        assert int(embedder._hash(np.uint64(key), np.uint64(index))) == mix_bits(key, index)


def test_normals_are_sums_of_four_uniforms():
    row, scale = np.zeros(64, np.float32), np.linspace(0.1, 2, 64, dtype=np.float32)
    embedder._add_normals(row, np.uint64(5), 0.7, scale)
    for axis in range(64):
        parts = [(mix_bits(5, axis) >> shift) & 0xFFFF for shift in (0, 16, 32, 48)]
        expected = 0.7 * scale[axis] * np.sqrt(3) * (sum(parts) - 2 * 65535) / 65536
        assert row[axis] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("dim", [8, 9, 100])
def test_the_rotation_is_the_product_of_its_turns(dim):
    drawn = draw_embedder(3, dim)
    matrix = np.eye(dim)
    for pairs, cosines, sines in zip(drawn.pairs, drawn.cosines, drawn.sines, strict=True):
        turn = np.eye(dim)
        for (i, j), cosine, sine in zip(pairs, cosines, sines, strict=True):
            turn[[i, i, j, j], [i, j, i, j]] = cosine, -sine, sine, cosine
        matrix = turn @ matrix
    rows = np.random.default_rng(0).normal(size=(5, dim)).astype(np.float32)
    turned = rows.copy()
    embedder._rotate_rows(turned, drawn.pairs, drawn.cosines, drawn.sines)
    np.testing.assert_allclose(turned, rows @ matrix.T, atol=1e-4)
    np.testing.assert_allclose(matrix @ matrix.T, np.eye(dim), atol=1e-5)


def test_a_row_depends_on_its_label_and_number_alone():
    labels = np.array([4, 1, 4, 9, 1], np.int32)
    drawn = draw_embedder(0, 16)
    whole = draw_faces(drawn, labels, 100, seed=7)
    np.testing.assert_array_equal(draw_faces(drawn, labels[2:4], 102, seed=7), whole[2:4])
    assert not np.array_equal(whole[0], whole[2])  # another picture of the same person
