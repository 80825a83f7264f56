"""Prompts read before, kept for the next request that begins alike.

An entry ends at a multiple of the page size and holds what a slot would have there: shared pages (keys and values,
the MTP head's too) and a place in the pools of copies: the recurrent state, and the pending hidden row that the head
still needs. Entries come from prompt rows alone, so a hit continues with the same bits as a miss. Least recently used
out first, when places or pages run short.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from strata_cli.engine.buffers import WindowBuffers
from strata_cli.engine.cache.kv import KVCache
from strata_cli.engine.cache.recurrent import RecurrentCache
from strata_cli.engine.life import Slot
from strata_kernels.layout import PAGE_TOKENS

SPARSE_TOKENS = 512  # places in long prompts that later prompts may share only the beginning of


@dataclass(frozen=True, slots=True)
class PrefixEntry:
    """The first `length` tokens of a prompt; `place` in the pools of copies."""

    length: int
    pages: tuple[int, ...]
    place: int
    nbytes: int


def digest(tokens: Sequence[int]) -> bytes:
    """What identifies a prefix."""
    return hashlib.sha256(np.asarray(tokens, np.int64).tobytes()).digest()


class PrefixCache:
    """Entries of up to `budget_bytes` in all, their own pages counted with each; at most one for each place."""

    def __init__(self, kv: KVCache, recurrent: RecurrentCache, buffers: WindowBuffers, budget_bytes: int):
        self.kv, self.recurrent, self.budget_bytes = kv, recurrent, budget_bytes
        row = buffers.hidden.element_size() * buffers.hidden.shape[1]  # the pending hidden row
        self.entry_bytes = recurrent.bytes_per_place + row
        self.free = list(range(buffers.sizes.places))
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

    def adopt(self, slot: Slot, entry: PrefixEntry) -> None:
        """Begin the slot with the entry's pages and state."""
        self.kv.adopt(slot.index, list(entry.pages))
        self.recurrent.restore(slot.index, entry.place)
        slot.length = slot.found = entry.length

    def captures(self, slot: Slot, read: int) -> tuple[tuple[int, int], ...]:
        """Where in the slot's next `read` prompt rows entries are to end, each with a place of its own.

        Wanted are the last multiple of the page size that leaves a token to compute, the last before the newest turn,
        and sparse ones between; less those that are known, and those that find no place.
        """
        prompt, turn = slot.life.request.prompt, slot.life.request.turn
        wanted = {(len(prompt) - 1) // PAGE_TOKENS * PAGE_TOKENS}
        if turn is not None:
            wanted.add(min(turn, len(prompt) - 1) // PAGE_TOKENS * PAGE_TOKENS)
        wanted.update(range(SPARSE_TOKENS, len(prompt), SPARSE_TOKENS))
        found = []
        for length in sorted(n for n in wanted if slot.length < n <= slot.length + read):
            key, size = digest(prompt[:length]), self._size(length)
            if key in self.entries:
                self.entries.move_to_end(key)
            elif size <= self.budget_bytes and (place := self._take(size)) is not None:
                found.append((length, place))
        return tuple(found)

    def _size(self, length: int) -> int:
        return self.entry_bytes + length // PAGE_TOKENS * self.kv.bytes_per_page

    def _take(self, size: int) -> int | None:
        while not self.free or self.nbytes + size > self.budget_bytes:
            if not self.evict():
                return None
        return self.free.pop()

    def keep(self, slot: Slot, captures: Sequence[tuple[int, int]]) -> None:
        """What ends at these places is there now."""
        for length, place in captures:
            key = digest(slot.life.request.prompt[:length])
            if key in self.entries:  # another slot of the same window read the same
                self.free.append(place)
                continue
            pages = self.kv.owned[slot.index][: length // PAGE_TOKENS]
            self.kv.pages.share(pages)
            self.entries[key] = PrefixEntry(length, tuple(pages), place, self._size(length))
            self.nbytes += self._size(length)

    def drop(self, captures: Sequence[tuple[int, int]]) -> None:
        """The window that was to fill these places failed."""
        self.free += [place for _, place in captures]

    def evict(self) -> bool:
        """Drop the least recently used entry; False when there is none."""
        if not self.entries:
            return False
        _, entry = self.entries.popitem(last=False)
        self.kv.pages.drop(entry.pages)
        self.free.append(entry.place)
        self.nbytes -= entry.nbytes
        return True
