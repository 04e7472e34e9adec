import numpy as np
import pytest

from starfc.background import Background, find_threshold, fit_background
from starfc.features import Features


def test_gaussian_background_is_extrapolated_right():
    """For random directions in d dimensions the tail is known: cosines are close to N(0, 1/d)."""
    from scipy.stats import norm

    n, d = 4000, 128
    background = fit_background(Features(np.random.default_rng(0).normal(size=(n, d))))
    expected = norm.isf(1e-3 / n) / np.sqrt(d)
    assert background.threshold(1e-3) == pytest.approx(expected, abs=0.03)


def test_evidence_is_the_inverse_of_the_threshold():
    background = Background(constant=-0.6, linear=-11.0, quadratic=-70.0, n_faces=10_000)
    for false_neighbors in (1.0, 1e-2, 1e-5):
        evidence = background.evidence(np.array([background.threshold(false_neighbors)], np.float32))
        assert evidence[0] == pytest.approx(-np.log10(false_neighbors), abs=1e-3)


def test_evidence_never_falls_with_similarity():
    evidence = Background(-0.6, -11.0, -70.0, 1000).evidence(np.linspace(-1, 1, 200, dtype=np.float32))
    assert (np.diff(evidence) >= 0).all()


def test_a_line_where_no_parabola_fits():
    x = np.log(1000) / 20
    assert Background(0.0, -20.0, 0.0, 1000).threshold(1.0) == pytest.approx(np.sqrt(1 - np.exp(-x * x)))


def test_scale_and_rotation_do_not_matter():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(500, 16))
    rotation, _ = np.linalg.qr(rng.normal(size=(16, 16)))
    thresholds = [fit_background(Features(variant)).threshold() for variant in (rows, 1e6 * rows, rows @ rotation)]
    np.testing.assert_allclose(thresholds, thresholds[0], atol=1e-4)


@pytest.mark.parametrize("rows", [np.ones((50, 4)), np.eye(3), np.ones((2, 1)), np.repeat(np.eye(2), 40, axis=0)])
def test_degenerate_collections_still_get_a_threshold(rows):
    threshold, reason = find_threshold(Features(rows))
    assert -1 <= threshold <= 1 and reason


def test_few_dimensions_fall_back_to_a_split():
    rng = np.random.default_rng(0)
    angles = np.concatenate([rng.normal(0, 0.1, 40), rng.normal(2.5, 0.1, 40)])
    threshold, reason = find_threshold(Features(np.column_stack([np.cos(angles), np.sin(angles)])))
    assert "split" in reason
    assert np.cos(2.5 - 0.6) < threshold < np.cos(0.6)
