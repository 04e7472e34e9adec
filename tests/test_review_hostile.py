"""The review server against requests that no page of ours would send."""

import asyncio
import contextlib
import http.client
import json
import os
import socket
import threading
import urllib.parse
import urllib.request
from pathlib import Path

import pytest

from hostile import Attacker, send_raw
from reviewing import get, post, save_world, start_server
from starfc.journal import name_journal, read_book
from starfc.labels import load_labels

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    clusters, features = save_world(folder)
    with start_server(clusters, features) as (process, url):
        yield process, url, clusters


def test_hostile_requests_are_refused_or_harmless(tmp_path):
    image_module = pytest.importorskip("PIL.Image")
    clusters, features = save_world(tmp_path)
    folder = tmp_path / "pictures"
    folder.mkdir()
    image_module.new("RGB", (64, 64), (200, 9, 9)).save(tmp_path / "secret.png")
    image_module.new("RGB", (64, 64), (9, 200, 9)).save(folder / "good.png")
    image_module.new("1", (10000, 10000)).save(folder / "huge.png")
    (folder / "broken.jpg").write_bytes(b"\xff\xd8\xff" + os.urandom(500))
    (folder / "link.png").symlink_to(tmp_path / "secret.png")
    (folder / "up").symlink_to(tmp_path)
    os.mkfifo(folder / "pipe.png")
    names = [
        "good.png",
        "link.png",
        "up/secret.png",
        "../secret.png",
        str(tmp_path / "secret.png"),
        "huge.png",
        "broken.jpg",
        "pipe.png",
    ]
    (folder / "list.csv").write_text("file,row\n" + "".join(f"{name},{row}\n" for row, name in enumerate(names)))
    first = load_labels(clusters)
    with start_server(clusters, features, "--images", folder / "list.csv") as (process, url):
        attacker = Attacker(url)
        hostile = list(attacker.list_all())
        assert len({request for request, _ in hostile}) >= 200
        placeholders = set()
        for request, fine in hostile:
            status, body = send_raw(url, request)
            assert status in fine, (request[:200], status, body[:200])
            assert b"root:" not in body and b"import " not in body and attacker.token.encode() not in body, request[
                :200
            ]
            if status == 200:
                placeholders.add(body)
        assert len(placeholders) == 1 and b"<svg" in next(iter(placeholders))
        assert process.poll() is None and get(url, "api/summary")["n_actions"] == 0
        assert read_book(name_journal(clusters), first).labels.tolist() == first.tolist()
        # the same things, sent as the page sends them, are done: it was the defences that refused
        name = "<script>alert(1)</script><img src=x onerror=alert(1)>"
        assert send_raw(url, attacker.act())[0] == 200
        assert (
            send_raw(url, attacker.ask(headers=f"Origin: http://{attacker.host}\r\nSec-Fetch-Site: same-origin"))[0]
            == 200
        )
        assert send_raw(url, attacker.ask(f"/{attacker.token}/face/0"))[1].startswith(b"\xff\xd8")
        post(url, kind="name", label=0, name=name, request="name")
        with urllib.request.urlopen(f"{url}api/wall?search=script") as answer:
            assert answer.headers["content-type"] == "application/json" and "default-src 'none'" in str(answer.headers)
            assert json.loads(answer.read())["clusters"][0]["name"] == name
        assert get(url, "api/summary")["n_actions"] == 2
    assert read_book(name_journal(clusters), first).names == {0: name}


def test_connections_that_say_nothing_keep_nobody_out(served):
    process, url, _ = served
    parts = urllib.parse.urlsplit(url)
    heads = [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n"]
    body = f"POST {parts.path}api/do HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n"
    heads.append((body + "Content-Length: 50\r\n\r\n{").encode())
    held = []
    try:
        for number in range(450):
            held.append(socket.create_connection((parts.hostname, parts.port), timeout=20))
            held[-1].sendall(heads[number % len(heads)])
            if number % 70 == 69:
                assert get(url, "api/summary")["n_actions"] == 0
        assert get(url, "api/wall")["total"] == 30
    finally:
        for connection in held:
            connection.close()
    assert process.poll() is None and get(url, "api/summary")["n_actions"] == 0


def test_it_hangs_up_on_those_who_say_nothing(monkeypatch):
    import uvicorn

    from starfc.review import connections

    async def app(scope, receive, send):
        await asyncio.sleep(0.5)  # longer than the silence: a request under way is no silence
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    monkeypatch.setattr(connections, "_SILENCE_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(
            uvicorn.Config(app, log_level="warning", lifespan="off", http=connections.make_protocol())
        )
        runner = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        runner.start()
        try:
            address = listener.getsockname()
            with socket.create_connection(address, timeout=20) as quiet, socket.create_connection(address) as half:
                half.sendall(b"GET / HTTP/1.1\r\n")
                half.settimeout(20)
                for connection in (quiet, half):
                    with contextlib.suppress(ConnectionResetError):
                        assert connection.recv(10) == b""
            with urllib.request.urlopen(f"http://127.0.0.1:{address[1]}/", timeout=20) as answer:
                assert answer.read() == b"ok"
        finally:
            server.should_exit = True
            runner.join(20)


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
