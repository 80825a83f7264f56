"""The nouns of the engine, with their invariants asserted. No torch.

Words as in the design: a window is one verify forward; L = rows of a slot in it; keeps = tokens it commits.
"""

from dataclasses import dataclass, field
from typing import Protocol

from strata_cli.config import SamplingParams
from strata_cli.engine.record import StepRecord

REASONS = ("fits", "cost", "acceptance", "budget", "probe", "sitout", "fuse", "user", "nodraft", "prefill")


class TokenWatch(Protocol):
    """Reads a request's tokens as they are committed; the engine's only door to text (stop strings)."""

    def push(self, token: int) -> bool:
        """Take the next committed token; True ends the request with finish_reason "stop"."""
        ...


@dataclass(slots=True)
class Request:
    """One prompt with its sampling parameters. `prompt` holds token ids; `watch` may end it on a stop string.

    `turn`: where in the prompt the newest turn begins, a place that a later prompt is likely to share.
    """

    id: str
    prompt: list[int]
    params: SamplingParams
    watch: TokenWatch | None = None
    turn: int | None = None

    def __post_init__(self) -> None:
        assert self.prompt, "a request has at least one prompt token"


@dataclass(slots=True)
class SpecStats:
    """Drafting of one request. Index j of the lists is position j + 1 of the chain.

    `verified_at[j]`: windows that had a row for the position; `reached_at[j]`: those of them in which every earlier
    draft was accepted; `accepted_at[j]`: those in which the position's own draft was accepted too.
    """

    windows: int = 0  # windows in which this request had decode rows
    drafted: int = 0
    verified: int = 0
    accepted: int = 0
    keeps: int = 0  # tokens committed in those windows
    verified_at: list[int] = field(default_factory=list)
    reached_at: list[int] = field(default_factory=list)
    accepted_at: list[int] = field(default_factory=list)

    def record(self, drafted: int, verified: int, accepted: int, keeps: int) -> None:
        """Count one window: of `verified` drafts the first `accepted` held."""
        assert 0 <= accepted <= verified <= drafted
        self.windows += 1
        self.drafted += drafted
        self.verified += verified
        self.accepted += accepted
        self.keeps += keeps
        for counts, n in (
            (self.verified_at, verified),
            (self.reached_at, min(accepted + 1, verified)),
            (self.accepted_at, accepted),
        ):
            counts.extend([0] * (verified - len(counts)))
            for j in range(n):
                counts[j] += 1

    @property
    def acceptance_rate(self) -> float | None:
        return self.accepted / self.verified if self.verified else None

    @property
    def mean_acceptance_length(self) -> float | None:
        return self.keeps / self.windows if self.windows else None

    def per_position(self) -> list[float]:
        """Cumulative: accepted at j / windows that had a row for j."""
        return [a / v for a, v in zip(self.accepted_at, self.verified_at)]

    def conditional(self) -> list[float | None]:
        """Accepted at j / windows in which j - 1 was accepted (and j had a row)."""
        return [a / r if r else None for a, r in zip(self.accepted_at, self.reached_at)]


@dataclass(slots=True)
class Timings:
    """Milliseconds of one request, by the clock at which its tokens left the engine."""

    queue_ms: float = 0.0
    prefill_ms: float = 0.0
    ttft_ms: float = 0.0
    decode_ms: float = 0.0
    total_ms: float = 0.0
    decode_tok_s: float | None = None  # (completion tokens - 1) / decode time


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log probability of a committed token, of the unprocessed distribution of its own row, and the most probable
    ids.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(slots=True)
class Result:
    """What became of a request."""

    request_id: str
    token_ids: list[int]
    finish_reason: str
    prompt_tokens: int
    cached_tokens: int  # prompt tokens taken from the prefix cache
    seed: int
    timings: Timings
    spec: SpecStats
    logprobs: list[TokenLogprob] = field(default_factory=list)
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Started:
    """A request took a slot."""

    request_id: str
    slot: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens that a request committed in one window, in order."""

    request_id: str
    slot: int
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Finished:
    """A request ended, well or not."""

    request_id: str
    slot: int | None
    result: Result


@dataclass(frozen=True, slots=True)
class Downgrade:
    """Something the user asked for is off from now on; shown and recorded as long as it lasts."""

    what: str
    why: str


@dataclass(frozen=True, slots=True)
class WindowDone:
    """A window was committed."""

    record: StepRecord


Event = Started | Tokens | Finished | Downgrade | WindowDone
