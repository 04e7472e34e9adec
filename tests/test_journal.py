import os
import signal
import sqlite3
import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from starfc import corrections
from starfc.corrections import NOT_A_FACE, Change
from starfc.errors import InputError, OutputError
from starfc.journal import Journal, name_journal, read_book

FIRST = np.array([0, 0, 0, 1, 1, 2, -1, 5])


def snapshot(book):
    """Everything a person could see, as plain values."""
    groups = {label: tuple(book.members(label).tolist()) for label in np.unique(book.labels).tolist()}
    return book.labels.tolist(), dict(book.names), dict(book.answers), dict(book.skipped), dict(book.kept), groups


def check_members(book):
    for label in {*np.unique(book.labels).tolist(), *book.touched, 77, NOT_A_FACE}:
        assert book.members(label).tolist() == np.flatnonzero(book.labels == label).tolist()


def draw_change(data, book):
    """Draw a change that fits the present state."""
    n = len(book.labels)
    faces = np.array(sorted(data.draw(st.sets(st.integers(0, n - 1), max_size=4))), dtype=np.int32)
    after = np.array([data.draw(st.sampled_from([0, 1, 2, 9, NOT_A_FACE])) for _ in faces], dtype=np.int64)
    names = ()
    if data.draw(st.booleans()):
        label = data.draw(st.integers(0, 5))
        name = data.draw(st.none() | st.text(max_size=8).filter(lambda text: text.isprintable()))
        names = ((label, book.names.get(label), name),)
    answers = ()
    if data.draw(st.booleans()):
        pair = tuple(sorted(data.draw(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)))))
        answers = ((*pair, book.answers.get(pair), data.draw(st.sampled_from([True, False, None]))),)
    skipped = ((1, 2, (1, 2) in book.skipped, True),) if data.draw(st.booleans()) else ()
    kept = ((3, book.kept.get(3), data.draw(st.sampled_from(["Ann", None]))),) if data.draw(st.booleans()) else ()
    return Change("drawn", faces, book.labels[faces], after, names, answers, skipped=skipped, kept=kept)


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data(), st.sampled_from([0, 3, 500]))
def test_any_sequence_is_undone_exactly_and_replays(tmp_path_factory, monkeypatch, data, regroup_above):
    monkeypatch.setattr(corrections, "_REGROUP_ABOVE", regroup_above)
    path = tmp_path_factory.mktemp("journal") / "j.sqlite"
    journal = Journal(path, FIRST)
    initial = snapshot(journal.book)
    past, future = [initial], []  # what undo and redo must lead to
    for number in range(data.draw(st.integers(1, 12))):
        step = data.draw(st.sampled_from(["do", "do", "undo", "redo"]))
        if step == "do":
            journal.record(draw_change(data, journal.book), request=str(number), kind="move")
            past.append(snapshot(journal.book))
            future = []
        elif step == "undo":
            assert (journal.undo(request=str(number)) is None) == (len(past) == 1)
            if len(past) > 1:
                future.append(past.pop())
        else:
            assert (journal.redo(request=str(number)) is None) == (not future)
            if future:
                past.append(future.pop())
        assert snapshot(journal.book) == past[-1]
        assert (journal.can_undo, journal.can_redo) == (len(past) > 1, bool(future))
    check_members(journal.book)
    journal.close()
    assert snapshot(read_book(path, FIRST)) == past[-1]
    again = Journal(path, FIRST)
    assert snapshot(again.book) == past[-1]
    while again.undo(request=f"back {len(again)}") is not None:
        past.pop()
        assert snapshot(again.book) == past[-1]
    assert snapshot(again.book) == initial == past[0]
    check_members(again.book)
    again.close()


def make_change(book, faces, label):
    faces = np.array(faces, dtype=np.int32)
    return Change("moved", faces, book.labels[faces], np.full(len(faces), label))


def test_a_label_is_never_given_twice(tmp_path):
    journal = Journal(tmp_path / "j.sqlite", FIRST)
    journal.record(make_change(journal.book, [0], 40), request="a", kind="split")
    journal.undo(request="b")
    assert journal.book.next_label == 41
    journal.close()
    assert read_book(tmp_path / "j.sqlite", FIRST).next_label == 41


def test_a_request_counts_once_and_a_change_must_fit(tmp_path):
    journal = Journal(tmp_path / "j.sqlite", FIRST)
    change = make_change(journal.book, [0], 1)
    journal.record(change, request="a", kind="move")
    assert journal.find_request("a") == "moved" and journal.find_request("b") is None
    with pytest.raises(InputError, match="does not fit"):
        journal.record(change, request="b", kind="move")
    with pytest.raises(InputError, match="made before"):
        journal.record(make_change(journal.book, [1], 1), request="a", kind="move")
    with pytest.raises(InputError, match="does not fit"):
        journal.book.apply(change)
    assert len(journal) == 1
    assert [entry["title"] for entry in journal.history()] == ["moved"]
    assert change.list_labels(9) == [0, 1] and change.list_labels(1) == [0]
    journal.close()


def test_history_says_what_still_counts(tmp_path):
    journal = Journal(tmp_path / "j.sqlite", FIRST)
    for face, request in ((0, "a"), (1, "b")):
        journal.record(make_change(journal.book, [face], 1), request=request, kind="move")
    journal.undo(request="c")
    assert [(entry["kind"], entry["undone"]) for entry in journal.history()] == [
        ("undo", False), ("move", True), ("move", False),
    ]  # fmt: skip
    journal.record(make_change(journal.book, [2], 1), request="d", kind="move")  # b cannot be redone, nor does it count
    undone = [entry["undone"] for entry in journal.history()]
    journal.close()
    assert undone == [False, False, True, False]
    again = Journal(tmp_path / "j.sqlite", FIRST)
    assert [entry["undone"] for entry in again.history()] == undone
    again.close()


def test_in_older_journals_unlabelled_faces_are_people(tmp_path):
    path = tmp_path / "j.sqlite"
    Journal(path, FIRST).close()
    base = sqlite3.connect(path)
    base.execute("DELETE FROM meta WHERE key = 'unlabelled'")
    base.commit()
    base.close()
    assert read_book(path, FIRST).labels.tolist() == [0, 0, 0, 1, 1, 2, 6, 5]


def test_the_journal_is_append_only(tmp_path):
    journal = Journal(tmp_path / "j.sqlite", FIRST)
    journal.record(make_change(journal.book, [0], 1), request="a", kind="move")
    journal.close()
    base = sqlite3.connect(tmp_path / "j.sqlite")
    for statement in ("DELETE FROM actions", "UPDATE actions SET title = 'x'"):
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            base.execute(statement)
    base.close()


def test_one_writer_at_a_time(tmp_path):
    journal = Journal(tmp_path / "j.sqlite", FIRST)
    with pytest.raises(OutputError, match="open in another review"):
        Journal(tmp_path / "j.sqlite", FIRST)
    journal.record(make_change(journal.book, [0], 1), request="a", kind="move")
    assert read_book(tmp_path / "j.sqlite", FIRST).labels[0] == 1  # reading beside it is fine
    journal.close()
    Journal(tmp_path / "j.sqlite", FIRST).close()


def test_foreign_journals_are_refused(tmp_path):
    path = tmp_path / "j.sqlite"
    Journal(path, FIRST).close()
    with pytest.raises(InputError, match="other labels"):
        Journal(path, FIRST[::-1])
    with pytest.raises(InputError, match="other labels"):
        read_book(path, FIRST[::-1])
    garbage = tmp_path / "garbage.sqlite"
    garbage.write_bytes(b"not a database at all" * 100)
    with pytest.raises(OutputError, match="cannot be used"):
        Journal(garbage, FIRST)
    with pytest.raises(InputError, match="cannot be read"):
        read_book(garbage, FIRST)
    other = sqlite3.connect(tmp_path / "other.sqlite")
    other.execute("CREATE TABLE songs (title TEXT)")
    other.commit()
    other.close()
    with pytest.raises(InputError, match="no journal"):
        Journal(tmp_path / "other.sqlite", FIRST)
    newer = sqlite3.connect(path)
    newer.execute("UPDATE meta SET value = '99' WHERE key = 'format'")
    newer.commit()
    newer.close()
    with pytest.raises(InputError, match="format 99"):
        Journal(path, FIRST)
    with pytest.raises(OutputError, match="cannot be written"):
        Journal(tmp_path / "nowhere" / "j.sqlite", FIRST)


def test_a_journal_in_a_read_only_folder_is_read(tmp_path, monkeypatch):
    path = tmp_path / "j.sqlite"
    journal = Journal(path, FIRST)
    journal.record(make_change(journal.book, [0], 1), request="a", kind="move")
    journal.close()
    opened = []
    connect = sqlite3.connect
    monkeypatch.setattr("os.access", lambda path, mode: False)  # root may write everywhere
    monkeypatch.setattr("sqlite3.connect", lambda address, **given: opened.append(address) or connect(address, **given))
    assert read_book(path, FIRST).labels[0] == 1
    assert opened[0].endswith("immutable=1")
    path.write_bytes(b"nothing" * 1000)
    with pytest.raises(InputError, match="read-only: copy it"):
        read_book(path, FIRST)


def test_the_journals_place():
    assert name_journal("a/who.npy").name == "who.npy.review.sqlite"
    assert read_book("nowhere.sqlite", FIRST).labels[0] == 0


def test_a_killed_writer_loses_nothing_it_acknowledged(tmp_path):
    path = tmp_path / "j.sqlite"
    script = (
        "import sys, numpy as np\n"
        "from starfc.corrections import Change\n"
        "from starfc.journal import Journal\n"
        f"journal = Journal({str(path)!r}, np.zeros(50, np.int64))\n"
        "for number in range(100000):\n"
        "    face = np.array([number % 50], np.int32)\n"
        "    change = Change(str(number), face, journal.book.labels[face], np.array([number % 7]))\n"
        "    journal.record(change, request=str(number), kind='move')\n"
        "    print(number, flush=True)\n"
    )
    writer = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    seen = writer.stdout.readline()
    deadline = time.monotonic() + 0.7
    while time.monotonic() < deadline:
        seen = writer.stdout.readline()
    os.kill(writer.pid, signal.SIGKILL)
    acknowledged = int((seen + writer.stdout.read()).split("\n")[-2])
    writer.wait()
    writer.stdout.close()
    journal = Journal(path, np.zeros(50, np.int64))
    titles = [entry["title"] for entry in reversed(journal.history(10**6))]
    assert titles in ([str(n) for n in range(acknowledged + 1)], [str(n) for n in range(acknowledged + 2)])
    expected = np.zeros(50, np.int64)
    for number in range(len(titles)):
        expected[number % 50] = number % 7
    np.testing.assert_array_equal(journal.book.labels, expected)
    journal.close()
