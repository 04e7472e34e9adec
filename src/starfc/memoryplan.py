"""Memory plan: what a run will use, settled before it starts.

In: the sizes of the work and what memory and disk there are. Out: MemoryPlan: how many columns of P and Q are held at a
time, whether arrays go to files, the expected peak and the disk it takes. Of each stage two numbers are known: what it
must hold, and what may be in memory or in mapped files, which can be let go of. If everything fits it stays in memory;
else it goes to files; if what must be held does not fit, the run is refused. Fewer columns cost time (the last
convolution is computed again for each pass), files cost disk; neither changes a bit of the result.

How many edges survive is not known before they are scored: half of them are planned for, and the stages count them
before they go on.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numba

from .errors import InputError, OutputError
from .exact import measure_exact_bytes
from .halves import can_widen
from .residency import measure_private_bytes

SHARE_OF_FREE = 0.8  # of the memory that is free, unless told otherwise
_WIDE_UP_TO = 1 << 16  # faces up to which columns come in wide groups, which are faster
_BYTES_PER_FACE = 4000  # that scoring may take before it holds fewer columns, whatever there is
_SMALL_BYTES = 340_000_000  # a run that takes no more than this is not worth saving memory for
_LIBRARY_BYTES = 100_000_000  # resident pages of the program files
_TILE_BYTES = 160 << 20  # compiled kernels, buffers of the threads
_SURVIVING = 0.5  # share of the edges; a trained network keeps fewer
_PARSED_BYTES = 21  # of pruning per surviving edge: the parsed graph, its intimacies, what is kept of it
_REFINED_EDGE_BYTES = 4  # scores without the links of crowds
_REFINED_BYTES = 48  # per face: parts, homes, who is in a crowd
_FLOW_BYTES = 32  # per surviving edge, of partitions that build a graph of their own


@dataclass(frozen=True)
class Sizes:
    """What the memory of a run depends on."""

    n: int
    k: int
    row_bytes: int  # of the features as stored
    features_in_memory: bool
    graph_in_memory: bool
    dim: int = 0
    copied_row_bytes: int = 0  # of a float32 copy, where kernels cannot read the features as they are
    mapped_row_bytes: int = 0  # of the features in the model's space, where it has one
    compared_row_bytes: int = 0  # of a graph that is compared anew there
    knn: str = ""  # how the graph is built: "cells", "exact"; nothing for a graph that is there
    scorer: str = "cosine"
    hidden: tuple[int, ...] = ()  # widths of the layers of the network that scores
    partition: str = "components"

    @property
    def n_edges(self) -> int:
        """Entries of the kNN lists."""
        return self.n * self.k


@dataclass(frozen=True)
class _Need:
    """Bytes that a stage must hold, and bytes that may be in mapped files."""

    held: int
    mapped: int

    @property
    def whole(self) -> int:
        return self.held + self.mapped


@dataclass(frozen=True)
class MemoryPlan:
    """What a run will use.

    Attributes
    ----------
    budget_bytes : int
        What it may use.
    peak_bytes : int
        What it is expected to use, this process as it is now included.
    columns : int, optional
        Columns of P and Q held at a time; None for all of them, or where there are none.
    in_files : bool
        Arrays that can be are memory-mapped files.
    disk_bytes : int
        The most that those and the work folder take at a time.
    parts : dict
        The largest parts of the peak, in bytes.
    """

    budget_bytes: int
    peak_bytes: int
    columns: int | None
    in_files: bool
    disk_bytes: int
    parts: dict[str, int]

    def measure_spare(self) -> int:
        """Return how much of the budget is left, mapped pages not counted, which can be let go of."""
        return self.budget_bytes - measure_private_bytes() - _LIBRARY_BYTES

    def describe(self) -> str:
        """Say it in one line.

        >>> MemoryPlan(8_000_000_000, 3_000_000_000, 256, False, 0, {"graph": 640_000_000}).describe()
        'memory: up to 3.0 of 8.0 GB (graph 0.6); P and Q 256 columns at a time'
        """
        parts = ", ".join(f"{name} {size / 1e9:.1f}" for name, size in self.parts.items() if size >= 5e7)
        text = f"memory: up to {self.peak_bytes / 1e9:.1f} of {self.budget_bytes / 1e9:.1f} GB"
        text += f" ({parts})" if parts else ""
        text += f"; P and Q {self.columns} columns at a time" if self.columns is not None else ""
        return text + (f"; {self.disk_bytes / 1e9:.1f} GB on disk" if self.in_files else "")

    def as_dict(self) -> dict[str, Any]:
        """Return the figures for JSON."""
        return {
            "budget_gb": round(self.budget_bytes / 1e9, 3),
            "planned_gb": round(self.peak_bytes / 1e9, 3),
            "columns": self.columns,
            "disk_gb": round(self.disk_bytes / 1e9, 3) if self.in_files else 0.0,
        }


def choose_group(n: int) -> int:
    """Return how many columns of P and Q go together; bits depend on it, so it depends on nothing but the input.

    >>> choose_group(50_000), choose_group(1_000_000)
    (128, 64)
    """
    return 128 if n <= _WIDE_UP_TO else 64


def measure_column(n: int) -> int:
    """Return the bytes that a column of P and Q takes per face: in half precision from many faces on.

    >>> measure_column(50_000)
    8
    """
    return 4 if n > _WIDE_UP_TO and can_widen() else 8


def plan_memory(sizes: Sizes, *, memory_gb: float | None = None, in_files: bool = False) -> MemoryPlan:
    """Settle how a run keeps to its memory.

    Parameters
    ----------
    sizes : Sizes
        Of the work.
    memory_gb : float, optional
        What it may use; 80 % of what is free by default.
    in_files : bool
        Arrays go to files even if they fit (a work folder, which keeps the graph and the scores too); else only if
        they do not.

    Returns
    -------
    MemoryPlan

    Examples
    --------
    >>> sizes = Sizes(n=1000, k=10, row_bytes=64, features_in_memory=True, graph_in_memory=False)
    >>> plan_memory(sizes, memory_gb=4).in_files
    False
    """
    present = measure_private_bytes() + _LIBRARY_BYTES  # mapped inputs are counted below, touched or not
    budget = int(memory_gb * 1e9) if memory_gb is not None else present + int(SHARE_OF_FREE * free_memory_bytes())
    fixed = present + _TILE_BYTES
    inputs = {
        "features": 0 if sizes.features_in_memory else sizes.n * sizes.row_bytes,
        "graph": 0 if sizes.graph_in_memory else 8 * sizes.n_edges,
        "mapped": sizes.n * (sizes.mapped_row_bytes + sizes.compared_row_bytes),
    }
    # A graph that was compared exactly is in memory whatever the plan, and stays there.
    kept = 8 * sizes.n_edges if sizes.knn == "exact" else 0
    knn, pruning = _need_for_knn(sizes), _need_for_pruning(sizes)
    scores, columns = _need_for_scores(sizes, budget, fixed + sum(inputs.values()), fixed + kept)
    needs = {"search": knn, "scores": scores, "pruning": pruning}
    parts = inputs | {name: need.whole for name, need in needs.items()}
    # The features are not read any more once the edges are scored, but their pages may still be there.
    peak = fixed + sum(inputs.values()) + max(need.whole for need in needs.values())
    in_files = in_files or peak > budget
    _require(sizes, fixed + max(knn.held, kept + scores.held, kept + pruning.held), budget)
    return MemoryPlan(
        budget_bytes=budget,
        peak_bytes=min(budget, peak),
        columns=columns if sizes.hidden and columns < sizes.hidden[-1] else None,
        in_files=in_files,
        disk_bytes=_measure_disk(sizes, knn, scores, pruning) if in_files else 0,
        parts=parts,
    )


def _need_for_knn(sizes: Sizes) -> _Need:
    """Return what the search for neighbours takes, the finished lists not counted."""
    n, k, dim = sizes.n, sizes.k, sizes.dim
    if sizes.knn == "exact":
        return _Need(measure_exact_bytes(n, dim, k), 0)
    if sizes.knn == "cells":
        # Held: the sample that centres are trained on and some arrays of n. In files: the rows as halves, the ranked
        # cells, and the lists of the last two steps.
        return _Need(n * (dim + 8 * dim // 10 + k + 160), n * (2 * dim + 460 + 58 * k))
    return _Need(0, 0)


def _need_for_scores(sizes: Sizes, budget: int, before: int, least: int) -> tuple[_Need, int]:
    """Return what scoring takes, and how many columns of P and Q it holds at a time."""
    n, k = sizes.n, sizes.k
    # Evidence, scores, the lists in the meantime, the order of the rows, first probabilities and their sums.
    relations = n * (14 * k + 108) if sizes.scorer in ("relational", "combined") else 0
    if not sizes.hidden:
        return _Need(relations, 0), 0
    # The affinity goes to files too, but without it in memory nothing moves: half of the edges listed by one end only
    # (measured: a third).
    held, width = n * (4 * k + 32 + (8 * k if relations else 0)), sizes.hidden[-1]
    mapped = n * (sizes.copied_row_bytes + 4 * sum(sizes.hidden[:-1]) + 4 * k)
    wanted = min(budget, max(_BYTES_PER_FACE * n, least + _SMALL_BYTES))
    columns = _fit_columns(wanted - before - held - mapped, n, width)
    if before + held + mapped + measure_column(n) * n * columns > budget:
        # What is mapped can be let go of; what the columns themselves need is read again and again and should fit.
        columns = _fit_columns((budget - least - held) * 3 // 4, n, width)
    return _Need(max(held, relations), mapped + measure_column(n) * n * columns), columns


def _need_for_pruning(sizes: Sizes) -> _Need:
    """Return what pruning and partition take if half of the edges survive."""
    return _Need(*measure_pruning(sizes.n, int(_SURVIVING * sizes.n_edges), sizes.partition))


def measure_pruning(n: int, n_edges: int, partition: str) -> tuple[int, int]:
    """Return the bytes that pruning and partition must hold, and those that may be in files, for so many edges.

    >>> from starfc.threads import limited_threads
    >>> with limited_threads(1):
    ...     measure_pruning(10, 100, "components"), measure_pruning(10, 100, "mapequation")
    ((400, 2100), (4120, 2100))
    """
    flow = 0 if partition == "components" else _FLOW_BYTES * n_edges + (40 + 12 * numba.get_num_threads()) * n
    if partition == "refined":
        flow += _REFINED_EDGE_BYTES * n_edges + _REFINED_BYTES * n
    return 40 * n + flow, _PARSED_BYTES * n_edges


def _measure_disk(sizes: Sizes, knn: _Need, scores: _Need, pruning: _Need) -> int:
    """Return the most that files take: while neighbours are searched, or later, when the graph and scores are kept."""
    graph = 2 * 8 * sizes.n_edges if sizes.knn else 0  # as it was found and as it is kept
    # Beside what is planned for in memory: what two ends of an edge disagree about, where passes do not read, and half
    # a group of columns, because groups are not all of one width.
    scratch = scores.whole + 9 * sizes.n_edges + 4 * sizes.n * choose_group(sizes.n) if sizes.hidden else 0
    mapped = sizes.n * (sizes.mapped_row_bytes + 2 * sizes.compared_row_bytes)
    return mapped + graph + max(knn.mapped, 4 * sizes.n_edges + max(scratch, pruning.mapped))


def _fit_columns(n_bytes: int, n: int, width: int) -> int:
    """Return how many columns of P and Q fit, in passes of whole groups that are as equal as can be, one at least."""
    group = choose_group(n)
    n_fitting = max(1, n_bytes // (measure_column(n) * n * group))
    n_groups = -(-width // group)
    n_passes = -(-n_groups // n_fitting)
    return min(width, -(-n_groups // n_passes) * group)


def require_disk(folder: Path, n_bytes: int) -> None:
    """Refuse to start what the disk cannot hold."""
    free = shutil.disk_usage(folder).free
    if n_bytes > free:
        raise OutputError(
            f"{folder} has {free / 1e9:.1f} GB free, the run needs about {n_bytes / 1e9:.1f} GB there; free some disk"
            " space or choose another --workdir"
        )


def free_memory_bytes() -> int:
    """Return the memory that can be had without swapping; what the container or the machine says."""
    meminfo = Path("/proc/meminfo")
    if not meminfo.is_file():
        return 8 << 30
    fields = dict(line.split(":", 1) for line in meminfo.read_text(encoding="ascii").splitlines())
    free = int(fields["MemAvailable"].split()[0]) * 1024
    group = Path("/sys/fs/cgroup/memory.max")
    limit = group.read_text(encoding="ascii").strip() if group.is_file() else "max"
    if limit.isdigit():
        used = int((group.parent / "memory.current").read_text(encoding="ascii"))
        free = min(free, max(0, int(limit) - used))
    return free


def _require(sizes: Sizes, needed: int, budget: int) -> None:
    """Refuse what cannot be kept within the budget."""
    if needed > budget:
        raise InputError(
            f"{sizes.n} faces with {sizes.k} neighbours each need about {needed / 1e9:.3g} GB, more than memory_gb"
            f" ({budget / 1e9:.3g}); raise it or use a smaller k"
        )
