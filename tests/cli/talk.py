"""`strata chat` in a real pseudo-terminal, on the scripted engine, for the tests of what a person sees and types."""

import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pexpect
import pytest

ROOT = Path(__file__).parents[2]
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]|\r")
PROMPT = "^>"
UP, CTRL_C, CTRL_D, CTRL_G, CTRL_J, ALT_ENTER, TAB = "\x1b[A", "\x03", "\x04", "\x07", "\n", "\x1b\r", "\t"


class Talk:
    """A running `strata chat`."""

    def __init__(
        self,
        args: tuple[str, ...],
        state: Path,
        env: dict[str, str],
        size: tuple[int, int],
        stdout: Path | None,
        shell: str,
    ):
        command = shlex.join([sys.executable, "-m", "tests.chat_fake", *args])
        plain = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR", "VISUAL", "EDITOR")}
        self.child = pexpect.spawn(
            "/bin/sh",
            ["-c", shell.format(command) + (f" > {stdout}" if stdout else "")],
            cwd=str(ROOT),
            dimensions=size,
            encoding="utf-8",
            timeout=30,
            env={
                **plain,
                "TERM": "xterm",
                "PYTHONPATH": f"{ROOT}:{ROOT / 'kernels'}",
                "PROMPT_TOOLKIT_NO_CPR": "1",
                "XDG_STATE_HOME": str(state),
                **env,
            },
        )
        self.raw = ""
        self._at = 0

    @property
    def seen(self) -> str:
        """All that was shown, escapes taken out."""
        return ESCAPES.sub("", self.raw)

    def type(self, text: str, end: str = "\r") -> None:
        self.child.send(text + end)

    def until(self, pattern: str) -> str:
        """What was shown since the last call, up to and with `pattern`."""
        while not (match := re.compile(pattern, re.MULTILINE).search(self.seen, self._at)):
            try:
                self.raw += self.child.read_nonblocking(65536, timeout=30)
            except (pexpect.EOF, pexpect.TIMEOUT) as end:
                shown = self.seen[self._at :]
                raise AssertionError(f"{pattern!r} never came ({type(end).__name__}):\n{shown}") from None
        shown, self._at = self.seen[self._at : match.end()], match.end()
        return shown

    def answer(self, text: str, keys: str = "\r") -> str:
        """Send a message; what was shown until the status line."""
        self.type(text, keys)
        return self.until(r"cache [\d,]+")

    def leave(self, keys: str = CTRL_D) -> int:
        self.child.send(keys)
        self.child.expect(pexpect.EOF)
        self.child.close()
        return self.child.exitstatus


@pytest.fixture
def talk(tmp_path: Path) -> Iterator[Callable[..., Talk]]:
    started = []

    def start(*args: str, prompt: str = PROMPT, stdout: Path | None = None, shell: str = "exec {}", **env: str) -> Talk:
        started.append(Talk(("--seed", "7", *args), tmp_path / "state", env, (40, 100), stdout, shell))
        started[-1].until(prompt)
        return started[-1]

    yield start
    for each in started:
        each.child.close(force=True)
