"""Maps of features, and models that see faces through one."""

import json
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import starfc
from starfc.errors import InputError, ModelError
from starfc.features import Features
from starfc.knn import build_knn, save_knn
from starfc.memoryplan import plan_memory
from starfc.model import Model, load_model
from starfc.relational import load_shipped
from starfc.relational_model import make_model, open_space
from starfc.scratch import Scratch
from starfc.space import Space, map_features, read_space
from starfc.strictness import PREFERENCES
from starfc.synth import make_faces
from starfc.threads import limited_threads


def draw_space(dim, scale=0.1, seed=0):
    rng = np.random.default_rng(seed)
    return Space(*(scale * rng.normal(size=shape).astype(np.float32) for shape in ((dim, dim), (dim,))))


def map_slowly(row, space):
    """Map one row number by number, in double precision."""
    length = sum(float(x) ** 2 for x in row) ** 0.5
    unit = [float(x) / length for x in row]
    moved = [
        unit[j] + sum(unit[i] * float(space.change[i, j]) for i in range(len(unit))) + float(space.shift[j])
        for j in range(len(unit))
    ]
    length = sum(x * x for x in moved) ** 0.5
    return [x / length for x in moved]


def test_rows_are_mapped():
    space, rows = draw_space(7), np.random.default_rng(1).normal(size=(9, 7)).astype(np.float32)
    expected = [map_slowly(row, space) for row in rows]
    units = Features(rows).read(0, 9)
    np.testing.assert_allclose(space.map_rows(units), expected, atol=1e-6)
    np.testing.assert_allclose(map_features(Features(5 * rows), space).read(0, 9), expected, atol=1e-3)
    halved = space.take_share(0.5)
    assert np.array_equal(halved.change, space.change / 2) and np.array_equal(halved.shift, space.shift / 2)
    np.testing.assert_allclose(space.take_share(0).map_rows(units), units, atol=1e-7)


def test_what_a_map_takes_to_nothing_stays():
    gone = Space(-np.eye(3, dtype=np.float32), np.zeros(3, np.float32))
    rows = np.eye(3, dtype=np.float32)
    assert np.array_equal(gone.map_rows(rows), rows)


def test_the_same_bits_on_any_threads_and_in_files(tmp_path):
    space, rows = draw_space(256), np.random.default_rng(2).normal(size=(3000, 256)).astype(np.float32)
    with limited_threads(1):  # a BLAS with two threads divides products otherwise
        tiles = [space.map_rows(Features(rows).read(start, start + 1024)) for start in (0, 1024, 2048)]
        one = map_features(Features(rows), space).raw
    with limited_threads(2):
        two = map_features(Features(rows), space, scratch=Scratch(tmp_path / "mapped")).raw
    assert np.array_equal(np.concatenate(tiles).astype(np.float16), one)
    assert one.dtype == two.dtype == np.float16
    assert np.array_equal(one, two)


def test_damaged_tensors_are_refused():
    space = draw_space(4)
    assert read_space({}) is None
    assert np.array_equal(read_space(space.tensors).change, space.change)
    with pytest.raises(ModelError, match="has one of"):
        read_space({"space.shift": space.shift})
    with pytest.raises(ModelError, match="must be \\(d, d\\)"):
        Space(space.change[:3], space.shift)


@pytest.fixture(scope="module")
def faces():
    return make_faces(400, people=40, dim=32, seed=1)[0]


@pytest.fixture
def model():
    return make_model(
        load_shipped(), dim=32, tau1=PREFERENCES["balanced"], training={}, space=draw_space(32, scale=0.05)
    )


def test_a_model_clusters_what_it_sees(faces, model, tmp_path):
    """As the shipped network clusters the mapped faces; from its folder, in files, with a ready-made graph too."""
    model.save(tmp_path / "model")
    loaded = load_model(tmp_path / "model")
    assert "Maps face vectors (dimension 32)" in (tmp_path / "model" / "README.md").read_text()
    mapped = map_features(Features(faces), open_space(loaded, "relational"))
    expected = starfc.cluster(mapped, scorer="relational", tau1=loaded.config.tau1)
    assert not np.array_equal(expected.scored.neighbors, starfc.cluster(faces).scored.neighbors)
    for settings in ({}, {"workdir": tmp_path / "work"}, {"workdir": tmp_path / "work"}, {"threads": 1}):
        found = starfc.cluster(faces, model=loaded, **settings)
        assert np.array_equal(found.scored.neighbors, expected.scored.neighbors)
        assert np.array_equal(found.scored.scores, expected.scored.scores)
        assert np.array_equal(found.labels, expected.labels)
    assert "map" in found.seconds
    assert not list((tmp_path / "work").glob("mapped*")), "they are of no use to anybody else"


def test_older_versions_refuse_what_they_would_leave_out(model, tmp_path):
    """They know format version 1, and would cluster faces as they are with a network chosen for mapped ones."""
    model.save(tmp_path / "mapped")
    Model(model.config, load_shipped().tensors).save(tmp_path / "plain")
    found = [json.loads((tmp_path / name / "config.json").read_text()) for name in ("mapped", "plain")]
    assert [config["format_version"] for config in found] == [2, 1]


KILLED_RUN = textwrap.dedent(
    """
    import os, signal, sys
    import numpy as np
    import starfc
    from starfc.synth import make_faces

    def kill(stage, done, total):
        if stage == sys.argv[3] and done > 0:
            os.kill(os.getpid(), signal.SIGKILL)

    faces = make_faces(3000, people=200, dim=32, seed=1)[0]
    starfc.cluster(faces, model=sys.argv[1], workdir=sys.argv[2], knn_graph=sys.argv[4], threads=1, progress=kill)
    """
)


def test_a_kill_while_mapping_or_comparing_changes_nothing(model, tmp_path):
    rows = make_faces(3000, people=200, dim=32, seed=1)[0]
    save_knn(build_knn(Features(rows), k=100), tmp_path / "graph.npz")
    model.save(tmp_path / "model")
    work = tmp_path / "work"
    for stage in ("map", "compare"):
        command = [sys.executable, "-c", KILLED_RUN, tmp_path / "model", work, stage, tmp_path / "graph.npz"]
        assert subprocess.run(command, check=False, capture_output=True).returncode == -signal.SIGKILL
        assert any(work.glob("*.parts")), f"the kill came before {stage} had begun"
    settings = {"model": tmp_path / "model", "knn_graph": tmp_path / "graph.npz"}
    expected = starfc.cluster(rows, **settings)
    found = starfc.cluster(rows, **settings, workdir=work)
    assert np.array_equal(found.labels, expected.labels)
    assert np.array_equal(found.scored.scores, expected.scored.scores)
    assert not any(work.glob("*.parts"))
    said = []
    again = starfc.cluster(rows, **settings, workdir=work, progress=lambda stage, done, total: said.append(stage))
    assert np.array_equal(again.labels, expected.labels)
    assert "compare" not in said, "the compared graph is kept"
    assert any("compared anew" in note for note in again.notes)


def test_what_a_killed_run_left_goes_with_the_next_of_any_kind(faces, tmp_path):
    (tmp_path / "work" / "mapped.parts").mkdir(parents=True)
    (tmp_path / "work" / "mapped.parts" / "mapped.npy").write_bytes(b"half")
    starfc.cluster(faces, scorer="cosine", workdir=tmp_path / "work")
    assert not (tmp_path / "work" / "mapped.parts").exists()


@pytest.mark.parametrize("in_files", [False, True])
def test_mapped_rows_are_planned_for_once(faces, model, tmp_path, monkeypatch, in_files):
    """Before they are made, and when the number of neighbours is known, where they are there already."""
    monkeypatch.setattr("starfc.stages.choose_k", lambda features, profiles, progress: 30)
    asked = []
    monkeypatch.setattr("starfc.stages.require_disk", lambda folder, n_bytes: asked.append(n_bytes))
    planned = []
    monkeypatch.setattr(
        "starfc.stages.plan_memory", lambda sizes, **rest: planned.append(sizes) or plan_memory(sizes, **rest)
    )
    starfc.cluster(faces, model=model, workdir=tmp_path / "work" if in_files else None)
    n_bytes = 2 * faces.size
    rows = [sizes.mapped_row_bytes * len(faces) for sizes in planned]
    assert rows == ([n_bytes, n_bytes] if in_files else [n_bytes, 0])
    if in_files:
        same = [plan_memory(sizes, in_files=True).disk_bytes for sizes in planned]
        assert asked[0] == same[0] and asked[1] == same[1] - n_bytes


@pytest.mark.parametrize("in_files", [False, True])
def test_a_ready_made_graph_is_compared_anew(faces, model, tmp_path, in_files):
    """All others are on the lists of plain faces: what is nearest in the space is found among them."""
    save_knn(build_knn(Features(faces), k=399), tmp_path / "graph.npz")
    mapped = map_features(Features(faces), open_space(model, "relational"))
    expected = starfc.cluster(mapped, knn_graph=build_knn(mapped, k=399), scorer="relational", tau1=model.config.tau1)
    workdir = tmp_path / "work" if in_files else None
    found = starfc.cluster(faces, model=model, knn_graph=tmp_path / "graph.npz", workdir=workdir)
    np.testing.assert_allclose(found.scored.scores, expected.scored.scores, atol=0.02)
    assert np.array_equal(found.labels, expected.labels)


def test_faces_of_another_embedder_are_refused(faces, model):
    with pytest.raises(ModelError, match="trained for vectors of dimension 32, these have 16"):
        starfc.cluster(faces[:, :16], model=model)
    with pytest.raises(InputError, match="NaN or infinite values, first in row 7"):
        broken = faces.copy()
        broken[7, 3] = np.nan
        starfc.cluster(broken, model=model)
    wrong = Model(model.config, model.tensors | draw_space(16).tensors)
    with pytest.raises(ModelError, match="its space of 16"):
        starfc.cluster(faces, model=wrong)


def test_other_scorers_see_plain_faces(faces, model):
    plain, own = (starfc.cluster(faces, model=one, scorer="cosine", tau1=0.5) for one in (None, model))
    assert np.array_equal(plain.scored.scores, own.scored.scores)
