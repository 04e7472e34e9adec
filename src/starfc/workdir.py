"""Work folder: finished stages are files, so that a killed run goes on where it stopped.

Each stage has an output file and a manifest `STAGE.json` beside it, which holds everything the output depends on: a
digest of the inputs, the parameters, the starfc version, and the size of the output. The manifest is written after
the output, both by rename; an output counts only if its manifest says the same as the present run would. What a stage
has at work is in a folder of its own (`scratch.py`). One run at a time: a lock that dies with its process says so.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from . import __version__
from .atomic import remove_leftovers, write_json
from .errors import OutputError, StarfcError
from .features import Features
from .progress import Progress, silent
from .tiles import run_tiles

_BLOCK_BYTES = 8 << 20  # digested at a time; part of the digest's meaning
_LOCK = ".lock"
logger = logging.getLogger(__name__)
Output = TypeVar("Output")


@dataclass(frozen=True)
class Workdir:
    """A folder of stage outputs, or none at all (`folder` is None: everything is computed anew)."""

    folder: Path | None

    @classmethod
    def open(cls, folder: str | Path | None) -> Workdir:
        """Make the folder if it is not there."""
        if folder is None:
            return cls(None)
        path = Path(folder)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(
                f"work folder {path} cannot be used: {error.strerror}; choose another --workdir"
            ) from error
        if not os.access(path, os.W_OK):
            raise OutputError(f"work folder {path} is not writable; change its permissions or choose another --workdir")
        return cls(path)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other runs out of the folder while the block runs, and clear it of what killed ones had begun."""
        if self.folder is None:
            yield
            return
        with (self.folder / _LOCK).open("a+b") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise OutputError(
                    f"work folder {self.folder} is in use by another run; wait for it or choose another --workdir"
                ) from None
            remove_leftovers(self.folder)
            yield

    def stage(
        self,
        name: str,
        depends_on: dict[str, Any],
        build: Callable[[], Output],
        save: Callable[[Output, Path], None],
        load: Callable[[Path], Output],
        ending: str = ".npz",
    ) -> Output:
        """Return the stage's output, from its file if the manifest fits, else built and saved."""
        if self.folder is None:
            return build()
        output, manifest = self.folder / f"{name}{ending}", self.folder / f"{name}.json"
        wanted = json.loads(json.dumps({"starfc": __version__, **depends_on}))  # tuples read back as lists
        if output.is_file() and _read_manifest(manifest) == wanted | {"bytes": output.stat().st_size}:
            try:
                return load(output)
            except StarfcError as error:
                logger.warning("stage %s is built again: %s", name, error)
        result = build()
        manifest.unlink(missing_ok=True)
        save(result, output)
        write_json(manifest, wanted | {"bytes": output.stat().st_size})
        return result


def digest_features(features: Features, progress: Progress = silent, after: Callable[[], None] | None = None) -> str:
    """Return a digest of all rows; another file with the same rows and type has the same. Calls `after` per block."""
    return _digest_rows(features.raw, progress, after)


def digest_arrays(after: Callable[[], None] | None = None, /, **arrays: Any) -> str:  # noqa: ANN401
    """Return a digest of named arrays. Calls `after` per block."""
    named = " ".join(f"{name} {_digest_rows(arrays[name], after=after)}" for name in sorted(arrays))
    return hashlib.sha256(named.encode()).hexdigest()


def _digest_rows(array: NDArray[Any], progress: Progress = silent, after: Callable[[], None] | None = None) -> str:
    """Return a digest of an array: of the digests of its blocks of rows, which threads can make side by side."""
    rows = array.reshape(1, -1) if array.ndim < 2 else array
    n_rows = max(1, _BLOCK_BYTES // max(1, rows[:1].nbytes))

    def digest_block(start: int, stop: int) -> bytes:
        return hashlib.sha256(np.ascontiguousarray(rows[start:stop]).data).digest()

    blocks = run_tiles(len(rows), n_rows, digest_block, "digest", progress, after)
    return hashlib.sha256(f"{array.shape} {array.dtype.str} ".encode() + b"".join(blocks)).hexdigest()


def _read_manifest(path: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None
