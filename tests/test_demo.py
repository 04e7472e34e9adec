import json
import sys

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("matplotlib")

from starfc import demo
from starfc.demo import run_demo
from starfc.errors import OutputError
from starfc.labels import load_labels
from starfc.metrics import evaluate
from starfc.plots import _find_mixed


def test_demo_leaves_labels_a_model_a_picture_and_a_true_table(tmp_path):
    said = []
    result = run_demo(tmp_path / "demo", faces=400, steps=2, say=said.append)
    names = {path.name for path in (tmp_path / "demo").iterdir()}
    assert {
        "clusters.png",
        "report.html",
        "test.traits.npy",
        "model",
        "without-labels.csv",
        "with-model.csv",
        "test.features.npy",
    } <= names
    assert result.picture.read_bytes().startswith(b"\x89PNG")
    truth = load_labels(tmp_path / "demo" / "test.labels.npy")
    for row, file in zip(result.rows, ("without-labels.csv", "with-model.csv"), strict=True):
        assert evaluate(truth, load_labels(tmp_path / "demo" / file)) == row.evaluation
        assert f"{row.evaluation.pairwise.f:.3f}" in result.table()
    assert json.loads(json.dumps(result.as_dict()))["picture"].endswith("clusters.png")
    assert any("from the data" in sentence for sentence in said)


def test_demo_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot be made"):
        run_demo(tmp_path / "file" / "demo")


def test_a_cluster_is_mixed_if_it_holds_two_known_people():
    truth, labels = np.array([0, 0, 1, -1, 2, 1]), np.array([0, 0, 1, 0, 1, 2])
    assert _find_mixed(truth, labels).tolist() == [False, True, False]


def test_the_last_line_can_be_typed_as_it_stands(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/somewhere/.venv/bin/starfc"])
    monkeypatch.setattr(demo.shutil, "which", lambda name: None)
    assert demo._name_program() == "/somewhere/.venv/bin/starfc"
    monkeypatch.setattr(demo.shutil, "which", lambda name: f"/usr/bin/{name}")
    assert demo._name_program() == "starfc"
