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
        except jinja2.TemplateError as fault:
            raise UsageError(f"{place}: {fault}") from None

    @classmethod
    def load(cls, directory: Path) -> "ChatTemplate | None":
        """chat_template.jinja of a checkpoint, else `chat_template` of its tokenizer_config.json, else None."""
        config_path, file = directory / "tokenizer_config.json", directory / "chat_template.jinja"
        try:
            config = json.loads(config_path.read_text(encoding="utf-8")) if config_path.is_file() else {}
        except ValueError as fault:
            raise UsageError(f"{config_path}: not valid JSON: {fault}") from None
        source = file.read_text(encoding="utf-8") if file.is_file() else config.get("chat_template")
        if isinstance(source, list):  # several named ones
            source = next((entry["template"] for entry in source if entry.get("name") == "default"), None)
        if not source:
            return None
        named = {key: value for key, value in config.items() if key.endswith("_token")}
        tokens = {key: value["content"] if isinstance(value, dict) else value for key, value in named.items()}
        special = {key: value for key, value in tokens.items() if isinstance(value, str)}
        return cls(source, special, str(file if file.is_file() else config_path))

    def render(self, messages: Sequence[Message], add_generation_prompt: bool = True, **variables: Any) -> str:
        """The prompt's text.

        Args:
            messages: `{"role", "content", ...}` in order.
            add_generation_prompt: end with the opening of the assistant's turn.
            variables: what the template reads beside (`enable_thinking` and the like).

        Raises UsageError with the template's own words when it refuses the conversation.
        """
        chat = [_with_reasoning_names(message) for message in messages]
        variables = {**self._special_tokens, "tools": None, "documents": None, **variables}
        try:
            return self._template.render(messages=chat, add_generation_prompt=add_generation_prompt, **variables)
        except (jinja2.TemplateError, TypeError, ValueError, KeyError) as fault:
            raise UsageError(f"{self.place} refuses the messages: {fault}") from None


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
