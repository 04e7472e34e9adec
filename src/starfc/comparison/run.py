"""Running a benchmark: which jobs there are, and which of them are done already.

In: training and test parts, methods, options. Out: a row for every method, training part and test part. Each job (kNN
graph, tuning, training, clustering) is a process of its own with limits (`limits.py`); its result is a file in the
output folder that names what it depends on, so the same command goes on where it was stopped. A job that runs over a
limit is not tried again unless the limit is raised; one that failed is. Whatever goes wrong becomes a row that says
so.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from .. import __version__
from ..atomic import make_folder, write_json
from ..baselines import Method
from ..errors import InputError
from ..progress import Progress, silent
from .limits import run_limited
from .paper import find_published
from .parts import Part, take_people

Say = Callable[[str], None]


@dataclass(frozen=True)
class Options:
    """How the jobs are run."""

    k: int = 80
    tune: bool = False
    steps: int | None = None
    time_s: float = 3600.0
    memory_gb: float = 16.0
    seed: int = 0
    threads: int | None = None


@dataclass(frozen=True)
class Row:
    """What one method gave on one test part after one training.

    `status` is "done" or says why there are no figures. Seconds of training include tuning; those of clustering do
    not include the kNN graph.
    """

    method: str
    title: str
    trained: bool
    train: str
    test: str
    n_train: int
    n_test: int
    status: str
    figures: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    train_s: float | None = None
    seconds: float | None = None
    peak_rss_gb: float | None = None
    paper: tuple[float, float | None] | None = None
    train_cpu_s: float | None = None
    cpu_s: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the row for JSON."""
        return asdict(self)


class Bench:
    """A benchmark with its output folder."""

    def __init__(self, folder: Path, options: Options, *, progress: Progress = silent, say: Say | None = None) -> None:
        self.folder, self.options, self.progress, self.say = folder, options, progress, say or (lambda line: None)
        self._without_graph: dict[Path, str] = {}
        for name in ("jobs", "graphs", "models", "parts"):
            make_folder(folder / name)

    def run(
        self,
        methods: list[Method],
        trains: list[Part],
        tests: list[Part],
        after_row: Callable[[list[Row]], object] = lambda rows: None,
    ) -> list[Row]:
        """Run every method on every pair of parts; method after method, so that the table fills from above.

        `after_row` is called with the rows so far.
        """
        parts = list(dict.fromkeys((*trains, *tests)))
        _require_names(parts)
        shapes = {part.features: part.read()[0].raw.shape for part in parts}
        _require_one_width(shapes)
        if set(trains) & set(tests):
            self.say("note: methods are trained and tested on the same faces")
        sizes = {features: shape[0] for features, shape in shapes.items()}
        graphs = {part.features: self._get_graph(part) for part in parts}
        rows = []
        for method in methods:
            for train in trains:
                found = self._learn(method, graphs[train.features])
                for test in tests:
                    facts = {"n_train": sizes[train.features], "n_test": sizes[test.features]}
                    row = self._measure(method, train, graphs[test.features], found, facts)
                    self.say(describe_row(row))
                    rows.append(row)
                    after_row(rows)
        return rows

    def take_people(self, part: Part, name: str, **which: Any) -> Part:  # noqa: ANN401
        """Write a part of some of the people into the folder, unless it is there."""
        target = self.folder / "parts" / name
        note = target.with_name(f"{name}.json")
        wanted = {"part": part.fingerprint(), "which": which, "seed": self.options.seed}
        taken = Part(target.with_name(f"{name}.features.npy"), target.with_name(f"{name}.labels.npy"))
        is_there = taken.features.is_file() and taken.labels.is_file()
        if not is_there or _read_json(note) != json.loads(json.dumps(wanted)):
            self.say(f"writing {name}")
            note.unlink(missing_ok=True)
            taken = take_people(part, target, seed=self.options.seed, **which)
            write_json(note, wanted)
        return taken

    def _get_graph(self, part: Part) -> Part:
        """Return the part with a kNN graph, the one that came with it or one built in the folder; or note why not."""
        if part.knn is not None:
            return part
        output = self.folder / "graphs" / f"{part.name}.npz"
        result = self._run_job(f"knn-{part.name}", part, {"kind": "knn", "output": str(output)})
        if result["status"] != "done":
            self._without_graph[part.features] = f"kNN graph of {part.name} {result['status']}"
            return part
        self.say(f"kNN graph of {part.name}: {result['seconds']:.1f} s")
        return replace(part, knn=output)

    def _learn(self, method: Method, train: Part) -> dict[str, Any]:
        """Tune or train a method as far as it needs it; return what the clustering has to know."""
        if not method.trained and not (self.options.tune and method.load().GRID):
            return {"status": "done", "settings": {}}
        if train.features in self._without_graph:
            return {"status": f"without {self._without_graph[train.features]}"}
        kind = "train" if method.trained else "tune"
        name = f"{kind}-{method.name}-{train.name}"
        output = self.folder / "models" / f"{name}.safetensors"
        asked: dict[str, Any] = {"kind": kind, "method": method.name, "output": str(output)}
        if method.trained:
            asked |= {"steps": self.options.steps, "tune": self.options.tune}
        result = self._run_job(name, train, asked)
        return result | {"model": str(output) if method.trained else None, "job": result.get("made")}

    def _measure(self, method: Method, train: Part, test: Part, found: dict[str, Any], facts: dict[str, Any]) -> Row:
        """Cluster and score, or say why not."""
        published = find_published(facts["n_test"], in_field_layout=test.in_field_layout).get(method.name)
        row = Row(
            method.name, method.title, method.trained, train.name, test.name, status=found["status"],
            settings=found.get("settings", {}), train_s=found.get("seconds"), train_cpu_s=found.get("cpu_s"),
            paper=published, **facts,
        )  # fmt: skip
        if found["status"] != "done":
            learning = "training" if method.trained else "tuning"
            return replace(row, status=f"{learning} {found['status']}", peak_rss_gb=found.get("peak_rss_gb"))
        if test.features in self._without_graph:
            return replace(row, status=self._without_graph[test.features])
        asked = {
            "kind": "cluster", "method": method.name, "model": found.get("model"), "settings": row.settings,
            "learned": found.get("job"),
        }  # fmt: skip
        result = self._run_job(f"cluster-{method.name}-{train.name}-{test.name}", test, asked)
        row = replace(row, status=result["status"], peak_rss_gb=result.get("peak_rss_gb"))
        if result["status"] != "done":
            return row
        names = ("pairwise", "bcubed", "nmi", "n_clusters", "n_true", "n_singletons", "largest")
        figures = {name: result[name] for name in names}
        return replace(row, figures=figures, seconds=result["seconds"], cpu_s=result.get("cpu_s"))

    def _run_job(self, name: str, part: Part, asked: dict[str, Any]) -> dict[str, Any]:
        """Return the result of a job, from its file if it is the same job, else by running it."""
        options = self.options
        spec = {
            **asked, "features": str(part.features), "labels": str(part.labels), "dim": part.dim,
            "knn": str(part.knn) if part.knn else None, "k": options.k,
            "seed": options.seed, "threads": options.threads,
        }  # fmt: skip
        wanted = json.loads(json.dumps({"starfc": __version__, **spec, "files": part.fingerprint()}))
        kept = self.folder / "jobs" / f"{name}.json"
        known = _read_json(kept)
        limits = {"time_s": options.time_s, "memory_gb": options.memory_gb}
        is_there = asked["kind"] not in ("knn", "train") or Path(asked["output"]).is_file()
        if known is not None and known["job"] == wanted and _is_final(known, limits, is_there=is_there):
            return dict(known["result"])
        result = self._start_job(name, spec)
        # whoever depends on this job must notice that it was run again with other settings
        result["made"] = f"{name} {result.get('seconds', 0.0):.6f}"
        write_json(kept, {"job": wanted, "limits": limits, "result": result})
        return result

    def _start_job(self, name: str, spec: dict[str, Any]) -> dict[str, Any]:
        """Run a job in a process of its own."""
        jobs = self.folder / "jobs"
        asked, answer, log = jobs / f"{name}.spec", jobs / f"{name}.answer", jobs / f"{name}.log"
        write_json(asked, spec)
        answer.unlink(missing_ok=True)
        ending = run_limited(
            [sys.executable, "-m", "starfc.comparison.job", str(asked), str(answer)],
            time_s=self.options.time_s, memory_gb=self.options.memory_gb, log=log,
            progress=lambda stage, done, total: self.progress(f"{name}: {stage}", done, total),
        )  # fmt: skip
        result = None if ending.reason else _read_json(answer)
        asked.unlink(missing_ok=True)
        answer.unlink(missing_ok=True)
        return result or {"status": ending.reason or "failed: no answer", "peak_rss_gb": ending.peak_rss_gb}


def _require_names(parts: list[Part]) -> None:
    """Refuse different parts of one name: their graphs and results would be kept in the same files."""
    known: dict[str, Part] = {}
    for part in parts:
        other = known.setdefault(part.name, part)
        if other.features != part.features:
            raise InputError(
                f"{other.features} and {part.features} are both named '{part.name}' in tables and files; rename one"
            )
        if other.labels != part.labels:
            raise InputError(
                f"{part.features} was given with the labels of {other.labels} and of {part.labels}; give it a second"
                " name to train on the one and test on the other"
            )


def _require_one_width(shapes: dict[Path, tuple[int, ...]]) -> None:
    """Refuse features of different embedders; or of a headerless file that has other labels."""
    (first, (_, width)), *others = shapes.items()
    for features, (_, dim) in others:
        if dim != width:
            raise InputError(
                f"{first} has {width} numbers per face and {features} has {dim}; they must be of one embedder, and a"
                " headerless file needs one label per face, or --dim"
            )


def describe_row(row: Row) -> str:
    """Say in a line what came out."""
    if row.status != "done":
        return f"{row.title} on {row.test}: {row.status}"
    f, b = row.figures["pairwise"]["f"], row.figures["bcubed"]["f"]
    return f"{row.title} on {row.test}: F {100 * f:.2f} / {100 * b:.2f} in {row.seconds:.1f} s"


def _is_final(known: dict[str, Any], limits: dict[str, float], *, is_there: bool) -> bool:
    """Tell whether a kept result stands: done with its file there, or over a limit that has not been raised since."""
    status = known["result"]["status"]
    if status == "done":
        return is_there
    raised = any(limits[name] > known["limits"][name] for name in limits)
    return bool(status.startswith("over")) and not raised


def _read_json(path: Path) -> dict[str, Any] | None:
    """Read a JSON object; None if it is not there or damaged."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None
