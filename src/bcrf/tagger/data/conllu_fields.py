"""Two fields of CoNLL-U lines: ID (also a field of UNER files) and MISC.

MISC holds `Key=Value|Key=Value`, or `_` if it is empty.
"""

from __future__ import annotations

from .lines import Block, shorten

__all__ = ["WordIds", "get_misc", "get_space", "set_misc", "set_space"]

# UDPipe's escapes for white space in SpacesAfter; other characters are not escaped.
_SPACE_CODES = {" ": "\\s", "\t": "\\t", "\r": "\\r", "\n": "\\n"}


class WordIds:
    """Checks the ids of one sentence.

    Words have the ids 1, 2, ... A multiword token such as 3-4 comes before word 3. Empty nodes such
    as 3.1 and 3.2 come after word 3.

    Attributes:
        at_word: whether the last id was that of a word.
    """

    def __init__(self) -> None:
        self.at_word = False
        self._word = 0
        self._empty = 0
        self._range_end = 0
        self._range_row = 0

    def take(self, text: str, block: Block, row: int) -> None:
        """Check the id of line `row`; raise DataError if it cannot follow the ids before it."""
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
                f"{self._word}.{self._empty + 1}, or a range that starts at {expected} and does "
                "not overlap another range",
            )

    def finish(self, block: Block) -> None:
        """Raise DataError if a multiword token ends after the last word of the sentence."""
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


def get_misc(misc: str, key: str) -> str | None:
    """Return the value of `key`; None if MISC does not have it."""
    for item in misc.split("|"):
        name, equals, value = item.partition("=")
        if name == key and equals:
            return value
    return None


def set_misc(misc: str, key: str, value: str) -> str:
    """Return `misc` with `key` set to `value`; a new key is added at the end."""
    item = f"{key}={value}"
    if misc == "_":
        return item
    items = misc.split("|")
    places = [i for i, old in enumerate(items) if old.startswith(f"{key}=")]
    if not places:
        return f"{misc}|{item}"
    items[places[0]] = item
    return "|".join(items)


def get_space(misc: str) -> str:
    """Return the white space after a word: "" for SpaceAfter=No, else SpacesAfter, else " "."""
    if get_misc(misc, "SpaceAfter") == "No":
        return ""
    written = get_misc(misc, "SpacesAfter")
    if written is None:
        return " "
    for character, code in _SPACE_CODES.items():
        written = written.replace(code, character)
    return written


def set_space(misc: str, space: str) -> str:
    """Return `misc` with the white space after a word.

    " " needs no entry, "" is written as SpaceAfter=No, anything else as SpacesAfter.
    """
    if space == " ":
        return misc
    if not space:
        return set_misc(misc, "SpaceAfter", "No")
    return set_misc(misc, "SpacesAfter", "".join(_SPACE_CODES.get(c, c) for c in space))
