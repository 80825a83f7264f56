"""Every number that planning was given and did not measure. No torch."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tuning:
    """Where a number switches a rule, `off` is the value at which the rule is gone. README.md says what each is worth."""

    # how drafts fare
    guess: float = 0.75  # acceptance of a drafter that nobody has seen yet: high, so that it is tried
    memory: float = 40.0  # drafts that a slot remembers, per position
    shared: float = 500.0  # drafts, or windows, for which what all slots share is remembered
    strength: float = 10.0  # drafts that a prior is worth: the pool to a slot, the slot to a probability (off: 1e-6)
    fade: float = 220.0  # windows in which what is not tried any more becomes unknown (off: inf)
    bins: int = 10  # of the drafts' own probabilities (off: 0)
    # what windows cost
    samples: int = 32  # recent times kept of each number of rows
    trusted: int = 3  # times that are needed: fewer could all be outliers, as a first run compiles
    hope: float = 1.0  # standard errors by which rows are taken to be faster than they seem, to be tried (off: 0)
    unlike: float = (
        0.2  # a time this far from the expected one is cut there; after a while it means a change (off: inf)
    )
    chain_ms: tuple[float, float, float] = (0.0, 1.0, 0.05)  # start, step and draft of a chain, guessed until measured
    ctx_sure: float = 4.0  # standard errors before the cost of context is believed (off: inf)
    measure: float = 3.0  # windows between two that may be run to learn what rows cost (off: inf)
    doubt: float = 4.0  # windows, times samples, after which rows not run since are looked at again (off: inf)
    # choosing
    stay: float = 0.005  # the last L stay unless another plan is better by this share (off: 0)
    max_missed: int = 7  # windows in a row that a slot sits out for its context (off: 0)
    probe: float = 32.0  # windows until a position left out is tried again (off: inf)
    # a drafter as good as broken
    band: int = 4096  # tokens of context that are watched together; the next bands are twice as wide each
    rolling: int = 200  # first drafts looked back on (off: inf)
    collapsed: float = 0.25  # of the best rate seen: the warning comes below it (off: 0)


DEFAULT = Tuning()
