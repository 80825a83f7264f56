"""Answers written as they come, append-only: the answer to stdout, everything else to stderr. No torch.

Nothing is ever drawn over, so that a terminal's scrollback, a pipe and a log hold the same text.
"""

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TextIO

from strata_cli.chat.status import status_line
from strata_cli.chat.turn import Answer
from strata_cli.text.thinking import Piece

# A model's text must not steer the terminal: all control characters but newline and tab.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
DIM, PLAIN = "\x1b[2m", "\x1b[0m"


@dataclass
class Channels:
    """The two streams of a conversation. `quiet` leaves out what is neither the answer nor a warning."""

    out: TextIO = field(default_factory=lambda: sys.stdout)
    err: TextIO = field(default_factory=lambda: sys.stderr)
    quiet: bool = False

    def __post_init__(self) -> None:
        self.out_is_terminal = self.out.isatty()
        self.err_is_terminal = self.err.isatty()
        self.colour = self.err_is_terminal and not os.environ.get("NO_COLOR")

    def answer(self, text: str) -> None:
        """Text of the answer itself."""
        self.out.write(clean(text) if self.out_is_terminal else text)
        self.out.flush()

    def aside(self, text: str) -> None:
        """Dimmed text on stderr, as it comes."""
        self.err.write(self.dim(clean(text) if self.err_is_terminal else text))
        self.err.flush()

    def note(self, text: str) -> None:
        """A dimmed line on stderr."""
        self.aside(f"{text}\n")

    def dim(self, text: str) -> str:
        return f"{DIM}{text}{PLAIN}" if self.colour and text else text


class AnswerWriter:
    """Writes one answer. Thinking is shown on a terminal only, dimmed and set apart."""

    def __init__(self, channels: Channels):
        self.channels = channels
        self._thinking = False
        self._thought = False
        self._newline = True  # stdout is at the start of a line

    def show(self, answer: Answer, pieces: Sequence[Piece]) -> None:
        """Write the pieces that became final."""
        for thinking, run in groupby(pieces, key=lambda piece: piece.thinking):
            text = "".join(piece.text for piece in run)
            if thinking:
                self._think(text)
            else:
                self._end_thinking(answer)
                self.channels.answer(text)
                self._newline = text.endswith("\n")

    def end(self, answer: Answer, limit: int) -> None:
        """Finish the line; mark an interrupted answer; the status line where a person sees it."""
        self._end_thinking(answer)
        if not self._newline:
            self.channels.answer("\n")
        if answer.interrupted:
            self.channels.note("(interrupted)")
        if answer.result and self.channels.err_is_terminal and not self.channels.quiet:
            self.channels.note(status_line(answer, limit))

    def _think(self, text: str) -> None:
        self._thinking = True
        if self.channels.err_is_terminal:
            if not self._thought:
                self.channels.note("thinking:")
            self.channels.aside(text)
        self._thought = True

    def _end_thinking(self, answer: Answer) -> None:
        if not self._thinking:
            return
        self._thinking = False
        tokens = answer.splitter.thinking_tokens
        if self.channels.err_is_terminal:
            self.channels.note("")
        if answer.forced_close:
            self.channels.note(f"(thinking closed at its budget of {tokens:,} tokens)\n")
        elif self.channels.err_is_terminal:
            self.channels.note(f"(thought for {tokens:,} tokens)\n")


def clean(text: str) -> str:
    """Text without the control characters that steer a terminal; newlines and tabs stay."""
    return _CONTROL.sub("", text)
