"""JSON lines: one object per sentence, `{"words": [...], "tags": [...]}`.

`tags` may be missing. A tag may also be a list (one of these tags is right) or null (any tag may
be right). An object with only `text` is read as a line of raw text. Other keys are kept. Output may
have `starts` (where in `text` each word starts), `offset` (where in a file of raw text `text`
begins), `probabilities` and `entities` (see `Entity`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from .lines import Block, DataError, content, ending, shorten
from .sentence import Entity, Format, Sentence, Word

__all__ = ["JsonlFormat"]

_TOO_DEEP = "the values of the JSON object are nested too deeply; flatten them"


class JsonlFormat(Format):
    """Reads and writes JSON lines. The key `tags` serves every column. Empty lines are kept."""

    name = "jsonl"

    def sentences(self, lines: Iterable[str], path: str) -> Iterator[Sentence | DataError]:
        for number, line in enumerate(lines, start=1):
            try:
                yield self.parse(Block(path, number, (line,)))
            except DataError as error:
                yield error

    def tags(self, sentence: Sentence, column: str) -> list[str]:
        record = _record(sentence.block)
        if record.get("tags") is None:
            raise sentence.error(
                0, f'the sentence has no tags; expected "tags": [{len(sentence)} tags]'
            )
        return [_tag_text(tag) for tag in record["tags"]]

    def fill_lines(
        self,
        sentence: Sentence,
        tags: Sequence[str],
        column: str,
        probabilities: Sequence[float] | None = None,
        entities: Sequence[Entity] | None = None,
    ) -> Iterator[str]:
        (line,) = sentence.block.lines
        if not content(line).strip():
            yield line
            return
        record = _record(sentence.block) | {"words": sentence.words, "tags": list(tags)}
        if probabilities is not None:
            record["probabilities"] = [round(p, 4) for p in probabilities]
        if entities is not None:
            record["entities"] = [entity.to_dict() for entity in entities]
        yield _dump(record) + ending(line)

    def compose_lines(
        self,
        words: Sequence[Word],
        column: str,
        text: str | None = None,
        offset: int | None = None,
        entities: Sequence[Entity] | None = None,
    ) -> Iterator[str]:
        yield _dump(_composed(words, text, offset, entities)) + "\n"

    def rewrite_lines(
        self, sentence: Sentence, words: Sequence[Word], column: str, text: str | None = None
    ) -> Iterator[str]:
        (line,) = sentence.block.lines
        if not content(line).strip():
            yield line
            return
        yield _dump(_record(sentence.block) | _composed(words, text)) + ending(line)

    def parse(self, block: Block) -> Sentence:
        """Return the sentence in a line, the only one of `block`; raise DataError for a bad row."""
        if not content(block.lines[0]).strip():
            return Sentence((), (), block, self)
        record = _record(block)
        text = record.get("text")
        if not (text is None or isinstance(text, str)):
            raise block.error(0, f'"text": expected a string, found {shorten(text)}')
        words: Any = record.get("words", None if text is None else text.split())
        if not _is_list_of_words(words):
            raise block.error(
                0, f'"words": expected a list of non-empty strings, found {shorten(words)}'
            )
        tags = record.get("tags")
        if tags is not None:
            _check_tags(tags, len(words), block)
        return Sentence(tuple(words), (0,) * len(words), block, self, text)


def _composed(
    words: Sequence[Word],
    text: str | None,
    offset: int | None = None,
    entities: Sequence[Entity] | None = None,
) -> dict[str, Any]:
    record: dict[str, Any] = {} if text is None else {"text": text}
    if offset is not None:
        record["offset"] = offset
    record["words"] = [word.form for word in words]
    if not words or any(word.tag is not None for word in words):
        record["tags"] = [word.tag for word in words]
    if any(word.start is not None for word in words):
        record["starts"] = [word.start for word in words]
    if any(word.probability is not None for word in words):
        record["probabilities"] = [
            None if word.probability is None else round(word.probability, 4) for word in words
        ]
    if entities is not None:
        record["entities"] = [entity.to_dict() for entity in entities]
    return record


def _record(block: Block) -> dict[str, Any]:
    line = content(block.lines[0])
    try:
        record = json.loads(line)
    except ValueError as error:
        raise block.error(0, f"expected a JSON object, found invalid JSON: {error}") from error
    except RecursionError as error:
        raise block.error(0, _TOO_DEEP) from error
    if not isinstance(record, dict):
        raise block.error(0, f'expected an object {{"words": [...]}}, found {shorten(line)}')
    try:
        _dump(record).encode()
    except RecursionError as error:  # writing needs more stack than reading
        raise block.error(0, _TOO_DEEP) from error
    except UnicodeEncodeError as error:
        # JSON can escape a lone surrogate, which UTF-8 cannot encode.
        raise block.error(0, f"a string is not valid Unicode text: {error.reason}") from error
    return record


def _check_tags(tags: Any, count: int, block: Block) -> None:
    if not isinstance(tags, list) or len(tags) != count:
        found = len(tags) if isinstance(tags, list) else shorten(tags)
        raise block.error(
            0, f'"tags": expected a list of {count} tags, one per word, found {found}'
        )
    for position, tag in enumerate(tags):
        options = tag if isinstance(tag, list) else [tag]
        if tag is not None and not (options and _is_list_of_words(options)):
            expected = "expected a string, a list of them or null"
            raise block.error(0, f'"tags"[{position}]: {expected}, found {shorten(tag)}')


def _is_list_of_words(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(word, str) and word for word in value)


def _tag_text(tag: str | list[str] | None) -> str:
    """Return a tag in the notation of column files: `A|B` for several tags, `?` for any tag."""
    return "?" if tag is None else tag if isinstance(tag, str) else "|".join(tag)


def _dump(record: dict[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False)
