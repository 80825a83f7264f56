"""Prompt lookup: drafts copied from where the last few tokens stood before, in the prompt or in the reply. No model, no torch.

Pays where replies repeat their context: code edits, quotes, lists, tables.
"""

from collections.abc import Iterable

LONGEST, SHORTEST = 4, 2  # tokens that must agree: the longest match wins, a single token is no evidence


class NgramIndex:
    """Where each run of SHORTEST to LONGEST tokens was last followed by something, for one request.

    Grows with `extend`; a token costs LONGEST - SHORTEST + 1 dictionary entries.
    """

    def __init__(self, tokens: Iterable[int] = ()):
        self.tokens: list[int] = []
        self._next: dict[tuple[int, ...], int] = {}  # run of tokens -> index of what followed it last
        self.extend(tokens)

    def __len__(self) -> int:
        return len(self.tokens)

    def extend(self, tokens: Iterable[int]) -> None:
        """Take the next tokens, of the prompt or committed. Rejected drafts never come here."""
        for token in tokens:
            end = len(self.tokens)
            for n in range(SHORTEST, min(LONGEST, end) + 1):
                self._next[tuple(self.tokens[end - n : end])] = end
            self.tokens.append(token)

    def propose(self, n: int) -> list[int]:
        """Up to `n` tokens that followed the longest, most recent earlier occurrence of the last tokens; [] if none.

        Where the copy runs into the end of the text it goes on through its own drafts, so a loop is followed round.
        """
        end = len(self.tokens)
        for length in range(min(LONGEST, end), SHORTEST - 1, -1):
            start = self._next.get(tuple(self.tokens[end - length :]))
            if start is not None:
                break
        else:
            return []
        drafts: list[int] = []
        for i in range(start, start + n):
            drafts.append(self.tokens[i] if i < end else drafts[i - end])
        return drafts
