"""Every number that planning was given and did not measure. No torch."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tuning:
    """`off`: the value at which the rule is gone. README.md says what each rule is worth."""

    guess: float = 0.75  # acceptance of a drafter that nobody has seen yet: high, so that it is tried
    memory: float = 40.0  # drafts that a slot remembers, per position
    shared: float = 500.0  # drafts, or windows, for which what all slots share is remembered
    strength: float = 10.0  # drafts that a prior is worth: the pool to a slot, the slot to a probability (off: 0.1)
    bins: int = 10  # of the drafts' own probabilities (off: 0)
    samples: int = 32  # recent times kept of each number of rows
    trusted: int = 3  # times that are needed: fewer could all be outliers, as a first run compiles
    unlike: float = 0.2  # a time this far from the expected one is cut there; later it means a change (off: inf)
    chain: tuple[float, ...] = (0.0, 0.05, 0.0025)  # its start, step, draft, in windows, until measured
    ctx_doubt: float = 8.0  # windows that the guess of no cost of context is worth (off: inf)
    measure: float = 3.0  # windows between two that may be run to learn what rows cost (off: inf)
    doubt: float = 4.0  # windows, times samples, after which rows not run since are looked at again (off: inf)
    max_missed: int = 7  # windows in a row that a slot sits out for its context (off: 0)
    probe: float = 32.0  # windows until a position left out is tried again (off: inf)
    band: int = 4096  # tokens of context that are watched together; further bands are twice as wide each
    rolling: int = 200  # first drafts looked back on
    collapsed: float = 0.25  # of the best rate seen: below it the drafter is as good as broken, and it is said (off: 0)

    def cut(self, ms: float, expected: float) -> float:
        """`ms`, or where it is further than `unlike` from what was expected, that far."""
        return min(max(ms, expected * (1.0 - self.unlike)), expected * (1.0 + self.unlike))


DEFAULT = Tuning()
