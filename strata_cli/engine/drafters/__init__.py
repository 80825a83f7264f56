"""Drafters: guesses at a slot's next tokens, made before the window that judges them.

One protocol. `propose` gets the slots that want drafts and how many; `observe` sees, once a window, the main model's
rows that were committed; `start` empties a slot, which begins with the pending hidden row [1, D] of a cached prefix
or with nothing. A drafter never changes what the engine emits, only how fast.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # a drafter without a model needs no torch
    from torch import Tensor

    from strata_cli.engine.sampling import Draw

# (length of the chains so far, probability of each one's last draft, by slot, None: unknown) -> the slots that go on
GoOn = Callable[[int, Mapping[int, float | None]], Collection[int]]


@dataclass(slots=True)
class Wish:
    """A slot that wants drafts after `tokens` (prompt and committed), `depth` at the most. `draw(position, drafts)` is
    its row's draw.
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

    def cut(self, drafts: int) -> None:
        """Leave out all but the first so many drafts."""
        for made in (self.tokens, self.probabilities, self.distributions):
            del made[drafts:]


class Drafter(Protocol):
    """See the module."""

    def propose(self, wishes: Sequence[Wish], go_on: GoOn) -> dict[int, Proposal]: ...
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
