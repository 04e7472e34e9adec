"""A small collection to review, and a server for it in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from contextlib import contextmanager

import numpy as np

from starfc.evidence import gather_evidence
from starfc.features import Features
from starfc.labels import save_labels

PATIENCE_S = 90  # a machine that tests something else at the same time may be slow; nothing is waited for in vain


def make_world(n_people=30, faces=8, seed=3):
    """Return features, labels and truth: every third cluster mixes two people, every third person is split."""
    rng = np.random.default_rng(seed)
    truth = np.repeat(np.arange(n_people), faces)
    rows = np.repeat(rng.normal(size=(n_people, 24)), faces, axis=0) + 0.45 * rng.normal(size=(len(truth), 24))
    labels = truth.copy()
    for person in range(0, n_people - 2, 3):
        labels[truth == person + 1] = person
        labels[np.flatnonzero(truth == person + 2)[: faces // 2]] = 100 + person
    return Features(rows.astype(np.float32)), labels.astype(np.int64), truth


def gather(features):
    return gather_evidence(features, k=20, tau1=0.5, partition="components")


def save_world(folder):
    """Write the collection to files; return the paths of labels and features."""
    features, labels, truth = make_world()
    np.save(folder / "faces.npy", features.raw)
    save_labels(labels, folder / "people.csv")
    save_labels(truth, folder / "truth.csv")
    return folder / "people.csv", folder / "faces.npy"


@contextmanager
def start_server(clusters, features, *options):
    """Run `starfc review` and yield (process, address)."""
    command = [
        sys.executable, "-m", "starfc.cli", "review", clusters, "--features", features, "--k", "20", "--tau1", "0.5",
        "--no-browser", "--json", *options,
    ]  # fmt: skip
    words = [str(part) for part in command]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline()
        assert line, process.stderr.read()
        yield process, json.loads(line)["url"]
    finally:
        process.kill()
        process.communicate()


def get(url, path):
    with urllib.request.urlopen(url + path, timeout=PATIENCE_S) as answer:
        return json.loads(answer.read())


def post(url, **content):
    request = urllib.request.Request(
        url + "api/do", json.dumps(content).encode(), {"content-type": "application/json"}, method="POST"
    )
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        return json.loads(answer.read())
