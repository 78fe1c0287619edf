"""Folders that are replaced while other processes write and read them; lock files."""

from __future__ import annotations

import errno
import itertools
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from bcrf.tagger import ModelError, Tagger
from bcrf.tagger.files import (
    LockHeldError,
    atomic_folder,
    current_path,
    hold_lock,
    read_consistently,
    recover,
    remove_folder,
    replace_folder,
    report_write_errors,
)
from bcrf.tagger.model_folder.tensors import load_tensors, save_tensors
from tests.tagger_cases import trained, weights_equal

ROOT = Path(__file__).resolve().parents[2]
POSIX = pytest.mark.skipif(os.name != "posix", reason="needs POSIX")


def fill(folder: Path, text: str) -> None:
    """Replace a folder by one with two files that hold the same text."""
    with replace_folder(folder) as fresh:
        for name in ("one", "two"):
            (fresh / name).write_text(text)


@pytest.fixture(params=["in one step", "by two renames"])
def swap(request, monkeypatch) -> str:
    if request.param == "by two renames":
        monkeypatch.setattr(atomic_folder, "_exchange", lambda one, other: False)
    return request.param


# -------------------------------------------------------------------------------------------- locks


def test_a_held_lock_is_an_error_that_names_the_holder(tmp_path):
    path = tmp_path / "lock"
    with hold_lock(path, wait=False):
        with pytest.raises(LockHeldError) as caught, hold_lock(path, wait=False):
            pass
        host = platform.node()
        expected = f"process {os.getpid()} on {host} since {time.strftime('%Y-', time.gmtime())}"
        assert caught.value.holder.startswith(expected)
        assert caught.value.holder.endswith(" UTC")
        path.write_text("")  # as it is between locking and writing the description
        with (
            pytest.raises(LockHeldError, match="held by another process"),
            hold_lock(path, wait=False),
        ):
            pass
    assert not list(tmp_path.iterdir())


def test_threads_hold_the_lock_one_after_the_other(tmp_path):
    inside, most = 0, 0

    def work(_: int) -> None:
        nonlocal inside, most
        with hold_lock(tmp_path / "lock", wait=True):
            inside += 1
            most = max(most, inside)
            time.sleep(0.001)
            inside -= 1

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(60)))
    assert (inside, most) == (0, 1)
    assert not list(tmp_path.iterdir())


KILLED_HOLDER = """
import os, signal, sys
from pathlib import Path
from bcrf.tagger.files import hold_lock

with hold_lock(Path(sys.argv[1]), wait=False):
    os.kill(os.getpid(), signal.SIGKILL)
"""


@POSIX
def test_a_killed_process_holds_no_lock(tmp_path):
    path = tmp_path / "lock"
    done = subprocess.run([sys.executable, "-c", KILLED_HOLDER, str(path)], cwd=ROOT)
    assert done.returncode == -signal.SIGKILL
    assert json.loads(path.read_text())["process"] != os.getpid()
    with hold_lock(path, wait=False):
        assert json.loads(path.read_text())["process"] == os.getpid()
    assert not path.exists()


# -------------------------------------------------------------------------- replacing, removing


def test_several_threads_may_replace_one_folder(tmp_path, swap):
    folder = tmp_path / "folder"
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda number: fill(folder, str(number)), range(40)))
    assert (folder / "one").read_text() == (folder / "two").read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_a_failed_rename_loses_nothing(tmp_path, monkeypatch):
    folder = tmp_path / "folder"
    fill(folder, "old")
    rename = os.rename

    def fail(source: Path, target: Path) -> None:
        if Path(target) == folder and Path(source).parent != tmp_path:
            raise OSError(errno.EIO, "Input/output error")
        rename(source, target)

    monkeypatch.setattr(atomic_folder, "_exchange", lambda one, other: False)
    monkeypatch.setattr(os, "rename", fail)
    with pytest.raises(OSError, match="Input/output"):
        fill(folder, "new")
    assert (folder / "one").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_file_systems_without_exchange_use_two_renames(tmp_path, monkeypatch):
    """On NFS, for example, the C library has renameat2, but the call fails with EINVAL."""
    import ctypes

    def refuse(*_: object) -> int:
        ctypes.set_errno(number)
        return -1

    monkeypatch.setattr(atomic_folder, "_renameat2", lambda: refuse)
    fill(tmp_path / "folder", "old")
    number = errno.EINVAL
    fill(tmp_path / "folder", "new")
    assert (tmp_path / "folder" / "one").read_text() == "new"
    number = errno.EIO
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        fill(tmp_path / "folder", "newer")
    assert (tmp_path / "folder" / "one").read_text() == "new"


def test_removing_folders(tmp_path):
    fill(tmp_path / "folder", "old")
    (tmp_path / "folder").rename(tmp_path / ".folder.old")
    remove_folder(tmp_path / "folder")
    remove_folder(tmp_path / "folder")  # it is already removed
    remove_folder(tmp_path / "no" / "folder")
    recover(tmp_path / "no" / "folder")
    assert not list(tmp_path.iterdir())


def test_system_errors_get_the_path_and_the_remedy(tmp_path):
    for error in (
        OSError(errno.ENOSPC, "No space left on device", "some file"),
        Exception(
            "No space left on device (os error 28)"
        ),  # as libraries written in Rust report it
    ):
        message = "cannot do it: No space left on device; wait"
        reporting = report_write_errors(tmp_path, "cannot do it", "wait")
        with pytest.raises(OSError, match=message) as caught, reporting:
            raise error
        assert caught.value.filename == str(tmp_path)
        assert caught.value.errno == errno.ENOSPC
    for other in (FileExistsError("it is there"), ValueError("so")):
        reporting = report_write_errors(tmp_path, "cannot do it", "wait")
        with pytest.raises(type(other), match=str(other)), reporting:
            raise other


# ------------------------------------------------------------------------------------------ reading


def read_both(folder: Path) -> tuple[str, str]:
    return (folder / "one").read_text(), (folder / "two").read_text()


def interrupted_reader(between: Callable[[], None]) -> Callable[[Path], tuple[str, str]]:
    """Return a reader that calls `between` once, after the first of the two files."""
    pending = [between]

    def read(folder: Path) -> tuple[str, str]:
        one = (folder / "one").read_text()
        if pending:
            pending.pop()()
        return one, (folder / "two").read_text()

    return read


def test_a_mixture_of_old_and_new_files_is_read_again(tmp_path, swap):
    folder = tmp_path / "folder"
    fill(folder, "old")
    read = interrupted_reader(lambda: fill(folder, "new"))
    assert read(folder) == ("old", "new")  # a mixture
    read = interrupted_reader(lambda: fill(folder, "newer"))
    assert read_consistently(lambda: current_path(folder), read) == ("newer", "newer")


def test_read_errors_are_raised_if_the_folder_was_not_replaced(tmp_path):
    folder = tmp_path / "folder"
    fill(folder, "old")
    calls = []

    def fail(path: Path) -> None:
        calls.append(path)
        raise ModelError("damaged")

    with pytest.raises(ModelError, match="damaged"):
        read_consistently(lambda: folder, fail)
    assert len(calls) == 1

    def replaced(path: Path) -> str:
        calls.append(path)
        if len(calls) < 5:
            fill(folder, "new")
            raise ModelError("damaged")
        return "read"

    assert read_consistently(lambda: folder, replaced) == "read"
    with pytest.raises(FileNotFoundError, match="nowhere"):
        read_consistently(lambda: tmp_path / "nowhere", read_both)


def test_a_folder_that_is_always_replaced_is_an_error(tmp_path):
    folder = tmp_path / "folder"
    fill(folder, "old")

    def replace_without_the_lock(_: Path) -> None:
        folder.rename(tmp_path / "old")
        folder.mkdir()
        shutil.rmtree(tmp_path / "old")

    with pytest.raises(OSError, match="was replaced during each of 100 attempts to read it"):
        read_consistently(lambda: folder, replace_without_the_lock)


def test_a_slow_reader_takes_the_lock_of_the_writers(tmp_path):
    folder = tmp_path / "folder"
    fill(folder, "0")
    done = threading.Event()

    def write() -> None:
        for number in itertools.count(1):
            if done.is_set():
                return
            fill(folder, str(number))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(3):
            one, two = read_consistently(lambda: current_path(folder), slow_reader(read_both))
            assert one == two
    finally:
        done.set()
        writer.join()


def slow_reader(read: Callable[[Path], tuple[str, str]]) -> Callable[[Path], tuple[str, str]]:
    """Return `read` with a pause, in which a writer replaces the folder several times."""

    def slow(folder: Path) -> tuple[str, str]:
        time.sleep(0.2)
        return read(folder)

    return slow


@POSIX
def test_a_new_folder_with_the_inode_number_of_the_old_one_is_recognized(tmp_path):
    """File systems give the inode number of a removed folder to the next one."""
    folder = tmp_path / "folder"
    fill(folder, "old")
    number = folder.stat().st_ino

    def replace_until_the_number_is_back() -> None:
        for _ in range(20):
            fill(folder, "new")
            if folder.stat().st_ino == number:
                return

    read = interrupted_reader(replace_until_the_number_is_back)
    assert read_consistently(lambda: folder, read) == ("new", "new")


@pytest.fixture(scope="module")
def taggers(tmp_path_factory) -> tuple[Tagger, Tagger]:
    return (
        trained(tmp_path_factory.mktemp("pos"), training={"epochs": 1}),
        trained(tmp_path_factory.mktemp("ner"), "ner", training={"epochs": 1}),
    )


def test_taggers_that_are_saved_and_loaded_at_the_same_time(taggers, tmp_path, swap):
    """This test uses threads; the campaign uses processes."""
    path = tmp_path / "model"
    taggers[0].save(path)
    done = threading.Event()
    failures: list[BaseException] = []

    def save(tagger: Tagger) -> None:
        try:
            for _ in range(25):
                tagger.save(path)
        except BaseException as error:
            failures.append(error)
        finally:
            done.set()

    threads = [threading.Thread(target=save, args=(tagger,)) for tagger in taggers]
    for thread in threads:
        thread.start()
    loads = 0
    while not done.is_set() or loads < 5:
        found = Tagger.load(path)
        (origin,) = [tagger for tagger in taggers if tagger.task == found.task]
        assert weights_equal(found, origin)
        loads += 1
    for thread in threads:
        thread.join()
    assert not failures
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]


# -------------------------------------------------------------------------------------------- files


@POSIX
def test_all_files_get_the_mode_of_the_umask(taggers, tmp_path):
    umask = os.umask(0o022)
    try:
        taggers[0].save(tmp_path / "model")
        os.umask(0o027)
        save_tensors(tmp_path / "tensors", {"a": torch.ones(2)})
    finally:
        os.umask(umask)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "model").iterdir()}
    assert modes == {"model.json": 0o644, "model.safetensors": 0o644}
    assert (tmp_path / "tensors").stat().st_mode & 0o777 == 0o640


def test_tensors_are_written_with_the_bytes_of_the_safetensors_package(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    dtypes = [torch.int64, torch.float64, torch.float32, torch.int32, torch.bfloat16]
    dtypes += [torch.float16, torch.int16, torch.int8, torch.uint8, torch.bool]
    tensors = {}
    for number, dtype in enumerate(dtypes):
        tensors[f"z.{number}"] = torch.randn(3, 2).mul(9).to(dtype)
        tensors[f'"é{number}'] = torch.ones((), dtype=dtype)
        tensors[f"none.{number}"] = torch.zeros(0, 4, dtype=dtype)
    save_tensors(tmp_path / "file", tensors)
    assert (tmp_path / "file").read_bytes() == safetensors.save(tensors)
    # Transposed tensors, slices, and two names of one tensor are written by their values.
    whole = torch.arange(12.0).reshape(3, 4)
    views = {"t": whole.T, "part": whole[1:, 2:], "whole": whole, "again": whole}
    save_tensors(tmp_path / "file", views)
    torch.testing.assert_close(load_tensors(tmp_path / "file"), views, rtol=0, atol=0)
    save_tensors(tmp_path / "file", {})
    assert load_tensors(tmp_path / "file") == {}
    with pytest.raises(TypeError, match=r"a: tensors of torch\.complex64 cannot be saved"):
        save_tensors(tmp_path / "file", {"a": torch.ones(1, dtype=torch.complex64)})


@pytest.mark.parametrize("part", ["weights", "encoder"])
def test_a_full_disk_is_an_error_of_one_line(taggers, tmp_path, monkeypatch, part):
    first, second = taggers
    first.save(tmp_path / "model")

    def full(*_: object) -> None:
        if part == "weights":
            raise OSError(errno.ENOSPC, "No space left on device")
        raise Exception(
            "No space left on device (os error 28)"
        )  # as the package tokenizers reports it

    name = {
        "weights": "bcrf.tagger.model_folder.description.save_tensors",
        "encoder": "bcrf.tagger.nn.TaggerModel.save_encoder",
    }
    monkeypatch.setattr(name[part], full)
    with pytest.raises(
        OSError, match="cannot save the model: No space left on device; the files that were"
    ) as caught:
        second.save(tmp_path / "model")
    assert caught.value.filename == str(tmp_path / "model")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert weights_equal(Tagger.load(tmp_path / "model"), first)
