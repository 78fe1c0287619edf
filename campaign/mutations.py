"""Change small files at random: bytes, lines and fields, with unusual characters and numbers."""

from __future__ import annotations

import random
import re

__all__ = ["mutate"]

_ODD = [
    b"\xef\xbb\xbf",
    b"\0",
    b"\r",
    b"\r\n",
    b"\n\n",
    b"\t",
    b" ",
    "\u2028".encode(),
    "\x85".encode(),
    "\xa0".encode(),
    "\U0001f600".encode(),
    b"\xff\xfe",
    b"\xed\xa0\x80",
    rb"\ud800",
    b"-DOCSTART-",
    b"#",
    b"# text = ",
    b"NER=",
    b"SpaceAfter=No",
    b"SpacesAfter=\\s\\n",
    b"1-2",
    b"1.1",
    b"0",
    b"-1",
    b"9" * 5000,
    b"1e999",
    b"NaN",
    b"null",
    b"true",
    b"[]",
    b"{}",
    b'"',
    b"'",
    b"&a",
    b"*a",
    b"<<: ",
    b"!!python/name:os.system ",
    b"[" * 2000,
    b'{"a":' * 2000,
    b"- " * 2000,
    b"a." * 2000,
    b"../",
    b"B-",
    b"I-PER",
    b"A|B",
    b"?",
    b"_",
]


def mutate(seeds: list[bytes], chance: random.Random) -> bytes:
    """Return one of the seeds after one to four random changes."""
    data = chance.choice(seeds)
    for _ in range(chance.randint(1, 4)):
        data = chance.choice(_CHANGES)(data, seeds, chance)
    return data[:100_000]


def _flip(data: bytes, seeds: list[bytes], chance: random.Random) -> bytes:
    at = chance.randrange(len(data) + 1)
    return data[:at] + bytes([chance.randrange(256)]) + data[at + 1 :]


def _delete(data: bytes, seeds: list[bytes], chance: random.Random) -> bytes:
    at = chance.randrange(len(data) + 1)
    return data[:at] + data[at + chance.choice([1, 2, 5, 50]) :]


def _insert(data: bytes, seeds: list[bytes], chance: random.Random) -> bytes:
    at = chance.choice([0, len(data), chance.randrange(len(data) + 1)])
    return data[:at] + chance.choice(_ODD) + data[at:]


def _truncate(data: bytes, seeds: list[bytes], chance: random.Random) -> bytes:
    return data[: chance.randrange(len(data) + 1)]


def _splice(data: bytes, seeds: list[bytes], chance: random.Random) -> bytes:
    other = chance.choice(seeds)
    return data[: chance.randrange(len(data) + 1)] + other[chance.randrange(len(other) + 1) :]


def _change_lines(data: bytes, seeds: list[bytes], chance: random.Random) -> bytes:
    lines = data.splitlines(keepends=True)
    if lines:
        at, to = chance.randrange(len(lines)), chance.randrange(len(lines))
        change = chance.randrange(4)
        if change == 0:
            lines.insert(to, lines[at] * chance.choice([1, 2, 30]))
        elif change == 1:
            del lines[at]
        elif change == 2:
            lines[at], lines[to] = lines[to], lines[at]
        else:
            lines[at] = lines[at].rstrip(b"\r\n")
    return b"".join(lines)


def _change_fields(data: bytes, seeds: list[bytes], chance: random.Random) -> bytes:
    """Swap, remove, repeat or replace text between separators."""
    fields = re.split(rb"([\t \n|=,:])", data)
    at, to = (2 * chance.randrange(len(fields) // 2 + 1) for _ in range(2))
    change = chance.randrange(4)
    if change == 0:
        fields[at], fields[to] = fields[to], fields[at]
    elif change == 1:
        fields[at] = b""
    elif change == 2:
        fields[at] += chance.choice([b"\t", b" "]) + fields[to]
    else:
        fields[at] = chance.choice(_ODD)
    return b"".join(fields)


_CHANGES = [_flip, _delete, _insert, _truncate, _splice, _change_lines, _change_fields]
