"""Weights: what a trained baseline has learned, as plain arrays in one file.

In: named float arrays and the facts needed to use them. Out: a `.safetensors` file with the facts as JSON in its
header, and back. Never a pickle.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..atomic import replacing
from ..errors import ModelError


@dataclass(frozen=True)
class Weights:
    """Learned arrays by name, and facts such as widths and chosen settings.

    >>> path = getfixture("tmp_path") / "w.safetensors"
    >>> Weights({"a": np.ones(2, np.float32)}, {"hidden": 3}).save(path)
    >>> load_weights(path).facts
    {'hidden': 3}
    """

    tensors: dict[str, NDArray[np.float32]]
    facts: dict[str, Any] = field(default_factory=dict)

    def select(self, prefix: str) -> dict[str, NDArray[np.float32]]:
        """Return the arrays whose names begin with `prefix`, without it."""
        return {name.removeprefix(prefix): array for name, array in self.tensors.items() if name.startswith(prefix)}

    def save(self, path: Path) -> None:
        """Write the file, whole or not at all."""
        from safetensors.numpy import save

        arrays = {name: np.ascontiguousarray(array, np.float32) for name, array in self.tensors.items()}
        with replacing(path) as aside:
            aside.write_bytes(save(arrays, metadata={"facts": json.dumps(self.facts)}))


def load_weights(path: Path) -> Weights:
    """Read what :meth:`Weights.save` wrote."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file:
            facts = json.loads((file.metadata() or {})["facts"])
            return Weights({name: file.get_tensor(name) for name in file.keys()}, facts)  # noqa: SIM118
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise ModelError(f"weights {path} cannot be read ({error}); train the method again") from error
