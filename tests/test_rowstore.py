import numpy as np
import pytest

from starfc.features import Features
from starfc.rowstore import _encode_rows, load_store, read_range, take_rows
from starfc.workers import start_workers


def load(features):
    calls = []
    with start_workers() as pool:
        store = load_store(features, pool, lambda *call: calls.append(call))
    assert calls[0] == ("knn: rows", 0, len(features))
    assert calls[-1] == ("knn: rows", len(features), len(features))
    return store


def test_half_precision_is_numpys():
    rows = np.random.default_rng(0).standard_normal((50, 33)).astype(np.float32)
    rows[0, :4] = [0.0, -0.0, 1e-6, -3e-5]
    stored = np.empty(rows.shape, dtype=np.uint16)
    _encode_rows(rows, stored)
    assert (stored == rows.astype(np.float16).view(np.uint16)).all()
    assert (read_range(stored, 0, 50) == rows.astype(np.float16).astype(np.float32)).all()


@pytest.mark.parametrize("read_numbers", [1, 70, 1 << 20])
def test_rows_are_all_there(monkeypatch, read_numbers):
    monkeypatch.setattr("starfc.rowstore._READ_NUMBERS", read_numbers)
    features = Features(np.random.default_rng(0).standard_normal((101, 7)))
    store = load(features)
    assert store.dtype == np.float32
    assert (store == features.read(0, 101)).all()


@pytest.mark.parametrize("wide_numbers", [0, 1 << 20])
def test_rows_come_out_as_they_were(monkeypatch, wide_numbers):
    monkeypatch.setattr("starfc.rowstore._WIDE_NUMBERS", wide_numbers)
    features = Features(np.random.default_rng(0).standard_normal((101, 7)))
    store = load(features)
    assert store.dtype == (np.float32 if wide_numbers else np.uint16)
    rows = features.read(0, 101)
    np.testing.assert_allclose(read_range(store, 10, 31), rows[10:31], atol=5e-4)
    chosen = np.array([100, 0, 0, 17])
    np.testing.assert_allclose(take_rows(store, chosen), rows[chosen], atol=5e-4)
