"""The review server: what it answers and whom it refuses."""

import io
import json
import socket

import numpy as np
import pytest

from asgi import call
from reviewing import gather, make_world, save_world
from starfc.constraints import load_constraints
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
        "api/cluster/-2",  # nobody is left out
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


def test_the_avatars_of_a_card_are_one_picture(app, tmp_path):
    from starfc.review.collection import Collection
    from starfc.review.server import create_app

    assert ask(app, "faces/5,6").status == 404  # where there are pictures each face is asked for
    collection = Collection(FEATURES, LABELS, EVIDENCE, tmp_path / "k.sqlite")
    plain = create_app(collection, token=TOKEN, hosts=(HOST,))
    sheet = ask(plain, "faces/5,6,7")
    assert sheet.headers["content-type"] == "image/svg+xml" and sheet.body.count(b"<svg") == 4
    for rows in ("", "5,", "5,x", "-1", "240", "1,2,3,4,5,6,7", "5,,6", "1," * 9000):
        assert ask(plain, f"faces/{rows}").status == 404, rows
    collection.close()


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
