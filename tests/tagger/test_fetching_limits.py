"""Hostile servers, source folders and cache folders: endless data, redirects, links, pipes."""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import repeat
from pathlib import Path

import pytest

from bcrf.cli import main
from bcrf.tagger.fetching import FetchError, download_limits, fetch_treebank
from bcrf.tagger.fetching.download import follow_redirect
from tests.serving import answering, conllu, running, serve

TRAIN = "xx_toy-ud-train.conllu"
posix = pytest.mark.skipif(os.name != "posix", reason="pipes and links of POSIX")


@pytest.fixture(autouse=True)
def surroundings(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("BCRF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "*")


def head(*headers: str, status: str = "200 OK") -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status}", *headers, "Connection: close", "", ""]).encode()


def train_only(*chunks: bytes, sums: Iterable[bytes] = (head(status="404 Not Found"),)):
    """Return the answers of a server: `chunks` for the training file, `sums` for other paths."""
    return lambda path: chunks if path.endswith(TRAIN) else sums


def folder_of(tmp_path: Path) -> Path:
    """Return the folder of the treebank below the folder that `--to` names."""
    folder = tmp_path / "to" / "xx_toy"
    folder.mkdir(parents=True)
    return folder


# --------------------------------------------------------------------------------------- too much


@pytest.mark.parametrize("length", ["abc", "-5", "1e3", "", "9" * 5000, "\u0663"])
def test_a_content_length_that_is_not_a_number_is_an_error(tmp_path, capsys, length):
    header = f"Content-Length: {length}".encode()
    answer = head().replace(b"\r\nConnection", b"\r\n" + header + b"\r\nConnection") + conllu("a")
    with answering(train_only(answer)) as url:
        assert main(["data", "xx_toy", "--from", url, "--to", str(tmp_path)]) == 1
    message = capsys.readouterr().err
    assert message.startswith(f"bcrf: error: {url}/xx_toy/{TRAIN}: the server sent Content-Length")
    assert message.count("\n") == 1
    assert "--from FOLDER" in message


def test_an_endless_checksum_file_is_an_error(monkeypatch):
    monkeypatch.setattr(download_limits, "MAX_SMALL_FILE", 10_000)
    file = conllu("a")

    def answer(path: str) -> Iterable[bytes]:
        if path.endswith(TRAIN):
            yield head(f"Content-Length: {len(file)}") + file
        else:
            yield head()
            yield from repeat(b"0" * 1000)

    with (
        answering(answer) as url,
        pytest.raises(FetchError, match=r"SHA256SUMS: has more than 10,000 bytes, the limit for a"),
    ):
        fetch_treebank("xx_toy", url)


def test_an_endless_download_stops(tmp_path, monkeypatch):
    monkeypatch.setattr(download_limits, "MAX_DOWNLOAD", 200_000)

    def endless(path: str) -> Iterable[bytes]:
        yield head()
        yield from repeat(b"x" * 1000)

    with (
        answering(endless) as url,
        pytest.raises(FetchError, match=r"has more than 200,000 bytes, the limit for a download"),
    ):
        fetch_treebank("xx_toy", url, tmp_path)
    assert not list(tmp_path.rglob("*.part"))


def test_a_download_with_a_too_large_content_length_is_not_started(tmp_path, monkeypatch):
    monkeypatch.setattr(download_limits, "MAX_DOWNLOAD", 200_000)
    with (
        answering(train_only(head("Content-Length: 200001"))) as url,
        pytest.raises(FetchError, match=r"has more than 200,000 bytes"),
    ):
        fetch_treebank("xx_toy", url, tmp_path)
    assert not list(tmp_path.rglob("*.part"))


def test_more_bytes_than_announced_are_refused(tmp_path):
    """The body is sent in chunks, so that Content-Length does not end it."""
    chunk = b"%x\r\n%s\r\n" % (len(conllu("a")), conllu("a"))
    headers = head("Content-Length: 10", "Transfer-Encoding: chunked")
    with (
        answering(train_only(headers, chunk, b"0\r\n\r\n")) as url,
        pytest.raises(FetchError, match=r"sends more than the 10 bytes that it announced; fetch"),
    ):
        fetch_treebank("xx_toy", url, tmp_path)
    assert not list(tmp_path.rglob("*.part"))


@posix
@pytest.mark.parametrize("name", [TRAIN, "SHA256SUMS"])
def test_a_pipe_in_a_source_folder_is_refused(tmp_path, name):
    source = tmp_path / "source"
    source.mkdir()
    (source / TRAIN).write_bytes(conllu("a"))
    (source / name).unlink(missing_ok=True)
    os.mkfifo(source / name)
    with pytest.raises(FetchError, match=rf"{name} is not a regular file"):
        fetch_treebank("xx_toy", source, tmp_path / "to")


@posix
def test_a_device_in_a_source_folder_is_refused(tmp_path):
    (tmp_path / TRAIN).symlink_to("/dev/zero")
    with pytest.raises(FetchError, match=rf"{TRAIN} is not a regular file"):
        fetch_treebank("xx_toy", tmp_path, tmp_path / "to")


@posix
def test_a_sparse_file_is_refused_by_its_size(tmp_path):
    for name, size in ((TRAIN, 1 << 40), ("SHA256SUMS", 1 << 40)):
        with (tmp_path / name).open("wb") as stream:
            stream.truncate(size)
        with pytest.raises(FetchError, match=rf"{name}.* (has more than|expected at most)"):
            fetch_treebank("xx_toy", tmp_path, tmp_path / "to")
        (tmp_path / TRAIN).write_bytes(conllu("a"))


# ------------------------------------------------------------------------------------ redirections


@pytest.mark.parametrize(
    "target", ["ftp://127.0.0.1/x", "file:///etc/passwd", "data:,x", "gopher://127.0.0.1/"]
)
def test_redirects_lead_to_http_only(target):
    found = head(f"Location: {target}", status="302 Found")
    with (
        answering(lambda path: [found]) as url,
        pytest.raises(FetchError, match=r"does not follow|not allowed"),
    ):
        fetch_treebank("xx_toy", url)


def test_redirects_by_http_are_followed(tmp_path):
    with running() as server:
        serve(server, train=conllu("a"))

        def answer(path: str) -> list[bytes]:
            return [head(f"Location: {server.url}{path}", status="301 Moved"), b"x" * 100]

        with answering(answer) as url:
            treebank = fetch_treebank("xx_toy", url, tmp_path)
    assert treebank.files["train"].read_bytes() == conllu("a")


def test_the_body_of_a_redirect_is_not_read(tmp_path):
    """The body of a redirect may be endless, and urllib would read all of it."""
    with running() as server:
        serve(server, train=conllu("a"))

        def answer(path: str) -> Iterable[bytes]:
            yield head(f"Location: {server.url}{path}", status="301 Moved")
            yield from repeat(b"x" * 1000)

        with answering(answer) as url:
            assert fetch_treebank("xx_toy", url, tmp_path).fetched


def test_redirects_from_https_to_http_are_refused():
    with pytest.raises(FetchError, match=r"redirects to 'http://host/b', which bcrf does not"):
        follow_redirect("https://host/a", "http://host/b")
    assert follow_redirect("https://host/a", "https://host/b") == "https://host/b"
    assert follow_redirect("https://host/a", "/b") == "https://host/b"
    assert follow_redirect("http://host/a", "https://host/b") == "https://host/b"


def test_circular_redirects_end():
    found = head("Location: /again", status="302 Found")
    with (
        answering(lambda path: [found]) as url,
        pytest.raises(FetchError, match=r"the server answered 302 Found"),
    ):
        fetch_treebank("xx_toy", url)


def test_passwords_of_netrc_are_not_sent(tmp_path, monkeypatch):
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password secret")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    with running() as server:
        serve(server, train=conllu("a"))
        fetch_treebank("xx_toy", server.url, tmp_path / "to")
    assert server.headers_seen
    assert not any("Authorization" in headers for headers in server.headers_seen)


@pytest.mark.parametrize(
    "url", ["http://[::1", "http://127.0.0.1:9/\xe9", "http://127.0.0.1:9/\udcff"]
)
def test_invalid_addresses_are_errors(url, capsys):
    assert main(["data", "xx_toy", "--from", url]) == 1
    message = capsys.readouterr().err
    assert "is not a valid address" in message
    assert message.count("\n") == 1


def test_control_characters_of_a_server_do_not_reach_the_terminal():
    with (
        answering(lambda path: [b"HTTP/1.1 500 \x1b[31mred\r\n\r\n"]) as url,
        pytest.raises(FetchError, match=r"the server answered 500 \[31mred$"),
    ):
        fetch_treebank("xx_toy", url)


# ---------------------------------------------------------------------------------------- the cache


@posix
@pytest.mark.parametrize(
    "name", [f"{TRAIN}.part", f"{TRAIN}.part.json", f"{TRAIN}.new", "SHA256SUMS", "SOURCE", ".lock"]
)
@pytest.mark.parametrize("web", [True, False])
def test_links_in_the_cache_are_not_followed(tmp_path, name, web):
    if not web and name.endswith(".json"):
        pytest.skip("copies need no note")
    precious = tmp_path / "precious"
    precious.write_bytes(b"mine\n")
    (folder_of(tmp_path) / name).symlink_to(precious)
    (tmp_path / TRAIN).write_bytes(conllu("a"))
    with running() as server:
        serve(server, train=conllu("a"))
        source = server.url if web else tmp_path
        with pytest.raises(
            FetchError, match=rf"{name} is a symbolic link, which may lead anywhere"
        ):
            fetch_treebank("xx_toy", source, tmp_path / "to", refresh=True)
    assert precious.read_bytes() == b"mine\n"


@posix
def test_a_pipe_in_place_of_a_partial_download_is_refused(tmp_path):
    os.mkfifo(folder_of(tmp_path) / f"{TRAIN}.part")
    (tmp_path / TRAIN).write_bytes(conllu("a"))
    assert fetch_treebank("xx_toy", tmp_path, tmp_path / "to").fetched


@pytest.mark.parametrize(
    "note", [b"[" * 100_000, b'{"url": 3}', b"\xff", b'{"url": "URL", "validator": "a\\r\\nX: y"}']
)
def test_a_damaged_download_note_restarts_the_download(tmp_path, note):
    folder = folder_of(tmp_path)
    (folder / f"{TRAIN}.part").write_bytes(b"1\t")
    with running() as server:
        serve(server, train=conllu("a"))
        url = f"{server.url}/xx_toy/{TRAIN}".encode()
        (folder / f"{TRAIN}.part.json").write_bytes(note.replace(b"URL", url))
        treebank = fetch_treebank("xx_toy", server.url, tmp_path / "to")
    assert treebank.files["train"].read_bytes() == conllu("a")


def test_damaged_checksum_files_are_errors(tmp_path):
    (tmp_path / TRAIN).write_bytes(conllu("a"))
    fetch_treebank("xx_toy", tmp_path, tmp_path / "to")
    (tmp_path / "to" / "xx_toy" / "SHA256SUMS").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FetchError, match=r"SHA256SUMS:1: expected '<SHA-256"):
        fetch_treebank("xx_toy", tmp_path, tmp_path / "to")


@posix
def test_a_source_whose_path_is_not_utf8(tmp_path, capfd):
    source = Path(os.fsdecode(bytes(tmp_path) + b"/s\xff"))
    source.mkdir()
    (source / TRAIN).write_bytes(conllu("a"))
    for _ in range(2):
        assert main(["data", "xx_toy", "--from", str(source), "--to", str(tmp_path / "to")]) == 0
    assert r"already present, fetched earlier from" in capfd.readouterr().err
