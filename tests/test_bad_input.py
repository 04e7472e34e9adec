"""Every bad input gets one sentence on stderr, exit code 1, an empty stdout, and nothing written."""

from __future__ import annotations

import json
import re
import resource
import shutil
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from starfc.labels import save_labels
from starfc.model import Model, ModelConfig, expected_shapes


@pytest.fixture
def folder(tmp_path, faces, faces_file):
    """Inputs in `in`, an empty folder `out`."""
    (tmp_path / "out").mkdir()
    save_labels(np.repeat(np.arange(6), 10), tmp_path / "in" / "labels.npy")
    return tmp_path


@pytest.fixture
def model(folder):
    """Return a model folder for the faces."""
    rng = np.random.default_rng(0)
    tensors = {name: rng.normal(size=shape).astype(np.float32) for name, shape in expected_shapes(32, (4,)).items()}
    Model(ModelConfig(dim=32, hidden=(4,), k=8), tensors).save(folder / "in" / "model")
    return folder / "in" / "model"


def list_files(folder):
    """Return every file's content, and every folder."""
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


@pytest.fixture
def refuse(run, folder):
    """Return a function that runs a command and checks that it is refused; it returns the sentence."""

    def refuse_command(*arguments):
        before = list_files(folder)
        outcome = run(*arguments)
        assert outcome.code == 1, outcome
        assert outcome.out == ""
        said = re.sub(r"^memory: .*\n", "", outcome.err)  # of what fails when the work is done
        assert said.startswith("error: ") and said.endswith("\n")
        assert said.count("\n") == 1
        assert "unexpected" not in outcome.err, outcome.err
        assert list_files(folder) == before
        return outcome.err

    return refuse_command


# files


def write_damaged(path, faces):
    """Write a damaged file, whose name says how, and return the words that its sentence must have."""
    kind, ending = path.stem, path.suffix
    if kind == "missing":
        return "does not exist"
    if kind == "folder":
        path.mkdir()
        return "is a folder"
    if kind == "dangling":
        path.symlink_to(path.parent / "nowhere")
        return "does not exist"
    if kind == "looping":
        path.symlink_to(path)
        return "cannot be read"
    if kind == "empty":
        path.write_bytes(b"")
        return "is empty"
    if kind == "text":
        path.write_text("hello\n" * 5)
        return {".npy": "not a numpy file", ".fvecs": "not a .fvecs file", ".bin": "do not divide"}.get(
            ending, "cannot be read"
        )
    assert kind == "pickled"
    odd = np.array([[{}, {}], [{}, {}]], dtype=object)
    if ending == ".npy":
        np.save(path, odd, allow_pickle=True)
    else:
        np.savez(path, features=odd, allow_pickle=True)
    return "holds pickled Python objects"


DAMAGES = [
    f"{kind}{ending}"
    for kind in ("missing", "folder", "dangling", "looping", "empty", "text")
    for ending in (".npy", ".npz", ".parquet", ".fvecs", ".bin")
] + ["pickled.npy", "pickled.npz"]


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_features(refuse, folder, faces, name):
    words = write_damaged(folder / "in" / name, faces)
    for command in ("cluster", "knn"):
        output = folder / "out" / ("who.npy" if command == "cluster" else "graph.npz")
        sentence = refuse(command, folder / "in" / name, "-o", output, "--dim", 32, "--k", 5)
        assert words in sentence and str(folder / "in" / name) in sentence
    assert words in refuse("convert", folder / "in" / name, folder / "out" / "x.npy", "--dim", 32)
    labels = folder / "in" / "labels.npy"
    assert words in refuse("train", folder / "in" / name, labels, "-o", folder / "out" / "model", "--dim", 32)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("missing.meta", "does not exist"),
        ("missing.npy", "does not exist"),
        ("folder.csv", "is a folder"),
        ("empty.csv", "is empty"),
        ("empty.meta", "is empty"),
        ("text.parquet", "cannot be read"),
        ("text.npy", "not a numpy file"),
        ("pickled.npy", "holds pickled Python objects"),
        ("missing.txt", "ends in '.txt'"),
        ("missing.npz", "ends in '.npz'"),
    ],
)
def test_damaged_labels(refuse, folder, faces, faces_file, name, words):
    write_damaged(folder / "in" / name, faces)
    bad, good = folder / "in" / name, folder / "in" / "labels.npy"
    assert words in refuse("evaluate", good, bad)
    assert words in refuse("evaluate", bad, good)
    assert words in refuse("train", faces_file, bad, "-o", folder / "out" / "model")


@pytest.mark.parametrize("fraction", [0.3, 0.5, 0.99])
@pytest.mark.parametrize("ending", [".npy", ".npz", ".parquet", ".fvecs", ".bin"])
def test_truncated_features(refuse, run, folder, faces_file, ending, fraction):
    path = folder / "in" / f"cut{ending}"
    assert run("convert", faces_file, path).code == 0
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * fraction) // 4 * 4 + 2])
    refuse("cluster", path, "-o", folder / "out" / "who.npy", "--dim", 32)


def test_unreadable_file(refuse, folder, faces_file, monkeypatch):
    def deny(self, *arguments, **options):
        raise PermissionError(13, "Permission denied")

    labels = folder / "in" / "labels.meta"
    save_labels(np.arange(3), labels)
    with monkeypatch.context() as patch:  # root may read everything
        patch.setattr("pathlib.Path.stat", deny)
        patch.setattr("pathlib.Path.is_dir", lambda path: False)
        patch.setattr(f"{__name__}.list_files", lambda folder: None)
        sentence = refuse("evaluate", labels, labels)
    assert "cannot be read; check its permissions" in sentence


@pytest.mark.parametrize("name", ["x.txt", "x", "x.h5", "x.csv"])
def test_unknown_endings(refuse, folder, faces_file, name):
    (folder / "in" / name).write_text("1\n")
    assert "must be one of .npy, .npz" in refuse("cluster", folder / "in" / name, "-o", folder / "out" / "who.npy")
    if name != "x.csv":
        assert "labels are written as one of" in refuse("cluster", faces_file, "-o", folder / "out" / name)
        assert "cannot be written as" in refuse("convert", faces_file, folder / "out" / name)
    assert "written as .npz" in refuse("knn", faces_file, "-o", folder / "out" / name)


# values


def test_bad_rows(refuse, folder, faces):
    for value, words in ((np.nan, "first in row 41"), (np.inf, "first in row 41"), (0, "first in row 41")):
        rows = faces.copy()
        rows[41] = rows[55] = value
        np.save(folder / "in" / "bad.npy", rows)
        assert words in refuse("cluster", folder / "in" / "bad.npy", "-o", folder / "out" / "who.npy")
        assert words in refuse("knn", folder / "in" / "bad.npy", "-o", folder / "out" / "g.npz", "--k", 5)
        model, labels = folder / "out" / "model", folder / "in" / "labels.npy"
        assert words in refuse("train", folder / "in" / "bad.npy", labels, "-o", model, "--steps", 1)


@pytest.mark.parametrize("shape", [(60,), (60, 2, 16), (), (60, 0), (0, 32), (1, 32)])
def test_bad_shapes(refuse, folder, shape):
    np.save(folder / "in" / "odd.npy", np.ones(shape, dtype=np.float32))
    for arguments in (["cluster", "-o", "who.npy"], ["knn", "-o", "g.npz", "--k", 1]):
        refuse(arguments[0], folder / "in" / "odd.npy", "-o", folder / "out" / arguments[2], *arguments[3:])


@pytest.mark.parametrize("dtype", [complex, bool, "U4", "M8[s]", [("a", "f4")]])
def test_bad_types(refuse, folder, dtype):
    np.save(folder / "in" / "odd.npy", np.zeros((60, 4), dtype=dtype))
    assert "must be real numbers" in refuse("cluster", folder / "in" / "odd.npy", "-o", folder / "out" / "who.npy")


@pytest.mark.parametrize("k", [60, 1000, 0, -3])
def test_bad_k(refuse, folder, faces_file, k):
    words = (
        f"k ({k}) must be smaller than the number of vectors (60); pass k=59 or fewer" if k > 0 else f"k ({k}) must be"
    )
    assert words in refuse("cluster", faces_file, "-o", folder / "out" / "who.npy", "--k", k)
    assert words in refuse("knn", faces_file, "-o", folder / "out" / "g.npz", "--k", k)


def test_the_default_k_is_cut_to_what_there_is(run, folder, faces):
    np.save(folder / "in" / "two.npy", faces[:2])
    assert run("cluster", folder / "in" / "two.npy", "-o", folder / "out" / "who.npy").code == 0


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--tau1", 1.5, "tau1 (1.5) must be between"),
        ("--tau2", -0.1, "tau2 (-0.1) must be between"),
        ("--tau1", "nan", "tau1 (nan) must be between"),
        ("--memory-gb", 0.001, "more than memory_gb"),
        ("--scorer", "gcn", "needs a model"),
    ],
)
def test_bad_settings(refuse, folder, faces_file, option, value, words):
    assert words in refuse("cluster", faces_file, "-o", folder / "out" / "who.npy", option, value)


def test_bin_of_another_size(refuse, folder, faces):
    faces[:, :31].tofile(folder / "in" / "x.bin")
    output = folder / "out" / "who.npy"
    assert "do not divide by dim (32)" in refuse("cluster", folder / "in" / "x.bin", "-o", output, "--dim", 32)
    assert "pass --dim" in refuse("cluster", folder / "in" / "x.bin", "-o", output)
    assert "dim (0) must be at least 1" in refuse("cluster", folder / "in" / "x.bin", "-o", output, "--dim", 0)
    assert "pass --dim" in refuse("convert", folder / "in" / "x.bin", output)


def test_labels_of_another_length(refuse, folder, faces_file):
    save_labels(np.arange(59), folder / "in" / "short.meta")
    labels, short = folder / "in" / "labels.npy", folder / "in" / "short.meta"
    assert "59 labels for 60 faces" in refuse("evaluate", labels, short)
    assert "60 labels for 59 faces" in refuse("evaluate", short, labels)
    assert "59 labels for 60 faces" in refuse("train", faces_file, short, "-o", folder / "out" / "model")


@pytest.mark.parametrize("labels", [[[0, 1], [2, 3]], [0.5, 1.5], [-7, 0], [1j, 2]])
def test_bad_labels(refuse, folder, labels):
    np.save(folder / "in" / "odd.npy", np.array(labels))
    refuse("evaluate", folder / "in" / "odd.npy", folder / "in" / "odd.npy")


def test_bad_graphs(refuse, run, folder, faces_file):
    graph = folder / "in" / "graph.npz"
    arguments = ["cluster", faces_file, "-o", folder / "out" / "who.npy", "--knn-graph", graph]
    assert "does not exist" in refuse(*arguments)
    graph.write_text("no zip")
    assert "cannot be read" in refuse(*arguments)
    np.savez(graph, neighbors=np.zeros((9, 2), dtype=np.int32), similarities=np.zeros((9, 2), dtype=np.float32))
    refuse(*arguments)
    np.savez(graph, frob=np.zeros(3))
    refuse(*arguments)
    np.savez(graph, neighbors=np.full((60, 1), None), similarities=np.zeros((60, 1)))
    assert "pickled" in refuse(*arguments)


# models


def test_a_model_of_another_dimension(refuse, folder, model, faces):
    np.save(folder / "in" / "wide.npy", np.concatenate([faces, faces], axis=1))
    sentence = refuse("cluster", folder / "in" / "wide.npy", "-o", folder / "out" / "who.npy", "--model", model)
    assert "dimension 32, these have 64" in sentence


@pytest.mark.parametrize(
    "damage",
    [
        "missing", "file", "empty", "no config", "no weights", "cut weights", "empty weights", "foreign weights",
        "cut config", "foreign config", "list config", "newer", "no k", "odd k", "other dim", "no layers", "odd layers",
        "odd scorer", "odd tau", "odd aggregate", "weights folder",
    ],
)  # fmt: skip
def test_a_damaged_model(refuse, folder, model, faces_file, damage):
    config, weights = model / "config.json", model / "model.safetensors"
    content = json.loads(config.read_text())
    changes: dict[str, dict[str, object]] = {
        "foreign config": {"format": "bert"},
        "newer": {"format_version": 99},
        "odd k": {"k": "many"},
        "other dim": {"dim": 31},
        "no layers": {"hidden": []},
        "odd layers": {"hidden": 4},
        "odd scorer": {"scorer": "magic"},
        "odd tau": {"tau_1": 7},
        "odd aggregate": {"aggregate": "median"},
    }
    if damage in changes:
        config.write_text(json.dumps(content | changes[damage]))
    elif damage in ("missing", "file", "empty"):
        shutil.rmtree(model)
        if damage == "file":
            model.write_text("x")
        elif damage == "empty":
            model.mkdir()
    elif damage.endswith("config"):
        broken = {"no config": None, "cut config": config.read_text()[:30], "list config": "[1, 2]"}[damage]
        config.unlink() if broken is None else config.write_text(broken)
    elif damage == "no k":
        del content["k"]
        config.write_text(json.dumps(content))
    else:
        whole = weights.read_bytes()
        weights.unlink()
        if damage == "weights folder":
            weights.mkdir()
        elif damage != "no weights":
            cut = {"cut weights": whole[:-20], "empty weights": b"", "foreign weights": b"PK\x03\x04" + bytes(100)}
            weights.write_bytes(cut[damage])
    refuse("cluster", faces_file, "-o", folder / "out" / "who.npy", "--model", model)


@pytest.mark.parametrize("damage", ["missing", "text", "empty", "pickled", "foreign", "folder"])
def test_a_damaged_checkpoint(refuse, folder, damage):
    torch = pytest.importorskip("torch")
    backbone, head = folder / "in" / "backbone.pth", folder / "in" / "head.pth"
    torch.save({"classifier.0.weight": torch.zeros(4, 8)}, head)
    if damage == "text":
        backbone.write_text("hello")
    elif damage == "empty":
        backbone.write_text("")
    elif damage == "pickled":
        torch.save({"x": pathlike_object()}, backbone)
    elif damage == "foreign":
        torch.save({"conv1.weight": torch.zeros(3)}, backbone)
    elif damage == "folder":
        backbone.mkdir()
    refuse("import-checkpoint", backbone, head, "-o", folder / "out" / "model")


def pathlike_object():
    return Model  # a class of ours: weights_only refuses to load it


# outputs


@pytest.mark.parametrize("command", ["cluster", "knn", "convert", "synth", "train", "import-checkpoint"])
def test_unwritable_outputs(refuse, folder, faces_file, command, monkeypatch):
    ending = {"knn": ".npz", "synth": "", "train": "", "import-checkpoint": ""}.get(command, ".npy")
    inputs = {
        "synth": [], "train": [faces_file, folder / "in" / "labels.npy"], "import-checkpoint": [faces_file, faces_file]
    }.get(command, [faces_file])  # fmt: skip

    def write_to(output):
        return refuse(command, *inputs, *(["-o"] if command != "convert" else []), output)

    assert "does not exist; create it" in write_to(folder / "nowhere" / f"x{ending}")
    assert "does not exist; create it" in write_to(faces_file / f"x{ending}")
    taken = folder / "out" / f"taken{ending}"
    if command in ("train", "import-checkpoint"):
        taken.write_text("mine")
        assert "is a file; give a folder name" in write_to(taken)
        assert "holds other files than a model" in write_to(folder / "in")
    else:
        (folder / "out" / "taken.features.npy" if command == "synth" else taken).mkdir()
        assert "is a folder; give a file name" in write_to(taken)
    monkeypatch.setattr("starfc.atomic.os.access", lambda path, mode: False)  # root may write everywhere
    assert "is not writable" in write_to(folder / "out" / f"x{ending}")


@pytest.mark.parametrize("ending", [".npy", ".csv", ".meta", ".parquet"])
def test_an_old_output_survives_a_failed_run(refuse, run, folder, faces_file, faces, ending):
    output = folder / "out" / f"who{ending}"
    assert run("cluster", faces_file, "-o", output).code == 0
    faces[3, 3] = np.nan
    np.save(faces_file, faces)
    refuse("cluster", faces_file, "-o", output)


def test_a_work_folder_that_is_a_file(refuse, folder, faces_file):
    output = folder / "out" / "who.npy"
    assert "--workdir" in refuse("cluster", faces_file, "-o", output, "--workdir", faces_file)


@pytest.fixture
def tiny_disk(folder):
    """Return a disk of 64 KiB with an old output on it."""
    disk = folder / "disk"
    disk.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk], capture_output=True)
    if made.returncode:
        pytest.skip("only root can mount a small disk")
    yield disk
    subprocess.run(["umount", disk], check=True)


@pytest.fixture
def many_faces(folder):
    np.save(folder / "in" / "many.npy", np.random.default_rng(0).normal(size=(10_000, 4)).astype(np.float32))
    save_labels(np.arange(20_000), folder / "in" / "many_labels.npy")
    return folder / "in" / "many.npy"


@pytest.mark.parametrize("ending", [".npy", ".npz", ".parquet", ".fvecs", ".bin"])
def test_a_full_disk_while_converting_features(refuse, tiny_disk, many_faces, ending):
    (tiny_disk / f"x{ending}").write_text("old")
    assert "No space left on device; nothing was changed" in refuse("convert", many_faces, tiny_disk / f"x{ending}")


@pytest.mark.parametrize("ending", [".npy", ".csv", ".meta", ".parquet"])
def test_a_full_disk_while_writing_labels(refuse, tiny_disk, many_faces, folder, ending):
    (tiny_disk / f"x{ending}").write_text("old")
    source = folder / "in" / "many_labels.npy"
    assert "No space left on device; nothing was changed" in refuse("convert", source, tiny_disk / f"x{ending}")


def test_a_full_disk_in_other_commands(refuse, tiny_disk, many_faces, folder):
    full = "No space left on device; nothing was changed"
    assert full in refuse("cluster", many_faces, "-o", tiny_disk / "who.npy", "--k", 2, "--tau1", 0.9)
    assert full in refuse("knn", many_faces, "-o", tiny_disk / "g.npz", "--k", 2)
    assert full in refuse("synth", "-o", tiny_disk / "s", "--faces", 2000, "--dim", 32)


def test_a_full_disk_while_importing(refuse, tiny_disk, folder):
    torch = pytest.importorskip("torch")
    for name, start in (("backbone.pth", "conv"), ("head.pth", "cl")):
        shapes = expected_shapes(64, (128,)).items()
        torch.save({key: torch.zeros(shape) for key, shape in shapes if key.startswith(start)}, folder / "in" / name)
    files = folder / "in" / "backbone.pth", folder / "in" / "head.pth"
    assert "No space left on device" in refuse("import-checkpoint", *files, "-o", tiny_disk / "model")


@pytest.mark.parametrize("ending", [".npy", ".parquet"])
def test_a_file_size_limit(many_faces, folder, ending):
    output = folder / "out" / f"x{ending}"
    output.write_text("old")
    made = subprocess.run(
        [sys.executable, "-m", "starfc.cli", "convert", many_faces, output],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000)),
        capture_output=True,
        text=True,
    )
    assert (made.returncode, made.stdout) == (1, "")
    assert made.stderr.startswith("error: cannot write") and made.stderr.count("\n") == 1
    assert "nothing was changed" in made.stderr
    assert list_files(folder / "out") == {output: b"old"}


def test_real_processes(folder, faces_file):
    for arguments in (
        ["cluster", folder / "none.npy", "-o", folder / "out" / "who.npy"],
        ["cluster", faces_file, "-o", folder / "none" / "who.npy", "--json"],
    ):
        made = subprocess.run([sys.executable, "-m", "starfc.cli", *arguments], capture_output=True, text=True)
        assert (made.returncode, made.stdout) == (1, "")
        assert made.stderr.startswith("error: ") and made.stderr.count("\n") == 1
    assert list_files(folder / "out") == {}


def test_parquet_with_two_list_columns(refuse, folder):
    pq.write_table(pa.table({"a": [[1.0]], "b": [[2.0]]}), folder / "in" / "x.parquet")
    assert "name the one to read 'features'" in refuse(
        "cluster", folder / "in" / "x.parquet", "-o", folder / "out" / "who.npy"
    )
