"""Requests that no page of ours would send."""

from __future__ import annotations

import socket
import urllib.parse


def send_raw(url, request, *, wait=20):
    """Send bytes as they are; return (status, body), status 0 if the server just closed the connection."""
    parts = urllib.parse.urlsplit(url)
    got = b""
    with socket.create_connection((parts.hostname, parts.port), timeout=wait) as connection:
        try:
            connection.sendall(request)
            while not _is_whole(got) and (chunk := connection.recv(1 << 16)):
                got += chunk
        except (ConnectionError, TimeoutError):
            pass  # refused before all of it was read
    head, _, body = got.partition(b"\r\n\r\n")
    return int(head.split()[1]) if head else 0, body


def _is_whole(got):
    """Tell whether an answer is complete; waiting for the connection to end would test the server's patience."""
    head, end, body = got.partition(b"\r\n\r\n")
    lengths = [line.split(b":")[1] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    return bool(end) and len(body) >= int(lengths[0] if lengths else 0) and (bool(lengths) or b"chunked" not in head)


REFUSED = (400, 403, 404, 405, 413, 415)
MALFORMED = (0, 400, 403, 405, 413, 431)  # what is no HTTP may get no answer at all


class Attacker:
    """Makes requests that are right but for one thing, so that a defence that is missing lets one through."""

    def __init__(self, url):
        parts = urllib.parse.urlsplit(url)
        self.token, self.host = parts.path.strip("/"), parts.netloc

    def ask(self, path=None, *, method="GET", host=None, headers="", body=None):
        path = f"/{self.token}/api/summary" if path is None else path
        lines = [f"{method} {path} HTTP/1.1", *([f"Host: {self.host if host is None else host}"] if host != "" else [])]
        lines += [headers] if headers else []
        if body is not None:
            lines.append(f"Content-Length: {len(body)}")
        return ("\r\n".join([*lines, "Connection: close"]) + f"\r\n\r\n{body or ''}").encode("latin-1")

    def act(self, *, token=None, host=None, headers="Content-Type: application/json", body=None, method="POST"):
        """A merge that would succeed if the attack did."""
        good = '{"kind":"merge","labels":[0,3],"request":"evil"}'
        path = f"/{self.token if token is None else token}/api/do"
        return self.ask(path, method=method, host=host, headers=headers, body=good if body is None else body)

    def list_all(self):
        """Yield (request, statuses that are fine)."""
        for part in (
            self._guess_tokens,
            self._come_from_elsewhere,
            self._escape,
            self._send_nonsense,
            self._name_nobody,
            self._use_other_methods,
            self._send_too_much,
            self._break_http,
        ):
            yield from part()

    def _guess_tokens(self):
        token = self.token
        for guess in (
            "",
            "x",
            "%20",
            "..",
            ".",
            "%00",
            "*",
            "null",
            "undefined",
            "token",
            token[:-1],
            token[1:],
            f"{token}x",
            f"x{token}",
            token.swapcase(),
            token[::-1],
            f"%20{token}",
            f"{token}%00",
            f".{token}",
            f"{token}.",
            f"{token};",
            f"{token}%2f",
            f"/{token}",
            f"x/{token}",
            f"../{token}",
            f"%2e%2e/{token}",
            token[: len(token) // 2],
            token * 2,
            "a" * 5000,
        ):
            yield self.act(token=guess), REFUSED
            yield self.ask(f"/{guess}/api/summary"), REFUSED
        yield self.ask("/"), REFUSED
        yield self.ask(f"/?token={token}"), REFUSED
        yield self.ask("/api/summary", headers=f"Cookie: token={token}"), REFUSED
        yield self.ask("/api/summary", headers=f"Authorization: Bearer {token}"), REFUSED

    def _come_from_elsewhere(self):
        port = self.host.split(":")[1]
        for host in (
            "evil.example",
            f"evil.example:{port}",
            "127.0.0.1",
            "localhost",
            "127.0.0.1:1",
            f"127.0.0.1:{port}.evil.example",
            f"127.0.0.2:{port}",
            f"0.0.0.0:{port}",
            f"[::1]:{port}",
            f"127.1:{port}",
            f"2130706433:{port}",
            f"user@127.0.0.1:{port}",
            f"127.0.0.1:{port},evil.example",
            "",
        ):
            yield self.act(host=host), REFUSED
            yield self.ask(host=host), REFUSED
        for origin in (
            "http://evil.example",
            "https://evil.example",
            "null",
            f"https://127.0.0.1:{port}",
            "http://127.0.0.1",
            "http://127.0.0.1:1",
            f"http://127.0.0.1:{port}.evil.example",
            f"http://evil.example:{port}",
            "file://",
            "",
        ):
            yield self.act(headers=f"Content-Type: application/json\r\nOrigin: {origin}"), REFUSED
            yield self.ask(headers=f"Origin: {origin}"), REFUSED
        for site in ("cross-site", "same-site", "x"):
            yield self.act(headers=f"Content-Type: application/json\r\nSec-Fetch-Site: {site}"), REFUSED
            yield self.ask(headers=f"Sec-Fetch-Site: {site}"), REFUSED
        yield self.ask(headers=f"Host: {self.host}"), REFUSED  # twice

    def _escape(self):
        for place in ("static", "face", "export", "api/cluster"):
            for climb in (
                "../../collection.py",
                "..%2f..%2fcollection.py",
                "%2e%2e/%2e%2e/secret.png",
                "..%252f..%252fsecret.png",
                "..%5c..%5csecret.png",
                "/etc/passwd",
                "%2fetc%2fpasswd",
                "....//....//etc/passwd",
                "%00",
                "index.html%00.css",
                "..;/secret.png",
                "file:///etc/passwd",
                "%c0%ae%c0%ae/secret.png",
                "secret.png",
            ):
                yield self.ask(f"/{self.token}/{place}/{climb}"), REFUSED
        for row in range(1, 8):  # links, absolute paths, paths that climb, broken pictures: placeholders
            yield self.ask(f"/{self.token}/face/{row}?size=320"), (200,)

    def _send_nonsense(self):
        for body in (
            "",
            "{",
            "[]",
            "null",
            "0",
            '"x"',
            "{}",
            "\xff\xfe",
            "[" * 50000,
            '{"a":' * 20000,
            '{"kind":"undo"}',
            '{"kind":[],"request":"q"}',
            '{"kind":"__class__","request":"q"}',
            '{"kind":"merge","labels":[0,3]}',
            '{"kind":"merge","labels":[0,3],"request":""}',
            '{"kind":"merge","labels":[0,3],"request":7}',
            '{"kind":"merge","labels":[0,3],"request":"\\ud800"}',
            '{"kind":"undo","request":"q"}',
            '{"kind":"redo","request":"q"}',
        ):
            yield self.act(body=body), REFUSED
        for kind in (
            "text/plain",
            "application/x-www-form-urlencoded",
            "multipart/form-data; boundary=x",
            "application/jsonx",
            "",
        ):
            yield self.act(headers=f"Content-Type: {kind}"), REFUSED

    def _name_nobody(self):
        for details in (
            '"kind":"merge","labels":[0,-1]',
            '"kind":"merge","labels":[0,99999999999]',
            '"kind":"merge","labels":[0,1e400]',
            '"kind":"merge","labels":[0,NaN]',
            '"kind":"merge","labels":[0,true]',
            '"kind":"merge","labels":"03"',
            '"kind":"merge","labels":[0,' + "9" * 5000 + "]",
            '"kind":"move","faces":[-1],"label":0',
            '"kind":"move","faces":[0.5]',
            '"kind":"move","faces":[9223372036854775807],"label":0',
            '"kind":"move","faces":[0],"label":-2147483649',
            '"kind":"move","faces":{"0":1},"label":0',
            '"kind":"not_face","faces":["0"]',
            '"kind":"not_face","faces":[240]',
            '"kind":"name","label":-5,"name":"x"',
            '"kind":"name","label":0,"name":{"a":1}',
            '"kind":"name","label":0,"name":"a\\u0000b"',
            '"kind":"name","label":0,"name":"\\ud800"',
            '"kind":"name","label":0,"name":"' + "x" * 300 + '"',
            '"kind":"name","label":0,"name":"\\u202egnp.exe"',
            '"kind":"split","label":0,"parts":-3',
            '"kind":"split","label":0,"parts":1000000000',
            '"kind":"answer","pair":-1,"same":true',
            '"kind":"answer","pair":1e9,"same":true',
            '"kind":"answer","pair":0,"same":"yes"',
            '"kind":"skip","pair":-1',
            '"kind":"strictness","tau1":-1',
            '"kind":"strictness","tau1":1e400',
            '"kind":"strictness","tau1":null',
        ):
            yield self.act(body="{" + details + ',"request":"q"}'), REFUSED
        for path in (
            "face/-1",
            "face/240",
            "face/" + "9" * 300,
            "face/1e3",
            "face/0x1",
            "face/٣",
            "face/0?size=" + "9" * 99,
            "api/cluster/-7",
            "api/cluster/" + "9" * 30,
            "api/cluster/zero",
            "api/split/0?parts=-1",
            "api/split/0?parts=999999999",
            "api/split/-2?parts=2",
            "api/wall?sort=name;drop",
            "api/wall?start=" + "1" * 5000,
            "api/wall?min_size=1e9",
            "api/wall?max_confidence=nan",
            "api/wall?max_confidence=-1",
            "api/questions?count=x",
            "api/history?count=1.5",
            "export/labels.exe",
            "nowhere",
        ):
            path = urllib.parse.quote(path, safe="/?=.;-")
            yield self.ask(f"/{self.token}/{path}"), REFUSED

    def _use_other_methods(self):
        for method in ("PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND"):
            yield self.act(method=method), REFUSED
        yield self.ask(f"/{self.token}/api/do"), REFUSED
        yield self.act(method="HEAD"), REFUSED

    def _send_too_much(self):
        kind = "Content-Type: application/json"
        yield self.act(body=" " * (3 << 20)), (0, 413)
        for extra in (
            "Content-Length: 104857600",
            "Content-Length: 99999999999999999999",
            "Expect: 100-continue\r\nContent-Length: 999999999",
        ):
            yield self.ask(f"/{self.token}/api/do", method="POST", headers=f"{kind}\r\n{extra}"), (*MALFORMED, 100)

    def _break_http(self):
        token, host = self.token, self.host
        kind = "Content-Type: application/json"
        for extra in (
            "Content-Length: -5",
            "Content-Length: x",
            "Content-Length: 5\r\nContent-Length: 6",
            "Transfer-Encoding: gzip",
            "Content-Length: 0x10",
        ):
            yield self.ask(f"/{token}/api/do", method="POST", headers=f"{kind}\r\n{extra}"), MALFORMED
        for raw in (
            "\0\0\0\0\r\n\r\n",
            "GET\r\n\r\n",
            "GET / HTTP/9.9\r\n\r\n",
            f"GET /{token}/ HTTP/1.1\r\n\r\n",
            "A" * 100000 + "\r\n\r\n",
            f"GET /{token}/ HTTP/1.1\r\nHost: {host}\r\nHost: evil\r\n\r\n",
            f"GET http://evil.example/{token}/ HTTP/1.1\r\nHost: evil\r\n\r\n",
            f"GET /{token}/ HTTP/1.1\r\nHost: {host}\r\nX: {'y' * 200000}\r\n\r\n",
            "\x16\x03\x01\x02\x00\x01\x00",
            "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        ):
            yield raw.encode("latin-1"), MALFORMED
