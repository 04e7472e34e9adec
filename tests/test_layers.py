"""The stages form one line: no file imports a later one, and importing starfc is cheap."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import starfc

# Each module may import only those before it. A new file must find its place here.
ORDER = [
    "errors", "progress", "atomic", "threads", "features", "labels", "convert", "metrics", "embedder", "synth",
    "selection", "workers", "exact", "rowstore", "centres", "cells", "probes", "spinlock", "celljoin",
    "knn", "background", "affinity", "model", "score", "prune", "flowgraph", "mapequation", "partition", "workdir",
    "pipeline", "sweep", "sampling", "network", "subgraphs", "heldout", "checkpoints", "training",
    "estimator", "plots", "demo", "terminal", "cli",
]  # fmt: skip
FILES = sorted(path for path in Path(starfc.__file__).parent.glob("*.py") if path.stem != "__init__")


def find_imports(source: str) -> set[str]:
    """Return the modules of starfc that a source imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            package = "starfc" if node.level else ""
            home = ".".join(part for part in (package, node.module) if part)
            names = [home, *(f"{home}.{alias.name}" for alias in node.names)]
        else:
            continue
        found |= {name.split(".")[1] for name in names if name.startswith("starfc.")}
    return found & {*ORDER, *(path.stem for path in FILES)}


def test_imports_are_found():
    source = "import starfc.knn\nfrom . import labels, __version__\ndef f():\n  from .model import Model\n  import os"
    assert find_imports(source) == {"knn", "labels", "model"}
    assert find_imports("from starfc.errors import x\nfrom starfc import metrics\nfrom os import path") == {
        "errors",
        "metrics",
    }


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_no_stage_imports_a_later_one(path):
    assert path.stem in ORDER, f"give {path.name} its place in ORDER"
    later = find_imports(path.read_text(encoding="utf-8")) & set(ORDER[ORDER.index(path.stem) :])
    assert not later, f"{path.name} imports {sorted(later)}, which come later"


def list_loaded(statement: str) -> set[str]:
    """Return the top-level packages that a statement loads in a fresh interpreter."""
    script = f"{statement}\nimport sys\nprint(*{{name.split('.')[0] for name in sys.modules}})"
    return set(
        subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout.split()
    )


def test_importing_starfc_is_cheap():
    command = [sys.executable, "-X", "importtime", "-c", "import starfc"]
    log = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    loaded = {line.rsplit("|", 1)[1].strip().split(".")[0] for line in log.splitlines() if "|" in line}
    assert "starfc" in loaded
    assert not loaded & {"torch", "sklearn", "numba", "scipy", "faiss", "numpy"}


def test_the_command_line_loads_no_heavy_package():
    loaded = list_loaded("import starfc.cli")
    assert "click" in loaded
    assert not loaded & {"torch", "sklearn", "numba", "scipy", "faiss", "numpy", "rich"}


@pytest.mark.parametrize("name", ["cluster", "load_features", "Clusters", "metrics"])
def test_inference_needs_neither_torch_nor_sklearn(name):
    assert not list_loaded(f"import starfc; starfc.{name}") & {"torch", "sklearn"}


def test_public_names():
    with pytest.raises(AttributeError, match="no attribute 'frobnicate'"):
        starfc.frobnicate  # noqa: B018
    assert dir(starfc) == sorted(starfc.__all__)
    assert callable(starfc.cluster) and callable(starfc.load_features) and starfc.metrics.nmi([0], [0]) == 1
