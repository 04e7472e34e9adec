"""Portraits: faces as HTML for a file that loads nothing.

In: rows, and pictures, traits or embeddings of them. Out: the faces side by side: the picture where there is one, else
an avatar, else a placeholder.
"""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .avatars import AvatarAxes, draw_avatar, draw_placeholder, fit_avatars
from .features import Features
from .images import ImageList, make_thumbnail


class Artist:
    """Draws faces: the picture where there is one, else an avatar."""

    def __init__(
        self, features: Features | None, images: ImageList | None, traits: NDArray[np.float32] | None, seed: int
    ) -> None:
        self._features, self._images, self._traits = features, images, traits
        self._axes: AvatarAxes | None = fit_avatars(features, seed=seed) if features is not None else None

    def draw(self, faces: NDArray[Any]) -> str:
        """Return the faces side by side, as HTML."""
        rows = np.asarray(faces, dtype=np.int64)
        traits = self._find_traits(rows)
        drawn = []
        for place, row in enumerate(rows.tolist()):
            file = self._images.find(row) if self._images is not None else None
            encoded = make_thumbnail(file, size=112) if file is not None else None
            if encoded is not None:
                source = base64.b64encode(encoded).decode("ascii")
                drawn.append(f'<img alt="face {row}" title="face {row}" src="data:image/jpeg;base64,{source}">')
            else:
                drawn.append(draw_avatar(traits[place]) if traits is not None else draw_placeholder())
        return f'<div class="faces">{"".join(drawn)}</div>'

    def _find_traits(self, rows: NDArray[np.int64]) -> NDArray[np.float32] | None:
        """Return what to draw avatars from: the given numbers, or else the embeddings."""
        if self._traits is not None:
            return self._traits[rows]
        return self._axes.find_traits(self._features.take(rows)) if self._axes and self._features else None
