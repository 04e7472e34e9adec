"""Server: the review page's address book (Starlette), and what runs it (uvicorn).

In: a Collection. Out: an application that needs no port to be tested, and a function that serves it on 127.0.0.1.
Every answer is a page of something: clusters of the wall, faces of a cluster, a few questions. Errors are sentences.
"""

from __future__ import annotations

import io
import json
import logging
import math
import secrets
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import InputError, MissingExtraError, OutputError, StarfcError
from ..export import final_labels, make_constraints
from .collection import CARD_FACES, Collection
from .connections import MOST_REQUESTS, make_protocol
from .guard import Guard
from .table import SORTS, Filter
from .thumbnails import Thumbnails

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

logger = logging.getLogger(__name__)
_STATIC = Path(__file__).parent / "static"
_FILES = {
    "app.js": "text/javascript",
    "views.js": "text/javascript",
    "grid.js": "text/javascript",
    "dialogs.js": "text/javascript",
    "app.css": "text/css",
    "icon.svg": "image/svg+xml",
}
_MOST_PER_PAGE = 500
_IDLE_S, _LONGEST_WAIT_S = 1.5, 20.0


def create_app(collection: Collection, *, token: str, hosts: tuple[str, ...], seed: int = 0) -> Guard:
    """Make the application: every address begins with the token, every Host must be one of `hosts`."""
    try:
        from starlette.applications import Starlette
        from starlette.routing import Route
    except ImportError:
        raise MissingExtraError("starlette", "review", "the review page") from None
    faces = Thumbnails(collection.features, collection.images, traits=collection.traits, seed=seed)
    pages = _Pages(collection, faces)
    routes = [
        Route("/", pages.index),
        Route("/static/{name}", pages.static),
        Route("/face/{row}", pages.face),
        Route("/faces/{rows}", pages.faces),
        Route("/api/summary", _stating(pages.summary)),
        Route("/api/wall", _stating(pages.wall)),
        Route("/api/cluster/{label}", _stating(pages.cluster)),
        Route("/api/split/{label}", _stating(pages.split)),
        Route("/api/questions", _stating(pages.questions)),
        Route("/api/levels", _stating(pages.levels)),
        Route("/api/history", _stating(pages.history)),
        Route("/api/do", pages.do, methods=["POST"]),
        Route("/export/{name}", pages.export),
    ]
    return Guard(Starlette(routes=routes), token=token, hosts=hosts)


def serve(
    collection: Collection, *, port: int = 0, seed: int = 0, on_ready: Callable[[str], None] = lambda url: None
) -> None:
    """Serve the page on 127.0.0.1 until interrupted; `on_ready` gets the address with its token."""
    try:
        import uvicorn
    except ImportError:
        raise MissingExtraError("uvicorn", "review", "the review page") from None
    try:
        with _listen(port) as listener:
            port = listener.getsockname()[1]
            token = secrets.token_urlsafe(24)
            app = create_app(collection, token=token, hosts=(f"127.0.0.1:{port}", f"localhost:{port}"), seed=seed)
            config = uvicorn.Config(
                app, log_level="warning", access_log=False, server_header=False, ws="none", lifespan="off",
                limit_concurrency=MOST_REQUESTS, timeout_graceful_shutdown=2, http=make_protocol(),
            )  # fmt: skip
            threading.Thread(target=_prepare_when_idle, args=(collection, app), daemon=True).start()
            on_ready(f"http://127.0.0.1:{port}/{token}/")
            uvicorn.Server(config).run(sockets=[listener])
    finally:
        collection.close()


def _prepare_when_idle(collection: Collection, guard: Guard) -> None:
    """Look for questions once the wall has been drawn, which two cores cannot do at the same time, or when asked."""
    started = time.monotonic()
    while not collection.questions_wanted.wait(0.2):
        last = guard.last_request
        if time.monotonic() > (started + _LONGEST_WAIT_S if last is None else last + _IDLE_S):
            break
    collection.prepare_questions()
    collection.count_levels()


def _listen(port: int) -> socket.socket:
    """Open the port on this machine's own address, and no other."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise OutputError(f"port {port} cannot be used: {error.strerror}; choose another --port, or none") from error
    return listener


class _Pages:
    """What is behind each address. Plain functions: Starlette runs them in threads."""

    def __init__(self, collection: Collection, thumbnails: Thumbnails) -> None:
        self._collection, self._thumbnails = collection, thumbnails

    def index(self, request: Request) -> Response:
        """Answer with the page itself."""
        return _reply((_STATIC / "index.html").read_bytes(), "text/html")

    def static(self, request: Request) -> Response:
        """Answer with one of the page's files, by name."""
        name = request.path_params["name"]
        if name not in _FILES:
            return _reply(b"no such file", "text/plain", status=404)
        return _reply((_STATIC / name).read_bytes(), _FILES[name])

    def face(self, request: Request) -> Response:
        """Answer with the picture of a face."""
        row, size = (_read_whole(text) for text in (request.path_params["row"], request.query_params.get("size", "96")))
        made = self._thumbnails.draw(row, size) if row is not None and size is not None else None
        if made is None:
            return _reply(b"no such face", "text/plain", status=404)
        return _reply(*made, cache="private, max-age=86400")

    def faces(self, request: Request) -> Response:
        """Answer with the avatars of the faces of a card as one picture."""
        rows = [_read_whole(text) for text in request.path_params["rows"].split(",", CARD_FACES)]
        known = [row for row in rows if row is not None]
        made = self._thumbnails.draw_sheet(known) if len(known) == len(rows) <= CARD_FACES else None
        if made is None:
            return _reply(b"no such faces", "text/plain", status=404)
        return _reply(*made, cache="private, max-age=86400")

    def summary(self, request: Request) -> Any:  # noqa: ANN401
        """Answer with the figures of the page's head."""
        return self._collection.summarise()

    def wall(self, request: Request) -> Any:  # noqa: ANN401
        """Answer with a page of clusters."""
        asked = request.query_params
        sort = asked.get("sort", "size")
        if sort not in SORTS:
            raise InputError(f"sort ('{sort[:40]}') must be one of {', '.join(SORTS)}")
        confidence = asked.get("max_confidence")
        named = asked.get("named")
        wanted = Filter(
            sort,
            asked.get("search", "").strip()[:200],
            _ask_whole(asked, "min_size"),
            _ask_whole(asked, "max_size"),
            _read_share(confidence) if confidence else None,
            None if named not in ("yes", "no") else named == "yes",
        )
        return self._collection.list_wall(wanted, _ask_whole(asked, "start") or 0, _ask_count(asked, 60))

    def cluster(self, request: Request) -> Any:  # noqa: ANN401
        """Answer with a page of a cluster's faces."""
        asked = request.query_params
        return self._collection.open_cluster(
            _path_label(request),
            start=_ask_whole(asked, "start") or 0,
            count=_ask_count(asked, 120),
            outliers_first=asked.get("outliers") == "1",
        )

    def split(self, request: Request) -> Any:  # noqa: ANN401
        """Answer with the parts a cluster would fall into."""
        parts = _ask_whole(request.query_params, "parts") or 2
        return {"parts": self._collection.preview_split(_path_label(request), parts)}

    def questions(self, request: Request) -> Any:  # noqa: ANN401
        """Answer with the next questions."""
        found = self._collection.list_questions(min(20, _ask_count(request.query_params, 3)))
        return {"ready": found is not None, "questions": found or []}

    def levels(self, request: Request) -> Any:  # noqa: ANN401
        """Answer with how many people there would be at each strictness."""
        return self._collection.count_levels()

    def history(self, request: Request) -> Any:  # noqa: ANN401
        """Answer with the latest actions."""
        with self._collection.lock:
            return {"actions": self._collection.journal.history(_ask_count(request.query_params, 100))}

    async def do(self, request: Request) -> Response:
        """Make a correction and answer when it is on the disk."""
        from starlette.concurrency import run_in_threadpool

        return await run_in_threadpool(self._do, await request.body())

    def _do(self, body: bytes) -> Response:
        try:
            given = json.loads(body)
        except (ValueError, RecursionError):
            return _reply_json({"error": "the request is no JSON"}, 400)
        if not isinstance(given, dict) or not isinstance(given.get("kind"), str):
            return _reply_json({"error": "a request needs 'kind' and 'request'"}, 400)
        name = given.get("request")
        if not isinstance(name, str) or not 1 <= len(name) <= 100 or not name.isprintable():  # nor half a character
            return _reply_json({"error": "a request needs an id of 1 to 100 printable characters in 'request'"}, 400)
        return _answer(lambda: self._collection.do(name, given["kind"], given))

    def export(self, request: Request) -> Response:
        """Answer with a file: corrected labels or constraints."""
        with self._collection.lock:
            labels = final_labels(self._collection.book)
            told = make_constraints(self._collection.book)
        name = request.path_params["name"]
        if name == "labels.npy":
            out = io.BytesIO()
            np.save(out, labels, allow_pickle=False)
            return _download(out.getvalue(), "application/octet-stream", name)
        if name == "labels.csv":
            lines = "".join(f"{row},{label}\n" for row, label in enumerate(labels.tolist()))
            return _download(f"row,label\n{lines}".encode(), "text/csv", name)
        if name == "constraints.json":
            return _download(json.dumps(told.as_dict()).encode(), "application/json", name)
        return _reply(b"no such file", "text/plain", status=404)


def _stating(page: Callable[[Request], Any]) -> Callable[[Request], Response]:
    """Turn what a page returns into JSON, and its errors into sentences."""

    def answer(request: Request) -> Response:
        return _answer(lambda: page(request))

    return answer


def _answer(make: Callable[[], Any]) -> Response:
    try:
        return _reply_json(make())
    except InputError as error:
        return _reply_json({"error": str(error)}, 400)
    except StarfcError as error:
        return _reply_json({"error": str(error)}, 500)
    except Exception:
        logger.exception("the review page failed")
        return _reply_json({"error": "something went wrong; the terminal says more"}, 500)


def _reply(content: bytes, media: str, *, status: int = 200, cache: str = "no-store") -> Response:
    from starlette.responses import Response as StarletteResponse

    charset = "; charset=utf-8" if media.startswith("text/") else ""
    return StarletteResponse(content, status, {"cache-control": cache, "content-type": media + charset})


def _reply_json(content: Any, status: int = 200) -> Response:  # noqa: ANN401
    return _reply(json.dumps(content, allow_nan=False).encode(), "application/json", status=status)


def _download(content: bytes, media: str, name: str) -> Response:
    response = _reply(content, media)
    response.headers["content-disposition"] = f'attachment; filename="{name}"'
    return response


def _read_whole(text: str) -> int | None:
    """Read a whole number of a sane length, in plain digits; None if it is none."""
    digits = text.removeprefix("-")
    return int(text) if digits.isascii() and digits.isdigit() and len(digits) < 18 else None


def _ask_whole(asked: Any, name: str) -> int | None:  # noqa: ANN401
    text = asked.get(name, "")
    if not text:
        return None
    value = _read_whole(text)
    if value is None:
        raise InputError(f"{name} ('{text[:40]}') must be a whole number")
    return value


def _ask_count(asked: Any, default: int) -> int:  # noqa: ANN401
    return max(1, min(_ask_whole(asked, "count") or default, _MOST_PER_PAGE))


def _read_share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= 1:
        raise InputError(f"confidence ('{text[:40]}') must be between 0 and 1")
    return value


def _path_label(request: Request) -> int:
    label = _read_whole(request.path_params["label"])
    if label is None:
        raise InputError("a cluster is named by its number")
    return label
