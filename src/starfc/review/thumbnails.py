"""Thumbnails: what a face looks like on the page, made when it is asked for and kept while there is room.

In: a row. Out: a small JPEG of its picture, or an SVG avatar drawn from its embedding where there is no picture, or a
placeholder where the picture cannot be shown.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..avatars import draw_avatar, draw_placeholder, draw_sheet, fit_avatars
from ..features import Features
from ..images import ImageList, make_thumbnail

SIZES = (64, 96, 160, 320)
_CACHE_BYTES = 96 << 20
Picture = tuple[bytes, str]  # content and media type


class Thumbnails:
    """Draws faces and keeps the latest."""

    def __init__(
        self,
        features: Features,
        images: ImageList | None,
        *,
        traits: NDArray[np.float32] | None = None,
        seed: int = 0,
    ) -> None:
        self._features, self._images, self._traits = features, images, traits
        self._axes = fit_avatars(features, seed=seed)
        self._kept: OrderedDict[tuple[int, int], Picture] = OrderedDict()
        self._bytes = 0
        self._mutex = threading.Lock()
        self._decoders = threading.BoundedSemaphore(4)  # large pictures take much memory while they are decoded

    def draw(self, row: int, size: int) -> Picture | None:
        """Return the picture of a face in the next larger of the fixed sizes; None if there is no such face."""
        if not 0 <= row < len(self._features):
            return None
        key = (row, next((known for known in SIZES if known >= size), SIZES[-1]))
        with self._mutex:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        made = self._make(*key)
        with self._mutex:
            if key not in self._kept:
                self._kept[key] = made
                self._bytes += len(made[0])
            while self._bytes > _CACHE_BYTES:
                self._bytes -= len(self._kept.popitem(last=False)[1][0])
        return made

    def draw_sheet(self, rows: Sequence[int]) -> Picture | None:
        """Return the avatars of several faces as one picture; None if one of them is none, or has a picture."""
        if self._images is not None or not all(0 <= row < len(self._features) for row in rows):
            return None
        return draw_sheet([self._draw_avatar(row, 64) for row in rows]).encode(), "image/svg+xml"

    def _make(self, row: int, size: int) -> Picture:
        if self._images is not None and self._images.name(row):
            file = self._images.find(row)
            with self._decoders:
                encoded = make_thumbnail(file, size=size) if file is not None else None
            if encoded is not None:
                return encoded, "image/jpeg"
            return draw_placeholder(size=size).encode(), "image/svg+xml"
        return self._draw_avatar(row, size).encode(), "image/svg+xml"

    def _draw_avatar(self, row: int, size: int) -> str:
        """Draw a face from the given traits, or else from its embedding."""
        if self._traits is not None:
            return draw_avatar(self._traits[row], size=size)
        return draw_avatar(self._axes.find_traits(self._features.take(np.array([row])))[0], size=size)
