"""The prompt of a conversation: its keys, its history, and the loop around it. No torch."""

import os
import sys
from pathlib import Path

import platformdirs
from prompt_toolkit import PromptSession
from prompt_toolkit.application import run_in_terminal
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import Output, create_output

from strata_cli.chat.dialogue import Dialogue
from strata_cli.chat.slash import dispatch, is_command, literal
from strata_cli.errors import OK, StrataError
from strata_cli.ui.completion import SlashCompleter
from strata_cli.ui.editor import edit_text
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
