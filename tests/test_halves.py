import numpy as np
import pytest
from numba import njit

from starfc import halves
from starfc.halves import as_half, as_single, can_widen


@njit
def widen_all(values, out):
    for i in range(len(values)):
        out[i] = as_single(values[i])


@pytest.mark.skipif(not can_widen(), reason="this processor has no half precision")
def test_every_half_becomes_the_same_single():
    bits = np.arange(1 << 16, dtype=np.uint16)
    out = np.empty(1 << 16, np.float32)
    widen_all(bits, out)
    with np.errstate(invalid="ignore"):
        expected = bits.view(np.float16).astype(np.float32)
    np.testing.assert_array_equal(out, expected)


@njit
def narrow_all(values, out):
    for i in range(len(values)):
        out[i] = as_half(values[i])


@pytest.mark.skipif(not can_widen(), reason="this processor has no half precision")
def test_singles_become_the_nearest_half():
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    halves = np.sort(halves[np.isfinite(halves)])
    between = (halves[:-1].astype(np.float64) + halves[1:]) / 2  # ties, to be rounded to even
    drawn = np.random.default_rng(0).normal(size=10_000) * 10.0 ** np.random.default_rng(1).uniform(-9, 4, 10_000)
    values = np.concatenate((halves, between, np.nextafter(between, 0), drawn)).astype(np.float32)
    bits = np.empty(len(values), np.uint16)
    narrow_all(values, bits)
    np.testing.assert_array_equal(bits, values.astype(np.float16).view(np.uint16))


def test_singles_stay():
    values = np.array([1.5, -0.0, 1e-40], np.float32)
    out = np.empty(3, np.float32)
    widen_all(values, out)
    assert out.tobytes() == values.tobytes()


def test_only_kernels_may_call_it():
    with pytest.raises(TypeError):
        as_single(1)


@pytest.mark.parametrize(
    ("machine", "features", "expected"), [("aarch64", {}, True), ("x86_64", {"f16c": False}, False)]
)
def test_the_processor_decides(monkeypatch, machine, features, expected):
    monkeypatch.setattr(halves.platform, "machine", lambda: machine)
    monkeypatch.setattr(halves.binding, "get_host_cpu_features", lambda: features)
    assert can_widen() is expected
