"""A run keeps to its plan: what does not fit goes to files, for every scorer, and changes no label."""

from dataclasses import replace

import numpy as np
import pytest

import starfc
from starfc.errors import InputError, OutputError
from starfc.memoryplan import plan_memory
from starfc.synth import make_faces
from test_pipeline import clustered, list_below, use_plan
from test_score import random_model

SCORERS = ("cosine", "relational", "gcn")


def choose_scorer(scorer, dim=32):
    """Return the settings of a run with that scorer."""
    settings = {"scorer": scorer, "k": 20, "tau1": 0.4, "knn": "cells", "partition": "components"}
    return settings | ({"model": random_model(dim, (200,)), "tau2": 0.3} if scorer == "gcn" else {})


@pytest.fixture(scope="module")
def many_faces():
    return make_faces(4000, people=300, dim=32, seed=0)[0]


@pytest.mark.parametrize("with_workdir", [True, False])
@pytest.mark.parametrize("scorer", SCORERS)
def test_files_change_no_label(many_faces, tmp_path, monkeypatch, scorer, with_workdir):
    np.save(tmp_path / "rows.npy", many_faces)
    expected = starfc.cluster(many_faces, **choose_scorer(scorer))
    use_plan(monkeypatch, in_files=True, budget_bytes=1, peak_bytes=1, disk_bytes=1)
    places = {"workdir": tmp_path / "work"} if with_workdir else {"beside": tmp_path / "labels.npy"}
    seen = set()
    found = starfc.cluster(
        tmp_path / "rows.npy", **choose_scorer(scorer), **places,
        progress=lambda *call: seen.update(name.split(".parts")[0].split("/")[-1] for name in list_below(tmp_path)),
    )  # fmt: skip
    np.testing.assert_array_equal(found.labels, expected.labels)
    assert "knn" in seen and ("scores" in seen or scorer != "gcn")
    kept = ["knn.json", "knn.npz", *(["scores.json", "scores.npy"] if scorer != "cosine" else [])]
    left = ["work", "work/.lock", *(f"work/{name}" for name in kept)] if with_workdir else []
    assert list_below(tmp_path) == ["rows.npy", *left]


@pytest.mark.parametrize("scorer", SCORERS)
def test_files_are_no_larger_than_planned(many_faces, tmp_path, monkeypatch, scorer):
    use_plan(monkeypatch, budget_bytes=1, peak_bytes=1)
    largest = 0

    def measure(stage, done, total):
        nonlocal largest
        sizes = [path.stat().st_blocks * 512 for path in (tmp_path / "work").rglob("*") if path.is_file()]
        largest = max(largest, sum(sizes))

    found = starfc.cluster(many_faces, **choose_scorer(scorer), workdir=tmp_path / "work", progress=measure)
    assert 0 < largest / 1e9 <= found.memory["disk_gb"]


@pytest.mark.parametrize("k", [20, None])
@pytest.mark.parametrize("scorer", SCORERS)
def test_too_little_disk_or_memory_is_said_before_any_work(many_faces, tmp_path, monkeypatch, scorer, k):
    settings = choose_scorer(scorer) | {"k": k}
    calls = []
    monkeypatch.setattr("shutil.disk_usage", lambda folder: type("Usage", (), {"free": 1000}))
    with pytest.raises(OutputError, match=r"GB free, the run needs about .* GB there"):
        starfc.cluster(many_faces, **settings, workdir=tmp_path / "work", progress=lambda *call: calls.append(call))
    with pytest.raises(InputError, match=r"need about .* GB, more than memory_gb \(0.001\)"):
        starfc.cluster(many_faces, **settings, memory_gb=0.001, progress=lambda *call: calls.append(call))
    assert calls == []


def test_short_memory_alone_sends_the_search_to_files(many_faces, tmp_path, monkeypatch):
    """Without a work folder and a network: what is not enough for all of it must be enough for what is held."""

    def plan(sizes, **settings):
        least = plan_memory(replace(sizes, n=2), memory_gb=1000).peak_bytes  # of the process itself
        return plan_memory(sizes, memory_gb=(least + 2_000_000) / 1e9, in_files=False)

    monkeypatch.setattr("starfc.stages.plan_memory", plan)
    said = []
    found = starfc.cluster(many_faces, **choose_scorer("cosine"), beside=tmp_path / "x", say=said.append)
    assert found.memory["disk_gb"] > 0 and "on disk" in said[0]
    np.testing.assert_array_equal(found.labels, starfc.cluster(many_faces, **choose_scorer("cosine")).labels)


def test_what_a_killed_pruning_left_is_removed(tmp_path):
    rows, _ = clustered()
    (tmp_path / "work" / "pruning.parts").mkdir(parents=True)
    (tmp_path / "work" / "pruning.parts" / "parsed-targets.npy").write_bytes(b"half")
    starfc.cluster(rows, workdir=tmp_path / "work")
    assert not any("pruning" in name for name in list_below(tmp_path))


def test_more_edges_than_a_partition_can_take_are_refused(monkeypatch):
    rows, _ = clustered()
    use_plan(monkeypatch, budget_bytes=1)
    with pytest.raises(InputError, match=r"edges survive tau1 \(0.2\); partition 'mapequation' needs about .* GB"):
        starfc.cluster(rows, scorer="cosine", tau1=0.2, k=20)
