"""The rows of a window as kernels see them: views of one block of integers, written by the host in one copy.

A `Section` is the room that one forward has in the block: the verify forward, the MTP head's catch-up, each step of its
chain, its pass over prompt rows. `Section.lay` writes segments into the staging side; `Rows` are the device side's
views, made once for each number of padded rows, so that a window creates no tensor and kernels get fixed addresses.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from strata_kernels.layout import (
    PAGE_TOKENS,
    QUERY_TILE,
    ROW_FIELDS,
    SLOT_FIELDS,
    SPLIT_PAGES,
    section_size,
    tiles,
)


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive rows of one slot. The first `len(tokens)` are known to the host; `drafts` rows follow whose tokens
    are the slot's drafts number `first_draft` and on, on the device. Row i stands at `position + i`.

    `certain`: prompt rows, which move the recurrent state at once; others wait for the window's verdict. `hidden`:
    for the MTP head, where in the hidden buffer each row's predecessor lies. `captures`: (rows of the segment after
    which the recurrent state is copied, place in the snapshot pool), rising.
    """

    slot: int
    position: int
    tokens: Sequence[int]
    drafts: int = 0
    first_draft: int = 0
    certain: bool = False
    hidden: Sequence[int] = ()
    captures: Sequence[tuple[int, int]] = ()

    @property
    def rows(self) -> int:
        return len(self.tokens) + self.drafts


@dataclass(slots=True)
class Rows:
    """The rows of one forward: R padded rows, decode rows first, then prompt rows, then padding; S slots, T tiles.

    Tensors are int64 on the device. Of a padding row only this holds: its token is 0, its place 0 (page 0 is nobody's),
    its slot S, and no tile has it.

        tokens, positions, slots, places [R]    places: flat KV place (page * PAGE_TOKENS + offset) it is written to
        sources [R]   where in the block its token lies;  hidden [R]  where in the hidden buffer its predecessor lies
        steps [R]     its number within its slot's rows
        tile_slots [T], tile_rows, tile_limits [T, QUERY_TILE]   rows of one slot; row 0, limit -1 for none
        tile_of [R]   tile * QUERY_TILE + place of each row
        tables [S, pages]   page ids of each slot, 0 where it has none
        first, many, certain, last [S]    first row and number of rows of each slot; certain: they are prompt rows;
            last: position of its last row

    Plain numbers, known to the host before the forward: `count` real rows, `decode` of them decode rows, `longest` run
    of one slot, `runs` the rows of each slot that has some, most first, `tiles` that have rows, `replay` the most
    pending rows of a slot, `splits` key splits to read, `captures` (slot, rows after which, snapshot place).
    """

    padded: int
    tokens: Tensor
    sources: Tensor
    positions: Tensor
    slots: Tensor
    places: Tensor
    hidden: Tensor
    steps: Tensor
    tile_of: Tensor
    tile_slots: Tensor
    tile_rows: Tensor
    tile_limits: Tensor
    first: Tensor
    many: Tensor
    certain: Tensor
    last: Tensor
    tables: Tensor
    count: int = 0
    decode: int = 0
    longest: int = 0
    runs: Sequence[int] = ()
    tiles: int = 0
    replay: int = 0
    splits: int = 0
    captures: Sequence[tuple[int, int, int]] = ()
    cache: dict[object, Any] = field(default_factory=dict)  # what a twin derives once a forward and needs in each layer
    views: dict[object, Any] = field(default_factory=dict)  # views of the tensors, which stay where they are


class Section:
    """One forward's part of the block: [start, start + section_size(rows, slots)).

    Args:
        block, staging: the integers on the device, and the host's side of them (the same memory on a CPU).
        start: where the section begins. rows: the most padded rows. tables: [S, pages] views of both sides.
        drafts_at, chain: where in the block the drafts [S, chain] lie.
    """

    def __init__(
        self,
        block: Tensor,
        staging: np.ndarray,
        start: int,
        rows: int,
        tables: tuple[Tensor, np.ndarray],
        drafts_at: int,
        chain: int,
    ):
        self.block, self.staging, self.start, self.limit = block, staging, start, rows
        self.tables, self.host_tables = tables
        self.slots = self.tables.shape[0]
        self.drafts_at, self.chain = drafts_at, chain
        self._views: dict[int, tuple[Rows, dict[str, np.ndarray], int]] = {}

    def end(self, padded: int) -> int:
        """Where the part that `padded` rows use ends: what is behind it need not be copied."""
        return self.start + section_size(padded, self.slots)

    def lay(self, segments: Sequence[Segment], padded: int, replay: int = 0) -> Rows:
        """Write segments (decode rows first, none empty, one a slot) into the staging side; the rows as kernels get
        them.
        """
        rows, host, start = self._view(padded)
        for array in host.values():
            array[...] = 0
        host["slots"][:] = self.slots
        host["tile_limits"][:] = -1
        at = tile = 0
        captures: list[tuple[int, int, int]] = []
        rows.decode = rows.longest = 0
        last = 0
        for s in segments:
            n, known, end = s.rows, len(s.tokens), at + s.rows
            place = np.arange(n)
            host["tokens"][at : at + known] = s.tokens
            host["sources"][at : at + known] = start + at + place[:known]
            host["sources"][at + known : end] = (
                self.drafts_at + s.slot * self.chain + s.first_draft + place[: n - known]
            )
            position = s.position + place
            host["positions"][at:end] = position
            host["slots"][at:end] = s.slot
            pages = self.host_tables[s.slot, position // PAGE_TOKENS]
            host["places"][at:end] = pages * PAGE_TOKENS + position % PAGE_TOKENS
            if len(s.hidden):
                host["hidden"][at:end] = s.hidden
            host["steps"][at:end] = place
            many = -(-n // QUERY_TILE)
            host["tile_slots"][tile : tile + many] = s.slot
            flat = slice(tile * QUERY_TILE, tile * QUERY_TILE + n)
            host["tile_rows"].reshape(-1)[flat] = at + place
            host["tile_limits"].reshape(-1)[flat] = position
            host["tile_of"][at:end] = tile * QUERY_TILE + place
            host["first"][s.slot], host["many"][s.slot], host["certain"][s.slot] = at, n, s.certain
            host["last"][s.slot] = s.position + n - 1
            captures += [(s.slot, after, to) for after, to in s.captures]
            rows.decode += 0 if s.certain else n
            rows.longest = max(rows.longest, n)
            last = max(last, s.position + n)
            at, tile = end, tile + many
        rows.count, rows.tiles, rows.replay, rows.captures = at, tile, replay, captures
        rows.runs = sorted((s.rows for s in segments), reverse=True)
        rows.splits = -(-last // (PAGE_TOKENS * SPLIT_PAGES))
        rows.cache.clear()
        return rows

    def _view(self, padded: int) -> tuple[Rows, dict[str, np.ndarray], int]:
        """Both sides' views for so many rows, and where the tokens begin in the block."""
        if padded not in self._views:
            assert padded <= self.limit, f"{padded} rows in a section of {self.limit}"
            many = tiles(padded, self.slots)
            shapes: dict[str, tuple[int, ...]] = dict.fromkeys(ROW_FIELDS, (padded,))
            shapes |= dict.fromkeys(SLOT_FIELDS, (self.slots,))
            shapes |= {"tile_slots": (many,), "tile_rows": (many, QUERY_TILE), "tile_limits": (many, QUERY_TILE)}
            device: dict[str, Any] = {}
            host: dict[str, np.ndarray] = {}
            at = self.start
            for name, shape in shapes.items():
                size = int(np.prod(shape))
                device[name] = self.block[at : at + size].view(shape)
                host[name] = self.staging[at : at + size].reshape(shape)
                at += size
            self._views[padded] = Rows(padded=padded, tables=self.tables, **device), host, self.start
        return self._views[padded]


@dataclass(slots=True)
class KVPool:
    """Paged keys and values of every attention layer, the MTP head's last: k, v [layers, N, PAGE_TOKENS, G, D]. Page 0
    is nobody's.
    """

    k: Tensor
    v: Tensor
    cache: dict[object, Any] = field(default_factory=dict)  # views and constants that a twin makes once


@dataclass(slots=True)
class RecurrentPool:
    """GatedDeltaNet state of every slot: float32.

    state [layers, S, H, K, V] and conv [layers, S, kernel - 1, C] are the committed ones. k, v, beta, decay, conv_rows
    [layers, S, rows, ...]: the inputs of each slot's last decode rows as the recurrence saw them (k normed, one a key
    head; decay = exp(g)); the first pending[layer, s] of them (int64) were kept and move the state before it is next
    read. A layer sets its own pending to 0 as the last thing of its replay, so a window that failed half way can be run
    again. snap_state [P, layers, ...], snap_conv [P, layers, ...]: copies for the prefix cache.
    """

    state: Tensor
    conv: Tensor
    k: Tensor
    v: Tensor
    beta: Tensor
    decay: Tensor
    conv_rows: Tensor
    pending: Tensor
    snap_state: Tensor
    snap_conv: Tensor
    cache: dict[object, Any] = field(default_factory=dict)  # views and constants that a twin makes once


def torch_dtype(name: str) -> torch.dtype:
    """The dtype of a name as `layout` gives it."""
    found = getattr(torch, name)
    assert isinstance(found, torch.dtype)
    return found
