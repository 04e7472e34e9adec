"""Fitting relations to known people: who is held out, what is chosen, and that kills change nothing."""

import json
import os
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import starfc  # noqa: E402
from starfc import judging, relational_fit  # noqa: E402
from starfc.features import Features  # noqa: E402
from starfc.heldout import score_faces  # noqa: E402
from starfc.people import draw_people, index_people  # noqa: E402
from starfc.relational import load_shipped  # noqa: E402
from starfc.relational_fit import divide_rounds, gather_judged, split_at  # noqa: E402
from starfc.relational_model import make_model, open_network, open_space  # noqa: E402
from starfc.space_training import learn_space  # noqa: E402
from starfc.strictness import PREFERENCES  # noqa: E402
from starfc.synth import make_faces  # noqa: E402
from starfc.training import train  # noqa: E402


@pytest.fixture(scope="module")
def faces():
    return make_faces(700, people=140, dim=32, seed=1, kinship=1.0, noise=1.3)


@pytest.fixture(scope="module")
def index(faces):
    return index_people(Features(faces[0]), faces[1])


@pytest.fixture
def small(monkeypatch):
    """Smaller collections."""
    monkeypatch.setattr(relational_fit, "_PARTS", ((1, None), (1, 2)))
    monkeypatch.setattr(relational_fit, "_EDGES", 2000)
    monkeypatch.setattr("starfc.training._COMBINED_STEPS", 3)


def assert_same(model, other):
    assert model.config.tau1 == other.config.tau1
    for name, tensor in model.tensors.items():
        assert np.array_equal(tensor, other.tensors[name]), name


@pytest.mark.parametrize(("share", "n_rounds"), [(0.25, 3), (0.1, 3), (0.5, 2), (0.0, 0)])
def test_nobody_is_held_out_twice_or_learned_from_when_held_out(index, share, n_rounds):
    rounds = divide_rounds(index, share, seed=0)
    assert len(rounds) == n_rounds
    seen = [set(held.tolist()) for held in rounds]
    assert sum(map(len, seen)) == len(set().union(*seen))
    for positions in rounds:
        learned, held = split_at(index, positions)
        assert held.people.tolist() == index.people[positions].tolist()
        assert not set(learned.people.tolist()) & set(held.people.tolist())
        assert len(learned) + len(held) == len(index)


def test_drawn_people_come_with_all_their_faces(faces, index):
    labels = faces[1]
    rows = draw_people(index, 300, np.random.default_rng(0))
    people = np.unique(labels[rows])
    assert rows.tolist() == np.flatnonzero(np.isin(labels, people)).tolist()
    assert 300 <= len(rows) < 300 + np.bincount(labels).max()
    assert len(np.unique(labels[draw_people(index, 1, np.random.default_rng(0))])) == 2


def test_a_few_faces_of_everybody(faces, index):
    labels = faces[1]
    rows = draw_people(index, len(labels), np.random.default_rng(0), most=2)
    assert np.bincount(labels[rows]).tolist() == np.minimum(np.bincount(labels), 2).tolist()


def test_nobody_fills_a_collection():
    labels = np.concatenate([np.zeros(5000, np.int64), np.arange(1, 401) // 4])
    index = index_people(Features(np.random.default_rng(0).normal(size=(5400, 4))), labels)
    for seed in range(20):
        rows = draw_people(index, 300, np.random.default_rng(seed))
        assert (labels[rows] == 0).sum() <= 150 and len(np.unique(rows)) == len(rows) < 460


def test_a_network_that_nobody_could_judge_is_not_taken(small):
    """One person of two faces among many of one: there is something to learn from, and nobody to hold out."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(301, 32)).astype(np.float32)
    rows[300] = rows[0] + 0.2 * rng.normal(size=32)
    model = train(rows, np.r_[np.arange(300), 0], threads=1)
    assert model.config.training["kind"] == "shipped"
    assert_same(model, make_model(load_shipped(), dim=32, tau1=model.config.tau1, training={}))


def test_held_out_faces_are_judged_by_themselves_and_in_company(faces, index):
    features = Features(faces[0])
    learned, held = split_at(index, divide_rounds(index, 0.25, seed=0)[0])
    alone, together = gather_judged(features, faces[1], learned, held, [0])
    assert alone.judged.all() and set(alone.labels) == set(held.people)
    assert together.judged.sum() == len(held.rows) and len(together.labels) >= 2 * len(held.rows)


def test_training_says_what_it_did_and_repeats(faces, small, tmp_path):
    reports = []
    model, again = (train(*faces, threads=1, on_report=reports.append) for _ in range(2))
    assert_same(model, again)
    facts = model.config.training
    json.dumps(facts)
    assert (facts["preset"], facts["n_people"], facts["n_faces"]) == ("default", 140, 700)
    assert len(facts["history"]) == 3 and len(reports) == 6
    assert "round 1/3" in str(reports[0])
    assert 0 < facts["pairwise_f"] <= 1 and 0 < facts["bcubed_f"] <= 1
    assert set(facts["history"][0]["scores"]) == set(judging.KINDS)
    assert model.config.scorer in ("relational", "combined")
    starfc.cluster(faces[0], model=model)


@pytest.mark.parametrize(
    ("kind", "share", "weight", "change"),
    [
        ("shipped", 0, None, 0),
        ("leaning", 0.5, None, 0),
        ("fitted", 1, None, 0),
        ("advised", 0.5, 0.25, 0),
        ("combined", 1, 0.5, 0),
        ("half mapped", 0.5, None, 0.5),
        ("mapped", 0.5, None, 1),
    ],
)
def test_a_model_is_made_of_what_was_chosen(faces, index, small, monkeypatch, kind, share, weight, change):
    """Its network against one that is fitted with nobody held out: none, half or all of what that one has learned."""
    whole = open_network(train(*faces, threads=1, held_out=0.0)).second
    choice = judging.Choice(kind, "refined", 0.6, 0.9, 0.9)
    monkeypatch.setattr(relational_fit, "choose_setting", lambda scores, losses: choice)
    model = train(*faces, threads=1)
    found, known = open_network(model).second, load_shipped().second
    assert model.config.scorer == ("relational" if weight is None else "combined")
    assert weight is None or model.config.gcn_weight == weight
    space = open_space(model, model.config.scorer)
    assert (space is None) == (change == 0)
    if space is not None:
        learned = learn_space(Features(faces[0]), faces[1], index, seed=[0, relational_fit._SPACE])
        assert np.abs(learned.change).max() > 0.01
        np.testing.assert_allclose(space.change, change * learned.change, atol=1e-6)
        starfc.cluster(faces[0], model=model)
    inputs = np.random.default_rng(0).uniform(known.lowest, known.highest, (50, len(known.lowest)))
    before, after, now = (network.predict(inputs.astype(np.float32)) for network in (known, whole, found))
    assert np.abs(after - before).max() > 0.01
    np.testing.assert_allclose(now, before + share * (after - before), atol=1e-3)


def test_labels_help_with_other_people(small):
    """On half of the people, all of them kin of others, it is at least as good with the other half."""
    made = make_faces(1600, people=320, dim=32, seed=3, kinship=1.0, noise=1.3)
    known = made[1] % 2 == 0
    model = train(made[0][known], made[1][known], threads=1)
    others, truth = made[0][~known], made[1][~known]
    everyone = np.ones(len(truth), dtype=bool)
    plain, own = (score_faces(truth, starfc.cluster(others, model=m).labels, everyone) for m in (None, model))
    assert sum(own) >= sum(plain) - 0.005


def test_nobody_held_out_leaves_the_threshold_of_balanced(faces, small):
    model = train(*faces, threads=1, held_out=0.0, steps=3)
    assert model.config.tau1 == PREFERENCES["balanced"]
    assert model.config.training["pairwise_f"] is None


@pytest.mark.parametrize("share", [0.0, 0.25])
def test_next_to_no_faces_give_the_shipped_network(share):
    rows, _ = make_faces(8, people=4, dim=8)
    model = train(rows, np.arange(8) // 2, threads=1, held_out=share, steps=2)
    assert model.config.training["n_people"] == 4
    starfc.cluster(rows, model=model)


def test_a_bad_label_here_and_there_does_no_harm(faces, small):
    """One label in fifty is wrong."""
    rng = np.random.default_rng(0)
    wrong = faces[1].copy()
    bad = rng.random(len(wrong)) < 0.02
    wrong[bad] = rng.permutation(wrong[bad])
    model = train(faces[0], wrong, threads=1)
    everyone = np.ones(len(wrong), dtype=bool)
    plain, own = (score_faces(faces[1], starfc.cluster(faces[0], model=m).labels, everyone) for m in (None, model))
    assert sum(own) >= sum(plain) - 0.02


KILLED_RUN = textwrap.dedent(
    """
    import sys
    import numpy as np
    from starfc import relational_fit, training
    from starfc.synth import make_faces
    from starfc.training import train
    relational_fit._PARTS, relational_fit._EDGES, training._COMBINED_STEPS = ((1, None), (1, 2)), 2000, 3
    faces = make_faces(700, people=140, dim=32, seed=1, kinship=1.0, noise=1.3)
    say = lambda stage, done, total: print(stage, done, flush=True)
    model = train(*faces, workdir=sys.argv[1], threads=1, progress=say)
    np.savez(sys.argv[2], tau1=model.config.tau1, **model.tensors)
    """
)


def test_sigkill_leaves_the_same_weights(faces, small, tmp_path):
    out = tmp_path / "weights.npz"
    command = [sys.executable, "-c", KILLED_RUN, str(tmp_path / "work"), str(out)]
    for moment in ("held-out people 1", "describe edges 1"):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            for line in process.stdout:
                if line.startswith(moment):
                    break
            os.kill(process.pid, signal.SIGKILL)
    assert not out.exists()
    subprocess.run(command, check=True, capture_output=True)
    whole = train(*faces, threads=1)
    with np.load(out) as weights:
        assert float(weights["tau1"]) == whole.config.tau1
        for name, tensor in whole.tensors.items():
            assert np.array_equal(weights[name], tensor), name
