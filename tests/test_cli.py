from __future__ import annotations

import json
import signal
import subprocess
import sys

import click
import numpy as np
import pytest

from starfc import __version__
from starfc.cli import COMMANDS, commands
from starfc.labels import save_labels
from starfc.model import Model, ModelConfig, expected_shapes
from starfc.terminal import ProgressBars


def get_only_json(outcome):
    assert outcome.code == 0, outcome.err
    assert outcome.out.count("\n") == 1
    return json.loads(outcome.out)


def start(*arguments, **options):
    return subprocess.Popen(
        [sys.executable, "-m", "starfc", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


# help


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_help_and_the_common_options(run, name):
    outcome = run(name, "--help")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith(f"Usage: starfc {name}")
    for option in ("--seed", "--threads", "--json", "--debug", "--help"):
        assert option in outcome.out
    assert run(name, "-h").out == outcome.out


def test_the_contracts_commands_and_options():
    assert {"cluster", "train", "evaluate", "knn", "synth", "convert", "import-checkpoint", "demo"} <= set(COMMANDS)
    cluster = commands.get_command(click.Context(commands), "cluster")
    options = {option for parameter in cluster.params for option in parameter.opts}
    assert {
        "-o", "--model", "--k", "--scorer", "--tau1", "--tau2", "--aggregate", "--edges", "--partition", "--knn",
        "--knn-graph", "--workdir", "--memory-gb", "--dim",
    } <= options  # fmt: skip


def test_help_and_version(run):
    assert "cluster" in run("--help").out
    assert __version__ in run("--version").out


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["frobnicate"],
        ["cluster"],
        ["cluster", "x.npy"],
        ["cluster", "x.npy", "-o", "y.npy", "--k", "many"],
        ["cluster", "x.npy", "-o", "y.npy", "--aggregate", "median"],
        ["cluster", "x.npy", "-o", "y.npy", "--threads", "0"],
        ["cluster", "x.npy", "-o", "y.npy", "--recall", "1.5"],
        ["cluster", "x.npy", "-o", "y.npy", "--memory-gb", "nan"],
        ["knn", "x.npy", "-o", "y.npz", "--memory-gb", "inf"],
        ["evaluate", "a.npy", "b.npy", "c.npy"],
        ["evaluate", "a.npy", "b.npy", "--frob"],
    ],
)
def test_wrong_usage(run, arguments):
    outcome = run(*arguments)
    assert outcome.code == 2
    assert outcome.out == ""
    assert "Usage:" in outcome.err


# commands


def test_cluster(run, faces_file, tmp_path):
    for ending in (".npy", ".csv", ".parquet", ".meta"):
        output = tmp_path / f"who{ending}"
        figures = get_only_json(
            run("cluster", faces_file, "-o", output, "--tau1", 0.7, "--k", 12, "--json", "--threads", 1)
        )
        assert (figures["n"], figures["k"], figures["n_clusters"], figures["largest"]) == (60, 12, 6, 10)
        assert figures["n_singletons"] == 0
        assert figures["seconds"]["total"] > 0 and figures["peak_rss_gb"] > 0
        truth = tmp_path / "truth.npy"
        save_labels(np.repeat(np.arange(6), 10), truth)
        scores = get_only_json(run("evaluate", truth, output, "--json"))
        assert scores["pairwise"]["f"] == scores["bcubed"]["f"] == 1


def test_inputs_are_not_written_over(run, faces_file, tmp_path):
    before = faces_file.read_bytes()
    table = tmp_path / "who.csv"
    for options in (["-o", faces_file], ["-o", table, "--details", table]):
        outcome = run("cluster", faces_file, *options)
        assert outcome.code == 1 and outcome.out == ""
        assert "which this run also needs; give another name" in outcome.err
    assert faces_file.read_bytes() == before and not table.exists()


def test_cluster_in_words(run, faces_file, tmp_path):
    outcome = run("cluster", faces_file, "-o", tmp_path / "who.npy")
    assert outcome.code == 0
    assert outcome.out.startswith("60 faces -> ")
    assert outcome.out.count("\n") == 1
    assert "note: edges are scored by the shipped relational model; 59 neighbours" in outcome.err


def test_cluster_with_a_work_folder(run, faces_file, tmp_path):
    arguments = ["cluster", faces_file, "--workdir", tmp_path / "work", "--json", "-o"]
    get_only_json(run(*arguments, tmp_path / "a.npy"))
    assert (tmp_path / "work" / "knn.json").is_file()
    get_only_json(run(*arguments, tmp_path / "b.npy"))
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), np.load(tmp_path / "b.npy"))


def test_cluster_with_a_model_and_a_graph(run, faces_file, tmp_path):
    rng = np.random.default_rng(0)
    tensors = {name: rng.normal(size=shape).astype(np.float32) for name, shape in expected_shapes(32, (4,)).items()}
    Model(ModelConfig(dim=32, hidden=(4,), k=8), tensors).save(tmp_path / "model")
    assert get_only_json(run("knn", faces_file, "-o", tmp_path / "graph.npz", "--k", 8, "--json"))["recall"] == 1
    arguments = ["cluster", faces_file, "--model", tmp_path / "model", "--json"]
    figures = get_only_json(run(*arguments, "-o", tmp_path / "a.npy"))
    assert (figures["scorer"], figures["k"]) == ("gcn", 8)
    get_only_json(run(*arguments, "-o", tmp_path / "b.npy", "--knn-graph", tmp_path / "graph.npz"))
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), np.load(tmp_path / "b.npy"))


def test_knn(run, faces_file, tmp_path):
    figures = get_only_json(run("knn", faces_file, "-o", tmp_path / "g.npz", "--k", 5, "--knn", "exact", "--json"))
    assert figures["n"] == 60 and figures["k"] == 5 and figures["recall"] == 1
    assert {"seconds", "peak_rss_gb"} <= figures.keys()
    with np.load(tmp_path / "g.npz") as graph:
        assert graph["neighbors"].shape == graph["similarities"].shape == (60, 5)
    assert "5 neighbours of 60 faces" in run("knn", faces_file, "-o", tmp_path / "g.npz", "--k", 5).out


def test_evaluate_in_words(run, tmp_path):
    save_labels(np.array([0, 0, 1, -1]), tmp_path / "truth.meta")
    save_labels(np.array([0, 0, -1, 1]), tmp_path / "who.csv")
    outcome = run("evaluate", tmp_path / "truth.meta", tmp_path / "who.csv")
    assert outcome.code == 0
    assert "pairwise" in outcome.out and "bcubed" in outcome.out and "nmi 1.0000" in outcome.out
    assert "1 unlabelled" in outcome.out and "1 unassigned" in outcome.out


def test_synth_and_convert(run, tmp_path):
    prefix = tmp_path / "demo"
    figures = get_only_json(
        run("synth", "-o", prefix, "--faces", 200, "--people", 10, "--dim", 32, "--seed", 3, "--json")
    )
    assert figures["n_faces"] == 200 and figures["n_people"] == 10
    converted = get_only_json(run("convert", f"{prefix}.features.npy", tmp_path / "x.bin", "--json"))
    assert converted == {"kind": "features", "n": 200}
    assert run("convert", tmp_path / "x.bin", tmp_path / "x.fvecs", "--dim", 32).out.startswith("200 rows of features")
    assert get_only_json(run("convert", f"{prefix}.labels.npy", tmp_path / "y.csv", "--json"))["kind"] == "labels"


def test_import_checkpoint(run, tmp_path):
    torch = pytest.importorskip("torch")
    shapes = expected_shapes(6, (4,))
    state = {name: torch.zeros(shape) for name, shape in shapes.items()}
    torch.save({name: tensor for name, tensor in state.items() if name.startswith("conv")}, tmp_path / "backbone.pth")
    torch.save({name: tensor for name, tensor in state.items() if name.startswith("cl")}, tmp_path / "head.pth")
    arguments = ["import-checkpoint", tmp_path / "backbone.pth", tmp_path / "head.pth", "-o", tmp_path / "model"]
    assert get_only_json(run(*arguments, "--json")) == {"dim": 6, "hidden": [4], "k": 80}
    assert (tmp_path / "model" / "config.json").is_file()


# how it ends


def test_debug_shows_where(run, tmp_path):
    outcome = run("evaluate", tmp_path / "a.npy", tmp_path / "b.npy", "--debug")
    assert outcome.code == 1
    assert "Traceback" in outcome.err
    assert outcome.err.splitlines()[-1].startswith("error: ")


def test_a_bug_is_one_sentence_too(run, tmp_path, monkeypatch):
    def fail(*arguments, **options):
        raise TypeError("two\nlines")

    save_labels(np.arange(3), tmp_path / "a.npy")
    monkeypatch.setattr("starfc.metrics.evaluate", fail)
    outcome = run("evaluate", tmp_path / "a.npy", tmp_path / "a.npy")
    assert outcome.code == 1
    assert outcome.err == "error: unexpected TypeError: two lines; run again with --debug and report what it shows\n"


def test_out_of_memory_is_one_sentence(run, tmp_path, monkeypatch):
    def fail(*arguments, **options):
        raise MemoryError

    save_labels(np.arange(3), tmp_path / "a.npy")
    monkeypatch.setattr("starfc.metrics.evaluate", fail)
    outcome = run("evaluate", tmp_path / "a.npy", tmp_path / "a.npy")
    assert (outcome.code, outcome.err.count("\n")) == (1, 1)
    assert outcome.err.startswith("error: out of memory")


_HANG = """
import signal, sys, time, starfc.metrics
from starfc.cli import main

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have started the tests with it ignored

def hang(*labels):
    print("hanging", file=sys.stderr, flush=True)
    time.sleep(60)

starfc.metrics.evaluate = hang
main()
"""


def test_ctrl_c(tmp_path):
    save_labels(np.arange(3), tmp_path / "a.npy")
    command = [sys.executable, "-c", _HANG, "evaluate", tmp_path / "a.npy", tmp_path / "a.npy", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None and process.stderr.readline() == "hanging\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (130, "")
    assert err.strip() == "interrupted; nothing was half-written"


def test_ctrl_c_while_writing(run, faces_file, tmp_path, monkeypatch):
    def interrupt(*arguments):
        raise KeyboardInterrupt

    (tmp_path / "who.csv").write_text("old")
    monkeypatch.setattr("starfc.atomic._flush_to_disk", interrupt)
    outcome = run("cluster", faces_file, "-o", tmp_path / "who.csv", "--tau1", 0.7)
    assert (outcome.code, outcome.out) == (130, "")
    assert (tmp_path / "who.csv").read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "who.csv"]


def test_a_real_process(faces_file, tmp_path):
    process = start("convert", faces_file, tmp_path / "x.fvecs", "--json")
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert json.loads(out) == {"kind": "features", "n": 60}


# terminal


def test_bars_on_a_terminal(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    with ProgressBars() as bars:
        bars.report("knn", 0, 10)
        bars.report("knn", 10, 10)
        bars.say("note: [not markup]")
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "knn" in printed.err and "10/10" in printed.err and "note: [not markup]" in printed.err


def test_lines_in_a_log_file(monkeypatch, capsys):
    monkeypatch.setattr("starfc.terminal._SECONDS_BETWEEN_LINES", -1.0)
    with ProgressBars() as bars:
        bars.report("knn", 3, 10)
    with ProgressBars(quiet=True) as bars:
        bars.report("knn", 4, 10)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == "knn: 3 of 10\n"
