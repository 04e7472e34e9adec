"""Export: a corrected clustering in the forms that other programs and people use.

In: Book (labels as corrected), pictures where there are any. Out: labels (`.npy`, `.csv`, `.parquet`, `.meta`) with -1
for what is no face; one folder per person, of links or copies; the JSON of FiftyOne's image classification; and the
constraints that a later `starfc cluster --constraints` honours, and the journal that its result begins with. Everything
is written aside and renamed.
"""

from __future__ import annotations

import os
import shutil
import unicodedata
import uuid
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .atomic import replacing_folder, write_json
from .constraints import Constraints, Person
from .corrections import NOT_A_FACE, Book, Change
from .errors import InputError, OutputError
from .images import ImageList
from .journal import Journal, fits_journal, name_journal, set_aside
from .names import make_file_name

_MARK = ".starfc-export"
_ALONE = "_alone"
_LONGEST_FILE_NAME = 200  # bytes, of 255


def final_labels(book: Book) -> NDArray[np.int64]:
    """Return the corrected labels, int64 (n,), -1 for what is no face.

    >>> final_labels(Book(np.array([4, 4, 7])))
    array([4, 4, 7])
    """
    return np.where(book.labels == NOT_A_FACE, -1, book.labels)


def make_constraints(book: Book, *, people: bool = True) -> Constraints:
    """Turn answers into must-link and cannot-link pairs, as far as the present state still agrees with them.

    >>> book = Book(np.array([0, 0, 1]))
    >>> book.answers = {(0, 1): True, (1, 2): False, (0, 2): True}
    >>> told = make_constraints(book)
    >>> told.must.tolist(), told.cannot.tolist()
    ([[0, 1]], [[1, 2]])
    """
    pairs = np.array(sorted(book.answers), dtype=np.int64).reshape(-1, 2)
    same = np.array([book.answers[first, second] for first, second in pairs.tolist()], dtype=bool)
    ends = book.labels[pairs]
    faces = (ends >= 0).all(axis=1)
    together = ends[:, 0] == ends[:, 1]
    return Constraints(
        pairs[faces & same & together],
        pairs[faces & ~same & ~together],
        np.flatnonzero(book.labels == NOT_A_FACE),
        tuple(_list_people(book)) if people else (),
        np.array(sorted(book.moved), dtype=np.int64),
    )


def carry_over(
    constraints: Constraints, labels: NDArray[np.int64], clusters: str | Path, *, source: str
) -> Path | None:
    """Begin the journal of a new label file with what was known before, so that names and answers go on.

    Parameters
    ----------
    constraints : Constraints
        That the labels honour.
    labels : int64 (n,)
        What was written to `clusters`.
    clusters : str or Path
        The label file. A journal beside it that is of these very labels goes on, and what it says itself stays; one of
        other labels is kept under another name.
    source : str
        Where the constraints came from, for the history.

    Returns
    -------
    Path or None
        What a journal of other labels is called now.
    """
    path = name_journal(clusters)
    aside = set_aside(path) if path.exists() and not fits_journal(path, labels) else None
    journal = Journal(path, labels)
    try:
        change = recall_corrections(constraints, journal.book, title=f"carried over from {source}")
        if len(change.faces) or change.names or change.answers or change.moved:
            journal.record(change, request=f"carried over {uuid.uuid4()}", kind="carry")
    finally:
        journal.close()
    return aside


def recall_corrections(constraints: Constraints, book: Book, *, title: str) -> Change:
    """Make the change that tells a book what the constraints say and it does not know; what it says itself stays.

    >>> told = Constraints(must=np.array([[0, 1]]), not_faces=np.array([2]), people=(Person(7, 0, "Ann"),))
    >>> change = recall_corrections(told, Book(np.array([7, 7, 8])), title="carried over")
    >>> change.names, change.answers, change.faces.tolist()
    (((7, None, 'Ann'),), ((0, 1, None, True),), [2])
    """
    gone = np.unique(constraints.not_faces).astype(np.int32)
    gone = gone[book.labels[gone] != NOT_A_FACE]
    names: dict[int, str] = {}
    # Where two known people are one now, the label tells whose name it is.
    for person in sorted(constraints.people, key=lambda who: int(book.labels[who.face]) != who.label):
        label = int(book.labels[person.face])
        if person.name and label >= 0 and label not in book.names and not np.isin(person.face, gone):
            names.setdefault(label, person.name)
    return Change(
        title, gone, book.labels[gone], np.full(len(gone), NOT_A_FACE),
        tuple((label, None, name) for label, name in names.items()), _recall_answers(constraints, book),
        moved=tuple((face, False, True) for face in np.unique(constraints.moved).tolist() if face not in book.moved),
    )  # fmt: skip


def _recall_answers(constraints: Constraints, book: Book) -> tuple[tuple[int, int, None, bool], ...]:
    """List the pairs that agree with the book and that it does not know, the smaller face first."""
    told = ((constraints.must, True), (constraints.cannot, False))
    answers = {(int(i), int(j)): same for pairs, same in told for i, j in np.sort(pairs, axis=1) if i != j}
    return tuple(
        (i, j, None, same)
        for (i, j), same in answers.items()
        if (i, j) not in book.answers and bool(book.labels[i] == book.labels[j]) == same
    )


def _list_people(book: Book) -> list[Person]:
    """List everyone with two faces or a name, or touched by a correction; one face tells who is meant.

    It is the face that was most often said to be someone else than another, so that two people who were told apart keep
    their own labels in the next run; where nothing was said, the first.
    """
    told = np.array([pair for pair, same in book.answers.items() if not same], dtype=np.int64).reshape(-1, 2)
    apart = told[book.labels[told[:, 0]] != book.labels[told[:, 1]]]
    mentions = np.bincount(apart.ravel(), minlength=len(book.labels))
    order = np.lexsort((np.arange(len(book.labels)), -mentions, book.labels))
    labels, first, counts = np.unique(book.labels[order], return_index=True, return_counts=True)
    touched = np.isin(labels, np.array([*book.names, *book.touched], dtype=np.int64))
    worth = (labels >= 0) & ((counts > 1) | touched)
    return [
        Person(label, face, book.names.get(label))
        for label, face in zip(labels[worth].tolist(), order[first[worth]].tolist(), strict=True)
    ]


def name_people(book: Book) -> dict[int, str]:
    """Return a name for every cluster that has faces: the given one, or "person 12"; no two are the same.

    >>> book = Book(np.array([0, 1, 2]))
    >>> book.names = {0: "Ann", 2: "Ann"}
    >>> name_people(book)
    {0: 'Ann', 1: 'person 1', 2: 'Ann (2)'}
    """
    used: set[str] = set()
    names: dict[int, str] = {}
    for label in np.unique(book.labels[book.labels >= 0]).tolist():
        names[label] = _make_unique(book.names.get(label) or f"person {label}", label, used)
    return names


def _make_unique(name: str, label: int, used: set[str]) -> str:
    """Return a name that is not in use, by adding the label as often as it takes, and note it."""
    while _fold(name) in used:
        name = f"{name} ({label})"
    used.add(_fold(name))
    return name


def _fold(name: str) -> str:
    """Return what two names have in common that some disks cannot tell apart."""
    return unicodedata.normalize("NFC", name.casefold())


def export_folders(book: Book, images: ImageList, folder: str | Path, *, copy: bool = False) -> int:
    """Make one folder per person with links to their pictures, or copies; return how many pictures there are.

    People with one face and no name share the folder `_alone`; what is no face is left out. A folder that an earlier
    export has made is replaced when all is done; any other that holds something is refused.
    """
    folder = Path(folder)
    _require_own(folder, images)
    if len(images) != len(book.labels):
        raise InputError(
            f"there are {len(images)} pictures for {len(book.labels)} labels; they must be of the same faces"
        )
    names = name_people(book)
    sizes = dict(zip(*(part.tolist() for part in np.unique(book.labels, return_counts=True)), strict=True))
    used: set[str] = {_ALONE, _MARK}
    places = {
        label: _ALONE
        if sizes[label] == 1 and label not in book.names
        else _make_unique(make_file_name(name, label), label, used)
        for label, name in names.items()
    }
    n_pictures = 0
    with replacing_folder(folder) as aside:
        (aside / _MARK).write_text("made by starfc export, which may replace this folder\n", encoding="utf-8")
        for row, label in enumerate(book.labels.tolist()):
            source = images.find(row) if label >= 0 else None
            if source is None:
                continue
            place = aside / places[label]
            place.mkdir(exist_ok=True)
            target = place / f"{row:07d}-{_shorten(source)}"
            if copy:
                shutil.copyfile(source, target)
            else:
                target.symlink_to(source)
            n_pictures += 1
    return n_pictures


def _shorten(file: Path) -> str:
    """Return a file's name, cut so that there is room for its row."""
    most = _LONGEST_FILE_NAME - len(file.suffix.encode()[:20])
    stem = file.stem.encode(errors="surrogateescape")[:most].decode(errors="ignore")
    return file.name if len(os.fsencode(file.name)) <= _LONGEST_FILE_NAME else stem + file.suffix[:20]


def _require_own(folder: Path, images: ImageList) -> None:
    """Refuse a folder that cannot be replaced, that holds what no export has made, or the pictures themselves."""
    if not folder.is_dir():
        return
    if folder.is_mount():
        raise OutputError(f"folder {folder} is where a disk is mounted, which cannot be replaced; name one inside it")
    if not os.access(folder, os.W_OK):
        raise OutputError(f"folder {folder} is not writable; change its permissions or choose another")
    if not any(folder.iterdir()):
        return
    if not (folder / _MARK).is_file():
        raise OutputError(f"folder {folder} holds files that no export has made; choose a new or an empty one")
    if images.root.is_relative_to(folder.resolve()):
        raise OutputError(f"folder {folder} holds the pictures ({images.root}), which would be lost; choose another")


def export_fiftyone(book: Book, images: ImageList, path: str | Path) -> int:
    """Write FiftyOne's image classification JSON; return how many pictures are in it.

    Load it with ``fiftyone.Dataset.from_dir(dataset_type=fiftyone.types.FiftyOneImageClassificationDataset,
    data_path=images.root, labels_path=PATH)``. That format has ``classes``, a list of names, and ``labels``, which maps
    a picture's path below the root, without its ending, to a place in that list, or to several where a picture has
    several faces. It knows no files that are not there, so those are left out.
    """
    if len(images) != len(book.labels):
        raise InputError(
            f"there are {len(images)} pictures for {len(book.labels)} labels; they must be of the same faces"
        )
    names = name_people(book)
    numbers = {label: place for place, label in enumerate(names)}
    found: dict[str, tuple[str, list[int]]] = {}
    for row, label in enumerate(book.labels.tolist()):
        if label < 0 or images.find(row) is None:
            continue
        name = os.path.normpath(images.root / images.name(row))
        plain = Path(os.path.relpath(os.path.splitext(name)[0], images.root)).as_posix()  # noqa: PTH122
        file, people = found.setdefault(plain, (name, []))
        if file != name:
            raise InputError(
                f"{file} and {name} have one name but for the ending, which FiftyOne cannot tell apart; rename one"
            )
        people.append(numbers[label])
    labels = {plain: people[0] if len(people) == 1 else sorted(set(people)) for plain, (_, people) in found.items()}
    write_json(Path(path), {"classes": list(names.values()), "labels": labels})
    return len(labels)
