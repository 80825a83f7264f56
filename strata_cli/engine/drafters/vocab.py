"""Which token ids the draft head scores, when it does not score all of them. No torch.

Verification always scores every id, so a smaller choice costs acceptance and nothing else.
"""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from strata_cli.errors import UsageError
from strata_cli.model.files import present, read_object, shown

COUNTS_FILE = "token_counts.json"  # beside the weights: {"token id": count}
REFRESH_TOKENS = 4096  # committed tokens between two choices


class DraftVocab:
    """The `size` most frequent of `vocab` ids: by the model's counts file and what was seen while running.

    Where counts are equal (all zero at first without a file) the lower id goes first: in a byte-level BPE that is the
    order of its merges. `always`: ids that are in whatever their count (those that end a request).
    """

    def __init__(self, size: int, vocab: int, always: Sequence[int], counts: dict[int, int] | None = None):
        self.size, self.vocab, self.always = min(size, vocab), vocab, tuple(always)
        self.counts = Counter(counts or {})
        self.fresh = 0

    def count(self, tokens: Sequence[int]) -> bool:
        """Count committed tokens; True when it is time to choose again."""
        self.counts.update(tokens)
        self.fresh += len(tokens)
        if self.fresh < REFRESH_TOKENS:
            return False
        self.fresh = 0
        return True

    def ids(self) -> list[int]:
        """The choice, ascending."""
        first = set(self.always)
        order = sorted(range(self.vocab), key=lambda i: (i not in first, -self.counts[i], i))
        return sorted(order[: self.size])


def read_counts(directory: Path) -> dict[int, int]:
    """The counts file of a checkpoint, {} without one. Raises UsageError for a file that is something else."""
    path = directory / COUNTS_FILE
    if not present(path):
        return {}
    expected = 'expected {"token id": count, ...}'
    found = read_object(path, expected)
    for token, count in found.items():
        # 18 digits: longer ones int() may refuse, and no model has such ids
        if not re.fullmatch("[0-9]{1,18}", token) or isinstance(count, bool) or not isinstance(count, int):
            raise UsageError(f"{path}: {shown(token)} = {shown(count)}", expected)
    return {int(token): count for token, count in found.items()}
