"""Export: a corrected clustering in the forms that other programs and people use.

In: Book (labels as corrected), pictures where there are any. Out: labels (`.npy`, `.csv`, `.parquet`, `.meta`) with -1
for what is no face; one folder per person, of links or copies; the JSON of FiftyOne's image classification; and the
constraints that a later `starfc cluster --constraints` honours. Everything is written aside and renamed.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .atomic import replacing_folder, write_json
from .constraints import Constraints, Person
from .corrections import NOT_A_FACE, Book
from .errors import InputError
from .images import ImageList

_ALONE = "_alone"
_LONGEST_NAME = 80


def final_labels(book: Book) -> NDArray[np.int64]:
    """Return the corrected labels, int64 (n,), -1 for what is no face.

    >>> final_labels(Book(np.array([4, 4, 7])))
    array([4, 4, 7])
    """
    return np.where(book.labels == NOT_A_FACE, -1, book.labels)


def make_constraints(book: Book) -> Constraints:
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
        tuple(_list_people(book)),
    )


def _list_people(book: Book) -> list[Person]:
    """List everyone with two faces or a name, or touched by a correction; the first face tells who is meant."""
    labels, first, counts = np.unique(book.labels, return_index=True, return_counts=True)
    touched = np.isin(labels, np.array([*book.names, *book.touched], dtype=np.int64))
    worth = (labels >= 0) & ((counts > 1) | touched)
    return [
        Person(label, face, book.names.get(label))
        for label, face in zip(labels[worth].tolist(), first[worth].tolist(), strict=True)
    ]


def name_people(book: Book) -> dict[int, str]:
    """Return a name for every cluster that has faces: the given one, or "person 12"; no two are the same.

    >>> book = Book(np.array([0, 1, 2]))
    >>> book.names = {0: "Ann", 2: "Ann"}
    >>> name_people(book)
    {0: 'Ann', 1: 'person 1', 2: 'Ann (2)'}
    """
    used: set[str] = set()
    names = {}
    for label in np.unique(book.labels[book.labels >= 0]).tolist():
        name = book.names.get(label) or f"person {label}"
        names[label] = name if name not in used else f"{name} ({label})"
        used.add(names[label])
    return names


def export_folders(book: Book, images: ImageList, folder: str | Path, *, copy: bool = False) -> int:
    """Make one folder per person with links to their pictures, or copies; return how many pictures there are.

    People with one face and no name share the folder `_alone`; what is no face is left out. A folder that is there
    already is replaced when all is done.
    """
    if len(images) != len(book.labels):
        raise InputError(
            f"there are {len(images)} pictures for {len(book.labels)} labels; they must be of the same faces"
        )
    names = name_people(book)
    sizes = dict(zip(*(part.tolist() for part in np.unique(book.labels, return_counts=True)), strict=True))
    places = {
        label: _ALONE if sizes[label] == 1 and label not in book.names else make_file_name(name, label)
        for label, name in names.items()
    }
    n_pictures = 0
    with replacing_folder(Path(folder)) as aside:
        for row, label in enumerate(book.labels.tolist()):
            source = images.find(row) if label >= 0 else None
            if source is None:
                continue
            place = aside / places[label]
            place.mkdir(exist_ok=True)
            target = place / f"{row:07d}-{source.name}"
            if copy:
                shutil.copyfile(source, target)
            else:
                target.symlink_to(source)
            n_pictures += 1
    return n_pictures


def make_file_name(name: str, label: int) -> str:
    """Return a folder name that is safe everywhere, and still tells people apart whose names look alike on disk.

    >>> make_file_name("Ann Lee", 3), make_file_name("../../etc", 4), make_file_name("a/b", 5)
    ('Ann Lee', 'etc 4', 'a b 5')
    """
    plain = re.sub(r"[^\w .()'-]", " ", name).strip(" .")
    plain = re.sub(r"\s+", " ", re.sub(r"\.\.+", " ", plain)).strip(" ._")[:_LONGEST_NAME].strip()
    return plain if plain and plain == name else f"{plain} {label}".strip()


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
