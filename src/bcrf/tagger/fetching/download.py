"""HTTP downloads that resume where they were interrupted, for pooch.

pooch verifies checksums and moves complete files into place. Its own HTTP downloader has no limit
on the size, follows redirects from https to http, reads the bodies of redirects without end, and
cannot resume. `ResumableDownload` has none of these four defects; it uses the same HTTP library
(requests).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

from . import download_limits
from .cache import open_new, open_to_append, read_small, refuse_link
from .errors import FetchError, FileMissing, import_optional

__all__ = [
    "ResumableDownload",
    "check_size",
    "find_partial_download",
    "follow_redirect",
    "read_url",
]

_CHUNK = 1 << 16

_OTHER_SOURCE = "fetch from another address, or from a folder with copies (--from FOLDER)"


def read_url(url: str) -> bytes:
    """Return the content of a small file."""
    with _request(url, {}) as response:
        content = b""
        try:
            while len(content) <= download_limits.MAX_SMALL_FILE and (
                chunk := _read_chunk(response)
            ):
                content += chunk
        except _broken_connection_errors() as error:
            raise FetchError(f"{url}: the connection broke: {error}") from error
    if len(content) > download_limits.MAX_SMALL_FILE:
        raise FetchError(
            f"{url}: has more than {download_limits.MAX_SMALL_FILE:,} bytes, the limit for a "
            "checksum file; copy the data files without it to a folder, and fetch from there "
            "(--from FOLDER)"
        )
    return content


class ResumableDownload:
    """A downloader for pooch: called with an address and a path, it writes the file there.

    The bytes are first written to the file `part`. If `part` holds the beginning of the file from
    an earlier attempt, only the rest is requested, on condition that the file at the address has
    not changed (If-Range). If it has changed, or if the server cannot send ranges, the server sends
    the whole file. A small file beside `part` records the ETag or the date of the file.

    Args:
        part: the file that holds the bytes until they are complete.
        progress: called with the number of bytes so far, and the size of the file (None if the
            server does not say it).
    """

    def __init__(self, part: Path, progress: Callable[[int, int | None], None]) -> None:
        self._part, self._progress = part, progress
        self._note = part.with_name(f"{part.name}.json")

    def __call__(self, url: str, output_file: str, pooch: object = None) -> None:
        part, note = self._part, refuse_link(self._note)
        start, validator = find_partial_download(url, part, note)
        headers = {"Range": f"bytes={start}-", "If-Range": validator} if start else {}
        with _request(url, headers) as response:
            if start and response.status_code == 206:
                _check_range(url, response, start)
            else:
                start = 0
            rest = _announced_length(url, response)
            size = None if rest is None else start + rest
            check_size(url, size or 0)
            if start == 0:
                part.unlink(missing_ok=True)
                identity = {"url": url, "validator": _validator(response)}
                with open_new(note) as stream:
                    stream.write(json.dumps(identity).encode())
            received = self._receive(url, response, start, size)
        if size is not None and received != size:
            raise FetchError(_interrupted(url, received, size))
        os.replace(part, output_file)
        note.unlink()

    def _receive(self, url: str, response: Any, start: int, size: int | None) -> int:
        """Append the response to the partial file; return the size of the file."""
        received = start
        limit = download_limits.MAX_DOWNLOAD if size is None else size
        with open_to_append(self._part) as stream:
            try:
                while received <= limit and (chunk := _read_chunk(response)):
                    stream.write(chunk)
                    received += len(chunk)
                    self._progress(received, size)
            except _broken_connection_errors() as error:
                raise FetchError(_interrupted(url, received, size)) from error
            stream.flush()
            os.fsync(stream.fileno())
        if received > limit:
            self._part.unlink()  # otherwise the next attempt would resume it
            check_size(url, received)
            raise FetchError(
                f"{url}: the server sends more than the {size} bytes that it announced; "
                f"{_OTHER_SOURCE}"
            )
        return received


def find_partial_download(url: str, part: Path, note: Path) -> tuple[int, str]:
    """Return the number of bytes of `url` in `part`, and the validator for If-Range.

    The result is (0, "") if the download has to start from the beginning.
    """
    if not (refuse_link(part).exists() and note.exists()):
        return 0, ""
    try:
        identity = json.loads(read_small(note))
        is_same, validator = identity["url"] == url, identity["validator"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return 0, ""  # the note is incomplete or damaged
    if not is_same or not _is_header_value(validator):
        return 0, ""
    return part.stat().st_size, validator


def check_size(origin: str, size: int) -> None:
    """Raise FetchError if a file of `size` bytes is too large."""
    if size > download_limits.MAX_DOWNLOAD:
        raise FetchError(
            f"{origin}: has more than {download_limits.MAX_DOWNLOAD:,} bytes, the limit for a "
            "download; check that this is a file of a treebank"
        )


def _is_header_value(value: object) -> bool:
    """Return whether a value can be sent in a header, that is, consists of printable ASCII."""
    return isinstance(value, str) and value != "" and value.isascii() and value.isprintable()


def _announced_length(url: str, response: Any) -> int | None:
    """Return the number of bytes that the server announces; None if it announces none."""
    length = response.headers.get("Content-Length")
    if length is None:
        return None
    # No file has a size of more than 18 digits, and int() refuses thousands of digits.
    if not (length.isascii() and length.isdigit() and len(length) <= 18):
        raise FetchError(
            f"{url}: the server sent Content-Length: {length[:40]!r}; expected a number of "
            f"bytes; {_OTHER_SOURCE}"
        )
    return int(length)


def _validator(response: Any) -> str | None:
    """Return the validator that If-Range can compare: a strong ETag, or else the date."""
    tag: str | None = response.headers.get("ETag")
    if tag and not tag.startswith("W/"):
        return tag
    date: str | None = response.headers.get("Last-Modified")
    return date


def _check_range(url: str, response: Any, start: int) -> None:
    """Raise FetchError if the response does not hold the requested part of the file."""
    sent = response.headers.get("Content-Range", "")
    match = re.match(r"bytes (\d{1,18})-", sent)
    if match is None or int(match[1]) != start:
        raise FetchError(
            f"{url}: bcrf requested the bytes from {start} on, but the server sent the range "
            f"{sent[:40]!r}; {_OTHER_SOURCE}"
        )


def _interrupted(url: str, received: int, size: int | None) -> str:
    of_size = "" if size is None else f" of {size}"
    return (
        f"{url}: the connection broke after {received}{of_size} bytes; run the command again to "
        "fetch the rest"
    )


# Requests


@contextmanager
def _request(url: str, headers: dict[str, str]) -> Iterator[Any]:
    """Open a response; raise FetchError for any status other than 2xx.

    This function follows redirects itself, because requests would read their bodies and would
    follow redirects from https to http.
    """
    response = _get(url, headers)
    try:
        for _ in range(download_limits.MAX_REDIRECTS):
            location = response.headers.get("Location")
            if not (300 <= response.status_code < 400 and location):
                break
            target = follow_redirect(response.url, location)
            response.close()
            response = _get(target, headers)
        if response.status_code == 416 and headers:
            # The server has no bytes after ours, so ours are not the beginning of its file.
            response.close()
            with _request(url, {}) as whole:
                yield whole
                return
        if not 200 <= response.status_code < 300:
            error = FileMissing if response.status_code in (404, 410) else FetchError
            # The server chooses the reason text; its control characters must not reach a terminal.
            answer = f"{response.status_code} {response.reason or ''}".strip()
            answer = "".join(filter(str.isprintable, answer))[:200]
            raise error(f"{url}: the server answered {answer}")
        yield response
    finally:
        response.close()


def follow_redirect(url: str, location: str) -> str:
    """Return the address to which `url` is redirected.

    Raises:
        FetchError: the address is neither http nor https, or leaves https for http.
    """
    allowed = ("https",) if urlsplit(url).scheme == "https" else ("http", "https")
    try:
        target = urljoin(url, location)
        is_allowed = urlsplit(target).scheme in allowed
    except ValueError:
        is_allowed = False
    if not is_allowed:
        raise FetchError(
            f"{url}: the server redirects to {location[:200]!r}, which bcrf does not follow; "
            f"expected an address that starts with {' or '.join(allowed)}://"
        )
    return target


def _get(url: str, headers: dict[str, str]) -> Any:
    """Send one GET request without following redirects."""
    requests = import_optional("requests")
    _check_address(url)
    try:
        with requests.Session() as session:
            # Even without `allow_redirects`, requests reads the body of a redirect that it sees.
            session.get_redirect_target = lambda response: None
            return session.get(
                url,
                # Ranges and sizes of a compressed response would count compressed bytes.
                headers={"Accept-Encoding": "identity", **headers},
                auth=_send_no_credentials,
                timeout=download_limits.TIMEOUT,
                stream=True,
            )
    except ValueError as error:  # requests has several ValueErrors for wrong addresses
        raise FetchError(_invalid_address(url, error)) from error
    except (requests.RequestException, OSError) as error:
        raise FetchError(
            f"cannot reach {urlsplit(url).netloc}: {_innermost(error)}; without a connection, "
            "fetch from a folder that has copies of the files (--from FOLDER)"
        ) from error


def _check_address(url: str) -> None:
    try:
        is_valid = url.isascii() and url.isprintable() and urlsplit(url).hostname is not None
        reason = "it has no host, or characters other than ASCII"
    except ValueError as error:
        is_valid, reason = False, str(error)
    if not is_valid:
        raise FetchError(_invalid_address(url, reason))


def _invalid_address(url: str, reason: object) -> str:
    return (
        f"{url!r} is not a valid address: {reason}; expected one such as https://host/folder, with "
        "characters other than ASCII percent-encoded"
    )


def _send_no_credentials(request: Any) -> Any:
    """Return the request unchanged; without `auth`, requests would send passwords of ~/.netrc."""
    return request


def _read_chunk(response: Any) -> bytes:
    chunk: bytes = response.raw.read(_CHUNK, decode_content=False)
    return chunk


def _broken_connection_errors() -> tuple[type[Exception], ...]:
    """Return the errors that reading from a broken connection raises."""
    return (import_optional("urllib3").exceptions.HTTPError, TimeoutError, ConnectionError)


def _innermost(error: BaseException) -> BaseException:
    """Return the first error in the chain of causes of `error`: that of the operating system."""
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    return error
