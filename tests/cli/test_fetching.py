"""Fetching treebanks from a local test server and from folders."""

from __future__ import annotations

import hashlib
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from bcrf.cli import main
from bcrf.tagger.fetching import TREEBANKS, FetchError, cache_folder, fetch_treebank
from tests.serving import Server, conllu, running, serve


@pytest.fixture
def server() -> Iterator[Server]:
    with running() as server:
        yield server


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("BCRF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "*")
    return tmp_path / "cache"


def ranges(server: Server) -> list[str | None]:
    return [wanted for path, wanted in server.log if path.endswith("train.conllu")]


def break_download(server: Server, after: int, message: str = "broke") -> None:
    """Fetch a treebank while the server ends each answer after this number of bytes."""
    server.break_after = after
    with pytest.raises(FetchError, match=message):
        fetch_treebank("xx_toy", server.url)
    server.break_after = None


def test_existing_splits_are_fetched_and_cached(server, cache):
    serve(server, train=conllu("a"), test=conllu("b"))
    treebank = fetch_treebank("xx_toy", server.url)
    assert treebank.fetched
    assert treebank.source == server.url
    assert {split: path.read_bytes() for split, path in treebank.files.items()} == {
        "train": conllu("a"),
        "test": conllu("b"),
    }
    folder = treebank.files["train"].parent
    assert folder.is_relative_to(cache)
    sums = f"{hashlib.sha256(conllu('b')).hexdigest()}  xx_toy-ud-test.conllu\n"
    assert sums in (folder / "SHA256SUMS").read_text()
    assert not list(folder.glob("*.part*"))

    server.log.clear()
    again = fetch_treebank("xx_toy", server.url)
    assert again == type(again)("xx_toy", treebank.files, server.url, fetched=False)
    assert server.log == []


def test_an_interrupted_download_is_resumed(server):
    content = conllu("word", 5000)
    serve(server, train=content)
    break_download(server, 100_000, f"broke after 100000 of {len(content)} bytes; run the")
    treebank = fetch_treebank("xx_toy", server.url)
    assert treebank.files["train"].read_bytes() == content
    assert ranges(server) == [None, "bytes=100000-"]
    assert not list(treebank.files["train"].parent.glob("*.part*"))


@pytest.mark.parametrize("trait", ["ranges", "validators"])
def test_a_server_without_ranges_or_validators_sends_the_whole_file_again(server, trait):
    setattr(server, trait, False)
    content = conllu("word", 5000)
    serve(server, train=content)
    break_download(server, 100_000)
    assert fetch_treebank("xx_toy", server.url).files["train"].read_bytes() == content
    assert ranges(server) == [None, "bytes=100000-" if trait == "ranges" else None]


def test_a_partial_download_is_not_completed_from_another_version(server):
    serve(server, train=conllu("old", 5000))
    break_download(server, 100_000)
    serve(server, train=conllu("new", 5000))
    treebank = fetch_treebank("xx_toy", server.url)
    assert treebank.files["train"].read_bytes() == conllu("new", 5000)


def test_a_partial_download_longer_than_the_file_is_discarded(server, cache):
    serve(server, train=conllu("word"))
    break_download(server, 10)
    (part,) = cache.rglob("*.part")
    part.write_bytes(conllu("word") + b"more")
    assert fetch_treebank("xx_toy", server.url).files["train"].read_bytes() == conllu("word")


def test_a_truncated_download_note_restarts_the_download(server, cache):
    serve(server, train=conllu("word"))
    break_download(server, 10)
    (note,) = cache.rglob("*.part.json")
    note.write_text('{"url": ')
    assert fetch_treebank("xx_toy", server.url).files["train"].read_bytes() == conllu("word")
    assert ranges(server) == [None, None]


@pytest.mark.parametrize("beside", ["SHA256SUMS", "xx_toy-ud-train.conllu.sha256"])
def test_downloads_are_verified_with_the_checksum_file_of_the_server(server, cache, beside):
    serve(server, train=conllu("a"))
    line = "{}  xx_toy-ud-train.conllu\n"
    server.files[f"/xx_toy/{beside}"] = line.format("0" * 64).encode()
    with pytest.raises(FetchError, match="the checksum file beside it says 0000"):
        fetch_treebank("xx_toy", server.url)
    assert not list(cache.rglob("*.conllu"))
    assert not list(cache.rglob("*.part"))
    digest = hashlib.sha256(conllu("a")).hexdigest()
    server.files[f"/xx_toy/{beside}"] = line.format(digest.upper()).encode()
    assert fetch_treebank("xx_toy", server.url).fetched
    server.files[f"/xx_toy/{beside}"] = b"nonsense\n"
    with pytest.raises(FetchError, match=f"{beside}:1: expected '<SHA-256 in hexadecimal>"):
        fetch_treebank("xx_toy", server.url, refresh=True)


def test_later_downloads_must_equal_the_first(server):
    serve(server, train=conllu("a"))
    path = fetch_treebank("xx_toy", server.url).files["train"]
    serve(server, train=conllu("b"))
    with pytest.raises(FetchError, match=r"that of its first download was .*; delete .*xx_toy"):
        fetch_treebank("xx_toy", server.url, refresh=True)
    assert path.read_bytes() == conllu("a")
    serve(server, train=conllu("a"))
    assert fetch_treebank("xx_toy", server.url, refresh=True).fetched


def test_changed_and_removed_cache_files_are_errors(server):
    serve(server, train=conllu("a"))
    path = fetch_treebank("xx_toy", server.url).files["train"]
    path.write_bytes(conllu("b"))
    with pytest.raises(FetchError, match=r"train.conllu was changed since it was fetched"):
        fetch_treebank("xx_toy", server.url)
    path.unlink()
    with pytest.raises(FetchError, match=r"train\.conllu was removed since it was fetched"):
        fetch_treebank("xx_toy", server.url)
    assert fetch_treebank("xx_toy", server.url, refresh=True).files["train"] == path
    assert path.read_bytes() == conllu("a")


def test_complete_files_of_an_interrupted_fetch_are_not_fetched_again(server):
    serve(server, train=conllu("a"), dev=conllu("word", 5000))
    break_download(server, 100_000, r"dev\.conllu: the connection broke")
    server.log.clear()
    assert set(fetch_treebank("xx_toy", server.url).files) == {"train", "dev"}
    assert ranges(server) == []


def test_files_that_are_not_conllu_are_refused(server, cache):
    serve(server, train=b"<html>please log in</html>\n")
    with pytest.raises(FetchError, match=r"not CoNLL-U: http.*train.conllu:1: found 1 tab"):
        fetch_treebank("xx_toy", server.url)
    assert not list(cache.rglob("*.conllu"))


def test_errors_of_unreachable_sources(server):
    with pytest.raises(FetchError, match=r"has no treebank xx_toy: there is no file xx_toy/xx_"):
        fetch_treebank("xx_toy", server.url)
    server.status = 503
    with pytest.raises(FetchError, match=r"train.conllu: the server answered 503 Service Unav"):
        fetch_treebank("xx_toy", server.url)
    with pytest.raises(FetchError, match=r"cannot reach 127.0.0.1:9: .*refused.*\(--from FOLDER"):
        fetch_treebank("xx_toy", "http://127.0.0.1:9")


@pytest.mark.parametrize("layout", ["en_ewt", "UD_English-EWT", ""])
def test_folders_are_sources_too(tmp_path, layout):
    folder = tmp_path / "mirror" / layout
    folder.mkdir(parents=True)
    (folder / "en_ewt-ud-dev.conllu").write_bytes(conllu("a"))
    treebank = fetch_treebank("en_ewt", tmp_path / "mirror", tmp_path / "here")
    assert treebank.files == {"dev": tmp_path / "here" / "en_ewt" / "en_ewt-ud-dev.conllu"}
    assert treebank.files["dev"].read_bytes() == conllu("a")
    (folder / "SHA256SUMS").write_text(f"{'1' * 64} *en_ewt-ud-dev.conllu\n")
    with pytest.raises(FetchError, match="checksum file beside it says 1111"):
        fetch_treebank("en_ewt", tmp_path / "mirror", tmp_path / "there")


def test_each_source_has_its_own_folder(server, tmp_path):
    serve(server, train=conllu("a"))
    (tmp_path / "xx_toy-ud-train.conllu").write_bytes(conllu("b"))
    first = fetch_treebank("xx_toy", server.url).files["train"]
    second = fetch_treebank("xx_toy", tmp_path).files["train"]
    assert (first.read_bytes(), second.read_bytes()) == (conllu("a"), conllu("b"))


def test_unknown_treebanks_and_sources_are_errors(tmp_path):
    with pytest.raises(FetchError, match=r"unknown treebank 'en_ewd'; did you mean en_ewt"):
        fetch_treebank("en_ewd")
    with pytest.raises(
        FetchError, match=r"'\.\./x' is not the name of a treebank; expected one such as"
    ):
        fetch_treebank("../x", tmp_path)
    with pytest.raises(FetchError, match=r"nowhere is neither a folder nor an address that starts"):
        fetch_treebank("en_ewt", "nowhere")
    assert TREEBANKS["nl_lassysmall"] == "UD_Dutch-LassySmall"
    assert TREEBANKS["lzh_kyoto"] == "UD_Classical_Chinese-Kyoto"


def test_environment_variables_set_the_cache_folder(monkeypatch):
    assert cache_folder().name == "cache"
    monkeypatch.delenv("BCRF_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    assert cache_folder() == Path("/elsewhere/bcrf")


def test_concurrent_fetches_wait_for_each_other(server, cache):
    """All start with an empty cache; the first one fetches, the others find its files."""
    serve(server, train=conllu("word", 5000))
    results = []
    threads = [
        threading.Thread(target=lambda: results.append(fetch_treebank("xx_toy", server.url)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(result.fetched for result in results) == [False, False, False, True]


def test_a_missing_package_is_named_with_the_command_that_installs_it(server, monkeypatch, capsys):
    serve(server, train=conllu("a"))
    monkeypatch.setitem(sys.modules, "pooch", None)
    assert main(["data", "xx_toy", "--from", server.url]) == 1
    assert "needs the package pooch: pip install '.[cli]'" in capsys.readouterr().err


def test_progress_is_reported(server):
    content = conllu("word", 5000)
    serve(server, train=content)
    told = []
    fetch_treebank("xx_toy", server.url, progress=lambda *event: told.append(event))
    assert told[-1] == ("xx_toy-ud-train.conllu", len(content), len(content))
    assert [done for _, done, _ in told] == sorted({done for _, done, _ in told})
