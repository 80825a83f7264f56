"""The lines of a prompts file. No torch.

Three shapes, told apart by their keys, all with sampling parameters of their own:

    {"prompt": "text" | [token ids], ...}
    {"messages": [{"role", "content"}, ...], ...}
    {"custom_id", "method", "url", "body": {"messages" | "prompt", ...}}          OpenAI batch

A key that is not known, a value out of its range, a request for something that cannot be honoured: each is a fault with
its line. `parse` reads the whole file before anything else happens.
"""

import codecs
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, get_type_hints

import msgspec

from strata_cli.config import SamplingParams, unknown_name
from strata_cli.errors import UsageError

MAX_FAULTS = 20  # more are counted, not shown
ID_KEYS = ("custom_id", "id")
ENVELOPE_KEYS = (*ID_KEYS, "method", "url", "body")
# url of an OpenAI line -> the key its body must have
URLS = {"/v1/chat/completions": "messages", "/v1/completions": "prompt"}
PARAMS = tuple(f.name for f in fields(SamplingParams))
RENAMED = {"max_completion_tokens": "max_tokens"}
# Keys of the API that mean something only beyond these values; what else they ask for cannot be honoured.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "stream": (False,),
    "echo": (False,),
    "tools": ([],),
    "tool_choice": ("none",),
    "functions": ([],),
    "function_call": ("none",),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "suffix": ("",),
    "store": (False,),
}
LABELS = ("model", "user", "metadata")  # of the caller; they ask nothing of the text
BODY_KEYS = ("messages", "prompt", *PARAMS, *RENAMED, "top_logprobs", "chat_template_kwargs", *NEUTRAL, *LABELS)
MESSAGE_KEYS = ("role", "content", "name", "reasoning_content", "reasoning", "thinking")
MESSAGE_TEXTS = MESSAGE_KEYS[2:]
RESERVED_VARIABLES = ("self", "messages", "add_generation_prompt", "tools", "documents")  # of the chat template
ROLES = ("system", "developer", "user", "assistant", "tool")

_TYPES = get_type_hints(SamplingParams)


@dataclass(frozen=True, slots=True)
class PromptRecord:
    """One line of the input. `params` holds what the line sets of SamplingParams, checked."""

    id: str
    line: int
    prompt: str | list[int] | list[dict[str, Any]]
    params: Mapping[str, Any] = field(default_factory=dict)
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    model: str | None = None  # the model that the line names; another one may answer

    @property
    def is_chat(self) -> bool:
        return bool(self.prompt) and isinstance(self.prompt, list) and isinstance(self.prompt[0], dict)


class Faults:
    """Faults of an input file, collected so that one look shows them all."""

    def __init__(self, name: str):
        self._name = name
        self._lines: list[tuple[int, str]] = []

    def __bool__(self) -> bool:
        return bool(self._lines)

    def add(self, line: int, what: str) -> None:
        self._lines.append((line, f"{self._name}:{line}: {what}"))

    def check(self) -> None:
        """Raise them all as one UsageError, if there are any."""
        if self._lines:
            shown = [text for _, text in sorted(self._lines, key=lambda fault: fault[0])[:MAX_FAULTS]]
            more = len(self._lines) - len(shown)
            raise UsageError("\n".join([*shown, f"... and {more} more faults"][: len(shown) + (more > 0)]))


class _Bad(Exception):
    """What is wrong with a line."""


def parse(data: bytes, name: str) -> list[PromptRecord]:
    """The records of a prompts file; blank lines are skipped.

    Args:
        data: the whole file.
        name: what faults call it.

    Raises UsageError with one `name:line: what` for each fault.
    """
    faults = Faults(name)
    records: list[PromptRecord] = []
    seen: dict[str, int] = {}
    for number, line in enumerate(data.removeprefix(codecs.BOM_UTF8).split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            record = parse_line(line, number)
        except (_Bad, UsageError) as fault:
            faults.add(number, f"{fault}")
            continue
        if record.id in seen:
            faults.add(number, f'duplicate id "{record.id}", first in line {seen[record.id]}')
        seen.setdefault(record.id, number)
        records.append(record)
    faults.check()
    if not records:
        raise UsageError(f"{name}: no prompts", 'a line is a JSON object such as {"prompt": "Once upon a time"}')
    return records


def parse_line(line: bytes, number: int) -> PromptRecord:
    """One line as a record."""
    try:
        outer = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as fault:
        raise _Bad(f"not valid JSON: {fault}") from None
    if not isinstance(outer, dict):
        raise _Bad(f"not a JSON object but {_kind(outer)}")
    if "body" in outer:
        body = _envelope(outer)
    else:
        body = {key: value for key, value in outer.items() if key not in ID_KEYS}
        _known(body, (*ID_KEYS, *BODY_KEYS))
    template_kwargs = _template_kwargs(body)
    return PromptRecord(
        id=_id(outer, number),
        line=number,
        prompt=_prompt(body),
        params=_params(body),
        template_kwargs=template_kwargs,
        model=_typed("model", body.get("model"), str | None),
    )


def _template_kwargs(body: dict[str, Any]) -> dict[str, Any]:
    """Variables for the chat template, none of them a name that rendering sets itself."""
    given = _typed("chat_template_kwargs", body.get("chat_template_kwargs"), dict[str, Any] | None)
    if given and "messages" not in body:
        raise _Bad("chat_template_kwargs without messages: a prompt goes through no template")
    if reserved := [name for name in (given or {}) if name in RESERVED_VARIABLES]:
        raise _Bad(f"chat_template_kwargs: {reserved[0]} cannot be set")
    return given or {}


def _id(outer: dict[str, Any], number: int) -> str:
    for key in ID_KEYS:
        if outer.get(key) is not None:
            given = _typed(key, outer[key], str | int)
            if given == "":
                raise _Bad(f"{key} is empty")
            return str(given)
    return f"line-{number}"


def _envelope(outer: dict[str, Any]) -> dict[str, Any]:
    """The body of an OpenAI line, its envelope checked."""
    _known(outer, ENVELOPE_KEYS)
    body = outer["body"]
    if not isinstance(body, dict):
        raise _Bad(f"body is not a JSON object but {_kind(body)}")
    _known(body, BODY_KEYS)
    method, url = outer.get("method"), outer.get("url")
    if method not in (None, "POST"):
        raise _Bad(f"unknown method {method!r} (POST)")
    if url is not None and (not isinstance(url, str) or url not in URLS):
        raise _Bad(f"unknown url {url!r} ({', '.join(URLS)})")
    if url is not None and URLS[url] not in body:
        raise _Bad(f"{url} needs {URLS[url]} in the body")
    return body


def _known(keys: Mapping[str, Any], allowed: tuple[str, ...]) -> None:
    for key in keys:
        if key not in allowed:
            raise _Bad(unknown_name("key", key, allowed))


def _prompt(body: dict[str, Any]) -> str | list[int] | list[dict[str, Any]]:
    """Text, token ids or messages; exactly one of them, and not empty."""
    if ("prompt" in body) == ("messages" in body):
        both = "both prompt and messages" if "prompt" in body else "no prompt, messages or body"
        raise _Bad(f"{both}: a line has one of them")
    if "messages" in body:
        return _messages(body["messages"])
    prompt = _typed("prompt", body["prompt"], str | list[int])
    if not prompt:
        raise _Bad("empty prompt")
    if isinstance(prompt, list) and min(prompt) < 0:
        raise _Bad(f"prompt: token id {min(prompt)} is negative")
    return prompt


def _messages(given: Any) -> list[dict[str, Any]]:
    messages = _typed("messages", given, list[dict[str, Any]])
    if not messages:
        raise _Bad("empty prompt: messages has no message")
    for index, message in enumerate(messages):
        place = f"messages[{index}]"
        for key in message:
            if key not in MESSAGE_KEYS:
                raise _Bad(f"{place}: {unknown_name('key', key, MESSAGE_KEYS)}")
        if message.get("role") not in ROLES:
            raise _Bad(f"{place}.role = {message.get('role')!r} ({', '.join(ROLES)})")
        for key in MESSAGE_TEXTS:
            _typed(f"{place}.{key}", message.get(key), str | None)
        message["content"] = _content(message.get("content"), f"{place}.content")
    return messages


def _content(content: Any, place: str) -> str:
    """A message's text; text parts are joined."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise _Bad(f"{place}: expected text, got {_kind(content)}")
    for part in content:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, dict) else _kind(part)
            raise _Bad(f"{place}: a part of type {kind!r}: only text is supported")
    return "".join(part["text"] for part in content)


def _params(body: dict[str, Any]) -> dict[str, Any]:
    """What the line sets of SamplingParams, each value of its type and within its range. null means unset."""
    for key, allowed in NEUTRAL.items():
        value = body.get(key)
        if value is not None and not any(value == ok and type(value) is type(ok) for ok in allowed):
            raise _Bad(f"{key} = {msgspec.json.encode(value).decode()} is not supported")
    given: dict[str, Any] = {}
    for key in (*PARAMS, *RENAMED):
        value, name = body.get(key), RENAMED.get(key, key)
        if value is None or key == "logprobs":
            continue
        if name in given and given[name] != value:
            raise _Bad(f"{key} = {value} and {name} = {given[name]} differ")
        given[name] = _param(key, name, value)
    logprobs = _logprobs(body)
    if logprobs is not None:
        given["logprobs"] = logprobs
    return given


def _param(key: str, name: str, value: Any) -> Any:
    if name == "stop" and isinstance(value, str):
        value = [value]
    if name == "logit_bias":
        biases = _typed(key, value, dict[str, float])
        if bad := next((token for token in biases if not token.isdecimal()), None):
            raise _Bad(f"logit_bias: {bad!r} is not a token id")
        value = sorted((int(token), bias) for token, bias in biases.items())
    value = _typed(key, value, _TYPES[name])
    SamplingParams(**{name: value})  # raises UsageError out of range
    return value


def _logprobs(body: dict[str, Any]) -> int | None:
    """`logprobs` as a number (completions) or as true with `top_logprobs` (chat)."""
    wanted = _typed("logprobs", body.get("logprobs"), bool | int | None)
    top = _typed("top_logprobs", body.get("top_logprobs"), int | None)
    if top is not None and wanted is not True:
        raise _Bad("top_logprobs needs logprobs = true")
    if wanted is None or wanted is False:
        return None
    return int(_param("logprobs", "logprobs", (top or 0) if wanted is True else wanted))


def _typed(key: str, value: Any, hint: Any) -> Any:
    """The value as its type, strictly: no text for a number, no fraction for a whole one."""
    if isinstance(value, float) and not math.isfinite(value):
        raise _Bad(f"{key} = {value} is not a number")
    try:
        return msgspec.convert(value, hint)
    except msgspec.ValidationError as fault:
        raise _Bad(f"{key}: {str(fault)[:1].lower()}{str(fault)[1:]}") from None


def _kind(value: Any) -> str:
    names = {str: "text", int: "a number", float: "a number", bool: "true or false", list: "a list", dict: "an object"}
    return names.get(type(value), "null")
