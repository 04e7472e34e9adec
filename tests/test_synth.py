"""Synthetic faces: promised statistics, same seed same bytes, bounded memory, whole files or none."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from starfc import synth
from starfc.errors import InputError, OutputError
from starfc.synth import make_faces, synthesise
from starfc.threads import limited_threads


@pytest.fixture(scope="module")
def faces():
    return make_faces(6_000, people=120)


def test_rows_are_unit_and_finite(faces):
    assert faces[0].dtype == np.float32 and faces[1].dtype == np.int64
    np.testing.assert_allclose(np.linalg.norm(faces[0], axis=1), 1, atol=1e-5)


def test_sizes_have_a_long_tail(faces):
    sizes = np.bincount(faces[1])
    assert sizes.min() >= 2
    assert sizes.max() > 4 * np.median(sizes)


def test_rows_are_shuffled(faces):
    assert np.mean(faces[1][1:] == faces[1][:-1]) < 0.1


def test_default_people():
    assert len(np.unique(make_faces(1_200, dim=8)[1])) == 20
    assert len(np.unique(make_faces(4, dim=8)[1])) == 2
    assert len(np.unique(make_faces(3, dim=8)[1])) == 1
    assert len(np.unique(make_faces(50, dim=8, singletons=1.0)[1])) == 50


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 60), st.floats(0, 1), st.integers(0, 100), st.integers(0, 5))
def test_sizes_keep_every_promise(people, singletons, n_spare, seed):
    n_singletons = round(singletons * people)
    n_faces = max(2, 2 * people - n_singletons + (n_spare if n_singletons < people else 0))
    if people == n_singletons != n_faces:
        return
    _, labels = make_faces(n_faces, people=people, singletons=singletons, dim=8, seed=seed)
    sizes = np.bincount(labels, minlength=people)
    assert sizes.sum() == n_faces
    assert len(sizes) == people
    assert np.count_nonzero(sizes == 1) == n_singletons
    assert sizes.min() >= 1


@pytest.mark.parametrize("dim", [8, 9, 100, 513])
def test_any_dimension(dim):
    features, _ = make_faces(50, people=5, dim=dim)
    np.testing.assert_allclose(np.linalg.norm(features, axis=1), 1, atol=1e-5)


def test_same_seed_same_bytes(tmp_path):
    made = [synthesise(tmp_path / name, faces=500, people=20, dim=32, seed=5) for name in "ab"]
    assert made[0].features.read_bytes() == made[1].features.read_bytes()
    assert made[0].labels.read_bytes() == made[1].labels.read_bytes()
    other = synthesise(tmp_path / "c", faces=500, people=20, dim=32, seed=6)
    assert made[0].features.read_bytes() != other.features.read_bytes()


def test_blocks_and_threads_change_nothing(tmp_path, monkeypatch):
    features, labels = make_faces(300, people=10, dim=32)
    monkeypatch.setattr(synth, "_BLOCK_ROWS", 7)
    with limited_threads(1):
        made = synthesise(tmp_path / "tiny", faces=300, people=10, dim=32, dtype="float32")
    np.testing.assert_array_equal(np.load(made.features), features)
    np.testing.assert_array_equal(np.load(made.labels), labels)


def test_files_facts_and_progress(tmp_path):
    calls = []
    made = synthesise(
        str(tmp_path / "set.v1"),
        faces=400,
        people=40,
        dim=16,
        singletons=0.25,
        progress=lambda *call: calls.append(call),
    )
    features, labels = np.load(made.features), np.load(made.labels)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["set.v1.features.npy", "set.v1.labels.npy"]
    assert features.dtype == np.float16 and features.shape == (400, 16)
    assert labels.dtype == np.int64 and labels.shape == (400,)
    sizes = np.bincount(labels)
    facts = json.loads(json.dumps(made.as_dict()))
    assert [facts[name] for name in ("n_faces", "n_people", "n_singletons", "dim")] == [400, 40, 10, 16]
    assert facts["largest"] == sizes.max() and np.count_nonzero(sizes == 1) == 10
    assert calls[0] == ("synth", 0, 400) and calls[-1] == ("synth", 400, 400)


def test_a_failure_leaves_both_files_as_they_were(tmp_path, monkeypatch):
    made = synthesise(tmp_path / "x", faces=50, people=5, dim=8)
    before = made.features.read_bytes(), made.labels.read_bytes()

    def fail(path, labels):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(synth, "_write_labels", fail)
    with pytest.raises(OutputError, match="No space left on device"):
        synthesise(tmp_path / "x", faces=60, people=5, dim=8)
    assert (made.features.read_bytes(), made.labels.read_bytes()) == before
    assert len(list(tmp_path.iterdir())) == 2


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(OutputError, match="does not exist"):
        synthesise(tmp_path / "no" / "x", faces=50, people=5, dim=8)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"faces": 1}, r"faces \(1\) must be between 2"),
        ({"dim": 7}, r"dim \(7\) must be at least 8"),
        ({"people": 0}, r"people \(0\) must be between 1"),
        ({"people": 101}, r"people \(101\) must be between 1 and the number of faces \(100\)"),
        ({"people": 60}, r"need at least 120 faces, not 100; pass singletons=0.333334 or people=49"),
        ({"people": 60, "singletons": 1.0}, r"pass people=100"),
        ({"singletons": 1.5}, r"singletons \(1.5\) must be between 0 and 1"),
        ({"kinship": -0.1}, r"kinship \(-0.1\) must be between 0 and 1"),
        ({"noise": float("nan")}, r"noise \(nan\) must be between 0 and 10"),
        ({"seed": -1}, r"seed \(-1\) must be between 0"),
        ({"embedder_seed": -1}, r"embedder_seed \(-1\) must be between 0"),
        ({"dtype": "int8"}, r"dtype \('int8'\) must be float16 or float32"),
    ],
)
def test_impossible_parameters_are_named(tmp_path, wrong, message):
    with pytest.raises(InputError, match=message):
        synthesise(tmp_path / "x", **{"faces": 100, "dim": 8, **wrong})
    assert list(tmp_path.iterdir()) == []


def test_the_remedies_work():
    make_faces(100, people=60, singletons=0.333334, dim=8)
    make_faces(100, people=49, dim=8)
