"""Paged keys and values of every attention layer, the MTP head's included: one pool, one table per slot."""

import numpy as np
import torch
from torch import Tensor

from strata_cli.engine.cache.pages import PAGE_TOKENS, PagePool
from strata_cli.model.config import ModelConfig

SPLIT = 4  # tables are read in groups of this many pages


class KVCache:
    """k, v [layers, pages, PAGE_TOKENS, G, D]. Page 0 belongs to nobody: padding reads it."""

    def __init__(
        self, config: ModelConfig, slots: int, pages: int, ctx: int, mtp: bool, dtype: torch.dtype, device: torch.device
    ):
        self.layers = config.layer_types.count("full_attention") + mtp
        shape = (self.layers, pages, PAGE_TOKENS, config.num_key_value_heads, config.head_dim)
        self.k = torch.zeros(shape, dtype=dtype, device=device)
        self.v = torch.zeros(shape, dtype=dtype, device=device)
        self.pool = PagePool(pages)
        assert pages > -(-ctx // PAGE_TOKENS), "a lone slot can fill its context"
        width = -(-ctx // (PAGE_TOKENS * SPLIT)) * SPLIT
        self.tables = np.zeros((slots, width), np.int64)
        self.owned: list[list[int]] = [[] for _ in range(slots)]

    @property
    def bytes_per_page(self) -> int:
        return (self.k.nbytes + self.v.nbytes) // self.k.shape[1]

    def write(self, layer: int, places: Tensor, k: Tensor, v: Tensor) -> None:
        """Store k, v [rows, G, D] at flat places [rows] of the layer, rounded to the cache's dtype."""
        for pool, values in ((self.k, k), (self.v, v)):
            pool[layer].view(-1, *pool.shape[3:]).index_copy_(0, places, values.to(pool.dtype))

    def reserve(self, slot: int, tokens: int) -> bool:
        """Make the slot's pages hold `tokens` positions; False (and nothing taken) when the pool cannot."""
        owned = self.owned[slot]
        pages = self.pool.take(-(-tokens // PAGE_TOKENS) - len(owned))
        if pages is None:
            return False
        if pages:  # values behind the last key are read with weight 0, and 0 times what is not a number is not 0
            self.v[:, pages] = 0
        self._extend(slot, pages)
        return True

    def adopt(self, slot: int, pages: list[int]) -> None:
        """Begin the slot with pages it shares; each gains a reference."""
        assert not self.owned[slot]
        self.pool.share(pages)
        self._extend(slot, pages)

    def _extend(self, slot: int, pages: list[int]) -> None:
        owned = self.owned[slot]
        self.tables[slot, len(owned) : len(owned) + len(pages)] = pages
        owned.extend(pages)

    def release(self, slot: int) -> None:
        """Give the slot's pages back."""
        self.pool.drop(self.owned[slot])
        self.owned[slot] = []
        self.tables[slot] = 0
