"""Labels: who is who, one integer per face, -1 where nobody knows.

In: `.npy`, `.meta` (one per line), `.csv`, `.parquet`; whole numbers, which stay as they are, or names, which are
numbered by first appearance. Nothing ("", null, NaN) and -1 mean unlabelled. Out: int64 (n,). The same formats are
written for results.
"""

from __future__ import annotations

import csv
import itertools
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .atomic import replacing
from .errors import InputError
from .features import choose_name, import_parquet, map_npy, reading

LABEL_ENDINGS = (".npy", ".meta", ".csv", ".parquet")
_COLUMN_NAMES = ("label", "labels", "cluster", "identity", "person", "person_id", "name")
_LARGEST = int(np.iinfo(np.int64).max)


def as_labels(values: ArrayLike, source: str = "the given labels") -> NDArray[np.int64]:
    """Turn whole numbers or names into int64 labels.

    >>> as_labels(["ann", "bob", "", "ann"])
    array([ 0,  1, -1,  0])
    >>> as_labels([7.0, np.nan])
    array([ 7, -1])
    """
    array = np.asarray(values)
    if array.ndim != 1:
        raise InputError(f"{source} has shape {array.shape}; labels must be one-dimensional, one per face")
    if array.dtype.kind in "USO":
        return _number_names([_as_text(value) for value in array.tolist()], source)
    if array.dtype.kind not in "iuf":
        raise InputError(f"{source} holds {array.dtype} values; labels must be whole numbers or names")
    if array.dtype.kind == "f":
        array = np.where(np.isnan(array), -1.0, array.astype(np.float64))
    refused = (array < -1) | (np.floor(array) != array)
    # 2**63 is the first float beyond int64; the largest int64 itself has no float.
    refused |= array >= 2.0**63 if array.dtype.kind == "f" else array > _LARGEST
    if refused.any():
        row = int(refused.argmax())
        raise InputError(
            f"{source} has label {array[row]} in row {row}; labels must be whole numbers from 0 to {_LARGEST},"
            " or -1 for unlabelled"
        )
    return array.astype(np.int64)


def load_labels(path: str | Path, *, n_expected: int | None = None) -> NDArray[np.int64]:
    r"""Read labels, int64 (n,); -1 means unlabelled.

    Parameters
    ----------
    path : str or Path
        `.npy`, `.meta`, `.csv` (column `label`, or the last one) or `.parquet` (column `label`, or the only one that
        fits). The first line of a `.csv` is a header if it holds such a name, or a text above a column of numbers.
    n_expected : int, optional
        Number of faces they belong to; another length is an error.

    Examples
    --------
    >>> path = getfixture("tmp_path") / "who.meta"
    >>> _ = path.write_text("7\n7\n-1\n")
    >>> load_labels(path)
    array([ 7,  7, -1])
    """
    path = Path(path)
    if path.suffix.lower() not in _READERS:
        raise InputError(f"{path} ends in '{path.suffix}'; labels must be one of {', '.join(LABEL_ENDINGS)}")
    with reading(path):
        labels = as_labels(_READERS[path.suffix.lower()](path), str(path))
    if n_expected is not None and len(labels) != n_expected:
        raise InputError(f"{path} has {len(labels)} labels for {n_expected} faces; there must be one per face")
    return labels


def holds_names(path: Path) -> bool:
    """Tell whether a file names people by text, which becomes numbers when it is read."""
    if path.suffix.lower() == ".npy":
        return map_npy(path).dtype.kind in "US"
    values = _READERS[path.suffix.lower()](path)
    return values.dtype.kind in "OUS" and _read_numbers({str(value) for value in values if value is not None}) is None


def save_labels(labels: NDArray[np.int64], path: str | Path) -> None:
    """Write labels in row order in the format of the ending, whole or not at all."""
    path = Path(path)
    writers = {".npy": _write_npy, ".meta": _write_meta, ".csv": _write_csv, ".parquet": _write_parquet}
    require_label_ending(path)
    with replacing(path) as aside:
        writers[path.suffix.lower()](labels, aside)


def require_label_ending(path: Path) -> None:
    """Refuse a file name whose ending is no label format, before any work is done for it."""
    if path.suffix.lower() not in LABEL_ENDINGS:
        raise InputError(
            f"output {path} ends in '{path.suffix}'; labels are written as one of {', '.join(LABEL_ENDINGS)}"
        )


def _as_text(value: object) -> str:
    """Return a label as stripped text; None and NaN are nothing."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return (value.decode("utf-8") if isinstance(value, bytes) else str(value)).strip()


def _number_names(names: list[str], source: str) -> NDArray[np.int64]:
    """Read texts as numbers, or number them by first appearance if any is none."""
    distinct = dict.fromkeys(names)
    numbers = _read_numbers(distinct)
    if numbers is not None:
        return as_labels(np.array([numbers[name] for name in names]), source)
    counter = itertools.count()
    codes = {name: -1 if name in ("", "-1") else next(counter) for name in distinct}
    return np.fromiter((codes[name] for name in names), dtype=np.int64, count=len(names))


def _read_numbers(texts: Iterable[str]) -> dict[str, float] | None:
    """Read every text as a number; None if they are names, as numbers beyond int64 are."""
    try:
        numbers = {text: _read_number(text) for text in texts}
    except ValueError:
        return None
    return numbers if max(numbers.values(), default=0) <= _LARGEST else None


def _read_number(text: str) -> float:
    """Read a text as an int where it is whole, "3.0" too, as -1 where it is nothing, else as a float."""
    if "_" in text:
        raise ValueError("to Python '1_2' is the number 12, to people a name")
    if text.removeprefix("-").isdecimal():
        return int(text)
    value = float(text or "nan")
    return -1 if math.isnan(value) else int(value) if value.is_integer() else value


def _read_meta(path: Path) -> NDArray[Any]:
    with path.open(encoding="utf-8-sig") as file:
        lines = [line.strip() for line in file]
    while lines and not lines[-1]:  # editors leave blank lines at the end; anywhere else one stands for a face
        lines.pop()
    return np.array(lines, dtype=object)


def _read_csv(path: Path) -> NDArray[Any]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file)
        lines = (line for line in reader if line)
        first = next(lines, [""])
        header = [name.strip().lower() for name in first]
        named = [header.index(name) for name in _COLUMN_NAMES if name in header]
        column = named[0] if named else len(first) - 1
        numbered = header.index("row") if named and "row" in header else column
        cells, row_numbers = [], []
        for line in lines:
            if len(line) <= max(column, numbered):
                raise InputError(f"{path} line {reader.line_num} has no column {column + 1}; all lines need it")
            cells.append(line[column].strip())
            row_numbers.append(line[numbered].strip())
    if numbered != column:
        return np.array(cells, dtype=object)[_order_rows(row_numbers, path)]
    if not named and not _is_header(first[column].strip(), cells):
        cells.insert(0, first[column].strip())
    return np.array(cells, dtype=object)


def _order_rows(row_numbers: list[str], path: Path) -> NDArray[np.int64]:
    """Return the order that sorts the lines of a `row,label` table, which a spreadsheet may have shuffled."""
    known = _read_numbers(row_numbers)
    numbers = [known[text] for text in row_numbers] if known is not None else []
    if sorted(numbers) != list(range(len(row_numbers))):
        raise InputError(f"{path} has a column 'row' that is not 0 to {len(row_numbers) - 1}, each once; complete it")
    return np.argsort(np.array(numbers))


def _is_header(first: str, others: list[str]) -> bool:
    """Tell whether the first cell is a text and all others are numbers."""
    return bool(others) and _read_numbers([first]) is None and _read_numbers(set(others)) is not None


def _read_parquet(path: Path) -> NDArray[Any]:
    import_parquet()
    import pyarrow as arrow

    with arrow.parquet.ParquetFile(path) as file:
        flat = [field.name for field in file.schema_arrow if not arrow.types.is_nested(field.type)]
        column = file.read(columns=[choose_name(flat, _COLUMN_NAMES, path)]).column(0)
    if arrow.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)  # to_numpy would read the nulls as the last name
    if column.null_count and arrow.types.is_integer(column.type):
        column = column.cast(arrow.int64()).fill_null(-1)
    return np.asarray(column.to_numpy())


def _write_npy(labels: NDArray[np.int64], aside: Path) -> None:
    whole = labels.astype(np.int64, copy=False)
    with aside.open("wb") as file:
        # Not numpy.save: on a full disk it says "1000 requested and 500 written".
        np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(whole))
        file.write(whole.tobytes())


def _write_meta(labels: NDArray[np.int64], aside: Path) -> None:
    with aside.open("w", encoding="utf-8") as file:
        file.writelines(f"{label}\n" for label in labels.tolist())


def _write_csv(labels: NDArray[np.int64], aside: Path) -> None:
    with aside.open("w", encoding="utf-8") as file:
        file.write("row,label\n")
        file.writelines(f"{row},{label}\n" for row, label in enumerate(labels.tolist()))


def _write_parquet(labels: NDArray[np.int64], aside: Path) -> None:
    parquet = import_parquet()
    import pyarrow as arrow

    parquet.write_table(arrow.table({"label": labels}), aside)


_READERS = {".npy": map_npy, ".meta": _read_meta, ".csv": _read_csv, ".parquet": _read_parquet}
