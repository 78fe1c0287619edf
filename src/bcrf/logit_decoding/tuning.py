"""`tune_transition_bias`: choose the biases of decoding on development data."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import torch
from torch import Tensor

from ..chain import PAD
from ..checks import check_number
from ..layers.masks import kept_positions
from ..spans import Score, find_spans
from ..tag_schemes import parse_label
from .decode import best_tags
from .label_set import LabelSet
from .logit_batch import LogitBatch, logit_matrices
from .span_probability import FoundSpans, find_tagged_spans
from .transition_bias import TransitionBias, transition_scores

__all__ = ["TunedBias", "tune_transition_bias"]

# The first values of `enter_span`, and the steps of the search that follows. A classifier with the
# probability 1 - exp(-16) needs a bias of 16 to change its mind.
_FIRST_VALUES = (0.0, -0.5, 0.5, -1.0, 1.0, -2.0, 2.0, -4.0, 4.0, -8.0, 8.0, -16.0, 16.0)
_STEPS = (4.0, 2.0, 1.0, 0.5, 0.25)
_LARGEST = 32.0

_Numbers = tuple[float, ...]


@dataclass(frozen=True)
class TunedBias:
    """The result of `tune_transition_bias`: the biases, and the scores on the data of the search.

    Attributes:
        bias: the biases, for the argument `transition_bias` of `decode_logits`.
        precision, recall, f1: of spans, with these biases, between 0 and 1.

    Example:
        >>> from bcrf import TransitionBias, TunedBias
        >>> TunedBias(TransitionBias(enter_span=-1.0), precision=0.9, recall=0.6, f1=0.72).f1
        0.72
    """

    bias: TransitionBias
    precision: float
    recall: float
    f1: float


@torch.no_grad()
def tune_transition_bias(
    logits: Any,
    gold: Any,
    labels: Sequence[str] | Mapping[int, str] | Mapping[str, str],
    *,
    scheme: str = "auto",
    mask: Any = None,
    precision: float | None = None,
    recall: float | None = None,
) -> TunedBias:
    """Return the biases with the best F1 of spans on development data.

    With `precision`, return the biases with the best recall among those that reach this precision;
    with `recall`, those with the best precision among those that reach this recall. If none
    reaches it, return those that come closest, and warn.

    The search is a coordinate search and always gives the same result. It tries 13 values of
    `enter_span` from -16 to 16. From the best one it changes one bias at a time by 4, while this
    improves the result; then by 2, 1, 0.5 and 0.25. If results are equal, the biases with the
    smaller sum of magnitudes win. It decodes the data about 60 to 200 times, and computes no
    probabilities. A local optimum may remain.

    Args:
        logits, labels, scheme, mask: as in `decode_logits`.
        gold: the gold labels of the kept positions of each sentence, as lists of str; or integers
            [B, n], the indices of the labels, where -100 removes a position. Ill-formed gold labels
            are read as conlleval reads them.
        precision: the precision to reach, in (0, 1].
        recall: the recall to reach, in (0, 1].

    Example:
        >>> import torch, bcrf
        >>> logits = torch.tensor([[[1.0, 0.0], [0.0, 4.0], [1.0, 0.0], [1.5, 0.0]]])
        >>> tuned = bcrf.tune_transition_bias(logits, [["B", "B", "B", "O"]], ["O", "B"])
        >>> tuned.f1
        1.0
        >>> bcrf.decode_logits(logits, ["O", "B"], transition_bias=tuned.bias).labels
        [['B', 'B', 'B', 'O']]
    """
    if precision is not None and recall is not None:
        raise ValueError("give precision or recall, not both")
    for name, value in (("precision", precision), ("recall", recall)):
        if value is not None:
            check_number(name, value)
            if not 0 < value <= 1:
                raise ValueError(f"{name} must be in (0, 1], got {value!r}")
    label_set = LabelSet.read(labels, scheme)
    batch, gold_spans = _read_gold(logits, gold, mask, label_set)
    gold_keys = _keys(gold_spans, batch, label_set)
    if not len(gold_keys):
        raise ValueError("gold has no spans; expected development data with at least one span")

    known: dict[_Numbers, Score] = {}

    def measure(numbers: _Numbers) -> Score:
        if numbers not in known:
            scores = transition_scores(label_set, TransitionBias(*numbers))
            found = find_tagged_spans(best_tags(batch, scores)[1], label_set)
            keys = _keys(found, batch, label_set)
            correct = int(torch.isin(keys, gold_keys).sum())
            known[numbers] = Score(correct, len(keys), len(gold_keys))
        return known[numbers]

    def rank(numbers: _Numbers) -> _Numbers:
        score, size = measure(numbers), sum(map(abs, numbers))
        if precision is not None:
            return (min(score.precision, precision), score.recall, score.f1, -size)
        if recall is not None:
            return (min(score.recall, recall), score.precision, score.f1, -size)
        return (score.f1, -size)

    best = _search(rank)
    score = measure(best)
    for name, wanted, reached in (
        ("precision", precision, score.precision),
        ("recall", recall, score.recall),
    ):
        if wanted is not None and reached < wanted:
            warnings.warn(
                f"no biases reach the {name} {wanted}; the best ones reach {reached:.4f}",
                RuntimeWarning,
                stacklevel=2,
            )
    return TunedBias(TransitionBias(*best), score.precision, score.recall, score.f1)


def _search(rank: Callable[[_Numbers], _Numbers]) -> _Numbers:
    """Return the numbers of a `TransitionBias` of the highest rank that the search finds."""
    starts = [astuple(TransitionBias(enter_span=value)) for value in _FIRST_VALUES]
    best = max(starts, key=rank)
    for step in _STEPS:
        improved = True
        while improved:
            improved = False
            for index in range(len(best)):
                for change in (-step, step):
                    moved = (*best[:index], best[index] + change, *best[index + 1 :])
                    if abs(moved[index]) <= _LARGEST and rank(moved) > rank(best):
                        best, improved = moved, True
    return best


def _keys(spans: FoundSpans, batch: LogitBatch, labels: LabelSet) -> Tensor:
    """Return one number [S] for each span; equal spans have equal numbers."""
    n = batch.log_probabilities.shape[1]
    place = (spans.sentence * n + spans.first) * n + spans.last
    return place * len(labels.span_types) + spans.type_id


# Gold labels


def _read_gold(
    logits: Any, gold: Any, mask: Any, labels: LabelSet
) -> tuple[LogitBatch, FoundSpans]:
    """Return the batch of the kept positions, and the gold spans of compact positions."""
    if _is_text(gold):
        batch = LogitBatch.read(logits, mask, labels)
        rows = [gold] if gold and isinstance(gold[0], str) else gold
    else:
        batch, rows = _read_ids(logits, gold, mask, labels)
    if len(rows) != len(batch.lengths):
        raise ValueError(
            f"gold: expected labels of {len(batch.lengths)} sentences, got {len(rows)}"
        )
    ids = {span_type: index for index, span_type in enumerate(labels.span_types)}
    found = []
    for sentence, (row, length) in enumerate(zip(rows, batch.lengths.tolist(), strict=True)):
        if len(row) != length:
            raise ValueError(
                f"gold, sentence {sentence}: expected {length} labels, one for each kept position, "
                f"got {len(row)}"
            )
        for index, name in enumerate(row):
            _check_gold(name, f"gold, {batch.place(sentence, index)}", ids)
        found += [(sentence, x.start, x.end - 1, ids[x.type]) for x in find_spans(row)]
    columns = torch.tensor(found, dtype=torch.int64).reshape(-1, 4)
    return batch, FoundSpans(*columns.unbind(1))


def _is_text(gold: Any) -> bool:
    """Whether `gold` is a list of str or a list of lists of str, or has no label."""
    if not isinstance(gold, list | tuple):
        return False
    labels = [x for row in gold for x in (row if isinstance(row, list | tuple) else [row])]
    return not labels or any(isinstance(label, str) for label in labels)


def _check_gold(name: object, place: str, types: Mapping[str, int]) -> None:
    if not isinstance(name, str):
        raise TypeError(f"{place}: expected a label, got {name!r}")
    try:
        label = parse_label(name)
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from None
    if label.prefix != "O" and label.type not in types:
        raise ValueError(
            f"{place}: {name!r} has a type that is not among those of the labels: "
            f"{', '.join(types)}"
        )


def _read_ids(
    logits: Any, gold: Any, mask: Any, labels: LabelSet
) -> tuple[LogitBatch, list[list[str]]]:
    """Return the batch without the positions of gold index -100, and the names of the others."""
    rows, matrices = _rows(gold), logit_matrices(logits)
    masks = [torch.ones(len(matrix)) for matrix in matrices] if mask is None else _rows(mask)
    if not len(rows) == len(masks) == len(matrices):
        raise ValueError(
            f"expected the same number of sentences in all arguments: logits have {len(matrices)}, "
            f"gold has {len(rows)}" + ("" if mask is None else f", mask has {len(masks)}")
        )
    names: list[list[str]] = []
    keep = []
    for sentence, (ids, given) in enumerate(zip(rows, masks, strict=True)):
        size = len(matrices[sentence])
        if ids.dtype is torch.bool or ids.is_floating_point() or ids.is_complex():
            raise TypeError(f"gold must be labels or integers, got {ids.dtype}")
        for name, row in (("gold", ids), ("mask", given)):
            if len(row) != size:
                raise ValueError(
                    f"{name}, sentence {sentence}: expected {size} numbers, one for each position, "
                    f"got {len(row)}"
                )
        kept = kept_positions(given, (size,), "[n]", given.device).cpu() & (ids != PAD)
        bad = kept & ((ids < 0) | (ids >= labels.num_tags))
        if bool(bad.any()):
            position = int(bad.nonzero()[0])
            raise ValueError(
                f"gold, sentence {sentence}, position {position}: {int(ids[position])} is not in "
                f"0..{labels.num_tags - 1}; expected the index of a label, or -100"
            )
        names.append([labels.labels[tag] for tag in ids[kept].tolist()])
        keep.append(kept)
    return LogitBatch.read(matrices, keep, labels), names


def _rows(values: Any) -> list[Tensor]:
    """Return the rows of a matrix, or of a list of rows; one row is a matrix of one row."""
    rows = [x.cpu() if isinstance(x, Tensor) else torch.tensor(x) for x in values]
    rows = [torch.stack(rows)] if rows and not rows[0].dim() else rows
    return [row if len(row) else row.to(torch.int64) for row in rows]  # [] has no type
