"""Who is admitted, and which slots read how many prompt rows in a window. No torch."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from strata_cli.engine.life import Slot

CHUNK_GRID = 64  # chunks end at multiples of this, or at the prompt's end
PASSES = 2  # how often one prompt lets a shorter one pass


T = TypeVar("T")


@dataclass(slots=True)
class Reading:
    """A slot that still reads its prompt: `at` rows are in, `length` in all."""

    slot: int
    at: int
    length: int
    passed: int = 0

    @property
    def left(self) -> int:
        return self.length - self.at


@dataclass(slots=True)
class Waiting(Generic[T]):
    """A request in the queue since `since` seconds."""

    item: T
    since: float


@dataclass(slots=True)
class Scheduler(Generic[T]):
    """First come, first served, under one of three policies: mixed, immediate, gather.

    chunk: most prompt rows of one slot in a window; budget: most prompt rows of a window; gather_s: longest wait of
    `gather`; groups: of slots that take turns.
    """

    policy: str
    chunk: int
    budget: int
    gather_s: float
    groups: int = 1
    group: int = 0  # whose turn it was last
    paused: bool = False
    queue: deque[Waiting[T]] = field(default_factory=deque)
    reading: list[Reading] = field(default_factory=list)

    def add(self, item: T, now: float) -> None:
        self.queue.append(Waiting(item, now))

    def put_back(self, item: T, now: float) -> None:
        """A preempted request goes first, and is not held back again."""
        self.queue.appendleft(Waiting(item, now - self.gather_s))

    def remove(self, match: Callable[[T], bool]) -> T | None:
        """Take the first waiting item that matches out of the queue."""
        for waiting in self.queue:
            if match(waiting.item):
                self.queue.remove(waiting)
                return waiting.item
        return None

    def admissible(self, free: int, now: float) -> int:
        """How many waiting requests may enter `free` slots now."""
        many = min(free, len(self.queue))
        if self.paused or not many:
            return 0
        if self.policy == "gather" and many < free and now < self.queue[0].since + self.gather_s:
            return 0
        return many

    def held_s(self, free: int, now: float) -> float:
        """Seconds until `gather` lets the next request in; 0 when nothing is held."""
        if self.paused or not self.queue or not free or self.admissible(free, now):
            return 0.0
        return self.queue[0].since + self.gather_s - now

    def next_group(self, occupied: Sequence[int]) -> list[int]:
        """The occupied slots of the group whose turn it is; a group without any is passed over.

        Slot i belongs to group i mod groups.
        """
        members: list[int] = []
        for _ in range(self.groups):
            self.group = (self.group + 1) % self.groups
            members = [i for i in occupied if i % self.groups == self.group]
            if members:
                break
        return members

    def start(self, slot: int, at: int, length: int) -> None:
        """A slot begins to read a prompt, `at` rows of it being known already."""
        self.reading.append(Reading(slot, at, length))

    def stop(self, slot: int) -> None:
        """The slot reads no more (done, cancelled, preempted)."""
        self.reading = [r for r in self.reading if r.slot != slot]

    def admit(self, slot: Slot) -> None:
        self.start(slot.index, slot.length, slot.life.to_read)

    def release(self, slot: int) -> None:
        self.stop(slot)

    def undo(self, slot: Slot) -> None:
        self.stop(slot.index)
        self.start(slot.index, 0, slot.life.to_read)

    def prompt_rows(self, takes_part: Callable[[int], bool]) -> dict[int, int]:
        """Prompt rows of this window by slot, for the slots that take part; chunks end on the grid or with the prompt.

        A prompt less than half as long as what is left of the one being read goes first, at most PASSES times for one
        prompt.
        """
        order = [r for r in self.reading if takes_part(r.slot)]
        for place in range(1, len(order)):
            first, later = order[0], order[place]
            if later.left * 2 < first.left and first.passed < PASSES:
                first.passed += 1
                order.insert(0, order.pop(place))
                self.reading.remove(later)
                self.reading.insert(self.reading.index(first), later)
                break
        rows: dict[int, int] = {}
        budget = self.budget
        for reading in order:
            share = min(reading.left, self.chunk, budget)
            if share < reading.left:  # a chunk, not the end: back to the grid
                share = (reading.at + share) // CHUNK_GRID * CHUNK_GRID - reading.at
            if share <= 0:
                break  # the budget is spent; nobody overtakes the prompt it went to
            rows[reading.slot] = share
            budget -= share
        return rows

    def read(self, slot: int, rows: int) -> None:
        """`rows` prompt rows of the slot are in."""
        for reading in self.reading:
            if reading.slot == slot:
                reading.at += rows
        self.reading = [r for r in self.reading if r.left > 0]

    def excludes_decoding(self, prompt_rows: Sequence[int]) -> bool:
        """Under `immediate` a window with prompt rows has no others."""
        return self.policy == "immediate" and any(prompt_rows)
