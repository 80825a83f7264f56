"""What a slot remembers: paged keys and values, recurrent state, and how many of its tokens are in them."""

import torch

from strata_cli.engine.cache.kv import KVCache
from strata_cli.engine.cache.recurrent import RecurrentCache
from strata_cli.model.config import ModelConfig


class SlotCache:
    """reserve(slot, rows) before a window, commit(slot, keeps) after it; whatever was rejected leaves nothing behind.

    `lengths[slot]`: tokens whose rows are in the cache. `rows`: the most decode rows of one slot in a window.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        slots: int,
        rows: int,
        pages: int,
        ctx: int,
        mtp: bool,
        dtype: torch.dtype,
        device: torch.device,
    ):
        self.kv = KVCache(config, slots, pages, ctx, mtp, dtype, device)
        self.recurrent = RecurrentCache(config, slots, rows, device)
        self.lengths = [0] * slots

    def reserve(self, slot: int, rows: int) -> bool:
        """Room for `rows` more tokens of the slot; False (and nothing changed) when there are not enough free pages."""
        return self.kv.reserve(slot, self.lengths[slot] + rows)

    def commit(self, slot: int, keeps: int) -> None:
        """The first `keeps` decode rows of the slot's last window hold."""
        self.recurrent.commit(slot, keeps)
        self.lengths[slot] += keeps

    def advance(self, slot: int, rows: int) -> None:
        """`rows` prompt rows went in; they are certain."""
        self.lengths[slot] += rows

    def release(self, slot: int) -> None:
        """Forget the slot."""
        self.kv.release(slot)
        self.recurrent.reset(slot)
        self.lengths[slot] = 0
