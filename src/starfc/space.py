"""Space: a linear map of face vectors, learned from known people, after which pictures of one person are nearer.

In: unit rows x. Out: rows of length one in the direction of

    z = x + x C + b,

with a change C and a shift b that `space_training.py` learns. An embedder knows millions of people in general; which of
its directions tell *these* people apart, and which only say how old a picture is or how it was scanned, a few hundred
of them teach. A share of the change may be taken, down to none.

A collection is mapped once, before anything else is done with it, into half precision: later stages read mapped rows as
they would read any others, and no bit depends on the blocks in which they do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .errors import ModelError
from .features import Features
from .model import SPACE
from .progress import Progress, silent
from .scratch import Scratch
from .tiles import run_tiles

_CHANGE, _SHIFT = f"{SPACE}change", f"{SPACE}shift"
_TILE_ROWS = 1024  # fixed, because the bits of a product depend on its shape


@dataclass(frozen=True)
class Space:
    """A map of unit rows.

    Attributes
    ----------
    change : float32 (d, d)
    shift : float32 (d,)
    """

    change: NDArray[np.float32]
    shift: NDArray[np.float32]

    def __post_init__(self) -> None:
        if self.shift.ndim != 1 or self.change.shape != (len(self.shift), len(self.shift)):
            raise ModelError(
                f"the model's space has a change of shape {self.change.shape} and a shift of shape {self.shift.shape};"
                " they must be (d, d) and (d,): train the model again"
            )

    @property
    def tensors(self) -> dict[str, NDArray[np.float32]]:
        """Its numbers by name."""
        return {_CHANGE: self.change, _SHIFT: self.shift}

    def take_share(self, share: float) -> Space:
        """Return the map that makes only a share of the change."""
        return Space(np.float32(share) * self.change, np.float32(share) * self.shift)

    def map_rows(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Map unit rows, float32 (n, d); one that the map would take to nothing stays as it is.

        >>> turn = Space(np.array([[-1, 1], [-1, -1]], np.float32), np.zeros(2, np.float32))
        >>> turn.map_rows(np.eye(2, dtype=np.float32)).tolist()
        [[0.0, 1.0], [-1.0, 0.0]]
        """
        mapped = rows + rows @ self.change + self.shift
        lengths = np.sqrt(np.einsum("nd,nd->n", mapped, mapped))[:, None]
        return np.where(lengths > 0, mapped / np.where(lengths > 0, lengths, 1), rows).astype(np.float32, copy=False)


def read_space(tensors: Mapping[str, NDArray[np.float32]]) -> Space | None:
    """Return the space among the tensors of a model, None if it has none.

    >>> read_space({}) is None
    True
    """
    if _CHANGE not in tensors and _SHIFT not in tensors:
        return None
    if _CHANGE not in tensors or _SHIFT not in tensors:
        raise ModelError(f"the model has one of '{_CHANGE}' and '{_SHIFT}'; the folder is damaged, train it again")
    return Space(tensors[_CHANGE], tensors[_SHIFT])


def map_features(
    features: Features, space: Space, *, scratch: Scratch | None = None, progress: Progress = silent
) -> Features:
    """Map all rows of a collection.

    Parameters
    ----------
    features : Features
        (n, d).
    space : Space
        Of dimension d.
    scratch : Scratch, optional
        Where the mapped rows are kept; in memory by default.
    progress : callable
        Called as ``progress("map", done, total)``.

    Returns
    -------
    Features
        (n, d), float16.

    Examples
    --------
    >>> nowhere = Space(np.zeros((2, 2), np.float32), np.zeros(2, np.float32))
    >>> map_features(Features(np.array([[3.0, 4.0]])), nowhere).raw.tolist()
    [[0.60009765625, 0.7998046875]]
    """
    place = scratch or Scratch()
    mapped = place.array("mapped", (len(features), features.dim), np.float16)

    def map_tile(start: int, stop: int) -> None:
        mapped[start:stop] = space.map_rows(features.read(start, stop))

    run_tiles(len(features), _TILE_ROWS, map_tile, "map", progress, place.relieve)
    return Features(mapped, features.source)
