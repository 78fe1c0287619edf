"""SHA-256 sums, as the `sha256sum` command writes and checks them."""

from __future__ import annotations

import re
from pathlib import Path

from ..data import atomic_write
from .cache import read_small, without_link
from .errors import FetchError

__all__ = ["SUMS_FILE", "parse_sums", "read_sums", "record_sum"]

SUMS_FILE = "SHA256SUMS"

_LINE = re.compile(r"([0-9A-Fa-f]{64}) [ *](.+)")


def parse_sums(text: str, origin: str) -> dict[str, str]:
    """The sum of each file that a checksum file names; `origin` is what messages call it."""
    sums = {}
    for number, line in enumerate(text.split("\n"), start=1):
        line = line.removesuffix("\r")
        if not line.strip():
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            raise FetchError(
                f"{origin}:{number}: expected '<SHA-256 in hexadecimal>  <file>', "
                f"found {line[:80]!r}"
            )
        sums[match[2].removeprefix("./")] = match[1].lower()
    return sums


def read_sums(folder: Path) -> dict[str, str]:
    """The sums that were recorded in `folder`."""
    path = without_link(folder / SUMS_FILE)
    if not path.exists():
        return {}
    return parse_sums(read_small(path).decode("utf-8", "replace"), str(path))


def record_sum(folder: Path, file: str, digest: str) -> None:
    """Record the sum of a file of `folder`, so that `sha256sum -c` can check it too."""
    sums = read_sums(folder) | {file: digest}
    with atomic_write(folder / SUMS_FILE) as stream:
        stream.writelines(f"{digest}  {name}\n" for name, digest in sorted(sums.items()))
