"""The review server killed in the middle of its work."""

import http.client
import io
import os
import signal
import sqlite3
import threading
import time
import urllib.request
import zlib

import numpy as np
import pytest

from reviewing import get, post, save_world, start_server
from starfc.journal import name_journal, read_book
from starfc.labels import load_labels

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")


class Burst:
    """A thousand moves of two faces each by four clients that send again what was not answered, as the page does."""

    def __init__(self, count=1000, clients=4):
        self.acknowledged, self.url, self.changed = set(), None, threading.Condition()
        self.repeated = []
        self.threads = [
            threading.Thread(target=self._work, args=(range(mine, count, clients),), daemon=True)
            for mine in range(clients)
        ]

    @staticmethod
    def faces(number):
        """Two faces that only this client moves."""
        mine, place = number % 4, number // 4
        return [60 * mine + place % 60, 60 * mine + (place + 1 + place // 60) % 60]

    def _work(self, numbers):
        for number in numbers:
            while True:
                with self.changed:
                    self.changed.wait_for(lambda: self.url is not None, timeout=300)
                    url = self.url
                try:
                    done = post(url, kind="move", faces=self.faces(number), label=None, request=f"r{number}")
                except (OSError, http.client.HTTPException):  # killed: wait for the next server, send the same again
                    with self.changed:
                        if self.url == url:
                            self.url = None
                    continue
                with self.changed:
                    self.acknowledged.add(number)
                    self.repeated += [number] if done["repeated"] else []
                    self.changed.notify_all()
                break

    def serve(self, url):
        with self.changed:
            self.url = url
            self.changed.notify_all()

    def wait_for_more(self, count):
        with self.changed:
            target = len(self.acknowledged) + count
            assert self.changed.wait_for(lambda: len(self.acknowledged) >= target, timeout=300)


def read_moves(path):
    """Return (request, faces, labels after) of every action in the journal, with nothing but sqlite3 and zlib."""
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as base:
        rows = base.execute("SELECT request, faces, after FROM actions ORDER BY id").fetchall()
    base.close()
    read = [(zlib.decompress(faces), zlib.decompress(after)) for _, faces, after in rows]
    return [
        (int(row[0][1:]), np.frombuffer(faces, "<i4").tolist(), np.frombuffer(after, "<i8").tolist())
        for row, (faces, after) in zip(rows, read, strict=True)
    ]


def test_a_server_killed_in_a_burst_loses_nothing_it_acknowledged(tmp_path):
    clusters, features = save_world(tmp_path)
    rng = np.random.default_rng()  # another moment every time
    burst = Burst()
    for thread in burst.threads:
        thread.start()
    for _ in range(3):
        with start_server(clusters, features) as (process, url):
            burst.serve(url)
            burst.wait_for_more(int(rng.integers(20, 150)))
            time.sleep(float(rng.uniform(0, 0.02)))
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
        sure = set(burst.acknowledged)
        assert sure <= {number for number, _, _ in read_moves(name_journal(clusters))}
    assert len(sure) < 1000
    with start_server(clusters, features) as (process, url):
        burst.serve(url)
        for thread in burst.threads:
            thread.join(300)
        assert get(url, "api/summary")["n_actions"] == 1000
        shown = np.load(io.BytesIO(urllib.request.urlopen(f"{url}export/labels.npy").read()))
    moves = read_moves(name_journal(clusters))
    assert sorted(number for number, _, _ in moves) == list(range(1000))  # every one, none twice
    expected = load_labels(clusters)
    for number, faces, after in moves:
        assert faces == sorted(Burst.faces(number)) and len(set(after)) == 1  # none half
        expected[faces] = after
    np.testing.assert_array_equal(shown, expected)
    np.testing.assert_array_equal(read_book(name_journal(clusters), load_labels(clusters)).labels, expected)
