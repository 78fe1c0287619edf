"""Raw text: one sentence, or document, per line. Words are separated by white space."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from .lines import BOM, Block, DataError, content
from .sentence import Entity, Format, Sentence, Word

__all__ = ["TextFormat"]


class TextFormat(Format):
    """Reads raw text. It cannot hold tags, so it is an input format only."""

    name = "text"

    @property
    def fills(self) -> bool:
        return False

    @property
    def composes(self) -> bool:
        return False

    def sentences(self, lines: Iterable[str], path: str) -> Iterator[Sentence | DataError]:
        end = 0  # of the lines before, without a byte order mark at the start of the file
        for number, line in enumerate(lines, start=1):
            text = content(line)
            words = tuple(text.split())
            begin = end + (line.startswith(BOM) and number > 1)
            block = Block(path, number, (line,))
            # Every word is in row 0; `bytes` stores these zeros with one byte per word.
            yield Sentence(words, bytes(len(words)), block, self, text, begin)
            end = begin + len(line.removeprefix(BOM))

    def tags(self, sentence: Sentence, column: str) -> list[str]:
        raise DataError(sentence.path, None, f"is raw text and has no {column} tags")

    def fill_lines(
        self,
        sentence: Sentence,
        tags: Sequence[str],
        column: str,
        probabilities: Sequence[float] | None = None,
        entities: Sequence[Entity] | None = None,
    ) -> Iterator[str]:
        raise ValueError("raw text cannot hold tags; write conllu, columns or jsonl")

    def compose_lines(
        self,
        words: Sequence[Word],
        column: str,
        text: str | None = None,
        offset: int | None = None,
        entities: Sequence[Entity] | None = None,
    ) -> Iterator[str]:
        raise ValueError("raw text cannot hold tags; write conllu, columns or jsonl")
