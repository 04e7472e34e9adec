from dataclasses import replace

import numpy as np
import pytest

import starfc
from released import canonical, cluster_as_released, graded_model, list_with_self
from starfc.errors import InputError, ModelError, OutputError
from starfc.features import Features
from starfc.knn import build_knn, save_knn
from starfc.memoryplan import plan_memory
from starfc.metrics import evaluate
from starfc.model import import_checkpoint
from starfc.prune import prune_edges
from starfc.score import ScoredEdges, score_edges
from starfc.synth import make_faces
from starfc.threads import limited_threads
from starfc.workdir import Workdir
from test_model import save_released
from test_score import random_model


def clustered(n_people=40, faces=12, dim=32, noise=0.5, seed=0):
    rng = np.random.default_rng(seed)
    people = rng.normal(size=(n_people, dim))
    rows = np.repeat(people, faces, axis=0) + noise * rng.normal(size=(n_people * faces, dim))
    return rows.astype(np.float32), np.repeat(np.arange(n_people), faces)


def test_imported_checkpoint_clusters_as_the_released_code(tmp_path):
    rows, _ = clustered(n_people=130, faces=40, dim=48, noise=0.9)  # 5,200 nodes
    lists = list_with_self(rows.astype(np.float64), 80)
    model = graded_model(rows.astype(np.float64), lists)
    expected, scores, n_refined = cluster_as_released(rows.astype(np.float64), model.tensors, *lists)
    assert 0.2 < (scores > 0.7).mean() < 0.8 and 0 < n_refined < (scores > 0.7).sum()
    assert 20 < expected.max() < 5000  # neither one lump nor all apart
    folder = tmp_path / "model"
    import_checkpoint(*save_released(tmp_path, model)).save(folder)

    clusters = starfc.cluster(rows, model=folder)
    np.testing.assert_array_equal(clusters.labels, canonical(expected))
    assert clusters.summary()["k"] == 80 and clusters.summary()["n_neighbors"] == 79
    # the same through the field's own file of kNN lists, which holds the face itself and cosine distances
    data = np.stack([lists[0].astype(np.float32), (1 - lists[1]).astype(np.float32)], axis=1)
    np.savez(tmp_path / "faiss_k_80.npz", data=data)
    from_file = starfc.cluster(rows, model=folder, knn_graph=tmp_path / "faiss_k_80.npz")
    np.testing.assert_array_equal(from_file.labels, clusters.labels)


def test_without_labels_finds_well_separated_people():
    rows, truth = clustered(dim=128, noise=0.4)
    clusters = starfc.cluster(rows)
    np.testing.assert_array_equal(clusters.labels, truth)
    assert len(clusters.notes) == 2 and "80 neighbours per face, from the data" in clusters.notes[0]
    assert f"links with p > {clusters.settings.tau1:g} are kept" in clusters.notes[1]
    plain = starfc.cluster(rows, scorer="cosine")
    np.testing.assert_array_equal(plain.labels, truth)
    assert len(plain.notes) == 1 and "found from the data" in plain.notes[0]


def test_a_preference_moves_along_the_probability():
    rows, _ = make_faces(1500, people=60, dim=48, seed=3)
    counts = {prefer: len(starfc.cluster(rows, prefer=prefer).sizes) for prefer in ("precision", "balanced", "recall")}
    assert counts["precision"] >= counts["balanced"] >= counts["recall"]
    assert counts["precision"] > counts["recall"]
    with pytest.raises(InputError, match="must be one of precision, balanced, recall"):
        starfc.cluster(rows, prefer="speed")
    with pytest.raises(InputError, match="moves the threshold of the relational scorer"):
        starfc.cluster(rows, prefer="recall", tau1=0.5)


def two_people_and_a_stray():
    """Return settings and scored edges of two people with 50 faces each, and of a face that is not quite the first."""
    neighbors = np.array([[i // 50 * 50 + (i + step) % 50 for step in range(1, 11)] for i in range(100)] + [range(10)])
    scores = np.full(neighbors.shape, 0.99, np.float32)
    scores[100] = 0.3
    settings = starfc.pipeline.Settings(10, "relational", 0.7, None, partition="refined")
    return settings, ScoredEdges(neighbors.astype(np.int32), scores)


def test_a_face_that_nobody_claims_joins_those_around_it_unless_precision_is_preferred():
    settings, scored = two_people_and_a_stray()
    clusters = starfc.Clusters(np.zeros(101, np.int64), settings, scored)
    assert clusters.rethreshold().labels.tolist() == [0] * 50 + [1] * 50 + [0]
    assert clusters.rethreshold(tau1=0.9).labels.tolist() == [0] * 50 + [1] * 50 + [2]
    assert clusters.rethreshold(partition="mapequation").labels[100] == 2


def test_few_dimensions_are_compared_by_cosine():
    rows, _ = clustered(dim=4)
    assert starfc.cluster(rows).settings.scorer == "cosine"


def test_constraints_are_honoured_and_survive_another_threshold(tmp_path):
    rows, truth = clustered(dim=128, noise=0.4)
    apart = tmp_path / "pairs.csv"
    first, second = np.flatnonzero(truth == 0)[:2]
    apart.write_text(f"cannot,{first},{second}\n")
    clusters = starfc.cluster(rows, constraints=apart)
    assert clusters.labels[first] != clusters.labels[second]
    looser = clusters.rethreshold(tau1=0.3).labels
    assert looser[first] != looser[second]


def test_relational_scores_are_kept(tmp_path):
    rows, _ = clustered(dim=64, noise=0.6)
    first = starfc.cluster(rows, workdir=tmp_path)
    stages = []
    again = starfc.cluster(rows, workdir=tmp_path, progress=lambda stage, *_: stages.append(stage))
    assert "relations" not in stages
    np.testing.assert_array_equal(first.labels, again.labels)
    np.testing.assert_array_equal(first.scored.scores, again.scored.scores)


def test_any_scale_and_type_gives_the_same_labels():
    rows, _ = clustered(noise=0.6)
    labels = starfc.cluster(rows).labels
    for variant in (rows * 1e-20, rows.astype(np.float64) * 1e200, rows.astype(">f4"), np.asfortranarray(rows)):
        np.testing.assert_array_equal(starfc.cluster(variant).labels, labels)


def test_threads_do_not_change_the_bits():
    rows, _ = clustered(n_people=250, noise=0.8)
    model = random_model(32, (16,))
    one, two = (starfc.cluster(rows, model=model, k=20, threads=threads, tau1=0.4) for threads in (1, 2))
    assert one.scored.scores.tobytes() == two.scored.scores.tobytes()
    np.testing.assert_array_equal(one.labels, two.labels)


def test_golden_run():
    """A seeded run whose outcome was recorded; a change here means results change for users."""
    rows, _ = clustered(n_people=60, faces=10, dim=64, noise=0.8, seed=5)
    assert np.bincount(starfc.cluster(rows, k=15).sizes).tolist() == [0] * 10 + [60]
    clusters = starfc.cluster(rows, k=15, scorer="cosine")
    assert clusters.settings.tau1 == pytest.approx(0.6004, abs=1e-3)
    assert np.bincount(clusters.sizes).tolist() == [0, 34, 2, 1, 4, 0, 1, 1, 2, 6, 46]


def test_rethreshold_equals_a_new_run():
    rows, _ = clustered(noise=0.9)
    model = random_model(32, (16,))
    first = starfc.cluster(rows, model=model, k=10)
    for changes in ({"tau1": 0.4}, {"tau2": 0.2, "aggregate": "jaccard"}, {"edges": "mutual", "partition": "dynamic"}):
        again = starfc.cluster(rows, model=model, k=10, **changes)
        np.testing.assert_array_equal(first.rethreshold(**changes).labels, again.labels)
    with pytest.raises(InputError, match="cannot be changed"):
        first.rethreshold(scorer="cosine")
    with pytest.raises(InputError, match="tau3 is no setting"):
        first.rethreshold(tau3=1.0)


def test_only_parsing_and_only_refinement():
    rows, _ = clustered(noise=0.9)
    model = random_model(32, (16,))
    features = Features(rows)
    with limited_threads(2):
        scored = score_edges(features, build_knn(features, k=10), model)
    assert prune_edges(scored, tau1=None, tau2=None).targets.shape == (480 * 10,)
    parsed = prune_edges(scored, tau1=float(np.median(scored.scores)), tau2=None)
    refined = prune_edges(scored, tau1=None, tau2=0.5)
    assert 0 < len(parsed.targets) < 4800 and 0 < len(refined.targets) < 4800


def test_ready_made_graph_gives_the_same_labels(tmp_path):
    rows, _ = clustered(noise=0.6)
    graph = build_knn(Features(rows), k=30)
    save_knn(graph, tmp_path / "graph.npz")
    labels = starfc.cluster(rows, k=20).labels
    np.testing.assert_array_equal(starfc.cluster(rows, k=20, knn_graph=graph).labels, labels)
    np.testing.assert_array_equal(starfc.cluster(rows, k=20, knn_graph=tmp_path / "graph.npz").labels, labels)
    with pytest.raises(InputError, match="more than the 30 neighbours"):
        starfc.cluster(rows, k=31, knn_graph=graph)
    with pytest.raises(InputError, match="480 rows for 100 faces"):
        starfc.cluster(rows[:100], k=20, knn_graph=graph)
    with pytest.raises(InputError, match="of other faces or in another order"):
        starfc.cluster(rows[::-1], k=20, knn_graph=graph)


def test_workdir_is_reused_and_never_mistaken(tmp_path, monkeypatch):
    rows, _ = clustered(noise=0.8)
    model = random_model(32, (16,))
    built = []
    monkeypatch.setattr("starfc.stages.build_knn", lambda *a, **kw: built.append("knn") or build_knn(*a, **kw))
    monkeypatch.setattr("starfc.stages.score_edges", lambda *a, **kw: built.append("score") or score_edges(*a, **kw))

    def run(data=rows, scorer=model, **settings):
        built.clear()
        clusters = starfc.cluster(data, **({"model": scorer, "k": 10, "workdir": tmp_path / "work"} | settings))
        fresh = starfc.cluster(data, **({"model": scorer, "k": 10} | settings))
        np.testing.assert_array_equal(clusters.labels, fresh.labels)
        return built[: len(built) - 2]

    assert run() == ["knn", "score"]
    assert run() == []
    assert run(tau1=0.3, tau2=0.5, aggregate="min") == []  # thresholds do not touch the stored stages
    assert run(scorer=random_model(32, (16,), seed=9)) == ["score"]
    assert run(k=12) == ["knn", "score"]
    assert run(data=rows[::-1].copy()) == ["knn", "score"]
    (tmp_path / "work" / "knn.npz").write_bytes(b"torn")
    assert run(data=rows[::-1].copy()) == ["knn"]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"k": 480}, r"k \(480\) must be smaller than the number of vectors \(480\); pass k=479 or fewer"),
        ({"k": 0}, r"k \(0\) must be at least 1"),
        ({"k": 2.5}, r"k \(2.5\) must be a whole number"),
        ({"seed": -1}, r"seed \(-1\) must be 0 or more"),
        ({"scorer": "gcn"}, "needs a model"),
        ({"scorer": "magic"}, "must be one of"),
        ({"aggregate": "median"}, "must be one of"),
        ({"tau1": 1.5}, r"tau1 \(1.5\) must be between -1 and 1"),
        ({"tau2": -0.1}, r"tau2 \(-0.1\) must be between 0 and 1"),
        ({"threads": 0}, r"threads \(0\) must be at least 1"),
        ({"memory_gb": 0.1}, "need about"),
        ({"model": "nowhere"}, "does not exist"),
    ],
)
def test_settings_that_cannot_be_met_are_named(settings, sentence):
    rows, _ = clustered()
    with pytest.raises((InputError, ModelError), match=sentence):
        starfc.cluster(rows, **settings)


def test_a_model_for_another_dimension_is_refused_before_any_work():
    rows, _ = clustered()
    with pytest.raises(ModelError, match="dimension 16, these have 32"):
        starfc.cluster(rows, model=random_model(16, (4,)))


def test_a_default_k_is_cut_to_what_there_is():
    rows, _ = clustered(n_people=2, faces=3)
    assert starfc.cluster(rows).summary()["k"] == 5
    assert starfc.cluster(rows, model=random_model(32, (4,))).summary()["k"] == 5


def test_scorer_cosine_with_a_model_ignores_its_thresholds():
    rows, truth = clustered(dim=128, noise=0.4)
    clusters = starfc.cluster(rows, model=random_model(128, (4,)), scorer="cosine")
    np.testing.assert_array_equal(clusters.labels, truth)


def test_saves_labels(tmp_path):
    rows, _ = clustered()
    clusters = starfc.cluster(rows)
    clusters.save(tmp_path / "labels.npy")
    saved = np.load(tmp_path / "labels.npy")
    assert saved.dtype == np.int64
    np.testing.assert_array_equal(saved, clusters.labels)


def use_plan(monkeypatch, **changes):
    """Make every run keep to a plan of one's own."""

    def plan(sizes, **settings):
        return replace(plan_memory(sizes, **settings), **changes)

    monkeypatch.setattr("starfc.stages.plan_memory", plan)


def list_below(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


@pytest.mark.parametrize("with_workdir", [True, False])
def test_short_memory_gives_the_same_labels(tmp_path, monkeypatch, with_workdir):
    rows, _ = clustered(n_people=150, noise=0.8)
    np.save(tmp_path / "rows.npy", rows)
    model = random_model(32, (200,))
    expected = starfc.cluster(rows, model=model, k=20, tau1=0.4)
    use_plan(monkeypatch, in_files=True, columns=128, budget_bytes=1, peak_bytes=1, disk_bytes=1)
    said = []
    found = starfc.cluster(
        tmp_path / "rows.npy", model=model, k=20, tau1=0.4, say=said.append, beside=tmp_path / "out.npy",
        workdir=tmp_path / "work" if with_workdir else None,
    )  # fmt: skip
    np.testing.assert_array_equal(found.labels, expected.labels)
    assert found.scored.scores.tobytes() == expected.scored.scores.tobytes()
    assert len(said) == 1 and "128 columns at a time" in said[0] and found.memory["columns"] == 128
    again = found.rethreshold(tau1=0.5)  # the scores are still there
    np.testing.assert_array_equal(again.labels, expected.rethreshold(tau1=0.5).labels)
    kept = ["work", "work/.lock", "work/knn.json", "work/knn.npz", "work/scores.json", "work/scores.npy"]
    assert list_below(tmp_path) == ["rows.npy", *(kept if with_workdir else [])]


@pytest.mark.parametrize("with_workdir", [True, False])
def test_an_error_leaves_no_temporary_folder_and_a_workdir_goes_on(tmp_path, monkeypatch, with_workdir):
    rows, _ = clustered(n_people=150, noise=0.8)
    model = random_model(32, (200,))
    use_plan(monkeypatch, in_files=True, columns=128)
    places = {"beside": tmp_path / "out.npy", "workdir": tmp_path / "work" if with_workdir else None}

    def interrupt(stage, done, total):
        if stage.startswith("score edges 1/") and done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        starfc.cluster(rows, model=model, k=20, tau1=0.4, progress=interrupt, **places)
    assert ("work/scores.parts/facts.json" in list_below(tmp_path)) is with_workdir
    assert with_workdir or list_below(tmp_path) == []
    use_plan(monkeypatch, in_files=True, columns=None)  # another day with more memory goes on with what was begun
    stages = []
    found = starfc.cluster(
        rows, model=model, k=20, tau1=0.4, progress=lambda stage, done, total: stages.append(stage), **places
    )
    assert ("score edges 2/2" in stages) is with_workdir
    assert "project nodes 1/2" in stages or not with_workdir
    np.testing.assert_array_equal(found.labels, starfc.cluster(rows, model=model, k=20, tau1=0.4).labels)
    assert not any("parts" in name for name in list_below(tmp_path))


def test_too_little_disk_is_said_before_any_work(tmp_path, monkeypatch):
    rows, _ = clustered()
    use_plan(monkeypatch, in_files=True, disk_bytes=10**15)
    calls = []
    for workdir in (tmp_path / "work", None):
        with pytest.raises(OutputError, match=r"the run needs about 1000000.0 GB"):
            starfc.cluster(
                rows, model=random_model(32, (8,)), workdir=workdir, progress=lambda *call: calls.append(call)
            )
    assert calls == []


def test_two_runs_in_one_workdir_are_refused(tmp_path):
    rows, _ = clustered()
    with Workdir.open(tmp_path).locked(), pytest.raises(OutputError, match="in use by another run"):
        starfc.cluster(rows, workdir=tmp_path)


def test_a_bad_row_is_named(tmp_path):
    rows, _ = clustered()
    rows[7, 3] = np.nan
    with pytest.raises(InputError, match="first in row 7"):
        starfc.cluster(rows)


def test_files_of_another_model_are_not_gone_on_with(tmp_path, monkeypatch):
    rows, _ = clustered(n_people=150, noise=0.8)
    use_plan(monkeypatch, in_files=True, columns=128)

    def interrupt(stage, done, total):
        if stage.startswith("score edges 1/") and done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        starfc.cluster(rows, model=random_model(32, (200,)), k=20, workdir=tmp_path / "work", progress=interrupt)
    use_plan(monkeypatch, in_files=True, columns=None)
    stages = []
    other = random_model(32, (200,), seed=5)
    found = starfc.cluster(
        rows, model=other, k=20, tau1=0.4, workdir=tmp_path / "work", progress=lambda *call: stages.append(call[0])
    )
    assert "score edges" in stages  # all columns at once, as this run planned
    np.testing.assert_array_equal(found.labels, starfc.cluster(rows, model=other, k=20, tau1=0.4).labels)


@pytest.mark.parametrize("n_people", [2, 3])
def test_a_few_people_who_fill_a_collection_are_told_apart(n_people):
    """Most pairs are of one person: the background of strangers must not be learned from them."""
    rows, people = make_faces(600, people=n_people, dim=128, seed=n_people)
    assert evaluate(starfc.cluster(rows).labels, people).bcubed.f > 0.95


def test_one_person_with_many_faces_among_people_with_few_stays_whole():
    rng = np.random.default_rng(0)
    who = np.concatenate([np.repeat(np.arange(400), 3), np.full(60, 400)])
    faces = rng.normal(size=(401, 128))[who] + 0.7 * rng.normal(size=(len(who), 128))
    clusters = starfc.cluster(faces)
    assert len(set(clusters.labels[who == 400])) == 1
    assert evaluate(who, clusters.labels).bcubed.f > 0.99
