"""Completion of slash commands and their arguments. No torch."""

from collections.abc import Iterable, Iterator

from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document

from strata_cli.chat.slash import COMMANDS, PATH, is_command


class SlashCompleter(Completer):
    """Completes the names of the table, and their arguments: words of the table or file names."""

    def __init__(self) -> None:
        self._paths = PathCompleter(expanduser=True)

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        text = document.text
        if not is_command(text) or "\n" in text:
            return
        name, space, argument = document.text_before_cursor[1:].partition(" ")
        if not space:
            yield from _words(name, {command.name: command.help for command in COMMANDS})
            return
        command = next((c for c in COMMANDS if name in (c.name, *c.aliases)), None)
        if command is None:
            return
        if command.completes == PATH:
            yield from self._paths.get_completions(Document(argument), complete_event)
        else:
            yield from _words(argument, dict.fromkeys(command.completes, ""))


def _words(start: str, words: dict[str, str]) -> Iterator[Completion]:
    for word, meaning in words.items():
        if word.startswith(start):
            yield Completion(word, -len(start), display_meta=meaning)
