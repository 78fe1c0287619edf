"""Which tag sequences are allowed: tag schemes and constraints as boolean arcs, and the trim.

Constraints are data. A :class:`Structure` says which tags may start a sentence, end it, and follow
each other; it is never written into a trainable parameter. :func:`live_tags` finds the tags that
lie on an allowed path at all, so that inference may treat every other tag as deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .checks import values_visible
from .loops import fixpoint, in_graph
from .scan import suffix_products
from .torch_internals import register_pytree_node

__all__ = ["Structure", "live_tags"]

# Scheme names (upper case) -> the scheme that states the rules.
_SCHEMES = {
    "BIO": "BIO",
    "IOB2": "BIO",
    "IOB1": "IOB1",
    "BIOES": "BIOES",
    "IOBES": "BIOES",
    "BIOUL": "BIOES",
    "BILOU": "BIOES",
    "BIES": "BIES",
    "BMES": "BIES",
}

# Scheme -> the prefixes it accepts -> what they mean, in the letters B, I, O, E, S.
_PREFIXES = {
    "BIO": {"B": "B", "I": "I", "O": "O"},
    "IOB1": {"B": "B", "I": "I", "O": "O"},
    "BIOES": {"B": "B", "I": "I", "O": "O", "E": "E", "S": "S", "L": "E", "U": "S"},
    "BIES": {"B": "B", "I": "I", "M": "I", "E": "E", "S": "S"},
}

# The meaning of a label: its letter and its type. Outside also stands for "before the sentence" and
# "after the sentence": in every scheme a tag may start (end) a sentence iff it may follow (precede)
# a token that belongs to no mention.
_Meaning = tuple[str, str]
_OUTSIDE: _Meaning = ("O", "")


@dataclass(frozen=True, eq=False, repr=False, init=False)
class Structure:
    """Which of T tags may start a sentence, end it, and follow each other.

    Args:
        start: bool [T], True where the tag may be the first of a sentence.
        end: bool [T], True where the tag may be the last of a sentence.
        follow: bool [T, T], axes from -> to, True where `to` may come directly after `from`.

    Each is a bool tensor or a (nested) list of bools; None means that everything is allowed. At
    least one must be given, and all must agree on T. Tensors are copied, so that later changes of
    the caller's tensors do not change the structure. A structure is a pytree whose leaves are
    `start`, `end`, `follow`. It is compared and hashed by identity.
    """

    start: Tensor
    end: Tensor
    follow: Tensor

    def __init__(
        self,
        start: Tensor | Sequence[bool] | None = None,
        end: Tensor | Sequence[bool] | None = None,
        follow: Tensor | Sequence[Sequence[bool]] | None = None,
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
        for name in given:
            if name not in masks:
                masks[name] = first.new_ones((tags, tags) if name == "follow" else (tags,))
        _set_masks(self, masks["start"], masks["end"], masks["follow"])

    @classmethod
    def from_labels(
        cls,
        labels: Sequence[str],
        scheme: str,
        *,
        allow_partial_start: bool = False,
        allow_partial_end: bool = False,
    ) -> Structure:
        """The structure whose allowed sequences are exactly the well-formed encodings of a scheme.

        Args:
            labels: the label of each tag, in the order of the tag ids. A label is a prefix, or a
                prefix, "-" and a type: "O", "B-PER", "B-MISC-x" (type "MISC-x"), "B" (type "").
            scheme: one of the names below, in upper or lower case.

                - "BIO" = "IOB2": a mention begins with B-X and goes on with I-X.
                - "IOB1": a mention consists of I-X; its first tag is B-X iff it comes directly
                  after a mention of the same type.
                - "BIOES" = "IOBES" = "BIOUL" = "BILOU": a mention is S-X, or B-X I-X ... I-X E-X.
                  L is read as E and U as S, whichever of the four names is given.
                - "BIES" = "BMES": the same without O, for segmentation. M is read as I.

                For any other scheme give the masks to the constructor.
            allow_partial_start: allow every tag at the first position, for windows cut out of a
                document: the window may begin inside a mention (or, in IOB1, directly after one).
            allow_partial_end: likewise at the last position.
        """
        rules = _scheme_rules(scheme)
        meanings = _parse_labels(labels, scheme, _PREFIXES[rules])
        start = [allow_partial_start or _may_follow(rules, _OUTSIDE, tag) for tag in meanings]
        end = [allow_partial_end or _may_follow(rules, tag, _OUTSIDE) for tag in meanings]
        follow = [[_may_follow(rules, tag, next_) for next_ in meanings] for tag in meanings]
        return cls(start, end, follow)

    @property
    def num_tags(self) -> int:
        """T, the number of tags."""
        return self.start.shape[0]

    def to(self, device: torch.device | str | int) -> Structure:
        """The same structure with its masks on `device`."""
        masks = (mask.to(device=device) for mask in (self.start, self.end, self.follow))
        return _unflatten(masks, None)

    def __repr__(self) -> str:
        masks = ("start", self.start), ("end", self.end), ("follow", self.follow)
        counts = ", ".join(f"{name}={_allowed_share(mask)}" for name, mask in masks)
        return f"{type(self).__name__}({counts} allowed)"


def live_tags(allowed_nodes: Tensor, allowed_pairs: Tensor, lengths: Tensor) -> Tensor:
    """The trim: the tags that lie on at least one allowed path through their sentence.

    A tag is live at a position iff it can be reached from the first position of the sentence and
    reaches the last one, through allowed nodes and pairs. A sentence without any allowed path has
    no live tag at any position.

    Args:
        allowed_nodes: bool [B, n, T], which tags each position may have. Constraints on the first
            and the last tag of a sentence belong here too.
        allowed_pairs: bool [T, T], shared by all edges, or bool [B, n - 1, T, T], axes from -> to.
        lengths: int64 [B], between 0 and n.

    Returns:
        bool [B, n, T], False at and beyond the length.

    In eager mode the control flow depends on the shapes only, so nothing waits for the device. On a
    CPU it is a loop over positions; elsewhere, where a loop of small steps is slow, a scan in log
    depth. A graph, which has to serve all lengths, repeats one parallel step.
    """
    n = allowed_nodes.shape[1]
    if n == 0:
        return allowed_nodes.clone()
    position = torch.arange(n, device=allowed_nodes.device)
    last = (position == lengths.unsqueeze(-1) - 1).unsqueeze(-1)
    if values_visible(allowed_nodes):
        return _live_by_loop(allowed_nodes, allowed_pairs, last)
    if in_graph():
        inside = (position < lengths.unsqueeze(-1)).unsqueeze(-1)
        return _live_by_rounds(allowed_nodes & inside, allowed_pairs, last)
    return _live_by_scan(allowed_nodes, allowed_pairs, last)


def _live_by_loop(nodes: Tensor, pairs: Tensor, last: Tensor) -> Tensor:
    """Two passes over the positions; `last` bool [B, n, 1] marks the last ones."""
    n = nodes.shape[1]
    node, end = nodes.unbind(1), last.unbind(1)
    if pairs.dim() == 2:
        edges: Sequence[Tensor] = [pairs.float()] * (n - 1)
    else:
        # Edges stay bool until their turn: all of them as floats would take four times the memory.
        edges = pairs.unbind(1)

    reached = [node[0]]
    for i in range(1, n):
        reached.append(node[i] & _successors(reached[-1], edges[i - 1]))

    # What a reached tag leads to is reached as well, so the backward pass over reached tags alone
    # yields the intersection of both passes; no tag reached at the last position, no live tag.
    live = [reached[-1] & end[-1]]
    for i in range(n - 2, -1, -1):
        live.append(reached[i] & (end[i] | _successors(live[-1], edges[i].mT)))
    return torch.stack(live[::-1], dim=1)


def _live_by_scan(nodes: Tensor, pairs: Tensor, last: Tensor) -> Tensor:
    """The same in log depth, by products of 0/1 matrices.

    Beyond a sentence's end matrices are the identity, so that its last tags count as the batch's.
    """
    beyond = (last.cumsum(1) > 0)[:, :-1].unsqueeze(-1) | (~last.any(1, keepdim=True)).unsqueeze(-1)
    identity = torch.eye(nodes.shape[-1], dtype=torch.bool, device=nodes.device)
    arcs = nodes[:, :-1].unsqueeze(-1) & pairs & nodes[:, 1:].unsqueeze(-2)
    matrices = torch.where(beyond, identity, arcs).float()
    start, end = nodes[:, 0].float(), (nodes & last).any(1).float()
    onward = suffix_products(matrices, end, _and_or, _and_or_vector) > 0
    back = suffix_products(matrices.mT.flip(1), start, _and_or, _and_or_vector).flip(1) > 0
    inside = last.flip(1).cumsum(1).flip(1) > 0
    return nodes & onward & back & inside


def _live_by_rounds(nodes: Tensor, pairs: Tensor, last: Tensor) -> Tensor:
    """The same by rounds over all positions at once, until nothing changes.

    A tag dies that no live tag leads to, or that leads to none. Whatever is left has a live
    neighbour on both sides, theirs have, and so on: a path. Rounds are as many as the positions
    that a death has to travel: one or two, mostly, and n at worst. `nodes` is False beyond the
    length.
    """
    arrive, leave = pairs.float(), pairs.float().mT

    def round_(live: Tensor) -> Tensor:
        reached = live[:, 1:] & _successors(live[:, :-1], arrive)
        live = torch.cat([live[:, :1], reached], 1)
        onward = live[:, :-1] & (last[:, :-1] | _successors(live[:, 1:], leave))
        return torch.cat([onward, live[:, -1:]], 1)

    return fixpoint(round_, nodes)


def _and_or(a: Tensor, b: Tensor) -> Tensor:
    """The product of 0/1 matrices over or and and, as 0/1."""
    return (a @ b > 0).to(a.dtype)


def _and_or_vector(matrix: Tensor, vector: Tensor) -> Tensor:
    return _and_or(matrix, vector.unsqueeze(-1)).squeeze(-1)


def _successors(tags: Tensor, edge: Tensor) -> Tensor:
    """The tags that follow a set of tags: bool [..., T], [T, T] or [..., T, T] -> bool [..., T].

    A float product counts the predecessors. On a CPU that beats a boolean `any` by far, except for
    few tags per pair, where it costs a quarter more; it is right in any precision, because no sum
    of ones rounds to 0.
    """
    return (tags.float().unsqueeze(-2) @ edge.float()).squeeze(-2) > 0


def _may_follow(rules: str, tag: _Meaning, next_: _Meaning) -> bool:
    """Whether `next_` may come directly after `tag`."""
    (letter, kind), (next_letter, next_kind) = tag, next_
    in_same_mention = letter in "BI" and kind == next_kind
    if rules == "BIO":
        return next_letter != "I" or in_same_mention
    if rules == "IOB1":
        return next_letter != "B" or in_same_mention
    if letter in "BI":  # BIOES and BIES: the mention is still open
        return next_letter in "IE" and in_same_mention
    return next_letter in "OBS"


def _scheme_rules(scheme: str) -> str:
    rules = _SCHEMES.get(scheme.upper()) if isinstance(scheme, str) else None
    if rules is None:
        raise ValueError(f"scheme: expected one of {', '.join(_SCHEMES)}, got {scheme!r}")
    return rules


def _parse_labels(labels: Sequence[str], scheme: str, prefixes: dict[str, str]) -> list[_Meaning]:
    if isinstance(labels, str) or not isinstance(labels, Sequence):
        raise TypeError(
            "labels: expected a list or tuple of str in the order of the tag ids, "
            f"got {type(labels).__name__}"
        )
    if not labels:
        raise ValueError("labels: expected at least one label, got none")
    index_of: dict[_Meaning, int] = {}
    for index, label in enumerate(labels):
        meaning = _parse_label(label, index, scheme, prefixes)
        if meaning in index_of:
            first = index_of[meaning]
            raise ValueError(
                f"labels[{index}]: {label!r} means the same as labels[{first}], "
                f"{labels[first]!r}; expected distinct labels"
            )
        index_of[meaning] = index
    return list(index_of)


def _parse_label(label: str, index: int, scheme: str, prefixes: dict[str, str]) -> _Meaning:
    if not isinstance(label, str):
        raise TypeError(f"labels[{index}]: expected a str, got {label!r} ({type(label).__name__})")
    prefix, dash, kind = label.partition("-")
    if prefix not in prefixes:
        raise ValueError(
            f"labels[{index}]: {label!r} is no label of scheme {scheme!r}; expected a prefix out "
            f'of {", ".join(prefixes)}, alone or followed by "-" and a type'
        )
    if prefix == "O" and dash:
        raise ValueError(f"labels[{index}]: {label!r} has a type; expected plain 'O'")
    if dash and not kind:
        raise ValueError(f"labels[{index}]: {label!r} has no type after '-'; write {prefix!r}")
    return prefixes[prefix], kind


def _common_device(given: dict[str, Any]) -> torch.device | None:
    """The device of the tensors among the arguments; None if all are lists."""
    devices = {name: value.device for name, value in given.items() if isinstance(value, Tensor)}
    if len(set(devices.values())) > 1:
        found = ", ".join(f"{name} is on {device}" for name, device in devices.items())
        raise ValueError(f"start, end and follow must be on one device: {found}")
    return next(iter(devices.values()), None)


def _as_mask(name: str, value: Any, dims: int, device: torch.device | None) -> Tensor:
    """A private bool copy of one argument: [T] for dims = 1, [T, T] for dims = 2."""
    expected = f"a bool tensor or list of shape {'[T]' if dims == 1 else '[T, T]'}"
    if isinstance(value, Tensor):
        mask = value.detach().clone()
    else:
        try:
            mask = torch.tensor(value, device=device or "cpu")
        except (TypeError, ValueError, RuntimeError) as error:
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(f"{name}: expected {expected}, got {value!r} ({error})") from error
    # Checked before the type, because an empty list has no type and becomes a float tensor.
    if mask.dim() != dims or len(set(mask.shape)) != 1 or mask.numel() == 0:
        raise ValueError(f"{name}: expected {expected}, T >= 1, got shape {list(mask.shape)}")
    if mask.dtype != torch.bool:
        # 0/1 is not cast: a matrix of scores given by mistake would pass for a mask.
        raise TypeError(f"{name}: expected {expected}, got dtype {mask.dtype}")
    return mask


def _allowed_share(mask: Any) -> str:
    """How many entries of a mask are True, for printing."""
    try:
        return f"{int(mask.sum())}/{mask.numel()}"
    except Exception:  # a repr must not fail on what tracing puts in place of a mask
        return repr(mask)


def _set_masks(structure: Structure, start: Any, end: Any, follow: Any) -> None:
    for name, mask in (("start", start), ("end", end), ("follow", follow)):
        object.__setattr__(structure, name, mask)  # the dataclass is frozen


def _flatten(structure: Structure) -> tuple[list[Any], None]:
    return [structure.start, structure.end, structure.follow], None


def _unflatten(leaves: Iterable[Any], context: None) -> Structure:
    """No validation: torch.export and torch.compile put arbitrary objects in place of tensors."""
    structure = object.__new__(Structure)
    _set_masks(structure, *leaves)
    return structure


register_pytree_node(Structure, ("start", "end", "follow"), _flatten, _unflatten)
