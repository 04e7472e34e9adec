import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from starfc.constraints import Constraints, Person
from starfc.corrections import NOT_A_FACE, Book, Change
from starfc.errors import InputError, OutputError
from starfc.export import (
    carry_over,
    export_fiftyone,
    export_folders,
    final_labels,
    make_constraints,
    name_people,
)
from starfc.images import load_images
from starfc.journal import Journal, name_journal, read_book
from starfc.labels import load_labels, save_labels


@pytest.fixture
def book():
    book = Book(np.array([0, 0, 1, 1, 2, 3]))
    book.apply(Change("x", np.array([5], np.int32), np.array([3]), np.array([NOT_A_FACE])))
    book.names[1] = "Ann / Lee"
    return book


@pytest.fixture
def images(tmp_path):
    folder = tmp_path / "pictures"
    folder.mkdir()
    for row in range(6):
        (folder / f"f{row}.jpg").write_bytes(b"jpeg %d" % row)
    (folder / "f3.jpg").unlink()
    (folder / "list.txt").write_text("\n".join(f"f{row}.jpg" for row in range(6)))
    return load_images(folder / "list.txt", n_faces=6)


def test_labels(book):
    assert final_labels(book).tolist() == [0, 0, 1, 1, 2, -1]


@pytest.mark.parametrize("copy", [False, True])
def test_folders(book, images, tmp_path, copy):
    target = tmp_path / "people"
    export_folders(Book(np.zeros(6, np.int64)), images, target)  # is replaced
    assert export_folders(book, images, target, copy=copy) == 4
    found = {str(path.relative_to(target)) for path in target.rglob("*") if not path.is_dir()}
    assert found == {
        ".starfc-export",
        "person 0/0000000-f0.jpg", "person 0/0000001-f1.jpg", "Ann Lee 1/0000002-f2.jpg", "_alone/0000004-f4.jpg",
    }  # fmt: skip
    picture = target / "person 0" / "0000001-f1.jpg"
    assert picture.is_symlink() != copy
    assert picture.read_bytes() == b"jpeg 1"


def test_folders_of_others_are_not_touched(book, images, tmp_path):
    out = tmp_path / "mine"
    out.mkdir()
    (out / "precious.txt").write_text("mine")
    with pytest.raises(OutputError, match="no export has made"):
        export_folders(book, images, out)
    assert (out / "precious.txt").read_text() == "mine"
    (out / "precious.txt").unlink()
    n_pictures = export_folders(book, images, out)  # an empty one will do, and so will its own
    assert export_folders(book, images, out, copy=True) == n_pictures > 0
    with pytest.raises(OutputError, match="holds the pictures"):
        export_folders(book, replace(images, root=out.resolve()), out)


def test_folders_that_cannot_be_replaced_are_named(book, images, tmp_path, monkeypatch):
    out = tmp_path / "out"
    out.mkdir()
    monkeypatch.setattr("os.access", lambda path, mode: Path(path).name != "out")  # root may write everywhere
    with pytest.raises(OutputError, match="out is not writable; change its permissions or choose another"):
        export_folders(book, images, out)
    monkeypatch.setattr(Path, "is_mount", lambda path: path.name == "out")
    with pytest.raises(OutputError, match="mounted, which cannot be replaced; name one inside it"):
        export_folders(book, images, out)


def test_names_that_look_alike_on_disk_have_folders_of_their_own(images, tmp_path):
    book = Book(np.repeat([0, 1], [len(images) - 2, 2]))
    book.names = {0: "a b 1", 1: "a/b"}
    export_folders(book, images, tmp_path / "out")
    assert len([path for path in (tmp_path / "out").iterdir() if path.is_dir()]) == 2
    book = Book(np.array([0, 1, 2]))
    book.names = {0: "Ann (2)", 1: "Ann", 2: "Ann"}
    assert len(set(name_people(book).values())) == 3


def test_fiftyone(book, images, tmp_path):
    assert export_fiftyone(book, images, tmp_path / "fo.json") == 4  # f3 is not on the disk, f5 is no face
    content = json.loads((tmp_path / "fo.json").read_text())
    assert set(content) == {"classes", "labels"}
    assert content["classes"] == ["person 0", "Ann / Lee", "person 2"]
    assert content["labels"] == {"f0": 0, "f1": 0, "f2": 1, "f4": 2}
    assert read_as_fiftyone(tmp_path / "fo.json", images.root)["f2"] == (images.root / "f2.jpg", ["Ann / Lee"])


def read_as_fiftyone(labels_path, data_path):
    """Read the JSON as FiftyOne's importer does: files by their path without ending, targets as places in classes."""
    files = {path.relative_to(data_path).with_suffix("").as_posix(): path for path in data_path.rglob("*.*")}
    content = json.loads(labels_path.read_text())
    targets = {name: target if isinstance(target, list) else [target] for name, target in content["labels"].items()}
    return {name: (files[name], [content["classes"][place] for place in targets[name]]) for name in sorted(targets)}


def test_fiftyone_with_several_faces_in_a_picture_and_pictures_in_folders(book, tmp_path):
    folder = tmp_path / "album"
    (folder / "2020").mkdir(parents=True)
    for name in ("2020/party.v2.jpg", "me.png"):
        (folder / name).write_bytes(b"x")
    party, me = "2020/party.v2.jpg", "me.png"
    lines = [party, me, f"./{party}", str(folder / me), party, me]
    (folder / "list.txt").write_text("\n".join(lines))
    listed = load_images(folder / "list.txt", n_faces=6)
    assert export_fiftyone(book, listed, tmp_path / "fo.json") == 2
    read = read_as_fiftyone(tmp_path / "fo.json", folder)
    assert read["2020/party.v2"][1] == ["person 0", "Ann / Lee", "person 2"]
    assert read["me"] == (folder / "me.png", ["person 0", "Ann / Lee"])
    (folder / "me.jpg").write_bytes(b"x")
    (folder / "list.txt").write_text("\n".join([*lines[:-2], "me.jpg", "me.png"]))
    with pytest.raises(InputError, match=r"me.png and .*me.jpg have one name"):
        export_fiftyone(book, load_images(folder / "list.txt", n_faces=6), tmp_path / "fo.json")


def test_pictures_must_be_of_the_same_faces(book, tmp_path):
    (tmp_path / "list.txt").write_text("a.jpg\n")
    few = load_images(tmp_path / "list.txt", n_faces=1)
    for export in (export_folders, export_fiftyone):
        with pytest.raises(InputError, match="1 pictures for 6 labels"):
            export(book, few, tmp_path / "out.json")


def test_constraints_agree_with_the_present_state(book):
    book.answers = {(0, 1): True, (0, 2): True, (1, 2): False, (2, 3): False, (4, 5): True}
    told = make_constraints(book)
    assert told.must.tolist() == [[0, 1]] and told.cannot.tolist() == [[1, 2]]
    assert told.not_faces.tolist() == [5]
    assert Person(1, 2, "Ann / Lee") in told.people and Person(0, 1) in told.people  # 1 was told from 2
    assert not any(person.label == NOT_A_FACE for person in told.people)


def test_names(book):
    assert name_people(book) == {0: "person 0", 1: "Ann / Lee", 2: "person 2"}


def test_people_have_folders_of_their_own_on_any_disk(images, tmp_path):
    """Marks of Devanagari survive, long names are cut, and names that differ by case do not share a folder."""
    book = Book(np.arange(6))
    book.names = {0: "हिन्दी", 1: "ann", 2: "Ann", 4: "\U0001f600" * 150, 5: "\U0001f600" * 151}
    export_folders(book, images, tmp_path / "out")
    found = sorted(path.name for path in (tmp_path / "out").iterdir() if path.is_dir())
    assert {"हिन्दी", "ann", "Ann (2)"} <= set(found) and len({name.casefold() for name in found}) == len(found) == 5


def test_long_file_names_are_cut(tmp_path):
    folder = tmp_path / "pictures"
    folder.mkdir()
    name = "ü" * 125 + ".jpeg"
    (folder / name).write_bytes(b"x")
    (folder / "list.txt").write_text(name)
    listed = load_images(folder / "list.txt", n_faces=1)
    assert export_folders(Book(np.array([0])), listed, tmp_path / "out") == 1
    made = next((tmp_path / "out" / "_alone").iterdir())
    assert made.name.startswith("0000000-üü") and made.suffix == ".jpeg" and made.read_bytes() == b"x"


def test_command(run, book, images, tmp_path):
    clusters = tmp_path / "who.npy"
    save_labels(np.array([0, 0, 1, 1, 2, 3]), clusters)
    journal = Journal(name_journal(clusters), load_labels(clusters))
    faces = np.array([4], np.int32)
    journal.record(Change("m", faces, np.array([2]), np.array([0])), request="a", kind="merge")
    journal.close()
    outcome = run("export", clusters, "-o", tmp_path / "fixed.csv", "--constraints", tmp_path / "told.json", "--json")
    assert outcome.code == 0, outcome.err
    assert json.loads(outcome.out) == {"n": 6, "n_clusters": 3, "n_must": 0, "n_cannot": 0, "n_not_faces": 0}
    assert load_labels(tmp_path / "fixed.csv").tolist() == [0, 0, 1, 1, 0, 3]
    pictures = tmp_path / "pictures" / "list.txt"
    outcome = run(
        "export", clusters, "--folders", tmp_path / "p", "--fiftyone", tmp_path / "f.json", "--images", pictures
    )
    assert (outcome.code, outcome.err) == (0, "")
    assert "6 faces of 3 people" in outcome.out
    assert run("export", clusters).code == 2
    assert "need the pictures" in run("export", clusters, "--folders", tmp_path / "q").err


def test_an_export_that_is_read_again_knows_what_is_no_face(run, book, tmp_path):
    clusters, again = tmp_path / "who.npy", tmp_path / "again.csv"
    save_labels(np.array([0, 0, 1, 1, 2, 3]), clusters)
    journal = Journal(name_journal(clusters), load_labels(clusters))
    marked = Change("x", np.array([5], np.int32), np.array([3]), np.array([NOT_A_FACE]))
    journal.record(marked, request="a", kind="not_face")
    journal.close()
    counts = [json.loads(run("export", clusters, "-o", again, "--json").out)["n_clusters"]]
    counts.append(json.loads(run("export", again, "-o", tmp_path / "third.npy", "--json").out)["n_clusters"])
    for labels in (clusters, again):
        counts.append(json.loads(run("report", labels, "-o", tmp_path / "r.html", "--json").out)["n_clusters"])
        assert "left out" in (tmp_path / "r.html").read_text()
    assert counts == [3, 3, 3, 3]
    assert load_labels(tmp_path / "third.npy").tolist() == [0, 0, 1, 1, 2, -1]


def test_names_answers_and_non_faces_go_on_in_the_next_run(run, tmp_path):
    """Review, export, cluster again, review again: nothing has to be said twice."""
    rng = np.random.default_rng(0)
    np.save(tmp_path / "faces.npy", np.repeat(rng.normal(size=(6, 16)), 10, axis=0) + 0.3 * rng.normal(size=(60, 16)))
    first, again = tmp_path / "people.csv", tmp_path / "again.csv"
    options = ("--k", 12, "--scorer", "cosine", "--partition", "components")
    assert run("cluster", tmp_path / "faces.npy", "-o", first, *options, "--tau1", 0.5).code == 0
    labels = load_labels(first)
    journal = Journal(name_journal(first), labels)
    whole = np.flatnonzero(labels == labels[0]).astype(np.int32)
    apart, together = (int(whole[0]), int(whole[5])), (int(whole[0]), int(whole[1]))
    changes = [
        Change("named", names=((int(labels[0]), None, "Ann"),)),
        Change("split", whole[:4], labels[whole[:4]], np.full(4, 99), answers=((*apart, None, False),)),
        Change("yes", answers=((*together, None, True),)),
        Change("no face", np.array([59], np.int32), labels[[59]], np.array([NOT_A_FACE])),
    ]  # fmt: skip
    for number, change in enumerate(changes):
        journal.record(change, request=str(number), kind="test")
    journal.close()
    assert run("export", first, "--constraints", tmp_path / "told.json").code == 0
    rerun = ("cluster", tmp_path / "faces.npy", "-o", again, *options, "--tau1", 0.45)
    for _ in range(2):  # the second time the journal is there already
        assert run(*rerun, "--constraints", tmp_path / "told.json").code == 0
    before, after = (read_book(name_journal(path), load_labels(path)) for path in (first, again))
    assert after.answers == before.answers and sorted(after.names.values()) == ["Ann"]
    assert after.labels[59] == NOT_A_FACE and after.labels[whole[5]] == before.labels[whole[5]] == labels[0]
    assert after.labels[whole[0]] == after.labels[whole[1]] != after.labels[whole[5]]
    assert run("export", again, "--constraints", tmp_path / "told2.json").code == 0
    told = [json.loads((tmp_path / name).read_text()) for name in ("told.json", "told2.json")]
    assert [told[0][key] == told[1][key] for key in ("must", "cannot", "not_faces")] == [True] * 3
    names = [{person["label"]: person["name"] for person in one["people"] if person["name"]} for one in told]
    assert names[0] == names[1] == {int(labels[0]): "Ann"}
    # labels of another run in the same place: the corrections of the old ones are kept
    assert "are kept in" in run(*rerun[:3], first, *rerun[4:], "--constraints", tmp_path / "told2.json").err
    kept = name_journal(first).with_name(name_journal(first).name + ".1")
    assert read_book(kept, labels).names == before.names
    assert read_book(name_journal(first), load_labels(first)).names == before.names


def test_corrected_labels_are_not_overwritten(run, tmp_path):
    rows = np.random.default_rng(0).normal(size=(60, 16)).astype(np.float32)
    np.save(tmp_path / "f.npy", rows)
    labels = np.repeat(np.arange(30), 2)
    save_labels(labels, tmp_path / "people.csv")
    before = (tmp_path / "people.csv").read_bytes()
    journal = Journal(name_journal(tmp_path / "people.csv"), labels)
    journal.record(Change("x", np.array([5], np.int32), np.array([2]), np.array([7])), request="a", kind="move")
    journal.close()
    done = run("cluster", str(tmp_path / "f.npy"), "-o", str(tmp_path / "people.csv"))
    assert done.code == 1 and "was corrected (1 actions" in done.err
    assert (tmp_path / "people.csv").read_bytes() == before


def test_constraints_that_change_no_label_reach_the_journal_that_is_there(tmp_path):
    labels, clusters = np.array([0, 0, 0, 1, 1, -1]), tmp_path / "people.npy"
    journal = Journal(name_journal(clusters), labels)
    split = Change("split", np.array([2], np.int32), np.array([0]), np.array([5]), answers=((0, 2, None, False),))
    journal.record(split, request="a", kind="split")
    journal.record(Change("named", names=((1, None, "Bob"),)), request="b", kind="name")
    journal.close()
    told = Constraints(
        must=np.array([[1, 0], [0, 2], [1, 2]]), cannot=np.array([[4, 1]]), not_faces=np.array([5]),
        people=(Person(0, 0, "Ann"), Person(1, 3, "Robert")),
    )  # fmt: skip
    for _ in range(2):  # the second time nothing is new
        assert carry_over(told, labels, clusters, source="told.json") is None
        book = read_book(name_journal(clusters), labels)
        # what was said on the page about 2 stays, and so does Bob
        assert book.answers == {(0, 2): False, (0, 1): True, (1, 4): False}
        assert book.names == {0: "Ann", 1: "Bob"} and book.labels.tolist() == [0, 0, 5, 1, 1, NOT_A_FACE]
    journal = Journal(name_journal(clusters), labels)
    assert journal.history(1)[0]["title"] == "carried over from told.json" and len(journal) == 3
    journal.close()


def test_labels_under_review_are_not_overwritten(run, tmp_path):
    np.save(tmp_path / "f.npy", np.random.default_rng(0).normal(size=(20, 16)).astype(np.float32))
    save_labels(np.arange(20), tmp_path / "people.npy")
    (tmp_path / "told.csv").write_text("must,0,1\n")
    before = (tmp_path / "people.npy").read_bytes()
    journal = Journal(name_journal(tmp_path / "people.npy"), np.arange(20))
    done = run("cluster", tmp_path / "f.npy", "-o", tmp_path / "people.npy", "--constraints", tmp_path / "told.csv")
    journal.close()
    assert done.code == 1 and "open in another review" in done.err
    assert (tmp_path / "people.npy").read_bytes() == before


def test_an_open_journal_is_not_moved(tmp_path):
    journal = Journal(tmp_path / "people.npy.review.sqlite", np.zeros(3, np.int64))
    with pytest.raises(OutputError, match="open in another review"):
        carry_over(Constraints(), np.ones(3, np.int64), tmp_path / "people.npy", source="told.json")
    journal.close()
    aside = carry_over(Constraints(), np.ones(3, np.int64), tmp_path / "people.npy", source="told.json")
    assert aside is not None and aside.exists()
