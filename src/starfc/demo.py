"""Demo: the whole story on data made on the spot.

A synthetic collection is clustered without labels; a model is trained on another collection of other people; the
first one is clustered again with it. Out: a table, the files, a picture of both results, and a report.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .atomic import make_folder, replacing
from .avatars import imagine_traits
from .evidence import take_evidence
from .features import load_features
from .labels import load_labels
from .metrics import Evaluation, evaluate
from .pipeline import Clusters, cluster
from .plots import draw_comparison
from .progress import Progress, silent
from .report import write_report
from .synth import synthesise
from .threads import limited_threads
from .training import train

WITHOUT, WITH = "without labels", "with the trained model"


@dataclass(frozen=True)
class DemoRow:
    """One line of the demo's table."""

    name: str
    evaluation: Evaluation
    seconds: float


@dataclass(frozen=True)
class DemoResult:
    """What the demo found, and where its files are."""

    rows: tuple[DemoRow, ...]
    picture: Path
    report: Path
    folder: Path

    def as_dict(self) -> dict[str, Any]:
        """Return the figures for JSON."""
        results = {row.name: row.evaluation.as_dict() | {"seconds": round(row.seconds, 2)} for row in self.rows}
        return {
            "results": results,
            "picture": str(self.picture),
            "report": str(self.report),
            "folder": str(self.folder),
        }

    def table(self) -> str:
        """Return the table as text."""
        head = (
            f"{'':<24}{'precision':>10}{'recall':>8}{'F':>8}{'BCubed F':>10}{'clusters':>10}{'people':>8}{'seconds':>9}"
        )
        lines = [head]
        for row in self.rows:
            pairs = row.evaluation.pairwise
            lines.append(
                f"{row.name:<24}{pairs.precision:>10.3f}{pairs.recall:>8.3f}{pairs.f:>8.3f}{row.evaluation.bcubed.f:>10.3f}"
                f"{row.evaluation.n_clusters:>10}{row.evaluation.n_true:>8}{row.seconds:>9.1f}"
            )
        review = (
            f"{_name_program()} review {self.folder / 'without-labels.csv'}"
            f" --features {self.folder / 'test.features.npy'}"
            f" --traits {self.folder / 'test.traits.npy'}"
        )
        where = [f"picture: {self.picture}", f"report: {self.report}", f"labels and model: {self.folder}"]
        return "\n".join([*lines, "", *where, f"look at it and correct it: {review}"])


def _name_program() -> str:
    """Return how to call starfc: by its name where the shell finds it, else as it was called."""
    return sys.argv[0] if Path(sys.argv[0]).name == "starfc" and not shutil.which("starfc") else "starfc"


def run_demo(
    folder: str | Path,
    *,
    faces: int = 8000,
    steps: int | None = None,
    seed: int = 0,
    threads: int | None = None,
    progress: Progress = silent,
    say: Callable[[str], None] = lambda sentence: None,
) -> DemoResult:
    """Run the demo and leave its files in `folder`.

    Parameters
    ----------
    folder : str or Path
        Made if it is not there.
    faces : int
        Faces to cluster; twice as many, of other people, are trained on.
    steps : int, optional
        Training steps; the preset's own by default.

    Returns
    -------
    DemoResult
    """
    folder = make_folder(Path(folder))
    with limited_threads(threads):
        say(f"making {faces} faces to cluster and {2 * faces} of other people to train on ...")
        test = synthesise(folder / "test", faces=faces, people=faces // 32, dim=128, seed=seed, progress=progress)
        training = synthesise(
            folder / "train", faces=2 * faces, people=faces // 16, dim=128, seed=seed + 1, progress=progress
        )
        features, truth = load_features(test.features), load_labels(test.labels)
        say("clustering them without labels ...")
        plain = cluster(features, seed=seed, threads=threads, progress=progress)
        for note in plain.notes:
            say(f"note: {note}")
        say("training on the others ...")
        # The default preset is better, but with it the whole demo took 2.6 times the CPU time.
        model = train(
            load_features(training.features), load_labels(training.labels), preset="gcn", steps=steps, seed=seed,
            threads=threads, progress=progress, on_report=lambda report: say(str(report)),
        )  # fmt: skip
        model.save(folder / "model")
        say("clustering again, with the model ...")
        learned = cluster(features, model=model, seed=seed, threads=threads, progress=progress)
    clusters = {WITHOUT: plain, WITH: learned}
    plain.save(folder / "without-labels.csv")
    learned.save(folder / "with-model.csv")
    picture = folder / "clusters.png"
    draw_comparison(
        truth,
        {name: found.labels for name, found in clusters.items()},
        {name: (found.scored, found.settings.tau1) for name, found in clusters.items()},
        picture,
    )
    # Invented faces, by which report and review page show at once who is who.
    traits = imagine_traits(truth, seed=seed)
    with replacing(folder / "test.traits.npy") as aside, aside.open("wb") as file:
        np.save(file, traits, allow_pickle=False)
    report = folder / "report.html"
    write_report(
        plain.labels, report, features=features, evidence=take_evidence(plain, features, seed=seed), traits=traits,
        truth=truth, title="Demo, without labels",
    )  # fmt: skip
    rows = tuple(_make_row(name, truth, found) for name, found in clusters.items())
    return DemoResult(rows, picture, report, folder)


def _make_row(name: str, truth: NDArray[np.int64], found: Clusters) -> DemoRow:
    """Evaluate one result."""
    return DemoRow(name, evaluate(truth, found.labels), found.seconds["total"])
