"""Plain lines on stderr: progress every few seconds, warnings, and the summary at the end. No torch."""

import sys
import time
from collections.abc import Callable, Sequence

from strata_cli.engine.stats import Totals
from strata_cli.engine.types import Downgrade, Event, Finished, Started, Tokens, WindowDone

EVERY_S = 10.0


class Console:
    """stderr. `quiet` keeps errors and warnings only."""

    def __init__(self, quiet: bool = False):
        self.quiet = quiet

    def note(self, text: str) -> None:
        if not self.quiet:
            print(text, file=sys.stderr, flush=True)

    def warn(self, text: str) -> None:
        print(f"warning: {text}", file=sys.stderr, flush=True)


class ProgressLines:
    """The observer of a run without a screen: one line every `EVERY_S` seconds, and one at the end.

    Args:
        console: where lines go.
        total: requests of the run; done: those of an earlier run that are done already.
    """

    def __init__(self, console: Console, total: int, done: int = 0, clock: Callable[[], float] = time.perf_counter):
        self._console, self._total, self._done, self._clock = console, total, done, clock
        self._began = self._last = clock()
        self._active = self._tokens = self._verified = self._accepted = 0

    def events(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, Started):
                self._active += 1
            elif isinstance(event, Finished):
                self._done += 1
                self._active -= event.slot is not None
            elif isinstance(event, Tokens):
                self._tokens += len(event.token_ids)
            elif isinstance(event, WindowDone):
                self._verified += event.record.verified
                self._accepted += event.record.accepted
            elif isinstance(event, Downgrade):
                self._console.warn(f"{event.what}: {event.why}")
        if self._clock() - self._last >= EVERY_S:
            self.line()

    def line(self) -> None:
        """Print where the run is: rate and acceptance are those since the last line."""
        now = self._clock()
        elapsed = now - self._last
        rate = f"{self._tokens / elapsed:.0f}" if elapsed > 0 else "-"
        accepted = f"{self._accepted / self._verified:.2f}" if self._verified else "-"
        self._console.note(
            f"t={now - self._began:.0f}s done={self._done}/{self._total} active={self._active}"
            f" tok/s={rate} accept={accepted}"
        )
        self._last = now
        self._tokens = self._verified = self._accepted = 0


def summary(totals: Totals) -> str:
    """What a run came to, with the definition of every figure that has more than one."""
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
    lines.append(f"windows: {windows or 'none'}; prompt tokens from the prefix cache: {totals.prefix_hit_tokens}")
    lines += [f"downgrade: {text}" for text in totals.downgrades]
    if totals.failed:
        lines.append(f"failed: {totals.failed}, see `error` in their records")
    return "\n".join(lines)
