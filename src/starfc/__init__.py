"""starfc groups face embeddings by person.

>>> import starfc
>>> starfc.__all__
['Clusters', 'StarFC', 'StarfcError', '__version__', 'cluster', 'load_features', 'metrics', 'train']

Names are imported on first use, so that `import starfc` is quick and needs neither torch nor scikit-learn.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["Clusters", "StarFC", "StarfcError", "__version__", "cluster", "load_features", "metrics", "train"]

if TYPE_CHECKING:
    from . import metrics
    from .errors import StarfcError
    from .estimator import StarFC
    from .features import load_features
    from .pipeline import Clusters, cluster
    from .training import train

_HOME = {
    "Clusters": "pipeline",
    "StarFC": "estimator",
    "StarfcError": "errors",
    "cluster": "pipeline",
    "load_features": "features",
    "train": "training",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401
    """Import a public name from the module that defines it (PEP 562)."""
    if name == "metrics":
        return importlib.import_module(".metrics", __name__)
    if name not in _HOME:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    value = getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
