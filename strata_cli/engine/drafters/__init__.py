"""Drafters: guesses at a slot's next tokens, made before the window that judges them.

One protocol. `propose` gets the slots that want drafts and how many; `observe` sees, once a window, the main model's
rows that were committed; `start` empties a slot, which begins with the pending hidden row [1, D] of a cached prefix
or with nothing. A drafter never changes what the engine emits, only how fast.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # a drafter without a model needs no torch
    from torch import Tensor

    from strata_cli.engine.sampling import Draw

# (slot, drafts so far, probability of the next one where the drafter has one) -> is it worth a row?
KeepDrafting = Callable[[int, int, float | None], bool]


@dataclass(slots=True)
class Wish:
    """A slot that wants up to `depth` drafts after `tokens` (prompt and committed). `draw(position, drafts)` is its
    row's draw.
    """

    slot: int
    depth: int
    tokens: Sequence[int]
    draw: Callable[[int, Sequence[int]], Draw]


@dataclass(slots=True)
class Proposal:
    """Drafts of one slot, their probabilities by the drafter, and under rejection sampling its distributions [V] per
    draft.
    """

    tokens: list[int] = field(default_factory=list)
    probabilities: list[float] = field(default_factory=list)
    distributions: list[Tensor] = field(default_factory=list)


class Drafter(Protocol):
    """See the module."""

    def propose(self, wishes: Sequence[Wish], keep: KeepDrafting) -> dict[int, Proposal]: ...
    def observe(self, seen: Sequence[Seen]) -> None: ...
    def start(self, slot: int, hidden: Tensor | None) -> None: ...


@dataclass(slots=True)
class Seen:
    """What one slot committed in a window: all its tokens so far, the last `fresh` of them new, and the hidden rows
    [n, D] of its rows. `prompt`: they were prompt rows.
    """

    slot: int
    tokens: Sequence[int]
    fresh: int
    hidden: Tensor
    prompt: bool
