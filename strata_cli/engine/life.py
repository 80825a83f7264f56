"""A request's life: waiting, reading, decoding, done. A `Slot` is a seated life. No torch."""

from dataclasses import dataclass, field

from strata_cli.engine.types import Request, Result, SpecStats, Timings, TokenLogprob


@dataclass(slots=True)
class Life:
    """A request from its submission to its end. `tokens`: prompt and committed ones. Times in seconds of the engine's
    clock; `limit`: most completion tokens, by max_tokens and context.
    """

    request: Request
    seed: int
    submitted: float
    limit: int
    tokens: list[int]
    seat: "Slot | None" = None  # None: waiting, or done
    done: bool = False
    admitted: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    cached_tokens: int = 0
    spec: SpecStats = field(default_factory=SpecStats)
    logprobs: list[TokenLogprob] = field(default_factory=list)

    @property
    def state(self) -> str:
        """waiting, reading, decoding or done."""
        if self.done:
            return "done"
        if self.seat is None:
            return "waiting"
        return "reading" if self.seat.length < self.to_read else "decoding"

    @property
    def generated(self) -> int:
        return len(self.tokens) - len(self.request.prompt)

    @property
    def left(self) -> int:
        """Completion tokens it may still commit."""
        return self.limit - self.generated

    @property
    def to_read(self) -> int:
        """Tokens whose rows are known before any window: the prompt, or after a preemption all but the last token."""
        return max(len(self.request.prompt), len(self.tokens) - 1)

    def stamp(self, now: float) -> None:
        """Tokens of this request leave the engine now."""
        self.first_token = now if self.first_token is None else self.first_token
        self.last_token = now

    def result(self, reason: str, now: float, error: str | None = None) -> Result:
        """What became of the request, ended at `now`."""
        timings = Timings(total_ms=(now - self.submitted) * 1000)
        timings.queue_ms = ((self.admitted if self.admitted is not None else now) - self.submitted) * 1000
        if self.first_token is not None and self.last_token is not None and self.admitted is not None:
            timings.ttft_ms = (self.first_token - self.submitted) * 1000
            timings.prefill_ms = (self.first_token - self.admitted) * 1000
            timings.decode_ms = (self.last_token - self.first_token) * 1000
            if timings.decode_ms > 0:
                timings.decode_tok_s = (self.generated - 1) / timings.decode_ms * 1000
        return Result(
            request_id=self.request.id,
            token_ids=self.tokens[len(self.request.prompt) :],
            finish_reason=reason,
            prompt_tokens=len(self.request.prompt),
            cached_tokens=self.cached_tokens,
            seed=self.seed,
            timings=timings,
            spec=self.spec,
            logprobs=self.logprobs,
            error=error,
        )


@dataclass(slots=True)
class Slot:
    """A life in its seat, `index`. `length`: tokens whose rows are in the cache. `entered`: count of admissions when it
    came, for "the youngest". `missed`: windows it sat out in a row. `found`: prompt tokens the prefix cache had.
    """

    index: int
    life: Life
    entered: int
    length: int = 0
    missed: int = 0
    found: int = 0

    @property
    def finishes(self) -> int:
        """Prompt rows until its first token is drawn; 0 where that token is known (after a preemption)."""
        life = self.life
        return len(life.tokens) - self.length if life.generated == 0 else 0
