"""The protocol by which everything a slot holds is held: pages, state, counts, drafters' memory, the planner's."""

from typing import Protocol

from strata_cli.engine.life import Slot


class Resource(Protocol):
    """Listed once in the engine; every slot passes through all of them."""

    def admit(self, slot: Slot) -> None:
        """A life took the seat; `slot.length` of its rows are there already, from the prefix cache."""
        ...

    def release(self, slot: int) -> None:
        """The seat is empty: nothing of it stays."""
        ...

    def undo(self, slot: Slot) -> None:
        """A window in which the slot read prompt rows failed half way: it begins anew, with `slot.length` 0."""
        ...
