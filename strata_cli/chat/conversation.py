"""The state of a conversation: what was said, under which settings, how seeds derive, and its file. No torch."""

import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

import msgspec

from strata_cli.config import SamplingParams, unknown_name
from strata_cli.engine.seeds import derive_seed, fresh_seed
from strata_cli.errors import StrataError, UsageError
from strata_cli.settings import SAMPLING_FIELDS, check_value

SCHEMA = 1
# What /set takes: log probabilities have no face in a conversation.
SETTABLE = tuple(name for name in SAMPLING_FIELDS if name != "logprobs")


def answer_seed(seed: int, candidate: int, attempt: int) -> int:
    """Seed of one answer, from the conversation's, the candidate (0..) and the attempt (0 = first answer).

    (seed, 0, 0) is the seed itself, so that a first answer equals `strata run` with the same seed; any other is
    `derive_seed(seed, candidate, attempt)`. The turn needs no place in it: the noise is keyed by position as well.
    """
    return seed if candidate == attempt == 0 else derive_seed(seed, candidate, attempt)


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One turn of one side. `reasoning_content` is the thinking before an answer; a template may drop it later."""

    role: Literal["user", "assistant"]
    content: str
    reasoning_content: str = ""
    interrupted: bool = False

    def for_template(self) -> dict[str, str]:
        message = {"role": str(self.role), "content": self.content}
        if self.reasoning_content:
            message["reasoning_content"] = self.reasoning_content
        return message


class Saved(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A conversation's file: everything the next tokens depend on."""

    strata_chat: int
    model: str
    seed: int
    attempt: int
    system: str | None
    think: bool | None
    think_budget: int | None
    n: int
    sampling: dict[str, Any]
    messages: list[Message]


@dataclass
class Conversation:
    """What was said and how the next answer is made.

    `params.seed` stays None: `seed` is the conversation's, each answer's derives from it. `think` None leaves it to the
    template. `attempt` counts the answers given to the last user message, from 0.
    """

    params: SamplingParams
    seed: int
    system: str | None = None
    think: bool | None = None
    think_budget: int | None = None
    n: int = 1
    attempt: int = 0
    messages: list[Message] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.params = replace(self.params, seed=None)
        self.set_think_budget(self.think_budget)

    def for_template(self) -> list[dict[str, str]]:
        """The whole conversation as chat-template messages, system text first."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        return system + [message.for_template() for message in self.messages]

    def answer_params(self, candidate: int) -> SamplingParams:
        """Parameters of one candidate of the coming answer."""
        return replace(self.params, seed=answer_seed(self.seed, candidate, self.attempt))

    def say(self, text: str) -> None:
        """The user's next message."""
        self.messages.append(Message("user", text))
        self.attempt = 0

    def reply(self, answer: str, reasoning: str = "", interrupted: bool = False) -> None:
        """The answer to the user's last message."""
        assert self.messages and self.messages[-1].role == "user"
        self.messages.append(Message("assistant", answer, reasoning, interrupted))

    def last_user(self) -> str | None:
        """The user's last message."""
        return next((m.content for m in reversed(self.messages) if m.role == "user"), None)

    def retake(self) -> None:
        """Drop the last answer; the next one is another attempt."""
        if not self.messages:
            raise UsageError("there is no answer to make again", "say something first")
        self.messages.pop()
        self.attempt += 1

    def set(self, key: str, text: str, defaults: SamplingParams) -> None:
        """Set a sampling parameter from text; "default" takes the checkpoint's value (and draws a new seed).

        Raises:
            UsageError: an unknown key, or a value that is refused. Nothing has changed then.
        """
        check_key(key)
        value: Any
        if text == "default":
            value = fresh_seed() if key == "seed" else getattr(defaults, key)
        else:
            value = check_value(key, text, strict=False)
        if key == "seed":
            self.seed = fresh_seed() if value is None else value
        else:
            changed: dict[str, Any] = {key: value}
            self.params = replace(self.params, **changed)

    def get(self, key: str) -> Any:
        """The value of a sampling parameter."""
        check_key(key)
        return self.seed if key == "seed" else getattr(self.params, key)

    def set_think_budget(self, tokens: int | None) -> None:
        """The most thinking tokens of an answer; None: no limit."""
        if tokens is not None and tokens < 1:
            raise UsageError(f"a thinking budget of {tokens} tokens is out of range", "allowed: 1 or more")
        self.think_budget = tokens

    def set_spec(self, spec: int | None) -> None:
        """The most drafts of a chain for the answers to come; None: the engine's own."""
        self.params = replace(self.params, spec=spec)

    def save(self, path: Path, model: str) -> None:
        """Write the conversation, whole or not at all; only an earlier conversation is written over.

        Raises:
            StrataError: the path holds something else, or can not be written.
        """
        sampling = {key: value for key, value in msgspec.to_builtins(self.params).items() if key != "seed"}
        saved = Saved(
            strata_chat=SCHEMA,
            model=model,
            seed=self.seed,
            attempt=self.attempt,
            system=self.system,
            think=self.think,
            think_budget=self.think_budget,
            n=self.n,
            sampling=sampling,
            messages=self.messages,
        )
        if path.exists():
            try:
                read_saved(path)
            except StrataError:
                raise UsageError(f"{path} exists and is no saved conversation", "name another file") from None
        try:
            _write_whole(path, json.dumps(msgspec.to_builtins(saved), ensure_ascii=False, indent=1) + "\n")
        except OSError as error:
            raise StrataError(f"{path} was not written: {error.strerror}") from None

    @classmethod
    def load(cls, path: Path) -> tuple["Conversation", str]:
        """(conversation, name of the model it was held with).

        Raises:
            StrataError: no such file, not a saved conversation, or values that are refused.
        """
        saved = read_saved(path)
        conversation = cls(
            _sampling(saved.sampling, path),
            saved.seed,
            saved.system,
            saved.think,
            saved.think_budget,
            saved.n,
            saved.attempt,
            list(saved.messages),
        )
        return conversation, saved.model


def check_key(key: str) -> None:
    """Raises UsageError for a key that /set does not know."""
    if key not in SETTABLE:
        raise UsageError(unknown_name("sampling parameter", key, SETTABLE), f"known: {', '.join(SETTABLE)}")


def read_saved(path: Path) -> Saved:
    """The checked content of a saved conversation; StrataError says what is wrong with it."""
    try:
        saved = msgspec.json.decode(path.read_bytes(), type=Saved)
    except OSError as error:
        raise StrataError(f"{path} can not be read: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise UsageError(f"{path} is no saved conversation: {_lower_first(str(error))}") from None
    if saved.strata_chat != SCHEMA:
        raise UsageError(f"{path} has schema {saved.strata_chat}, this program reads {SCHEMA}")
    if not _alternate(saved.messages):
        raise UsageError(f"{path}: messages must alternate user, assistant and end with an answer")
    if not 0 <= saved.seed < 2**64 or saved.attempt < 0 or saved.n < 1:
        raise UsageError(f"{path}: seed, attempt or n is out of range")
    return saved


def _alternate(messages: Sequence[Message]) -> bool:
    roles = [message.role for message in messages]
    return roles == ["user", "assistant"] * (len(roles) // 2)


def _sampling(values: dict[str, Any], path: Path) -> SamplingParams:
    names = [field.name for field in fields(SamplingParams)]
    for name in values:
        if name not in names:
            raise UsageError(f"{path}: {unknown_name('sampling parameter', name, names)}")
    try:
        return msgspec.convert(values, SamplingParams)
    except msgspec.ValidationError as error:
        raise UsageError(f"{path}: sampling: {_lower_first(str(error))}") from None


def _write_whole(path: Path, text: str) -> None:
    """Through a temporary file beside it, readable by its owner only."""
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]
