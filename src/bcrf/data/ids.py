"""The numbers that start the lines of CoNLL-U and UNER files."""

from __future__ import annotations

from .errors import shorten
from .lines import Block

__all__ = ["WordIds"]


class WordIds:
    """Checks the ids of one sentence: words 1, 2, ...; multiword tokens such as 3-4 before word 3;
    empty nodes such as 3.1, 3.2 after word 3.

    Attributes:
        at_word: whether the id taken last was that of a word.
    """

    def __init__(self) -> None:
        self.at_word = False
        self._word = 0
        self._empty = 0
        self._range_end = 0
        self._range_row = 0

    def take(self, text: str, block: Block, row: int) -> None:
        """The next id, of line `row`; an error if it is not one that may come next."""
        expected = self._word + 1
        self.at_word = text == str(expected)
        if self.at_word:
            self._word, self._empty = expected, 0
        elif text == f"{self._word}.{self._empty + 1}":
            self._empty += 1
        elif not self._takes_range(text, row):
            raise block.error(
                row,
                f"found id {shorten(text)}; expected {expected}, or the empty node "
                f"{self._word}.{self._empty + 1}, or a range from {expected} to a later word that "
                "overlaps no other",
            )

    def finish(self, block: Block) -> None:
        """An error if a multiword token has more words than the sentence."""
        if self._range_end > self._word:
            raise block.error(
                self._range_row,
                f"the multiword token ends at word {self._range_end}, "
                f"but the last word of the sentence is {self._word}",
            )

    def _takes_range(self, text: str, row: int) -> bool:
        first, _, last = text.partition("-")
        is_next = first == str(self._word + 1) and self._word >= self._range_end
        is_number = last.isascii() and last.isdigit() and len(last) < 10
        if not (is_next and is_number and int(last) > int(first)):
            return False
        self._range_end, self._range_row = int(last), row
        return True
