import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

import starfc
from starfc.avatars import N_TRAITS, draw_avatar, draw_placeholder, fit_avatars, imagine_traits, load_traits
from starfc.drawing import draw_histogram, draw_log_dots, draw_map, mix_colour
from starfc.errors import InputError
from starfc.evidence import gather_evidence
from starfc.features import Features
from starfc.images import load_images
from starfc.labels import save_labels
from starfc.quality import find_mixed, find_split, group_faces
from starfc.report import place_centres, write_report


class Checker(HTMLParser):
    """Notes what a page would load, and whether its elements are closed."""

    VOID = ("meta", "img", "br", "link", "input", "path", "rect", "circle", "ellipse")

    def __init__(self):
        super().__init__()
        self.open, self.loads, self.tags = [], [], []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.loads += [
            value for name, value in attributes if name in ("src", "href", "srcset") and not value.startswith("data:")
        ]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag


def check(path):
    text = path.read_text(encoding="utf-8")
    checker = Checker()
    checker.feed(text)
    assert checker.open == [] and checker.loads == []
    assert "script" not in checker.tags and "http-equiv" in text
    assert not re.search(r"url\(|@import", text)
    return text, checker.tags


@pytest.fixture(scope="module")
def world():
    rng = np.random.default_rng(0)
    truth = np.repeat(np.arange(25), 8)
    rows = np.repeat(rng.normal(size=(25, 24)), 8, axis=0) + 0.5 * rng.normal(size=(200, 24))
    features = Features(rows.astype(np.float32))
    return features, truth, gather_evidence(features, k=15, tau2=0.2)


def test_sizes_alone(tmp_path):
    figures = write_report(np.array([0, 0, 1, -1, -1]), tmp_path / "r.html", title="<b>me & you</b>")
    assert (figures["n_clusters"], figures["n_singletons"], figures["largest"]) == (2, 1, 2)
    assert figures["n_left_out"] == 2
    assert figures["mean_confidence"] is None
    text, _ = check(tmp_path / "r.html")
    assert "&lt;b&gt;me &amp; you&lt;/b&gt;" in text and "no scores given" in text
    assert "How large clusters are" in text and "Scores of neighbours" not in text


def test_everything(world, tmp_path):
    features, truth, evidence = world
    labels = truth.copy()
    labels[:8] = 1  # two people in one
    labels[100:102] = 77  # one person in two
    folder = tmp_path / "pictures"
    folder.mkdir()
    image_module = pytest.importorskip("PIL.Image")
    image_module.new("RGB", (30, 30), (10, 200, 10)).save(folder / "a.png")
    (folder / "broken.png").write_bytes(b"no picture")
    (folder / "list.csv").write_text("file,row\na.png,0\nbroken.png,8\n")
    images = load_images(folder / "list.csv", n_faces=200)
    figures = write_report(
        labels, tmp_path / "r.html", features=features, evidence=evidence, images=images, truth=truth, title="all"
    )
    text, tags = check(tmp_path / "r.html")
    assert 0 < figures["bcubed_f"] < 1 and 0 < figures["mean_confidence"] <= 1
    assert tags.count("img") >= 1 and "data:image/jpeg;base64," in text
    for words in (
        "τ1", "τ2", "Scores of neighbours", "Common neighbours", "How sure each face is", "A map of the centres",
        "Against the truth", "Clusters that mix most people", "People split most", "The least cohesive clusters",
        "may be one person", "cluster 1</b> 16 faces",
    ):  # fmt: skip
        assert words in text, words


def test_faces_left_out_are_no_people(world, tmp_path):
    features, truth, evidence = world
    labels = truth.copy()
    labels[3:5] = -1
    figures = write_report(labels, tmp_path / "r.html", features=features, evidence=evidence, truth=truth)
    assert (figures["n"], figures["n_clusters"], figures["n_left_out"]) == (200, 25, 2)
    text, _ = check(tmp_path / "r.html")
    assert "left out, in no cluster" in text and "25 clusters for 25 people; 2 left out" in text
    assert "cluster -1" not in text and "alone</b>" not in text
    write_report(np.full(200, -1), tmp_path / "none.html", features=features, evidence=evidence, truth=truth)
    check(tmp_path / "none.html")


def test_the_same_report_twice(world, tmp_path):
    features, truth, evidence = world
    for name in ("a.html", "b.html"):
        write_report(truth, tmp_path / name, features=features, evidence=evidence)
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


def test_other_faces_are_refused(world, tmp_path):
    features, truth, evidence = world
    for given in ({"features": features}, {"truth": truth}, {"evidence": evidence}):
        with pytest.raises(InputError, match="200"):
            write_report(truth[:50], tmp_path / "r.html", **given)
    assert not (tmp_path / "r.html").exists()


def test_errors_are_counted_by_pairs():
    truth = np.array([0, 0, 0, 1, 1, 2, -1])
    labels = np.array([5, 5, 6, 5, 6, 6, 6])
    groups = group_faces(labels)
    pairs = [(i, j) for i in range(7) for j in range(i) if truth[i] >= 0 and truth[j] >= 0]
    mixed = {
        int(c): sum(labels[i] == labels[j] == groups.ids[c] and truth[i] != truth[j] for i, j in pairs) for c in (0, 1)
    }
    split = {p: sum(truth[i] == truth[j] == p and labels[i] != labels[j] for i, j in pairs) for p in (0, 1)}
    assert dict(find_mixed(groups, truth)) == mixed
    assert dict(find_split(groups, truth)) == split


def test_a_map_of_equal_centres():
    assert not place_centres(np.ones((6, 4), np.float32)).any()
    places = place_centres(np.random.default_rng(0).normal(size=(12, 4)).astype(np.float32))
    assert places.shape == (12, 2) and np.isfinite(places).all()


def test_drawings():
    drawn = draw_histogram(
        np.linspace(-1, 1, 5), {"a": (np.array([0, 2, 5, 0]), "#111"), "b": (np.array([1, 0, 0, 0]), "#222")},
        label="x & y", marks={"t": 0.9, "low": -3.0},
    )  # fmt: skip
    assert drawn.count("class='bar'") == 3 and "x &amp; y" in drawn and drawn.count("class='mark'") == 2
    assert "nan" not in drawn
    empty = draw_histogram(np.linspace(0, 1, 3), {"a": (np.zeros(2, int), "#111")}, label="x", logarithmic=True)
    assert "nan" not in empty and "class='bar'" not in empty
    dwarfing = draw_histogram(np.linspace(0, 1, 5), {"a": (np.array([9120, 3, 8, 4]), "#111")}, label="x")
    assert "9.1k ↑" in dwarfing and dwarfing.count("class='bar'") == 4
    assert "nan" not in draw_log_dots(np.array([1.0]), np.array([1.0]), label="x")
    assert "nan" not in draw_map(np.zeros((1, 2)), np.array([1]), ["one"])
    assert mix_colour(0.5) == "#40aa8c"


def test_faces_that_are_alike_are_drawn_alike(world):
    features = world[0]
    axes = fit_avatars(features)
    traits = axes.find_traits(features.read(0, 200))
    assert traits.shape == (200, N_TRAITS) and (traits >= 0).all() and (traits <= 1).all()
    np.testing.assert_array_equal(fit_avatars(features).axes, axes.axes)
    within = np.abs(traits[0] - traits[1:8]).mean()
    between = np.abs(traits[0] - traits[8:]).mean()
    assert within < between
    assert draw_avatar(traits[0]) == draw_avatar(traits[0]) != draw_avatar(traits[50])
    assert "<svg" in draw_placeholder()


def test_avatars_of_few_dimensions():
    axes = fit_avatars(Features(np.array([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]])))
    assert np.isfinite(axes.find_traits(np.array([[0.0, 1.0]], np.float32))).all()


def test_imagined_faces(tmp_path):
    labels = np.array([0, 0, 5])
    np.save(tmp_path / "t.npy", imagine_traits(labels))
    np.testing.assert_array_equal(load_traits(tmp_path / "t.npy", n_faces=3), imagine_traits(labels))
    with pytest.raises(InputError, match="traits are"):
        load_traits(tmp_path / "t.npy", n_faces=4)


def test_evidence_of_a_model_has_a_cosine_of_its_own(world):
    features, _, evidence = world
    assert evidence.settings.scorer == "relational"
    assert evidence.tau1 == evidence.settings.tau1 != evidence.threshold
    again = gather_evidence(features, k=15, tau1=0.3, partition="components")
    assert (again.tau1, again.settings.partition) == (0.3, "components")
    assert again.threshold == again.tau1


def test_command(run, faces_file, tmp_path):
    save_labels(np.repeat(np.arange(6), 10), tmp_path / "who.npy")
    output = tmp_path / "r.html"
    outcome = run("report", tmp_path / "who.npy", "-o", output, "--json")
    assert outcome.code == 0, outcome.err
    assert json.loads(outcome.out)["n_clusters"] == 6
    outcome = run(
        "report",
        tmp_path / "who.npy",
        "-o",
        output,
        "--features",
        faces_file,
        "--labels",
        tmp_path / "who.npy",
        "--k",
        8,
    )
    assert outcome.code == 0, outcome.err
    assert "60 faces in 6 clusters" in outcome.out
    assert "Against the truth" in check(output)[0]
    assert "a report is .html" in run("report", tmp_path / "who.npy", "-o", tmp_path / "r.pdf").err
    assert starfc.__version__ in output.read_text()
