"""Simulated reviewing: how fast answers to the queue's questions improve a clustering.

    python benchmarks/reviewing.py --features ../shared/data/fiw_a.features.npy --labels ../shared/data/fiw_a.labels.npy

The collection is clustered without labels. Then 500 questions are answered from the labels: two clusters (or two parts
of one) are the same person if the people they hold most faces of are. Orders: the queue's; random pairs of the same
pool; and the nearest pairs of clusters first (by mean cosine as of now). Everything else, merging and splitting
included, is the review page's own code. With --levels the strictness slider is compared with clustering again at that
tau_1: F and number of clusters of both.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np

import starfc
from starfc.evidence import take_evidence
from starfc.export import final_labels
from starfc.labels import load_labels
from starfc.metrics import evaluate
from starfc.prune import parse_edges
from starfc.review.collection import Collection
from starfc.review.levels import Levels
from starfc.review.queue import Question

MARKS = (0, 50, 100, 200, 500)


def simulate(features, labels, truth, evidence, order: str, n_questions: int, seed: int) -> list[tuple[float, float]]:
    """Answer questions in the given order; return pairwise and BCubed F at the marks."""
    with tempfile.TemporaryDirectory() as folder:
        collection = Collection(features, labels, evidence, Path(folder) / "journal.sqlite")
        collection.prepare_questions()
        scores = []
        rng = np.random.default_rng(seed)
        for number in range(n_questions + 1):
            if number in MARKS:
                found = evaluate(truth, final_labels(collection.book))
                scores.append((found.pairwise.f, found.bcubed.f))
            if number < n_questions:
                question = choose(collection, order, rng)
                if question is None:
                    scores += [scores[-1]] * (len([mark for mark in MARKS if mark <= n_questions]) - len(scores))
                    break
                same = judge(collection, question, truth)
                collection.do(str(number), "answer", {"pair": question.pair, "same": same})
        collection.close()
    return scores


def choose(collection, order: str, rng) -> Question | None:
    """Take the next question."""
    found = collection.queue.rank(collection.book, collection.table, 1 if order == "queue" else 10**6)
    if order == "nearest":
        found = sorted((question for question in found if not question.joined), key=lambda entry: -entry.link)[:1]
    elif order == "random" and found:
        found = [found[int(rng.integers(len(found)))]]
    return found[0] if found else None


def judge(collection, question, truth) -> bool:
    """Answer as someone who knows the people would: by whom most faces of each side show."""
    people = []
    sides = (question.first_label, question.first_face), (question.second_label, question.second_face)
    for label, face in sides:
        members = collection.book.members(label)
        if question.joined:
            parts = collection.queue.pool.parts
            members = members[parts[members] == parts[face]]
        people.append(np.bincount(truth[members]).argmax())
    return bool(people[0] == people[1])


def compare_levels(clusters, truth) -> None:
    """Print what the slider gives beside what the partition gives at the same threshold."""
    settings = clusters.settings
    floor = settings.tau1 / 2
    levels = Levels(parse_edges(clusters.scored, floor), clusters.labels, settings)
    print(f"{'level':<7}{'clustered again':>28}{'the slider':>28}")
    for step in (0.0, 0.25, 0.5, 0.75, 1.0, 1.2, 1.4, 1.6):
        level = round(floor + step * (settings.tau1 - floor), 3)
        cells = []
        for labels in (clusters.rethreshold(tau1=level).labels, levels.cut(level)):
            found = evaluate(truth, labels)
            cells.append(f"{found.pairwise.f:.4f}/{found.bcubed.f:.4f} {int(labels.max()) + 1:>7}")
        print(f"{level:<7}{cells[0]:>28}{cells[1]:>28}", flush=True)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--features", type=Path, required=True)
    parser.add_argument("--labels", type=Path, required=True)
    parser.add_argument("--orders", default="queue,random,nearest")
    parser.add_argument("--questions", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--levels", action="store_true", help="compare the strictness slider with clustering again")
    options = parser.parse_args()
    features = starfc.load_features(options.features)
    truth = load_labels(options.labels)
    clusters = starfc.cluster(features, seed=options.seed)
    if options.levels:
        compare_levels(clusters, truth)
        return
    labels, evidence = clusters.labels, take_evidence(clusters, features, seed=options.seed)
    print("order    " + "".join(f"{mark:>16}" for mark in MARKS if mark <= options.questions))
    for order in options.orders.split(","):
        started = time.perf_counter()
        scores = simulate(features, labels, truth, evidence, order, options.questions, options.seed)
        cells = "".join(f"{pairwise:>8.4f}/{bcubed:.4f}" for pairwise, bcubed in scores)
        print(f"{order:<9}{cells}   ({time.perf_counter() - started:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
