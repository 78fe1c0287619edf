"""Downloads that go on where they were interrupted.

Only http and https are spoken, also after a redirect, and https is never left for http. What is
received is bounded (`limits`).
"""

from __future__ import annotations

import http.client
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any
from urllib import request
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit

from . import limits
from .cache import open_new, open_to_append, read_small, without_link
from .errors import FetchError, NotThere

__all__ = ["check_size", "download", "read_url"]

_CHUNK = 1 << 16


def read_url(url: str) -> bytes:
    """The content of a small file."""
    with _open(url, {}) as response:
        try:
            content: bytes = response.read(limits.MAX_SMALL_FILE + 1)
        except (OSError, http.client.HTTPException) as error:
            raise FetchError(f"{url}: the connection broke: {error}") from error
    if len(content) > limits.MAX_SMALL_FILE:
        raise FetchError(
            f"{url}: has more than {limits.MAX_SMALL_FILE:,} bytes, the most that is read of a "
            "checksum file; fetch from a folder with copies of the data files alone (--from FOLDER)"
        )
    return content


def download(url: str, part: Path, progress: Callable[[int, int | None], None]) -> None:
    """Bring what `url` holds into the file `part`.

    If `part` holds the beginning from an earlier attempt, only the rest is asked for, on condition
    that the file at `url` is still the same (If-Range); the server sends the whole file if it is
    not, or if it cannot send parts. What identifies the file is kept beside `part`.

    Args:
        progress: told how many bytes are there, and how many there will be where that is known.
    """
    note = without_link(part.with_name(f"{part.name}.json"))
    begun, validator = _left_over(url, part, note)
    headers = {"Range": f"bytes={begun}-", "If-Range": validator} if begun else {}
    with _open(url, headers) as response:
        if begun and response.status == http.HTTPStatus.PARTIAL_CONTENT:
            _check_start(url, response, begun)
        else:
            begun = 0
        rest = _announced(url, response)
        size = None if rest is None else begun + rest
        check_size(url, size or 0)
        if begun == 0:
            part.unlink(missing_ok=True)
            known = {"url": url, "validator": _validator(response)}
            with open_new(note) as stream:
                stream.write(json.dumps(known).encode())
        received = _receive(url, response, part, begun, size, progress)
    if size is not None and received != size:
        raise FetchError(_broken(url, received, size))
    note.unlink()


def _left_over(url: str, part: Path, note: Path) -> tuple[int, str]:
    """How many bytes of `url` an earlier attempt left, and what identifies the file they are of."""
    if not (without_link(part).exists() and note.exists()):
        return 0, ""
    try:
        known = json.loads(read_small(note))
        same, validator = known["url"] == url, known["validator"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return 0, ""  # the note itself was cut off or damaged: begin anew
    if not same or not _is_header_value(validator):
        return 0, ""
    return part.stat().st_size, validator


def _is_header_value(value: object) -> bool:
    """Whether this can be sent in a header: printable ASCII."""
    return isinstance(value, str) and value != "" and value.isascii() and value.isprintable()


def _announced(url: str, response: Any) -> int | None:
    """How many bytes the server says that it sends; None if it does not say."""
    length = response.headers.get("Content-Length")
    if length is None:
        return None
    # 18 digits are more than any file has, and a number of thousands of digits is no int.
    if not (length.isascii() and length.isdigit() and len(length) <= 18):
        raise FetchError(
            f"{url}: the server says Content-Length: {length[:40]!r}, where a number of bytes is "
            "expected; fetch from another address, or from a folder with copies (--from FOLDER)"
        )
    return int(length)


def check_size(origin: str, size: int) -> None:
    """Raise FetchError if a file of `size` bytes is too large."""
    if size > limits.MAX_DOWNLOAD:
        raise FetchError(
            f"{origin}: has more than {limits.MAX_DOWNLOAD:,} bytes, the most that is fetched; is "
            "this a treebank?"
        )


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
    most = limits.MAX_DOWNLOAD if size is None else size
    with open_to_append(part) as stream:
        try:
            while received <= most and (chunk := response.read(_CHUNK)):
                stream.write(chunk)
                received += len(chunk)
                progress(received, size)
        except (TimeoutError, ConnectionError, http.client.HTTPException) as error:
            raise FetchError(_broken(url, received, size)) from error
        stream.flush()
        os.fsync(stream.fileno())
    if received > most:
        part.unlink()  # or the next attempt would go on with it
        check_size(url, received)
        raise FetchError(
            f"{url}: the server sends more than the {size} bytes that it announced; fetch from "
            "another address, or from a folder with copies (--from FOLDER)"
        )
    return received


def _broken(url: str, received: int, size: int | None) -> str:
    of = "" if size is None else f" of {size}"
    return f"{url}: the connection broke after {received}{of} bytes; try again to get the rest"


def _open(url: str, headers: dict[str, str]) -> Any:
    """Return the response; any status other than 2xx is a FetchError."""
    try:
        # Compressed answers would make sizes and ranges those of the compressed file.
        wanted = request.Request(url, headers={"Accept-Encoding": "identity", **headers})
        return _OPENER.open(wanted, timeout=limits.TIMEOUT)
    except HTTPError as error:
        error.close()
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and headers:
            return _open(url, {})  # nothing is left after what we have, so what we have is doubtful
        kind = NotThere if error.code in (404, 410) else FetchError
        # The reason is the server's text: control characters would reach the user's terminal.
        answer = "".join(filter(str.isprintable, f"{error.code} {error.reason}"))[:200]
        raise kind(f"{url}: the server answered {answer}") from error
    except (ValueError, http.client.InvalidURL) as error:
        raise FetchError(
            f"{url!r} is no valid address: {error}; expected one such as https://host/folder, "
            "with characters other than ASCII percent-encoded"
        ) from error
    except (URLError, OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise FetchError(
            f"cannot reach {urlsplit(url).netloc}: {reason}. Without a connection, fetch from a "
            "folder that has copies of the files (--from FOLDER)"
        ) from error


class _Redirects(request.HTTPRedirectHandler):
    """Follows redirects from http or https to http or https, but never from https to http."""

    def redirect_request(
        self,
        req: request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> request.Request | None:
        fp.close()  # or urllib would read the body, which may have no end
        allowed = ("https",) if req.type == "https" else ("http", "https")
        if urlsplit(newurl).scheme not in allowed:
            raise FetchError(
                f"{req.full_url}: the server redirects to {newurl[:200]!r}, which is not followed: "
                f"expected an address that starts with {' or '.join(allowed)}://"
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _http_opener() -> request.OpenerDirector:
    """An opener without the handlers for ftp, file and data addresses that `build_opener` adds."""
    opener = request.OpenerDirector()
    for handler in (
        request.ProxyHandler,
        request.HTTPHandler,
        request.HTTPSHandler,
        request.HTTPDefaultErrorHandler,
        request.HTTPErrorProcessor,
        request.UnknownHandler,
        _Redirects,
    ):
        opener.add_handler(handler())
    return opener


_OPENER = _http_opener()
