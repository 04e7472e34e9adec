"""The benchmark: files of the field's layout, limits, tuning, jobs, resuming, tables and the command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from starfc.baselines import METHODS
from starfc.comparison import job, tune
from starfc.comparison.limits import measure_rss_gb, run_limited
from starfc.comparison.parts import Part, find_part, take_people
from starfc.comparison.run import Bench, Options, Row, describe_row
from starfc.comparison.tables import format_grid, format_table, save_tables
from starfc.errors import InputError, OutputError
from starfc.features import Features
from starfc.knn import build_knn
from starfc.synth import make_faces

N_FACES, DIM, K = 300, 48, 20


def write_field_part(root, name, seed):
    """Write a part as the field does: headerless features, labels by line, the kNN graph with distances."""
    rows, people = make_faces(N_FACES, people=15, dim=DIM, seed=seed)
    for folder in ("features", "labels", f"knns/{name}"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    rows.astype("<f4").tofile(root / "features" / f"{name}.bin")
    (root / "labels" / f"{name}.meta").write_text("".join(f"{person}\n" for person in people))
    graph = build_knn(Features(rows), k=K - 1)
    own = np.arange(N_FACES)[:, None]
    ids, distances = np.hstack([own, graph.neighbors]), np.hstack([0.0 * own, 1 - graph.similarities])
    np.savez(root / "knns" / name / f"faiss_k_{K}.npz", data=np.stack([ids, distances], axis=1).astype(np.float32))
    return root / "features" / f"{name}.bin"


@pytest.fixture(scope="module")
def field(tmp_path_factory):
    """Return the folder of two parts in the field's layout."""
    root = tmp_path_factory.mktemp("field")
    write_field_part(root, "part0_train", 1)
    write_field_part(root, "part1_test", 2)
    return root


@pytest.fixture
def parts(field):
    """Return the training and the test part."""
    return [find_part(field / "features" / f"{name}.bin") for name in ("part0_train", "part1_test")]


# parts


def test_the_fields_layout_is_read_as_it_is(parts):
    features, labels = parts[1].read()
    assert (len(features), features.dim, len(labels)) == (N_FACES, DIM, N_FACES)
    graph = parts[1].read_graph(10)
    assert graph.neighbors.shape == (N_FACES, 10)
    assert np.array_equal(graph.neighbors, build_knn(features, k=10).neighbors)
    assert parts[1].name == "part1_test" and parts[1].in_field_layout


def test_files_of_the_published_size_are_mapped(tmp_path):
    n, dim = 584_013, 256
    for folder in ("features", "labels"):
        (tmp_path / folder).mkdir()
    path = tmp_path / "features" / "part1_test.bin"
    with path.open("wb") as file:
        os.truncate(file.fileno(), n * dim * 4)  # sparse: takes no room
    (tmp_path / "labels" / "part1_test.meta").write_text("7\n" * n)
    features, labels = find_part(path).read()
    assert (len(features), features.dim, len(labels)) == (n, dim, n)
    assert isinstance(features.raw, np.memmap) and find_part(path).knn is None


@pytest.mark.parametrize(
    ("file", "name"),
    [("a.features.npy", "a"), ("a-0.25.features.npy", "a-0.25"), ("part1_test.bin", "part1_test"), ("b.c.npy", "b.c")],
)
def test_parts_are_named_by_all_but_the_ending(tmp_path, file, name):
    assert Part(tmp_path / file, tmp_path / "labels").name == name


def test_a_graph_of_other_faces_is_refused(parts):
    labels = parts[1].labels.with_name("fewer.meta")
    labels.write_text("1\n" * 7)
    with pytest.raises(InputError, match="is a graph of 300 faces, the features are 7"):
        replace(parts[1], labels=labels).read_graph(5)


def test_what_is_missing_is_named(tmp_path, faces_file):
    with pytest.raises(InputError, match="does not exist"):
        find_part(tmp_path / "nothing.npy")
    with pytest.raises(InputError, match="pass them with --labels"):
        find_part(faces_file)
    with pytest.raises(InputError, match="no kNN graph"):
        Part(faces_file, faces_file).read_graph(3)
    (tmp_path / "labels.meta").write_text("1\n" * 59)
    with pytest.raises(InputError, match="59 labels for the 60 faces"):
        find_part(faces_file, labels=tmp_path / "labels.meta").read()
    (tmp_path / "odd.bin").write_bytes(b"x" * 10)
    with pytest.raises(InputError, match="do not divide by 59 labels"):
        find_part(tmp_path / "odd.bin", labels=tmp_path / "labels.meta").read()


def test_smaller_parts_are_nested(parts, tmp_path):
    half = take_people(parts[0], tmp_path / "half", share=0.5, seed=3)
    few = take_people(parts[0], tmp_path / "few", faces=30, seed=3)
    people = [set(part.read()[1].tolist()) for part in (few, half, parts[0])]
    assert people[0] < people[1] < people[2] and len(few.read()[1]) >= 30


# limits


def run_python(code, tmp_path, **limits):
    return run_limited([sys.executable, "-c", code], log=tmp_path / "log", **{"time_s": 60, "memory_gb": 4} | limits)


def test_a_process_that_is_too_large_is_ended(tmp_path):
    ending = run_python("import time\nx = bytearray(400_000_000)\ntime.sleep(60)", tmp_path, memory_gb=0.2)
    assert ending.reason == "over the memory limit of 0.2 GB" and 0.2 < ending.peak_rss_gb < 1


def test_a_process_that_fails_says_why(tmp_path):
    assert run_python("raise ValueError('no such thing')", tmp_path).reason == "failed: ValueError: no such thing"
    assert run_python("import sys; sys.exit(3)", tmp_path).reason == "failed: exit code 3"
    assert "SIGKILL" in run_python("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", tmp_path).reason
    assert measure_rss_gb(2**30) == 0


def test_progress_is_passed_on(tmp_path):
    seen = []
    lines = ("import json, time", "for i in range(3): print(json.dumps(['work', i, 2]), flush=True)", "print('noise')")
    code = "\n".join([*lines, "time.sleep(0.5)"])
    run_python(code, tmp_path, progress=lambda *report: seen.append(report))
    assert seen == [("work", 0, 2), ("work", 1, 2), ("work", 2, 2)]


# tuning


def test_tuning_takes_the_best_of_the_grid(parts):
    features, labels = parts[0].read()
    graph = parts[0].read_graph(K)
    chosen = tune.tune_method(METHODS["cdp"], features, graph, labels)
    assert chosen in METHODS["cdp"].load().GRID
    best = METHODS["cdp"].load().cluster_faces(features, graph, **chosen)
    published = METHODS["cdp"].load().cluster_faces(features, graph)
    everybody = np.ones(len(labels), dtype=bool)
    score = lambda found: sum(tune.score_faces(labels, found, everybody))  # noqa: E731
    assert score(best) >= score(published)


def test_a_large_collection_is_tuned_on_near_people(parts, monkeypatch):
    monkeypatch.setattr(tune, "_MOST_FACES", 120)
    features, labels = parts[0].read()
    people = tune._gather_people(features, parts[0].read_graph(K), labels, 0)
    assert 40 < len(people.labels) < 250 and people.judged.all()


def test_a_trained_method_is_tuned_on_people_it_has_not_seen(parts):
    pytest.importorskip("torch")
    features, labels = parts[0].read()
    method = METHODS["gcn-v"]
    model, chosen = tune.train_tuned(method, features, parts[0].read_graph(K), labels, steps=3)
    assert chosen in method.load().GRID and model.facts == {"width": 512}


def test_nobody_to_tune_on_is_an_error(parts):
    pytest.importorskip("torch")
    features, _ = parts[0].read()
    with pytest.raises(InputError, match="held out"):
        tune.train_tuned(METHODS["gcn-v"], features, parts[0].read_graph(K), np.arange(N_FACES), steps=1)


# jobs


def make_spec(part, **asked):
    common = {"features": str(part.features), "labels": str(part.labels), "knn": str(part.knn), "dim": None}
    return common | {"k": K, "seed": 0, "threads": 1, "settings": {}, "model": None} | asked


def test_jobs_of_every_kind(parts, tmp_path, monkeypatch, capsys):
    pytest.importorskip("torch")
    graph = tmp_path / "graph.npz"
    assert job.run_job(make_spec(parts[0], kind="knn", output=str(graph)))["seconds"] > 0 and graph.is_file()
    assert job.run_job(make_spec(parts[0], kind="tune", method="hac"))["settings"]["threshold"] > 0
    weights = str(tmp_path / "w.safetensors")
    asked = {"kind": "train", "method": "gcn-v", "steps": 2, "tune": False, "output": weights}
    assert job.run_job(make_spec(parts[0], **asked))["settings"] == {}
    found = job.run_job(make_spec(parts[1], kind="cluster", method="gcn-v", model=weights))
    assert 0 <= found["pairwise"]["f"] <= 1 and found["n_singletons"] <= found["n_clusters"]
    spec, answer = tmp_path / "spec", tmp_path / "answer"
    spec.write_text(json.dumps(make_spec(replace(parts[1], knn=None), kind="cluster", method="hac") | {"knn": None}))
    monkeypatch.setattr(sys, "argv", ["job", str(spec), str(answer)])
    job.main()
    assert "no kNN graph" in json.loads(answer.read_text())["status"]
    assert '["train", 2, 2]' in capsys.readouterr().out


def test_a_benchmark_goes_on_where_it_was_stopped(parts, tmp_path, monkeypatch):
    said = []
    bench = Bench(tmp_path / "out", Options(k=K, threads=1), say=said.append)
    methods = [METHODS["cdp"]]
    (row,) = bench.run(methods, parts[:1], parts[1:])
    assert row.status == "done" and row.figures["n_true"] == 15 and row.peak_rss_gb > 0 and "CDP" in said[-1]
    monkeypatch.setattr("starfc.comparison.run.run_limited", lambda *a, **k: pytest.fail("was done already"))
    assert Bench(tmp_path / "out", Options(k=K, threads=1)).run(methods, parts[:1], parts[1:]) == [row]


def test_what_a_kept_result_depends_on_is_looked_at(parts, tmp_path, monkeypatch):
    """Another graph, or a model that is gone: the job is done again."""
    started = []

    def start(self, name, spec):
        started.append(name)
        if "output" in spec:
            Path(spec["output"]).touch()
        return {"status": "failed: not here"} if spec["kind"] == "cluster" else {"status": "done", "seconds": 1.0}

    monkeypatch.setattr(Bench, "_start_job", start)
    method = METHODS["gcn-v"]

    def run():
        started.clear()
        bench = Bench(tmp_path, Options())
        bench._learn(method, parts[0])
        return list(started)

    assert [run(), run()] == [["train-gcn-v-part0_train"], []]
    (tmp_path / "models" / "train-gcn-v-part0_train.safetensors").unlink()
    assert len(run()) == 1
    os.utime(parts[0].knn)
    assert len(run()) == 1 and run() == []


def test_a_graph_that_cannot_be_built_is_a_row_that_says_so(parts, tmp_path, monkeypatch):
    monkeypatch.setattr(Bench, "_start_job", lambda self, name, spec: {"status": "over 1 GB", "peak_rss_gb": 1.0})
    trained, plain = (METHODS[name] for name in ("gcn-v", "dbscan"))
    bare = [replace(part, knn=None) for part in parts]
    rows = Bench(tmp_path, Options()).run([trained, plain], bare[:1], bare[1:])
    assert rows[0].status == "training without kNN graph of part0_train over 1 GB"
    assert rows[1].status == "kNN graph of part1_test over 1 GB"


def test_parts_of_one_name_are_refused(parts, tmp_path):
    folder = tmp_path / "features"
    folder.mkdir()
    other = replace(parts[1], features=folder / parts[0].features.name)
    with pytest.raises(InputError, match="are both named 'part0_train'"):
        Bench(tmp_path, Options()).run([], [parts[0]], [other])


def test_one_file_with_two_sets_of_labels_is_refused(parts, tmp_path):
    """It would be trained on the labels of the test."""
    with pytest.raises(InputError, match="was given with the labels of"):
        Bench(tmp_path, Options()).run([], [replace(parts[0], labels=parts[1].labels)], [parts[0]])


def test_features_of_two_widths_are_refused(parts, tmp_path):
    """Half of the labels of a headerless file look like faces of twice as many numbers."""
    half = tmp_path / "half.meta"
    half.write_text("".join(f"{i}\n" for i in range(N_FACES // 2)))
    with pytest.raises(InputError, match=f"has {DIM} numbers per face and .* has {2 * DIM}"):
        Bench(tmp_path, Options()).run([], [parts[0]], [replace(parts[1], labels=half)])


def test_the_table_grows_row_by_row(parts, tmp_path, monkeypatch):
    monkeypatch.setattr(Bench, "_start_job", lambda self, name, spec: {"status": "over 1 GB", "peak_rss_gb": 1.0})
    lengths, said = [], []
    bench = Bench(tmp_path, Options(), say=said.append)
    bench.run([METHODS["cdp"], METHODS["aro"]], parts[:1], parts[:1], after_row=lambda rows: lengths.append(len(rows)))
    assert lengths == [1, 2]
    assert "note: methods are trained and tested on the same faces" in said


def test_a_job_ends_with_whoever_started_it(tmp_path):
    """A killed benchmark leaves nobody behind who works without limits."""
    code = "import time; from starfc.comparison.job import _end_with_parent as end; end(); print('on', flush=True)"
    code += "; time.sleep(60)"
    start = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {code!r}]).wait()"
    with subprocess.Popen([sys.executable, "-c", start], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout.readline() == "on\n"
        parent.kill()
        started = time.monotonic()
        assert parent.stdout.read() == ""  # until the last one who may write is gone
        assert time.monotonic() - started < 30


def test_a_method_over_a_limit_is_a_row_that_says_so(parts, tmp_path):
    options = Options(k=K, threads=1, time_s=0.05, tune=True)
    bench = Bench(tmp_path / "out", options)
    rows = bench.run([METHODS["fc-es"], METHODS["gcn-v"]], parts[:1], parts[1:])
    assert [row.status for row in rows] == [
        f"{learning} over the time limit of 0.05 s" for learning in ("tuning", "training")
    ]
    assert "over the time limit" in describe_row(rows[0]) and "over the time limit" in format_table(rows)
    kept = json.loads((tmp_path / "out" / "jobs" / "train-gcn-v-part0_train.json").read_text())
    stamp = kept["result"]["peak_rss_gb"]
    again = bench.run([METHODS["gcn-v"]], parts[:1], parts[1:])  # the same limit: not tried again
    assert again[0].peak_rss_gb == stamp


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="cannot be made"):
        Bench(tmp_path / "file", Options())


# tables


def make_row(**changes):
    score = {"precision": 0.5, "recall": 1.0, "f": 2 / 3}
    figures = {
        "pairwise": score, "bcubed": score, "nmi": 0.75, "n_clusters": 1200, "n_true": 2, "n_singletons": 1,
        "largest": 9,
    }  # fmt: skip
    row = Row(
        "cdp", "CDP", False, "a", "b", 10, 20, "done", figures, {"threshold": 0.5}, None, 1.25, 0.5, (75.01, None),
        cpu_s=2.5,
    )  # fmt: skip
    return replace(row, **changes)


def test_tables_hold_everything(tmp_path):
    rows = [
        make_row(),
        make_row(method="lgcn", title="L-GCN", status="failed: x", figures={}, seconds=None, paper=None),
    ]
    text = save_tables(tmp_path, "table", rows, Options(), "starfc bench table")
    assert "| CDP | no | 50.00 | 100.00 | 66.67 |" in text and "| 1,200 | 1 |  | 1.2 | 2.5 | 0.50 | 75.01 / - |" in text
    assert text.count("|---") == text.splitlines()[2].count("| ") and "failed: x" in text
    assert json.loads((tmp_path / "table.json").read_text())["rows"][0]["settings"] == {"threshold": 0.5}
    lines = (tmp_path / "table.csv").read_text().splitlines()
    assert len(lines) == 3 and "0.6666666666666666" in lines[1]


def test_growth_has_a_column_for_each_size(tmp_path):
    pytest.importorskip("matplotlib")
    from starfc.comparison.plots import draw_growth

    rows = [
        make_row(test="b", n_test=20),
        make_row(test="c", n_test=2000, status="failed: x"),
        make_row(test="d", n_test=300),
    ]
    assert format_grid(rows, column="test").splitlines()[0] == "| method | 20 faces | 2,000 faces | 300 faces |"
    draw_growth(rows, tmp_path / "a.png", against="n_test")
    draw_growth(rows, tmp_path / "b.png", against="n_train")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


# the command


def test_bench_table(run, field, tmp_path):
    part = field / "features"
    asked = [
        "--features",
        part / "part0_train.bin",
        "--test",
        part / "part1_test.bin",
        "-o",
        tmp_path / "out",
        "--threads",
        1,
    ]
    outcome = run("bench", "table", *asked, "--methods", "dbscan", "--k", K, "--json")
    assert outcome.code == 0, outcome.err
    (row,) = json.loads(outcome.out)["rows"]
    assert row["status"] == "done" and row["test"] == "part1_test"
    assert {"table.md", "table.csv", "table.json"} <= {path.name for path in (tmp_path / "out").iterdir()}


def test_bench_scale_and_train_size_cut_parts(run, field, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    asked = []

    def pretend(self, methods, trains, tests, after_row):
        asked.append(([len(part.read()[1]) for part in trains], [len(part.read()[1]) for part in tests]))
        return [make_row()]

    monkeypatch.setattr(Bench, "run", pretend)
    part = field / "features"
    common = ["--features", part / "part0_train.bin", "--test", part / "part1_test.bin", "-o", tmp_path / "out"]
    for _ in range(2):  # the second time the parts are there
        assert run("bench", "scale", *common, "--sizes", "50,150").code == 0
    assert run("bench", "train-size", *common, "--shares", "0.2,1").code == 0
    (_, sizes), _, (shares, _) = asked
    assert 50 <= sizes[0] < 150 <= sizes[1] and shares[0] < shares[1] == N_FACES
    assert (tmp_path / "out" / "scale.png").is_file() and (tmp_path / "out" / "train-size.md").is_file()


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--methods", "magic"], "magic"),
        (["--test", "TEST"], "takes one"),
        (["--test-labels", "TEST", "--test-labels", "TEST"], "give one for each"),
    ],
)
def test_bench_refuses(run, field, tmp_path, extra, message):
    part = field / "features"
    test = part / "part1_test.bin"
    extra = [str(test) if value == "TEST" else value for value in extra]
    outcome = run(
        "bench", "table", "--features", part / "part0_train.bin", "--test", test, "-o", tmp_path / "o", *extra
    )
    assert outcome.code == 1 and message in outcome.err


@pytest.mark.parametrize(("name", "option"), [("scale", "--sizes"), ("train-size", "--shares")])
@pytest.mark.parametrize("value", ["many", "0", "-1", ""])
def test_bench_refuses_sizes_that_are_none(run, field, tmp_path, name, option, value):
    part = field / "features"
    common = ["--features", part / "part0_train.bin", "--test", part / "part1_test.bin", "-o", tmp_path / "o"]
    outcome = run("bench", name, *common, option, value)
    assert outcome.code == 1 and option in outcome.err
