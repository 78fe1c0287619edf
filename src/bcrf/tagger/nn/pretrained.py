"""Pretrained Hugging Face encoders; the state of a word is that of its first piece."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .batch import Batch
from .dropout import Dropout
from .pieces import Frame, Pieces, Windows

__all__ = [
    "EncoderParts",
    "PretrainedEncoder",
    "check_fast",
    "load_module",
    "refuse_code",
    "remove_pooler",
    "special_pieces",
    "split_into_pieces",
    "window_frame",
]

# Window size of encoders whose configuration states no limit.
_DEFAULT_WINDOW = 512

# Pieces that are encoded at a time; a long document has many windows.
_PIECES = 1 << 14


class EncoderParts(NamedTuple):
    """Configuration and tokenizer of an encoder: everything but its weights."""

    config: Any
    tokenizer: Any

    @classmethod
    def read(cls, folder: str | Path) -> EncoderParts:
        """Read the files that `PretrainedEncoder.save` has written.

        Raises:
            ValueError: the files ask for code to be run.
            OSError: transformers cannot read the files.
        """
        refuse_code(Path(folder))
        transformers = _transformers()
        with _reported(folder):
            return cls(
                _from_pretrained(transformers.AutoConfig, folder, local_files_only=True),
                _from_pretrained(transformers.AutoTokenizer, folder, local_files_only=True),
            )


class PretrainedEncoder(nn.Module):
    """A transformer with its tokenizer; it reads long sentences in overlapping windows.

    Args:
        module: a model of `transformers` with `last_hidden_state` in its output.
        tokenizer: the fast tokenizer of the model.
        dropout: dropout of the states.
        window: largest number of pieces of a window; by default the limit of the model.
    """

    def __init__(
        self, module: Any, tokenizer: Any, dropout: float = 0.0, window: int | None = None
    ) -> None:
        super().__init__()
        if getattr(module.config, "is_encoder_decoder", False):
            raise ValueError(
                f"pretrained: expected an encoder, got the encoder-decoder model "
                f"{module.config.model_type}; choose an encoder such as BERT"
            )
        check_fast(tokenizer)
        remove_pooler(module)
        table = module.get_input_embeddings()
        if isinstance(table, nn.Embedding):
            table.sparse = (
                True  # for `LazyAdam`: a multilingual encoder consists mostly of this table
            )
        self.module, self.tokenizer = module, tokenizer
        self.width: int = module.config.hidden_size
        self.dropout = Dropout(dropout)
        self.frame = window_frame(module, tokenizer, window)

    @classmethod
    def load(cls, name: str, dropout: float = 0.0, window: int | None = None) -> PretrainedEncoder:
        """Load an encoder with its weights from a folder, or by its name from the Hugging Face hub.

        Weights are read from safetensors files only. Code that comes with them is never run.
        """
        module = load_module(name)
        with _reported(name):
            tokenizer = _from_pretrained(_transformers().AutoTokenizer, name)
        return cls(module, tokenizer, dropout, window)

    @classmethod
    def rebuild(
        cls, parts: EncoderParts, dropout: float = 0.0, window: int | None = None
    ) -> PretrainedEncoder:
        """Build an encoder from its parts, with random weights; the caller loads the real ones."""
        transformers = _transformers()
        with _reported(parts.config.name_or_path):
            module = transformers.AutoModel.from_config(parts.config, trust_remote_code=False)
            return cls(module, parts.tokenizer, dropout, window)

    def save(self, folder: str | Path) -> None:
        """Write configuration and tokenizer, but not the weights."""
        self.module.config.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)

    def pieces(self, words: Sequence[str]) -> Pieces:
        """Return the pieces of a sentence; a word without pieces becomes the unknown piece."""
        return split_into_pieces(self.tokenizer, words)

    def windows(self, sentences: Sequence[Pieces]) -> Windows:
        """Return the windows of a batch of sentences."""
        return self.frame.windows(sentences)

    def forward(self, batch: Batch) -> Tensor:
        """Return the states of all words, [B, n, width].

        On a GPU this waits once per call of `module`: transformers looks for padding in the mask.
        """
        if batch.windows is None:
            raise ValueError(
                "this network reads pieces, but the batch has none; pass windows to collate"
            )
        pieces, mask, index = batch.windows.pieces, batch.windows.mask, batch.windows.index
        if not pieces.numel():
            return torch.zeros(*index.shape, self.width, device=index.device)
        rows = max(1, _PIECES // pieces.shape[1])
        states = [
            self.module(input_ids=some, attention_mask=real.long()).last_hidden_state
            for some, real in zip(torch.split(pieces, rows), torch.split(mask, rows), strict=True)
        ]
        words = F.embedding(index, torch.cat(states).flatten(0, 1))
        out: Tensor = self.dropout(words)
        return out


def load_module(name: str) -> Any:
    """Load the weights of an encoder from a folder, or by its name from the Hugging Face hub.

    Weights are read from safetensors files only. Code that comes with them is never run.
    """
    if Path(name).is_dir():
        refuse_code(Path(name))
    transformers = _transformers()
    with _reported(name):
        return _from_pretrained(
            transformers.AutoModel, name, dtype=torch.float32, use_safetensors=True
        )


def remove_pooler(module: Any) -> None:
    """Remove the pooler of an encoder: it summarizes sentences, and would get no gradient."""
    if getattr(module, "pooler", None) is not None:
        module.pooler = None


def check_fast(tokenizer: Any) -> None:
    """Raise unless the tokenizer tells where words begin."""
    if not tokenizer.is_fast:
        raise ValueError(
            "pretrained: expected an encoder with a fast tokenizer (tokenizer.json), because "
            f"{type(tokenizer).__name__} does not tell where words begin"
        )


def split_into_pieces(tokenizer: Any, words: Sequence[str]) -> Pieces:
    """Return the pieces of a sentence; a word without pieces becomes the unknown piece."""
    if not words:
        return Pieces((), ())
    encoded = _encode(tokenizer, words)
    parts: list[list[int]] = [[] for _ in words]
    for piece, word in zip(encoded["input_ids"], encoded.word_ids(), strict=True):
        parts[word].append(piece)
    ids: list[int] = []
    first = []
    for word_text, part in zip(words, parts, strict=True):
        if not part and tokenizer.unk_token_id is None:
            raise ValueError(
                f"pretrained: the tokenizer has no piece for the word {word_text!r}, and no piece "
                "for unknown words"
            )
        first.append(len(ids))
        ids += part or [tokenizer.unk_token_id]
    return Pieces(tuple(ids), tuple(first))


def _encode(tokenizer: Any, words: Sequence[str], special: bool = False) -> Any:
    """Return the pieces of the words, without truncation and padding."""
    try:
        return tokenizer(
            list(words),
            is_split_into_words=True,
            add_special_tokens=special,
            truncation=False,
            padding=False,
            verbose=False,
        )
    except Exception as error:  # the package tokenizers has no error class of its own
        raise ValueError(f"pretrained: the tokenizer cannot split these words: {error}") from error


def window_frame(module: Any, tokenizer: Any, window: int | None) -> Frame:
    """Return the shape of the windows; their size is the smallest of all limits."""
    before, after = special_pieces(tokenizer)
    size = min(_window_limits(module, tokenizer), default=_DEFAULT_WINDOW)
    if window is not None:
        if window > size:
            raise ValueError(f"window must be at most {size} for this encoder, got {window}")
        size = window
    padding = tokenizer.pad_token_id
    # Padding is masked, so any piece can serve.
    return Frame(size, before, after, 0 if padding is None else padding)


def special_pieces(tokenizer: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the special pieces before and after every sentence, such as [CLS] and [SEP]."""
    bare = _encode(tokenizer, ["a"])["input_ids"]
    framed = _encode(tokenizer, ["a"], special=True)["input_ids"]
    start = next(i for i in range(len(framed)) if framed[i : i + len(bare)] == bare)
    return tuple(framed[:start]), tuple(framed[start + len(bare) :])


def _window_limits(module: Any, tokenizer: Any) -> list[int]:
    """Return the limits on the pieces of a window: of the tokenizer and of the position tables."""
    stated = (tokenizer.model_max_length, getattr(module.config, "max_position_embeddings", None))
    # A tokenizer without a limit states 10^30. Some models count positions from padding_idx + 1.
    limits = [limit for limit in stated if limit is not None and 0 < limit < 1e6]
    for name, part in module.named_modules():
        if name.endswith("position_embeddings") and isinstance(part, nn.Embedding):
            taken = 0 if part.padding_idx is None else part.padding_idx + 1
            limits.append(part.num_embeddings - taken)
    return limits


def _from_pretrained(kind: Any, name: str | Path, **options: Any) -> Any:
    """Read a configuration, tokenizer or model; code in its files is not run."""
    return kind.from_pretrained(name, trust_remote_code=False, **options)


def refuse_code(folder: Path) -> None:
    """Raise ValueError if the folder of an encoder holds code, or asks for code to be run."""
    for path in sorted(folder.glob("*.py")):
        raise ValueError(
            f"pretrained: {path} is Python code, which bcrf never runs; if the encoder does not "
            "need it, copy the other files into a folder of their own"
        )
    for path in sorted(folder.glob("*.json")):
        try:
            asks = "auto_map" in _keys(json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"pretrained: {path} is not valid JSON: {error}") from error
        if asks:
            raise ValueError(
                f"pretrained: {path} has the key 'auto_map', which asks for code that comes with "
                "the encoder; bcrf never runs such code. Choose an encoder that transformers knows"
            )


def _keys(value: Any) -> Iterator[str]:
    """Yield the keys of all objects in a JSON document."""
    if isinstance(value, dict):
        yield from value
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _keys(item)


@contextmanager
def _reported(name: str | Path) -> Iterator[None]:
    """Turn all errors of transformers about the files of an encoder into an OSError.

    If a file has unexpected values, transformers raises many kinds of errors. The package
    tokenizers, written in Rust, raises PanicException, which is not an `Exception`.
    """
    try:
        yield
    except ImportError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        reason = str(error).strip().partition("\n")[0]
        raise OSError(
            f"pretrained: cannot load {str(name)!r}; expected a folder with a Hugging Face encoder "
            "(config.json, model.safetensors) and its tokenizer, or the name of one on the hub "
            f"({reason or type(error).__name__})"
        ) from error


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise ImportError(
            "a pretrained encoder needs the transformers package: pip install '.[pretrained]'"
        ) from error
    return transformers
