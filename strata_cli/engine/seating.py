"""Who sits where: requests take free seats as far as pages go, and give back all they hold when they leave."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from strata_cli.engine.cache.kv import KVCache
from strata_cli.engine.cache.prefix import PrefixCache
from strata_cli.engine.life import Life, Slot
from strata_cli.engine.resources import Resource
from strata_cli.engine.runner import Runner
from strata_cli.engine.scheduler import Scheduler
from strata_cli.engine.types import Started
from strata_cli.engine.window import Share


class Seating:
    """The seats of an engine. Every resource that a slot holds something of passes through here, by one protocol."""

    def __init__(
        self,
        count: int,
        scheduler: Scheduler[Life],
        runner: Runner,
        kv: KVCache,
        prefix: PrefixCache | None,
        others: Callable[[], Sequence[Resource]],
        clock: Callable[[], float],
    ):
        self.seats: list[Slot | None] = [None] * count
        self.scheduler, self.runner, self.kv, self.prefix, self.clock = scheduler, runner, kv, prefix, clock
        self._others = others
        self.admissions = 0
        self.prefix_use: Counter[str] = Counter()  # hits, misses and hit tokens since they were last taken

    @property
    def resources(self) -> tuple[Resource, ...]:
        """Everything that a slot holds something of."""
        return (self.kv, self.runner.recurrent, self.runner.sampler, self.scheduler, *self._others())

    def taken(self) -> list[Slot]:
        return [s for s in self.seats if s is not None]

    def lives(self) -> list[Life]:
        """All that have not ended: waiting ones, then seated ones."""
        return [*(w.item for w in self.scheduler.queue), *(s.life for s in self.taken())]

    def admit(self) -> list[Started]:
        """Free seats take waiting requests, in order, as far as pages for their prompts go; the prefix cache is asked
        what it already holds of each.
        """
        started = []
        free = [i for i, seat in enumerate(self.seats) if seat is None]
        for index in free[: self.scheduler.admissible(len(free), self.clock())]:
            life = self.scheduler.queue[0].item
            slot = Slot(index, life, self.admissions + 1)
            found = self._find_prefix(slot)
            if not self.make_room(slot, life.to_read + 1 - slot.length):  # and one row to go on with
                for resource in self.resources:
                    resource.release(index)
                break
            self.scheduler.queue.popleft()
            self.admissions, self.seats[index], life.seat = slot.entered, slot, slot
            life.admitted = self.clock() if life.admitted is None else life.admitted
            if self.prefix is not None:
                self.prefix_use["prefix_hits"] += found > 0
                self.prefix_use["prefix_misses"] += found == 0
                self.prefix_use["prefix_hit_tokens"] += found
            if life.generated == 0:
                life.cached_tokens = found
            for resource in self.resources:
                resource.admit(slot)
            started.append(Started(life.request.id, index, life.cached_tokens))
        return started

    def _find_prefix(self, slot: Slot) -> int:
        """Begin the slot with the longest known part of its prompt; its tokens."""
        entry = self.prefix.match(slot.life.request.prompt) if self.prefix is not None else None
        if entry is None or self.prefix is None:
            return 0
        self.prefix.adopt(slot, entry)
        self.runner.adopt(slot.index, entry.length, entry.place)
        return entry.length

    def make_room(self, slot: Slot, rows: int) -> bool:
        """Pages for `rows` more tokens of a slot; where they run short, cached prefixes go."""
        while not self.kv.reserve(slot, rows):
            if self.prefix is None or not self.prefix.evict():
                return False
        return True

    def vacate(self, life: Life) -> None:
        """Take a life out of its seat; everything it held goes back."""
        if life.seat is None:
            return
        for resource in self.resources:
            resource.release(life.seat.index)
        self.seats[life.seat.index], life.seat = None, None

    def undo(self, share: Share) -> None:
        """The window in which a slot read prompt rows failed half way: it reads its prompt from the beginning."""
        slot = share.slot
        if self.prefix is not None:
            self.prefix.drop(share.captures)
        slot.length = slot.found = slot.life.cached_tokens = 0
        for resource in self.resources:
            resource.undo(slot)

    def reserve(self, shares: dict[int, Share]) -> tuple[Share, ...]:
        """Pages for the rows of all shares, oldest request first; where they run short drafts go first, then the
        youngest request waits again. Returns the shares that are left, each with its places in the prefix cache.
        """
        for share in sorted(shares.values(), key=lambda s: s.slot.entered):
            self._reserve(share, shares)
        return tuple(map(self._captured, shares.values()))

    def _reserve(self, share: Share, shares: dict[int, Share]) -> None:
        index = share.slot.index
        while share.rows and index in shares and not self.make_room(share.slot, share.rows):
            if share.depth:
                share = shares[index] = replace(share, L=1, reason="budget", depth=0)
                continue
            victim = max(self.taken(), key=lambda s: s.entered)
            shares.pop(victim.index, None)
            self.vacate(victim.life)
            self.scheduler.put_back(victim.life, self.clock())
        if index in shares and share.depth > share.drafts and not self.kv.reserve(share.slot, share.depth + 1):
            shares[index] = replace(share, depth=share.drafts)

    def _captured(self, share: Share) -> Share:
        """The share with the places at which its prompt rows leave something for the prefix cache."""
        if not share.read or self.prefix is None:
            return share
        return replace(share, captures=self.prefix.captures(share.slot, share.read))
