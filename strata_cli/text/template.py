"""Chat templates: messages to the text of a prompt, as transformers renders them. No torch.

A template is code from a model's author, so it runs in jinja2's immutable sandbox.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from strata_cli.errors import UsageError
from strata_cli.model.files import one_line, present, read_object, read_text, shown

Message = Mapping[str, Any]
REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")  # names of one thing; templates read the first


class ChatTemplate:
    """A compiled chat template and the special tokens that it may name.

    Args:
        source: jinja2 text.
        special_tokens: `bos_token`, `eos_token` and so on, as tokenizer_config.json has them.
        place: what error messages call it.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str] | None = None, place: str = "chat template"):
        self.place = place
        self._special_tokens = dict(special_tokens or {})
        try:
            self._template = _environment().from_string(source)
        except Exception as fault:  # deep nesting and the like are Python's own errors
            raise UsageError(f"{place}: {_words(fault)}") from None

    @classmethod
    def load(cls, directory: Path) -> "ChatTemplate | None":
        """chat_template.jinja of a checkpoint, else `chat_template` of its tokenizer_config.json, else None.

        Raises UsageError: a file that cannot be read, a template that is not text or does not compile.
        """
        config_path, file = directory / "tokenizer_config.json", directory / "chat_template.jinja"
        config = read_object(config_path) if present(config_path) else {}
        place = file if present(file) else config_path
        source = read_text(file) if place == file else config.get("chat_template")
        if isinstance(source, list):  # several named ones
            named = {entry.get("name"): entry.get("template") for entry in source if isinstance(entry, dict)}
            source = named.get("default")
        if not source:
            return None
        if not isinstance(source, str):
            raise UsageError(f"{place}: chat_template = {shown(source)}: must be a string")
        tokens = {key: value.get("content") if isinstance(value, dict) else value for key, value in config.items()}
        special = {key: value for key, value in tokens.items() if key.endswith("_token") and isinstance(value, str)}
        return cls(source, special, str(place))

    def render(self, messages: Sequence[Message], add_generation_prompt: bool = True, **variables: Any) -> str:
        """The prompt's text.

        Args:
            messages: `{"role", "content", ...}` in order.
            add_generation_prompt: end with the opening of the assistant's turn.
            variables: what the template reads beside (`enable_thinking` and the like).

        Raises UsageError with the template's own words when it refuses the conversation, and for whatever goes wrong
        in it: it is a stranger's code.
        """
        chat = [_with_reasoning_names(message) for message in messages]
        variables = {**self._special_tokens, "tools": None, "documents": None, **variables}
        try:
            text = self._template.render(messages=chat, add_generation_prompt=add_generation_prompt, **variables)
            text.encode()  # a lone surrogate is no text, and the tokenizer would refuse it less kindly
            return text
        except Exception as fault:
            raise UsageError(f"{self.place} refuses the messages: {_words(fault)}") from None


def _words(fault: Exception) -> str:
    """What a template says, or the kind of Python's error: its text alone ("'x'") tells little."""
    kind = "" if isinstance(fault, jinja2.TemplateError) else f"{type(fault).__name__}: "
    return one_line(f"{kind}{fault}")


def _with_reasoning_names(message: Message) -> dict[str, Any]:
    """The message with its thinking under both names that templates read."""
    reasoning = next((message[key] for key in REASONING_KEYS if message.get(key) is not None), None)
    if reasoning is None:
        return dict(message)
    return {"thinking": reasoning, **message, "reasoning_content": reasoning}


class _Generation(Extension):
    """`{% generation %}` marks assistant text for training; in a prompt it is transparent."""

    tags = {"generation"}  # noqa: RUF012  # jinja2 reads a plain class attribute

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


def _environment() -> ImmutableSandboxedEnvironment:
    """The jinja2 dialect of Hugging Face templates."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda layout: datetime.now().strftime(layout)
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # jinja2's own filter escapes HTML characters and orders keys.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
