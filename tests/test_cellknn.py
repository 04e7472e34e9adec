import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from starfc import cellknn, cells
from starfc.features import Features
from starfc.knn import build_knn, join_rows, measure_recall
from starfc.probes import Reach, rank_probes
from starfc.synth import make_faces
from starfc.threads import limited_threads


def build(rows, k=10, **options):
    return build_knn(Features(rows), k=k, method="cells", **options)


def check_graph(graph, rows):
    """Whatever was missed, what is there must be right: real similarities, best first, nobody twice, never self."""
    n, k = graph.neighbors.shape
    found = np.einsum("nd,nkd->nk", rows, rows[graph.neighbors])
    np.testing.assert_allclose(graph.similarities, found, atol=1e-3)
    assert (graph.neighbors >= 0).all()
    assert not (graph.neighbors == np.arange(n)[:, None]).any()
    assert (np.diff(np.sort(graph.neighbors, axis=1), axis=1) > 0).all()
    assert (np.lexsort((graph.neighbors, -graph.similarities), axis=1) == np.arange(k)).all()
    assert (np.sort(graph.order) == np.arange(n)).all()


@pytest.fixture(scope="module")
def faces():
    return make_faces(6000, people=150, dim=48, seed=3)[0]


@pytest.mark.parametrize(("recall", "k"), [(0.9, 10), (0.95, 30), (0.99, 80)])
def test_recall_is_what_was_asked_for(faces, recall, k):
    graph = build(faces, k=k, recall=recall)
    check_graph(graph, faces)
    exact = join_rows(faces, k)
    shared = [len(np.intersect1d(one, other)) for one, other in zip(graph.neighbors, exact.neighbors, strict=True)]
    assert np.mean(shared) / k >= recall
    assert measure_recall(Features(faces), graph, n_queries=6000)[0] == pytest.approx(np.mean(shared) / k, abs=1e-3)


def test_threads_do_not_change_a_bit(faces):
    graphs = []
    for threads in (1, 2):
        with limited_threads(threads):
            graphs.append(build(faces))
    for name in ("neighbors", "similarities", "order"):
        assert (getattr(graphs[0], name) == getattr(graphs[1], name)).all()


def test_seed_matters_and_is_enough(faces):
    first, again, other = (build(faces, seed=seed) for seed in (1, 1, 2))
    assert (first.neighbors == again.neighbors).all()
    assert (first.order != other.order).any()


class Lazy(cellknn._Effort):
    """An effort that is no greater for more neighbours."""

    def scale(self, k):
        return self


def be_lazy(monkeypatch, efforts, n_next):
    """Look around as if there were many cells, but not far."""
    monkeypatch.setattr(cells, "FEW_CELLS", 0)
    monkeypatch.setattr(cells, "_choose_next", lambda k: n_next)
    monkeypatch.setattr(cellknn, "_EFFORTS", efforts)


@pytest.mark.parametrize("effort", [0, 1, 2])
def test_any_effort_gets_there(faces, monkeypatch, effort):
    monkeypatch.setattr(cellknn, "_EFFORTS", cellknn._EFFORTS[effort:])
    graph = build(faces, k=20)
    check_graph(graph, faces)
    assert measure_recall(Features(faces), graph)[0] >= 0.94


def test_all_pairs_are_the_last_resort(faces, monkeypatch):
    be_lazy(monkeypatch, [Lazy(Reach(2, 1), 1, 1, 1)], n_next=1)
    graph = build(faces, k=16, recall=0.97)
    assert (graph.neighbors == join_rows(faces, 16).neighbors).mean() > 0.999
    assert measure_recall(Features(faces), graph)[0] == 1
    assert (np.sort(graph.order) == np.arange(6000)).all()


def test_of_too_many_rows_the_best_that_was_found_is_returned(faces, tmp_path, monkeypatch, caplog):
    be_lazy(monkeypatch, [Lazy(Reach(2, 1), 1, 1, 1), cellknn._EFFORTS[2]], n_next=1)
    monkeypatch.setattr(cellknn, "_MOST_FOR_ALL", 5000)
    monkeypatch.setattr(cellknn, "_MOST_EXACT_BYTES", 1000)
    graph = build(faces, k=16, recall=0.97)
    check_graph(graph, faces)
    share, _ = measure_recall(Features(faces), graph)
    assert 0.3 < share < 0.97
    said = float(caplog.text.split("a recall of ")[1].split()[0])
    assert abs(said - share) < 0.05 and said < 0.97
    for _ in range(2):  # the second call finds all done
        again = build(faces, k=16, recall=0.97, folder=tmp_path, facts={"of": "faces"})
        assert (again.neighbors == graph.neighbors).all()


def test_where_all_pairs_do_not_fit_the_best_that_was_found_is_returned(faces, monkeypatch, caplog):
    be_lazy(monkeypatch, [Lazy(Reach(2, 1), 1, 1, 1)], n_next=1)
    graph = build(faces, k=16, recall=0.97, memory=1_000_000)
    assert measure_recall(Features(faces), graph)[0] < 0.97
    assert "too much memory" in caplog.text


@pytest.mark.parametrize("k", [1, 2])
def test_few_neighbors_of_many_cells(faces, monkeypatch, k):
    monkeypatch.setattr(cells, "FEW_CELLS", 0)
    graph = build(faces, k=k)
    check_graph(graph, faces)
    assert measure_recall(Features(faces), graph)[0] >= 0.94


def test_cells_are_ranked_once(faces, monkeypatch):
    """Not by every thread that joins."""
    ranked = []

    def rank(*arguments):
        ranked.append(arguments)
        time.sleep(0.2)  # long enough for another thread to begin too
        return rank_probes(*arguments)

    monkeypatch.setattr(cellknn, "rank_probes", rank)
    with limited_threads(2):
        build(np.repeat(faces, 4, axis=0), k=20)
    assert len(ranked) == 1


def test_few_cells_are_ranked_by_all_rows_only_where_much_is_asked_for(faces, monkeypatch):
    reaches = []

    def rank(store, cells, n_ranks, reach, *rest):
        reaches.append(reach)
        return rank_probes(store, cells, n_ranks, reach, *rest)

    monkeypatch.setattr(cellknn, "rank_probes", rank)
    build(faces, k=20)
    build(faces, k=20, recall=0.99)
    assert reaches[0] == cellknn._EFFORTS[0].scale(20).reach
    assert reaches[-1] is None


def test_few_groups_and_probes_are_made_up_for(faces, monkeypatch, caplog):
    be_lazy(monkeypatch, [Lazy(Reach(3, 2), 2, 2, 2), cellknn._EFFORTS[2]], n_next=2)
    with caplog.at_level("DEBUG", "starfc.cellknn"):
        graph = build(faces, k=20)
    check_graph(graph, faces)
    assert measure_recall(Features(faces), graph)[0] >= 0.94
    assert "round0 found" in caplog.text


def test_hard_rows_look_further(faces, monkeypatch, caplog):
    """Where rounds of expansion stop helping, without a greater effort for everybody."""
    be_lazy(monkeypatch, [Lazy(Reach(4, 20), 16, 6, 60)], n_next=1)
    monkeypatch.setattr(cellknn, "_FOLLOWED", (0.1,))
    monkeypatch.setattr(cellknn, "_MOST_EXACT_BYTES", 1000)
    with caplog.at_level("DEBUG", "starfc.cellknn"):
        graph = build(faces, k=40, recall=0.95)
    check_graph(graph, faces)
    said = {line.split()[-3]: float(line.split()[-1]) for line in caplog.text.splitlines() if " found " in line}
    assert said["far"] < said["round0"] < said["hard"] - 0.01 < said["hard-round0"]
    assert abs(measure_recall(Features(faces), graph)[0] - said["hard-round0"]) < 0.02


def test_identical_rows():
    rows = np.full((100_000, 4), 0.5, dtype=np.float32)
    graph = build(rows, k=30)
    check_graph(graph, rows)
    assert measure_recall(Features(rows), graph, n_queries=50)[0] == 1


def test_one_person_with_half_of_the_faces_and_many_copies(faces):
    rng = np.random.default_rng(0)
    rows = faces.copy()
    rows[rng.permutation(6000)[:3000]] = rows[7]
    crowd = rng.permutation(6000)[:1500]
    rows[crowd] = rows[11] + 0.02 * rng.standard_normal((1500, 48)).astype(np.float32)
    rows = Features(rows).read(0, 6000)
    graph = build(rows, k=30)
    check_graph(graph, rows)
    assert measure_recall(Features(rows), graph)[0] >= 0.94


def test_rows_without_structure():
    rows = Features(np.random.default_rng(0).standard_normal((2500, 12))).read(0, 2500)
    graph = build(rows, k=5)
    check_graph(graph, rows)
    assert measure_recall(Features(rows), graph)[0] >= 0.94


@pytest.mark.parametrize("raw", ["<f2", ">f4", "<f8"])
def test_any_float(faces, raw):
    graph = build(faces.astype(raw)[::2], k=5)
    assert graph.neighbors.shape == (3000, 5)


def test_few_rows_are_joined_exactly():
    rows = Features(np.random.default_rng(0).standard_normal((300, 8))).read(0, 300)
    assert (build(rows, k=7).neighbors == join_rows(rows, 7).neighbors).all()
    assert build(rows, k=299).neighbors.shape == (300, 299)


# --- stopped and resumed ---------------------------------------------------------------------------------------------

SCRIPT = """
import sys, numpy as np
from pathlib import Path
from starfc.features import load_features
from starfc.knn import build_knn
features = load_features(sys.argv[1])
memory = int(sys.argv[4]) if len(sys.argv) > 4 else None
graph = build_knn(features, k=12, method="cells", folder=Path(sys.argv[2]), facts={"of": "faces"}, memory=memory)
np.savez(sys.argv[3], neighbors=graph.neighbors, similarities=graph.similarities, order=graph.order)
"""


def start(arguments):
    return subprocess.Popen([sys.executable, "-c", SCRIPT, *map(str, arguments)])


def read(path):
    with np.load(path) as graph:
        return {name: graph[name] for name in graph}


def test_a_folder_or_little_memory_changes_no_bit(faces, tmp_path):
    plain = build(faces, k=12)
    for memory in (None, 1, 8_000_000_000):
        graph = build(faces, k=12, folder=tmp_path / f"{memory}", facts={"of": "faces"}, memory=memory)
        for name in ("neighbors", "similarities", "order"):
            assert (getattr(graph, name) == getattr(plain, name)).all()


def test_killed_and_started_again(faces, tmp_path):
    np.save(tmp_path / "faces.npy", faces)
    expected = build(faces, k=12)
    graph = tmp_path / "graph.npz"
    killed = 0
    rng = np.random.default_rng(0)
    for _ in range(5):
        run = start((tmp_path / "faces.npy", tmp_path / "work", graph))
        marked = time.monotonic()
        # The imports take most of the time; a kill counts once the work has begun.
        while not (tmp_path / "work").exists() and time.monotonic() - marked < 60 and run.poll() is None:
            time.sleep(0.01)
        time.sleep(float(rng.uniform(0, 0.5)))
        killed += run.poll() is None
        run.send_signal(signal.SIGKILL)
        run.wait()
    assert killed
    run = start((tmp_path / "faces.npy", tmp_path / "work", graph))
    assert run.wait() == 0
    found = read(graph)
    for name in ("neighbors", "similarities", "order"):
        assert (found[name] == getattr(expected, name)).all()


def test_stopped_after_any_part_and_started_again(faces, tmp_path, monkeypatch):
    """Ever a little later, through an effort that fails and one that takes rounds of expansion."""
    be_lazy(monkeypatch, [Lazy(Reach(1, 1), 1, 1, 1), Lazy(Reach(3, 3), 3, 2, 3), cellknn._EFFORTS[2]], n_next=1)
    expected = build(faces, k=20)
    stages = []

    def stop_after(n_calls):
        def progress(stage, done, total):
            stages.append(stage)
            if len(stages) > n_calls:
                raise KeyboardInterrupt

        return progress

    graph = None
    for n_calls in range(4, 200, 3):
        stages.clear()
        try:
            graph = build(faces, k=20, folder=tmp_path, facts={"of": "faces"}, progress=stop_after(n_calls))
            break
        except KeyboardInterrupt:
            pass
    assert "knn: expand" in stages or n_calls > 20
    for name in ("neighbors", "similarities", "order"):
        assert (getattr(graph, name) == getattr(expected, name)).all()
    assert len(list(tmp_path.glob("*-both*"))) <= 2  # of the stages before the last two nothing is left
