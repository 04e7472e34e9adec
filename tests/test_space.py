"""Maps of features, and models that see faces through one."""

import numpy as np
import pytest

import starfc
from starfc.errors import InputError, ModelError
from starfc.features import Features
from starfc.knn import build_knn, save_knn
from starfc.model import Model, load_model
from starfc.relational import PREFERENCES, load_shipped
from starfc.relational_model import make_model, open_space
from starfc.scratch import Scratch
from starfc.space import Space, map_features, read_space
from starfc.synth import make_faces
from starfc.threads import limited_threads


def draw_space(dim, scale=0.1, seed=0):
    rng = np.random.default_rng(seed)
    return Space(*(scale * rng.normal(size=shape).astype(np.float32) for shape in ((dim, dim), (dim,))))


def map_slowly(row, space):
    """Map one row number by number, in double precision."""
    length = sum(float(x) ** 2 for x in row) ** 0.5
    unit = [float(x) / length for x in row]
    moved = [
        unit[j] + sum(unit[i] * float(space.change[i, j]) for i in range(len(unit))) + float(space.shift[j])
        for j in range(len(unit))
    ]
    length = sum(x * x for x in moved) ** 0.5
    return [x / length for x in moved]


def test_rows_are_mapped():
    space, rows = draw_space(7), np.random.default_rng(1).normal(size=(9, 7)).astype(np.float32)
    expected = [map_slowly(row, space) for row in rows]
    units = Features(rows).read(0, 9)
    np.testing.assert_allclose(space.map_rows(units), expected, atol=1e-6)
    np.testing.assert_allclose(map_features(Features(5 * rows), space).read(0, 9), expected, atol=1e-3)
    halved = space.take_share(0.5)
    assert np.array_equal(halved.change, space.change / 2) and np.array_equal(halved.shift, space.shift / 2)
    np.testing.assert_allclose(space.take_share(0).map_rows(units), units, atol=1e-7)


def test_what_a_map_takes_to_nothing_stays():
    gone = Space(-np.eye(3, dtype=np.float32), np.zeros(3, np.float32))
    rows = np.eye(3, dtype=np.float32)
    assert np.array_equal(gone.map_rows(rows), rows)


def test_the_same_bits_on_any_threads_and_in_files(tmp_path):
    space, rows = draw_space(24), np.random.default_rng(2).normal(size=(3000, 24)).astype(np.float32)
    with limited_threads(1):
        one = map_features(Features(rows), space).raw
    with limited_threads(2):
        two = map_features(Features(rows), space, scratch=Scratch(tmp_path / "mapped")).raw
    assert one.dtype == two.dtype == np.float16
    assert np.array_equal(one, two)


def test_damaged_tensors_are_refused():
    space = draw_space(4)
    assert read_space({}) is None
    assert np.array_equal(read_space(space.tensors).change, space.change)
    with pytest.raises(ModelError, match="has one of"):
        read_space({"space.shift": space.shift})
    with pytest.raises(ModelError, match="must be \\(d, d\\)"):
        Space(space.change[:3], space.shift)


@pytest.fixture(scope="module")
def faces():
    return make_faces(400, people=40, dim=32, seed=1)[0]


@pytest.fixture
def model():
    return make_model(
        load_shipped(), dim=32, tau1=PREFERENCES["balanced"], training={}, space=draw_space(32, scale=0.05)
    )


def test_a_model_clusters_what_it_sees(faces, model, tmp_path):
    """As the shipped network clusters the mapped faces; from its folder, in files, with a ready-made graph too."""
    model.save(tmp_path / "model")
    loaded = load_model(tmp_path / "model")
    assert "Maps face vectors (dimension 32)" in (tmp_path / "model" / "README.md").read_text()
    mapped = map_features(Features(faces), open_space(loaded, "relational"))
    expected = starfc.cluster(mapped)
    assert not np.array_equal(expected.scored.neighbors, starfc.cluster(faces).scored.neighbors)
    for settings in ({}, {"workdir": tmp_path / "work"}, {"workdir": tmp_path / "work"}, {"threads": 1}):
        found = starfc.cluster(faces, model=loaded, **settings)
        assert np.array_equal(found.scored.neighbors, expected.scored.neighbors)
        assert np.array_equal(found.scored.scores, expected.scored.scores)
        assert np.array_equal(found.labels, expected.labels)
    assert "map" in found.seconds
    assert not list((tmp_path / "work").glob("mapped*")), "they are of no use to anybody else"


@pytest.mark.parametrize("in_files", [False, True])
def test_a_ready_made_graph_is_compared_anew(faces, model, tmp_path, in_files):
    """All others are on the lists of plain faces: what is nearest in the space is found among them."""
    save_knn(build_knn(Features(faces), k=399), tmp_path / "graph.npz")
    mapped = map_features(Features(faces), open_space(model, "relational"))
    expected = starfc.cluster(mapped, knn_graph=build_knn(mapped, k=399))
    workdir = tmp_path / "work" if in_files else None
    found = starfc.cluster(faces, model=model, knn_graph=tmp_path / "graph.npz", workdir=workdir)
    np.testing.assert_allclose(found.scored.scores, expected.scored.scores, atol=0.02)
    assert np.array_equal(found.labels, expected.labels)


def test_faces_of_another_embedder_are_refused(faces, model):
    with pytest.raises(ModelError, match="trained for vectors of dimension 32, these have 16"):
        starfc.cluster(faces[:, :16], model=model)
    with pytest.raises(InputError, match="NaN or infinite values, first in row 7"):
        broken = faces.copy()
        broken[7, 3] = np.nan
        starfc.cluster(broken, model=model)
    wrong = Model(model.config, model.tensors | draw_space(16).tensors)
    with pytest.raises(ModelError, match="its space of 16"):
        starfc.cluster(faces, model=wrong)


def test_other_scorers_see_plain_faces(faces, model):
    plain, own = (starfc.cluster(faces, model=one, scorer="cosine", tau1=0.5) for one in (None, model))
    assert np.array_equal(plain.scored.scores, own.scored.scores)
