"""Every number that planning was given and did not measure. No torch."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tuning:
    """Each with the value at which its rule is off; what each rule is worth stands in this room's README."""

    # how drafts fare
    guess: float = 0.75  # acceptance of a drafter nobody has seen yet: high, so that it is tried
    memory: float = 40.0  # observations that a slot remembers, per position
    shared: float = 500.0  # observations that what all slots share is remembered for
    strength: float = 10.0  # observations that a slot's prior is worth
    carry: float = 0.9
    fade: float = 220.0  # windows
    sharpen: float = 10.0  # observations that a slot's rate is worth beside how drafts of one probability fared (off: inf)
    bins: int = 10  # of the drafts' own probabilities
    # what windows cost
    samples: int = 32  # recent times kept per bucket
    trusted: int = 3  # times a bucket needs: fewer could all be outliers (a first run compiles)
    hope: float = 1.0  # standard errors by which a bucket is taken to be faster than it seems, to be tried (off: 0)
    unlike: float = 0.2  # a time this far from what was expected is cut there, or says that the machine changed
    ctx_sure: float = 4.0  # standard errors before the cost of context is believed (off: inf)
    measure: float = 3.0  # windows between two run to learn what rows cost (off: inf)
    doubt: float = 4.0  # windows per sample after which a bucket not run since is looked at again (off: inf)
    near: float = 1.4
    # choosing
    stay: float = 0.005  # the last L stay unless another plan is better by this share (off: 0)
    leave: float = 0.1
    max_missed: int = 7  # windows in a row that a slot sits out for its context (off: 0)
    probe: float = 32.0  # windows until a position left out is tried (off: inf)
    span: float = 4.0
    ahead: int = 2  # steps that a chain may go beyond its plan while its drafts do well (off: 0)
    stop: float = 1.0
    deep: int = 0
    sstep: float = 0.0
    ones: int = 0
    band: int = 4096
    rolling: int = 200
    collapsed: float = 0.25


DEFAULT = Tuning()
