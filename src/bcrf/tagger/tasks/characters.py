"""Kinds of characters: which labels of a tokenizer the text itself permits.

White space is never part of a word, except for a space within a word such as `10 000`, if words of
the training data have one. A combining mark, a variation selector, the modifier of an emoji and
what follows a zero-width joiner never begin a word. The first character of a text, and the first
one after an empty line, begin a sentence.
"""

from __future__ import annotations

import re
import unicodedata
from enum import IntEnum

__all__ = ["CharacterKind", "KindReader", "is_white_space", "with_plain_spaces"]

# Invisible characters between words for which `str.isspace` is false: zero-width space, word
# joiner, byte order mark. The zero-width (non-)joiners are parts of words.
_INVISIBLE_SPACE = "\u200b\u2060\ufeff"

_SPACE_RUN = re.compile(rf"[\s{_INVISIBLE_SPACE}]+")
_ODD_SPACE = re.compile(rf"[^\S\n]|[{_INVISIBLE_SPACE}]")
_JOINED = re.compile("(?<=\u200d).", re.DOTALL)


class CharacterKind(IntEnum):
    """What the text says about the label of a character."""

    LINE_SPACE = 0
    """White space that is never within a word: line ends, tabs, invisible spaces."""
    SPACE = 1
    """White space that may be within a word."""
    LETTER = 2
    """Any other character that may begin a word."""
    MARK = 3
    """A character that continues the word of the character before it."""
    FIRST = 4
    """The first character of a paragraph."""


def is_white_space(character: str) -> bool:
    """Return whether a character separates words: white space, or an invisible space."""
    return character.isspace() or character in _INVISIBLE_SPACE


def with_plain_spaces(text: str) -> str:
    """Return a text with a space in place of all white space except line feeds.

    The network reads this text: it has hardly seen tabs, carriage returns or invisible spaces.
    """
    return _ODD_SPACE.sub(" ", text)


class _Kinds(dict[str, int]):
    """The kind of each character, computed when it is first asked for."""

    def __missing__(self, character: str) -> int:
        kind = CharacterKind.LETTER
        if is_white_space(character):
            is_inner = unicodedata.category(character) == "Zs"
            kind = CharacterKind.SPACE if is_inner else CharacterKind.LINE_SPACE
        elif (
            unicodedata.category(character)[0] == "M"
            or character == "\u200d"
            or "\U0001f3fb" <= character <= "\U0001f3ff"  # modifiers of emojis
        ):
            kind = CharacterKind.MARK
        self[character] = kind
        return kind


_KINDS = _Kinds()


class KindReader:
    """Finds the kinds of the characters of a text that is read piece by piece.

    Args:
        split_lines: whether every line is a paragraph; otherwise empty lines separate paragraphs.

    Example:
        >>> reader = KindReader()
        >>> [CharacterKind(kind).name for kind in reader("a b\\n")]
        ['FIRST', 'SPACE', 'LETTER', 'LINE_SPACE']
        >>> [CharacterKind(kind).name for kind in reader("\\nc")]  # after an empty line
        ['LINE_SPACE', 'FIRST']
    """

    def __init__(self, split_lines: bool = False) -> None:
        self._least_line_ends = 1 if split_lines else 2  # between paragraphs
        self._line_ends = 2  # since the last character that is not white space
        self._previous = "\n"

    def __call__(self, piece: str) -> bytearray:
        """Return the `CharacterKind` of each character of the next piece."""
        if not piece:
            return bytearray()
        kinds = bytearray(map(_KINDS.__getitem__, piece))
        joined = [match.start() for match in _JOINED.finditer(piece)]
        if self._previous == "\u200d":
            joined.append(0)
        for i in joined:
            if kinds[i] == CharacterKind.LETTER:
                kinds[i] = CharacterKind.MARK
        self._mark_word_starts(piece, kinds)
        self._previous = piece[-1]
        return kinds

    def _mark_word_starts(self, piece: str, kinds: bytearray) -> None:
        """Correct the kinds of the characters that begin the piece or follow white space."""
        if is_white_space(self._previous) and not is_white_space(piece[0]):
            self._begin_word(kinds, 0)
        for run in _SPACE_RUN.finditer(piece):
            if run.start() > 0:
                self._line_ends = 0
            self._line_ends += run[0].count("\n")
            if run.end() < len(piece):
                self._begin_word(kinds, run.end())
        if not is_white_space(piece[-1]):
            self._line_ends = 0

    def _begin_word(self, kinds: bytearray, i: int) -> None:
        if self._line_ends >= self._least_line_ends:
            kinds[i] = CharacterKind.FIRST
        elif kinds[i] == CharacterKind.MARK:
            kinds[i] = CharacterKind.LETTER
