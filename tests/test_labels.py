from __future__ import annotations

import csv

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from starfc.errors import InputError
from starfc.labels import LABEL_ENDINGS, as_labels, load_labels, require_label_ending, save_labels

LARGEST = np.iinfo(np.int64).max


def read(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return load_labels(path).tolist()


@pytest.mark.parametrize("ending", LABEL_ENDINGS)
@pytest.mark.parametrize("labels", [[3, -1, 3, 0], [-1], [0], [LARGEST, -1, LARGEST - 1], [5] * 1000])
def test_round_trip(tmp_path, ending, labels):
    path = tmp_path / f"who{ending}"
    save_labels(np.array(labels), path)
    again = load_labels(path, n_expected=len(labels))
    assert again.dtype == np.int64
    assert again.tolist() == labels
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


@settings(max_examples=30, deadline=None)
@given(labels=st.lists(st.integers(-1, LARGEST), min_size=1, max_size=20), ending=st.sampled_from(LABEL_ENDINGS))
def test_any_labels_round_trip(tmp_path_factory, labels, ending):
    path = tmp_path_factory.mktemp("labels") / f"who{ending}"
    save_labels(np.array(labels, dtype=np.int64), path)
    assert load_labels(path).tolist() == labels


def test_written_forms(tmp_path):
    labels = np.array([4, -1], dtype=np.int32)
    for ending in LABEL_ENDINGS:
        save_labels(labels, tmp_path / f"who{ending}")
    assert (tmp_path / "who.meta").read_text() == "4\n-1\n"
    assert (tmp_path / "who.csv").read_text() == "row,label\n0,4\n1,-1\n"
    assert np.load(tmp_path / "who.npy").dtype == np.int64
    assert pq.read_table(tmp_path / "who.parquet").column_names == ["label"]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["ann", "bob", "ann", "", "cy"], [0, 1, 0, -1, 2]),
        (["ann", "-1", None, float("nan"), "bob "], [0, -1, -1, -1, 1]),
        ([b"ann", b"bob", b"ann"], [0, 1, 0]),
        (["7", "3", "", "-1", " 7 "], [7, 3, -1, -1, 7]),
        (["7.0", "3", "nan"], [7, 3, -1]),
        (["1_2", "12", "1_2"], [0, 1, 0]),
        (["7", "ann"], [0, 1]),
        (["9223372036854775808", "5"], [0, 1]),
        (["9223372036854775807", "5"], [LARGEST, 5]),
        ([2, None, 5], [2, -1, 5]),
        ([7.0, np.nan, -1.0], [7, -1, -1]),
        (np.array([1, 2], dtype=np.float16), [1, 2]),
        (np.array([1, 2], dtype=">u2"), [1, 2]),
        (np.array([1, LARGEST], dtype=np.uint64), [1, LARGEST]),
        ([], []),
        (np.array([], dtype=str), []),
    ],
)
def test_what_labels_may_be(values, expected):
    labels = as_labels(values)
    assert labels.dtype == np.int64
    assert labels.tolist() == expected


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ([1.5, 2.0], r"label 1\.5 in row 0; labels must be whole numbers"),
        (["3", "0.5"], r"label 0\.5 in row 1"),
        ([0.0, np.inf], "label inf in row 1"),
        ([1.0, 2.0**63], "label 9.2"),
        ([0, 0, -2], "label -2 in row 2"),
        (["0", "-7"], "label -7 in row 1"),
        (np.array([0, 2**64 - 1], dtype=np.uint64), "label 18446744073709551615 in row 1"),
        ([[1, 2]], "one-dimensional"),
        (3, "one-dimensional"),
        ([True, False], "holds bool values"),
        (np.array([1j]), "holds complex128 values"),
    ],
)
def test_what_labels_may_not_be(values, sentence):
    with pytest.raises(InputError, match=sentence):
        as_labels(values, "here")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("1\n2\n\n", [1, 2]),
        ("1\n\n2\n", [1, -1, 2]),
        ("1\r\n2\r\n", [1, 2]),
        ("1\n2", [1, 2]),
        ("\ufeff1\n2\n", [1, 2]),
        ("Ann Lee\nBob\x0b\nAnn Lee\n", [0, 1, 0]),
        ("née\u2028x\nb\n", [0, 1]),
        ("\n", []),
    ],
)
def test_meta(tmp_path, content, expected):
    assert read(tmp_path, "who.meta", content) == expected


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("label\n3\n4\n", [3, 4]),
        ("3\n4\n", [3, 4]),
        ("row,label\n0,3\n1,-1\n", [3, -1]),
        ("Label,score\n3,.5\n4,.6\n", [3, 4]),
        ("\ufefflabel\n3\n", [3]),
        ("label\n3\n\n4\n\n", [3, 4]),
        ("file,who\na.jpg,3\nb.jpg,4\n", [3, 4]),
        ("a.jpg,3\nb.jpg,4\n", [3, 4]),
        ('label,note\n"Lee, Ann",x\n"Bob ""B""","y,z"\n"Lee, Ann",\n', [0, 1, 0]),
        ("ann\nbob\nann\n", [0, 1, 0]),
        ("a.jpg,ann\nb.jpg,bob\n", [0, 1]),
        ("name\nann\nbob\n", [0, 1]),
        ('label\n1.0\n""\n2.0\n', [1, -1, 2]),
        ("label\r\n1\r\n2\r\n", [1, 2]),
        ("label\n", []),
        ("person_id,cluster\n9,1\n9,2\n", [1, 2]),
    ],
)
def test_csv(tmp_path, content, expected):
    assert read(tmp_path, "who.csv", content) == expected


def test_csv_lines_that_are_too_short(tmp_path):
    with pytest.raises(InputError, match="line 4 has no column 2"):
        read(tmp_path, "who.csv", "a,label\nx,1\n\ny\n")


def test_csv_cells_that_are_too_long(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        read(tmp_path, "who.csv", "label\n" + "x" * (csv.field_size_limit() + 1) + "\n")


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array([3, None, 4]), [3, -1, 4]),
        (pa.array([3, None, 4], pa.uint64()), [3, -1, 4]),
        (pa.array([LARGEST, None, 2**53 + 1]), [LARGEST, -1, 2**53 + 1]),
        (pa.array([3, 4], pa.int8()), [3, 4]),
        (pa.array(["ann", None, "bob", "ann"]), [0, -1, 1, 0]),
        (pa.array(["ann", None, "bob", "ann"]).dictionary_encode(), [0, -1, 1, 0]),
        (pa.array(["5", "6"], pa.large_string()), [5, 6]),
        (pa.array([1.0, None, 2.0]), [1, -1, 2]),
    ],
)
def test_parquet(tmp_path, column, expected):
    for name in ("label", "Identity"):
        pq.write_table(pa.table({"x": range(len(column)), name: column}), tmp_path / "who.parquet")
        assert load_labels(tmp_path / "who.parquet").tolist() == expected
    pq.write_table(pa.table({"lists": [[1]] * len(column), "whoever": column}), tmp_path / "who.parquet")
    assert load_labels(tmp_path / "who.parquet").tolist() == expected


def test_odd_parquet(tmp_path):
    pq.write_table(pa.table({"a": [1], "b": [2]}), tmp_path / "who.parquet")
    with pytest.raises(InputError, match="holds 'a', 'b'; name the one to read 'label'"):
        load_labels(tmp_path / "who.parquet")
    pq.write_table(pa.table({"label": pa.array([2**64 - 1, None], pa.uint64())}), tmp_path / "who.parquet")
    with pytest.raises(InputError, match="cannot be read"):
        load_labels(tmp_path / "who.parquet")


def test_another_length(tmp_path):
    save_labels(np.arange(3), tmp_path / "who.npy")
    with pytest.raises(InputError, match="has 3 labels for 4 faces"):
        load_labels(tmp_path / "who.npy", n_expected=4)


def test_unknown_endings(tmp_path):
    for act in (load_labels, lambda path: save_labels(np.arange(2), path), require_label_ending):
        with pytest.raises(InputError, match=r"ends in '\.txt'"):
            act(tmp_path / "who.txt")


def test_text_that_is_no_utf8(tmp_path):
    for name in ("who.meta", "who.csv"):
        with pytest.raises(InputError, match="not a text file in UTF-8"):
            read(tmp_path, name, "Zoë\n".encode("latin-1"))


def test_a_shuffled_table_is_read_in_row_order(tmp_path):
    (tmp_path / "a.csv").write_text("row,label\n2,9\n0,7\n1,8\n")
    assert load_labels(tmp_path / "a.csv").tolist() == [7, 8, 9]


@pytest.mark.parametrize("rows", ["0,0,1", "1,2,3", "0,1,x"])
def test_row_numbers_that_are_no_order_are_refused(tmp_path, rows):
    lines = "".join(f"{row},5\n" for row in rows.split(","))
    (tmp_path / "a.csv").write_text("row,label\n" + lines)
    with pytest.raises(InputError, match="not 0 to 2, each once"):
        load_labels(tmp_path / "a.csv")
