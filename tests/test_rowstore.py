import numpy as np
import pytest

from starfc.rowstore import multiply_into, multiply_row, put_rows, read_range, store_type, take_rows


@pytest.fixture(params=[np.uint16, np.float32])
def stored(request):
    rows = np.random.default_rng(0).standard_normal((101, 33)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    store = np.zeros(rows.shape, dtype=request.param)
    places = np.random.default_rng(1).permutation(101)
    put_rows(store, places, rows)
    return store, rows[np.argsort(places)]


def test_half_precision_is_numpys():
    rows = np.random.default_rng(0).standard_normal((50, 33)).astype(np.float32)
    rows[0, :4] = [0.0, -0.0, 1e-6, -3e-5]
    store = np.empty(rows.shape, dtype=np.uint16)
    put_rows(store, np.arange(50), rows)
    assert (store == rows.astype(np.float16).view(np.uint16)).all()
    assert (read_range(store, 0, 50) == rows.astype(np.float16).astype(np.float32)).all()


def test_rows_come_out_as_they_were(stored):
    store, rows = stored
    tolerance = 3e-4 if store.dtype == np.uint16 else 0
    np.testing.assert_allclose(read_range(store, 10, 31), rows[10:31], atol=tolerance, rtol=0)
    chosen = np.array([100, 0, 0, 17])
    np.testing.assert_allclose(take_rows(store, chosen), rows[chosen], atol=tolerance, rtol=0)


def test_a_product_is_numpys(stored):
    store, _ = stored
    rows = read_range(store, 0, 101).astype(np.float64)
    for i, j in ((0, 1), (5, 5), (100, 3)):
        assert multiply_row(rows[i].astype(np.float32), store[j]) == pytest.approx(rows[i] @ rows[j], abs=1e-6)
        backwards = multiply_row(rows[j].astype(np.float32), store[i])
        assert multiply_row(rows[i].astype(np.float32), store[j]) == backwards


def test_halves_are_used_where_the_processor_reads_them(monkeypatch):
    monkeypatch.setattr("starfc.rowstore.can_widen", lambda: True)
    assert store_type() is np.uint16
    monkeypatch.setattr("starfc.rowstore.can_widen", lambda: False)
    assert store_type() is np.float32


@pytest.mark.parametrize("n", [0, 1, 7])
def test_products_in_given_room(n):
    rows, others = (
        np.random.default_rng(seed).standard_normal((m, 5)).astype(np.float32) for seed, m in ((0, n), (1, 3))
    )
    room = np.full(64, np.nan, dtype=np.float32)
    assert np.allclose(multiply_into(room, rows, others), rows.astype(np.float64) @ others.T, atol=1e-5)
    assert np.isnan(room[3 * n :]).all()
