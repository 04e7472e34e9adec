"""The ablations: every part of the paper's method switched off in turn, by one command that can be resumed."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner

from starfc.cli import commands
from starfc.comparison import ablations
from starfc.errors import InputError
from starfc.features import Features
from starfc.metrics import evaluate
from starfc.synth import make_faces


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    """Run the command once; return its folder and what it takes to run it again."""
    folder = tmp_path_factory.mktemp("ablations")
    for name, seed in (("train", 1), ("test", 2)):
        rows, people = make_faces(600, people=30, dim=32, seed=seed)
        np.save(folder / f"{name}.features.npy", rows)
        np.save(folder / f"{name}.labels.npy", people)
    command = ["bench", "ablations", "--features", str(folder / "train.features.npy"), "--k", "20", "--steps", "2"]
    command += ["--test", str(folder / "test.features.npy"), "-o", str(folder / "out")]
    done = CliRunner().invoke(commands, [*command, "--json"], catch_exceptions=False)
    assert done.exit_code == 0 and "sampling" in json.loads(done.stdout)
    return folder / "out", command


def test_every_row_of_the_paper_is_there(bench):
    folder, _ = bench
    text = (folder / "ablations.md").read_text()
    found = json.loads((folder / "ablations.json").read_text())["folds"][0]
    assert set(found["sampling"]) | set(found["pruning"]) >= set(ablations._PAPER)
    for name, figures in ablations._PAPER.items():
        assert any(line.startswith(f"| {name} |") and figures in line for line in text.splitlines())
    assert len(found["surface"]) == len(ablations._TAU1) * len(ablations._TAU2)
    assert all((folder / f"{name}.png").stat().st_size > 5000 for name in ("thresholds", "scores"))


def test_ways_of_pruning_differ_as_they_should(bench):
    """Precision can only fall where less is pruned, whatever the scores."""
    pruning = json.loads((bench[0] / "ablations.json").read_text())["folds"][0]["pruning"]
    assert pruning["NI (max)"] == pruning["parsing and refinement"]
    assert pruning["only parsing"][1] >= pruning["parsing and refinement"][1]
    assert pruning["only refinement"][1] >= pruning["parsing and refinement"][1]
    assert pruning["NI (max)"][1] >= pruning["NI (mean)"][1] >= pruning["NI (min)"][1]


def test_figures_are_those_of_the_metrics():
    truth, labels = np.array([0, 0, 1, 1, 2]), np.array([0, 0, 0, 1, 2])

    class Found:
        def __init__(self):
            self.labels = labels

    scores = evaluate(truth, labels)
    expected = [100 * value for value in (scores.pairwise.precision, scores.pairwise.recall, scores.pairwise.f)]
    assert ablations._measure(truth, Found()) == [*expected, 100 * scores.bcubed.f]


def test_a_finished_training_is_not_done_again(bench):
    folder, _ = bench
    before = json.loads((folder / "ablations.json").read_text())["folds"]
    steps = []
    rows, people = (np.load(folder.parent / f"train.{name}.npy") for name in ("features", "labels"))
    test = tuple(np.load(folder.parent / f"test.{name}.npy") for name in ("features", "labels"))

    def progress(stage, done, total):
        if stage == "train" and done < total:
            steps.append(done)

    options = ablations.Ablation(folder, k=20, steps=2, progress=progress)
    again = ablations.ablate((Features(rows), people), (Features(test[0]), test[1]), options)
    assert json.loads(json.dumps(again)) == before[0]
    assert not steps


def test_one_test_part_only(bench):
    _, command = bench
    with pytest.raises(InputError, match="ablations takes one"):
        CliRunner().invoke(commands, [*command, *command[-4:-2]], catch_exceptions=False, standalone_mode=False)
