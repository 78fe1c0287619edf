"""`Structure`: the allowed tag sequences, as boolean masks over tags and transitions.

A `Structure` says which tags may start a sentence, end it, and follow each other. It is data: the
library never writes constraints into a trainable parameter.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .checks import values_readable
from .compat.private_torch import in_transform, register_pytree_node
from .numerics.static_trimming import ReachableTags
from .tag_schemes import OUTSIDE, ParsedLabel, TagScheme

__all__ = ["Structure", "checked_labels"]

# The number of labels that a repr shows; large tag sets have hundreds.
_SHOWN_LABELS = 8


@dataclass(frozen=True, eq=False, repr=False, init=False)
class Structure:
    """Which of T tags may start a sentence, end it, and follow each other.

    Args:
        start: bool [T], True where the tag may be the first of a sentence.
        end: bool [T], True where the tag may be the last of a sentence.
        follow: bool [T, T], axes from -> to, True where `to` may come directly after `from`.
        labels: the names of the T tags, for error messages; None if they have none.

    Each mask is a bool tensor or a (nested) list of bools; None means that everything is allowed.
    At least one mask must be given, and all must agree on T. Tensors are copied, so that later
    changes of the caller's tensors do not change the structure. A structure is a pytree with the
    leaves `start`, `end`, `follow`. It is compared and hashed by identity.

    Attributes:
        reachable: tables that find live tags on any device without reading scores. None if the
            structure was made from tensors on another device than the CPU, or in a graph: to use
            the tables there, make a structure from lists or CPU tensors, and move it with `to`.

    Example:
        >>> from bcrf import Structure
        >>> Structure.from_labels(["O", "B-PER", "I-PER"], "BIO")
        Structure(start=2/3, end=3/3, follow=8/9 allowed; labels: O, B-PER, I-PER)
        >>> Structure(follow=[[True, False], [True, True]])  # tag 1 may not follow tag 0
        Structure(start=2/2, end=2/2, follow=3/4 allowed)
    """

    start: Tensor
    end: Tensor
    follow: Tensor
    labels: tuple[str, ...] | None
    reachable: ReachableTags | None = field(default=None)
    _stored: dict[Any, Any] = field(default_factory=dict)

    def __init__(
        self,
        start: Tensor | Sequence[bool] | None = None,
        end: Tensor | Sequence[bool] | None = None,
        follow: Tensor | Sequence[Sequence[bool]] | None = None,
        labels: Sequence[str] | Mapping[int, str] | Mapping[str, str] | None = None,
    ) -> None:
        given = {"start": start, "end": end, "follow": follow}
        device = _common_device(given)
        masks = {
            name: _as_mask(name, value, 2 if name == "follow" else 1, device)
            for name, value in given.items()
            if value is not None
        }
        if not masks:
            raise ValueError(
                "Structure needs at least one of start, end, follow to know the number of tags; "
                "all three are None"
            )
        sizes = {name: mask.shape[0] for name, mask in masks.items()}
        if len(set(sizes.values())) > 1:
            found = ", ".join(f"{name} has {size}" for name, size in sizes.items())
            raise ValueError(f"start, end and follow must agree on the number of tags: {found}")
        first = next(iter(masks.values()))
        tags = first.shape[0]
        names = None if labels is None else checked_labels(labels)
        if names is not None and len(names) != tags:
            raise ValueError(
                f"labels: expected one label for each of {tags} tags, got {len(names)}"
            )
        for name in given:
            mask = masks.get(name)
            if mask is None:
                mask = first.new_ones((tags, tags) if name == "follow" else (tags,))
            object.__setattr__(self, name, mask)  # the dataclass is frozen
        object.__setattr__(self, "labels", names)
        reachable = None
        if values_readable(self.start):
            reachable = ReachableTags(self.start, self.end, self.follow)
            reachable.tables()  # a graph that uses the structure later cannot compute them
        object.__setattr__(self, "reachable", reachable)
        object.__setattr__(self, "_stored", {})

    @classmethod
    def from_labels(
        cls,
        labels: Sequence[str] | Mapping[int, str] | Mapping[str, str],
        scheme: str,
        *,
        allow_partial_start: bool = False,
        allow_partial_end: bool = False,
    ) -> Structure:
        """Return the structure that allows exactly the well-formed sequences of a tag scheme.

        Args:
            labels: the label of each tag, in the order of the tag ids; or a dict from each of the
                ids 0, ..., T - 1 to its label, such as `config.id2label` of a transformers model
                (JSON makes the ids strings, which is fine). A label is a prefix, or a prefix, "-"
                and a type: "O", "B-PER", "B-MISC-x" (type "MISC-x"), "B" (type "").
            scheme: one of the names below, in upper or lower case.

                - "BIO" = "IOB2": a mention begins with B-X and goes on with I-X.
                - "IOB1": a mention consists of I-X; its first tag is B-X if and only if it comes
                  directly after a mention of the same type.
                - "BIOES" = "IOBES" = "BIOUL" = "BILOU": a mention is S-X, or B-X I-X ... I-X E-X.
                  L is read as E and U as S, whichever of the four names is given.
                - "BIES" = "BMES": the same without O, for segmentation. M is read as I.

                For any other scheme give the masks to the constructor.
            allow_partial_start: allow every tag at the first position. Use it for windows of a
                document, which may begin inside a mention (or, in IOB1, directly after one).
            allow_partial_end: allow every tag at the last position.

        Example:
            >>> structure = Structure.from_labels({0: "O", 1: "B-PER", 2: "I-PER"}, "BIO")
            >>> structure.follow[0].tolist()  # O may be followed by O and B-PER, not by I-PER
            [True, True, False]
            >>> structure.labels
            ('O', 'B-PER', 'I-PER')
        """
        rules = TagScheme.named(scheme)
        names = checked_labels(labels)
        parsed = _parse_labels(names, scheme, rules)
        start = [allow_partial_start or rules.may_follow(OUTSIDE, tag) for tag in parsed]
        end = [allow_partial_end or rules.may_follow(tag, OUTSIDE) for tag in parsed]
        follow = [[rules.may_follow(tag, next_tag) for next_tag in parsed] for tag in parsed]
        return cls(start, end, follow, names)

    @classmethod
    def _unchecked(
        cls,
        masks: Iterable[Any],
        labels: tuple[str, ...] | None,
        reachable: ReachableTags | None = None,
    ) -> Structure:
        """Return a structure without validation.

        While torch.export or torch.compile traces a structure, the masks may be objects other than
        tensors, which stand for them.
        """
        structure = object.__new__(cls)
        for name, mask in zip(_MASKS, masks, strict=True):
            object.__setattr__(structure, name, mask)
        object.__setattr__(structure, "labels", labels)
        object.__setattr__(structure, "reachable", reachable)
        object.__setattr__(structure, "_stored", {})
        return structure

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_stored": {}}  # a pickle must not need a GPU

    @property
    def num_tags(self) -> int:
        """T, the number of tags."""
        return self.start.shape[0]

    def to(self, device: torch.device | str | int) -> Structure:
        """Return the same structure with its masks on `device`.

        The result is stored: a later call with this device copies nothing.

        Example:
            >>> from bcrf import Structure
            >>> Structure(start=[True, False]).to("cpu").start.device
            device(type='cpu')
        """
        device = torch.device(device)
        if device.index is None and device.type == "cuda":
            device = torch.device("cuda", torch.cuda.current_device())
        if self.start.device == device:
            return self
        found: Structure | None = self._stored.get(device)
        if found is None:
            with torch.inference_mode(False):  # training may use the stored masks later
                masks = [mask.to(device=device) for mask in (self.start, self.end, self.follow)]
                if self.reachable is not None:
                    self.reachable.placed(device)
            found = self._unchecked(masks, self.labels, self.reachable)
            self._store(device, found, found.start)
        return found

    def removal_scores(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return the rules as scores to add: 0 where allowed, and -inf where forbidden.

        The scores are stored for the next call.

        Returns:
            [2T], the scores of start tags, then of end tags; and [T, T], those of transitions.
        """
        found: tuple[Tensor, Tensor] | None = self._stored.get(dtype)
        if found is None:
            with torch.inference_mode(False):  # training may use the stored scores later
                allowed = (torch.cat([self.start, self.end]), self.follow)
                start_end, follow = (
                    torch.zeros(x.shape, dtype=dtype, device=x.device).masked_fill(~x, -math.inf)
                    for x in allowed
                )
            found = (start_end, follow)
            self._store(dtype, found, follow)
        return found

    def _store(self, key: object, value: object, example: Tensor) -> None:
        """Store `value` under `key`, unless `example`, one of its tensors, belongs to a graph."""
        if not (torch.compiler.is_compiling() or in_transform()) and type(example) is Tensor:
            self._stored[key] = value

    def intersect(self, other: Structure) -> Structure:
        """Return the structure that allows exactly what both structures allow.

        Both must be on one device, and have the same number of tags. The result has no labels.

        Example:
            >>> from bcrf import Structure
            >>> Structure(start=[True, False]).intersect(Structure(end=[True, False]))
            Structure(start=1/2, end=1/2, follow=4/4 allowed)
        """
        masks = (getattr(self, name) & getattr(other, name) for name in _MASKS)
        one, two = self.reachable, other.reachable
        return self._unchecked(masks, None, one.intersect(two) if one and two else None)

    def __repr__(self) -> str:
        masks = ("start", self.start), ("end", self.end), ("follow", self.follow)
        counts = ", ".join(f"{name}={_allowed_share(mask)}" for name, mask in masks)
        labels = ""
        if self.labels is not None:
            more = ", ..." if len(self.labels) > _SHOWN_LABELS else ""
            labels = f"; labels: {', '.join(self.labels[:_SHOWN_LABELS])}{more}"
        return f"{type(self).__name__}({counts} allowed{labels})"


_MASKS = ("start", "end", "follow")


def checked_labels(labels: Any) -> tuple[str, ...]:
    """Return the labels in the order of the tag ids."""
    if isinstance(labels, Mapping):
        labels = _in_order_of_ids(labels)
    if isinstance(labels, str) or not isinstance(labels, Sequence):
        raise TypeError(
            "labels: expected a list or tuple of str in the order of the tag ids, or a dict from "
            f"tag id to label, got {type(labels).__name__}"
        )
    if not labels:
        raise ValueError("labels: expected at least one label, got none")
    for tag, label in enumerate(labels):
        if not isinstance(label, str):
            raise TypeError(
                f"labels[{tag}]: expected a str, got {label!r} ({type(label).__name__})"
            )
    return tuple(labels)


def _in_order_of_ids(labels: Mapping[Any, Any]) -> list[Any]:
    """Return the values of `id2label`, whose keys must be the ids 0, ..., T - 1."""
    by_id: dict[int, Any] = {}
    for key, label in labels.items():
        is_id = type(key) is int or (isinstance(key, str) and key.isascii() and key.isdigit())
        # The length is limited because int() refuses strings of thousands of digits.
        if not is_id or len(str(key)) > 9:
            raise TypeError(
                f"labels: expected a dict from tag id to label, such as {{0: 'O', 1: 'B-PER'}}, "
                f"got the key {key!r}" + (" (is this label2id?)" if type(label) is int else "")
            )
        if int(key) in by_id:
            raise ValueError(f"labels: the id {int(key)} occurs twice, as int and as str")
        by_id[int(key)] = label
    missing = next((tag for tag in range(len(by_id)) if tag not in by_id), None)
    if missing is not None:
        raise ValueError(
            f"labels: expected the ids 0 to {len(by_id) - 1} for {len(by_id)} labels; "
            f"{missing} is missing, got {sorted(by_id)}"
        )
    return [by_id[tag] for tag in range(len(by_id))]


def _parse_labels(labels: Sequence[str], scheme: str, rules: TagScheme) -> list[ParsedLabel]:
    """Return the prefix and type of each label; raise if two labels mean the same."""
    index_of: dict[ParsedLabel, int] = {}
    for index, label in enumerate(labels):
        try:
            parsed = rules.parse(label)
        except ValueError as error:
            raise ValueError(f"labels[{index}], scheme {scheme!r}: {error}") from None
        if parsed in index_of:
            first = index_of[parsed]
            raise ValueError(
                f"labels[{index}]: {label!r} means the same as labels[{first}], "
                f"{labels[first]!r}; expected distinct labels"
            )
        index_of[parsed] = index
    return list(index_of)


def _common_device(given: dict[str, Any]) -> torch.device | None:
    """Return the device of the tensors among the arguments; None if all are lists."""
    devices = {name: value.device for name, value in given.items() if isinstance(value, Tensor)}
    if len(set(devices.values())) > 1:
        found = ", ".join(f"{name} is on {device}" for name, device in devices.items())
        raise ValueError(f"start, end and follow must be on one device: {found}")
    return next(iter(devices.values()), None)


def _as_mask(name: str, value: Any, dims: int, device: torch.device | None) -> Tensor:
    """Return a bool copy of one argument: [T] for dims = 1, [T, T] for dims = 2."""
    expected = f"a bool tensor or list of shape {'[T]' if dims == 1 else '[T, T]'}"
    if isinstance(value, Tensor):
        mask = value.detach().clone()
    else:
        try:
            mask = torch.tensor(value, device=device or "cpu")
        except (TypeError, ValueError, RuntimeError) as error:
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(f"{name}: expected {expected}, got {value!r} ({error})") from error
    # The shape is checked before the type, because an empty list becomes a float tensor.
    if mask.dim() != dims or len(set(mask.shape)) != 1 or mask.numel() == 0:
        raise ValueError(f"{name}: expected {expected}, T >= 1, got shape {list(mask.shape)}")
    if mask.dtype != torch.bool:
        # Numbers are not cast to bool: a matrix of scores, given by mistake, would be accepted.
        raise TypeError(f"{name}: expected {expected}, got dtype {mask.dtype}")
    return mask


def _allowed_share(mask: Any) -> str:
    """Return "True entries/all entries" of a mask as text, such as "8/9"."""
    try:
        return f"{int(mask.sum())}/{mask.numel()}"
    except Exception:  # tracing puts other objects in place of a mask; a repr must not fail
        return repr(mask)


def _flatten(structure: Structure) -> tuple[list[Any], tuple[str, ...] | None]:
    return [structure.start, structure.end, structure.follow], structure.labels


def _unflatten(masks: Iterable[Any], labels: tuple[str, ...] | None) -> Structure:
    return Structure._unchecked(masks, labels)


register_pytree_node(
    Structure,
    _MASKS,
    _flatten,
    _unflatten,
    # JSON turns the tuple of labels into a list; torch compares labels as tuples.
    to_dumpable_context=lambda labels: labels,
    from_dumpable_context=lambda labels: None if labels is None else tuple(labels),
)
