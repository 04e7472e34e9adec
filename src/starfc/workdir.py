"""Work folder: finished stages are files, so that a killed run goes on where it stopped.

Each stage has an output file and a manifest `STAGE.json` beside it, which holds everything the output depends on: a
digest of the inputs, the parameters, the starfc version, and the size of the output. The manifest is written after
the output, both by rename; an output counts only if its manifest says the same as the present run would.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from . import __version__
from .atomic import remove_leftovers, write_json
from .errors import OutputError, StarfcError
from .features import Features
from .progress import Progress, silent

logger = logging.getLogger(__name__)
Output = TypeVar("Output")


@dataclass(frozen=True)
class Workdir:
    """A folder of stage outputs, or none at all (`folder` is None: everything is computed anew)."""

    folder: Path | None

    @classmethod
    def open(cls, folder: str | Path | None) -> Workdir:
        """Make the folder if it is not there, and clear it of what killed runs had begun."""
        if folder is None:
            return cls(None)
        path = Path(folder)
        try:
            path.mkdir(parents=True, exist_ok=True)
            remove_leftovers(path)
        except OSError as error:
            raise OutputError(
                f"work folder {path} cannot be used: {error.strerror}; choose another --workdir"
            ) from error
        if not os.access(path, os.W_OK):
            raise OutputError(f"work folder {path} is not writable; change its permissions or choose another --workdir")
        return cls(path)

    def stage(
        self,
        name: str,
        depends_on: dict[str, Any],
        build: Callable[[], Output],
        save: Callable[[Output, Path], None],
        load: Callable[[Path], Output],
    ) -> Output:
        """Return the stage's output, from its file if the manifest fits, else built and saved."""
        if self.folder is None:
            return build()
        output, manifest = self.folder / f"{name}.npz", self.folder / f"{name}.json"
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


def digest_features(features: Features, progress: Progress = silent) -> str:
    """Return a digest of all rows; another file with the same rows and type has the same."""
    digest = hashlib.blake2b(f"{features.raw.shape} {features.raw.dtype.str}".encode(), digest_size=16)
    progress("digest", 0, len(features))
    for start, stop in features.blocks():
        digest.update(features.raw[start:stop].tobytes())
        progress("digest", stop, len(features))
    return digest.hexdigest()


def digest_arrays(**arrays: Any) -> str:  # noqa: ANN401
    """Return a digest of named arrays."""
    digest = hashlib.blake2b(digest_size=16)
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.shape} {array.dtype.str}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def _read_manifest(path: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None
