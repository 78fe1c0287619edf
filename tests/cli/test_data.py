"""`bcrf data`, with a local test server."""

from __future__ import annotations

from pathlib import Path

import pytest

from bcrf.cli import main
from bcrf.tagger.fetching import DEFAULT_RELEASE
from tests.cli_cases import bcrf
from tests.serving import conllu, running, serve


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.setenv("BCRF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "*")
    with running() as server:
        yield server


def test_data_fetches_resumes_and_caches(server, tmp_path):
    content = conllu("word", 5000)
    serve(server, train=content, dev=conllu("b"))
    server.break_after = 100_000
    broken = bcrf("data", "xx_toy", "--from", server.url, code=1)
    assert broken.stdout == ""
    assert f"broke after 100000 of {len(content)} bytes; run the command again" in broken.stderr

    server.break_after = None
    fetched = bcrf("data", "xx_toy", "--from", server.url)
    assert fetched.stderr == (
        f"xx_toy: fetched from {server.url}, which has no test file\n"  # and no progress bar
    )
    paths = [Path(line) for line in fetched.stdout.splitlines()]
    assert [path.read_bytes() for path in paths] == [content, conllu("b")]
    assert paths[0].is_relative_to(tmp_path / "cache")
    assert ("/xx_toy/xx_toy-ud-train.conllu", "bytes=100000-") in server.log


def test_cached_data_need_no_connection(server, capsys):
    serve(server, train=conllu("a"))
    assert main(["data", "xx_toy", "--from", server.url]) == 0
    server.status = 500
    assert main(["data", "xx_toy", "--from", server.url]) == 0
    printed = capsys.readouterr()
    assert "already present, fetched earlier from" in printed.err
    assert len(set(printed.out.splitlines())) == 1
    assert main(["data", "xx_toy", "--from", server.url, "--refresh"]) == 1
    assert "the server answered 500" in capsys.readouterr().err


def test_error_without_a_connection(server):
    failed = bcrf("data", "xx_toy", "--from", "http://127.0.0.1:9", code=1)
    assert failed.stderr.startswith("bcrf: error: cannot reach 127.0.0.1:9: ")
    assert "(--from FOLDER)" in failed.stderr


def test_data_lists_and_checks_names(server, capsys):
    assert main(["data", "--list"]) == 0
    assert "en_ewt             UD_English-EWT\n" in capsys.readouterr().out
    assert main(["data", "en_ewd"]) == 1
    assert "did you mean en_ewt" in capsys.readouterr().err
    with pytest.raises(SystemExit) as exit:
        main(["data"])
    assert exit.value.code == 2
    assert "expected the name of a treebank, such as en_ewt, or --list" in capsys.readouterr().err


def test_help_names_the_default_release(capsys):
    with pytest.raises(SystemExit):
        main(["data", "--help"])
    assert f"default: {DEFAULT_RELEASE}," in capsys.readouterr().out


def test_data_copies_from_a_folder(server, tmp_path, capsys):
    (tmp_path / "xx_toy-ud-test.conllu").write_bytes(conllu("a"))
    assert main(["data", "xx_toy", "--from", str(tmp_path), "--to", str(tmp_path / "here")]) == 0
    assert capsys.readouterr().out == f"{tmp_path}/here/xx_toy/xx_toy-ud-test.conllu\n"
