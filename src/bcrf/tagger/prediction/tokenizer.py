"""The tokenizer: divides raw text into sentences and words, in memory that a file cannot exceed.

The text is labelled block by block. The network reads a margin on either side of a block, so that
every character has the scores that it has in the whole text. A block ends at white space if there
is any: the label of this position is then known, and the best labels of the block are those that
the best labels of the whole text have there. In a block without white space, only the labels that
are `OVERLAP` or more characters away from its end are kept.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from ...chain import LinearChain
from ...inference import viterbi
from ..data import Sentence, format_named
from ..data.lines import BOM, Block
from ..model_folder.model_files import ModelError
from ..tasks import TextExample, Tokenization, WordPlaces
from ..tasks.characters import CharacterKind, KindReader
from .long_sentences import OVERLAP, network_context
from .results import Tagged
from .windows import model_errors

if TYPE_CHECKING:
    from .tagger import Tagger

__all__ = ["Tokenizer"]

BLOCK = 4096
"""Characters that are labelled at a time."""

LONGEST_SENTENCE = 1 << 18
"""Most characters of a sentence; a longer one is divided before a word, a longer word anywhere."""

# Pieces of the text have at most this many characters.
_PIECE = 1 << 16


class Tokenizer:
    """Divides raw text into sentences and words with a trained network.

    Args:
        tagger: a tagger whose task is `Tokenization`.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from bcrf.tagger import Tokenizer
        >>> from bcrf.tagger.training import Config, train
        >>> folder = tempfile.TemporaryDirectory()
        >>> file = Path(folder.name, "train.conllu")
        >>> rows = ["1\\tIt", "2\\tdoes", "3\\tn't", "4\\train", "5\\t."]
        >>> lines = ["# text = It doesn't rain.", *(row + "\\t_" * 8 for row in rows), "", ""]
        >>> _ = file.write_text("\\n".join(lines) * 100)
        >>> events = train(Config.from_dict({
        ...     "output": str(Path(folder.name, "run")),
        ...     "data": {"task": "tokenization", "train": str(file)},
        ...     "model": {"context_width": 8, "context_layers": 1},
        ...     "optimizer": {"learning_rate": 0.05},
        ...     "training": {"epochs": 10, "device": "cpu"},
        ... }))
        >>> tokenizer = Tokenizer.load(list(events)[-1].model, device="cpu")
        >>> [sentence.words for sentence in tokenizer.split("It doesn't rain. It doesn't rain.")]
        [('It', 'does', "n't", 'rain', '.'), ('It', 'does', "n't", 'rain', '.')]
        >>> folder.cleanup()
    """

    def __init__(self, tagger: Tagger) -> None:
        if not isinstance(tagger.task, Tokenization):
            raise ValueError(
                f"expected a model of the task tokenization, got one of {tagger.task.name}"
            )
        self.tagger = tagger
        self._task = tagger.task

    def __repr__(self) -> str:
        return f"Tokenizer({self.tagger!r})"

    @classmethod
    def load(cls, path: str | os.PathLike[str], device: str = "auto") -> Tokenizer:
        """Load the tokenizer in a folder, as `Tagger.load` does, or that of a tagger.

        Raises:
            ModelError: the folder holds no model, or a tagger without a tokenizer.

        Example (`tokenizer` as in `Tokenizer`):
            >>> tokenizer.tagger.save("tokenizer")
            >>> Tokenizer.load("tokenizer", device="cpu").split("Why not?")[0].words
            ('Why', 'not', '?')
        """
        from .tagger import Tagger  # which imports this module

        tagger = Tagger.load(path, device)
        if tagger.tokenizer is not None:
            return tagger.tokenizer
        try:
            return cls(tagger)
        except ValueError as error:
            raise ModelError(f"{path}: {error}") from error

    def split(self, text: str) -> list[Sentence]:
        """Return the sentences of a text, see `sentences`.

        Example (`tokenizer` as in `Tokenizer`):
            >>> [sentence.offset for sentence in tokenizer.split("Rome is old. Why not?")]
            [0, 13]
        """
        return list(self.sentences([text]))

    def sentences(
        self,
        lines: Iterable[str],
        path: str = "<input>",
        line_by_line: bool = False,
        split_lines: bool = False,
    ) -> Iterator[Sentence]:
        """Yield the sentences of a text, with memory that does not grow with the text.

        The words of a sentence are parts of its `text`, which has the white space of the file
        between them. `Sentence.offset` says where `text` begins in the file, in characters, not
        counting a byte order mark at the start. A sentence may continue in the next line, but not
        after an empty line.

        Args:
            lines: the text, in parts that may end anywhere.
            path: the name of the file.
            line_by_line: whether each line is a text by itself, so that its sentences are yielded
                before the next line is read.
            split_lines: whether a line end always ends a sentence.

        Example (`tokenizer` as in `Tokenizer`):
            >>> [sentence.words for sentence in tokenizer.sentences(["Rome is ", "old."])]
            [('Rome', 'is', 'old', '.')]
        """
        return (sentence for sentence, _ in self._divide(lines, path, line_by_line, split_lines))

    def stream(
        self,
        lines: Iterable[str],
        path: str = "<input>",
        line_by_line: bool = False,
        split_lines: bool = False,
    ) -> Iterator[Tagged]:
        """Yield what `sentences` yields, each sentence with the labels of its characters.

        Example (`tokenizer` as in `Tokenizer`):
            >>> (tagged,) = tokenizer.stream(["Why not?"])
            >>> tagged.labels[:5]
            ('sentence', 'inside', 'inside', 'space', 'word')
        """
        for sentence, labels in self._divide(lines, path, line_by_line, split_lines):
            names = tuple(self._task.labels[label] for label in labels.tolist())
            yield Tagged(self._task, self._task.example(sentence), names)

    def _divide(
        self, lines: Iterable[str], path: str, line_by_line: bool, split_lines: bool
    ) -> Iterator[_Divided]:
        texts = ([line] for line in lines) if line_by_line else iter([lines])
        splitter = _SentenceSplitter(self._task, path)
        for number, pieces in enumerate(texts):
            text = _Text(pieces, path, number + 1, split_lines)
            for part, labels in self._labelled(text):
                yield from splitter.add(part, labels)
            yield from splitter.finish()

    @torch.no_grad()
    def _label(self, text: _Text, back: int, size: int, known: int, context: int) -> Tensor:
        """Return the best labels of the next `size` characters, int64 [size].

        Args:
            text: the text.
            back: 1 to decode the character before them, too, because its transition to the next
                one counts; 0 at the start of the text.
            size: the number of characters.
            known: the label of the character before them.
            context: number of characters that the network reads on either side.
        """
        first = text.position - back
        low, high = max(0, first - context), text.position + size + context
        example = text.example(self._task, low, high)
        tagger = self.tagger
        chain = tagger.chain([tagger.reader(example.tokens)], [self._task.permitted_tags(example)])
        start, stop = first - low, first - low + back + size
        unary, transitions = chain.unary[:, start:stop], chain.transitions
        if transitions is not None and transitions.dim() == 4:
            transitions = transitions[:, start : stop - 1]
        if back:
            others = torch.arange(unary.shape[2], device=unary.device) != known
            unary = torch.cat([unary[:, :1].masked_fill(others, -torch.inf), unary[:, 1:]], 1)
        _, tags = viterbi(LinearChain(unary, transitions))
        return tags[0, back:].cpu()

    def _labelled(self, text: _Text) -> Iterator[tuple[str, Tensor]]:
        """Yield consecutive parts of a text with the labels of their characters, int64 [w]."""
        self.tagger.model.eval()
        context = network_context(self.tagger.model)
        back = known = 0
        while text.read(BLOCK + context):
            size = text.size_of_block(inner_spaces="inner_space" in self._task.labels)
            with model_errors(text.example(self._task, 0, 0)):
                labels = self._label(text, back, size or BLOCK, known, context)
            labels = labels[: size or BLOCK - OVERLAP]
            back, known = 1, int(labels[-1])
            yield text.take(len(labels), keep=context + 1), labels


class _Text:
    """The text around the next character to be labelled; it is read piece by piece.

    Args:
        pieces: the parts of the text. A byte order mark at the start of the file is no part of it.
        path: the name of the file.
        line: the line of the file in which the text begins.
        split_lines: whether a line end always ends a sentence.

    Attributes:
        text: the part of the text that is in memory.
        kinds: the `CharacterKind` of each of its characters.
        position: the index of the next character to be labelled.
    """

    def __init__(self, pieces: Iterable[str], path: str, line: int, split_lines: bool) -> None:
        self.text, self.kinds, self.position = "", bytearray(), 0
        self._path, self._line = path, line
        self._pieces = _short_pieces(pieces, begins_file=line == 1)
        self._kinds_of = KindReader(split_lines)
        self._is_complete = False

    def read(self, size: int) -> bool:
        """Read until `size` characters are to be labelled; return whether there are any."""
        read = [self.text]
        count = len(self.text) - self.position
        while count < size and not self._is_complete:
            piece = next(self._pieces, None)
            if piece is None:
                self._is_complete = True
            else:
                read.append(piece)
                self.kinds += self._kinds_of(piece)
                count += len(piece)
        self.text = "".join(read)
        return count > 0

    def example(self, task: Tokenization, start: int, stop: int) -> TextExample:
        """Return a part of the text that is in memory as an example."""
        block = Block(self._path, self._line, ("",))
        sentence = Sentence((), (), block, format_named("text"))
        return task.text_example(sentence, self.text[start:stop], self.kinds[start:stop])

    def size_of_block(self, inner_spaces: bool) -> int:
        """Return how many characters to label next, such that the label of the last one is known.

        It is known at white space, and at the end of the text. If the next `BLOCK` characters have
        no such position, return 0.

        Args:
            inner_spaces: whether words may hold spaces, so that only line ends are known.
        """
        left = len(self.text) - self.position
        if self._is_complete and left <= BLOCK:
            return left
        kinds = [CharacterKind.LINE_SPACE] if inner_spaces else _SPACES
        end = self.position + BLOCK
        last = max(self.kinds.rfind(kind, self.position, end) for kind in kinds)
        return max(0, last + 1 - self.position)

    def take(self, size: int, keep: int) -> str:
        """Return the next `size` characters and go on after them; `keep` of them stay in memory."""
        taken = self.text[self.position : self.position + size]
        self.position += size
        self._line += taken.count("\n")
        # The text is cut rarely, because that copies it.
        if self.position > _PIECE + keep:
            cut = self.position - keep
            self.text, self.kinds, self.position = self.text[cut:], self.kinds[cut:], keep
        return taken


_SPACES = (CharacterKind.LINE_SPACE, CharacterKind.SPACE)


def _short_pieces(pieces: Iterable[str], begins_file: bool) -> Iterator[str]:
    """Yield the pieces in parts of at most `_PIECE` characters, without a byte order mark."""
    for piece in pieces:
        start = len(BOM) if begins_file and piece.startswith(BOM) else 0
        begins_file &= not piece
        for first in range(start, len(piece), _PIECE):
            yield piece[first : first + _PIECE]


class _Divided(NamedTuple):
    """A sentence, and the labels of the characters of its text, int64 [n]."""

    sentence: Sentence
    labels: Tensor


class _SentenceSplitter:
    """Collects the labels of a text, and yields its sentences as soon as they are complete."""

    def __init__(self, task: Tokenization, path: str) -> None:
        self._task, self._path, self._format = task, path, format_named("text")
        self._sentence = task.labels.index("sentence")
        self._first_labels = (self._sentence, task.labels.index("space"))
        self._text, self._labels = "", torch.empty(0, dtype=torch.int64)
        self._offset, self._line = 0, 1  # where `_text` begins in the file

    def add(self, text: str, labels: Tensor) -> Iterator[_Divided]:
        """Add the next characters; yield the sentences that are complete."""
        if not self._text and labels[0] not in self._first_labels:
            # These characters are the rest of a word that was divided: it goes on as a sentence.
            labels = labels.clone()
            labels[0] = self._sentence
        self._text += text
        self._labels = torch.cat([self._labels, labels])
        places = self._task.words(self._labels)
        starts, _, firsts = places
        if not starts:
            self._drop(len(self._text))
            return
        if len(self._text) - starts[firsts[-1]] > LONGEST_SENTENCE:
            if len(starts) - 1 > firsts[-1]:
                self._labels[starts[-1]] = self._sentence
                yield from self.add("", self._labels[:0])
            else:
                yield from self.finish()
            return
        for first, last in pairwise(firsts):
            yield self._divided(places, first, last)
        self._drop(starts[firsts[-1]])

    def finish(self) -> Iterator[_Divided]:
        """Yield the sentences that are left."""
        places = self._task.words(self._labels)
        for first, last in places.of_sentences():
            yield self._divided(places, first, last)
        self._drop(len(self._text))

    def _divided(self, places: WordPlaces, first: int, last: int) -> _Divided:
        """Return the sentence with the words first, ..., last - 1."""
        start, stop = places.starts[first], places.ends[last - 1]
        text = self._text[start:stop]
        words = tuple(
            self._text[a:b]
            for a, b in zip(places.starts[first:last], places.ends[first:last], strict=True)
        )
        line = self._line + self._text.count("\n", 0, start)
        block = Block(self._path, line, (text,))
        sentence = Sentence(
            words, bytes(len(words)), block, self._format, text, self._offset + start
        )
        return _Divided(sentence, self._labels[start:stop])

    def _drop(self, size: int) -> None:
        """Forget the first characters."""
        self._offset += size
        self._line += self._text.count("\n", 0, size)
        self._text, self._labels = self._text[size:], self._labels[size:]
