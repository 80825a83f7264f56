"""Several candidates of one answer: in columns that live while they are made, or one after the other. No torch."""

import shutil
import time
from collections.abc import Sequence
from typing import TextIO

from rich.cells import cell_len, chop_cells, set_cell_size

from strata_cli.chat.turn import Answer
from strata_cli.ui.stream import Channels, clean

NARROWEST = 24  # cells of a column
GAP = " │ "
FRAME_S = 0.1  # at most ten frames a second


def wrapped(text: str, width: int) -> list[str]:
    """Lines of at most `width` cells, broken between words where possible."""
    lines: list[str] = []
    for paragraph in clean(text).expandtabs(4).split("\n"):
        line = ""
        for word in paragraph.split(" "):
            joined = f"{line} {word}" if line else word
            if cell_len(joined) <= width:
                line = joined
                continue
            if line:
                lines.append(line)
            *full, line = chop_cells(word, width) or [""]
            lines += full
        lines.append(line)
    return lines


def heading(answer: Answer) -> str:
    """A column's first line: its number, its tokens so far and what it is at."""
    if answer.done and answer.result:
        state = answer.result.finish_reason
    else:
        state = "waiting" if not answer.tokens else "thinking" if answer.splitter.thinking else "answering"
    return f"{answer.candidate + 1} · {answer.tokens:,} tok · {state}"


def columns(cells: Sequence[tuple[str, str]], width: int, height: int | None = None) -> list[str]:
    """(heading, text) of every candidate side by side in lines of at most `width` cells.

    As many columns as are wide enough, the rest below them. With `height` all of it takes at most that many lines and
    every column shows the end of its text.
    """
    fit = max((width + len(GAP)) // (NARROWEST + len(GAP)), 1)
    bands = -(-len(cells) // fit)
    across = -(-len(cells) // bands)
    column = (width - len(GAP) * (across - 1)) // across
    room = None if height is None else max(height // bands - 1, 1)
    lines: list[str] = []
    for first in range(0, len(cells), across):
        band = cells[first : first + across]
        # the end of a long text is all that a short column can show; wrapping more of it would only cost time
        texts = [wrapped(text if room is None else text[-room * column :], column) for _, text in band]
        shown = [text if room is None else text[-room:] for text in texts]
        rows = [[head for head, _ in band]]
        rows += [[text[i] if i < len(text) else "" for text in shown] for i in range(max(map(len, shown)))]
        lines += [GAP.join(set_cell_size(cell, column) for cell in row).rstrip() for row in rows]
    return lines


class Columns:
    """Candidates side by side on a terminal, redrawn in place while they are made and written in full at the end."""

    def __init__(self, channels: Channels, answers: Sequence[Answer]):
        self.channels = channels
        self.answers = answers
        self._drawn = 0
        self._next = 0.0

    def tick(self) -> None:
        """Draw again, unless that was just done."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + FRAME_S
            size = shutil.get_terminal_size()
            self._draw(columns(self._cells(), size.columns - 1, size.lines - 2))

    def end(self) -> None:
        """The whole texts, which stay."""
        self._draw(columns(self._cells(), shutil.get_terminal_size().columns - 1))

    def _cells(self) -> list[tuple[str, str]]:
        return [(heading(answer), answer.text or answer.reasoning) for answer in self.answers]

    def _draw(self, lines: list[str]) -> None:
        up = f"\x1b[{self._drawn}A\r\x1b[J" if self._drawn else ""
        self.channels.err.write(up + "".join(f"{line}\n" for line in lines))
        self.channels.err.flush()
        self._drawn = len(lines)


class Listing:
    """Candidates one after the other, append-only: the first that is not done yet streams, the others wait."""

    def __init__(self, sink: TextIO, answers: Sequence[Answer]):
        self.sink = sink
        self.answers = answers
        self._at = 0
        self._written = 0
        self._headed = False

    def tick(self) -> None:
        """Write what came since."""
        while self._at < len(self.answers):
            answer = self.answers[self._at]
            head = "" if self._headed else f"--- candidate {answer.candidate + 1} ---\n"
            fresh = answer.text[self._written :]
            self.sink.write(head + fresh)
            self._written += len(fresh)
            self._headed = True
            if not answer.done:
                break
            self.sink.write("" if answer.text.endswith("\n") else "\n")
            self._at, self._written, self._headed = self._at + 1, 0, False
        self.sink.flush()

    def end(self) -> None:
        self.tick()
