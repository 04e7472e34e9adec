from __future__ import annotations

import io
import itertools
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from starfc import features as module
from starfc.errors import InputError, MissingExtraError
from starfc.features import Features, as_features, load_features, npz_names, open_npz_array, save_features

ROWS = np.random.default_rng(1).normal(size=(37, 5))
ENDINGS = [".npy", ".npz", ".parquet", ".fvecs", ".bin"]


def is_mapped(array) -> bool:
    while array is not None:
        if isinstance(array, np.memmap):
            return True
        array = getattr(array, "base", None)
    return False


def normalise(rows):
    """Oracle: float64, or longdouble where float64 is given, one row at a time."""
    wide = np.asarray(rows).astype(np.longdouble)
    return np.stack([row / np.sqrt((row * row).sum()) for row in wide]).astype(np.float64)


# reading


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["<f2", "<f4", "<f8", ">f2", ">f4", ">f8", "<i2", "u1", "<i8"])
def test_npy_is_mapped(tmp_path, dtype, order):
    rows = np.asarray(ROWS * 50 + 100, dtype=dtype, order=order)
    np.save(tmp_path / "x.npy", rows)
    features = load_features(tmp_path / "x.npy")
    assert is_mapped(features.raw)
    np.testing.assert_array_equal(features.raw, rows)
    np.testing.assert_allclose(features.read(0, 37), normalise(rows), atol=1e-6)
    assert (len(features), features.dim, features.source) == (37, 5, str(tmp_path / "x.npy"))


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_npy_versions(tmp_path, version):
    with (tmp_path / "x.npy").open("wb") as file:
        np.lib.format.write_array(file, ROWS, version=version)
    np.testing.assert_array_equal(load_features(tmp_path / "x.npy").raw, ROWS)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz(tmp_path, save, order):
    rows = np.asarray(ROWS, dtype=np.float16, order=order)
    save(tmp_path / "x.npz", labels=np.arange(37), features=rows)
    features = load_features(tmp_path / "x.npz")
    assert is_mapped(features.raw) == (save is np.savez)
    np.testing.assert_array_equal(features.raw, rows)
    assert npz_names(tmp_path / "x.npz") == ["labels", "features"]
    np.testing.assert_array_equal(open_npz_array(tmp_path / "x.npz", "labels"), np.arange(37))


@pytest.mark.parametrize("name", ["features", "embeddings", "X", "Vectors", "something"])
def test_npz_names(tmp_path, name):
    np.savez(tmp_path / "x.npz", **{name: ROWS})
    np.testing.assert_array_equal(load_features(tmp_path / "x.npz").raw, ROWS)


def test_npz_of_unnamed_arrays_is_refused(tmp_path):
    np.savez(tmp_path / "x.npz", a=ROWS, b=ROWS)
    with pytest.raises(InputError, match=r"holds 'a', 'b'; name the one to read 'features'"):
        load_features(tmp_path / "x.npz")


@pytest.mark.parametrize("number", ["halffloat", "float", "double", "int16"])
@pytest.mark.parametrize("kind", ["list", "large_list", "fixed"])
def test_parquet(tmp_path, kind, number, monkeypatch):
    value_type = pa.type_for_alias(number)
    rows = (ROWS * 100).astype(value_type.to_pandas_dtype())
    types = {"list": pa.list_(value_type), "large_list": pa.large_list(value_type), "fixed": pa.list_(value_type, 5)}
    flat = pa.array(rows.reshape(-1))
    if kind == "fixed":
        column = pa.FixedSizeListArray.from_arrays(flat, 5)
    else:
        made = pa.ListArray if kind == "list" else pa.LargeListArray
        column = made.from_arrays(np.arange(0, 37 * 5 + 1, 5), flat)
    table = pa.table({"name": [str(i) for i in range(37)], "embedding": column})
    assert table.schema.field("embedding").type == types[kind]
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=10)
    features = load_features(tmp_path / "x.parquet")
    assert features.raw.dtype == rows.dtype
    np.testing.assert_array_equal(features.raw, rows)


def write_lists(path, lists, kind=None):
    pq.write_table(pa.table({"features": pa.array(lists, kind or pa.list_(pa.float32()))}), path)


@pytest.mark.parametrize(
    ("lists", "sentence"),
    [
        ([[1, 2], [1, 2], [1]], "row 2 has 1 numbers, the first row 2"),
        ([[1, 2], None], "row 1 has 0 numbers, the first row 2"),
        ([[1, 2], [3, 4], [None, 1]], "missing numbers, first in row 2"),
        ([[], []], "rows of 0 numbers"),
        ([None, [1, 2]], "row 1 has 2 numbers, the first row 0"),
    ],
)
def test_odd_parquet_lists(tmp_path, lists, sentence):
    write_lists(tmp_path / "x.parquet", lists)
    with pytest.raises(InputError, match=sentence):
        load_features(tmp_path / "x.parquet")


def test_odd_parquet_columns(tmp_path):
    pq.write_table(pa.table({"a": [1, 2]}), tmp_path / "x.parquet")
    with pytest.raises(InputError, match="nothing that fits"):
        load_features(tmp_path / "x.parquet")
    write_lists(tmp_path / "x.parquet", [["a"], ["b"]], pa.list_(pa.string()))
    with pytest.raises(InputError, match="must be real numbers"):
        load_features(tmp_path / "x.parquet")
    write_lists(tmp_path / "x.parquet", [])
    assert len(load_features(tmp_path / "x.parquet")) == 0


def test_parquet_without_pyarrow(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.parquet", None)
    (tmp_path / "x.parquet").write_bytes(b"PAR1")
    with pytest.raises(MissingExtraError, match=r"pip install 'starfc\[parquet\]'"):
        load_features(tmp_path / "x.parquet")


def test_fvecs(tmp_path):
    with (tmp_path / "x.fvecs").open("wb") as file:
        for row in ROWS.astype("<f4"):
            file.write(np.int32(5).tobytes() + row.tobytes())
    features = load_features(tmp_path / "x.fvecs")
    assert is_mapped(features.raw)
    np.testing.assert_array_equal(features.raw, ROWS.astype(np.float32))
    np.testing.assert_allclose(features.read(3, 9), normalise(ROWS)[3:9], atol=1e-6)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [([2, 0, 0, 3, 0, 0], "row 1 announces 3"), ([2, 0], "not a .fvecs file"), ([-1, 0], "not a .fvecs file")],
)
def test_odd_fvecs(tmp_path, words, sentence):
    np.array(words, dtype="<i4").tofile(tmp_path / "x.fvecs")
    with pytest.raises(InputError, match=sentence):
        load_features(tmp_path / "x.fvecs")


def test_fvecs_with_an_odd_byte(tmp_path):
    (tmp_path / "x.fvecs").write_bytes(np.array([1, 0], dtype="<i4").tobytes() + b"x")
    with pytest.raises(InputError, match="9 bytes do not divide"):
        load_features(tmp_path / "x.fvecs")


def test_bin(tmp_path):
    ROWS.astype("<f4").tofile(tmp_path / "x.bin")
    features = load_features(tmp_path / "x.bin", dim=5)
    assert is_mapped(features.raw)
    np.testing.assert_array_equal(features.raw, ROWS.astype(np.float32))
    for dim, sentence in ((None, "pass --dim"), (0, "at least 1"), (7, "do not divide by dim")):
        with pytest.raises(InputError, match=sentence):
            load_features(tmp_path / "x.bin", dim=dim)


def test_damaged_archives(tmp_path):
    path = tmp_path / "x.npz"
    np.savez_compressed(path, features=np.random.default_rng(0).normal(size=(100, 20)))
    whole = path.read_bytes()
    path.write_bytes(whole[:500] + bytes(100) + whole[600:])
    with pytest.raises(InputError, match="cannot be read"):
        load_features(path)
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match="cannot be read"):
        load_features(path)


def test_an_archive_whose_header_promises_too_much(tmp_path):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (10, 4)})
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("features.npy", header.getvalue() + bytes(8))
    with pytest.raises(InputError, match="header promises 160 bytes, 8 are there"):
        load_features(tmp_path / "x.npz")


@pytest.mark.parametrize("shape", [(1 << 40, 1 << 40), (-1, 4)])
def test_impossible_shapes(tmp_path, shape):
    with (tmp_path / "x.npy").open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
        file.write(bytes(64))
    with pytest.raises(InputError):
        load_features(tmp_path / "x.npy")


def test_garbled_headers(tmp_path):
    np.save(tmp_path / "x.npy", ROWS)
    whole = (tmp_path / "x.npy").read_bytes()
    for before, after in ((b"}", b" "), (b"(37", b"('7"), (b"f8", b"\xff8"), (b"descr", b"desc?")):
        (tmp_path / "x.npy").write_bytes(whole.replace(before, after, 1))
        with pytest.raises(InputError, match="not a numpy file"):
            load_features(tmp_path / "x.npy")


def test_what_as_features_takes(tmp_path):
    features = Features(ROWS)
    assert as_features(features) is features
    assert len(as_features(ROWS.tolist())) == 37
    np.save(tmp_path / "x.npy", ROWS)
    assert len(as_features(str(tmp_path / "x.npy"))) == 37
    for odd, sentence in (
        (np.zeros(3), "two-dimensional"),
        (np.zeros((2, 2, 2)), "two-dimensional"),
        (np.zeros((3, 0)), "rows of 0 numbers"),
        (np.zeros((2, 2), dtype=complex), "real numbers"),
        ([["a", "b"]], "real numbers"),
        ([[1, 2], [3]], "cannot be made an array"),
    ):
        with pytest.raises(InputError, match=sentence):
            as_features(odd)


# normalisation


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("scale", [1e-38, 1e-30, 1e-20, 1e-3, 1.0, 1e10, 1e20, 1e30, 1e37])
def test_any_scale(scale, dtype):
    rows = (np.random.default_rng(2).normal(size=(50, 64)) * scale).astype(dtype)
    unit = Features(rows).read(0, 50)
    assert unit.dtype == np.float32 and unit.flags.c_contiguous
    np.testing.assert_allclose(unit, normalise(rows), atol=1e-6)


@pytest.mark.parametrize("scale", [1e-300, 1e300])
def test_extreme_scales(scale):
    np.testing.assert_allclose(Features(ROWS * scale).read(0, 37), normalise(ROWS * scale), atol=1e-6)
    np.testing.assert_allclose(Features(ROWS.astype(np.longdouble) * scale).read(0, 37), normalise(ROWS), atol=1e-6)


@settings(max_examples=40, deadline=None)
@given(
    dim=st.integers(1, 700),
    cuts=st.lists(st.integers(0, 30), max_size=4),
    kind=st.sampled_from("efd"),
    mixed=st.booleans(),
)
def test_a_row_has_the_same_bits_in_any_block(dim, cuts, kind, mixed):
    rng = np.random.default_rng(dim)
    rows = (rng.normal(size=(30, dim)) + 3 * mixed).astype(kind)
    features = Features(np.asarray(rows, order="F" if mixed else "C"))
    whole = features.read(0, 30)
    edges = sorted({0, 30, *cuts})
    parts = [features.read(start, stop) for start, stop in itertools.pairwise(edges)]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    picked = rng.integers(0, 30, size=12)
    np.testing.assert_array_equal(features.take(picked), whole[picked])
    np.testing.assert_allclose(whole, normalise(rows), atol=1e-6)


def test_raw_rows_are_never_changed():
    rows = ROWS.copy()
    Features(rows).read(0, 37)
    np.testing.assert_array_equal(rows, ROWS)


def test_slices():
    features = Features(ROWS)
    unit = normalise(ROWS)
    np.testing.assert_allclose(features.read(30, 99), unit[30:], atol=1e-6)
    assert features.read(5, 5).shape == (0, 5)
    assert features.take(np.empty(0, dtype=np.int64)).shape == (0, 5)


def test_blocks_cover_all_rows_once(monkeypatch):
    monkeypatch.setattr(module, "_BLOCK_BYTES", 4 * 5 * 10)
    assert list(Features(ROWS).blocks()) == [(0, 10), (10, 20), (20, 30), (30, 37)]
    assert list(Features(ROWS[:0]).blocks()) == []
    monkeypatch.setattr(module, "_BLOCK_BYTES", 1)
    assert [row for start, stop in Features(ROWS).blocks() for row in range(start, stop)] == list(range(37))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_the_first_bad_row_is_named(bad, dtype, monkeypatch):
    rows = ROWS.astype(dtype)
    rows[23, 2] = rows[31, 0] = bad
    monkeypatch.setattr(module, "_BLOCK_BYTES", 4 * 5 * 10)
    with pytest.raises(InputError, match=r"NaN or infinite values, first in row 23 \(counted from 0\)"):
        Features(rows).check()
    with pytest.raises(InputError, match="row 31"):
        Features(rows).take(np.array([3, 31]))


def test_an_all_zero_row_is_named():
    rows = ROWS.copy()
    rows[[7, 9]] = 0
    with pytest.raises(InputError, match="all-zero rows, first in row 7"):
        Features(rows).check()


def test_check_reports_progress_and_needs_two_rows():
    calls = []
    Features(ROWS).check(lambda *call: calls.append(call))
    assert calls == [("check", 0, 37), ("check", 37, 37)]
    for n in (0, 1):
        with pytest.raises(InputError, match="at least 2"):
            Features(ROWS[:n]).check()


# writing


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("dtype", ["<f2", "<f4", "<f8", ">f4", "<i4"])
def test_round_trip(tmp_path, ending, dtype, monkeypatch):
    monkeypatch.setattr(module, "_BLOCK_BYTES", 4 * 5 * 10)
    rows = np.asarray(ROWS * 100, dtype=dtype, order="F")
    calls = []
    save_features(Features(rows), tmp_path / f"x{ending}", lambda *call: calls.append(call))
    again = load_features(tmp_path / f"x{ending}", dim=5).raw
    if ending in (".fvecs", ".bin"):
        assert again.dtype == np.float32
        np.testing.assert_array_equal(again, rows.astype(np.float32))
    else:
        np.testing.assert_array_equal(again, rows)
        assert again.dtype == rows.dtype.newbyteorder("=")
    assert is_mapped(again) == (ending != ".parquet")
    assert calls[0] == ("write", 0, 37) and calls[-1] == ("write", 37, 37)
    assert [path.name for path in tmp_path.iterdir()] == [f"x{ending}"]


@pytest.mark.parametrize("ending", [".fvecs", ".bin"])
def test_numbers_beyond_float32_are_refused(tmp_path, ending):
    with pytest.raises(InputError, match="beyond float32"):
        save_features(Features(ROWS * 1e300), tmp_path / f"x{ending}")
    assert not list(tmp_path.iterdir())
    infinite = np.array([[np.inf, 1.0], [np.nan, 2.0]])
    save_features(Features(infinite), tmp_path / f"x{ending}")
    np.testing.assert_array_equal(load_features(tmp_path / f"x{ending}", dim=2).raw, infinite)


def test_unknown_endings(tmp_path):
    with pytest.raises(InputError, match=r"ends in '\.txt'"):
        save_features(Features(ROWS), tmp_path / "x.txt")
    with pytest.raises(InputError, match="ends in ''"):
        load_features(tmp_path / "x")
    with pytest.raises(InputError, match="is a folder; give a file of vectors"):
        load_features(tmp_path)


def test_a_dim_that_contradicts_the_file_is_refused(tmp_path):
    np.save(tmp_path / "a.npy", np.ones((3, 4)))
    assert load_features(tmp_path / "a.npy", dim=4).dim == 4
    with pytest.raises(InputError, match=r"rows of 4 numbers, dim \(5\) says otherwise"):
        load_features(tmp_path / "a.npy", dim=5)
