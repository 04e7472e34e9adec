import zipfile

import numpy as np
import pytest

from neighbors import check_neighbors, unit_rows
from starfc.errors import InputError, OutputError
from starfc.features import Features
from starfc.knn import KnnGraph, build_knn, compare_anew, join_rows, load_knn, measure_recall, save_knn
from starfc.scratch import Scratch
from starfc.threads import limited_threads


def test_rows_in_memory_are_joined_exactly():
    rows = unit_rows(300, 9)
    graph = join_rows(rows, 12)
    check_neighbors(graph.neighbors, graph.similarities, rows, 12)
    assert graph.order is None


@pytest.mark.parametrize("dtype", ["<f2", "<f4", ">f4", "<f8", ">f8"])
def test_any_float_and_scale(dtype):
    raw = (np.random.default_rng(3).standard_normal((90, 12)) * 7).astype(dtype)
    features = Features(raw)
    graph = build_knn(features, k=9)
    check_neighbors(graph.neighbors, graph.similarities, features.read(0, 90), 9)


def test_any_memory_order():
    raw = np.random.default_rng(3).standard_normal((90, 24)).astype(np.float32)
    plain = build_knn(Features(raw[::2, ::3].copy()), k=5)
    for view in (raw[::2, ::3], np.asfortranarray(raw[::2, ::3])):
        graph = build_knn(Features(view), k=5)
        assert (graph.neighbors == plain.neighbors).all()
        assert (graph.similarities == plain.similarities).all()


@pytest.mark.parametrize(
    ("k", "message"),
    [(0, r"k \(0\) must be at least 1"), (80, r"k \(80\) must be smaller .* \(64\); pass k=63 or fewer")],
)
def test_impossible_k(k, message):
    features = Features(unit_rows(64, 4))
    with pytest.raises(InputError, match=message):
        build_knn(features, k=k)
    with pytest.raises(InputError, match=message):
        join_rows(features.read(0, 64), k)


def test_other_bad_requests():
    with pytest.raises(InputError, match="at least 2 vectors"):
        join_rows(np.ones((1, 3), dtype=np.float32), 1)
    with pytest.raises(InputError, match="two-dimensional"):
        join_rows(np.ones(3, dtype=np.float32), 1)
    with pytest.raises(InputError, match="must be one of auto"):
        build_knn(Features(unit_rows(9, 3)), k=1, method="magic")
    with pytest.raises(InputError, match="one shape"):
        KnnGraph(np.zeros((2, 1), dtype=np.int32), np.zeros((2, 2), dtype=np.float32))


def test_saved_graph_comes_back(tmp_path):
    graph = join_rows(unit_rows(50, 6), 7)
    save_knn(graph, tmp_path / "graph.npz")
    loaded = load_knn(tmp_path / "graph.npz", n_expected=50)
    assert isinstance(loaded.neighbors, np.memmap)
    assert (loaded.neighbors == graph.neighbors).all()
    assert (loaded.similarities == graph.similarities).all()
    assert loaded.order is None
    assert (loaded.n, loaded.k) == (50, 7)
    ordered = KnnGraph(graph.neighbors, graph.similarities, np.arange(50, dtype=np.int32)[::-1])
    save_knn(ordered, tmp_path / "graph.npz")
    assert (load_knn(tmp_path / "graph.npz").order == ordered.order).all()
    assert [path.name for path in tmp_path.iterdir()] == ["graph.npz"]


def test_field_layout(tmp_path):
    # Row 0: self first; row 1: self behind its duplicate; row 2: self missing; row 3: a short list.
    ids = [[0, 1, 2], [0, 1, 2], [0, 1, 3], [3, 2, -1]]
    distances = [[0, 0.25, 0.5], [0, 0, 0.5], [0.5, 0.5, 0.75], [0, 0.75, 1]]
    np.savez(tmp_path / "data.npz", data=np.array([ids, distances]).transpose(1, 0, 2))
    graph = load_knn(tmp_path / "data.npz")
    assert graph.neighbors.tolist() == [[1, 2], [0, 2], [0, 1], [2, -1]]
    assert graph.similarities.tolist() == [[0.75, 0.5], [1, 0.5], [0.5, 0.5], [0.25, 0]]
    assert graph.neighbors.dtype == np.int32
    assert graph.similarities.dtype == np.float32


GOOD = {
    "neighbors": np.array([[1], [0]], dtype=np.int32),
    "similarities": np.array([[0.5], [0.5]], dtype=np.float32),
}


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"other": np.zeros(3)}, "has 'neighbors' and 'similarities', or 'data'"),
        ({**GOOD, "neighbors": np.array([[1, 0]])}, r"both must be \(n, k\)"),
        ({**GOOD, "neighbors": np.array([[1.0], [0.0]])}, "integers and floats"),
        ({**GOOD, "neighbors": np.array([[1], [2]])}, r"row 1 has neighbour ids outside -1\.\.1"),
        ({**GOOD, "neighbors": np.array([[1], [-2]])}, r"row 1 has neighbour ids outside -1\.\.1"),
        ({**GOOD, "neighbors": np.array([[1], [1]])}, "row 1 has itself as a neighbour"),
        ({**GOOD, "similarities": np.array([[0.5], [np.nan]])}, "row 1 has similarities outside"),
        ({**GOOD, "order": np.array([0.5])}, "has an order of shape"),
        ({"data": np.zeros((4, 3, 2))}, r"must be numbers \(n, 2, k\)"),
        ({"data": np.zeros((4, 2, 1))}, "at least 2 are needed"),
        ({"data": np.full((4, 2, 3), 0.5)}, "no whole numbers"),
        ({"data": np.full((4, 2, 3), np.nan)}, "no whole numbers"),
        ({"data": np.full((4, 2, 3), 4e12)}, r"outside -1\.\.3"),
    ],
)
def test_foreign_graphs_are_refused(tmp_path, arrays, message):
    np.savez(tmp_path / "graph.npz", **arrays)
    with pytest.raises(InputError, match=message):
        load_knn(tmp_path / "graph.npz")


def test_unreadable_graphs_are_refused(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        load_knn(tmp_path / "none.npz")
    with pytest.raises(InputError, match=r"is a \.npz file"):
        load_knn(tmp_path / "graph.npy")
    (tmp_path / "text.npz").write_text("not a zip")
    with pytest.raises(InputError, match="damaged or of another format"):
        load_knn(tmp_path / "text.npz")
    np.savez(tmp_path / "pickled.npz", **{**GOOD, "neighbors": np.array([[{}], [{}]], dtype=object)})
    with pytest.raises(InputError, match="pickled"):
        load_knn(tmp_path / "pickled.npz")
    save_knn(KnnGraph(**GOOD), tmp_path / "graph.npz")
    whole = (tmp_path / "graph.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match="damaged"):
        load_knn(tmp_path / "cut.npz")
    with pytest.raises(InputError, match="they must belong together"):
        load_knn(tmp_path / "graph.npz", n_expected=3)


def test_compressed_and_wide_graphs_are_read(tmp_path):
    np.savez_compressed(
        tmp_path / "graph.npz", neighbors=GOOD["neighbors"].astype(">i8"), similarities=GOOD["similarities"]
    )
    graph = load_knn(tmp_path / "graph.npz")
    assert graph.neighbors.dtype == np.int32
    assert graph.neighbors.tolist() == [[1], [0]]


def test_nowhere_to_write(tmp_path):
    with pytest.raises(OutputError, match="does not exist"):
        save_knn(KnnGraph(**GOOD), tmp_path / "none" / "graph.npz")
    assert not list(tmp_path.iterdir())


def test_saved_file_is_a_plain_zip(tmp_path):
    save_knn(KnnGraph(**GOOD), tmp_path / "graph.npz")
    with zipfile.ZipFile(tmp_path / "graph.npz") as archive:
        assert sorted(archive.namelist()) == ["neighbors.npy", "similarities.npy"]


def test_recall_counts_what_is_missing():
    rows = np.random.default_rng(3).normal(size=(400, 8)).astype(np.float32)
    features = Features(rows)
    graph = build_knn(features, k=10, method="exact")
    assert measure_recall(features, graph) == (1.0, 400)
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    rng = np.random.default_rng(0)
    neighbors = graph.neighbors.copy()
    for i in range(400):  # replace three true neighbours of every row by strangers
        strangers = np.setdiff1d(np.arange(400), np.append(graph.neighbors[i], i))
        neighbors[i, rng.choice(10, 3, replace=False)] = rng.choice(strangers, 3, replace=False)
    similarities = np.einsum("ijk,ik->ij", unit[neighbors], unit).astype(np.float32)
    assert measure_recall(features, KnnGraph(neighbors, similarities)) == (pytest.approx(0.7), 400)
    assert measure_recall(features, graph, n_queries=50)[1] == 50


def test_recall_of_identical_rows_is_one():
    features = Features(np.ones((30, 3), dtype=np.float32))
    assert measure_recall(features, build_knn(features, k=4, method="exact")) == (1.0, 30)


@pytest.mark.parametrize(
    ("neighbors", "similarities", "sentence"),
    [
        ([[1, 1], [0, 2], [0, 1]], [[0.9, 0.8]] * 3, "row 0 has a neighbour twice"),
        ([[1, 2], [0, 2], [0, 1]], [[0.9, 0.8], [5.0, 0.1], [0.2, 0.1]], "row 1 has similarities outside"),
        (np.empty((3, 0), np.int32), np.empty((3, 0), np.float32), "lists of 0 neighbours"),
    ],
)
def test_lists_that_are_no_neighbours_are_refused(tmp_path, neighbors, similarities, sentence):
    np.savez(
        tmp_path / "g.npz", neighbors=np.array(neighbors, np.int32), similarities=np.array(similarities, np.float32)
    )
    with pytest.raises(InputError, match=sentence):
        load_knn(tmp_path / "g.npz")


def compare_slowly(rows, neighbors):
    """Sort the neighbours of every row by their cosine, ties by id, none last."""
    units = rows.astype(np.float64) / np.linalg.norm(rows.astype(np.float64), axis=1, keepdims=True)
    lists = []
    for i, listed in enumerate(neighbors):
        known = [(-round(float(units[i] @ units[j]), 6), int(j)) for j in listed if j >= 0]
        lists.append([j for _, j in sorted(known)] + [-1] * int((listed < 0).sum()))
    return np.array(lists)


@pytest.mark.parametrize("in_files", [False, True])
@pytest.mark.parametrize("threads", [1, 2])
def test_edges_are_compared_anew(tmp_path, monkeypatch, threads, in_files):
    """By other features, in which some faces are copies, so that there are ties; lists end early here and there."""
    monkeypatch.setattr("starfc.knn._COMPARED_EDGES", 700)
    rng = np.random.default_rng(0)
    rows = np.repeat(rng.normal(size=(100, 6)), 3, axis=0).astype(np.float32)
    neighbors = np.array([rng.permutation(np.delete(np.arange(300), i))[:7] for i in range(300)], np.int32)
    neighbors[rng.random(300) < 0.2, 4:] = -1
    graph = KnnGraph(neighbors, np.zeros(neighbors.shape, np.float32), np.arange(300, dtype=np.int32)[::-1])
    scratch = Scratch(tmp_path / "work" if in_files else None)
    with limited_threads(threads):
        found = compare_anew(Features(rows), graph, scratch=scratch)
    assert found.neighbors.tolist() == compare_slowly(rows, neighbors).tolist()
    units = Features(rows).read(0, 300)
    expected = np.einsum("nd,nkd->nk", units, units[found.neighbors])
    np.testing.assert_allclose(found.similarities, np.where(found.neighbors < 0, 0, expected), atol=1e-6)
    assert np.array_equal(found.order, graph.order)
