"""A stand-in for a loaded model: an engine that answers from a script, one character a token, three in a window.

Run as a program it is `strata chat` on that engine, for the tests that need a real terminal.
"""

import hashlib
import os
import sys
import time
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from strata_cli.chat.conversation import Conversation
from strata_cli.chat.dialogue import Dialogue
from strata_cli.config import EngineConfig, SamplingParams
from strata_cli.engine.record import StepRecord
from strata_cli.engine.types import (
    Event,
    Finished,
    Request,
    Result,
    SpecStats,
    Started,
    Timings,
    Tokens,
    WindowDone,
)
from strata_cli.errors import UsageError
from strata_cli.session import Checkpoint, Session

EOS = 0
KEEPS, L = 3, 4  # of every decode window that is not the last of its request


class FakeDetokenizer:
    def push(self, token: int) -> str:
        return chr(token)

    def flush(self) -> str:
        return ""


class FakeTokenizer:
    size = 0x110000

    def special_id(self, text: str) -> int | None:
        return EOS if text == "<eos>" else None

    def encode(self, text: str) -> list[int]:
        return [ord(character) for character in text]

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(map(chr, tokens))

    def stream(self) -> FakeDetokenizer:
        return FakeDetokenizer()


class FakeTemplate:
    """`[role] content` lines; old thinking dropped; the reply opens with thinking on request."""

    def render(
        self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True, **variables: Any
    ) -> str:
        lines = [f"[{message['role']}] {message['content']}\n" for message in messages]
        opening = "<think>\n" if variables.get("enable_thinking") else "<think>\n\n</think>\n\n"
        return "".join(lines) + "[assistant] " + opening


class PlainTemplate(FakeTemplate):
    """Knows nothing of thinking."""

    def render(
        self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True, **variables: Any
    ) -> str:
        return "".join(f"[{message['role']}] {message['content']}\n" for message in messages) + "[assistant] "


def scripted(prompt: str, seed: int) -> str:
    """The reply: thinking where the prompt opens it, then the last message with a mark of prompt and seed.

    A message that says "long" gets a reply of 4000 numbered words.
    """
    mark = hashlib.sha256(f"{prompt}|{seed}".encode()).hexdigest()[:8]
    said = prompt.rsplit("[user] ", 1)[1].split("\n[assistant]", 1)[0]
    reply = " ".join(f"word{i}" for i in range(4000)) if "long" in said else f"you said {said!r} ({mark})"
    return f"pondering {said}\n</think>\n\n{reply}" if prompt.endswith("<think>\n") else reply


class FakeEngine:
    """The engine's API. `delay_s` stretches every step; `error` ends every request with it."""

    memory = SimpleNamespace(total_bytes=0, as_dict=dict)
    clock = staticmethod(time.perf_counter)

    def __init__(self, batch: int = 4, ctx: int = 100_000, delay_s: float = 0.0, error: str | None = None):
        self.config = EngineConfig(batch=batch)
        self.ctx = ctx
        self.delay_s = delay_s
        self.error = error
        self.submitted: list[Request] = []
        self.running: dict[str, tuple[Request, list[int], list[int]]] = {}
        self.events: list[Event] = []

    def submit(self, request: Request) -> None:
        if len(request.prompt) >= self.ctx:
            raise UsageError(f"the prompt has {len(request.prompt)} tokens, the context {self.ctx}", "shorten it")
        assert request.params.seed is not None
        prompt = "".join(map(chr, request.prompt))
        reply = [*map(ord, scripted(prompt, request.params.seed)), EOS]
        self.submitted.append(request)
        self.running[request.id] = request, reply, []
        self.events.append(Started(request.id, len(self.running) - 1, 0))

    def cancel(self, request_id: str) -> bool:
        if request_id not in self.running:
            return False
        self._finish(request_id, "cancelled")
        return True

    @property
    def has_work(self) -> bool:
        return bool(self.running or self.events)

    @property
    def downgrades(self) -> list[str]:
        return []

    def pause(self, paused: bool = True) -> None:
        assert not paused, "a conversation pauses nobody"

    def idle_s(self) -> float:
        return 0.0

    def close(self) -> None:
        self.running.clear()

    def step(self) -> list[Event]:
        assert self.has_work
        time.sleep(self.delay_s)
        ids = list(self.running)
        keeps = [self._advance(request_id) for request_id in ids]
        if ids:
            self.events.append(WindowDone(_record(ids, keeps)))
        events, self.events = self.events, []
        return events

    def _advance(self, request_id: str) -> int:
        request, reply, done = self.running[request_id]
        if self.error:
            self._finish(request_id, "error")
            return 0
        tokens, reason = [], None
        while len(tokens) < KEEPS and reason is None:
            token = reply[len(done)]
            tokens.append(token)
            done.append(token)
            assert request.watch is not None
            if token == EOS or request.watch.push(token):
                reason = "stop"
            elif len(done) == request.params.max_tokens or len(request.prompt) + len(done) == self.ctx:
                reason = "length"
        self.events.append(Tokens(request_id, 0, tuple(tokens)))
        if reason:
            self._finish(request_id, reason)
        return len(tokens)

    def _finish(self, request_id: str, reason: str) -> None:
        request, _, done = self.running.pop(request_id)
        windows = -(-len(done) // KEEPS)
        spec = SpecStats(
            windows, 3 * windows, 3 * windows, 2 * windows, len(done), [windows] * 3, [windows] * 3, [windows] * 2
        )
        result = Result(
            request_id,
            list(done),
            reason,
            len(request.prompt),
            len(request.prompt) // 64 * 64,
            request.params.seed or 0,
            Timings(ttft_ms=5.0, decode_ms=100.0, total_ms=105.0, decode_tok_s=10.0 * max(len(done) - 1, 0)),
            spec,
            error=self.error if reason == "error" else None,
        )
        self.events.append(Finished(request_id, 0, result))


def _record(ids: list[str], keeps: list[int]) -> StepRecord:
    n = len(ids)
    return StepRecord(
        kind="chain", t=0.0, slots=n, rows=L * n, drafts=(L - 1) * n, verified=(L - 1) * n, accepted=2 * n, step_ms=1.0,
        slot=list(range(n)), request=ids, prompt=[0] * n, L=[L] * n, keeps=keeps, ctx=[0] * n, reason=["fits"] * n,
        bucket=L * n,
    )  # fmt: skip


def fake_session(engine: FakeEngine | None = None, template: FakeTemplate | None = None, name: str = "fake") -> Session:
    """The real Checkpoint and Session around what is faked."""
    engine = engine or FakeEngine()
    parts: dict[str, Any] = {"tokenizer": FakeTokenizer(), "template": template or FakeTemplate()}
    parts["model_config"] = types.SimpleNamespace(max_position_embeddings=engine.ctx)
    defaults = SamplingParams(temperature=0.7, top_k=20)
    checkpoint = Checkpoint(name, Path(), **parts, defaults=defaults, context=engine.ctx, vocab=0x110000)
    return Session(checkpoint, engine)


class FakeScreen:
    """Remembers what it was shown; picks and edits what it is told to."""

    def __init__(self, picks: Sequence[int | None] = (), edits: Sequence[str] = ()):
        self.notes: list[str] = []
        self.shown: list[tuple[int, str, bool]] = []
        self.ended: list[Any] = []
        self.picks = list(picks)
        self.edits = list(edits)
        self.on_tick = lambda: None

    def begin(self, answers: Sequence[Any]) -> None:
        self.shown.clear()

    def show(self, answer: Any, pieces: Sequence[Any]) -> None:
        self.shown += [(answer.candidate, piece.text, piece.thinking) for piece in pieces]

    def tick(self) -> None:
        self.on_tick()

    def end(self, answers: Sequence[Any]) -> None:
        self.ended = list(answers)

    def pick(self, answers: Sequence[Any]) -> int | None:
        return self.picks.pop(0)

    def edit(self, text: str) -> str:
        self.edited = text
        return self.edits.pop(0)

    def note(self, text: str) -> None:
        self.notes.append(text)


def dialogue(
    engine: FakeEngine | None = None,
    screen: FakeScreen | None = None,
    template: FakeTemplate | None = None,
    name: str = "fake",
    **state: Any,
) -> Dialogue:
    """A dialogue with the stand-in, seed 7."""
    conversation = Conversation(SamplingParams(), seed=7, **state)
    return Dialogue(fake_session(engine, template, name), conversation, screen or FakeScreen())


def contents(talk: Dialogue) -> list[str]:
    return [message.content for message in talk.conversation.messages]


def main() -> int:
    """`strata chat` with this engine in the model's place: FAKE_DELAY_S stretches its windows."""
    from strata_cli import app
    from strata_cli.commands import chat

    engine = FakeEngine(delay_s=float(os.environ.get("FAKE_DELAY_S", "0")))
    session = fake_session(engine)
    chat.open_checkpoint = lambda settings: session.checkpoint
    chat.load_session = lambda checkpoint, config: session
    return app.run(["chat", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
