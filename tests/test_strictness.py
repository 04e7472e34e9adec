"""How strict a collection asks to be, against its definition, and what a run makes of it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import starfc
from starfc.score import ScoredEdges
from starfc.strictness import PREFERENCES, balance_strictness
from starfc.synth import make_faces


def score_all(scores):
    """Return edges with these scores, (n, k)."""
    return ScoredEdges(np.zeros(scores.shape, np.int32), np.asarray(scores, np.float32))


@pytest.mark.parametrize(
    ("matches", "tau1"),
    [(0, 0.7), (1, 0.7), (12, 0.7), (12 * 2**0.25, 0.65), (12 * 2**0.5, 0.6), (24, 0.5), (400, 0.5)],
)
def test_more_matches_ask_for_less(matches, tau1):
    k = 512
    assert balance_strictness(score_all(np.full((9, k), matches / k))) == pytest.approx((tau1, matches), abs=1e-3)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32 - 1), st.integers(1, 300), st.integers(1, 200))
def test_the_median_face_counts(seed, n, k):
    rng = np.random.default_rng(seed)
    scores = rng.random((n, k), dtype=np.float32) * rng.random((n, 1), dtype=np.float32)
    tau1, matches = balance_strictness(score_all(scores))
    assert matches == pytest.approx(float(np.median([sum(map(float, row)) for row in scores])), abs=2e-3)
    assert tau1 == pytest.approx(0.7 - 0.2 * np.clip(np.log2(max(matches, 1e-9) / 12), 0, 1), abs=1e-3)


@pytest.mark.parametrize("shape", [(0, 4), (5, 0)])
def test_without_faces_or_links_it_is_strict(shape):
    assert balance_strictness(score_all(np.zeros(shape))) == (PREFERENCES["balanced"], 0.0)


def test_a_run_says_what_it_found_and_finds_it_again():
    faces, _ = make_faces(1500, people=50, dim=64, seed=4)
    clusters = starfc.cluster(faces)
    found, matches = balance_strictness(clusters.scored)
    assert clusters.settings.tau1 == found == 0.5 and matches > 24
    assert any(f"p > {found:g}" in note for note in clusters.notes)
    assert starfc.cluster(faces, prefer="balanced").settings == clusters.settings
    for prefer in ("precision", "recall"):
        assert starfc.cluster(faces, prefer=prefer).settings.tau1 == PREFERENCES[prefer]
    given = starfc.cluster(faces, scorer="relational", tau1=0.65)
    assert given.settings.tau1 == 0.65
