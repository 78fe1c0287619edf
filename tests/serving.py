"""A local web server for tests."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import StreamRequestHandler, ThreadingTCPServer
from threading import Thread


def conllu(word: str, sentences: int = 1) -> bytes:
    row = f"1\t{word}\t_\tNOUN\t_\t_\t0\troot\t_\t_\n\n"
    return (row * sentences).encode()


class Server(ThreadingHTTPServer):
    """Serves `files` by path, with Range and If-Range unless these are switched off."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.ranges = True
        self.validators = True
        self.break_after: int | None = None  # ends each answer after so many bytes of the body
        self.status: int | None = None  # the status of every answer
        self.log: list[tuple[str, str | None]] = []  # path and Range of each request
        self.headers_seen: list[dict[str, str]] = []  # of each request

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        self.server.log.append((self.path, wanted))
        self.server.headers_seen.append(dict(self.headers))
        content = self.server.files.get(self.path)
        if self.server.status is not None or content is None:
            self.send_error(self.server.status or 404)
            return
        tag = f'"{hashlib.md5(content).hexdigest()}"'
        start = 0
        if wanted and self.server.ranges and self.headers.get("If-Range", tag) == tag:
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
            if start >= len(content):
                self.send_error(416)
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        else:
            self.send_response(200)
        if self.server.validators:
            self.send_header("ETag", tag)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        body = content[start:]
        if self.server.break_after is not None and not self.path.endswith("SUMS"):
            body = body[: self.server.break_after]
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


@contextmanager
def running() -> Iterator[Server]:
    with Server() as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def serve(server: Server, name: str = "xx_toy", **splits: bytes) -> None:
    """Add the files of a treebank to the server."""
    for split, content in splits.items():
        server.files[f"/{name}/{name}-ud-{split}.conllu"] = content


class RawHandler(StreamRequestHandler):
    """Sends the bytes of the server's `answer` for a path, until the client disconnects."""

    server: RawServer

    def handle(self) -> None:
        _, path, _ = self.rfile.readline().decode().split()
        while self.rfile.readline().strip():
            pass  # the headers of the request
        with suppress(ConnectionError):
            for chunk in self.server.answer(path):
                self.wfile.write(chunk)


class RawServer(ThreadingTCPServer):
    daemon_threads = True

    def __init__(self, answer: Callable[[str], Iterable[bytes]]) -> None:
        super().__init__(("127.0.0.1", 0), RawHandler)
        self.answer = answer


@contextmanager
def answering(answer: Callable[[str], Iterable[bytes]]) -> Iterator[str]:
    """Yield the address of a server whose answer, with its status line, is `answer(path)`."""
    with RawServer(answer) as server:
        thread = Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
