"""Stop strings: found wherever token and window boundaries fall, and nothing from them on ever leaves. No torch.

The text ends where the first stop string is complete, read character by character; of several that are complete at the
same character the longest counts. So where a text ends does not depend on how tokens cut it.
"""

from collections.abc import Sequence
from typing import Protocol


class Detokenizer(Protocol):
    """Token ids in, certain text out (`strata_cli.text.tokenizer.IncrementalDetokenizer`)."""

    def push(self, token: int) -> str: ...

    def flush(self) -> str: ...


class StopWatch:
    """The text of one request while its tokens come (an `engine.types.TokenWatch`).

    Args:
        detokenizer: of this request alone.
        stop: non-empty strings that end it; the text stops before them.
    """

    def __init__(self, detokenizer: Detokenizer, stop: Sequence[str] = ()):
        self._detokenizer = detokenizer
        self._stop = sorted(stop, key=len, reverse=True)
        self._text = ""
        self._taken = 0  # characters that `take` gave out
        self._closed = False
        self.stopped = False

    def push(self, token: int) -> bool:
        """Take the next committed token; True when a stop string is complete."""
        if not self._closed:
            self._append(self._detokenizer.push(token))
        return self.stopped

    def close(self) -> None:
        """The request has ended: what was held back is text after all."""
        if not self._closed:
            self._append(self._detokenizer.flush())
            self._closed = True

    def take(self) -> str:
        """Text since the last call that no stop string can reach any more; after `close` all the rest."""
        end = len(self._text) if self._closed else len(self._text) - self._held()
        piece, self._taken = self._text[self._taken : end], max(end, self._taken)
        return piece

    @property
    def text(self) -> str:
        """The whole text, without the stop string; final after `close`."""
        return self._text

    def _append(self, piece: str) -> None:
        for character in piece if self._stop else (piece,):
            self._text += character
            found = next((stop for stop in self._stop if self._text.endswith(stop)), None)
            if found is not None:
                self._text = self._text[: -len(found)]
                self.stopped = self._closed = True
                return

    def _held(self) -> int:
        """Length of the longest end of the text that may be the beginning of a stop string."""
        longest = max((len(stop) - 1 for stop in self._stop), default=0)
        for length in range(min(longest, len(self._text)), 0, -1):
            if any(stop.startswith(self._text[-length:]) for stop in self._stop):
                return length
        return 0
