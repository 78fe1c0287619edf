"""Trimming when only a `Structure` removes tags: live tags from tables, without reading scores.

Without other removals, a tag is live at position i of a sentence of length L if and only if

    it is reachable from a start tag in i steps, and it reaches an end tag in L - 1 - i steps.

The set of tags that are reachable in i steps is a function of the set for i - 1. There are finitely
many sets, so the sequence of sets becomes periodic. A table of the sets before and in the first
period therefore serves all lengths. Most structures need two or three rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from ..compat.private_torch import in_transform
from .trimming import live_tags

__all__ = [
    "ReachableInSegments",
    "ReachableTags",
    "Rules",
    "divides_into_segments",
    "has_tables",
    "static_live",
]

# A structure that needs more rows than this gets no table; `live_tags` then runs instead. The
# period is a common multiple of the lengths of cycles, so it can be large: 180180 for 50 tags.
_MAX_ROWS = 1024

# In eager mode the tables are continued up to the longest sentence so far, and at least to this
# length.
_LEAST_POSITIONS = 128


class Rules(Protocol):
    """The attributes of a `Structure` that trimming reads."""

    @property
    def start(self) -> Tensor: ...
    @property
    def end(self) -> Tensor: ...
    @property
    def follow(self) -> Tensor: ...
    @property
    def reachable(self) -> ReachableTags | None: ...


def static_live(structure: Rules, lengths: Tensor, n: int) -> Tensor:
    """Return the live tags of sentences in which only `structure` removes tags and transitions.

    The result equals that of `live_tags`. With tables (see `ReachableTags`) it takes at most five
    launches, and never waits for the device. Without tables we call `live_tags`.

    Args:
        structure: on the device of `lengths`.
        lengths: int64 [B], between 0 and n.

    Returns:
        bool [B, n, T], False at and beyond the length; it may share memory between tags.
    """
    reachable = structure.reachable
    tables = None if reachable is None else reachable.tables()
    if reachable is None or tables is None:
        return _live_without_tables(structure, lengths, n)
    if isinstance(reachable, ReachableInSegments):
        return reachable.live(lengths, n)
    device, num_tags = lengths.device, structure.start.shape[0]
    if reachable.everything:
        inside = torch.arange(n, device=device) < lengths.unsqueeze(1)
        return inside.unsqueeze(-1).expand(-1, -1, num_tags)
    if torch.compiler.is_compiling():
        # One graph serves all n: the tables cannot be continued up to a symbolic length.
        position = torch.arange(n, device=device)
        forward, backward = reachable.placed(device) or tables
        remaining = (lengths.unsqueeze(1) - position).clamp(min=0)
        return forward.at(position) & backward.at(remaining)
    position, from_start, to_end = reachable.continued(device, n)
    remaining = (lengths.unsqueeze(1) - position[:n]).clamp(min=0)
    return from_start[:n] & to_end[remaining]


def has_tables(structure: Rules) -> bool:
    """Return whether `static_live` finds the live tags in tables."""
    return structure.reachable is not None and structure.reachable.tables() is not None


def _live_without_tables(structure: Rules, lengths: Tensor, n: int) -> Tensor:
    position = torch.arange(n, device=lengths.device)
    first = (position == 0).unsqueeze(-1)
    last = (position == lengths.unsqueeze(1) - 1).unsqueeze(-1)
    inside = (position < lengths.unsqueeze(1)).unsqueeze(-1)
    nodes = inside & (structure.start | ~first) & (structure.end | ~last)
    return live_tags(nodes, structure.follow, lengths)


class PeriodicRows(NamedTuple):
    """An infinite sequence of sets of tags: `rows`, of which the last ones repeat forever.

    Attributes:
        rows: bool [K, T].
        repeats_from: the first row of the period, which ends with the last row.
    """

    rows: Tensor
    repeats_from: int

    def place(self, device: torch.device) -> PeriodicRows:
        return PeriodicRows(self.rows.to(device), self.repeats_from)

    def at(self, index: Tensor) -> Tensor:
        """Return the sets [..., T] with the numbers `index` [...], which are >= 0."""
        first, count = self.repeats_from, self.rows.shape[0]
        if count - first == 1:
            return self.rows[index.clamp(max=first)]
        repeated = first + (index - first) % (count - first)
        return self.rows[torch.where(index < first, index, repeated)]


class ReachableTags:
    """The tags of a structure that are some steps away from a start tag, or from an end tag.

    Args:
        start, end, follow: the masks of the structure, on the CPU.

    Attributes:
        everything: whether all tags are live at all positions of all sentences; known after a call
            of `tables`.
    """

    def __init__(self, start: Tensor, end: Tensor, follow: Tensor) -> None:
        self.masks = (start, end, follow)
        self.everything = False
        self._computed = False
        self._tables: tuple[PeriodicRows, PeriodicRows] | None = None
        self._continued: dict[torch.device, tuple[Tensor, Tensor, Tensor]] = {}
        self._placed: dict[torch.device, tuple[PeriodicRows, PeriodicRows]] = {}

    def __getstate__(self) -> dict[str, object]:
        # A pickle must not need a GPU.
        return self.__dict__ | {"_continued": {}, "_placed": {}}

    def placed(self, device: torch.device) -> tuple[PeriodicRows, PeriodicRows] | None:
        """Return the tables on `device`, or None if there are none.

        They are stored, so that a graph finds them on its device and need not copy them.
        """
        found = self._placed.get(device)
        tables = self.tables()
        if found is None and tables is not None:
            forward, backward = tables
            found = (forward.place(device), backward.place(device))
            if not (torch.compiler.is_compiling() or in_transform()):
                self._placed[device] = found
        return found

    def intersect(self, other: ReachableTags) -> ReachableTags:
        """Return the object of the structure that allows what both structures allow."""
        start, end, follow = (a & b for a, b in zip(self.masks, other.masks, strict=True))
        return ReachableTags(start, end, follow)

    def tables(self) -> tuple[PeriodicRows, PeriodicRows] | None:
        """Return the reachable tags, and the finishing tags, on the CPU.

        The first sequence has the tags that are reachable from a start tag in 0, 1, ... steps. The
        second one has the empty set, and then the tags that reach an end tag in 0, 1, ... steps.
        The result is None if the tables would be long. In a graph it is also None if no call before
        computed it.
        """
        if not self._computed and not torch.compiler.is_compiling():
            self._tables = self._compute()
            self._computed = True
        return self._tables

    def _compute(self) -> tuple[PeriodicRows, PeriodicRows] | None:
        start, end, follow = self.masks
        forward = _reachable_sets(start, follow)
        backward = None if forward is None else _reachable_sets(end, follow.mT)
        if forward is None or backward is None:
            return None
        self.everything = bool(forward.rows.all()) and bool(backward.rows.all())
        none = torch.zeros_like(backward.rows[:1])
        return forward, PeriodicRows(torch.cat([none, backward.rows]), backward.repeats_from + 1)

    def continued(self, device: torch.device, n: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return 0, 1, ..., and the tables [N, T], [N + 1, T] for N >= n, on `device`.

        They are stored for the next call.
        """
        found = self._continued.get(device)
        if found is None or found[0].shape[0] < n:
            tables = self._tables
            assert tables is not None
            size = max(_LEAST_POSITIONS, 1 << max(n - 1, 0).bit_length())
            position = torch.arange(size + 1, device="cpu")
            forward, backward = (rows.at(position) for rows in tables)
            found = (position[:-1].to(device), forward[:-1].to(device), backward.to(device))
            # Under a function transform or a dispatch mode, new tensors may be wrappers, which must
            # not be used after it ends. We do not store them.
            if not in_transform() and all(type(x) is Tensor for x in found):
                self._continued[device] = found
        return found


class ReachableInSegments(ReachableTags):
    """The reachable tags of sentences that consist of independent segments.

    A segment begins with a start tag and ends with an end tag, as a sentence does. White space, for
    example, divides a text into segments that are words or sequences of words. Any end tag may be
    followed by any start tag, so whether a tag is live depends on its own segment alone.

    Args:
        whole: the reachable tags of the structure.
        starts: bool [B, n], True where a segment begins. The first position of a sentence always
            begins one. Later positions than n, in a padded graph, begin none.

    The structure must be one for which `divides_into_segments` is True.
    """

    def __init__(self, whole: ReachableTags, starts: Tensor) -> None:
        super().__init__(*whole.masks)
        self._computed, self._tables = True, whole.tables()
        self._starts = starts

    def live(self, lengths: Tensor, n: int) -> Tensor:
        """Return the live tags, bool [B, n, T]; see `static_live`."""
        tables = self.tables()
        assert tables is not None
        forward, backward = tables
        position = torch.arange(n, device=lengths.device)
        inside = position < lengths.unsqueeze(1)
        last = position == lengths.unsqueeze(1) - 1
        more = self._starts.new_zeros(self._starts.shape[0], n + 1 - self._starts.shape[1])
        # One position more than n, so that the last position has a next one.
        first = torch.cat([self._starts, more], 1) | (
            torch.arange(n + 1, device=lengths.device) == 0
        )
        before = _limited_distance(first[:, :-1], forward.repeats_from)
        ends = (first[:, 1:] | last).flip(1)
        after = _limited_distance(ends, backward.repeats_from - 1).flip(1) + 1
        return forward.at(before) & backward.at(torch.where(inside, after, 0))


def divides_into_segments(structure: Rules) -> bool:
    """Whether the live tags of segments can be found, see `ReachableInSegments`.

    Each start tag may follow each end tag, and live tags depend on the distances to both ends of a
    segment up to some distance only. Reads the masks, so it must not be called in a graph.
    """
    tables = None if structure.reachable is None else structure.reachable.tables()
    if tables is None or any(len(rows.rows) - 1 != rows.repeats_from for rows in tables):
        return False
    return bool(structure.follow[structure.end][:, structure.start].all())


def _limited_distance(marked: Tensor, limit: int) -> Tensor:
    """Return the distance [B, n] of each position to the last marked one, at most `limit`."""
    distance = torch.where(marked, 0, limit)
    for _ in range(limit - 1):
        beyond = torch.full_like(distance[:, :1], limit)
        previous = torch.cat([beyond, distance[:, :-1]], 1)
        distance = torch.minimum(distance, previous + 1)
    return distance


def _reachable_sets(first: Tensor, follow: Tensor) -> PeriodicRows | None:
    """Return the tags that are reachable from `first` (bool [T]) in 0, 1, ... steps.

    The result is None if there are more than `_MAX_ROWS` different sets. A set of tags is an int
    here, with a bit for each tag, which serves as the key of a dict.
    """
    successors = [_as_bits(row) for row in follow.tolist()]
    current, rows_of = _as_bits(first.tolist()), dict[int, int]()
    while current not in rows_of:
        if len(rows_of) == _MAX_ROWS:
            return None
        rows_of[current] = len(rows_of)
        following = 0
        for tag, successor in enumerate(successors):
            if current >> tag & 1:
                following |= successor
        current = following
    tags = range(len(successors))
    rows = [[bool(bits >> tag & 1) for tag in tags] for bits in rows_of]
    return PeriodicRows(torch.tensor(rows, device="cpu"), rows_of[current])


def _as_bits(members: Sequence[bool]) -> int:
    return sum(1 << tag for tag, member in enumerate(members) if member)
