"""Queue: the questions in the order in which their answers would change most, kept right while clusters change.

In: a Pool of pairs of parts, the table of clusters as it is now, answers. Out: the next questions. Pairs whose parts
are in different clusters are judged as those clusters, sizes and mean cosine as of now; pairs within a cluster as
parts. What an earlier answer settles is not asked: two clusters with a "no" between them, two parts with a "yes"; nor
what was skipped, which is left alone like a "no" but says nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..corrections import Book
from ..errors import InputError
from ..quality import measure_links
from ..questions import History, Pool, make_traits, predict_same, value_questions
from .table import ClusterTable


@dataclass(frozen=True)
class Question:
    """Two parts, or two whole clusters, that may be one person."""

    pair: int
    joined: bool
    first_face: int
    second_face: int
    first_label: int
    second_label: int
    link: float
    probability: float
    worth: float
    traits: NDArray[np.float64]


class QuestionQueue:
    """Ranks a pool anew whenever it is asked."""

    def __init__(self, pool: Pool, *, tau1: float, threshold: float) -> None:
        self.pool = pool
        self._tau1, self._threshold = tau1, threshold
        self._learned: dict[tuple[int, int], tuple[NDArray[np.float64], bool, bool]] = {}

    def rank(self, book: Book, table: ClusterTable, count: int) -> list[Question]:
        """Return the next questions, the worthiest first."""
        first, second = (book.labels[self.pool.faces[side]] for side in (self.pool.first, self.pool.second))
        return self._rank(book, table, np.flatnonzero(~self._find_settled(book, first, second)), count)

    def _rank(self, book: Book, table: ClusterTable, pairs: NDArray[np.int64], count: int = 1) -> list[Question]:
        """Rank the given pairs; those that are no faces are left out."""
        pool = self.pool
        first, second = book.labels[pool.faces[pool.first[pairs]]], book.labels[pool.faces[pool.second[pairs]]]
        faces = (first >= 0) & (second >= 0)
        open_pairs, first, second = pairs[faces], first[faces], second[faces]
        joined = first == second
        a, b, link = self._measure(table, open_pairs, first, second, joined)
        traits = make_traits(
            link, pool.strongest[open_pairs], np.minimum(a, b), tau1=self._tau1, threshold=self._threshold
        )
        probability = predict_same(traits, joined, self._recall(book))
        worth = value_questions(probability, joined, a, b)
        order = self._drop_repeats(np.argsort(-worth, kind="stable"), first, second, joined, count)
        return [
            Question(
                int(open_pairs[row]), bool(joined[row]),
                int(pool.faces[pool.first[open_pairs[row]]]), int(pool.faces[pool.second[open_pairs[row]]]),
                int(first[row]), int(second[row]), float(link[row]), float(probability[row]), float(worth[row]),
                traits[row],
            )
            for row in order
        ]  # fmt: skip

    def describe(self, book: Book, table: ClusterTable, pair: int) -> Question:
        """Return a question of the pool as it stands now, wherever it is in the order."""
        if not 0 <= pair < len(self.pool.first):
            raise InputError(f"there is no question {pair}; load the page again")
        found = self._rank(book, table, np.array([pair]))
        if not found:
            raise InputError("one of these is marked as no face; skip the question")
        return found[0]

    def learn(self, question: Question, same: bool) -> None:
        """Remember what was asked when an answer is given, so that the next ranking is better."""
        key = min(question.first_face, question.second_face), max(question.first_face, question.second_face)
        self._learned[key] = (question.traits, question.joined, same)

    def connect_parts(self, book: Book) -> dict[int, int]:
        """Return, for every part that a "yes" mentions, the part that stands for all it is connected with."""
        told = [pair for pair, same in book.answers.items() if same and book.labels[pair[0]] == book.labels[pair[1]]]
        return _connect(self.pool.parts[np.array(told, dtype=np.int64).reshape(-1, 2)])

    def _recall(self, book: Book) -> History:
        """Return the answers that still stand; undone ones teach nothing."""
        standing = [fact for key, fact in self._learned.items() if book.answers.get(key) == fact[2]]
        if not standing:
            return History()
        traits, joined, same = zip(*standing, strict=True)
        return History(np.array(traits), np.array(joined, dtype=bool), np.array(same, dtype=bool))

    def _measure(
        self,
        table: ClusterTable,
        pairs: NDArray[np.int64],
        first: NDArray[np.int64],
        second: NDArray[np.int64],
        joined: NDArray[np.bool_],
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
        """Return both sizes and the mean cosine across, of parts where they are joined, else of clusters."""
        pool = self.pool
        left, right = table.find_all(first), table.find_all(second)
        a = np.where(joined, pool.sizes[pool.first[pairs]], table.sizes[left])
        b = np.where(joined, pool.sizes[pool.second[pairs]], table.sizes[right])
        across = measure_links(left, right, table.sums, np.maximum(table.sizes, 1))
        return a, b, np.where(joined, pool.link[pairs], across).astype(np.float32)

    def _find_settled(self, book: Book, first: NDArray[np.int64], second: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Mark the pairs that need no answer."""
        settled = np.zeros(len(first), dtype=bool)
        left = [*(pair for pair, same in book.answers.items() if not same), *book.skipped]
        pairs = np.array(left, dtype=np.int64).reshape(-1, 2)
        settled |= np.isin(_make_keys(first, second), _make_keys(*book.labels[pairs].T)) & (first != second)
        # Parts that a chain of "yes" connects are one; a "no" within a cluster settles that very pair.
        roots = np.arange(len(self.pool.sizes))
        for part, root in self.connect_parts(book).items():
            roots[part] = root
        settled |= roots[self.pool.first] == roots[self.pool.second]
        told = _make_keys(*self.pool.parts[pairs].T)
        return np.asarray(settled | np.isin(_make_keys(self.pool.first, self.pool.second), told))

    @staticmethod
    def _drop_repeats(
        order: NDArray[np.int64],
        first: NDArray[np.int64],
        second: NDArray[np.int64],
        joined: NDArray[np.bool_],
        count: int,
    ) -> list[int]:
        """Take the first `count`, two clusters only once however many of their parts know each other."""
        taken: list[int] = []
        seen: set[tuple[int, int]] = set()
        for row in order.tolist():
            pair = (min(first[row], second[row]), max(first[row], second[row]))
            if not joined[row] and pair in seen:
                continue
            seen.add(pair)
            taken.append(row)
            if len(taken) == count:
                break
        return taken


def _make_keys(first: NDArray[Any], second: NDArray[Any]) -> NDArray[np.int64]:
    """Return a number for each pair, whichever comes first."""
    low, high = np.minimum(first, second).astype(np.int64), np.maximum(first, second).astype(np.int64)
    return np.asarray(low * (1 << 32) + high)


def _connect(pairs: NDArray[np.int32]) -> dict[int, int]:
    """Return the root of every number that occurs in the pairs."""
    parent: dict[int, int] = {}

    def find(node: int) -> int:
        while parent.setdefault(node, node) != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    for x, y in pairs.tolist():
        parent[find(x)] = find(y)
    return {node: find(node) for node in parent}
