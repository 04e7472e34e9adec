import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

torch = pytest.importorskip("torch")

from starfc.errors import InputError  # noqa: E402
from starfc.features import Features  # noqa: E402
from starfc.heldout import HeldOut  # noqa: E402
from starfc.knn import join_rows  # noqa: E402
from starfc.model import load_model  # noqa: E402
from starfc.people import link_people  # noqa: E402
from starfc.sampling import PLANS, SamplingPlan  # noqa: E402
from starfc.score import score_edges  # noqa: E402
from starfc.synth import make_faces  # noqa: E402
from starfc.training import PRESETS, TrainingReport, train  # noqa: E402


@pytest.fixture(scope="module")
def faces():
    return make_faces(1500, people=60, dim=24, seed=1)


def run_small(faces, **changes):
    return train(*faces, **({"preset": "gcn", "steps": 6, "hidden": (16,), "threads": 1} | changes))


def assert_same_weights(model, other):
    assert model.tensors.keys() == other.tensors.keys()
    for name, tensor in model.tensors.items():
        assert np.array_equal(tensor, other.tensors[name]), name


@pytest.mark.parametrize("preset", ["gcn", "paper"])
def test_same_seed_same_weights_and_facts(faces, preset):
    first, again = (run_small(faces, preset=preset) for _ in range(2))
    assert_same_weights(first, again)
    facts = first.config.training
    assert (facts["preset"], facts["steps"], facts["seed"]) == (preset, 6, 0)
    assert (facts["n_faces"], facts["n_people"], facts["n_unlabelled"]) == (1500, 60, 0)
    assert facts["n_held_out_people"] == 6
    assert 0 < facts["loss"] < 2
    assert 0 <= facts["pairwise_f"] <= 1
    assert set(facts["versions"]) == {"starfc", "torch", "numpy"}
    assert [entry["step"] for entry in facts["history"]] == [1, 2, 3, 4, 5, 6]
    json.dumps(facts)
    other = run_small(faces, preset=preset, seed=1)
    assert not np.array_equal(first.tensors["conv1.weight"], other.tensors["conv1.weight"])


def test_paper_preset_has_the_published_settings(faces):
    preset = PRESETS["paper"]
    assert preset.plan == PLANS["ms1m"]
    assert (preset.optimizer, preset.learning_rate, preset.weight_decay) == ("sgd", 0.01, 1e-5)
    config = run_small(faces, preset="paper", steps=1).config
    assert (config.k, config.tau1, config.tau2, config.edges) == (80, 0.7, 0.72, "directed")


def test_training_separates_people(faces):
    """After some steps the loss is lower, and other people are told apart better than by plain cosine."""
    model = run_small(faces, steps=120, hidden=(64,))
    history = model.config.training["history"]
    assert history[-1]["loss"] < history[0]["loss"]
    others, truth = make_faces(600, people=30, dim=24, seed=2)
    graph = join_rows(others, 40)
    same = (truth[graph.neighbors] == truth[:, None]).ravel()
    scores = score_edges(Features(others), graph, model).scores
    assert roc_auc_score(same, scores.ravel()) > roc_auc_score(same, graph.similarities.ravel())
    assert abs(scores.mean() - same.mean()) < 0.15  # probabilities, not only an order


def test_random_first_weights_learn_too(faces):
    losses = [entry["loss"] for entry in run_small(faces, preset="paper", steps=60).config.training["history"]]
    assert losses[-1] < losses[0]


def test_every_switch_changes_the_training(faces):
    switches = [{}, {"cluster_randomness": False}, {"sample_randomness": False}, {"full_graph": True}, {"k": 5}]
    models = [run_small(faces, steps=2, **changes) for changes in switches]
    plans = [model.config.training["plan"] for model in models]
    assert plans[0]["cluster_randomness"] is not None and plans[1]["cluster_randomness"] is None
    assert plans[0]["sample_randomness"] == 0.9 and plans[2]["sample_randomness"] is None
    assert plans[3]["full_graph"]
    assert models[4].config.k == 5
    weights = {model.tensors["conv1.weight"].tobytes() for model in models}
    assert len(weights) == len(models)


def test_a_given_plan_is_taken_as_it_is(faces):
    plan = SamplingPlan(seeds=2, near=5, cluster_randomness=9, sample_randomness=None, k=7)
    model = run_small(faces, steps=2, plan=plan)
    assert model.config.training["plan"] == {
        "seeds": 2, "near": 5, "cluster_randomness": 9, "sample_randomness": None, "k": 7, "full_graph": False,
            "most_faces": None,
    }  # fmt: skip
    assert model.config.k == 7


def test_the_best_weights_are_kept_and_a_training_that_gets_worse_stops(faces, monkeypatch):
    """The loss on held-out people is made to rise after step 4: the model has the weights of step 4."""
    losses = {2: 0.5, 4: 0.4, 6: 0.6, 8: 0.7, 10: 0.8, 12: 0.3}
    seen = {}
    judge = HeldOut.judge

    def judge_worse(self, model, *, choose):
        verdict = judge(self, model, choose=choose)
        step = 2 * (len(seen) + 1)
        seen.setdefault(step, model)
        return replace(verdict, loss=losses.get(step, 1.0))

    monkeypatch.setattr(HeldOut, "judge", judge_worse)
    model = run_small(faces, steps=20)
    assert [entry["step"] for entry in model.config.training["history"]] == [2, 4, 6, 8, 10]
    assert model.config.training["best_step"] == 4
    assert_same_weights(model, seen[4])


def test_pages_of_mapped_features_are_let_go(faces, tmp_path, monkeypatch):
    np.save(tmp_path / "faces.npy", faces[0].astype(np.float16))
    mapped = np.load(tmp_path / "faces.npy", mmap_mode="r")
    calls = []
    monkeypatch.setattr("starfc.scratch.measure_rss_bytes", lambda: calls.append(1) or 10**18)
    model = run_small((mapped, faces[1]), steps=2)
    assert calls
    monkeypatch.undo()
    assert_same_weights(model, run_small((np.array(mapped), faces[1]), steps=2))


def test_many_people_are_linked_and_trained_on(faces, monkeypatch, tmp_path):
    linked = []

    def link_all(index, **options):
        linked.append(link_people(index, **options, at_most=10))
        return linked[-1]

    monkeypatch.setattr("starfc.training.link_people", link_all)
    plan = SamplingPlan(seeds=2, near=5, cluster_randomness=9, sample_randomness=0.9, k=7)
    model = run_small(faces, steps=2, plan=plan, workdir=tmp_path)
    assert linked[0].links is not None
    assert model.config.training["n_people"] == 60
    assert (tmp_path / "people.links.npz").is_file() and (tmp_path / "people.npz").is_file()


def test_several_layers(faces):
    model = run_small(faces, hidden=(12, 8), steps=2)
    assert model.tensors["conv2.weight"].shape == (24, 8)
    assert_same_weights(model, run_small(faces, hidden=(12, 8), steps=2))


def test_default_k_follows_how_often_people_occur():
    rare = run_small(make_faces(400, people=130, dim=16, seed=1), steps=1)
    assert rare.config.k == 20


def test_unlabelled_faces_are_left_out_and_counted(faces):
    vectors, labels = faces
    labels = labels.copy()
    labels[::3] = -1
    with_them = run_small((vectors, labels))
    without = run_small((vectors[labels >= 0], labels[labels >= 0]))
    assert with_them.config.training["n_unlabelled"] == 500
    assert with_them.config.training["n_faces"] == 1000
    assert_same_weights(with_them, without)


def test_people_with_one_face_stay_in():
    vectors, labels = make_faces(600, people=120, dim=16, seed=1, singletons=0.7)
    assert run_small((vectors, labels), steps=2).config.training["n_people"] == 120


def test_reports_reach_the_caller(faces):
    reports, calls = [], []
    run_small(faces, steps=20, on_report=reports.append, progress=lambda *call: calls.append(call))
    assert [report.step for report in reports] == list(range(2, 21, 2))
    assert all(report.nodes_per_s > 0 and report.edges_per_s > 0 for report in reports)
    assert "held-out people: edge accuracy" in str(reports[-1])
    assert calls[0] == ("train", 0, 20) and calls[-1] == ("train", 20, 20)


def test_nobody_held_out_leaves_the_papers_thresholds(faces):
    reports = []
    model = run_small(faces, held_out=0.0, on_report=reports.append)
    assert (model.config.tau1, model.config.tau2) == (0.7, 0.72)
    assert model.config.training["n_held_out_people"] == 0
    assert model.config.training["pairwise_f"] is None
    assert "held-out" not in str(reports[0])


def test_the_model_folder_gives_back_the_model(faces, tmp_path):
    model = run_small(faces)
    model.save(tmp_path / "model")
    loaded = load_model(tmp_path / "model")
    assert_same_weights(model, loaded)
    assert loaded.config == model.config


@pytest.mark.parametrize(
    ("labels", "options", "words"),
    [
        (np.zeros(7), {}, "7 labels were given for 8 faces"),
        (np.array([0, 0, 1, 1, 2, 2, -1, -1]), {}, "the labels name 3 people; training needs at least 4"),
        (np.arange(8), {}, "all 8 people have one face"),
        (np.arange(8) // 2, {"preset": "best"}, "preset \\('best'\\)"),
        (np.arange(8) // 2, {"steps": 0}, "steps \\(0\\)"),
        (np.arange(8) // 2, {"hidden": ()}, "hidden"),
        (np.arange(8) // 2, {"held_out": 0.7}, "held_out \\(0.7\\)"),
        (np.arange(8) // 2, {"threads": 0}, "threads \\(0\\)"),
        (np.arange(8) // 2, {"full_graph": True}, "full_graph need preset 'gcn' or 'paper'"),
    ],
)
def test_bad_input_is_named(labels, options, words):
    with pytest.raises(InputError, match=words):
        train(np.eye(8), labels, **options)


def test_the_smallest_training_works():
    vectors, _ = make_faces(8, people=4, dim=8)
    assert run_small((vectors, np.arange(8) // 2), steps=2).config.training["n_people"] == 4


def test_a_bad_row_is_named(faces):
    vectors = faces[0].copy()
    vectors[7, 3] = np.nan
    with pytest.raises(InputError, match="first in row 7"):
        run_small((vectors, faces[1]))


def test_a_finished_work_folder_returns_at_once(faces, tmp_path, monkeypatch):
    first = run_small(faces, workdir=tmp_path / "work")
    monkeypatch.setattr("starfc.training._run_steps", None)  # would fail if it were called
    again = run_small(faces, workdir=tmp_path / "work")
    assert_same_weights(first, again)
    assert again.config == first.config


class Killed(Exception):
    """Stands for a kill between two steps."""


@pytest.mark.parametrize("preset", ["gcn", "paper"])
def test_an_interrupted_training_goes_on_with_the_same_bits(faces, tmp_path, preset):
    whole = run_small(faces, steps=12, preset=preset)

    def stop_at(step):
        def progress(stage, done, total):
            if stage == "train" and done == step:
                raise Killed

        return progress

    for step in (1, 5, 11):  # in the middle of subgraphs and of reports
        with pytest.raises(Killed):
            run_small(faces, steps=12, preset=preset, workdir=tmp_path, checkpoint_s=0, progress=stop_at(step))
    resumed = run_small(faces, steps=12, preset=preset, workdir=tmp_path, checkpoint_s=0)
    assert_same_weights(whole, resumed)
    for one, other in zip(whole.config.training["history"], resumed.config.training["history"], strict=True):
        timeless = {"nodes_per_s", "edges_per_s"}
        assert {k: v for k, v in one.items() if k not in timeless} == {
            k: v for k, v in other.items() if k not in timeless
        }


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"steps": 7}, "other steps \\(6, now 7\\)"),
        ({"seed": 1}, "other seed \\(0, now 1\\)"),
        ({"hidden": (8,)}, "other hidden"),
        ({"full_graph": True}, "other plan"),
        ({"preset": "paper"}, r"other .*preset \(gcn, now paper\)"),
    ],
)
def test_a_work_folder_of_other_settings_is_refused(faces, tmp_path, changes, words):
    run_small(faces, workdir=tmp_path)
    with pytest.raises(InputError, match=words) as caught:
        run_small(faces, workdir=tmp_path, **changes)
    assert "use another workdir" in str(caught.value)


def test_a_work_folder_of_other_data_is_refused(faces, tmp_path):
    vectors, labels = faces
    run_small(faces, workdir=tmp_path)
    changed = vectors.copy()
    changed[0] *= -1
    with pytest.raises(InputError, match="other features"):
        run_small((changed, labels), workdir=tmp_path)
    with pytest.raises(InputError, match="other labels"):
        run_small((vectors, labels[::-1].copy()), workdir=tmp_path)
    with pytest.raises(InputError, match="other faces \\(1500 x 24 float32, now 1500 x 24 float64\\)"):
        run_small((vectors.astype(np.float64), labels), workdir=tmp_path)


KILLED_RUN = textwrap.dedent(
    """
    import sys, time
    import numpy as np
    from starfc.synth import make_faces
    from starfc.training import train
    faces = make_faces(2000, people=60, dim=32, seed=1)
    print("started", flush=True)
    steps = lambda stage, done, total: print(stage, done, flush=True)
    options = {"preset": "paper", "steps": 30, "hidden": (16,), "threads": 2}
    model = train(*faces, workdir=sys.argv[1], checkpoint_s=0, progress=steps, **options)
    np.savez(sys.argv[2], **model.tensors)
    """
)


def test_sigkill_at_random_moments_leaves_the_same_weights(tmp_path):
    """Killed wherever it happens to be, and started again: the weights of an uninterrupted run, bit for bit."""
    out = tmp_path / "weights.npz"
    command = [sys.executable, "-c", KILLED_RUN, str(tmp_path / "work"), str(out)]
    moments = random.Random(0)
    n_killed = 0
    for first_step in (3, 14, 24):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            for line in process.stdout:
                if line.startswith("train") and int(line.split()[1]) >= first_step:
                    break
            time.sleep(moments.uniform(0, 0.05))  # somewhere in a step, an evaluation or the writing of a checkpoint
            os.kill(process.pid, signal.SIGKILL)
        n_killed += process.returncode == -signal.SIGKILL and not out.exists()
    assert n_killed >= 2
    subprocess.run(command, check=True, capture_output=True)
    faces = make_faces(2000, people=60, dim=32, seed=1)
    whole = train(*faces, preset="paper", steps=30, hidden=(16,), threads=2)  # which never stops early
    with np.load(out) as weights:
        assert set(weights) == set(whole.tensors)
        for name in weights:
            assert np.array_equal(weights[name], whole.tensors[name]), name


def test_without_torch_the_remedy_is_named():
    code = "import sys; sys.modules['torch'] = None\nimport starfc.training"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "training needs torch; install it with: pip install 'starfc[train]'" in done.stderr


def test_a_report_reads_well():
    report = TrainingReport(5, 10, 0.5, 0.75, 1000.0, 20000.0)
    assert str(report) == "step 5/10: loss 0.5000, edge accuracy 0.7500 (1,000 nodes/s, 20,000 edges/s)"
    full = replace(report, held_out_accuracy=0.8, pairwise_f=0.9, bcubed_f=0.91, tau1=0.7, tau2=None)
    assert "held-out people: edge accuracy 0.8000, F pairwise 0.9000, BCubed 0.9100" in str(full)


def test_a_plan_by_its_name_is_fitted_to_the_data():
    faces, people = make_faces(300, people=30, dim=16)
    model = train(faces, people, preset="paper", plan="webface", steps=1, hidden=(4,))
    assert model.config.k == 30 and model.config.training["plan"]["seeds"] == 1
    with pytest.raises(InputError, match="must be one of ms1m, webface, released"):
        train(faces, people, preset="gcn", plan="imdb")
