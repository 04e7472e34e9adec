from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from starfc.convert import convert_file
from starfc.errors import InputError
from starfc.features import FEATURE_ENDINGS, Features, load_features, save_features
from starfc.labels import LABEL_ENDINGS, load_labels, save_labels

ROWS = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32)
LABELS = np.array([5, 0, -1, 5])


@pytest.mark.parametrize(("source", "target"), list(itertools.product(FEATURE_ENDINGS, repeat=2)))
def test_features(tmp_path, source, target):
    save_features(Features(ROWS), tmp_path / f"a{source}")
    assert convert_file(tmp_path / f"a{source}", tmp_path / f"b{target}", dim=4) == ("features", 9)
    np.testing.assert_array_equal(load_features(tmp_path / f"b{target}", dim=4).raw, ROWS)


@pytest.mark.parametrize(("source", "target"), list(itertools.product(LABEL_ENDINGS, repeat=2)))
def test_labels(tmp_path, source, target):
    save_labels(LABELS, tmp_path / f"a{source}")
    assert convert_file(tmp_path / f"a{source}", tmp_path / f"b{target}") == ("labels", 4)
    np.testing.assert_array_equal(load_labels(tmp_path / f"b{target}"), LABELS)


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_number_types_are_kept(tmp_path, dtype):
    np.save(tmp_path / "a.npy", ROWS.astype(dtype))
    for ending in (".npz", ".parquet"):
        convert_file(tmp_path / "a.npy", tmp_path / f"b{ending}")
        assert load_features(tmp_path / f"b{ending}").raw.dtype == dtype


def test_values_are_neither_scaled_nor_checked(tmp_path):
    odd = np.array([[0.0, 0.0], [np.nan, np.inf]])
    np.save(tmp_path / "a.npy", odd)
    convert_file(tmp_path / "a.npy", tmp_path / "b.parquet")
    np.testing.assert_array_equal(load_features(tmp_path / "b.parquet").raw, odd)


def test_a_file_can_replace_itself(tmp_path):
    np.save(tmp_path / "a.npy", np.asfortranarray(ROWS))
    convert_file(tmp_path / "a.npy", tmp_path / "a.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), ROWS)


def test_a_parquet_with_both(tmp_path):
    pq.write_table(pa.table({"features": ROWS.tolist(), "label": range(9)}), tmp_path / "a.parquet")
    assert convert_file(tmp_path / "a.parquet", tmp_path / "b.npy") == ("features", 9)
    assert convert_file(tmp_path / "a.parquet", tmp_path / "b.csv") == ("labels", 9)
    assert load_labels(tmp_path / "b.csv").tolist() == list(range(9))


@pytest.mark.parametrize(
    ("source", "target", "sentence"),
    [
        ("x.npy", "b.meta", "holds features, which cannot be written as '.meta'"),
        ("x.npy", "b.csv", "holds features, which cannot be written as '.csv'"),
        ("y.meta", "b.npz", "holds labels, which cannot be written as '.npz'"),
        ("y.meta", "b.fvecs", "holds labels, which cannot be written as '.fvecs'"),
        ("y.meta", "b", "cannot be written as ''"),
        ("y.txt", "b.npy", r"ends in '\.txt'"),
        ("none.npy", "b.npy", "does not exist"),
        ("none.bin", "b.npy", "does not exist"),
        (".npy", "b.npy", "ends in ''"),
        ("folder.npy", "b.npy", "is a folder"),
    ],
)
def test_wrong_directions(tmp_path, source, target, sentence):
    np.save(tmp_path / "x.npy", ROWS)
    save_labels(LABELS, tmp_path / "y.meta")
    (tmp_path / "folder.npy").mkdir()
    before = sorted(tmp_path.iterdir())
    with pytest.raises(InputError, match=sentence):
        convert_file(tmp_path / source, tmp_path / target)
    assert sorted(tmp_path.iterdir()) == before


def test_names_that_become_numbers_are_announced(tmp_path, caplog):
    (tmp_path / "who.csv").write_text("row,label\n0,Ann\n1,Bob\n")
    convert_file(tmp_path / "who.csv", tmp_path / "who.meta")
    assert "became numbers" in caplog.text
    caplog.clear()
    convert_file(tmp_path / "who.meta", tmp_path / "who.npy")
    assert not caplog.text
