"""The report on data files."""

import pytest

from bcrf.tagger.data import DataError, read
from bcrf.tagger.tasks import check, check_gold_labels, fit
from bcrf.tagger.tasks.scheme_detection import describe_violation
from tests.tagger.test_tasks_pos import TEXT, conllu


def write(folder, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_check_counts_and_finds_overlap(tmp_path):
    train = write(tmp_path, "train.conllu", TEXT + conllu("The/DET/DT cat/NOUN/NN"))
    dev = write(tmp_path, "dev.conllu", conllu("Stop/VERB/VB", "cat/NOUN/NN"))
    report = check([train, dev])
    assert report.ok
    first = report.files[0]
    assert (first.path, first.format) == (train, "conllu")
    assert (first.sentences, first.empty, first.repeated) == (3, 0, 1)
    assert (first.words, first.distinct_words, first.longest) == (5, 3, 2)
    assert first.tags == {"DET": 2, "NOUN": 2, "VERB": 1}
    (overlap,) = report.overlaps
    assert (overlap.first, overlap.second) == (train, dev)
    assert (overlap.sentences, overlap.share) == (1, 0.5)
    assert check([train], column="xpos").files[0].tags == {"DT": 2, "NN": 2, "VB": 1}


def problems(path: str, *args, **settings) -> list[str]:
    report = check([path], *args, **settings)
    assert report.ok == (not report.files[0].problems)
    return [f"{problem.line}: {problem.message}" for problem in report.files[0].problems]


def test_check_names_every_problem_by_line(tmp_path):
    text = conllu("a/NOUN/N b/CONJ/C", "c/_/C") + "1\tbroken\n\n" + conllu("d/NOUN/N e/NN/N")
    found = problems(write(tmp_path, "a.conllu", text))
    assert found == [
        "2: 'CONJ' is not a universal part-of-speech tag (upos)",
        "4: the word has no upos: found '_'",
        "6: found 2 tab-separated columns; expected 10",
        "9: 'NN' is not a universal part-of-speech tag (upos)",
    ]
    mismatch = write(tmp_path, "b.conllu", "# text = ac\n" + conllu("a/NOUN/N b/NOUN/N"))
    assert problems(mismatch) == []
    assert problems(mismatch, "segmentation") == ["3: expected the word 'b' in the text, found 'c'"]


def test_tags_of_column_files_need_not_be_universal(tmp_path):
    path = write(tmp_path, "a.tsv", "the\tDT\ncat\tNN\n")
    assert problems(path) == []
    assert check([path]).files[0].tags == {"DT": 1, "NN": 1}


def test_check_of_mentions(tmp_path):
    path = write(tmp_path, "a.conll", "a I-X\nb B-X\n\nc I-X\n\nd B-X\n\ne ?\n\nf X\n\ng O\n")
    report = check([path], "ner").files[0]
    assert report.scheme == "IOB1"
    assert report.tags == {"I-X": 2, "B-X": 2, "?": 1, "O": 1}
    assert [problem.line for problem in report.problems] == [6, 10]
    assert "'B-X' as the only label of a sentence" in str(report.problems[0])


@pytest.mark.parametrize(
    ("labels", "found"),
    [
        (["I-X"], "'I-X' as the only label of a sentence is"),
        (["I-X", "O"], "'I-X' at the start of a sentence is"),
        (["O", "I-X"], "'I-X' after 'O' and at the end of the sentence is"),
    ],
)
def test_messages_about_ill_formed_labels(labels, found):
    message = describe_violation(labels, labels.index("I-X"), "IOB2")
    assert message == f"{found} ill-formed in IOB2, the scheme that fits the file best"


def test_check_of_files_that_cannot_be_read(tmp_path):
    assert problems(str(tmp_path / "nowhere")) == [
        "None: cannot be read: No such file or directory"
    ]
    path = tmp_path / "latin.txt"
    path.write_bytes(b"abc\nd\xe9f\n")
    assert "2: expected UTF-8, found byte 0xE9 at offset 5" in problems(str(path))[-1]
    assert problems(write(tmp_path, "raw.txt", "just text\n")) == [
        "None: is raw text and has no upos tags"
    ]
    empty = check([write(tmp_path, "empty.conllu", "")])
    assert empty.ok
    assert empty.files[0].format is None
    with pytest.raises(
        ValueError, match="task must be one of pos, segmentation, ner, tokenization, got 'x'"
    ):
        check([], "x")


def test_gold_labels_that_a_model_does_not_know_are_named(tmp_path):
    train = list(read(write(tmp_path, "train.conll", "a B-X\nb O\n")))
    task = fit("ner", train)

    def warning(text: str) -> str | None:
        path = write(tmp_path, "dev.conll", text)
        return check_gold_labels(task, task.annotated(list(read(path))), "dev")

    assert warning("a B-X\n\nb O\n") is None
    for file, found in (
        ("a O\nb O\n", r"the only tag is O (2)"),
        ("a ?\n", "the words have no tags"),
    ):
        assert warning(file) == (
            f"dev: has no mentions, so precision, recall and F1 are 0; {found}; expected tags such "
            "as B-PER (in CoNLL-U: NER=B-PER in the column MISC)"
        )
    assert warning("a O\nb B-X|O\n") is None
    assert warning("a B-X\nb B-Y\n\nc B-Y\nd B-Z\n") == (
        "dev: the model does not know the tags B-Y (2), B-Z (1); words with these tags "
        "count as errors"
    )
    with pytest.raises(
        DataError, match=r"dev: the model does not know the tag B-Y \(1\); it knows"
    ):
        warning("a B-Y\nb O\n")
    many = "".join(f"w B-T{i}\n" for i in range(12))
    with pytest.raises(DataError, match=r"B-T9 \(1\) and 2 more; it knows O, B-X, I-X; check that"):
        warning(many)
    large = fit("ner", list(read(write(tmp_path, "large.conll", many))))
    other = large.annotated(list(read(write(tmp_path, "other.conll", "a B-Z\n"))))
    with pytest.raises(DataError, match=r"it knows O, .*, \S+ and \d+ more; check that"):
        check_gold_labels(large, other, "dev")
    assert warning("a B-X\nb B-Y\nc B-Y\n") == (
        "dev: the model does not know the tag B-Y (2); words with this tag count as errors"
    )
    with pytest.raises(DataError, match="dev: has no words; expected annotated sentences"):
        warning("\n")
