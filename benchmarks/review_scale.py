"""The review server with many faces: how soon the wall is there, how long an action takes, how much memory it needs.

    python benchmarks/review_scale.py --faces 1000000 --people 100000 --folder /tmp/scale

Synthetic faces; the labels are the true people with a tenth of the faces moved at random, and the kNN graph is made up:
up to half of a face's list are faces of its own person, the others are drawn at random, with their true cosines. (How
long a real graph takes is the business of knn.py.) The server is the one that users start; requests go over loopback,
one at a time. With Chromium and selenium a browser that is open already goes to the page when the server is up, and it
is measured when the faces in sight are drawn. Scores are kept in the folder, so a second run starts sooner.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
import urllib.request
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from starfc.features import load_features
from starfc.knn import KnnGraph, save_knn
from starfc.labels import save_labels
from starfc.synth import synthesise


def make_collection(folder: Path, faces: int, people: int, dim: int, k: int) -> None:
    """Write features, labels and graph, unless they are there."""
    if (folder / "graph.npz").exists():
        return
    folder.mkdir(exist_ok=True, parents=True)
    synthesise(folder / "faces", faces=faces, people=people, dim=dim, singletons=0.3)
    truth = np.load(folder / "faces.labels.npy").astype(np.int64)
    rng = np.random.default_rng(0)
    labels = truth.copy()
    moved = rng.random(faces) < 0.1
    labels[moved] = rng.permutation(labels[moved])
    save_labels(labels, folder / "people.npy")
    save_knn(make_graph(folder, truth, k, rng), folder / "graph.npz")


def make_graph(folder: Path, truth, k: int, rng) -> KnnGraph:
    """Make lists of faces of the own person and of strangers, best first."""
    features = load_features(folder / "faces.features.npy")
    order = np.argsort(truth, kind="stable")
    starts = np.searchsorted(truth[order], truth, side="left")
    sizes = np.searchsorted(truth[order], truth, side="right") - starts
    neighbors = np.empty((len(truth), k), dtype=np.int32)
    similarities = np.empty((len(truth), k), dtype=np.float32)
    half = k // 2
    for start in range(0, len(truth), 20_000):
        rows = np.arange(start, min(start + 20_000, len(truth)))
        own = order[starts[rows, None] + np.arange(half) % np.maximum(sizes[rows, None], 1)]
        lists = np.concatenate((own, rng.integers(0, len(truth), (len(rows), k - half))), axis=1)
        mine = features.read(start, start + len(rows))
        cosines = np.empty(lists.shape, dtype=np.float32)
        for column in range(k):
            cosines[:, column] = np.einsum("ij,ij->i", mine, features.take(lists[:, column]))
        # a face itself and repeats are no neighbours
        lists = np.where(lists == rows[:, None], -1, lists)
        by_id = np.argsort(lists, axis=1, kind="stable")
        ordered = np.take_along_axis(lists, by_id, axis=1)
        repeats = np.zeros_like(ordered, dtype=bool)
        repeats[:, 1:] = ordered[:, 1:] == ordered[:, :-1]
        marked = np.zeros_like(repeats)
        np.put_along_axis(marked, by_id, repeats, axis=1)
        lists = np.where(marked, -1, lists)
        rank = np.argsort(np.where(lists < 0, np.inf, -cosines), axis=1, kind="stable")
        neighbors[rows] = np.take_along_axis(lists, rank, axis=1)
        similarities[rows] = np.where(neighbors[rows] < 0, 0, np.take_along_axis(cosines, rank, axis=1))
    return KnnGraph(neighbors, similarities)


def get(url: str, path: str) -> tuple[Any, float]:
    """Ask for JSON; return it and the seconds it took."""
    started = time.perf_counter()
    with urllib.request.urlopen(url + path) as answer:
        content = json.loads(answer.read())
    return content, time.perf_counter() - started


def post(url: str, **content: Any) -> tuple[Any, float]:  # noqa: ANN401
    """Make a correction; return the answer and the seconds it took."""
    request = urllib.request.Request(url + "api/do", json.dumps(content).encode(), {"content-type": "application/json"})
    started = time.perf_counter()
    with urllib.request.urlopen(request) as answer:
        found = json.loads(answer.read())
    return found, time.perf_counter() - started


def rss_gb(pid: int, field: str = "VmRSS") -> float:
    """Return the memory of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1]) * 1024 / 1e9


def open_driver() -> Any:  # noqa: ANN401
    """Return a Chromium driven by selenium, as the tests do; None where there is none."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from browser import find_reason_to_skip, open_browser

    reason = find_reason_to_skip()
    if reason is not None:
        print(f"no browser: {reason}")
        return nullcontext(None)
    return open_browser()


def wait_for(driver, script: str) -> float:
    """Return the seconds until a script returns something true."""
    started = time.perf_counter()
    while not driver.execute_script(script):
        time.sleep(0.01)
    return time.perf_counter() - started


DRAWN = (
    "const images = [...document.querySelectorAll('#wall img')];"
    "return images.length > 20 && images.every((image) => image.complete && image.naturalWidth)"
)


def watch_browser(driver, url: str, up: float) -> float:
    """Print how long a person waits in front of the page; return the seconds until the wall was drawn."""
    driver.get(url)
    wait_for(driver, "return document.querySelector('#wall .card')")
    print(f"browser: cards of the wall {time.perf_counter() - up:.2f} s after the server was up")
    wait_for(driver, DRAWN)
    drawn = time.perf_counter() - up
    print(f"browser: every face in sight drawn {drawn:.2f} s after the server was up")
    driver.execute_script("const wall = document.querySelector('#wall'); wall.scrollTop = wall.scrollHeight / 2")
    time.sleep(0.1)
    print(f"browser: middle of the wall drawn in {0.1 + wait_for(driver, DRAWN):.2f} s")
    driver.execute_script("document.querySelector('#wall .card').click()")
    print(f"browser: cluster opened in {wait_for(driver, 'return document.querySelector(`#faces .tile`)'):.2f} s")
    return drawn


def measure(url: str, pid: int, n_actions: int) -> float:
    """Print what a person would feel; return the median seconds of an action."""
    wall, first = get(url, "api/wall?count=60")
    print(f"first page of the wall ({wall['total']} clusters): {1000 * first:.0f} ms")
    for sort in ("doubt", "cohesion", "size"):
        print(f"wall sorted by {sort}: {1000 * get(url, f'api/wall?sort={sort}&count=60')[1]:.0f} ms")
    asked = time.perf_counter()
    while not get(url, "api/questions?count=1")[0]["ready"]:
        time.sleep(0.5)
    print(f"questions ready {time.perf_counter() - asked:.1f} s later, RSS {rss_gb(pid):.2f} GB")
    rng = np.random.default_rng(1)
    times: dict[str, list[float]] = {}
    for number in range(n_actions):
        kind = ("merge", "move", "split", "name", "answer", "undo")[number % 6]
        place = int(rng.integers(0, wall["total"] // 4))
        page, seconds = get(url, f"api/wall?count=60&start={place}")
        times.setdefault("wall page", []).append(seconds)
        labels = [cluster["label"] for cluster in page["clusters"]]
        times.setdefault("open cluster", []).append(get(url, f"api/cluster/{labels[0]}?count=120")[1])
        details: dict = {
            "merge": {"labels": labels[:2]},
            "move": {"faces": page["clusters"][0]["faces"][:1], "label": labels[5]},
            "split": {"label": labels[0], "parts": 2},
            "name": {"label": labels[0], "name": f"name {number}"},
        }.get(kind, {})
        if kind == "answer":
            found, seconds = get(url, "api/questions?count=1")
            times.setdefault("next question", []).append(seconds)
            details = {"pair": found["questions"][0]["pair"], "same": bool(number % 4)}
        times.setdefault(kind, []).append(post(url, kind=kind, request=f"r{number}", **details)[1])
    for kind, taken in times.items():
        median, slow = 1000 * np.median(taken), 1000 * np.quantile(taken, 0.95)
        print(f"{kind:<14} median {median:.0f} ms, p95 {slow:.0f} ms (n = {len(taken)})")
    kinds = ("merge", "move", "split", "name", "answer", "undo")
    every = float(np.median(np.concatenate([times[kind] for kind in kinds if kind in times])))
    print(f"all actions    median {1000 * every:.0f} ms, RSS {rss_gb(pid):.2f} GB")
    print(f"people at every strictness: {get(url, 'api/levels')[1]:.1f} s")
    tau1 = get(url, "api/summary")[0]["tau1"]
    for step in (0.05, 0.2, -0.1):
        found, seconds = post(url, kind="strictness", tau1=tau1 + step, request=f"strict{step}")
        print(f"strictness {tau1 + step:.2f} ({found['summary']['n_clusters']} clusters): {seconds:.1f} s", end=", ")
        print(f"undo of it: {post(url, kind='undo', request=f'loose{step}')[1]:.1f} s, RSS {rss_gb(pid):.2f} GB")
    post(url, kind="strictness", tau1=tau1 + 0.05, request="strict again")
    seconds = [post(url, request=f"burst{number}", **wanted)[1] for number, wanted in enumerate(plan_burst(url))]
    print(
        f"{len(seconds)} merges and splits in a burst, at another strictness: median {1000 * np.median(seconds):.0f} ms"
    )
    print(f"RSS {rss_gb(pid):.2f} GB, peak since start {rss_gb(pid, 'VmHWM'):.2f} GB")
    return every


def plan_burst(url: str, count: int = 250) -> list[dict[str, Any]]:
    """Return merges and splits of as many clusters as they need, none mentioned twice."""
    clusters = []
    for start in range(0, 3 * count, 60):
        clusters += get(url, f"api/wall?count=60&start={2000 + start}")[0]["clusters"]
    large = [cluster["label"] for cluster in clusters if cluster["size"] > 1]
    merges = [{"kind": "merge", "labels": large[place : place + 2]} for place in range(0, 2 * (len(large) // 3) - 1, 2)]
    splits = [{"kind": "split", "label": label, "parts": 2} for label in large[2 * (len(large) // 3) :]]
    return [action for pair in zip(merges, splits, strict=False) for action in pair]


def main() -> None:
    """Make the collection, start the server, measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faces", type=int, default=1_000_000)
    parser.add_argument("--people", type=int, default=100_000)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--k", type=int, default=30)
    parser.add_argument("--actions", type=int, default=120)
    parser.add_argument("--folder", type=Path, required=True)
    options = parser.parse_args()
    make_collection(options.folder, options.faces, options.people, options.dim, options.k)
    for leftover in options.folder.glob("people.npy.review.sqlite*"):
        leftover.unlink()
    command = [
        sys.executable, "-m", "starfc.cli", "review", options.folder / "people.npy", "--no-browser", "--json",
        "--features", options.folder / "faces.features.npy", "--knn-graph", options.folder / "graph.npz",
        "--workdir", options.folder / "work",
    ]  # fmt: skip
    with open_driver() as driver:
        started = time.perf_counter()
        server = subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            url = json.loads(server.stdout.readline())["url"]
            up = time.perf_counter()
            print(f"server up after {up - started:.1f} s, RSS {rss_gb(server.pid):.2f} GB")
            drawn = watch_browser(driver, url, up) if driver is not None else math.nan
            median = measure(url, server.pid, options.actions)
            peak = rss_gb(server.pid, "VmHWM")
            kept = {"wall within 3 s": drawn < 3, "action within 200 ms": median < 0.2, "RSS under 1.5 GB": peak < 1.5}
            print("; ".join(f"{limit}: {'yes' if held else 'NO'}" for limit, held in kept.items()))
        finally:
            server.kill()
            server.wait()


if __name__ == "__main__":
    main()
