"""One turn: the candidates of an answer, from prompt to last token. No torch.

Every candidate is one request in a slot of its own, or two where its thinking was cut at the budget: the first ends at
exactly that token (so the text does not depend on how many tokens a window brought), the second goes on after a closing
tag that its prompt holds (so presence and frequency penalties count the answer's tokens from there on).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Protocol

from strata_cli.config import SamplingParams
from strata_cli.engine.record import StepRecord
from strata_cli.engine.types import (
    Downgrade,
    Event,
    Finished,
    Request,
    Result,
    SpecStats,
    Timings,
    Tokens,
    WindowDone,
)
from strata_cli.errors import StrataError
from strata_cli.session import Observer, Orders, Prompt, Session, drive
from strata_cli.text.stop import StopWatch
from strata_cli.text.thinking import FORCED_CLOSE, Piece, ThinkingSplitter


class View(Protocol):
    """Where a turn shows itself: `show` gets text that is final, `tick` comes after every window."""

    def show(self, answer: "Answer", pieces: Sequence[Piece]) -> None: ...
    def tick(self) -> None: ...
    def note(self, text: str) -> None: ...


@dataclass
class Answer:
    """One candidate, in the making or `done`. `result` spans both requests of a forced close.

    `tokens` counts those that came so far. `rows` and `keeps` add up L and keeps over its decode windows.
    `context_tokens` is what its slot held at the end.
    """

    candidate: int
    params: SamplingParams
    splitter: ThinkingSplitter
    result: Result | None = None
    done: bool = False
    tokens: int = 0
    forced_close: bool = False
    context_tokens: int = 0
    windows: int = 0
    rows: int = 0
    keeps: int = 0

    @property
    def text(self) -> str:
        return self.splitter.answer

    @property
    def reasoning(self) -> str:
        return self.splitter.reasoning

    @property
    def empty(self) -> bool:
        return not (self.text or self.reasoning)

    @property
    def interrupted(self) -> bool:
        return self.result is None or not self.done or self.result.finish_reason == "cancelled"


class ThinkingWatch:
    """Reads a request's tokens: stop strings by `inner`, thinking told from answer and ended at `budget` tokens."""

    def __init__(self, inner: StopWatch, splitter: ThinkingSplitter, budget: int | None):
        self.inner = inner
        self.splitter = splitter
        self.budget = budget
        self.over_budget = False
        self._pieces: list[Piece] = []

    def push(self, token: int) -> bool:
        stop = self.inner.push(token)
        self._pieces += self.splitter.feed(self.inner.take(), tokens=1)
        if self.budget is not None and not stop and self.splitter.thinking:
            self.over_budget = self.splitter.thinking_tokens >= self.budget
        return stop or self.over_budget

    def close(self) -> None:
        """No token comes any more: nothing stays held in `inner`."""
        self.inner.close()
        self._pieces += self.splitter.feed(self.inner.take())

    def take(self) -> list[Piece]:
        pieces, self._pieces = self._pieces, []
        return pieces


_ids = count()  # request ids are unique in the process


class Turn:
    """The requests of one turn while they run.

    Args:
        session: the model.
        view: where the answers show.
        budget: the most thinking tokens of each answer, or None.
        observers: get every event too (the step statistics).
    """

    def __init__(self, session: Session, view: View, budget: int | None, observers: Sequence[Observer] = ()):
        self.session = session
        self.view = view
        self.budget = budget
        self.observers = observers
        self._live: dict[str, tuple[Answer, Request, ThinkingWatch]] = {}
        self._answers: dict[str, Answer] = {}  # of every request so far: a window is told after its last token too
        self._stopped = False

    def run(self, prompt: Prompt, answers: Sequence[Answer], stop: Callable[[], bool]) -> None:
        """Fill in all answers side by side; `stop`, asked before every window, ends them with what they have."""
        try:
            for answer in answers:
                self._submit(answer, prompt, answer.params, self.budget)
            drive(self.session.engine, (self, *self.observers), orders=lambda: self._orders(stop), tick=self.view.tick)
        finally:
            for request_id in self._live:
                self.session.engine.cancel(request_id)

    def events(self, events: Sequence[Event]) -> None:
        """What a window brought (this turn is an observer of its own drive)."""
        for event in events:
            self._take(event)

    def _orders(self, stop: Callable[[], bool]) -> Orders:
        if not self._stopped and stop():
            self._stopped = True
            return Orders(cancel=tuple(self._live))
        return Orders()

    def _submit(self, answer: Answer, prompt: Prompt, params: SamplingParams, budget: int | None) -> None:
        request = self.session.checkpoint.request(f"chat-{next(_ids)}", prompt, params)
        assert isinstance(request.watch, StopWatch)
        watch = ThinkingWatch(request.watch, answer.splitter, budget)
        request.watch = watch
        self.session.engine.submit(request)
        self._live[request.id] = answer, request, watch
        self._answers[request.id] = answer

    def _take(self, event: Event) -> None:
        match event:
            case Tokens(request_id=request_id, token_ids=token_ids) if request_id in self._live:
                answer, _, watch = self._live[request_id]
                answer.tokens += len(token_ids)
                self.view.show(answer, watch.take())
            case WindowDone(record=record):
                self._count(record)
            case Finished(request_id=request_id, result=result) if request_id in self._live:
                self._finished(*self._live.pop(request_id), result)
            case Downgrade(what=what, why=why):
                self.view.note(f"warning: {what}: {why}")

    def _count(self, record: StepRecord) -> None:
        for request_id, rows, keeps in zip(record.request, record.L, record.keeps):
            if rows and request_id in self._answers:
                answer = self._answers[request_id]
                answer.windows += 1
                answer.rows += rows
                answer.keeps += keeps

    def _finished(self, answer: Answer, request: Request, watch: ThinkingWatch, result: Result) -> None:
        watch.close()
        self.view.show(answer, watch.take())
        answer.result = joined(answer.result, result) if answer.result else result
        answer.context_tokens = len(request.prompt) + len(result.token_ids)
        if not (watch.over_budget and self._close_thinking(answer, request, result)):
            answer.done = True
            self.view.show(answer, answer.splitter.finish())

    def _close_thinking(self, answer: Answer, request: Request, result: Result) -> bool:
        """Go on behind a closing tag; False when there is no room or no wish for more tokens."""
        assert answer.result is not None
        left = None if answer.params.max_tokens is None else answer.params.max_tokens - len(result.token_ids)
        if self._stopped or left == 0:
            answer.result.finish_reason = "cancelled" if self._stopped else "length"
            return False
        closed = self.session.tokenizer.encode(FORCED_CLOSE)
        prompt = Prompt(request.prompt + result.token_ids + closed, turn=len(request.prompt))
        try:
            self._submit(answer, prompt, replace(answer.params, max_tokens=left), None)
        except StrataError as error:
            self.view.note(f"the thinking reached its budget and the answer has no room: {error}")
            answer.result.finish_reason = "length"
            return False
        answer.forced_close = True
        self.view.show(answer, answer.splitter.close())
        return True


def joined(first: Result, second: Result) -> Result:
    """One result of two requests that continue each other; the prompt and the first token are those of `first`."""
    a, b = first.timings, second.timings
    decode_ms = a.decode_ms + b.decode_ms
    decoded = max(len(first.token_ids) - 1, 0) + max(len(second.token_ids) - 1, 0)
    timings = Timings(
        queue_ms=a.queue_ms + b.queue_ms,
        prefill_ms=a.prefill_ms + b.prefill_ms,
        ttft_ms=a.ttft_ms,
        decode_ms=decode_ms,
        total_ms=a.total_ms + b.total_ms,
        decode_tok_s=1000 * decoded / decode_ms if decode_ms else None,
    )
    return Result(
        request_id=first.request_id,
        token_ids=first.token_ids + second.token_ids,
        finish_reason=second.finish_reason,
        prompt_tokens=first.prompt_tokens,
        cached_tokens=first.cached_tokens,
        seed=first.seed,
        timings=timings,
        spec=added(first.spec, second.spec),
        logprobs=first.logprobs + second.logprobs,
        error=second.error,
    )


def added(first: SpecStats, second: SpecStats) -> SpecStats:
    """The drafting of both."""

    def lists(a: list[int], b: list[int]) -> list[int]:
        long, short = (a, b) if len(a) >= len(b) else (b, a)
        return [n + (short[j] if j < len(short) else 0) for j, n in enumerate(long)]

    return SpecStats(
        windows=first.windows + second.windows,
        drafted=first.drafted + second.drafted,
        verified=first.verified + second.verified,
        accepted=first.accepted + second.accepted,
        keeps=first.keeps + second.keeps,
        verified_at=lists(first.verified_at, second.verified_at),
        reached_at=lists(first.reached_at, second.reached_at),
        accepted_at=lists(first.accepted_at, second.accepted_at),
    )
