"""Ctrl-C while the engine works: the first asks, the second ends the process. `kill` and a lost terminal ask too."""

import signal
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any


class Interrupt:
    """While open, the first Ctrl-C sets `wanted` (read between windows) and calls `notice`; the second one raises.

    signals: what counts as Ctrl-C; one that is ignored (`nohup`) stays so, but for SIGINT.
    """

    def __init__(self, notice: Callable[[], None] = lambda: None, signals: Sequence[int] = (signal.SIGINT,)):
        self.wanted, self._notice, self._signals = False, notice, signals

    def __enter__(self) -> "Interrupt":
        ignored = {s for s in self._signals if s != signal.SIGINT and signal.getsignal(s) == signal.SIG_IGN}
        self._before: dict[int, Any] = {s: signal.signal(s, self._handle) for s in self._signals if s not in ignored}
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.wanted:
            raise KeyboardInterrupt
        self.wanted = True
        self._notice()
