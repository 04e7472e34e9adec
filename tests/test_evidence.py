"""What is looked at again is what the clustering was read off from, whichever way edges were scored."""

import numpy as np
import pytest

from starfc import cluster
from starfc.evidence import Evidence, describe_misfit, gather_evidence, measure_fit, take_evidence
from starfc.features import Features
from starfc.model import Model, ModelConfig, expected_shapes
from starfc.score import ScoredEdges

RNG = np.random.default_rng(4)
TRUTH = np.repeat(np.arange(30), 10)
ROWS = (np.repeat(RNG.normal(size=(30, 32)), 10, axis=0) + 0.5 * RNG.normal(size=(300, 32))).astype(np.float32)
FEATURES = Features(ROWS)


def make_model():
    """Return a GCN whose weights are random and whose thresholds are its own."""
    shapes = expected_shapes(32, (16,))
    tensors = {name: RNG.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}
    return Model(ModelConfig(dim=32, hidden=(16,), k=12, tau1=0.45, tau2=0.2), tensors)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"scorer": "cosine"},
        {"tau1": 0.4},
        {"prefer": "precision"},
        {"scorer": "relational", "tau1": 0.8},
        {"model": make_model()},
        {"model": make_model(), "scorer": "cosine", "k": 7},
    ],
)
def test_evidence_is_that_of_the_run(options):
    found = cluster(FEATURES, **options)
    for evidence in (gather_evidence(FEATURES, **options), take_evidence(found, FEATURES)):
        np.testing.assert_array_equal(evidence.scored.scores, found.scored.scores)
        np.testing.assert_array_equal(evidence.scored.neighbors, found.scored.neighbors)
        assert evidence.settings == found.settings
        if "model" not in options:  # whose scores are random
            assert measure_fit(evidence, found.labels) > 0.7
            assert describe_misfit(evidence, found.labels) is None


def test_evidence_of_a_workdir_is_not_computed_again(tmp_path, monkeypatch):
    import starfc.stages as module

    found = cluster(FEATURES, workdir=tmp_path / "work")
    monkeypatch.setattr(module, "score_by_relations", None)
    evidence = gather_evidence(FEATURES, workdir=tmp_path / "work")
    np.testing.assert_array_equal(evidence.scored.scores, found.scored.scores)


def test_labels_of_another_run_are_told():
    evidence = gather_evidence(FEATURES)
    assert "pass the same here" in describe_misfit(evidence, np.arange(300))
    nobody = Evidence(
        ScoredEdges(np.full((300, 2), -1, np.int32), np.zeros((300, 2), np.float32)), evidence.settings, 0
    )
    assert measure_fit(nobody, np.arange(300)) == 1
