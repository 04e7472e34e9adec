"""Memory plan: what a run will use, settled before it starts.

In: the sizes of the work and what memory and disk there are. Out: MemoryPlan: how many columns of P and Q are held at a
time, whether the arrays of scoring go to files, and the expected peak. Fewer columns cost time (the last convolution is
computed again for each pass), files cost disk; neither changes a bit of the result. The
peak counts every mapped page as resident, unless the budget forces them out, and half of the edges as surviving.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import InputError, OutputError
from .scratch import measure_private_bytes

SHARE_OF_FREE = 0.8  # of the memory that is free, unless told otherwise
_WIDE_UP_TO = 1 << 16  # faces up to which columns come in wide groups, which are faster
_BYTES_PER_FACE = 4000  # that scoring may take before it holds fewer columns, whatever there is
_SMALL_BYTES = 340_000_000  # a run that takes no more than this is not worth saving memory for
_NOTEWORTHY_BYTES = 1 << 30
_LIBRARY_BYTES = 100_000_000  # resident pages of the program files
_TILE_BYTES = 160 << 20  # compiled kernels, buffers of the threads


@dataclass(frozen=True)
class Sizes:
    """What the memory of a run depends on."""

    n: int
    k: int
    row_bytes: int  # of the features as stored
    features_in_memory: bool
    graph_in_memory: bool
    copied_row_bytes: int = 0  # of a float32 copy, where kernels cannot read the features as they are
    hidden: tuple[int, ...] = ()  # widths of the network's layers; none for cosine scores
    edge_bytes: int = 16  # that pruning and partition take per edge of the graph


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
        The arrays of scoring are memory-mapped files.
    disk_bytes : int
        Their size.
    parts : dict
        The largest parts of the peak, in bytes.
    """

    budget_bytes: int
    peak_bytes: int
    columns: int | None
    in_files: bool
    disk_bytes: int
    parts: dict[str, int]

    @property
    def is_noteworthy(self) -> bool:
        """Tell whether a user would want to know."""
        return self.in_files or sum(self.parts.values()) > _NOTEWORTHY_BYTES

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


def plan_memory(sizes: Sizes, *, memory_gb: float | None = None, in_files: bool = False) -> MemoryPlan:
    """Settle how a run keeps to its memory.

    Parameters
    ----------
    sizes : Sizes
        Of the work.
    memory_gb : float, optional
        What it may use; 80 % of what is free by default.
    in_files : bool
        The arrays of scoring go to files even if they fit (a work folder); else only if they do not.

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
    n = sizes.n
    parts = {
        "features": 0 if sizes.features_in_memory else n * sizes.row_bytes,
        "graph": 0 if sizes.graph_in_memory else 8 * n * sizes.k,
        "pruning": n * (sizes.edge_bytes * sizes.k + 40),
    }
    fixed = present + _TILE_BYTES
    if sizes.hidden:
        return _plan_scoring(sizes, budget, fixed, parts, in_files)
    _require(sizes, fixed + parts["graph"] + parts["pruning"], budget)
    return MemoryPlan(budget, min(budget, fixed + sum(parts.values())), None, False, 0, parts)


def _plan_scoring(sizes: Sizes, budget: int, fixed: int, parts: dict[str, int], in_files: bool) -> MemoryPlan:
    """Choose the columns, and files if they do not fit in memory."""
    n, width = sizes.n, sizes.hidden[-1]
    others = n * (sizes.copied_row_bytes + 4 * sum(sizes.hidden[:-1]) + 4 * sizes.k + 24)
    affinity = n * (4 * sizes.k + 8)  # half of the edges listed by one end only; measured: a third
    before = fixed + parts["features"] + parts["graph"] + others + affinity
    columns = _fit_columns(min(budget, max(_BYTES_PER_FACE * n, fixed + _SMALL_BYTES)) - before, n, width)
    least = fixed + parts["pruning"]
    spilling = in_files
    if before + 8 * n * columns > budget:
        # What is mapped can be let go of; what the columns themselves need is read again and again and should fit.
        spilling = True
        least = max(least, fixed + affinity + 24 * n)
        columns = _fit_columns((budget - least) * 3 // 4, n, width)
    _require(sizes, least, budget)
    return MemoryPlan(
        budget_bytes=budget,
        peak_bytes=min(budget, max(before + 8 * n * columns, fixed + sum(parts.values()))),
        columns=columns if columns < width else None,
        in_files=spilling,
        disk_bytes=8 * n * columns + others + (4 * n * sizes.k if columns < width else 0) if spilling else 0,
        parts=parts | {"P and Q": 8 * n * columns},
    )


def _fit_columns(n_bytes: int, n: int, width: int) -> int:
    """Return how many columns of P and Q fit, in passes of whole groups that are as equal as can be, one at least."""
    group = choose_group(n)
    n_fitting = max(1, n_bytes // (8 * n * group))
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
            f"{sizes.n} faces with {sizes.k} neighbours each need about {needed / 1e9:.1f} GB, more than memory_gb"
            f" ({budget / 1e9:.3g}); raise it or use a smaller k"
        )
