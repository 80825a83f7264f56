"""Shapes of everything a process allocates beside the weights: pools, window buffers, sampler. No torch.

The memory plan adds them up before anything exists, the builder allocates by the same functions, so the two agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from strata_kernels.params import AttentionParams, GatedDeltaParams

PAGE_TOKENS = 64  # positions of a page; prefix-cache entries end at multiples of it, so shared pages are always whole
SPLIT_PAGES = 4  # pages of one pass over the keys: a fixed size, so that a longer neighbour changes no bit
QUERY_TILE = 8  # rows of one slot that read its keys together

ROW_FIELDS = ("tokens", "sources", "positions", "slots", "places", "hidden", "steps", "tile_of")
SLOT_FIELDS = ("first", "many", "certain", "last")

NO_RECURRENCE = GatedDeltaParams(hidden=0, key_heads=0, value_heads=0, key_dim=0, value_dim=0, kernel=1, eps=0.0)

ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int64": 8, "int32": 4, "bool": 1}


@dataclass(frozen=True, slots=True)
class Array:
    """A tensor to be allocated. `dtype` in torch's words."""

    shape: tuple[int, ...]
    dtype: str = "float32"

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * ITEM_BYTES[self.dtype]


Arrays = Mapping[str, Array]


def nbytes(arrays: Arrays) -> int:
    return sum(array.nbytes for array in arrays.values())


def table_pages(ctx: int) -> int:
    """Pages of a slot's table for `ctx` tokens: whole key splits."""
    return -(-ctx // (PAGE_TOKENS * SPLIT_PAGES)) * SPLIT_PAGES


def tiles(rows: int, slots: int) -> int:
    """Query tiles that any `rows` rows of `slots` slots fit in."""
    return rows // QUERY_TILE + min(rows, slots)


def section_size(rows: int, slots: int) -> int:
    """Integers that describe one forward of up to `rows` padded rows."""
    return len(ROW_FIELDS) * rows + len(SLOT_FIELDS) * slots + tiles(rows, slots) * (1 + 2 * QUERY_TILE)


def kv_pool(params: AttentionParams, layers: int, pages: int, dtype: str) -> dict[str, Array]:
    """Keys and values of `layers` attention layers, the MTP head's included."""
    shape = (layers, pages, PAGE_TOKENS, params.kv_heads, params.head_dim)
    return {"k": Array(shape, dtype), "v": Array(shape, dtype)}


def recurrent_pool(
    params: GatedDeltaParams | None, layers: int, slots: int, rows: int, places: int
) -> dict[str, Array]:
    """State of `layers` GatedDeltaNet layers. rows: the most decode rows of a slot; places: of the snapshot pool."""
    p = params or NO_RECURRENCE
    state, columns = (p.value_heads, p.key_dim, p.value_dim), (p.kernel - 1, p.channels)
    held = {
        "k": (rows, p.key_heads, p.key_dim),
        "v": (rows, p.value_heads, p.value_dim),
        "beta": (rows, p.value_heads),
        "decay": (rows, p.value_heads),
        "conv_rows": (rows, p.channels),
    }
    return {
        "state": Array((layers, slots, *state)),
        "conv": Array((layers, slots, *columns)),
        **{name: Array((layers, slots, *shape)) for name, shape in held.items()},
        "pending": Array((layers, slots), "int64"),
        "snap_state": Array((places, layers, *state)),
        "snap_conv": Array((places, layers, *columns)),
    }


def sampler_pool(slots: int, vocab: int) -> dict[str, Array]:
    """Sampling parameters and token counts of the slots."""
    names = ("temperature", "top_p", "min_p", "repetition", "frequency", "presence")
    whole = (slots, vocab)
    return {
        **{name: Array((slots,)) for name in names},
        "seeds": Array((slots,), "int64"),
        "counts": Array(whole, "int32"),
        "seen": Array(whole, "bool"),
        "bias": Array(whole),
    }


DRAW_FIELDS = ("rows", "slots", "positions", "earlier", "order")


@dataclass(frozen=True, slots=True)
class WindowSizes:
    """The largest window. slots S; chain T: most drafts of a slot; decode, prompt: most rows of each kind in a window;
    ring: hidden rows of a slot that may wait for the MTP head; pages: of a slot's table; places: of the snapshot pool.

    `tile`: windows are padded to multiples of so many rows.
    """

    slots: int
    chain: int
    decode: int
    prompt: int
    ring: int
    pages: int
    places: int
    tile: int

    def padded(self, rows: int) -> int:
        return -(-rows // self.tile) * self.tile

    @property
    def rows(self) -> int:
        return self.padded(self.decode + self.prompt)

    @property
    def draws(self) -> int:
        """A window draws its decode rows, and the last prompt row of any slot."""
        return self.padded(self.decode + self.slots)

    @property
    def catch_up(self) -> int:
        return self.padded(self.slots * self.ring)

    @property
    def steps(self) -> int:
        """Steps of the chain behind its first, which the catch-up gives."""
        return max(self.chain - 1, 0)

    def sections(self) -> dict[str, int]:
        """Integers of each part of the block, in order: what the host writes, and behind it the drafts."""
        small, draws = self.padded(self.slots), len(DRAW_FIELDS)
        parts = {"tables": self.slots * self.pages, "accept": 3 * self.slots, "judged": self.slots * self.chain}
        parts |= {"draws": draws * self.draws, "keep": 2 * (self.rows + self.places), "last": small}
        for step in range(1, self.chain + 1):
            parts[f"draws {step}"] = draws * small
            parts[f"put {step}"] = small
        for step in range(2, self.chain + 1):
            parts[f"chain {step}"] = section_size(small, self.slots)
        if self.ring:
            parts["catch-up"] = section_size(self.catch_up, self.slots)
        parts["verify"] = section_size(self.rows, self.slots)
        if self.ring:
            parts["prompt"] = section_size(self.padded(self.prompt), self.slots)
        return parts | {"drafts": self.slots * self.chain + 1}

    @property
    def hidden_rows(self) -> int:
        """Rows of the hidden buffer: a window's, each slot's ring, the chain's, the snapshots', and one for nobody."""
        return self.rows + (self.slots * self.ring + self.padded(self.slots) + self.places + 1 if self.ring else 0)


def window_buffers(sizes: WindowSizes, hidden: int, dtype: str, touched: tuple[int, int]) -> dict[str, Array]:
    """Everything that a window writes into beside the pools. touched: expert layers and experts of each."""
    return {
        "block": Array((sum(sizes.sections().values()),), "int64"),
        "hidden": Array((sizes.hidden_rows, hidden), dtype),
        "touched": Array(touched, "int64"),
        "probabilities": Array((sizes.chain, sizes.padded(sizes.slots))),
        "out": Array((sizes.slots * (sizes.chain + 2) + sizes.draws + 1,), "int64"),
    }
