"""The table of a result: its figures against plain loops, its two formats, what it refuses."""

from __future__ import annotations

import csv

import numpy as np
import pytest

from starfc.details import require_ending, write_details
from starfc.errors import InputError
from starfc.features import Features
from starfc.score import ScoredEdges


@pytest.fixture
def result():
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(12, 6)).astype(np.float32)
    neighbors = np.array([[j for j in range(12) if j != i][:5] for i in range(12)], np.int32)
    scored = ScoredEdges(neighbors, rng.random((12, 5)).astype(np.float32))
    return np.array([4, 4, 4, 4, 9, 9, 0, -1, -1, 7, 7, 7]), Features(rows), scored


def describe_plainly(labels, features, scored, tau1):
    rows = features.read(0, len(features)).astype(np.float64)
    for i, label in enumerate(labels):
        mates = [j for j in range(len(labels)) if label >= 0 and labels[j] == label and j != i]
        pairs = [rows[a] @ rows[b] for a in [i, *mates] for b in [i, *mates] if a < b]
        known = list(zip(scored.neighbors[i].tolist(), scored.scores[i].tolist(), strict=True))
        worst = min(score for _, score in known)
        own = max((score for j, score in known if j in mates), default=worst) if mates else tau1
        rival = max((score for j, score in known if j not in mates), default=min(worst, tau1))
        yield len(mates) + 1, 1 / (1 + np.exp(-(own - rival) / 0.05)), np.mean(pairs) if pairs else np.nan


def test_figures_are_those_of_plain_loops(result, tmp_path):
    labels, features, scored = result
    write_details(labels, features, scored, tmp_path / "d.csv", tau1=0.6)
    with (tmp_path / "d.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [int(line["row"]) for line in lines] == list(range(12))
    assert [int(line["label"]) for line in lines] == labels.tolist()
    for line, (size, confidence, cohesion) in zip(lines, describe_plainly(*result, 0.6), strict=True):
        assert int(line["size"]) == size
        assert float(line["confidence"]) == pytest.approx(confidence, abs=1e-4)
        assert float(line["cohesion"] or "nan") == pytest.approx(cohesion, abs=1e-4, nan_ok=True)


def test_both_formats_hold_the_same(result, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    labels, features, scored = result
    for name in ("d.csv", "d.parquet"):
        write_details(labels, features, scored, tmp_path / name, tau1=0.6)
    table = parquet.read_table(tmp_path / "d.parquet").to_pydict()
    with (tmp_path / "d.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert table["row"] == list(range(12))
    assert table["label"] == [int(line["label"]) for line in lines]
    assert table["confidence"] == pytest.approx([float(line["confidence"]) for line in lines], abs=1e-4)
    assert [value is None for value in table["cohesion"]] == [line["cohesion"] == "" for line in lines]


def test_another_ending_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"\.txt"):
        require_ending(tmp_path / "d.txt")
