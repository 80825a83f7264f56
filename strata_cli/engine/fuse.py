"""What is turned down while running: one list, one place that reports it."""

import torch

from strata_cli.engine.types import Downgrade


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory ran out (torch raises a plain RuntimeError on the CPU)."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and "not enough memory" in str(error)


def first_line(error: BaseException) -> str:
    """What an error says, in one line."""
    return str(error).splitlines()[0] if str(error) else type(error).__name__


class Downgrades:
    """Everything that is off for the rest of the process, in order; `fresh` holds what nobody was told yet."""

    def __init__(self) -> None:
        self.all: list[Downgrade] = []
        self.fresh: list[Downgrade] = []

    def add(self, what: str, why: str) -> None:
        """Report a downgrade once."""
        if all(d.what != what for d in self.all):
            self.all.append(Downgrade(what, why))
            self.fresh.append(self.all[-1])

    def take(self) -> list[Downgrade]:
        """What nobody was told yet."""
        fresh, self.fresh = self.fresh, []
        return fresh

    def lines(self) -> list[str]:
        return [f"{d.what}: {d.why}" for d in self.all]
