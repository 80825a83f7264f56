"""What is turned down while running: one list, one place that reports it."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from strata_cli.engine.types import Downgrade
from strata_cli.errors import StrataError


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


class Fuse:
    """chain_off: once memory ran out in the chain path, drafts stay off for this process, and everybody is told.

    `why`: what ran out, None while drafts are on.
    """

    def __init__(self, reported: Downgrades):
        self.reported = reported
        self.why: str | None = None

    def blow(self, error: BaseException) -> None:
        self.why = first_line(error)
        self.reported.add("drafts off", self.why)

    @contextmanager
    def telling(self, when: str) -> Iterator[None]:
        """Where nothing can be done without: memory that runs out in it is an error in one line."""
        try:
            yield
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            raise self.no_memory(when, error) from error

    @staticmethod
    def no_memory(when: str, error: BaseException) -> StrataError:
        """Memory that drafts have nothing to do with."""
        what = f"memory ran out {when}: {first_line(error)}"
        return StrataError(what, "lower --ctx, --batch or --max-batched-tokens")
