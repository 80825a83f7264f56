"""Paged keys and values of every attention layer, the MTP head's included: one pool, one table per slot."""

import numpy as np
import torch

from strata_cli.engine.buffers import allocate
from strata_cli.engine.cache.pages import PagePool
from strata_cli.engine.life import Slot
from strata_kernels.layout import PAGE_TOKENS, Arrays, nbytes
from strata_kernels.window import KVPool


class KVCache:
    """A resource of the engine. `pool` k, v [layers, N, PAGE_TOKENS, G, D]: page 0 belongs to nobody, padding reads and
    writes it. `tables` [S, pages] is the host's side of the window buffers' page tables.
    """

    def __init__(self, arrays: Arrays, tables: np.ndarray, device: torch.device):
        self.pool = KVPool(**allocate(arrays, device))
        self.count = arrays["k"].shape[1]
        self.bytes_per_page = nbytes(arrays) // self.count
        self.pages = PagePool(self.count)
        self.tables = tables
        self.owned: list[list[int]] = [[] for _ in tables]

    def reserve(self, slot: Slot, rows: int) -> bool:
        """Make the slot's pages hold `rows` more tokens; False (and nothing taken) when the pool cannot."""
        wanted = -(-(slot.length + rows) // PAGE_TOKENS) - len(self.owned[slot.index])
        pages = self.pages.take(wanted)
        if pages is None:
            return False
        if pages:  # values behind the last key are read with weight 0, and 0 times what is not a number is not 0
            self.pool.v[:, pages] = 0
        self._extend(slot.index, pages)
        return True

    def adopt(self, slot: int, pages: list[int]) -> None:
        """Begin the slot with pages it shares; each gains a reference."""
        assert not self.owned[slot]
        self.pages.share(pages)
        self._extend(slot, pages)

    def _extend(self, slot: int, pages: list[int]) -> None:
        owned = self.owned[slot]
        self.tables[slot, len(owned) : len(owned) + len(pages)] = pages
        owned.extend(pages)

    def admit(self, slot: Slot) -> None:
        """Its pages were taken before it was let in."""

    def release(self, slot: int) -> None:
        """Give the slot's pages back."""
        self.pages.drop(self.owned[slot])
        self.owned[slot] = []
        self.tables[slot] = 0

    def undo(self, slot: Slot) -> None:
        self.release(slot.index)
