"""The stages form one line: no file imports a later one, and importing starfc is cheap."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import starfc

# Each module may import only those before it. A new file must find its place here; a folder counts as one.
ORDER = [
    "errors", "progress", "atomic", "threads", "features", "labels", "convert", "metrics", "embedder", "synth",
    "kernels", "halves", "masks", "prefetch", "selection", "workers", "tiles", "residency", "scratch", "steps",
    "panels", "exact", "rowstore", "lines", "centres", "cells",
    "neighborlists", "probes", "celljoin", "expansion", "cellknn", "knn", "background", "profiles", "facetable",
    "pairs", "relations",
    "roworder", "affinity", "convolution", "model", "memoryplan", "score", "looks", "perceptron", "relational",
    "space", "relational_model", "relational_training", "strictness", "prune", "flowgraph", "nodemoves", "mapequation",
    "crowds", "refined", "partition", "strays", "workdir",
    "quality", "guardrails", "details", "names", "constraints", "settings", "stages", "pipeline", "calibration",
    "sweep", "people", "space_training", "sampling", "presets", "network", "subgraphs", "heldout", "checkpoints",
    "judging", "relational_fit", "training", "estimator", "plots", "evidence", "avatars", "images", "drawing",
    "portraits", "questions", "corrections", "journal", "export", "report", "review", "baselines", "comparison", "demo",
    "terminal", "commands", "cli", "__main__",
]  # fmt: skip
ROOT = Path(starfc.__file__).parent
FILES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")


def name_stage(path: Path) -> str:
    """Return the module, or the folder, that a file belongs to."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def find_imports(source: str, depth: int = 1) -> set[str]:
    """Return the modules of starfc that a source `depth` folders down imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            if 0 < node.level < depth:
                continue  # from its own folder
            package = "starfc" if node.level else ""
            home = ".".join(part for part in (package, node.module) if part)
            names = [home, *(f"{home}.{alias.name}" for alias in node.names)]
        else:
            continue
        found |= {name.split(".")[1] for name in names if name.startswith("starfc.")}
    return found & {*ORDER, *map(name_stage, FILES)}


def test_imports_are_found():
    source = "import starfc.knn\nfrom . import labels, __version__\ndef f():\n  from .model import Model\n  import os"
    assert find_imports(source) == {"knn", "labels", "model"}
    assert find_imports("from starfc.errors import x\nfrom starfc import metrics\nfrom os import path") == {
        "errors",
        "metrics",
    }


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_stage_imports_a_later_one(path):
    stage = name_stage(path)
    assert stage in ORDER, f"give {path.name} its place in ORDER"
    found = find_imports(path.read_text(encoding="utf-8"), depth=len(path.relative_to(ROOT).parts))
    later = (found - {stage} if path.parent != ROOT else found) & set(ORDER[ORDER.index(stage) :])
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
