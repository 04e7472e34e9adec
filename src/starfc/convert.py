"""Conversion between all feature and label formats.

What IN holds is seen from its ending and content: `.meta` and `.csv` are labels, `.fvecs` and `.bin` features, and
`.npy`, `.npz` and `.parquet` are features if they hold rows of numbers; of a `.parquet` with both, OUT's ending
decides.
"""

from __future__ import annotations

import logging
from pathlib import Path

from .atomic import require_writable
from .errors import InputError
from .features import FEATURE_ENDINGS, import_parquet, is_list, load_features, map_npy, reading, save_features
from .labels import LABEL_ENDINGS, holds_names, load_labels, save_labels
from .progress import Progress, silent

logger = logging.getLogger(__name__)


def convert_file(
    source: str | Path, target: str | Path, *, dim: int | None = None, progress: Progress = silent
) -> tuple[str, int]:
    r"""Convert a file of features or labels; values are kept as they are, neither scaled nor checked.

    Returns
    -------
    kind : {"features", "labels"}
    n : int
        Number of rows.

    Examples
    --------
    >>> folder = getfixture("tmp_path")
    >>> _ = (folder / "who.meta").write_text("3\n3\n5\n")
    >>> convert_file(folder / "who.meta", folder / "who.csv")
    ('labels', 3)
    """
    source, target = Path(source), Path(target)
    kind = _see_kind(source, target)
    endings = LABEL_ENDINGS if kind == "labels" else FEATURE_ENDINGS
    if target.suffix.lower() not in endings:
        raise InputError(
            f"{source} holds {kind}, which cannot be written as '{target.suffix}'; use one of {', '.join(endings)}"
        )
    require_writable(target)
    if kind == "labels":
        labels = load_labels(source)
        if holds_names(source):
            logger.warning("the names in %s became numbers by first appearance, from 0", source)
        save_labels(labels, target)
        return kind, len(labels)
    features = load_features(source, dim=dim)
    save_features(features, target, progress)
    return kind, len(features)


def _see_kind(source: Path, target: Path) -> str:
    """Tell whether features or labels are to be read from `source`."""
    ending = source.suffix.lower()
    if ending not in {*FEATURE_ENDINGS, *LABEL_ENDINGS}:
        raise InputError(f"{source} ends in '{source.suffix}'; known are {', '.join(FEATURE_ENDINGS)}, .meta, .csv")
    with reading(source):
        if ending in (".meta", ".csv"):
            return "labels"
        if ending == ".npy":
            return "labels" if map_npy(source).ndim == 1 else "features"
        if ending == ".parquet":
            return _see_parquet_kind(source, target)
    return "features"


def _see_parquet_kind(source: Path, target: Path) -> str:
    columns = import_parquet().read_schema(source)
    n_lists = sum(is_list(field.type) for field in columns)
    both = 0 < n_lists < len(columns)
    return "labels" if n_lists == 0 or (both and target.suffix.lower() not in FEATURE_ENDINGS) else "features"
