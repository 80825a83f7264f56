"""The screen of a run: live on a terminal, a plain line every ten seconds elsewhere, nothing with --quiet.

All three are a `RunScreen` (`ui.progress`); `open_screen` chooses.
"""

import io
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Self, TextIO

from rich.console import Console
from rich.live import Live

from strata_cli.engine.types import Event
from strata_cli.ui.builder import SnapshotBuilder
from strata_cli.ui.console import is_terminal, say
from strata_cli.ui.dashboard import render
from strata_cli.ui.gpu import GpuMeter
from strata_cli.ui.keys import Keys
from strata_cli.ui.progress import PlainProgress, Quiet, RunScreen
from strata_cli.ui.snapshot import Header, Limit

FRAME_S = 0.1  # at most ten frames a second
DRAW_SHARE = 0.012  # and at most this share of the time,
DRAW_CREDIT_S = 0.1  # after the first frames, which warm up


class _Notes(io.TextIOBase):
    """Stands in for stderr while the screen is up: whole lines become notes, so nothing tears the frame or is lost."""

    def __init__(self, note: Callable[[str], None]):
        self._note = note
        self._rest = ""

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._note(line)
        return len(text)

    def close_line(self) -> None:
        if self._rest:
            self._note(self._rest)
            self._rest = ""


class LiveScreen:
    """The live screen, on the terminal's other page: the shell's text comes back untouched when it ends.

    Draws from `tick`, in the caller's thread: no thread competes with the engine, and no frame is half a state. Frames
    come at most ten a second and rarer where they would cost more than DRAW_SHARE of the time; `draw_s` is what they
    cost so far. Notes, and whatever Python code writes to stderr meanwhile, show at the foot and are printed when the
    screen closes.
    """

    def __init__(
        self,
        builder: SnapshotBuilder,
        header: Header,
        stream: TextIO,
        *,
        ascii: bool = False,
        clock: Callable[[], float] = time.monotonic,
        keys: Keys | None = None,
    ):
        self.wants_stop = self.paused = False
        self.draw_s = 0.0
        self.frames = 0
        self._builder, self._header = builder, header
        self._stream = stream
        self._ascii = ascii
        self._clock = clock
        self._keys = keys or Keys()
        self._meter = GpuMeter(header.gpu)
        self._detail: int | None = None
        self._start = self._due = clock()
        self._notes: list[str] = []
        self._console = Console(file=stream, force_terminal=True)  # open_screen has looked: it is one
        self._live = Live(
            console=self._console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
        )
        self._catcher = _Notes(self.note)
        self._stderr: TextIO | None = None

    def __enter__(self) -> Self:
        self._keys.__enter__()
        self._live.start()
        self._stderr, sys.stderr = sys.stderr, self._catcher
        self.draw()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the terminal back; a second call does nothing."""
        if self._stderr is None:
            return
        sys.stderr, self._stderr = self._stderr, None
        self._live.stop()
        self._keys.__exit__(kind, error, trace)
        self._catcher.close_line()
        for text in self._notes:
            say(text, self._stream)

    def events(self, events: Iterable[Event]) -> None:
        self._builder.events(events)

    def note(self, text: str) -> None:
        self._notes.append(text)
        self._builder.notes.append(text)

    def tick(self) -> None:
        """Take keys, and draw if it is time."""
        now = self._clock()
        if now < self._due:
            return
        self._due = now + FRAME_S
        keys = self._keys.read()
        for key in keys:
            self._press(key)
        if keys or self.draw_s < DRAW_CREDIT_S + DRAW_SHARE * (now - self._start):
            self.draw()

    def draw(self) -> None:
        """Draw a frame now."""
        began = self._clock()
        snapshot = self._builder.snapshot(
            self._meter.read(), paused=self.paused, stopping=self.wants_stop, detail=self._detail
        )
        width, height = self._console.size
        self._live.update(render(snapshot, width, height, ascii=self._ascii), refresh=True)
        self.draw_s += self._clock() - began
        self.frames += 1

    def _press(self, key: str) -> None:
        if key == "q":
            self.wants_stop = True
        elif key == "p":
            self.paused = not self.paused
        elif key == "l":
            following = 0 if self._detail is None else self._detail + 1
            self._detail = following if following < self._header.batch else None


def open_screen(
    header: Header,
    total: int,
    limits: Mapping[str, Limit] | None = None,
    *,
    done: int = 0,
    tui: bool = True,
    quiet: bool = False,
    ascii: bool = False,
    records_to_terminal: bool = False,
    stream: TextIO | None = None,
) -> RunScreen:
    """The screen that fits: live if stderr really is a terminal, plain lines otherwise, nothing with `quiet`.

    Args:
        total: requests of the whole run; done: of them, those that an earlier run did.
        limits: prompt and answer lengths by request id.
        tui: False for --no-tui.
        ascii: no characters beyond ASCII; a terminal that cannot show others gets none either.
        records_to_terminal: the records scroll through this same terminal, so plain lines go with them.
        stream: where to draw; default stderr.
    """
    stream = stream or sys.stderr
    if quiet:
        return Quiet(stream)
    builder = SnapshotBuilder(header, total, limits, done)
    console = Console(file=stream)
    animate = is_terminal(stream) and console.is_interactive and not console.is_dumb_terminal
    if not tui or records_to_terminal or not animate:
        return PlainProgress(builder, stream)
    ascii = ascii or not (stream.encoding or "ascii").lower().startswith("utf")
    return LiveScreen(builder, header, stream, ascii=ascii)
