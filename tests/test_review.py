"""The state behind the review page: figures, corrections, questions, undo."""

import itertools

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reviewing import gather, make_world
from starfc.constraints import load_constraints, save_constraints
from starfc.corrections import NOT_A_FACE
from starfc.errors import InputError
from starfc.export import final_labels, make_constraints
from starfc.journal import read_book
from starfc.metrics import bcubed
from starfc.quality import MARGIN_SCALE, group_faces, measure_shapes
from starfc.review.collection import Collection
from starfc.review.grouping import group_members
from starfc.review.shapes import measure_some_shapes
from starfc.review.table import Filter

FEATURES, LABELS, TRUTH = make_world()
EVIDENCE = gather(FEATURES)
requests = map(str, itertools.count())


@pytest.fixture
def collection(tmp_path):
    made = Collection(FEATURES, LABELS, EVIDENCE, tmp_path / "j.sqlite")
    made.prepare_questions()
    yield made
    made.close()


def as_sets(labels):
    """Return the clusters as sets of faces, whatever they are called."""
    return {tuple(np.flatnonzero(labels == label)) for label in np.unique(labels)}


def do(collection, kind, **arguments):
    return collection.do(next(requests), kind, arguments)


def check_table(collection):
    """Compare every figure with what the labels give from scratch."""
    table, book = collection.table, collection.book
    shown = np.flatnonzero(book.labels >= 0)
    groups = group_faces(book.labels[shown])
    shapes = measure_shapes(type(FEATURES)(FEATURES.raw[shown]), groups)
    slots = table.select(Filter(sort="label"))
    assert table.labels[slots].tolist() == groups.ids.tolist()
    np.testing.assert_array_equal(table.sizes[slots], groups.sizes)
    np.testing.assert_allclose(table.cohesion[slots], shapes.cohesion, atol=1e-4)
    np.testing.assert_allclose(table.sums[slots], shapes.sums, atol=1e-3)
    np.testing.assert_allclose(table.closeness[shown], shapes.closeness, atol=1e-2)
    graph = collection._graph
    for face in shown[::7]:
        edges = range(graph.offsets[face], graph.offsets[face + 1])
        own = [graph.scores[e] for e in edges if book.labels[graph.targets[e]] == book.labels[face]]
        rival = [graph.scores[e] for e in edges if book.labels[graph.targets[e]] != book.labels[face]]
        margin = max(own, default=collection.tau1) - max(rival, default=collection.floor)
        np.testing.assert_allclose(table.face_confidence[face], 1 / (1 + np.exp(-margin / MARGIN_SCALE)), atol=1e-4)
    for slot, label in zip(slots, groups.ids, strict=True):
        members = book.members(int(label))
        np.testing.assert_allclose(table.confidence[slot], table.face_confidence[members].mean(), atol=1e-5)
        assert table.find(int(label)) == slot


def test_merge_keeps_the_named_one(collection):
    label = 100
    do(collection, "name", label=label, name="  Ann <b> ")
    done = do(collection, "merge", labels=[label, 2, 2])
    assert "merged 2 people into 'Ann <b>'" in done["title"]
    assert len(collection.book.members(2)) == 0
    assert collection.book.names[label] == "Ann <b>"
    assert sum(collection.book.answers.values()) == 1
    check_table(collection)


def test_merging_takes_the_other_names_away_and_undo_brings_them_back(collection):
    do(collection, "name", label=0, name="big")
    do(collection, "name", label=2, name="small")
    do(collection, "merge", labels=[0, 2])
    assert collection.book.names == {0: "big"}
    do(collection, "undo")
    assert collection.book.names == {0: "big", 2: "small"}
    assert not collection.book.answers
    check_table(collection)


def test_faces_of_a_new_person_stay_there_at_every_strictness(collection):
    """Even if they look like those they were taken from; and they take nobody along."""
    do(collection, "strictness", tau1=collection.tau1)  # the labels of the file were made otherwise
    label = int(np.bincount(collection.book.labels[collection.book.labels >= 0]).argmax())
    members = collection.book.members(label).tolist()
    for faces in (members[:3], members[3:5]):
        do(collection, "move", faces=faces, label=None)
        do(collection, "name", label=int(collection.book.labels[faces[0]]), name=f"taken {len(faces)}")
    assert sorted(collection.book.moved) == members[:5]
    labels, names = collection.book.labels.copy(), dict(collection.book.names)
    for level in (collection.tau1 + 0.02, collection.tau1):
        do(collection, "strictness", tau1=level)
        for faces in (members[:3], members[3:5]):
            assert len(set(collection.book.labels[faces].tolist())) == 1
    assert as_sets(collection.book.labels) == as_sets(labels)
    assert {name: collection.book.members(label).tolist() for label, name in collection.book.names.items()} == {
        name: np.flatnonzero(labels == label).tolist() for label, name in names.items()
    }
    for _ in range(6):
        collection.do(next(requests), "undo", {})
    assert not collection.book.moved


def test_move_to_a_person_and_to_a_new_one(collection):
    faces = collection.book.members(0)[:3].tolist()
    done = do(collection, "move", faces=[*faces, faces[0]], label=3)
    assert done["title"] == "moved 3 faces to person 3"
    assert sorted(done["changed"]) == [0, 3]
    told = collection.book.answers
    assert sum(told.values()) == 3 and len(told) == 6
    done = do(collection, "move", faces=faces, label=None)
    new = int(collection.book.labels[faces[0]])
    assert new > LABELS.max() and collection.book.members(new).tolist() == faces
    check_table(collection)
    whole = collection.book.members(new).tolist()
    do(collection, "name", label=new, name="short-lived")
    do(collection, "move", faces=whole, label=3)
    assert new not in collection.book.names and new not in collection.table.labels[collection.table.select(Filter())]
    with pytest.raises(InputError, match="there already"):
        do(collection, "move", faces=whole, label=3)


def test_not_a_face_and_back(collection):
    faces = collection.book.members(0)[:2].tolist()
    do(collection, "not_face", faces=faces)
    assert collection.summarise()["n_not_faces"] == 2
    assert final_labels(collection.book)[faces].tolist() == [-1, -1]
    opened = collection.open_cluster(NOT_A_FACE, start=0, count=9, outliers_first=False)
    assert [face["row"] for face in opened["page"]] and opened["near"] == []
    check_table(collection)
    with pytest.raises(InputError, match="already"):
        do(collection, "not_face", faces=faces)
    for kind, arguments in (("merge", {"labels": [NOT_A_FACE, 0]}), ("name", {"label": NOT_A_FACE, "name": "x"})):
        with pytest.raises(InputError, match="no face"):
            do(collection, kind, **arguments)
    do(collection, "move", faces=faces, label=0)
    np.testing.assert_array_equal(collection.book.labels, LABELS)


def test_split_parts_the_two_people(collection):
    preview = collection.preview_split(0, 2)
    assert [part["size"] for part in preview] == [8, 8]
    do(collection, "split", label=0, parts=2)
    new = int(collection.book.next_label) - 1
    assert {len(set(TRUTH[collection.book.members(label)])) for label in (0, new)} == {1}
    assert list(collection.book.answers.values()) == [False]
    check_table(collection)
    with pytest.raises(InputError, match="cannot be split into 99"):
        do(collection, "split", label=0, parts=99)


def test_a_split_withdraws_the_yes_it_breaks_and_a_merge_the_no(collection):
    do(collection, "split", label=0, parts=2)
    new = int(collection.book.next_label) - 1
    do(collection, "merge", labels=[0, new])
    assert False not in collection.book.answers.values()
    do(collection, "split", label=0, parts=2)
    told = make_constraints(collection.book)
    assert len(told.must) == 0 and len(told.cannot) == 1


def test_faces_in_no_cluster_are_left_out_and_can_be_people(tmp_path):
    labels = LABELS.copy()
    labels[[4, 9, 60]] = -1
    made = Collection(FEATURES, labels, EVIDENCE, tmp_path / "j.sqlite")
    people = made.summarise()["n_clusters"]
    assert made.summarise()["n_not_faces"] == 3 and people == len(np.unique(LABELS))
    assert made.open_cluster(NOT_A_FACE, start=0, count=9, outliers_first=False)["size"] == 3
    assert final_labels(made.book).tolist() == labels.tolist()
    do(made, "apart", faces=[4])
    assert do(made, "apart")["summary"]["n_clusters"] == people + 3
    check_table(made)
    with pytest.raises(InputError, match="none of these faces"):
        do(made, "apart", faces=[4])
    do(made, "strictness", tau1=0.8)
    do(made, "strictness", tau1=made.tau1)
    assert len({int(made.book.labels[face]) for face in (4, 9, 60)}) == 3  # not one cluster of all that was left out
    made.close()


def test_giant_labels_are_refused(tmp_path):
    labels = LABELS.copy()
    labels[0] = 2**63 - 1
    with pytest.raises(InputError, match="label 9223372036854775807 is too large"):
        Collection(FEATURES, labels, EVIDENCE, tmp_path / "j.sqlite")


@pytest.mark.parametrize("rows_at_once", [3, 4096])
def test_shapes_of_some_clusters_giants_included(monkeypatch, rows_at_once):
    monkeypatch.setattr("starfc.review.shapes._SOME_ROWS", rows_at_once)
    labels = np.random.default_rng(0).integers(0, 40, len(LABELS)) ** 2 // 100  # of one face to many
    faces = np.flatnonzero(labels > 0).astype(np.int32)
    groups = group_faces(labels[faces])
    expected = measure_shapes(type(FEATURES)(FEATURES.raw[faces]), groups)
    found = measure_some_shapes(FEATURES, faces, groups)
    np.testing.assert_array_equal(found.sums, expected.sums)
    np.testing.assert_allclose(found.closeness, expected.closeness, atol=1e-5)
    np.testing.assert_allclose(found.cohesion, expected.cohesion, atol=1e-5)


def test_a_giant_is_not_read_in_one_piece(collection, monkeypatch):
    monkeypatch.setattr("starfc.review.table._GIANT", 20)
    do(collection, "merge", labels=[0, 3, 6, 9])
    check_table(collection)
    do(collection, "undo")
    check_table(collection)


def test_names(collection):
    with pytest.raises(InputError, match=r"U\+000A"):
        do(collection, "name", label=0, name="a\nb")
    with pytest.raises(InputError, match="200 characters"):
        do(collection, "name", label=0, name="x" * 201)
    with pytest.raises(InputError, match="no cluster 12345"):
        do(collection, "name", label=12345, name="x")
    do(collection, "name", label=0, name="Zoë")
    found = collection.list_wall(Filter(search="zo", named=True), 0, 10)
    assert [cluster["label"] for cluster in found["clusters"]] == [0]
    assert collection.list_wall(Filter(named=False), 0, 1)["total"] == collection.summarise()["n_clusters"] - 1
    assert collection.list_wall(Filter(search="3"), 0, 10)["clusters"][0]["label"] == 3
    assert collection.list_wall(Filter(sort="name"), 0, 1)["clusters"][0]["name"] == "Zoë"
    do(collection, "name", label=0, name=" ")
    assert collection.book.names == {}


def test_the_wall_sorts_filters_and_pages(collection):
    every = collection.list_wall(Filter(), 0, 1000)["clusters"]
    sizes = [cluster["size"] for cluster in every]
    assert sizes == sorted(sizes, reverse=True) and sum(sizes) == len(FEATURES)
    assert collection.list_wall(Filter(), 5, 3)["clusters"] == every[5:8]
    assert collection.list_wall(Filter(), -5, 3)["clusters"] == every[:3]
    assert {cluster["size"] for cluster in collection.list_wall(Filter(min_size=3, max_size=8), 0, 99)["clusters"]} == {
        4
    }
    loose = [cluster["cohesion"] for cluster in collection.list_wall(Filter(sort="cohesion"), 0, 10)["clusters"]]
    assert (np.diff(loose) >= 0).all() and len(set(TRUTH[every[0]["label"] == LABELS])) == 2
    doubt = [
        entry["size"] * (1 - entry["confidence"])
        for entry in collection.list_wall(Filter(sort="doubt"), 0, 99)["clusters"]
    ]
    assert all(a >= b - 0.02 * 16 for a, b in itertools.pairwise(doubt))
    sure = collection.list_wall(Filter(max_confidence=0.5), 0, 99)["clusters"]
    assert all(cluster["confidence"] <= 0.5 for cluster in sure)


def test_an_opened_cluster(collection):
    opened = collection.open_cluster(0, start=0, count=5, outliers_first=False)
    closeness = [face["closeness"] for face in opened["page"]]
    assert closeness == sorted(closeness, reverse=True) and opened["size"] == 16
    first = collection.open_cluster(0, start=0, count=1, outliers_first=True)["page"][0]
    assert first["closeness"] == round(float(collection.table.closeness[collection.book.members(0)].min()), 3)
    links = [other["link"] for other in opened["near"]]
    assert (np.diff(links) <= 0).all() and len(links) == 12
    rows = FEATURES.read(0, len(FEATURES))
    other = opened["near"][0]["label"]
    expected = (rows[LABELS == 0] @ rows[other == LABELS].T).mean()
    assert abs(links[0] - expected) < 1e-3
    with pytest.raises(InputError, match="no cluster 999"):
        collection.open_cluster(999, start=0, count=5, outliers_first=False)


def test_answering_the_queue_repairs_the_clustering(collection):
    before = bcubed(TRUTH, final_labels(collection.book)).f
    asked = set()
    for _ in range(30):
        question = collection.list_questions(1)[0]
        assert question["pair"] not in asked
        asked.add(question["pair"])
        sides = []
        for side in question["sides"]:
            sides.append(np.bincount(TRUTH[side["faces"]]).argmax())
        do(collection, "answer", pair=question["pair"], same=bool(sides[0] == sides[1]))
    after = bcubed(TRUTH, final_labels(collection.book)).f
    assert after > 0.99 > 0.9 > before
    check_table(collection)
    told = make_constraints(collection.book)
    assert all(TRUTH[a] == TRUTH[b] for a, b in told.must) and all(TRUTH[a] != TRUTH[b] for a, b in told.cannot)
    while collection.journal.can_undo:
        do(collection, "undo")
    np.testing.assert_array_equal(collection.book.labels, LABELS)
    assert collection.book.answers == {}
    check_table(collection)


def test_a_skipped_question_stays_away_until_the_skipping_is_undone(collection):
    first, second = collection.list_questions(2)
    do(collection, "skip", pair=first["pair"])
    assert collection.list_questions(1)[0]["pair"] == second["pair"]
    asked = {frozenset(side["face"] for side in found["sides"]) for found in collection.list_questions(500)}
    assert frozenset(side["face"] for side in first["sides"]) not in asked
    assert not collection.book.answers and not make_constraints(collection.book).must.size
    do(collection, "undo")  # not the action before it
    assert collection.list_questions(1)[0]["pair"] == first["pair"]
    do(collection, "redo")
    again = read_book(collection.journal.path, LABELS)
    assert list(again.skipped) == list(collection.book.skipped) != []
    with pytest.raises(InputError):
        do(collection, "skip", pair=10**9)


def test_skipping_two_clusters_skips_all_questions_about_them(collection):
    def find_apart():
        return [found for found in collection.list_questions(500) if not found["joined"]]

    first = find_apart()[0]
    labels = {side["label"] for side in first["sides"]}
    do(collection, "skip", pair=first["pair"])
    assert all({side["label"] for side in found["sides"]} != labels for found in find_apart())


def test_settled_questions_do_not_come_back(collection):
    second = collection.list_questions(2)[1]
    do(collection, "answer", pair=second["pair"], same=second["joined"])  # changes no cluster
    assert collection.journal.history(1)[0]["kind"] == "answer"
    assert second["pair"] not in {question["pair"] for question in collection.list_questions(500)}
    for arguments in ({"pair": 10**9, "same": True}, {"pair": 0, "same": "yes"}, {"same": True}):
        with pytest.raises(InputError):
            do(collection, "answer", **arguments)
    face = collection.queue.pool.faces[collection.queue.pool.first[0]]
    do(collection, "not_face", faces=[int(face)])
    with pytest.raises(InputError, match="no face"):
        do(collection, "answer", pair=0, same=True)


def test_strictness_partitions_again_and_keeps_corrections(collection):
    do(collection, "name", label=0, name="Ann")
    do(collection, "split", label=0, parts=2)
    apart = next(pair for pair, same in collection.book.answers.items() if not same)
    together = collection.book.members(3)[:2].tolist()
    do(collection, "move", faces=together, label=None)
    gone = collection.book.members(6)[:1].tolist()
    do(collection, "not_face", faces=gone)
    before = collection.book.labels.copy()
    do(collection, "strictness", tau1=0.6)
    labels = collection.book.labels
    assert labels[apart[0]] != labels[apart[1]]
    assert labels[together[0]] == labels[together[1]]
    assert labels[gone].tolist() == [NOT_A_FACE]
    check_table(collection)
    do(collection, "undo")
    np.testing.assert_array_equal(collection.book.labels, before)
    check_table(collection)
    with pytest.raises(InputError, match="strictness"):
        do(collection, "strictness", tau1=7)


@pytest.mark.parametrize("way", [(0.95,), (0.0,), (0.95, 0.0), (0.0, 0.95, 0.6)])
def test_names_come_back_with_the_strictness(collection, way):
    people = {0: "Ann", 3: "Bob", 2: "Eve", 100: "Half"}
    for label, name in people.items():
        do(collection, "name", label=label, name=name)
    home = {name: set(collection.book.members(label).tolist()) for label, name in people.items()}
    for level in way:
        do(collection, "strictness", tau1=max(collection.floor, level))
        assert collection.book.names  # as far as there are clusters for them
        for label, name in collection.book.names.items():
            assert home[name] & set(collection.book.members(label).tolist())
    do(collection, "strictness", tau1=collection.tau1)
    members = {name: set(collection.book.members(label).tolist()) for label, name in collection.book.names.items()}
    assert members == home
    again = read_book(collection.journal.path, LABELS)
    assert (again.names, again.kept) == (collection.book.names, collection.book.kept)
    for _ in (*way, "back"):
        do(collection, "undo")
    assert (collection.book.names, collection.book.kept) == (people, {})


def test_names_that_somebody_changed_do_not_come_back(collection):
    for label, name in ((0, "Ann"), (3, "Bob"), (6, "Eve")):
        do(collection, "name", label=label, name=name)
    do(collection, "strictness", tau1=0.6)
    faces = {name: collection.book.members(label) for label, name in collection.book.names.items()}
    label = {name: number for number, name in collection.book.names.items()}
    do(collection, "name", label=label["Ann"], name="Anna")
    do(collection, "merge", labels=[label["Bob"], label["Eve"]])
    do(collection, "strictness", tau1=collection.tau1)
    assert sorted(collection.book.names.values()) in (["Anna", "Bob"], ["Anna", "Eve"])
    assert collection.book.names[int(collection.book.labels[faces["Ann"][0]])] == "Anna"


def test_the_slider_knows_where_it_stands(collection):
    known = collection.count_levels()
    assert known["levels"] == sorted(known["levels"])
    assert known["counts"][known["levels"].index(collection.tau1)] == collection.summarise()["n_clusters"]
    assert collection.summarise()["level"] == collection.tau1
    level = known["levels"][-3]
    assert do(collection, "strictness", tau1=level)["summary"]["n_clusters"] == known["counts"][-3]
    do(collection, "strictness", tau1=0.55)
    assert collection.summarise()["level"] == 0.55
    do(collection, "undo")
    assert collection.summarise()["level"] == level
    do(collection, "undo")
    assert collection.summarise()["level"] == collection.tau1


def test_strictness_without_corrections_is_what_cluster_gives(tmp_path):
    from starfc import cluster

    expected = cluster(FEATURES, k=20, tau1=0.62, tau2=0.1, edges="mutual", partition="components").labels
    from dataclasses import replace

    settings = replace(EVIDENCE.settings, tau2=0.1, edges="mutual")
    made = Collection(FEATURES, LABELS, replace(EVIDENCE, settings=settings), tmp_path / "j.sqlite")
    do(made, "strictness", tau1=0.62)
    found = made.book.labels
    assert (
        len(np.unique(np.column_stack((found, expected)), axis=0)) == len(np.unique(found)) == len(np.unique(expected))
    )
    made.close()


def test_a_request_counts_once(collection):
    first = collection.do("same", "merge", {"labels": [0, 3]})
    again = collection.do("same", "merge", {"labels": [0, 3]})
    assert (first["repeated"], again["repeated"]) == (False, True)
    assert len(collection.journal) == 1
    with pytest.raises(InputError, match="'dance' is no action"):
        do(collection, "dance")
    for kind in ("undo", "redo"):
        collection.do(f"{kind} 1", kind, {}) if kind == "undo" else None
    with pytest.raises(InputError, match="nothing to undo"):
        do(collection, "undo")


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        ("merge", {}),
        ("merge", {"labels": "all"}),
        ("merge", {"labels": [0]}),
        ("merge", {"labels": [0, 2.5]}),
        ("merge", {"labels": [0, 10**30]}),
        ("merge", {"labels": [0, True]}),
        ("merge", {"labels": [0, 99999]}),
        ("move", {"faces": []}),
        ("move", {"faces": [-1]}),
        ("move", {"faces": [10**9]}),
        ("move", {"faces": [0], "label": 555}),
        ("name", {"label": 0}),
        ("name", {"label": 0, "name": 5}),
        ("not_face", {"faces": None}),
        ("split", {"label": 0}),
        ("split", {"label": "0", "parts": 2}),
        ("strictness", {}),
        ("strictness", {"tau1": True}),
    ],
)
def test_bad_requests_change_nothing(collection, kind, arguments):
    with pytest.raises(InputError):
        do(collection, kind, **arguments)
    np.testing.assert_array_equal(collection.book.labels, LABELS)
    assert len(collection.journal) == 0


@settings(deadline=None, max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_session_is_undone_exactly(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("j") / "j.sqlite"
    made = Collection(FEATURES, LABELS, EVIDENCE, path)
    made.prepare_questions()
    for _ in range(data.draw(st.integers(1, 6))):
        people = np.unique(made.book.labels[made.book.labels >= 0]).tolist()
        label = st.sampled_from(people)
        kind, arguments = data.draw(
            st.one_of(
                st.tuples(st.just("merge"), st.fixed_dictionaries({"labels": st.lists(label, min_size=2, max_size=3)})),
                st.tuples(st.just("split"), st.fixed_dictionaries({"label": label, "parts": st.integers(2, 4)})),
                st.tuples(
                    st.just("move"),
                    st.fixed_dictionaries(
                        {"faces": st.lists(st.integers(0, 239), min_size=1, max_size=9), "label": st.none() | label}
                    ),
                ),
                st.tuples(
                    st.just("not_face"),
                    st.fixed_dictionaries({"faces": st.lists(st.integers(0, 239), min_size=1, max_size=3)}),
                ),
                st.tuples(
                    st.just("name"), st.fixed_dictionaries({"label": label, "name": st.sampled_from(["a", "b", ""])})
                ),
                st.tuples(
                    st.just("answer"), st.fixed_dictionaries({"pair": st.integers(0, 50), "same": st.booleans()})
                ),
                st.tuples(st.just("skip"), st.fixed_dictionaries({"pair": st.integers(0, 50)})),
                st.tuples(st.just("strictness"), st.fixed_dictionaries({"tau1": st.sampled_from([0.4, 0.55, 0.7])})),
                st.tuples(st.just("undo"), st.just({})),
                st.tuples(st.just("redo"), st.just({})),
            )
        )
        try:
            do(made, kind, **arguments)
        except InputError:
            continue
    check_table(made)
    state = made.book.labels.copy(), dict(made.book.names), dict(made.book.answers)
    made.close()
    again = Collection(FEATURES, LABELS, EVIDENCE, path)
    np.testing.assert_array_equal(again.book.labels, state[0])
    assert (again.book.names, again.book.answers) == state[1:]
    check_table(again)
    while again.journal.can_undo:
        do(again, "undo")
    np.testing.assert_array_equal(again.book.labels, LABELS)
    assert (again.book.names, again.book.answers) == ({}, {})
    check_table(again)
    again.close()


def test_many_clusters_are_refreshed_at_once(collection, monkeypatch):
    import starfc.review.table as module

    monkeypatch.setattr(module, "_AT_ONCE_ABOVE", 1)
    monkeypatch.setattr(module, "_SPARE", 1)
    do(collection, "merge", labels=[0, 3])
    do(collection, "split", label=0, parts=4)
    check_table(collection)
    monkeypatch.setattr(module, "_AT_ONCE_ABOVE", 1000)
    do(collection, "split", label=6, parts=4)  # more new labels than there is room for
    check_table(collection)


def test_large_clusters_are_split_by_a_sample(monkeypatch):
    import starfc.review.grouping as module

    monkeypatch.setattr(module, "_MOST_FACES", 10)
    members = np.flatnonzero(LABELS == 0).astype(np.int32)
    groups = group_members(FEATURES, members, 2)
    assert len(np.unique(np.column_stack((groups, TRUTH[members])), axis=0)) == 2


def test_parts_beyond_the_limit_go_to_the_nearest(collection, monkeypatch):
    import starfc.review.collection as module

    monkeypatch.setattr(module, "_MOST_PARTS", 1)
    question = next(found for found in collection.list_questions(300) if found["joined"])
    do(collection, "answer", pair=question["pair"], same=False)
    faces = [side["face"] for side in question["sides"]]
    assert collection.book.labels[faces[0]] != collection.book.labels[faces[1]]


def test_answers_wait_for_the_questions(tmp_path):
    made = Collection(FEATURES, LABELS, EVIDENCE, tmp_path / "j.sqlite")
    assert made.list_questions(1) is None
    with pytest.raises(InputError, match="still being looked for"):
        do(made, "answer", pair=0, same=True)
    made.prepare_questions()
    made.prepare_questions()  # the second time there is nothing left to do
    assert made.list_questions(1)
    made.close()
    with pytest.raises(InputError, match="must be of the same faces"):
        Collection(FEATURES, LABELS[:9], EVIDENCE, tmp_path / "k.sqlite")


def test_a_failed_search_for_questions_is_stated(tmp_path, monkeypatch):
    import starfc.review.collection as module

    made = Collection(FEATURES, LABELS, EVIDENCE, tmp_path / "j.sqlite")
    monkeypatch.setattr(module, "find_questions", lambda *given, **named: 1 / 0)
    made.prepare_questions()
    with pytest.raises(InputError, match="no questions could be found"):
        made.list_questions(1)
    do(made, "merge", labels=[0, 3])
    made.close()


def test_corrections_are_honoured_by_a_later_run(collection, tmp_path):
    from starfc.constraints import apply_constraints
    from starfc.partition import label_components
    from starfc.prune import parse_edges

    do(collection, "split", label=0, parts=2)
    do(collection, "name", label=0, name="Ann")
    do(collection, "merge", labels=[100, 2])
    save_constraints(make_constraints(collection.book), tmp_path / "told.json")
    told = load_constraints(tmp_path / "told.json", n_faces=len(LABELS))
    graph = parse_edges(EVIDENCE.scored, 0.3)  # so loose that everything hangs together
    labels = apply_constraints(label_components(graph), graph, told)
    assert all(labels[a] == labels[b] for a, b in told.must) and all(labels[a] != labels[b] for a, b in told.cannot)
    ann = next(person for person in told.people if person.name == "Ann")
    assert labels[ann.face] == ann.label == 0
    assert read_book(collection.journal.path, LABELS).names == {0: "Ann"}
