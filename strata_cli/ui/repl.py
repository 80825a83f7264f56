"""The prompt of a conversation: editing, history, completion, and the loop around it. No torch."""

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import platformdirs
from prompt_toolkit import PromptSession
from prompt_toolkit.application import run_in_terminal
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import Output, create_output

from strata_cli.chat.dialogue import Dialogue
from strata_cli.chat.slash import COMMANDS, PATH, dispatch, is_command, literal
from strata_cli.errors import OK, StrataError, UsageError
from strata_cli.ui.stream import Channels

PROMPT, CONTINUED = "> ", "  "
LEAVE = "Ctrl-D or /exit leaves"
BLOCK = '"""'


class Repl:
    """Reads what the person types and hands it to the dialogue until they leave."""

    def __init__(self, channels: Channels, history: History):
        self.channels = channels
        self.history = history

    def run(self, dialogue: Dialogue) -> int:
        """The loop; gives the exit code."""
        session: PromptSession[str] = PromptSession(
            PROMPT,
            multiline=True,
            prompt_continuation=CONTINUED,
            history=self.history,
            completer=SlashCompleter(),
            complete_while_typing=False,
            key_bindings=keys(self.channels),
            output=_output(),
        )
        while not dialogue.leaving:
            try:
                typed = session.prompt()
            except KeyboardInterrupt:  # sent by another process; the key itself has a binding
                continue
            except EOFError:
                break
            try:
                obey(dialogue, typed)
            except StrataError as error:
                self.channels.note(f"error: {error}")
        return OK


def obey(dialogue: Dialogue, typed: str) -> None:
    """Do what was typed: a block is always a message, a slash a command, nothing is nothing."""
    text = typed.strip()
    if text.startswith(BLOCK):
        dialogue.say(text.removeprefix(BLOCK).removesuffix(BLOCK).strip("\n"))
    elif is_command(text):
        dispatch(dialogue, text)
    elif text:
        dialogue.say(literal(text))


def is_open_block(text: str) -> bool:
    '''Does the text begin with """ that has no partner at its end yet?'''
    text = text.strip()
    return text.startswith(BLOCK) and not (len(text) >= 2 * len(BLOCK) and text.endswith(BLOCK))


def keys(channels: Channels) -> KeyBindings:
    """The keys that differ from prompt_toolkit's own."""
    bindings = KeyBindings()

    @bindings.add("enter")
    def _(event: KeyPressEvent) -> None:
        if is_open_block(event.current_buffer.text):
            event.current_buffer.newline(copy_margin=False)
        else:
            event.current_buffer.validate_and_handle()

    @bindings.add("escape", "enter")
    @bindings.add("c-j")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.newline(copy_margin=False)

    @bindings.add("c-c")
    @bindings.add("<sigint>")
    def _(event: KeyPressEvent) -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            run_in_terminal(lambda: channels.note(LEAVE))

    @bindings.add("c-g")
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer

        def edit() -> None:
            try:
                buffer.document = Document(edit_text(buffer.text).rstrip("\n"))
            except StrataError as error:
                channels.note(f"error: {error}")

        run_in_terminal(edit)

    return bindings


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


class PrivateHistory(FileHistory):
    """A history file only its owner reads. Bytes that are no text are written as question marks."""

    def __init__(self, path: Path):
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
        path.chmod(0o600)
        super().__init__(path)

    def store_string(self, string: str) -> None:
        super().store_string(string.encode("utf-8", "replace").decode("utf-8"))


def open_history(wanted: bool, channels: Channels) -> History:
    """The history file in the user's state directory; in memory when not wanted or not possible, which is said."""
    if not wanted or os.environ.get("STRATA_NO_HISTORY"):
        return InMemoryHistory()
    path = platformdirs.user_state_path("strata") / "history"
    try:
        return PrivateHistory(path)
    except OSError as error:
        channels.note(f"no history is kept: {path}: {error.strerror}")
        return InMemoryHistory()


def edit_text(text: str) -> str:
    """The text as it leaves $VISUAL or $EDITOR.

    Raises:
        UsageError: neither is set.
        StrataError: the editor did not start or failed.
    """
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR")
    if not editor:
        raise UsageError("neither $VISUAL nor $EDITOR is set", "export EDITOR=nano, for one")
    with tempfile.TemporaryDirectory(prefix="strata-") as folder:
        path = Path(folder) / "message.md"
        path.write_text(text, encoding="utf-8")
        try:
            subprocess.run([*shlex.split(editor), path], check=True)
            return path.read_text(encoding="utf-8")
        except (OSError, ValueError, subprocess.CalledProcessError) as error:
            raise StrataError(f"the editor {editor!r} failed: {error}") from None


def ask_pick(n: int) -> int | None:
    """Number of the candidate that is taken, from 0; None for none of them."""
    session: PromptSession[str] = PromptSession(f"pick 1-{n}, 0 for none > ", output=_output())
    while True:
        try:
            typed = session.prompt().strip()
        except (KeyboardInterrupt, EOFError):
            return None
        if typed.isdecimal() and int(typed) <= n:
            return int(typed) - 1 if int(typed) else None


def _output() -> Output:
    """Where prompts are drawn: stdout carries the answers alone, so stderr unless that is redirected."""
    return create_output(sys.stderr if sys.stderr.isatty() else sys.stdout)
