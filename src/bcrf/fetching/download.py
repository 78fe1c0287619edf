"""Downloads that go on where they were interrupted."""

from __future__ import annotations

import http.client
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from .errors import FetchError, NotThere

__all__ = ["download", "read_url"]

_TIMEOUT = 30.0  # seconds without any answer
_CHUNK = 1 << 16


def read_url(url: str) -> bytes:
    """The content of a small file."""
    with _open(url, {}) as response:
        try:
            content: bytes = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise FetchError(f"{url}: the connection broke: {error}") from error
    return content


def download(url: str, part: Path, progress: Callable[[int, int | None], None]) -> None:
    """Bring what `url` holds into the file `part`.

    If `part` holds the beginning from an earlier attempt, only the rest is asked for, on condition
    that the file at `url` is still the same (If-Range); the server sends the whole file if it is
    not, or if it cannot send parts. What identifies the file is kept beside `part`.

    Args:
        progress: told how many bytes are there, and how many there will be where that is known.
    """
    note = part.with_name(f"{part.name}.json")
    begun, validator = _left_over(url, part, note)
    headers = {"Range": f"bytes={begun}-", "If-Range": validator} if begun else {}
    with _open(url, headers) as response:
        if begun and response.status == http.HTTPStatus.PARTIAL_CONTENT:
            _check_start(url, response, begun)
        else:
            begun = 0
        if begun == 0:
            part.unlink(missing_ok=True)
            note.write_text(json.dumps({"url": url, "validator": _validator(response)}))
        length = response.headers.get("Content-Length")
        size = None if length is None else begun + int(length)
        received = _receive(url, response, part, begun, size, progress)
    if size is not None and received != size:
        raise FetchError(_broken(url, received, size))
    note.unlink()


def _left_over(url: str, part: Path, note: Path) -> tuple[int, str]:
    """How many bytes of `url` an earlier attempt left, and what identifies the file they are of."""
    if not (part.exists() and note.exists()):
        return 0, ""
    try:
        known = json.loads(note.read_text())
        same, validator = known["url"] == url, known["validator"]
    except (ValueError, TypeError, KeyError):  # the note itself was cut off: begin anew
        return 0, ""
    return (part.stat().st_size, validator) if same and validator else (0, "")


def _validator(response: Any) -> str | None:
    """What If-Range can compare: a strong ETag, or else the date."""
    tag: str | None = response.headers.get("ETag")
    if tag and not tag.startswith("W/"):
        return tag
    date: str | None = response.headers.get("Last-Modified")
    return date


def _check_start(url: str, response: Any, begun: int) -> None:
    sent = response.headers.get("Content-Range", "")
    match = re.match(r"bytes (\d+)-", sent)
    if match is None or int(match[1]) != begun:
        raise FetchError(
            f"{url}: asked for the bytes from {begun} on, the server sent {sent or 'others'}"
        )


def _receive(
    url: str,
    response: Any,
    part: Path,
    begun: int,
    size: int | None,
    progress: Callable[[int, int | None], None],
) -> int:
    """Append the response to `part`; the number of bytes that are there then."""
    received = begun
    with part.open("ab") as stream:
        try:
            while chunk := response.read(_CHUNK):
                stream.write(chunk)
                received += len(chunk)
                progress(received, size)
        except (TimeoutError, ConnectionError, http.client.HTTPException) as error:
            raise FetchError(_broken(url, received, size)) from error
        stream.flush()
        os.fsync(stream.fileno())
    return received


def _broken(url: str, received: int, size: int | None) -> str:
    of = "" if size is None else f" of {size}"
    return f"{url}: the connection broke after {received}{of} bytes; try again to get the rest"


def _open(url: str, headers: dict[str, str]) -> Any:
    """The response; what is no success is an error in words."""
    # Compressed answers would make sizes and ranges those of the compressed file.
    request = Request(url, headers={"Accept-Encoding": "identity", **headers})
    try:
        return urlopen(request, timeout=_TIMEOUT)
    except HTTPError as error:
        error.close()
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and headers:
            return _open(url, {})  # nothing is left after what we have, so what we have is doubtful
        kind = NotThere if error.code in (404, 410) else FetchError
        raise kind(f"{url}: the server answered {error.code} {error.reason}") from error
    except (URLError, OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise FetchError(
            f"cannot reach {urlsplit(url).netloc}: {reason}. Without a connection, fetch from a "
            "folder that has copies of the files (--from FOLDER)"
        ) from error
