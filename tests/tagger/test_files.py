"""Atomic writing, limited reading and the log of JSON lines."""

from __future__ import annotations

import errno
import io
import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bcrf.tagger.files import (
    JsonlError,
    JsonlLog,
    atomic_write,
    atomic_write_bytes,
    open_regular,
    read_limited,
    sha256,
    sha256_of_bytes,
)

# ----------------------------------------------------------------------------------- regular files


@pytest.mark.skipif(os.name != "posix", reason="pipes and devices of POSIX")
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/zero", path)])
def test_only_regular_files_are_opened(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "x")
    with pytest.raises(OSError, match="expected a regular file"):
        open_regular(tmp_path / "x")


def test_files_are_read_up_to_a_limit(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"12345")
    assert read_limited(tmp_path / "x", 5) == b"12345"
    with pytest.raises(OSError, match="expected at most 4 bytes, found more"):
        read_limited(tmp_path / "x", 4)
    with pytest.raises(FileNotFoundError):
        read_limited(tmp_path / "y", 4)


# ------------------------------------------------------------------------------------- atomic files


def test_a_file_appears_when_it_is_complete(tmp_path):
    path = tmp_path / "model.json"
    with atomic_write(path) as file:
        file.write("ä\r\n")
        assert not path.exists()
    assert path.read_bytes() == "ä\r\n".encode()
    assert os.listdir(tmp_path) == ["model.json"]


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "model.json"
    path.write_text("old")

    def fail():
        with atomic_write(path) as file:
            file.write("new")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["model.json"]


KILLED = """
import os, signal, sys
from bcrf.tagger.files import atomic_write
with atomic_write(sys.argv[1]) as file:
    file.write("new" * 100000)
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
def test_a_killed_process_leaves_the_old_file(tmp_path):
    path = tmp_path / "model.json"
    path.write_text("old")
    assert subprocess.run([sys.executable, "-c", KILLED, str(path)]).returncode < 0
    assert path.read_text() == "old"


@pytest.mark.skipif(os.name != "posix", reason="needs permissions and links")
def test_permissions_and_links_are_respected(tmp_path):
    path, link = tmp_path / "file", tmp_path / "link"
    umask = os.umask(0o027)
    try:
        with atomic_write_bytes(path) as file:
            file.write(b"1")
        assert stat.S_IMODE(path.stat().st_mode) == 0o640
    finally:
        os.umask(umask)
    path.chmod(0o600)
    link.symlink_to(path)
    with atomic_write_bytes(link) as file:
        file.write(b"2")
    assert path.read_bytes() == b"2"
    assert link.is_symlink()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with atomic_write("/dev/null") as file:
        file.write("gone")


def test_errors_for_impossible_targets(tmp_path):
    with pytest.raises(IsADirectoryError, match="is a folder"), atomic_write(tmp_path):
        pass
    nowhere = tmp_path / "a" / "b"
    with pytest.raises(FileNotFoundError, match="there is no folder"), atomic_write(nowhere):
        pass


# ---------------------------------------------------------------------------------------- checksums


def test_a_file_and_its_bytes_have_the_same_checksum(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"abc")
    assert sha256(tmp_path / "x") == sha256_of_bytes(b"abc")
    assert sha256_of_bytes(b"abc").startswith("ba7816bf")


# ------------------------------------------------------------------------------------ log of lines


def test_rows_are_returned_in_order(tmp_path: Path) -> None:
    log = JsonlLog(tmp_path / "results" / "log.jsonl")
    assert log.rows() == []
    assert log.first_row() is None
    assert log.size() == 0
    log.append({"a": 1})
    log.append({"b": "ä"}, {"c": [1.5]}, durable=False)
    assert log.rows() == [{"a": 1}, {"b": "ä"}, {"c": [1.5]}]
    assert log.first_row() == {"a": 1}
    assert JsonlLog(log.path).rows() == log.rows()
    assert log.path.read_text(encoding="utf-8").splitlines()[1] == '{"b": "ä"}'
    assert log.size() == log.path.stat().st_size
    assert [path.name for path in log.path.parent.iterdir()] == [
        "log.jsonl"
    ]  # no lock file is left


def test_a_torn_line_is_ignored_and_then_removed(tmp_path: Path) -> None:
    log = JsonlLog(tmp_path / "log.jsonl")
    log.append({"a": 1})
    torn = '{"b": "' + "x" * 200_000
    with log.path.open("a") as file:
        file.write(torn)
    assert log.rows() == [{"a": 1}]
    log.append({"c": 3})
    assert log.rows() == [{"a": 1}, {"c": 3}]
    log.path.write_text(torn)
    assert log.rows() == []
    assert log.first_row() is None
    log.append({"d": 4})
    assert log.rows() == [{"d": 4}]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "expected JSON: "),
        ("[1]", r"expected a JSON object, got \[1\]"),
        ("[" * 100_000, "expected JSON"),
    ],
)
def test_errors_name_the_bad_line(tmp_path: Path, line: str, message: str) -> None:
    log = JsonlLog(tmp_path / "log.jsonl")
    log.path.write_text(f'{{"a": 1}}\n{line}\n')
    with pytest.raises(JsonlError, match=rf"log\.jsonl:2: .*{message}"):
        log.rows()


def test_numbers_that_json_lacks_are_refused(tmp_path: Path) -> None:
    log = JsonlLog(tmp_path / "log.jsonl")
    with pytest.raises(ValueError, match="not JSON compliant"):
        log.append({"a": float("nan")})
    assert not log.path.exists()


def test_a_log_is_cut_to_whole_lines(tmp_path: Path) -> None:
    log = JsonlLog(tmp_path / "log.jsonl")
    log.truncate(100)
    assert log.path.read_bytes() == b""
    log.append({"a": 1})
    size = log.size()
    log.append({"b": 2})
    log.truncate(1000)
    assert len(log.rows()) == 2
    log.truncate(size + 3)
    assert log.rows() == [{"a": 1}]
    assert log.size() == size
    log.truncate(size - 1)
    assert log.rows() == []


def test_several_writers_lose_nothing(tmp_path: Path) -> None:
    def write(number: int) -> None:
        JsonlLog(tmp_path / "log.jsonl").append({"number": number, "text": "x" * 5000})

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(60)))
    found = [row["number"] for row in JsonlLog(tmp_path / "log.jsonl").rows()]
    assert sorted(found) == list(range(60))


def test_a_full_disk_leaves_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = JsonlLog(tmp_path / "log.jsonl")
    log.append({"a": 1})

    class FullFile(io.FileIO):
        def write(self, data: bytes | memoryview, /) -> int:  # type: ignore[override]
            if len(data) < 20:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return super().write(data[:10])

    opened = lambda path, *_, **__: FullFile(path, "a+")  # noqa: E731
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", opened)
        with pytest.raises(OSError, match="No space left"):
            log.append({"b": "x" * 50})
    assert [json.loads(line) for line in log.path.read_text().splitlines()] == [{"a": 1}]
