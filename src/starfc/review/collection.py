"""Collection: a clustering that is being looked through and corrected.

In: Features, labels, Evidence, a journal. Out: plain dicts for the page, and corrections. Every correction is written
to the journal first, then made, then the figures of the clusters it touched are computed again; all under one lock, so
that what a page reads is never half of a correction. Pages are cut out of whole columns, nothing is sent whole.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..constraints import apply_constraints, keep_ids
from ..corrections import NOT_A_FACE, Book, Change, number_alone
from ..errors import InputError
from ..evidence import Evidence
from ..export import make_constraints
from ..features import Features
from ..images import ImageList
from ..journal import Journal
from ..prune import parse_edges
from ..questions import divide_cluster, find_questions
from ..scratch import Scratch
from .arguments import read_optional, read_text, read_whole, read_wholes
from .changes import (
    answer_only,
    forget_kept,
    mark_not_faces,
    merge_clusters,
    move_faces,
    name_cluster,
    part_faces,
    relabel,
    require_cluster,
    skip_question,
    split_cluster,
    with_answer,
)
from .grouping import group_members
from .levels import Levels
from .queue import Question, QuestionQueue
from .table import ClusterTable, Filter

logger = logging.getLogger(__name__)
CARD_FACES = 6
HIGHEST_LEVEL, N_LEVELS = 0.99, 41  # of the strictness slider
_MOST_PARTS = 400
_MOST_BYTES = 900 << 20  # beyond which mapped pages of the files are let go; the system keeps them at hand
_NEAREST = 12
_MOST_NAMED = 1000  # labels that the answer to an action names


class Collection:
    """The state behind the page."""

    def __init__(
        self,
        features: Features,
        labels: NDArray[np.int64],
        evidence: Evidence,
        journal: str | Path,
        *,
        images: ImageList | None = None,
        traits: NDArray[np.float32] | None = None,
    ) -> None:
        if not len(features) == len(labels) == len(evidence.scored.neighbors):
            raise InputError(
                f"there are {len(features)} vectors, {len(labels)} labels and {len(evidence.scored.neighbors)} lists of"
                " scores; they must be of the same faces"
            )
        self.features, self.images, self.traits = features, images, traits
        self.tau1 = evidence.tau1
        self.floor = self.tau1 - (0.15 if evidence.settings.scorer == "cosine" else 0.5 * max(0.0, self.tau1))
        self._pages = Scratch(limit_bytes=_MOST_BYTES)
        self._pages.watch(features.raw, evidence.scored.neighbors, evidence.scored.scores)
        self._pages.let_go()  # what scoring has left
        self._graph = parse_edges(evidence.scored, self.floor)
        self._evidence: Evidence | None = evidence
        self.lock = threading.RLock()
        self._heavy = threading.Lock()  # what needs much memory, one at a time; taken before the other lock
        self.journal = Journal(journal, labels)
        self._pages.let_go()
        self.table = ClusterTable(
            features, self._graph, self.book, floor=self.floor, tau1=self.tau1,
            progress=lambda stage, done, total: self._pages.relieve(),
        )  # fmt: skip
        self._levels = Levels(self._graph, number_alone(labels), evidence.settings)
        self._counts: dict[str, list[Any]] | None = None
        self._queue: QuestionQueue | None = None
        self.questions_wanted = threading.Event()
        self._pages.relieve()
        self._no_questions = ""
        self._selected: dict[tuple[Filter, int, int], NDArray[np.int64]] = {}
        self._n_renamed = 0

    @property
    def book(self) -> Book:
        """The corrected state."""
        return self.journal.book

    def close(self) -> None:
        """Close the journal."""
        self.journal.close()

    def prepare_questions(self) -> None:
        """Find what may be asked; takes seconds for large collections, so it is done beside the server's work."""
        evidence = self._evidence
        if evidence is None:
            return
        with self.lock:
            labels = self.book.labels.copy()
        try:
            tau1, threshold = evidence.tau1, evidence.threshold
            with self._heavy:
                self._pages.let_go()
                pool = find_questions(
                    self.features, evidence.scored, labels, tau1=tau1, threshold=threshold,
                    progress=lambda stage, done, total: self._pages.relieve(),
                )  # fmt: skip
        except Exception as error:
            self._no_questions = f"no questions could be found ({type(error).__name__}: {error}); all else works"
            logger.exception("the review page has no questions")
            return
        with self.lock:
            self._queue = QuestionQueue(pool, tau1=tau1, threshold=threshold)
            self._evidence = None  # the lists are large and have done their work
        del evidence
        self._pages = Scratch(limit_bytes=_MOST_BYTES)
        self._pages.watch(self.features.raw)
        self._pages.relieve()

    # reading

    def summarise(self) -> dict[str, Any]:
        """Return the figures in the page's head."""
        with self.lock:
            sizes = self.table.sizes[: self.table.n_slots]
            return {
                "n_faces": len(self.features),
                "n_clusters": int((sizes > 0).sum()),
                "n_singletons": int((sizes == 1).sum()),
                "n_named": sum(1 for label in self.book.names if len(self.book.members(label))),
                "n_not_faces": len(self.book.members(NOT_A_FACE)),
                "n_answers": len(self.book.answers),
                "n_actions": len(self.journal),
                "can_undo": self.journal.can_undo,
                "can_redo": self.journal.can_redo,
                "tau1": self.tau1,
                "level": self.tau1 if self.book.level is None else self.book.level,
                "floor": self.floor,
                "has_images": self.images is not None,
                "has_questions": self._queue is not None,
                "version": self.table.version,
            }

    def list_wall(self, wanted: Filter, start: int, count: int) -> dict[str, Any]:
        """Return a page of the wall: clusters in the order asked for, and how many there are."""
        with self.lock:
            self._pages.relieve()
            slots = self._select(wanted)
            shown = slots[max(0, start) : max(0, start) + count]
            return {
                "total": len(slots),
                "version": self.table.version,
                "clusters": [self._describe(slot) for slot in shown.tolist()],
            }

    def open_cluster(self, label: int, *, start: int, count: int, outliers_first: bool) -> dict[str, Any]:
        """Return one cluster: a page of its faces by closeness to its centre, and its nearest clusters."""
        with self.lock:
            self._pages.relieve()
            # That nobody is left out any more, after an undo, is no mistake of who asks.
            members = self.book.members(label) if label == NOT_A_FACE else require_cluster(self.book, label)
            closeness = self.table.closeness[members]
            order = np.argsort(closeness if outliers_first else -closeness, kind="stable")
            shown = members[order[max(0, start) : max(0, start) + count]]
            faces = [
                {
                    "row": int(row),
                    "closeness": round(float(self.table.closeness[row]), 3),
                    "confidence": round(float(self.table.face_confidence[row]), 3),
                }
                for row in shown
            ]
            slot = self.table.find(label)
            head = self._describe(slot) if slot >= 0 else {"label": label, "name": "left out", "size": len(members)}
            return head | {"page": faces, "near": self._find_near(slot) if slot >= 0 and start == 0 else []}

    def list_questions(self, count: int) -> list[dict[str, Any]] | None:
        """Return the next questions; None while they are being looked for."""
        with self.lock:
            if self._no_questions:
                raise InputError(self._no_questions)
            if self._queue is None:
                self.questions_wanted.set()
                return None
            return [self._show_question(question) for question in self._queue.rank(self.book, self.table, count)]

    @property
    def queue(self) -> QuestionQueue:
        """The questions; an error while they are being looked for."""
        if self._queue is None:
            raise InputError("the questions are still being looked for; try again in a moment")
        return self._queue

    def count_levels(self) -> dict[str, Any]:
        """Return how many people there would be at each strictness, corrections aside; found once."""
        if self._counts is None:
            steps = np.linspace(self.floor, HIGHEST_LEVEL, N_LEVELS)
            steps = np.unique(np.append(steps, self.tau1))
            self._counts = {"levels": steps.tolist(), "counts": self._levels.count(steps).tolist()}
        return self._counts

    def preview_split(self, label: int, n_parts: int) -> list[dict[str, Any]]:
        """Return the parts a cluster would be split into, the largest first."""
        with self.lock:
            members, groups = self._group(label, n_parts)
            numbers, counts = np.unique(groups, return_counts=True)
            parts = [members[groups == numbers[place]] for place in np.argsort(-counts, kind="stable")]
            return [{"size": len(part), "faces": self._pick(part, 12)} for part in parts]

    # correcting

    def do(self, request: str, kind: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Make a correction, once however often the same request arrives.

        Parameters
        ----------
        request : str
            Id that the page made for it.
        kind : str
            merge, move, split, name, not_face, apart, answer, skip, strictness, undo or redo.
        arguments : dict
            As each kind needs.

        Returns
        -------
        dict
            `title` of what was done, `changed` labels, `repeated` if it had been made before, and the summary.
        """
        makers: dict[str, Callable[[dict[str, Any]], Change]] = {
            "merge": lambda given: merge_clusters(self.book, self.table, read_wholes(given, "labels")),
            "move": lambda given: move_faces(
                self.book, self.table, read_wholes(given, "faces"), read_optional(given, "label")
            ),
            "not_face": lambda given: mark_not_faces(self.book, read_wholes(given, "faces")),
            "apart": lambda given: part_faces(
                self.book, None if given.get("faces") is None else read_wholes(given, "faces")
            ),
            "name": lambda given: name_cluster(self.book, read_whole(given, "label"), read_text(given, "name")),
            "split": self._split,
            "answer": self._answer,
            "skip": self._skip,
            "strictness": self._repartition,
        }
        with self._heavy if kind == "strictness" else nullcontext(), self.lock:
            before = self.journal.find_request(request)
            if before is not None:
                return self._report(before, [], repeated=True)
            if kind in ("undo", "redo"):
                made = self.journal.undo(request=request) if kind == "undo" else self.journal.redo(request=request)
                if made is None:
                    raise InputError(f"there is nothing to {kind}")
                title = f"{kind}: {made.title}"
            elif kind in makers:
                made = makers[kind](arguments)
                made = made if kind == "strictness" else forget_kept(self.book, made)
                self.journal.record(made, request=request, kind=kind)
                title = made.title
            else:
                raise InputError(f"'{kind}' is no action; use one of {', '.join([*makers, 'undo', 'redo'])}")
            self._n_renamed += bool(made.names)
            self.table.refresh(np.union1d(made.before, made.after))
            self._pages.relieve()
            return self._report(title, made.list_labels(_MOST_NAMED))

    def _report(self, title: str, changed: Sequence[int], *, repeated: bool = False) -> dict[str, Any]:
        return {"title": title, "changed": list(changed), "repeated": repeated, "summary": self.summarise()}

    def _split(self, given: dict[str, Any]) -> Change:
        label = read_whole(given, "label")
        _, groups = self._group(label, read_whole(given, "parts"))
        return split_cluster(self.book, self.table, label, groups)

    def _group(self, label: int, n_parts: int) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Cut a cluster into its n sub-clusters by average linkage."""
        members = require_cluster(self.book, label)
        if label < 0 or not 2 <= n_parts <= min(50, len(members)):
            raise InputError(
                f"a cluster of {len(members)} faces cannot be split into {n_parts}; ask for 2 to {len(members)}"
            )
        return members, group_members(self.features, members, n_parts)

    def _skip(self, given: dict[str, Any]) -> Change:
        """Leave a question open: it does not come back, unless the skipping is undone."""
        question = self.queue.describe(self.book, self.table, read_whole(given, "pair"))
        return skip_question(self.book, question.first_face, question.second_face)

    def _answer(self, given: dict[str, Any]) -> Change:
        """Turn an answer into a merge, a split or a note."""
        pair, same = read_whole(given, "pair"), given.get("same")
        if not isinstance(same, bool):
            raise InputError("an answer needs 'same', true or false")
        question = self.queue.describe(self.book, self.table, pair)
        first, second = question.first_face, question.second_face
        if question.joined == same:
            change = answer_only(self.book, first, second, same)
        elif same:
            change = merge_clusters(self.book, self.table, [question.first_label, question.second_label])
        else:
            change = split_cluster(
                self.book, self.table, question.first_label, self._divide(question), title="answered no: split in two"
            )
        self.queue.learn(question, same)
        return with_answer(change, self.book, first, second, same)

    def _divide(self, question: Question) -> NDArray[np.int64]:
        """Divide a cluster in which two parts are two people; the other parts stay with the nearer of them."""
        pool = self.queue.pool
        members = require_cluster(self.book, question.first_label)
        parts = pool.parts[members]
        roots = self.queue.connect_parts(self.book)  # what a "yes" has joined stays together
        joined = np.array([roots.get(part, part) for part in parts.tolist()])
        numbers, codes, counts = np.unique(joined, return_inverse=True, return_counts=True)
        ends = [int(pool.parts[face]) for face in (question.first_face, question.second_face)]
        asked = np.searchsorted(numbers, [roots.get(end, end) for end in ends])
        kept = np.unique(np.concatenate((asked, np.argsort(-counts, kind="stable")[:_MOST_PARTS])))
        rows = self.features.take(members)
        sums = np.zeros((len(numbers), self.features.dim), dtype=np.float32)
        np.add.at(sums, codes, rows)
        apart = np.zeros((len(kept), len(kept)), dtype=bool)
        place = {int(number): spot for spot, number in enumerate(kept)}
        apart[place[int(asked[0])], place[int(asked[1])]] = apart[place[int(asked[1])], place[int(asked[0])]] = True
        groups = np.zeros(len(numbers), dtype=np.int64)
        groups[kept] = divide_cluster(sums[kept], counts[kept], apart)
        rest = np.setdiff1d(np.arange(len(numbers)), kept)
        if len(rest):  # crumbs go where they are nearest
            totals = np.array([sums[kept][groups[kept] == side].sum(axis=0) for side in range(groups.max() + 1)])
            groups[rest] = np.argmax(sums[rest] @ (totals / np.linalg.norm(totals, axis=1, keepdims=True)).T, axis=1)
        return np.asarray(groups[codes])

    def _repartition(self, given: dict[str, Any]) -> Change:
        """Read the clusters off the stored scores at another strictness; corrections stay."""
        level = given.get("tau1")
        if isinstance(level, bool) or not isinstance(level, int | float) or not self.floor <= level <= 1:
            raise InputError(f"strictness ({str(level)[:40]}) must be between {self.floor:.2f} and 1")
        told = make_constraints(self.book, people=False)
        corrected = apply_constraints(self._levels.cut(level), self._graph, told)
        named = keep_ids(corrected, self.book.labels)
        highest = int(self.book.labels.max(initial=-1))
        named[named > highest] += self.book.next_label - (highest + 1)  # a label is never given twice
        named[self.book.labels == NOT_A_FACE] = NOT_A_FACE
        return relabel(self.book, self.table, named, level=float(level))

    # describing

    def _select(self, wanted: Filter) -> NDArray[np.int64]:
        key = (wanted, self.table.version, self._n_renamed)
        if key not in self._selected:
            while len(self._selected) >= 8:
                self._selected.pop(next(iter(self._selected)))
            self._selected[key] = self.table.select(wanted)
        return self._selected[key]

    def _describe(self, slot: int) -> dict[str, Any]:
        """Return what a card on the wall shows."""
        label = int(self.table.labels[slot])
        cohesion = float(self.table.cohesion[slot])
        return {
            "label": label,
            "name": self.book.names.get(label),
            "size": int(self.table.sizes[slot]),
            "cohesion": None if np.isnan(cohesion) else round(cohesion, 3),
            "confidence": round(float(self.table.confidence[slot]), 3),
            "faces": self._pick(self.book.members(label), CARD_FACES),
        }

    def _pick(self, faces: NDArray[np.int32], count: int) -> list[int]:
        """Return the faces that are closest to the centre of their cluster."""
        closeness = self.table.closeness[faces]
        if len(faces) > 4 * count:  # sorting a giant for six faces would be felt
            best = np.argpartition(-closeness, count)[:count]
            return [int(face) for face in faces[best[np.argsort(-closeness[best], kind="stable")]]]
        return [int(face) for face in faces[np.argsort(-closeness, kind="stable")[:count]]]

    def _find_near(self, slot: int) -> list[dict[str, Any]]:
        """Return the clusters whose centres are nearest, by comparing with all of them."""
        used = self.table.n_slots
        sums, sizes = self.table.sums[:used], self.table.sizes[:used]
        link = sums @ sums[slot] / (np.maximum(sizes, 1) * sizes[slot])
        link[(sizes == 0) | (np.arange(used) == slot)] = -2
        near = np.argpartition(-link, min(_NEAREST, used - 1))[: _NEAREST + 1]
        best = near[np.lexsort((near, -link[near]))][:_NEAREST]
        return [self._describe(int(s)) | {"link": round(float(link[s]), 3)} for s in best if link[s] > -2]

    def _show_question(self, question: Question) -> dict[str, Any]:
        """Return a question as the page shows it: two clusters, or two parts of one."""
        sides = []
        for face, label in ((question.first_face, question.first_label), (question.second_face, question.second_label)):
            members = self.book.members(label)
            if question.joined:
                parts = self.queue.pool.parts
                members = members[parts[members] == parts[face]]
            sides.append(
                {
                    "label": label,
                    "name": self.book.names.get(label),
                    "size": len(members),
                    "face": face,
                    "faces": self._pick(members, 9),
                }
            )
        return {
            "pair": question.pair,
            "joined": question.joined,
            "link": round(question.link, 3),
            "probability": round(question.probability, 3),
            "worth": round(question.worth, 2),
            "sides": sides,
        }
