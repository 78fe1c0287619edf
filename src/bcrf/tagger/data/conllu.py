"""CoNLL-U: ten columns, comments, multiword tokens, empty nodes.

Lines are kept as they were read, and writing a tag replaces one field. A parser that rebuilds lines
(such as the package conllu) loses bytes: line ends, white space in comments, repeated keys of MISC.
See https://universaldependencies.org/format.html.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from .conllu_fields import WordIds, get_misc, get_space, set_misc, set_space
from .lines import Block, DataError, content, ending, split_blocks
from .sentence import Entity, Format, Sentence, Token, Word, check_fields

__all__ = ["ConlluFormat"]

COLUMNS = 10
ID, FORM, UPOS, XPOS, MISC = 0, 1, 3, 4, 9

_TEXT = "# text ="
_PARAGRAPH = re.compile(r"#\s*(newpar|newdoc)\b")
_LINE_ENDS = re.compile(r"[\r\n]+")


class ConlluFormat(Format):
    """Reads and writes CoNLL-U. Mentions are in MISC, as `NER=B-PER`; a word without it has O."""

    name = "conllu"

    def sentences(self, lines: Iterable[str], path: str) -> Iterator[Sentence | DataError]:
        for block in split_blocks(lines, path, lambda line: not content(line)):
            try:
                yield self._parse(block)
            except DataError as error:
                yield error

    def tags(self, sentence: Sentence, column: str) -> list[str]:
        if column == "ner":
            return [get_misc(misc, "NER") or "O" for misc in _fields(sentence, MISC)]
        return _fields(sentence, UPOS if column == "upos" else XPOS)

    def spaces(self, sentence: Sentence) -> list[str] | None:
        miscs = _fields(sentence, MISC)
        # Without a text line and without SpaceAfter, we do not know where the spaces are: converted
        # corpora lack both, also in languages that are written without spaces.
        if sentence.text is None and not any("Space" in misc for misc in miscs):
            return None
        return [get_space(misc) for misc in miscs]

    def tokens(self, sentence: Sentence) -> list[Token]:
        rows = [
            line.split("\t") for line in map(content, sentence.block.lines) if line[:1].isdigit()
        ]
        is_known = sentence.text is not None or any("Space" in fields[MISC] for fields in rows)
        tokens: list[Token] = []
        covered = 0  # number of the last word of `tokens`
        for fields in rows:
            first, _, last = fields[ID].partition("-")
            if "." in first or int(first) <= covered:  # an empty node, or within a multiword token
                continue
            covered = int(last or first)
            words = sentence.words[int(first) - 1 : covered]
            space = get_space(fields[MISC]) if is_known else None
            tokens.append(Token(fields[FORM], words, space))
        return tokens

    def starts_paragraph(self, sentence: Sentence) -> bool:
        return any(map(_PARAGRAPH.match, map(content, sentence.block.lines)))

    def fill_lines(
        self,
        sentence: Sentence,
        tags: Sequence[str],
        column: str,
        probabilities: Sequence[float] | None = None,
        entities: Sequence[Entity] | None = None,
    ) -> Iterator[str]:
        lines, done = sentence.block.lines, 0
        for position, (row, tag) in enumerate(zip(sentence.rows, tags, strict=True)):
            yield from lines[done:row]
            end = ending(lines[row])
            fields = lines[row].removesuffix(end).split("\t")
            _set_tag(fields, column, tag, probabilities[position] if probabilities else None)
            yield "\t".join(fields) + end
            done = row + 1
        yield from lines[done:]

    def compose_lines(
        self,
        words: Sequence[Word],
        column: str,
        text: str | None = None,
        offset: int | None = None,
        entities: Sequence[Entity] | None = None,
    ) -> Iterator[str]:
        # An empty sentence gets a text line; otherwise it would disappear from the file. A text
        # from JSON may have several lines, but a comment is a single line.
        line = _LINE_ENDS.sub(" ", (text or "").strip())
        comment = f"{_TEXT} {line}".rstrip() + "\n"
        comments = [comment] if text is not None or not words else []
        return chain(comments, _rows(words, column))

    def rewrite_lines(
        self, sentence: Sentence, words: Sequence[Word], column: str, text: str | None = None
    ) -> Iterator[str]:
        lines = map(content, sentence.block.lines)
        comments = (line + "\n" for line in lines if line.startswith("#"))
        if sentence.text is None:
            return chain(comments, self.compose_lines(words, column, text))
        return chain(comments, _rows(words, column))

    def _parse(self, block: Block) -> Sentence:
        words: list[str] = []
        rows = array("q")
        text = None
        ids = WordIds()
        started = False
        for row, raw in enumerate(block.lines):
            line = content(raw)
            if not line:
                continue
            if line[0] == "#":
                if started:
                    raise block.error(
                        row, "found a comment inside a sentence; expected an empty line before it"
                    )
                if text is None and line.startswith(_TEXT):
                    text = line[len(_TEXT) :].removeprefix(" ")
                continue
            started = True
            fields = line.split("\t")
            if len(fields) != COLUMNS:
                raise block.error(row, _wrong_count(line, len(fields)))
            ids.take(fields[ID], block, row)
            if not fields[FORM]:
                raise block.error(row, "the form (column 2) is empty; expected a word")
            if ids.at_word:
                words.append(fields[FORM])
                rows.append(row)
        ids.finish(block)
        return Sentence(tuple(words), rows, block, self, text)


def _fields(sentence: Sentence, column: int) -> list[str]:
    """Return the field of each word in one column."""
    lines = sentence.block.lines
    return [content(lines[row]).split("\t")[column] for row in sentence.rows]


def _rows(words: Sequence[Word], column: str) -> Iterator[str]:
    """Yield the lines of new words, and an empty line.

    Raises ValueError before the first line is yielded if a word cannot be written.
    """
    check_fields(words, "\t\r\n", "CoNLL-U")
    return _composed(words, column)


def _composed(words: Sequence[Word], column: str) -> Iterator[str]:
    for number, word in enumerate(words, start=1):
        fields = [str(number), word.form, *["_"] * (COLUMNS - 2)]
        # White space after the last word does not belong to the sentence.
        if word.space is not None and number < len(words):
            fields[MISC] = set_space(fields[MISC], word.space)
        _set_tag(fields, column, word.tag, word.probability)
        yield "\t".join(fields) + "\n"
    yield "\n"


def _set_tag(fields: list[str], column: str, tag: str | None, probability: float | None) -> None:
    if tag is None:
        return
    if column != "ner":
        fields[UPOS if column == "upos" else XPOS] = tag
    elif tag != "O" or get_misc(fields[MISC], "NER"):
        fields[MISC] = set_misc(fields[MISC], "NER", tag)
    if probability is not None:
        fields[MISC] = set_misc(fields[MISC], "Prob", f"{probability:.4f}")


def _wrong_count(line: str, found: int) -> str:
    hint = ""
    if not line.strip():
        hint = "; an empty line must not contain white space"
    elif found == 1:
        hint = "; if the file is not CoNLL-U, name its format (--format)"
    return f"found {found} tab-separated columns; expected {COLUMNS}{hint}"
