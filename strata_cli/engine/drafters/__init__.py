"""Drafters: guesses at a slot's next tokens, made before the window that judges them.

One protocol. `lay` is asked before the window's copy in: it writes what the drafter needs into the buffers and says
what it will make, with the tokens that the host knows already. `run` makes them; where the window asks, it says how
probable each is and may end chains early. A drafter never changes what the engine emits, only how fast.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from strata_cli.engine.life import Slot
from strata_cli.engine.planning import Made
from strata_cli.engine.resources import Resource
from strata_cli.engine.window import Share


@dataclass(frozen=True, slots=True)
class Proposal:
    """What a drafter will make, by slot: how many drafts, and their tokens where the host knows them (else they lie in
    the buffers, on the device).
    """

    made: Mapping[int, Made] = field(default_factory=dict)
    tokens: Mapping[int, Sequence[int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Chained:
    """What running the chains came to: what was made by slot, and the steps and drafts that were paid for."""

    made: Mapping[int, Made]
    steps: int = 0
    drafts: int = 0


class Drafter(Resource, Protocol):
    """See the module. `shares`: those of the window that this drafter drafts for; `others`: slots of the window that it
    may draft for another time.
    """

    def lay(self, shares: Sequence[Share], others: Sequence[Slot]) -> Proposal: ...
    def run(self, asks: bool) -> Chained: ...
    def lay_prompts(self, reading: Sequence[tuple[Share, int]]) -> None:
        """Shares that read prompt rows in this window, each with its first row in the window's forward."""
        ...

    def read_prompts(self) -> None:
        """The laid prompt rows were read by the main model: see them."""
        ...

    def committed(self, slot: Slot, tokens: Sequence[int]) -> None: ...
