"""Prompts read before, kept for the next request that begins alike.

An entry ends at a multiple of the page size and holds what a slot would have there: shared pages (keys and values,
the MTP head's too), a copy of the recurrent state, and the pending hidden row that the head still needs. Entries come
from prompt rows alone, so a hit continues with the same bits as a miss. Least recently used out first, by bytes.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from strata_cli.engine.cache.pages import PAGE_TOKENS
from strata_cli.engine.cache.recurrent import RecurrentSnapshot
from strata_cli.engine.cache.slots import SlotCache

SPARSE_TOKENS = 512  # places in long prompts that later prompts may share only the beginning of


@dataclass(frozen=True, slots=True)
class PrefixEntry:
    """The first `length` tokens of a prompt. hidden [1, D]: the main model's row of the last one (None without a
    head).
    """

    length: int
    pages: list[int]
    recurrent: RecurrentSnapshot
    hidden: Tensor | None
    nbytes: int


def digest(tokens: Sequence[int]) -> bytes:
    """What identifies a prefix."""
    return hashlib.sha256(np.asarray(tokens, np.int64).tobytes()).digest()


class PrefixCache:
    """Entries of up to `budget_bytes` in all (their own pages counted with each)."""

    def __init__(self, cache: SlotCache, budget_bytes: int):
        self.cache, self.budget_bytes = cache, budget_bytes
        self.entries: OrderedDict[bytes, PrefixEntry] = OrderedDict()
        self.nbytes = 0

    def match(self, prompt: Sequence[int]) -> PrefixEntry | None:
        """The longest entry that `prompt` begins with, at least one token of it left to compute."""
        for length in range((len(prompt) - 1) // PAGE_TOKENS * PAGE_TOKENS, 0, -PAGE_TOKENS):
            key = digest(prompt[:length])
            if key in self.entries:
                self.entries.move_to_end(key)
                return self.entries[key]
        return None

    def adopt(self, slot: int, entry: PrefixEntry) -> None:
        """Begin the slot with the entry's state."""
        self.cache.kv.adopt(slot, entry.pages)
        self.cache.recurrent.restore(slot, entry.recurrent)
        self.cache.lengths[slot] = entry.length

    def places(self, length: int, at: int, rows: int, turn: int | None) -> list[int]:
        """Where in the chunk [at, at + rows) of a prompt of `length` tokens entries are to end.

        The last multiple of the page size that leaves a token to compute, the last before the newest turn (which
        begins at `turn`), and sparse ones between.
        """
        wanted = {(length - 1) // PAGE_TOKENS * PAGE_TOKENS}
        if turn is not None:
            wanted.add(min(turn, length - 1) // PAGE_TOKENS * PAGE_TOKENS)
        wanted.update(range(SPARSE_TOKENS, length, SPARSE_TOKENS))
        return sorted(p for p in wanted if at < p <= at + rows)

    def keep(self, slot: int, prompt: Sequence[int], places: Sequence[int], read: int, hidden: Tensor | None) -> None:
        """Store what ends at `places`, captured in the slot's last chunk of `read` rows; `hidden`: those rows'."""
        first = self.cache.lengths[slot] - read
        for place in places:
            state = self.cache.recurrent.taken(slot, place - first)
            last = None if hidden is None else hidden[place - first - 1 : place - first]
            self.store(slot, prompt, place, state, last)

    def store(
        self, slot: int, prompt: Sequence[int], length: int, recurrent: RecurrentSnapshot, hidden: Tensor | None
    ) -> None:
        """Keep the slot's first `length` tokens, unless they are known or larger than the budget."""
        key = digest(prompt[:length])
        if key in self.entries:
            self.entries.move_to_end(key)
            return
        kv = self.cache.kv
        pages = kv.owned[slot][: length // PAGE_TOKENS]
        nbytes = recurrent.nbytes + len(pages) * kv.bytes_per_page + (hidden.nbytes if hidden is not None else 0)
        if nbytes > self.budget_bytes:
            return
        while self.nbytes + nbytes > self.budget_bytes:
            self.evict()
        kv.pool.share(pages)
        self.entries[key] = PrefixEntry(
            length, list(pages), recurrent, None if hidden is None else hidden.clone(), nbytes
        )
        self.nbytes += nbytes

    def evict(self) -> bool:
        """Drop the least recently used entry; False when there is none."""
        if not self.entries:
            return False
        _, entry = self.entries.popitem(last=False)
        self.cache.kv.pool.drop(entry.pages)
        self.nbytes -= entry.nbytes
        return True
