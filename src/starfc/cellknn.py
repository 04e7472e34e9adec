"""Approximate kNN graph: as many of the true neighbours as are asked for, at a cost that grows little faster than n.

In: Features. Out: neighbours and similarities of every row, and the cell order.

1. The rows are divided into cells of about 32 (cells.py), found by way of grouped centres (centres.py); rows that are
   far from all they find look longer, and every row keeps what came next.
2. Every row ranks the cells around its own and those that came next, or, where cells are few, weak rows all of them
   (probes.py), and looks into its own and the few best
   (celljoin.py). What it finds is offered to the other side too (neighborlists.py).
3. It looks into further cells as far as they come near enough to what it has.
4. Neighbours of neighbours are looked at, as often as it takes (expansion.py).
5. The hard rows, to which step 3 has brought much, look into many cells of many groups, and step 4 follows again.

How far is far enough is measured, on queries whose true neighbours are found exactly: if step 3 alone can bring the
wanted recall, it is taken so far; else it is kept short and followed by rounds of step 4 until the recall is there. If
the rounds stop helping before that, step 5 is taken: on a million faces with k = 30, three quarters of what is missing
then is missing from a ninth of the lists. Then more cells are ranked for all, and the join goes on from there; if all
of that is not enough, as for rows without any structure, all pairs are compared after all. Of millions of rows that
would take hours, or more memory than there is: there the best that was found is returned, with a warning that says what
it is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .celljoin import join_cells, join_some
from .cells import Cells, make_cells
from .centres import rank_cells
from .exact import join_exactly, measure_exact_bytes
from .expansion import Paths, choose_followed, expand_lists
from .features import Features
from .neighborlists import Lists, mark_fresh, offer_back, open_lists
from .probes import Probes, Reach, Sample, choose_margin, choose_margin_for, draw_sample, rank_probes
from .scratch import Scratch
from .steps import Steps, cut_evenly

_log = logging.getLogger(__name__)


class _Effort(NamedTuple):
    """How hard to look."""

    reach: Reach  # cells that a row ranks
    n_ranks: int  # of them that are kept
    n_far: int  # of them that are looked into, on average, where expansion has to do the rest
    n_hard: int  # cells that a hard row looks into

    def scale(self, k: int) -> _Effort:
        """Return what it takes at least for k neighbours: many are in many cells, and are dear to expand."""
        reach = self.reach._replace(n_cells=max(self.reach.n_cells, 16 * k // 5))
        return _Effort(reach, max(self.n_ranks, 3 * k // 5), max(self.n_far, k // 4), max(self.n_hard, 8 * k // 5))


_EFFORTS = (
    _Effort(Reach(48, 64), 32, 12, 48),
    _Effort(Reach(192, 1024), 128, 48, 192),
    _Effort(Reach(1 << 30, 4096), 320, 256, 512),
)
_NEAR_PROBES = 5  # cells that every row looks into, besides its own
_FOLLOWED = (1 / 3, 1 / 2, 2 / 3, 1)  # share of a row's neighbours that are followed, round by round, at most
_HARD_NEWS = 8  # one in so many entries that the far cells have brought make a list hard
_SEEN_BY_HARD = 40, 20  # groups that a hard row looks into, or one in so many of all groups if that is more
_LEAST_GAIN = 0.1  # share of what is missing that a round must bring for another one to follow
_MAPPED_ROWS = 1 << 16  # rows that the lists are turned back into at once
_MOST_FOR_ALL = 4_000_000  # rows for which all cells may be ranked
_MOST_EXACT_BYTES = 2_000_000_000  # for which all pairs may be compared: some 500,000 rows, a quarter of an hour
BITS = 11  # counted up when a change of the search changes what it keeps in files: old ones are not gone on with


def find_neighbors(
    features: Features, k: int, *, recall: float, seed: int, steps: Steps
) -> tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.int32]]:
    """Find about `recall` of the k nearest rows of every row; return neighbours, similarities and the cell order."""
    steps.watch(features.raw)
    cells, store = make_cells(features, k, seed, steps)
    sample = draw_sample(store, cells.places, k, seed, steps)
    # A high recall is out of reach of the least effort; trying would only cost time.
    levels = steps.open("levels")
    failed = levels.array("failed", (len(_EFFORTS),), np.uint8)
    if levels.folder is None:
        failed[:] = 0
    search: _Search | None = None
    n_levels = len(_EFFORTS) - (len(store) > _MOST_FOR_ALL)
    for level in range(0 if recall < 0.98 else 1, n_levels):
        search = _Search(store, cells, k, sample, recall, level, search, steps)
        if failed[level]:
            search.skip()  # an earlier run has found that out
            continue
        search.look()
        # The last word has what was found: a margin for chance is asked of what can still be improved.
        if search.reached or search.found >= recall:
            return *_finish(search, steps), cells.order
        failed[level] = 1
    needed = measure_exact_bytes(len(features), features.dim, k)
    if search is not None and needed > min(_MOST_EXACT_BYTES, steps.limit_bytes or needed):
        said = "the kNN graph has a recall of %.4f where %g was asked for; more would take hours, or too much memory"
        _log.warning(said, np.floor(search.found * 10_000) / 10_000, recall)  # not rounded up to what was asked for
        return *_finish(search, steps), cells.order
    search = None
    steps.give_back()
    return *join_exactly(features.read, len(features), features.dim, k, steps.progress), cells.order


def _finish(search: _Search, steps: Steps) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Return the neighbours and similarities of the rows, which are those of the places they stand at."""
    final = steps.open("graph")
    lists, order = search.lists, search.cells.order
    neighbors = final.array("neighbors", lists.places.shape, np.int32)
    similarities = final.array("similarities", lists.places.shape, np.float32)

    def map_back(start: int, stop: int) -> None:
        _map_back(lists, order, start, stop, neighbors, similarities)

    steps.run_tiles(final, cut_evenly(len(order), _MAPPED_ROWS), map_back, "knn: lists")
    return neighbors, similarities


class _Search:
    """The lists of one effort on their way to the wanted recall, stage by stage.

    They start from what a lesser effort has found. What each stage has found is noted, so that a run that goes on where
    another was killed need not have the lists of all stages, only of the last two.
    """

    def __init__(
        self,
        store: NDArray[Any],
        cells: Cells,
        k: int,
        sample: Sample,
        recall: float,
        level: int,
        before: _Search | None,
        steps: Steps,
    ) -> None:
        self.store, self.cells, self.k, self.sample = store, cells, k, sample
        self.recall, self.level, self.before, self.steps = recall, level, before, steps
        self.effort, self.owners = _EFFORTS[level].scale(k), cells.owners
        self.reached, self.found = False, 0.0
        rounds = [f"round{number}" for number in range(len(_FOLLOWED))]
        self._stages = ["near", "far", *rounds, "hard", *(f"hard-{name}" for name in rounds)]
        self._names: list[str] = []  # of those that are done
        notes = steps.open(f"stages{level}")
        self._founds = notes.array("found", (len(self._stages),), np.float64)
        self._reached = notes.array("reached", (len(self._stages),), np.uint8)
        self._followed = notes.array("followed", (len(self._stages),), np.int32)  # how many, by rounds of expansion
        self._is_hard = notes.array("hard", (len(store),), np.bool_)  # whether the far cells have brought much
        if notes.folder is None:
            self._founds[:] = 0
        self._kept: dict[str, Lists] = {}
        self._probes: Probes | None = None

    @property
    def lists(self) -> Lists:
        """The lists of the last stage."""
        return self._get(self._names[-1])

    def look(self) -> None:
        """Rank, join and expand until the recall is there or all has been tried."""
        self.look_near()
        if not self.reached:
            self.look_far()
        self._probes = None  # may be as large as the lists
        self._close("probes")
        self.expand("")
        if not self.reached:
            self.look_hard()
            self.expand("hard-")

    def skip(self) -> None:
        """Take up what an earlier run has found with this effort."""
        self._names = [name for name, found in zip(self._stages, self._founds, strict=True) if found > 0]
        self.found = float(self._founds[self._stages.index(self._names[-1])])

    @property
    def probes(self) -> Probes:
        """The cells that the effort ranks, ranked when they are first asked for."""
        if self._probes is None:
            n_ranks = min(self.effort.n_ranks, self.cells.n_cells - 1)
            # Few cells are all ranked where much is asked for.
            reach = self.effort.reach if self.cells.next_best.shape[1] or self.level == 0 else None
            self._probes = rank_probes(self.store, self.cells, n_ranks, reach, self._open("probes"), self.steps)
        return self._probes

    def look_near(self) -> None:
        """Look into the own cell and the nearest ones."""

        def look() -> tuple[Lists, bool]:
            probes = self.probes  # ranked here, not by each of the threads that choose

            def choose(start: int, stop: int) -> NDArray[np.int32]:
                return np.hstack((self.owners[start:stop, None], probes.cells[start:stop, :_NEAR_PROBES]))

            start = None if self.before is None else self.before.lists
            return join_cells(self.store, self.cells, choose, start, self.k, self._open("near"), self.steps), False

        self._do("near", look)
        if self.before is not None:
            self.before.close()
            self.before = None

    def look_far(self) -> None:
        """Look into as many more cells as the recall takes, or, where no number of them will do, as the effort says."""

        def look() -> tuple[Lists, bool]:
            probes, floors = self.probes, self.lists.find_floors(self.steps)
            enough = choose_margin(probes, self.owners, self.lists, floors, self.sample, self.recall)
            margin = enough
            if margin is None:
                margin = choose_margin_for(self.effort.n_far, probes, floors, self.sample)

            def choose(start: int, stop: int) -> NDArray[np.int32]:
                margins = probes.scores[start:stop, _NEAR_PROBES:] - floors[start:stop, None]
                return np.where(margins >= margin, probes.cells[start:stop, _NEAR_PROBES:], -1)

            lists = join_cells(self.store, self.cells, choose, self.lists, self.k, self._open("far"), self.steps)
            self._is_hard[:] = self._find_hard(lists)
            return lists, enough is not None

        self._do("far", look)

    def expand(self, prefix: str) -> None:
        """Look at neighbours of neighbours until the recall is there, or another round would not help."""
        n_before = 0
        for number, share in enumerate(_FOLLOWED):
            if self.reached:
                return
            name, found_before, most = f"{prefix}round{number}", self.found, int(np.ceil(share * self.k))
            stage = self._stages.index(name)

            def look(
                name: str = name, stage: int = stage, n_before: int = n_before, most: int = most
            ) -> tuple[Lists, bool]:
                scratch = self._open(name)
                fresh = mark_fresh(self.lists, self._get(self._names[-2]), scratch, self.steps)
                paths = Paths(self.store, self.cells.order, self.lists, fresh, n_before)
                self._followed[stage] = choose_followed(paths, most, self.sample, self.recall)
                return expand_lists(paths, int(self._followed[stage]), scratch, self.steps), False

            self._do(name, look)
            n_before = int(self._followed[stage])
            if self.found - found_before < _LEAST_GAIN * (self.recall - found_before):
                return

    def _find_hard(self, lists: Lists) -> NDArray[np.bool_]:
        """Tell which lists hold much that was not there before, bool (n,)."""
        scratch = self._open("fresh")
        fresh = mark_fresh(lists, self.lists, scratch, self.steps)
        least = max(1, self.k // _HARD_NEWS)
        is_hard = np.concatenate([fresh[i:j].sum(axis=1) >= least for i, j in self.steps.pass_over(len(fresh))])
        self._close("fresh")
        return is_hard

    def look_hard(self) -> None:
        """Let the rows to which the far cells have brought much look into many more, in many groups."""
        hard = np.flatnonzero(self._is_hard)
        coarse = self.cells.coarse
        n_seen = max(_SEEN_BY_HARD[0], len(coarse.groups) // _SEEN_BY_HARD[1])
        n_ranks = min(self.effort.n_hard, self.cells.n_cells)

        def choose(rows: NDArray[np.float32]) -> NDArray[np.int32]:
            return rank_cells(rows, coarse, n_ranks, n_seen)[0]

        def look() -> tuple[Lists, bool]:
            scratch = self._open("hard")
            return join_some(self.store, self.cells, hard, choose, self.lists, scratch, self.steps), False

        self._do("hard", look)

    def _do(self, name: str, look: Callable[[], tuple[Lists, bool]]) -> None:
        """Do a stage, unless an earlier run has: look, offer what was found to the other side, measure what there is.

        `look` returns lists, and whether they were made to have the recall; if so, half the margin for chance will do.
        """
        stage = self._stages.index(name)
        if self._founds[stage] == 0:
            found, made_for_it = look()
            last = self if self._names else self.before
            before = None if last is None else last.lists
            lists = offer_back(found, before, self.cells.order, self._open(f"{name}-both"), self.steps)
            reached, share = self.sample.measure(lists, self.recall)
            self._reached[stage] = reached or (made_for_it and share - (1 - self.recall) / 16 >= self.recall)
            self._founds[stage] = share  # last: it says that the stage is done
            self._kept[name] = lists
            self._close(name)
            if len(self._names) >= 2:
                self._kept.pop(self._names[-2], None)
                self._close(f"{self._names[-2]}-both")
        self.reached, self.found = bool(self._reached[stage]), float(self._founds[stage])
        self._names.append(name)
        _log.debug("%s found %.4f", name, self.found)

    def close(self) -> None:
        """Remove all files of the search but its notes."""
        self._kept.clear()
        for name in self._names:
            self._close(f"{name}-both")

    def _get(self, name: str) -> Lists:
        """Return the lists of one of the last two stages."""
        if name not in self._kept:
            self._kept[name] = open_lists(self._open(f"{name}-both"), len(self.store), self.k)
        return self._kept[name]

    def _open(self, name: str) -> Scratch:
        return self.steps.open(f"{name}{self.level}")

    def _close(self, name: str) -> None:
        self.steps.close(f"{name}{self.level}")


@njit(cache=True, nogil=True)
def _map_back(lists, order, start, stop, neighbors, similarities):  # type: ignore[no-untyped-def]
    """Turn places start..stop into rows."""
    for place in range(start, stop):
        row = order[place]
        for j in range(lists.places.shape[1]):
            found = lists.places[place, j]
            neighbors[row, j] = order[found] if found >= 0 else -1
            similarities[row, j] = lists.similarities[place, j]
