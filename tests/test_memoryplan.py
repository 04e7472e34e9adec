from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from starfc import memoryplan
from starfc.errors import InputError, OutputError
from starfc.memoryplan import Sizes, free_memory_bytes, plan_memory, require_disk

MILLION = Sizes(
    n=1_000_000, k=80, row_bytes=512, features_in_memory=False, graph_in_memory=False, hidden=(512,)
)  # fmt: skip


@pytest.fixture(autouse=True)
def small_process(monkeypatch):
    monkeypatch.setattr(memoryplan, "measure_private_bytes", lambda: 150_000_000)
    monkeypatch.setattr(memoryplan, "free_memory_bytes", lambda: 20_000_000_000)


def test_the_default_is_most_of_what_is_free_and_no_more_than_4_kb_a_face():
    plan = plan_memory(MILLION)
    assert plan.budget_bytes == 16_250_000_000
    assert plan.peak_bytes <= 4_000_000_000 and not plan.in_files
    assert plan.columns == 256  # two passes of 512
    assert "256 columns at a time" in plan.describe()


def test_small_runs_hold_all_columns():
    plan = plan_memory(replace(MILLION, n=50_000))
    assert plan.columns is None and not plan.in_files


def test_ten_million_faces_fit_in_20_gib():
    plan = plan_memory(replace(MILLION, n=12_000_000, k=30), memory_gb=21.4)
    assert plan.peak_bytes <= 21_400_000_000 and plan.columns == 128


@pytest.mark.parametrize("memory_gb", [1.8, 2.4, 3.2, 4, 6, 100])
def test_the_plan_keeps_to_the_budget(memory_gb):
    plan = plan_memory(MILLION, memory_gb=memory_gb)
    assert plan.peak_bytes <= plan.budget_bytes == memory_gb * 1e9
    assert plan.in_files == (memory_gb < 3)
    assert plan.in_files == (plan.disk_bytes > 0) == ("on disk" in plan.describe())
    assert plan.as_dict()["planned_gb"] <= memory_gb


def test_a_work_folder_means_files():
    plan = plan_memory(MILLION, in_files=True)
    assert plan.in_files and plan.disk_bytes > 4 * 256 * MILLION.n and plan.columns == 256


def test_mapped_rows_and_a_graph_that_is_compared_anew_are_counted():
    plain, mapped = MILLION, replace(MILLION, mapped_row_bytes=1024)
    both = replace(mapped, compared_row_bytes=8 * 80)
    peaks = [plan_memory(replace(sizes, hidden=())).peak_bytes for sizes in (plain, mapped, both)]
    assert np.diff(peaks).tolist() == [1024 * MILLION.n, 640 * MILLION.n]
    disks = [plan_memory(replace(sizes, hidden=()), in_files=True).disk_bytes for sizes in (plain, mapped, both)]
    assert np.diff(disks).tolist() == [1024 * MILLION.n, 2 * 640 * MILLION.n]  # in the making and kept


def test_cosine_scores_need_no_columns():
    plan = plan_memory(replace(MILLION, hidden=()))
    assert plan.columns is None and not plan.in_files and "P and Q" not in plan.describe()


@pytest.mark.parametrize("hidden", [(), (512,)])
def test_what_can_never_fit_is_refused(hidden):
    with pytest.raises(InputError, match=r"need about 0.[4-8]\d* GB, more than memory_gb \(0.45\)"):
        plan_memory(replace(MILLION, hidden=hidden), memory_gb=0.45)


@pytest.mark.parametrize("scorer", ["cosine", "relational", "gcn", "combined"])
@pytest.mark.parametrize("knn", ["", "cells", "exact"])
@pytest.mark.parametrize("partition", ["components", "mapequation", "refined"])
def test_files_and_fewer_columns_before_a_refusal(scorer, knn, partition):
    """From much memory to little: all in memory, then files, then an error; never more than the budget."""
    hidden = (512,) if scorer in ("gcn", "combined") else ()
    sizes = replace(MILLION, dim=256, scorer=scorer, hidden=hidden, knn=knn, partition=partition)
    kinds = []
    for memory_gb in (100, 8, 5, 3, 2, 1.5, 1, 0.6, 0.45):
        try:
            plan = plan_memory(sizes, memory_gb=memory_gb)
        except InputError as error:
            assert f"more than memory_gb ({memory_gb:g})" in str(error)
            kinds.append("refused")
            continue
        assert plan.peak_bytes <= memory_gb * 1e9
        assert plan.in_files == (plan.disk_bytes > 0)
        kinds.append("files" if plan.in_files else "memory")
    assert kinds[0] == "memory" and kinds[-1] == "refused"
    assert kinds == sorted(kinds, key=["memory", "files", "refused"].index)


def test_a_search_takes_disk_too():
    given, searched = (plan_memory(replace(MILLION, dim=256, knn=knn), in_files=True) for knn in ("", "cells"))
    assert searched.disk_bytes >= given.disk_bytes + 16 * MILLION.n_edges
    assert searched.parts["search"] > 0 and given.parts["search"] == 0


def test_too_little_disk_is_refused(tmp_path):
    require_disk(tmp_path, 1000)
    with pytest.raises(OutputError, match=r"GB free, the run needs about 1000000.0 GB there"):
        require_disk(tmp_path, 10**15)


def test_free_memory(monkeypatch, tmp_path):
    monkeypatch.undo()
    assert 10**7 < free_memory_bytes() < 10**14
    monkeypatch.setattr(Path, "is_file", lambda self: False)
    assert free_memory_bytes() == 8 << 30


def test_a_container_may_have_less_than_the_machine(monkeypatch):
    monkeypatch.undo()
    files = {
        "/proc/meminfo": "MemTotal: 100 kB\nMemAvailable:   2000000 kB\n",
        "/sys/fs/cgroup/memory.max": "1000000000\n",
        "/sys/fs/cgroup/memory.current": "400000000\n",
    }
    monkeypatch.setattr(Path, "is_file", lambda self: str(self) in files)
    monkeypatch.setattr(Path, "read_text", lambda self, encoding: files[str(self)])
    assert free_memory_bytes() == 600_000_000
