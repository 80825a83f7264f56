"""The terminal echoes nothing while an answer streams, so that `^C` and keys typed ahead do not land in its text."""

import atexit
import os
import signal
from contextlib import suppress
from types import FrameType

try:
    import termios
except ImportError:  # no such terminals on this system
    termios = None  # type: ignore[assignment]

FATAL = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class NoEcho:
    """While open, the controlling terminal echoes nothing; keys wait for who reads next.

    The terminal is as before when the block is left, when the process is killed by a signal that can be caught, when it
    is suspended, and at exit; a process that is continued in front turns the echo off again. One in the background
    leaves the terminal alone: it would be stopped for touching it.
    """

    def __init__(self, path: str = "/dev/tty"):
        self._path = path
        self._fd: int | None = None
        self._echo = 0  # the flags that were on and are off now

    def __enter__(self) -> "NoEcho":
        if termios is None:
            return self
        try:
            self._fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
        except OSError:  # no terminal: nobody echoes
            return self
        watched = {**dict.fromkeys(FATAL, self._die), signal.SIGTSTP: self._stop, signal.SIGCONT: self._continue}
        # What the parent ignores, or somebody else handles, stays as it is.
        self._signals = {n: handle for n, handle in watched.items() if signal.getsignal(n) == signal.SIG_DFL}
        atexit.register(self._on)  # an interrupt may come between any two lines here
        for number, handle in self._signals.items():
            signal.signal(number, handle)
        self._off()
        return self

    def __exit__(self, *_: object) -> None:
        if self._fd is None:
            return
        self._on()
        for number in self._signals:
            signal.signal(number, signal.SIG_DFL)
        atexit.unregister(self._on)
        os.close(self._fd)
        self._fd = None

    def _off(self) -> None:
        if (now := self._settings()) is not None and (echo := now[3] & (termios.ECHO | termios.ECHONL)):
            self._echo = echo
            self._set(now, now[3] & ~echo)

    def _on(self) -> None:
        if self._echo and (now := self._settings()) is not None:
            self._set(now, now[3] | self._echo)
            self._echo = 0

    def _settings(self) -> list | None:
        """The terminal's settings; None where they are not ours to change."""
        try:
            assert self._fd is not None
            return termios.tcgetattr(self._fd) if os.tcgetpgrp(self._fd) == os.getpgrp() else None
        except (OSError, termios.error):  # the terminal is gone
            return None

    def _set(self, now: list, local_flags: int) -> None:
        assert self._fd is not None
        with suppress(OSError, termios.error):
            termios.tcsetattr(self._fd, termios.TCSANOW, [*now[:3], local_flags, *now[4:]])

    def _die(self, number: int, frame: FrameType | None) -> None:
        self._on()
        self._as_if_unhandled(number)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._on()
        self._as_if_unhandled(number)  # returns when the process is continued
        signal.signal(number, self._stop)

    def _continue(self, number: int, frame: FrameType | None) -> None:
        self._off()

    def _as_if_unhandled(self, number: int) -> None:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
