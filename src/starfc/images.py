"""Images: the picture of each face, found by row number, read with suspicion.

In: a folder (its pictures in the order of their names), a `.txt` list (one path per line, in row order) or a `.csv`
with a column `file` (or `path`, `image`, `filename`) and, if its lines are not in row order, a column `row` (or
`row_in_features`). Out: ImageList, which finds the file of a row and makes a small JPEG of it. A face may have no
picture.

Nothing outside the root (the folder, or the list's folder) is ever opened: a path is resolved, links and all, and
compared when it is used. A picture that is missing, broken, hostile or too large has no thumbnail; it never raises.
"""

from __future__ import annotations

import csv
import io
import logging
import os
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import InputError, MissingExtraError
from .features import reading

logger = logging.getLogger(__name__)
IMAGE_ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp")
_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP")
_FILE_COLUMNS = ("file", "path", "image", "filename", "file_name", "filepath")
_ROW_COLUMNS = ("row", "row_in_features")
_MOST_BYTES = 100 << 20
_MOST_PIXELS = 64_000_000


@dataclass(frozen=True)
class ImageList:
    """The pictures of n faces; names are kept in one block of bytes, a million of them being many small objects.

    Attributes
    ----------
    root : Path
        Resolved; nothing outside it is opened.
    names : bytes
        All names, one after another.
    offsets : int64 (n + 1,)
        Where each begins; an empty one is a face without a picture.
    """

    root: Path
    names: bytes
    offsets: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def name(self, row: int) -> str:
        """Return the name of a row's picture as listed; "" if it has none or there is no such row."""
        if not 0 <= row < len(self):
            return ""
        return os.fsdecode(self.names[self.offsets[row] : self.offsets[row + 1]])

    def find(self, row: int) -> Path | None:
        """Return the file of a row, if it is a plain file inside the root."""
        name = self.name(row)
        if not name or "\0" in name:
            return None
        try:
            path = (self.root / name).resolve(strict=True)
            return path if path.is_relative_to(self.root) and path.is_file() else None
        except (OSError, RuntimeError):  # gone, unreadable, or a circle of links
            return None


def load_images(source: str | Path, *, n_faces: int, root: str | Path | None = None) -> ImageList:
    """Read which picture belongs to which face.

    Parameters
    ----------
    source : str or Path
        Folder, `.txt` or `.csv`.
    n_faces : int
        Faces of the collection. Without a column of row numbers there must be as many pictures.
    root : str or Path, optional
        Folder that pictures must lie in; by default the folder itself or that of the list.

    Returns
    -------
    ImageList

    Examples
    --------
    >>> folder = getfixture("tmp_path")
    >>> for name in ("b.jpg", "a.jpg", "notes.txt"):
    ...     _ = (folder / name).write_bytes(b"x")
    >>> images = load_images(folder, n_faces=2)
    >>> images.name(0), images.name(1), images.name(2)
    ('a.jpg', 'b.jpg', '')
    """
    source = Path(source)
    base = Path(root) if root is not None else source if source.is_dir() else source.parent
    if not base.is_dir():
        raise InputError(f"image folder {base} does not exist; check the path")
    if source.is_dir():
        found = sorted(_walk(source))
        names, rows = [os.path.relpath(path, base) for path in found], None
    elif source.suffix.lower() in (".txt", ".csv"):
        with reading(source):
            names, rows = _read_csv(source) if source.suffix.lower() == ".csv" else (_read_lines(source), None)
    else:
        raise InputError(f"images {source} must be a folder, a .txt list or a .csv table")
    return _arrange(names, rows, n_faces, base.resolve(), source)


def make_thumbnail(path: Path, *, size: int) -> bytes | None:
    """Return a JPEG of at most size x size pixels, or None if the file cannot be shown."""
    image_module, image_ops = import_pillow()
    try:
        if path.stat().st_size > _MOST_BYTES:
            return None
        with warnings.catch_warnings(action="ignore"), image_module.open(path, formats=_FORMATS) as image:
            if image.width * image.height > _MOST_PIXELS:
                return None
            image.draft("RGB", (size, size))
            image.thumbnail((size, size))
            encoded = io.BytesIO()
            image_ops.exif_transpose(image).convert("RGB").save(encoded, "JPEG", quality=82)  # phones lie on their side
            return encoded.getvalue()
    except Exception as error:  # decoders raise whatever they like on hostile files
        logger.info("no thumbnail of %s: %s", path, error)
        return None


def import_pillow() -> tuple[Any, Any]:
    """Import PIL.Image and PIL.ImageOps, or say how to install them."""
    try:
        import PIL.Image
        import PIL.ImageOps
    except ImportError:
        raise MissingExtraError("pillow", "review", "showing pictures") from None
    return PIL.Image, PIL.ImageOps


def _walk(folder: Path) -> Iterator[str]:
    """Yield the pictures of a folder and its subfolders; links to folders are not followed."""
    for place, _, files in os.walk(folder):
        yield from (os.path.join(place, name) for name in files if name.lower().endswith(IMAGE_ENDINGS))  # noqa: PTH118


def _read_lines(source: Path) -> list[str]:
    names = source.read_text(encoding="utf-8-sig").split("\n")
    while names and not names[-1].strip():
        names.pop()
    return [name.strip() for name in names]


def _read_csv(source: Path) -> tuple[list[str], list[str] | None]:
    """Read the column of files, and the column of rows where there is one."""
    with source.open(newline="", encoding="utf-8-sig") as file:
        table = csv.DictReader(file)
        columns = {name.strip().lower(): name for name in table.fieldnames or ()}
        files = next((columns[name] for name in _FILE_COLUMNS if name in columns), None)
        if files is None:
            raise InputError(f"{source} has no column 'file'; name the column of paths so")
        numbers = next((columns[name] for name in _ROW_COLUMNS if name in columns), None)
        lines = list(table)
    rows = None if numbers is None else [line[numbers] or "" for line in lines]
    return [(line[files] or "").strip() for line in lines], rows


def _arrange(names: Sequence[str], rows: Sequence[str] | None, n_faces: int, root: Path, source: Path) -> ImageList:
    """Put the names in row order. Row numbers that do not fit are those of a larger collection: then lines count."""
    places: list[int] | range = range(len(names))
    if rows is not None:
        numbers = [int(text) if text.strip().isdecimal() else -1 for text in rows]
        if all(0 <= number < n_faces for number in numbers):
            places = numbers
        else:
            rows = None
    if rows is None and len(names) != n_faces:
        raise InputError(
            f"{source} has {len(names)} pictures for {n_faces} faces; list one per face in row order, or add a column"
            f" 'row' with numbers from 0 to {n_faces - 1}"
        )
    ordered = [b""] * n_faces
    for place, name in zip(places, names, strict=True):
        ordered[place] = os.fsencode(name)
    offsets = np.concatenate(([0], np.cumsum([len(name) for name in ordered], dtype=np.int64)))
    return ImageList(root, b"".join(ordered), offsets.astype(np.int64))
