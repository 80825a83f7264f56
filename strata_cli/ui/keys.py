"""Single keys from the terminal, without waiting and without touching Ctrl-C."""

import os
from types import TracebackType
from typing import Any, Self

try:
    import termios
except ImportError:  # no such terminals on this system
    termios = None  # type: ignore[assignment]


class Keys:
    """Reads the keys typed since the last look from the controlling terminal, even if stdin is a pipe.

    Inside the `with` block the terminal gives keys at once and does not echo them. A process in the background is
    left alone: it would be stopped for touching the terminal.
    """

    def __init__(self, path: str = "/dev/tty"):
        self._path = path
        self._fd: int | None = None
        self._before: list[Any] | None = None

    def __enter__(self) -> Self:
        if termios is not None:
            try:
                self._fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
            except OSError:
                self._fd = None  # no terminal: no keys
        self._want_keys()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._fd is None:
            return
        if self._before is not None and self._in_front():
            termios.tcsetattr(self._fd, termios.TCSADRAIN, self._before)
        os.close(self._fd)
        self._fd = None

    def read(self) -> str:
        """The keys typed since the last call, "" for none."""
        self._want_keys()  # again after each Ctrl-Z and fg
        if self._fd is None or not self._in_front():
            return ""
        try:
            return os.read(self._fd, 64).decode("utf-8", "ignore")
        except (BlockingIOError, OSError):
            return ""

    def _want_keys(self) -> None:
        if self._fd is None or not self._in_front():
            return
        now = termios.tcgetattr(self._fd)
        if now[3] & termios.ICANON:
            self._before = now
            wanted = [*now]
            wanted[3] &= ~(termios.ICANON | termios.ECHO)  # ISIG stays: Ctrl-C is a signal
            wanted[6] = [*now[6]]
            wanted[6][termios.VMIN], wanted[6][termios.VTIME] = 0, 0
            termios.tcsetattr(self._fd, termios.TCSADRAIN, wanted)

    def _in_front(self) -> bool:
        assert self._fd is not None
        try:
            return os.tcgetpgrp(self._fd) == os.getpgrp()
        except OSError:
            return False
