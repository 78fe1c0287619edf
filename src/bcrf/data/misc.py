"""The MISC column of CoNLL-U: `Key=Value|Key=Value`, or `_` for nothing."""

from __future__ import annotations

__all__ = ["get_misc", "get_space", "set_misc", "set_space"]

# How UDPipe writes white space in SpacesAfter; other characters stand for themselves.
_SPACE_CODES = {" ": "\\s", "\t": "\\t", "\r": "\\r", "\n": "\\n"}


def get_misc(misc: str, key: str) -> str | None:
    """The value of `key`, None if it is not there."""
    for item in misc.split("|"):
        name, equals, value = item.partition("=")
        if name == key and equals:
            return value
    return None


def set_misc(misc: str, key: str, value: str) -> str:
    """`misc` with `key` set to `value`: in its place if it was there, else at the end."""
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
    """The white space after a word: none by SpaceAfter=No, else what SpacesAfter says, or " "."""
    if get_misc(misc, "SpaceAfter") == "No":
        return ""
    written = get_misc(misc, "SpacesAfter")
    if written is None:
        return " "
    for character, code in _SPACE_CODES.items():
        written = written.replace(code, character)
    return written


def set_space(misc: str, space: str) -> str:
    """`misc` with the white space after a word; UDPipe's SpacesAfter where it is not one " "."""
    if space == " ":
        return misc
    if not space:
        return set_misc(misc, "SpaceAfter", "No")
    return set_misc(misc, "SpacesAfter", "".join(_SPACE_CODES.get(c, c) for c in space))
