"""The review server: what it answers, whom it refuses, and what is left when it is killed."""

import http.client
import io
import json
import os
import signal
import socket
import threading
import urllib.parse
from pathlib import Path

import numpy as np
import pytest

from asgi import call
from reviewing import gather, get, make_world, post, save_world, start_server
from starfc.constraints import load_constraints
from starfc.corrections import name_journal, read_book
from starfc.images import load_images
from starfc.labels import load_labels

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
TOKEN, HOST = "secret-token", "127.0.0.1:8000"
FEATURES, LABELS, TRUTH = make_world()
EVIDENCE = gather(FEATURES)
JSON = ("content-type", "application/json")


@pytest.fixture
def pictures(tmp_path):
    image_module = pytest.importorskip("PIL.Image")
    folder = tmp_path / "pictures"
    folder.mkdir()
    image_module.new("RGB", (50, 40), (9, 99, 200)).save(folder / "good.png")
    (folder / "broken.png").write_bytes(b"<script>")
    image_module.new("RGB", (50, 40), (200, 9, 9)).save(tmp_path / "secret.png")
    (folder / "link.png").symlink_to(tmp_path / "secret.png")
    lines = ["file,row", "good.png,0", "broken.png,1", "link.png,2", f"{tmp_path / 'secret.png'},3", "../secret.png,4"]
    (folder / "list.csv").write_text("\n".join(lines))
    return load_images(folder / "list.csv", n_faces=len(LABELS))


@pytest.fixture
def app(tmp_path, pictures):
    from starfc.review.collection import Collection
    from starfc.review.server import create_app

    collection = Collection(FEATURES, LABELS, EVIDENCE, tmp_path / "j.sqlite", images=pictures)
    collection.prepare_questions()
    made = create_app(collection, token=TOKEN, hosts=(HOST,))
    made.collection = collection
    yield made
    collection.close()


def ask(app, path, **options):
    return call(app, f"/{TOKEN}/{path}", **options)


def do(app, **content):
    return ask(app, "api/do", method="POST", headers=[JSON], body=json.dumps(content).encode())


def test_the_page_and_its_files(app):
    page = ask(app, "")
    assert page.status == 200 and page.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert page.headers["x-content-type-options"] == "nosniff" and page.headers["cache-control"] == "no-store"
    for name in ("app.js", "views.js", "grid.js", "app.css", "icon.svg"):
        assert ask(app, f"static/{name}").status == 200
        assert b"innerHTML" not in ask(app, f"static/{name}").body
    for name in ("server.py", "index.html", "..%2Fserver.py", "../server.py", "%2e%2e/server.py", "/etc/passwd"):
        assert ask(app, f"static/{name}").status == 404


def test_pages_of_json(app):
    assert ask(app, "api/summary").json()["n_faces"] == len(LABELS)
    wall = ask(app, "api/wall?sort=size&count=3&start=1&min_size=2&max_confidence=1&named=no&search=").json()
    assert len(wall["clusters"]) == 3
    assert ask(app, "api/cluster/0?count=4&outliers=1").json()["size"] == 16
    assert len(ask(app, "api/split/0?parts=3").json()["parts"]) == 3
    assert ask(app, "api/questions?count=2").json()["ready"] is True
    levels = ask(app, "api/levels").json()
    assert len(levels["levels"]) == len(levels["counts"]) > 40
    assert do(app, kind="merge", labels=[0, 3], request="a").json()["summary"]["n_actions"] == 1
    assert do(app, kind="merge", labels=[0, 3], request="a").json()["repeated"] is True
    assert len(ask(app, "api/history").json()["actions"]) == 1


@pytest.mark.parametrize(
    "path",
    [
        "api/wall?sort=magic",
        "api/wall?start=x",
        "api/wall?min_size=1e9",
        "api/wall?max_confidence=nan",
        "api/wall?max_confidence=7",
        "api/wall?start=" + "9" * 400,
        "api/cluster/zero",
        "api/cluster/99999999999999999999",
        "api/cluster/-7",
        "api/cluster/12345",
        "api/split/0?parts=-1",
        "api/split/0?parts=1000000",
        "api/split/-2?parts=2",
        "api/wall?start=٣",
    ],
)
def test_bad_questions_get_a_sentence(app, path):
    answer = ask(app, path)
    assert answer.status == 400 and answer.json()["error"]


def test_odd_but_harmless(app):
    for path in (
        "api/wall?start=999999999",
        "api/wall?start=-4",
        "api/wall?count=0",
        "api/wall?count=-9",
        "api/wall?search=%00%ff",
    ):
        assert ask(app, path).status == 200


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"x"',
        b'{"kind": "merge"}',
        b'{"kind": 5, "request": "a"}',
        b'{"kind": "undo", "request": ""}',
        b'{"kind": "undo", "request": "a"}',
        b'{"kind": "merge", "request": "a", "labels": [0, NaN]}',
        b"\xff\xfe",
        b"[" * 100000,
        json.dumps({"kind": "undo", "request": "x" * 101}).encode(),
        b'{"kind": "move", "request": "b", "faces": [1e99]}',
    ],
)
def test_malformed_bodies(app, body):
    answer = ask(app, "api/do", method="POST", headers=[JSON], body=body)
    assert answer.status == 400 and answer.json()["error"]
    assert len(app.collection.journal) == 0


def test_who_is_refused(app):
    fine = f"/{TOKEN}/api/summary"
    assert call(app, fine).status == 200
    for path in (
        "/",
        "/api/summary",
        "/wrong/api/summary",
        f"//{TOKEN}/api/summary",
        f"/{TOKEN[:-1]}/api/summary",
        f"/{TOKEN}x/",
    ):
        assert call(app, path).status == 403
    for host in (
        "evil.example:8000",
        "127.0.0.1",
        "127.0.0.1:9999",
        "",
        None,
        "127.0.0.1:8000.evil.example",
        "localhost:8000",
    ):
        assert call(app, fine, host=host).status == 403
    assert call(app, fine, headers=[("host", HOST)]).status == 400  # twice
    for origin in ("http://evil.example", "null", "https://127.0.0.1:8000", "http://127.0.0.1:8001"):
        assert call(app, fine, headers=[("origin", origin)]).status == 403
    assert call(app, fine, headers=[("origin", f"http://{HOST}")]).status == 200
    for site in ("cross-site", "same-site"):
        assert call(app, fine, headers=[("sec-fetch-site", site)]).status == 403
    for method in ("PUT", "DELETE", "OPTIONS", "TRACE"):
        assert call(app, fine, method=method).status == 405
    target = f"/{TOKEN}/api/do"
    body = b'{"kind": "merge", "labels": [0, 3], "request": "x"}'
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        assert call(app, target, method="POST", headers=[("content-type", kind)], body=body).status == 415
    assert call(app, target, method="POST", body=body).status == 415
    assert call(app, target).status == 405
    assert len(app.collection.journal) == 0


def test_large_bodies_are_refused_before_they_are_read(app):
    target = f"/{TOKEN}/api/do"
    for headers in (
        [("content-length", str(100 << 20))],
        [("content-length", "9" * 40)],
        [("content-length", "-1")],
        [],
    ):
        body = b"x" * (3 << 20) if not headers else b""
        assert call(app, target, method="POST", headers=[JSON, *headers], body=body).status == 413


def test_faces(app):
    good = ask(app, "face/0?size=64")
    assert good.headers["content-type"] == "image/jpeg" and good.headers["cache-control"].startswith("private")
    assert ask(app, "face/0?size=64").body == good.body
    placeholder = ask(app, "face/1").body
    assert placeholder.startswith(b"<svg") and b"script" not in placeholder
    for row in (2, 3, 4):  # a link, an absolute path and a path that climbs out of the root
        assert ask(app, f"face/{row}").body == placeholder
    avatar = ask(app, "face/9?size=9999")
    assert avatar.headers["content-type"] == "image/svg+xml" and avatar.body != placeholder
    for row in ("-1", "240", "99999999999999999999", "x", "0.5", "..%2f..%2fetc%2fpasswd", "%00"):
        assert ask(app, f"face/{row}").status == 404
    assert ask(app, "face/0?size=x").status == 404


def test_given_traits_are_drawn():
    from starfc.avatars import draw_avatar, imagine_traits
    from starfc.review.thumbnails import Thumbnails

    traits = imagine_traits(TRUTH)
    assert Thumbnails(FEATURES, None, traits=traits).draw(5, 64) == (draw_avatar(traits[5]).encode(), "image/svg+xml")


def test_the_oldest_thumbnails_make_room(app, monkeypatch):
    import starfc.review.thumbnails as module

    monkeypatch.setattr(module, "_CACHE_BYTES", 5000)
    pages = [ask(app, f"face/{row}").body for row in range(20)]
    assert [ask(app, f"face/{row}").body for row in range(20)] == pages


def test_names_are_data(app):
    name = "<script>alert(1)</script>\"'&"
    assert do(app, kind="name", label=0, name=name, request="n").status == 200
    answer = ask(app, "api/cluster/0")
    assert answer.json()["name"] == name and answer.headers["content-type"] == "application/json"


def test_exports(app, tmp_path):
    do(app, kind="merge", labels=[0, 3], request="a")
    labels = np.load(io.BytesIO(ask(app, "export/labels.npy").body))
    np.testing.assert_array_equal(labels, np.where(LABELS == 3, 0, LABELS))
    (tmp_path / "l.csv").write_bytes(ask(app, "export/labels.csv").body)
    np.testing.assert_array_equal(load_labels(tmp_path / "l.csv"), labels)
    (tmp_path / "c.json").write_bytes(ask(app, "export/constraints.json").body)
    assert len(load_constraints(tmp_path / "c.json", n_faces=len(LABELS)).must) == 1
    assert ask(app, "export/other").status == 404


def test_failures_are_sentences(app, monkeypatch):
    monkeypatch.setattr(app.collection, "summarise", lambda: 1 / 0)
    answer = ask(app, "api/summary")
    assert answer.status == 500 and "terminal" in answer.json()["error"]


# a real server


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    clusters, features = save_world(folder)
    with start_server(clusters, features) as (process, url):
        yield process, url, clusters


def send_raw(url, request, *, wait=5):
    """Send bytes as they are; return the status line, or "" if the server just closed."""
    parts = urllib.parse.urlsplit(url)
    with socket.create_connection((parts.hostname, parts.port), timeout=wait) as connection:
        connection.sendall(request)
        try:
            return connection.recv(200).split(b"\r\n")[0].decode("latin-1")
        except (ConnectionError, TimeoutError):
            return ""


def make_hostile_requests(url):
    """Yield 200 requests that no page of ours would send."""
    parts = urllib.parse.urlsplit(url)
    token, host = parts.path.strip("/"), parts.netloc
    paths = [
        "/",
        "/api/do",
        f"/{token[::-1]}/",
        f"/{token}/static/../server.py",
        f"/{token}/face/-1",
        f"/{token}/face/{'9' * 300}",
        f"/{token}/export/../../x",
        f"/{token}/face/..%2f..%2f..%2fetc%2fpasswd",
        f"/{token}/static/%2e%2e%2fcollection.py",
        f"/{token}/face//etc/passwd",
        f"/{token}/api/cluster/%00",
        f"/{token}/api/wall?start={'1' * 5000}",
        "/%2e%2e/%2e%2e/",
        f"/{token}/api/split/0?parts=999999999",
    ]
    for path in paths:
        yield f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n"
        yield f"GET {path} HTTP/1.1\r\nHost: evil.example\r\n\r\n"
        yield f"GET {path} HTTP/1.1\r\nHost: {host}\r\nOrigin: http://evil.example\r\n\r\n"
    bodies = [
        "",
        "{",
        "[]",
        '{"kind":"merge","labels":[0,1e400],"request":"q"}',
        '{"kind":"name","label":-5,"name":"x","request":"q"}',
        '{"kind":"merge","labels":[0,99999999999],"request":"q"}',
        '{"kind":"__class__","request":"q"}',
        '{"kind":"move","faces":[-1],"label":0,"request":"q"}',
        '{"kind":"not_face","faces":["0"],"request":"q"}',
    ]
    for body in bodies:
        for extra in (
            "Content-Type: application/json",
            "Content-Type: text/plain",
            "Content-Type: application/json\r\nOrigin: null",
            "Content-Type: application/json\r\nSec-Fetch-Site: cross-site",
        ):
            for path in (f"/{token}/api/do", "/api/do"):
                yield f"POST {path} HTTP/1.1\r\nHost: {host}\r\n{extra}\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    good = '{"kind":"merge","labels":[0,3],"request":"evil"}'
    for extra in (
        "Content-Length: 104857600",
        "Transfer-Encoding: gzip",
        "Content-Length: -5",
        "Content-Length: 5\r\nContent-Length: 6",
        "Expect: the-unexpected\r\nContent-Length: 999999999",
    ):
        yield f"POST /{token}/api/do HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n{extra}\r\n\r\n"
    for method in ("PUT", "DELETE", "PATCH", "CONNECT", "FOO"):
        yield f"{method} /{token}/api/do HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(good)}\r\n\r\n{good}"
    yield from (
        "\0\0\0\0\r\n\r\n",
        "GET\r\n\r\n",
        "GET / HTTP/9.9\r\n\r\n",
        f"GET /{token}/ HTTP/1.1\r\n\r\n",
        f"GET /{token}/ HTTP/1.1\r\nHost: {host}\r\nHost: evil\r\n\r\n",
        "A" * 100000 + "\r\n\r\n",
        f"GET /{token}/ HTTP/1.1\r\nHost: {host}\r\nX: {'y' * 200000}\r\n\r\n",
    )
    for number in range(70):
        headers = f"Host: {host}\r\nContent-Type: application/json\r\nContent-Length: {len(good)}"
        yield f"POST /{'x' * number}/api/do HTTP/1.1\r\n{headers}\r\n\r\n{good}"


def test_hostile_requests_are_refused_or_harmless(served):
    process, url, clusters = served
    hostile = list(make_hostile_requests(url))
    assert len(hostile) >= 200
    for request in hostile:
        status = send_raw(url, request.encode("latin-1"))
        assert not status or status.split()[1] in ("400", "403", "404", "405", "413", "415", "431", "426"), (
            request[:200],
            status,
        )
    assert process.poll() is None
    assert get(url, "api/summary")["n_actions"] == 0
    assert read_book(name_journal(clusters), load_labels(clusters)).labels.tolist() == load_labels(clusters).tolist()


def test_a_body_of_100_mb_is_cut_off(served):
    process, url, _ = served
    parts = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=20)
    connection.putrequest("POST", parts.path + "api/do")
    connection.putheader("content-type", "application/json")
    connection.putheader("transfer-encoding", "chunked")
    connection.endheaders()
    sent = 0
    try:
        while sent < 100 << 20:
            connection.send(b"100000\r\n" + b"x" * (1 << 20) + b"\r\n")
            sent += 1 << 20
        assert connection.getresponse().status == 413
    except OSError:
        pass  # it stopped listening, which is as good
    connection.close()
    assert process.poll() is None and get(url, "api/summary")["n_actions"] == 0


def test_it_listens_on_this_machine_only(served):
    _, url, _ = served
    port = urllib.parse.urlsplit(url).port
    local = f"0100007F:{port:04X}"
    with Path("/proc/net/tcp").open() as table:
        listening = [
            line.split()[1] for line in table if line.split()[3] == "0A" and line.split()[1].endswith(f":{port:04X}")
        ]
    assert listening == [local]


def test_a_killed_server_loses_nothing_it_acknowledged(tmp_path):
    clusters, features = save_world(tmp_path)
    acknowledged = []
    with start_server(clusters, features) as (process, url):

        def burst():
            for number in range(1000):
                face = int(number % 200)
                try:
                    post(url, kind="move", faces=[face], label=None, request=f"r{number}")
                except OSError:
                    return
                acknowledged.append(number)
                if number == 60:
                    os.kill(process.pid, signal.SIGKILL)

        worker = threading.Thread(target=burst)
        worker.start()
        worker.join(300)
    assert 61 <= len(acknowledged) < 1000
    with start_server(clusters, features) as (process, url):
        actions = [action for action in get(url, "api/history?count=500")["actions"] if action["kind"] == "move"]
        assert len(actions) in (len(acknowledged), len(acknowledged) + 1)  # the one in flight may have been written
        # sending the last one again, as a page that got no answer does, does not count twice
        repeated = post(url, kind="move", faces=[acknowledged[-1] % 200], label=None, request=f"r{acknowledged[-1]}")
        assert repeated["repeated"] is True
        assert get(url, "api/summary")["n_actions"] == len(actions)
    book = read_book(name_journal(clusters), load_labels(clusters))
    for number in acknowledged:
        assert len(book.members(int(book.labels[number % 200]))) == 1


def test_command_errors(run, tmp_path):
    clusters, features = save_world(tmp_path)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        outcome = run(
            "review",
            clusters,
            "--features",
            features,
            "--port",
            taken.getsockname()[1],
            "--no-browser",
            "--k",
            20,
            "--tau1",
            0.5,
        )
    assert outcome.code == 1 and "choose another --port" in outcome.err
    assert run("review", clusters).code == 2
