"""Features: what users have on disk becomes rows of unit length, read in blocks.

In: `.npy`, `.npz`, `.parquet` (a list column), `.fvecs`, headerless float32 `.bin`, or an array; float16, 32 or 64 of
any scale and byte order. Out: :class:`Features`, which keeps the raw rows where they are (memory-mapped whenever the
format allows it) and hands out float32 rows of length one for the slice that is asked for. The price is that a row is
normalised each time it is read; the gain is that a file larger than memory is an ordinary input.
"""

from __future__ import annotations

import csv
import math
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .atomic import replacing
from .errors import InputError, MissingExtraError, StarfcError
from .progress import Progress, silent

FEATURE_ENDINGS = (".npy", ".npz", ".parquet", ".fvecs", ".bin")
_COLUMN_NAMES = ("features", "embeddings", "embedding", "feature", "vector", "vectors", "x", "data", "arr_0")
_BLOCK_BYTES = 64 << 20


@dataclass(frozen=True)
class Features:
    """Vectors of n faces, raw as they were given; rows are normalised when read.

    Attributes
    ----------
    raw : (n, d) array or memory map, float16/32/64 or integer
        The rows as stored, never modified.
    source : str
        Where they came from, for messages.
    """

    raw: NDArray[Any]
    source: str = "the given array"

    def __post_init__(self) -> None:
        if self.raw.ndim != 2:
            raise InputError(
                f"{self.source} has shape {self.raw.shape}; features must be two-dimensional, one row per face"
            )
        if self.raw.dtype.kind not in "fiu":
            raise InputError(f"{self.source} holds {self.raw.dtype} values; features must be real numbers")
        if self.raw.shape[1] == 0:
            raise InputError(f"{self.source} has rows of 0 numbers; a face vector needs at least one")

    def __len__(self) -> int:
        return int(self.raw.shape[0])

    @property
    def dim(self) -> int:
        """Numbers per row (D in the paper)."""
        return int(self.raw.shape[1])

    def read(self, start: int, stop: int) -> NDArray[np.float32]:
        """Return rows start..stop, float32 (stop - start, d), each of length one.

        >>> Features(np.array([[3.0, 4.0], [0.0, 2.0]])).read(0, 2)
        array([[0.6, 0.8],
               [0. , 1. ]], dtype=float32)
        """
        return self._unit(self.raw[start:stop], np.arange(start, min(stop, len(self))))

    def take(self, rows: NDArray[np.integer[Any]]) -> NDArray[np.float32]:
        """Return the given rows, float32 (len(rows), d), each of length one."""
        return self._unit(self.raw[rows], rows)

    def blocks(self) -> Iterator[tuple[int, int]]:
        """Yield (start, stop) of consecutive blocks of about 64 MiB of float32."""
        step = max(1, _BLOCK_BYTES // (4 * self.dim))
        for start in range(0, len(self), step):
            yield start, min(start + step, len(self))

    def check(self, progress: Progress = silent) -> None:
        """Read everything once, so that a bad row is named before hours of work and not after."""
        if len(self) < 2:
            raise InputError(f"{self.source} has {len(self)} row(s); clustering needs at least 2 vectors")
        progress("check", 0, len(self))
        for start, stop in self.blocks():
            self.read(start, stop)
            progress("check", stop, len(self))

    def _unit(self, raw: NDArray[Any], rows: NDArray[np.integer[Any]]) -> NDArray[np.float32]:
        """Scale `raw` to unit rows; `rows` are their numbers, for the message when one cannot be scaled."""
        working = np.float64 if raw.dtype.itemsize >= 8 else np.float32
        values: NDArray[np.floating[Any]] = np.array(raw, dtype=working, order="C")
        if values.size == 0:
            return values.astype(np.float32, copy=False)
        # Dividing by the largest entry keeps the sum of squares finite at any scale; NaN and Inf show up in it too.
        largest = np.maximum(values.max(axis=1), -values.min(axis=1))
        if not np.isfinite(largest).all():
            row = int(rows[np.flatnonzero(~np.isfinite(largest))[0]])
            raise InputError(
                f"{self.source} has NaN or infinite values, first in row {row} (counted from 0); remove such rows"
            )
        if (largest == 0).any():
            row = int(rows[np.flatnonzero(largest == 0)[0]])
            raise InputError(
                f"{self.source} has all-zero rows, first in row {row} (counted from 0), which have no direction;"
                " remove such rows"
            )
        values /= largest[:, None]
        values /= np.sqrt(np.add.reduce(values * values, axis=1))[:, None]
        return values.astype(np.float32, copy=False)


def as_features(source: Features | ArrayLike | str | Path, *, dim: int | None = None) -> Features:
    """Accept what users pass as X: Features, an array, or a path."""
    if isinstance(source, Features):
        return source
    if isinstance(source, str | Path):
        return load_features(source, dim=dim)
    try:
        return Features(np.asarray(source))
    except InputError:
        raise
    except ValueError as error:  # rows of different lengths
        raise InputError(f"the given data cannot be made an array ({error}); pass rows of one length") from error


def load_features(path: str | Path, *, dim: int | None = None) -> Features:
    """Open a file of face vectors without reading it into memory.

    Parameters
    ----------
    path : str or Path
        `.npy`, `.npz`, `.parquet`, `.fvecs` or `.bin`.
    dim : int, optional
        Numbers per row of a headerless `.bin`; not used for the other formats.

    Returns
    -------
    Features
        (n, d); memory-mapped except for compressed `.npz` and `.parquet`.

    Examples
    --------
    >>> path = getfixture("tmp_path") / "faces.npy"
    >>> np.save(path, np.eye(3, dtype=np.float16))
    >>> features = load_features(path)
    >>> len(features), features.dim
    (3, 3)
    """
    path = Path(path)
    readers = {".npy": map_npy, ".npz": _map_npz, ".parquet": _read_parquet, ".fvecs": _map_fvecs}
    ending = path.suffix.lower()
    if ending not in FEATURE_ENDINGS:
        if path.is_dir():
            raise InputError(f"{path} is a folder; give a file of vectors ({', '.join(FEATURE_ENDINGS)})")
        raise InputError(f"{path} ends in '{path.suffix}'; features must be one of {', '.join(FEATURE_ENDINGS)}")
    with reading(path):
        features = Features(_map_bin(path, dim) if ending == ".bin" else readers[ending](path), str(path))
    if dim is not None and dim != features.dim:
        raise InputError(f"{path} has rows of {features.dim} numbers, dim ({dim}) says otherwise; leave it out")
    return features


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """State whatever goes wrong while `path` is read in one sentence."""
    try:
        if path.is_dir():
            raise InputError(f"{path} is a folder; give a file")
        if path.stat().st_size == 0:
            raise InputError(f"{path} is empty; write it again")
        yield
    except StarfcError:
        raise
    except FileNotFoundError:
        raise InputError(f"{path} does not exist; check the path") from None
    except PermissionError:
        raise InputError(f"{path} cannot be read; check its permissions") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not a text file in UTF-8 ({error.reason}); save it as UTF-8") from error
    except (OSError, EOFError, ValueError, RuntimeError, zipfile.BadZipFile, zlib.error, csv.Error) as error:
        raise InputError(f"{path} cannot be read ({error}); it is damaged or of another format") from error


def save_features(features: Features, path: str | Path, progress: Progress = silent) -> None:
    """Write the raw rows to `path` in the format of its ending, block by block.

    `.npy`, `.npz` and `.parquet` keep the number type; `.fvecs` and `.bin` are float32 by definition.
    """
    path = Path(path)
    writers = {
        ".npy": _write_npy,
        ".npz": _write_npz,
        ".parquet": _write_parquet,
        ".fvecs": _write_fvecs,
        ".bin": _write_bin,
    }
    if path.suffix.lower() not in writers:
        raise InputError(f"{path} ends in '{path.suffix}'; features must be one of {', '.join(FEATURE_ENDINGS)}")
    with replacing(path) as aside:
        writers[path.suffix.lower()](features, aside, progress)


def open_npz_array(path: Path, name: str) -> NDArray[Any]:
    """Memory-map one array of an `.npz`; a compressed one is read, because it cannot be mapped."""
    with reading(path), zipfile.ZipFile(path) as archive:
        member = archive.getinfo(f"{name}.npy")
        with archive.open(member) as stream:
            shape, fortran, dtype = _read_npy_header(stream, path)
            header_bytes = stream.tell()
            if member.compress_type != zipfile.ZIP_STORED:
                stream.seek(0)
                return np.lib.format.read_array(stream, allow_pickle=False)
        with path.open("rb") as file:
            file.seek(member.header_offset + 26)
            name_bytes, extra_bytes = np.frombuffer(file.read(4), dtype="<u2").tolist()
        offset = member.header_offset + 30 + name_bytes + extra_bytes + header_bytes
        return _map_array(path, shape, fortran, dtype, offset, member.file_size - header_bytes)


def npz_names(path: Path) -> list[str]:
    """Names of the arrays in an `.npz`."""
    with reading(path), zipfile.ZipFile(path) as archive:
        return [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]


def choose_name(names: Sequence[str], preferred: Sequence[str], path: Path) -> str:
    """Return the array or column to read: the first with a usual name, whatever its case, or else the only one."""
    lowered = {name.lower(): name for name in reversed(names)}
    usual = [lowered[name] for name in preferred if name in lowered]
    if not usual and len(names) != 1:
        found = ", ".join(map(repr, names)) or "nothing that fits"
        raise InputError(f"{path} holds {found}; name the one to read '{preferred[0]}'")
    return usual[0] if usual else names[0]


def _read_npy_header(stream: Any, path: Path) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:  # noqa: ANN401
    """Read shape, order and type of a `.npy` stream, refusing pickles."""
    try:
        version = np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        with warnings.catch_warnings(action="ignore"):  # numpy suspects Python 2 behind every garbled header
            shape, fortran, dtype = read(stream)
    except (ValueError, tokenize.TokenError) as error:
        raise InputError(f"{path} is not a numpy file ({error}); save it with numpy.save") from error
    if dtype.hasobject:
        raise InputError(f"{path} holds pickled Python objects, which are never loaded; save a plain numeric array")
    return shape, fortran, dtype


def map_npy(path: Path) -> NDArray[Any]:
    """Memory-map a `.npy` file, refusing pickles and truncated files."""
    with reading(path):
        with path.open("rb") as file:
            shape, fortran, dtype = _read_npy_header(file, path)
            offset = file.tell()
        return _map_array(path, shape, fortran, dtype, offset, path.stat().st_size - offset)


def _map_array(
    path: Path, shape: tuple[int, ...], fortran: bool, dtype: np.dtype[Any], offset: int, n_bytes: int
) -> NDArray[Any]:
    """Memory-map an array that starts at `offset`, if the `n_bytes` from there on can hold it."""
    expected = math.prod(shape) * dtype.itemsize
    if n_bytes < expected:
        raise InputError(
            f"{path} is truncated: its header promises {expected} bytes, {n_bytes} are there; copy it again"
        )
    if expected == 0:
        return np.empty(shape, dtype=dtype)
    return np.memmap(path, dtype=dtype, mode="r", offset=offset, shape=shape, order="F" if fortran else "C")


def _map_npz(path: Path) -> NDArray[Any]:
    return open_npz_array(path, choose_name(npz_names(path), _COLUMN_NAMES, path))


def _map_fvecs(path: Path) -> NDArray[Any]:
    n_bytes = path.stat().st_size
    with path.open("rb") as file:
        width = int.from_bytes(file.read(4), "little", signed=True)
    if width < 1 or n_bytes % (4 * (width + 1)):
        raise InputError(f"{path} is not a .fvecs file: {n_bytes} bytes do not divide into rows of {width} numbers")
    table = np.memmap(path, dtype="<i4", mode="r").reshape(-1, width + 1)
    ragged = np.flatnonzero(table[:, 0] != width)
    if len(ragged):
        row = int(ragged[0])
        raise InputError(
            f"{path} row {row} announces {table[row, 0]} numbers, the first row {width}; all must be equal"
        )
    return table[:, 1:].view("<f4")


def _map_bin(path: Path, dim: int | None) -> NDArray[Any]:
    if dim is None:
        raise InputError(f"{path} has no header; pass --dim (dim=...) with the numbers per row")
    if dim < 1:
        raise InputError(f"dim ({dim}) must be at least 1; pass the dim {path} was written with")
    n_bytes = path.stat().st_size
    if n_bytes % (4 * dim):
        raise InputError(
            f"{path} has {n_bytes} bytes, which do not divide by dim ({dim}) x 4; pass the dim it was written with"
        )
    return np.memmap(path, dtype="<f4", mode="r").reshape(-1, dim)


def import_parquet() -> Any:  # noqa: ANN401
    """Import pyarrow.parquet, or say how to install it."""
    try:
        import pyarrow.parquet
    except ImportError:
        raise MissingExtraError("pyarrow", "parquet", "reading and writing .parquet") from None
    return pyarrow.parquet


def _read_parquet(path: Path) -> NDArray[Any]:
    """Read a list column batch by batch; `.parquet` is compressed and cannot be mapped."""
    with import_parquet().ParquetFile(path) as file:
        lists = [field.name for field in file.schema_arrow if is_list(field.type)]
        name = choose_name(lists, _COLUMN_NAMES, path)
        rows: NDArray[Any] | None = None
        filled = 0
        for batch in file.iter_batches(columns=[name], batch_size=16384):
            if rows is None:
                width = len(batch.column(0)[0].as_py() or ())
                rows = np.empty(
                    (file.metadata.num_rows, width),
                    dtype=batch.schema.field(0).type.value_type.to_pandas_dtype(),
                )
            rows[filled : filled + len(batch)] = _unpack_lists(batch.column(0), rows.shape[1], filled, path)
            filled += len(batch)
    return rows if rows is not None else np.empty((0, 1), dtype=np.float32)


def is_list(kind: Any) -> bool:  # noqa: ANN401
    """Tell whether an arrow type is a list of numbers per row."""
    from pyarrow import types

    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _unpack_lists(column: Any, width: int, first_row: int, path: Path) -> NDArray[Any]:  # noqa: ANN401
    """Return a batch of lists as an array (len(column), width)."""
    import pyarrow.compute

    lengths = pyarrow.compute.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False)
    odd = np.flatnonzero(lengths != width)
    if len(odd):
        row = int(odd[0])
        raise InputError(
            f"{path} row {first_row + row} has {lengths[row]} numbers, the first row {width}; all must be equal"
        )
    values = column.flatten()
    if values.null_count:
        row = first_row + int(np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))[0]) // width
        raise InputError(f"{path} has missing numbers, first in row {row} (counted from 0); remove such rows")
    return np.asarray(values.to_numpy(zero_copy_only=False)).reshape(len(column), width)


def _write_blocks(features: Features, progress: Progress) -> Iterator[NDArray[Any]]:
    """Yield the raw rows block by block, in native byte order, reporting progress."""
    progress("write", 0, len(features))
    for start, stop in features.blocks():
        yield np.ascontiguousarray(features.raw[start:stop]).astype(features.raw.dtype.newbyteorder("="), copy=False)
        progress("write", stop, len(features))


def _npy_header(features: Features) -> dict[str, Any]:
    dtype = np.lib.format.dtype_to_descr(features.raw.dtype.newbyteorder("="))
    return {"descr": dtype, "fortran_order": False, "shape": features.raw.shape}


def _write_npy(features: Features, aside: Path, progress: Progress) -> None:
    with aside.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, _npy_header(features))
        for block in _write_blocks(features, progress):
            file.write(block.tobytes())


def _write_npz(features: Features, aside: Path, progress: Progress) -> None:
    with (
        zipfile.ZipFile(aside, "w", zipfile.ZIP_STORED) as archive,
        archive.open("features.npy", "w", force_zip64=True) as file,
    ):
        np.lib.format.write_array_header_1_0(file, _npy_header(features))
        for block in _write_blocks(features, progress):
            file.write(block.tobytes())


def _narrow(block: NDArray[Any], source: str) -> NDArray[np.float32]:
    """Return the block as little-endian float32, refusing numbers that do not fit."""
    with np.errstate(over="ignore"):
        narrow = block.astype("<f4", copy=False)
    if np.isinf(narrow).sum() > np.isinf(block).sum():
        raise InputError(f"{source} has numbers beyond float32 (3.4e38), which .bin and .fvecs cannot hold; use .npy")
    return narrow


def _write_bin(features: Features, aside: Path, progress: Progress) -> None:
    with aside.open("wb") as file:
        for block in _write_blocks(features, progress):
            file.write(_narrow(block, features.source).tobytes())


def _write_fvecs(features: Features, aside: Path, progress: Progress) -> None:
    with aside.open("wb") as file:
        for block in _write_blocks(features, progress):
            table = np.empty((len(block), features.dim + 1), dtype="<i4")
            table[:, 0] = features.dim
            table[:, 1:].view("<f4")[:] = _narrow(block, features.source)
            file.write(table.tobytes())


def _write_parquet(features: Features, aside: Path, progress: Progress) -> None:
    parquet = import_parquet()
    import pyarrow as arrow

    number = arrow.from_numpy_dtype(features.raw.dtype.newbyteorder("="))
    schema = arrow.schema([("features", arrow.list_(number, features.dim))])
    with parquet.ParquetWriter(aside, schema) as writer:
        for block in _write_blocks(features, progress):
            column = arrow.FixedSizeListArray.from_arrays(arrow.array(block.reshape(-1)), features.dim)
            writer.write_table(arrow.table([column], schema=schema))
