"""What sees a run, and the two that need no terminal: plain lines, and nothing but notes.

Records go to stdout, so no screen ever touches it.
"""

import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Protocol, Self, TextIO

from strata_cli.engine.types import Downgrade, Event
from strata_cli.ui.builder import SnapshotBuilder
from strata_cli.ui.console import say

LINE_S = 10.0


class RunScreen(Protocol):
    """Sees a run; the caller hands over the events of every step and calls `tick` after it.

    `wants_stop`: admit nothing more, finish what runs, end. `paused`: admit nothing for now.
    """

    wants_stop: bool
    paused: bool

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def events(self, events: Iterable[Event]) -> None: ...
    def tick(self) -> None: ...
    def note(self, text: str) -> None:
        """A line for the user: a warning, where the output goes."""
        ...


class Quiet:
    """Shows nothing but notes: what goes wrong is said even with --quiet."""

    def __init__(self, stream: TextIO):
        self.wants_stop = self.paused = False
        self._stream = stream

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def events(self, events: Iterable[Event]) -> None:
        pass

    def tick(self) -> None:
        pass

    def note(self, text: str) -> None:
        say(text, self._stream)


class PlainProgress(Quiet):
    """One plain line every ten seconds and one at the end."""

    def __init__(self, builder: SnapshotBuilder, stream: TextIO, clock: Callable[[], float] = time.monotonic):
        super().__init__(stream)
        self._builder = builder
        self._clock = clock
        self._start = clock()
        self._lines = 0  # periods of LINE_S that are over

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.note(self._line())

    def events(self, events: Iterable[Event]) -> None:
        events = list(events)
        self._builder.events(events)
        for event in events:
            if isinstance(event, Downgrade):
                self.note(f"downgrade: {event.what}: {event.why}")

    def tick(self) -> None:
        lines = int((self._clock() - self._start) / LINE_S)
        if lines > self._lines:
            self._lines = lines
            self.note(self._line())

    def _line(self) -> str:
        s = self._builder.snapshot()
        parts = [f"t={self._clock() - self._start:.0f}s", f"done={s.done}/{s.total}"]
        parts += [f"failed={s.failed}"] if s.failed else []
        parts += [f"active={s.active}"]
        parts += [f"tok/s={s.tok_per_s:.0f}"] if s.tok_per_s is not None else []
        parts += [f"accept={s.acceptance:.2f}"] if s.acceptance is not None else []
        parts += [f"L={s.mean_L:.1f}"] if s.mean_L is not None else []
        return " ".join(parts)
