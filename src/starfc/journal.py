"""Journal: the file that keeps corrections, so that nothing is lost and everything can be taken back.

In: the labels of a file, and changes. Out: an SQLite file beside the labels which every change enters as one
transaction before it counts, and the Book it leads to. The journal is append-only: to undo is to append "undo", and
triggers refuse anything else; reading it from the beginning gives the state again.

WAL with `synchronous=FULL`: an action that was acknowledged survives a crash and a power loss. A request that is sent
twice (a page that got no answer tries again) is recognised by its id and counts once.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import threading
import zlib
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .corrections import Book, Change, number_alone
from .errors import InputError, OutputError

_FORMAT = 1
_LEFT_OUT = "left out"  # what -1 in the file means; in older journals such a face was a person alone
_SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE actions (
  id INTEGER PRIMARY KEY AUTOINCREMENT, request TEXT NOT NULL UNIQUE, kind TEXT NOT NULL, target INTEGER,
  at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')), title TEXT NOT NULL,
  faces BLOB, before BLOB, after BLOB, extra TEXT
);
CREATE TRIGGER no_update BEFORE UPDATE ON actions BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;
CREATE TRIGGER no_delete BEFORE DELETE ON actions BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END;
"""


class Journal:
    """The file that every change enters before it counts, and the state it leads to.

    One process at a time may write; `read_book` reads beside it.
    """

    def __init__(self, path: str | Path, labels: NDArray[np.int64]) -> None:
        self.path = Path(path)
        self._lock = _take_lock(self.path)
        self._mutex = threading.RLock()
        try:
            self._base = sqlite3.connect(self.path, check_same_thread=False, isolation_level=None)
            self._base.execute("PRAGMA journal_mode=WAL")
            self._base.execute("PRAGMA synchronous=FULL")
            _prepare(self._base, labels, self.path)
            self.book, self._done, self._undone = _replay(self._base, labels)
        except sqlite3.Error as error:
            self._release()
            raise OutputError(f"journal {self.path} cannot be used ({error}); move it away to begin anew") from error
        except BaseException:
            self._release()
            raise

    def close(self) -> None:
        """Close the file; everything is in it already."""
        with self._mutex:
            self._base.close()
            self._release()

    def _release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    @property
    def can_undo(self) -> bool:
        """Tell whether there is an action to take back."""
        return bool(self._done)

    @property
    def can_redo(self) -> bool:
        """Tell whether there is an action that was taken back last."""
        return bool(self._undone)

    def __len__(self) -> int:
        return int(self._base.execute("SELECT count(*) FROM actions").fetchone()[0])

    def find_request(self, request: str) -> str | None:
        """Return the title of the action a request led to, if it was made already."""
        row = self._base.execute("SELECT title FROM actions WHERE request = ?", (request,)).fetchone()
        return None if row is None else str(row[0])

    def record(self, change: Change, *, request: str, kind: str) -> None:
        """Write a change down, then make it."""
        with self._mutex:
            written = self._append(request, kind, None, change)
            self._done.append(written)
            self._undone.clear()
            self.book.apply(change)

    def undo(self, *, request: str) -> Change | None:
        """Take the last action back; None if there is none."""
        return self._step(request, "undo", self._done, self._undone)

    def redo(self, *, request: str) -> Change | None:
        """Make the action again that was taken back last; None if there is none."""
        return self._step(request, "redo", self._undone, self._done)

    def history(self, limit: int = 50) -> list[dict[str, Any]]:
        """Return the latest actions, newest first."""
        rows = self._base.execute(
            "SELECT id, kind, target, at, title FROM actions ORDER BY id DESC LIMIT ?", (limit,)
        ).fetchall()
        done = set(self._done)  # not "all but those that can be redone": who goes on after an undo leaves it undone
        return [
            {
                "id": number, "kind": kind, "target": target, "at": at, "title": title,
                "undone": number not in done and kind not in ("undo", "redo"),
            }
            for number, kind, target, at, title in rows
        ]  # fmt: skip

    def _step(self, request: str, kind: str, source: list[int], target: list[int]) -> Change | None:
        with self._mutex:
            if not source:
                return None
            change = _load_change(self._base, source[-1])
            made = change.reverse() if kind == "undo" else change
            self._append(request, kind, source[-1], Change(f"{kind}: {change.title}"))
            target.append(source.pop())
            self.book.apply(made)
            return made

    def _append(self, request: str, kind: str, target: int | None, change: Change) -> int:
        """Write one row as one transaction; it is on the disk when this returns."""
        if not np.array_equal(self.book.labels[change.faces], change.before):
            raise InputError(f"the change '{change.title}' does not fit the present clusters; load the page again")
        parts = {
            "names": change.names, "answers": change.answers, "level": change.level, "skipped": change.skipped,
            "kept": change.kept, "moved": change.moved,
        }  # fmt: skip
        extra = json.dumps(parts)
        packed = (_pack(change.faces), _pack(change.before), _pack(change.after))
        try:
            cursor = self._base.execute(
                "INSERT INTO actions (request, kind, target, title, faces, before, after, extra)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (request, kind, target, change.title, *packed, extra),
            )
        except sqlite3.IntegrityError as error:
            raise InputError(f"request '{request}' was made before; send another id") from error
        except sqlite3.Error as error:
            raise OutputError(f"journal {self.path} cannot be written ({error}); nothing was changed") from error
        return int(cursor.lastrowid or 0)


def name_journal(clusters: str | Path) -> Path:
    """Return where the corrections of a label file are kept.

    >>> name_journal("out/people.csv").name
    'people.csv.review.sqlite'
    """
    clusters = Path(clusters)
    return clusters.with_name(clusters.name + ".review.sqlite")


def read_book(path: str | Path, labels: NDArray[np.int64]) -> Book:
    """Return the corrected state of `labels`; as they are if there is no journal at `path`. Also beside a writer."""
    path = Path(path)
    if not path.is_file():
        return Book(labels)
    try:
        with _open_for_reading(path) as base:
            _require_same(base, labels, path)
            return _replay(base, labels)[0]
    except sqlite3.Error as error:
        read_only = not os.access(path.resolve().parent, os.W_OK)
        remedy = (
            "its folder is read-only: copy it and the labels to another" if read_only else "move it away to begin anew"
        )
        raise InputError(f"journal {path} cannot be read ({error}); {remedy}") from error


def fits_journal(path: Path, labels: NDArray[np.int64]) -> bool:
    """Tell whether there is a journal that was begun with these labels."""
    try:
        with _open_for_reading(path) as base:
            _require_same(base, labels, path)
    except (InputError, sqlite3.Error):
        return False
    return True


def count_actions(path: Path) -> int:
    """Count the actions in a journal; none if there is no journal at `path`."""
    if not path.is_file():
        return 0
    try:
        with _open_for_reading(path) as base:
            return int(base.execute("SELECT count(*) FROM actions").fetchone()[0])
    except sqlite3.Error:
        return 0  # of another program, or damaged: whoever opens it will say so


def require_closed(path: Path) -> None:
    """Refuse to go on while a review has the journal open; there need not be one."""
    if path.is_file() and (lock := _take_lock(path)) is not None:
        os.close(lock)


def set_aside(path: Path) -> Path:
    """Give a journal that nobody has open another name, with what SQLite keeps beside it; return the name."""
    lock = _take_lock(path)
    try:
        number = 1
        while (aside := path.with_name(f"{path.name}.{number}")).exists():
            number += 1
        for ending in ("-wal", "-shm", ""):
            part = path.with_name(path.name + ending)
            if part.exists():
                part.rename(aside.with_name(aside.name + ending))
    finally:
        if lock is not None:
            os.close(lock)
    return aside


def _open_for_reading(path: Path) -> closing[sqlite3.Connection]:
    """Open a journal that is there, beside whoever writes to it."""
    # SQLite wants to make files beside it even to read; in a read-only folder nobody can write, so it may do without.
    frozen = not os.access(path.resolve().parent, os.W_OK) and not path.with_name(path.name + "-wal").exists()
    return closing(sqlite3.connect(f"file:{_quote(path)}?{'immutable=1' if frozen else 'mode=ro'}", uri=True))


def _quote(path: Path) -> str:
    """Escape a path for an SQLite address."""
    return str(path).replace("%", "%25").replace("?", "%3f").replace("#", "%23")


def _take_lock(path: Path) -> int | None:
    """Keep other processes from writing to the same journal; a lock ends with its process, however that ends."""
    try:
        import fcntl
    except ImportError:  # not POSIX
        return None
    lock = path.with_name(path.name + ".lock")
    try:
        handle = os.open(lock, os.O_CREAT | os.O_RDWR, 0o600)
    except OSError as error:
        raise OutputError(
            f"journal {path} cannot be written: {error.strerror}; change the permissions of its folder, or copy the"
            " labels to another"
        ) from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise OutputError(f"journal {path} is open in another review; close that one first") from None
    return handle


def _prepare(base: sqlite3.Connection, labels: NDArray[np.int64], path: Path) -> None:
    """Make the tables in an empty file; refuse a journal of other labels."""
    if base.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        _require_same(base, labels, path)
        return
    facts = {"format": str(_FORMAT), "n_faces": str(len(labels)), "digest": _digest(labels), "unlabelled": _LEFT_OUT}
    # executescript ends the transaction it is in, so the statements go one by one.
    statements = [
        part for part in _SCHEMA.replace("; END;", "; END\0").replace(";\n", "\0").split("\0") if part.strip()
    ]
    base.execute("BEGIN IMMEDIATE")
    for statement in statements:
        base.execute(statement)
    base.executemany("INSERT INTO meta VALUES (?, ?)", facts.items())
    base.execute("COMMIT")


def _require_same(base: sqlite3.Connection, labels: NDArray[np.int64], path: Path) -> None:
    """Refuse a journal that was begun with other labels or another format."""
    try:
        facts = dict(base.execute("SELECT key, value FROM meta").fetchall())
    except sqlite3.OperationalError as error:
        if "no such table" not in str(error):
            raise
        raise InputError(f"{path} is no journal of corrections ({error}); move it away to begin anew") from error
    if facts.get("format") != str(_FORMAT):
        raise InputError(
            f"{path} has format {facts.get('format')}, this starfc reads {_FORMAT}; use the starfc that wrote it"
        )
    if facts.get("digest") != _digest(labels):
        raise InputError(
            f"{path} corrects other labels than these; give the label file it was begun with, or move it away"
        )


def _replay(base: sqlite3.Connection, labels: NDArray[np.int64]) -> tuple[Book, list[int], list[int]]:
    """Read the journal from the beginning."""
    facts = dict(base.execute("SELECT key, value FROM meta").fetchall())
    book = Book(labels if facts.get("unlabelled") == _LEFT_OUT else number_alone(labels))
    done: list[int] = []
    undone: list[int] = []
    for number, kind, target in base.execute("SELECT id, kind, target FROM actions ORDER BY id").fetchall():
        if kind == "undo":
            undone.append(done.pop())
            book.apply(_load_change(base, target).reverse())
        elif kind == "redo":
            done.append(undone.pop())
            book.apply(_load_change(base, target))
        else:
            done.append(number)
            undone.clear()
            book.apply(_load_change(base, number))
    return book, done, undone


def _load_change(base: sqlite3.Connection, number: int) -> Change:
    row = base.execute("SELECT title, faces, before, after, extra FROM actions WHERE id = ?", (number,)).fetchone()
    title, faces, before, after, extra = row
    content = json.loads(extra)
    return Change(
        title,
        _unpack(faces, np.dtype("<i4")),
        _unpack(before, np.dtype("<i8")),
        _unpack(after, np.dtype("<i8")),
        tuple((label, old, new) for label, old, new in content["names"]),
        tuple((i, j, old, new) for i, j, old, new in content["answers"]),
        (content["level"][0], content["level"][1]) if content.get("level") else None,  # not in older journals
        tuple((i, j, old, new) for i, j, old, new in content.get("skipped", ())),
        tuple((face, old, new) for face, old, new in content.get("kept", ())),
        tuple((face, old, new) for face, old, new in content.get("moved", ())),
    )


def _pack(values: NDArray[Any]) -> bytes:
    return zlib.compress(values.astype(values.dtype.newbyteorder("<")).tobytes(), 1)


def _unpack(blob: bytes, dtype: np.dtype[Any]) -> NDArray[Any]:
    return np.frombuffer(zlib.decompress(blob), dtype=dtype)


def _digest(labels: NDArray[np.int64]) -> str:
    return hashlib.blake2b(np.ascontiguousarray(labels, dtype="<i8").tobytes(), digest_size=16).hexdigest()
