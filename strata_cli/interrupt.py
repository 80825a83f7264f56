"""Ctrl-C while the engine works: the first asks, the second ends the process."""

import signal
from collections.abc import Callable
from types import FrameType
from typing import Any


class Interrupt:
    """While open, the first Ctrl-C sets `wanted` (read between windows) and calls `notice`; the second one raises."""

    def __init__(self, notice: Callable[[], None] = lambda: None):
        self.wanted, self._notice = False, notice

    def __enter__(self) -> "Interrupt":
        self._before: Any = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.wanted:
            raise KeyboardInterrupt
        self.wanted = True
        self._notice()
