"""Plain lines on stderr: notes, warnings, and the summary at the end of a run. No torch."""

import os
import sys
from textwrap import fill
from typing import TYPE_CHECKING, Any, TextIO

from strata_cli.names import readable

if TYPE_CHECKING:
    from strata_cli.engine.stats import Totals

NARROWEST = 12  # cells of a line: narrower ones are left to the terminal


def say(text: str, stream: TextIO | None = None) -> None:
    """A line on stderr, or on `stream`. Where nobody can read it (`2>/dev/full`, a reader that left) work goes on."""
    stream = stream or sys.stderr
    try:
        print(readable(text), file=stream, flush=True)
    except OSError:
        mute(stream)


def mute(stream: TextIO) -> None:
    """What is written to the stream from now on, and what it still buffers, goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def is_terminal(stream: Any) -> bool:
    """Whether the stream really is a terminal: FORCE_COLOR and its like are not asked."""
    try:
        return os.isatty(stream.fileno())
    except (AttributeError, OSError, ValueError):
        return False


def line_width(stream: TextIO) -> int | None:
    """Cells of a line on the stream: what COLUMNS says, else the terminal; None where lines may have any length."""
    asked = os.environ.get("COLUMNS", "")
    if asked.isdecimal() and int(asked):
        return int(asked)
    try:
        return os.get_terminal_size(stream.fileno()).columns or None
    except (AttributeError, OSError, ValueError):
        return None


def fold(text: str, width: int | None) -> str:
    """A line in as many lines of `width` as it needs, those after the first set in."""
    if width is None or len(text) <= width:
        return text
    return fill(text, max(width, NARROWEST), subsequent_indent="  ", break_on_hyphens=False)


class Console:
    """stderr. `quiet` keeps errors and warnings only."""

    def __init__(self, quiet: bool = False):
        self.quiet = quiet

    def note(self, text: str) -> None:
        if not self.quiet:
            say(text)

    def warn(self, text: str) -> None:
        say(f"warning: {text}")


def summary(totals: "Totals") -> str:
    """What a run came to, with the definition of every figure that has more than one, as wide as stderr is."""
    rate = f", {totals.tok_per_s:.0f} tok/s" if totals.tok_per_s is not None else ""
    lines = [f"{totals.requests} requests, {totals.tokens} tokens in {totals.wall_s:.1f} s{rate}"]
    if totals.acceptance_rate is not None:
        positions = " ".join(f"{share:.2f}" for share in totals.per_position)
        lines.append(
            f"accepted {totals.accepted} of {totals.verified} verified drafts ({totals.acceptance_rate:.1%});"
            f" by position, of windows with a row for it: {positions}"
        )
    if totals.mean_acceptance_length is not None:
        lines.append(
            f"mean acceptance length {totals.mean_acceptance_length:.2f}"
            " (tokens a slot keeps per window, the certain one included)"
        )
    windows = ", ".join(f"{count} {kind}" for kind, count in totals.windows.items())
    lines.append(f"windows: {windows or 'none'}")
    if totals.prefix_hits + totals.prefix_misses:
        asked = totals.prefix_hits + totals.prefix_misses
        lines.append(
            f"prefix cache: {totals.prefix_hits} of {asked} prompts hit, {totals.prefix_hit_tokens} tokens of them"
        )
    lines += [f"downgrade: {text}" for text in totals.downgrades]
    if totals.failed:
        lines.append(f"failed: {totals.failed}, see `error` in their records")
    width = line_width(sys.stderr)
    return "\n".join(fold(line, width) for line in lines)
