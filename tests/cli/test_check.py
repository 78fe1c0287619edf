"""`bcrf check`."""

from __future__ import annotations

from bcrf.cli import main
from tests.cli_cases import bcrf, conllu


def test_check_reports_files_and_overlap(tmp_path):
    train, dev = tmp_path / "train.conllu", tmp_path / "dev.conllu"
    train.write_text(conllu("the/DET cat/NOUN", "stop/VERB", "stop/VERB"))
    dev.write_text(conllu("stop/VERB", "dogs/NOUN"))
    report = bcrf("check", train, dev)
    assert report.stdout.splitlines() == [
        f"{train}: conllu; sentences: 3 (repeated: 1, empty: 0), "
        "words: 4 (distinct: 3, in the longest sentence: 2)",
        "  tags: VERB 2, DET 1, NOUN 1",
        f"{dev}: conllu; sentences: 2 (repeated: 0, empty: 0), "
        "words: 2 (distinct: 2, in the longest sentence: 1)",
        "  tags: VERB 1, NOUN 1",
        f"{dev}: 50.00 % of the sentences (1) are also in {train}",
    ]
    assert report.stderr == "2 files, no mistakes\n"


def test_check_fails_on_mistakes(tmp_path):
    file = tmp_path / "a.conllu"
    file.write_text(conllu("the/DET cat/NN", "a/DT") + "1\tbroken\n")
    report = bcrf("check", file, code=1)
    assert report.stdout.splitlines()[2:] == [
        f"{file}:2: 'NN' is not a universal part-of-speech tag (upos)",
        f"{file}:4: 'DT' is not a universal part-of-speech tag (upos)",
        f"{file}:6: found 2 tab-separated columns; expected 10",
    ]
    assert report.stderr == "1 file, 3 mistakes\n"


def test_check_of_mentions_prints_at_most_limit_mistakes(tmp_path, capsys):
    file = tmp_path / "a.conll"
    file.write_text("a O\nb I-PER\n\nc I-PER\n\nd B-PER\ne I-PER\n\n" * 2)
    assert main(["check", "--task", "ner", str(file), "--limit", "1"]) == 1
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith(f"{file}: columns, IOB")
    assert printed[-2].startswith(f"{file}:")
    assert printed[-1].endswith("more mistakes (--limit 0 prints all)")
    assert main(["check", "--task", "ner", str(file), "--limit", "0"]) == 1
    assert "--limit" not in capsys.readouterr().out


def test_check_reports_missing_files(tmp_path, capsys):
    empty = tmp_path / "empty.conllu"
    empty.write_text("")
    assert main(["check", str(empty)]) == 0
    assert capsys.readouterr().out == f"{empty}: no sentences\n"
    missing = tmp_path / "nowhere"
    assert main(["check", str(missing)]) == 1
    assert capsys.readouterr().out == f"{missing}: cannot be read: No such file or directory\n"
