"""The slash commands of `strata chat`: one table, read by the dispatcher, /help and the completion. No torch."""

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from strata_cli.chat.conversation import SETTABLE
from strata_cli.chat.dialogue import Dialogue
from strata_cli.errors import StrataError, UsageError
from strata_cli.names import os_name

PATH = "path"  # completes file names


@dataclass(frozen=True, slots=True)
class Command:
    """One command. `args` is how /help writes them: "" takes none, "[x]" may have one, anything else must."""

    name: str
    args: str
    help: str
    handler: Callable[[Dialogue, str], None]
    completes: Sequence[str] | str = ()
    aliases: Sequence[str] = ()


def is_command(text: str) -> bool:
    """A line that starts with one slash; two of them send a literal one."""
    return text.startswith("/") and not text.startswith("//")


def literal(text: str) -> str:
    """A message as it is sent: `//text` is the text with one slash."""
    return text[1:] if text.startswith("//") else text


def dispatch(dialogue: Dialogue, line: str) -> None:
    """Do what the command line says.

    Raises:
        UsageError: no such command (with the nearest one), or wrong arguments. Nothing has changed then.
    """
    name, _, argument = line.strip()[1:].partition(" ")
    argument = argument.strip()
    command = _BY_NAME.get(name)
    if command is None:
        nearest = max(_BY_NAME, key=lambda known: difflib.SequenceMatcher(None, name.lower(), known).ratio())
        raise UsageError(
            f"unknown command /{name}, nothing was done", f"did you mean /{nearest}? //{name} sends it as text"
        )
    if argument and not command.args:
        raise UsageError(f"/{command.name} takes no argument")
    if not argument and command.args and not command.args.startswith("["):
        raise UsageError(f"/{command.name} needs an argument", f"/{command.name} {command.args}")
    command.handler(dialogue, argument)


def help_lines() -> list[str]:
    """What /help shows."""
    usages = [f"/{' /'.join([c.name, *c.aliases])} {c.args}".rstrip() for c in COMMANDS]
    width = max(map(len, usages))
    lines = [f"{usage:<{width}}  {command.help}" for usage, command in zip(usages, COMMANDS)]
    return [*lines, "", *KEYS]


KEYS = (
    "Enter sends. Alt-Enter or Ctrl-J starts a new line; a paste keeps its lines;",
    '""" opens and closes a block of lines. //text sends a text that starts with /.',
    "Tab completes. Ctrl-G edits the line in $VISUAL or $EDITOR.",
    "Ctrl-C stops an answer and keeps what came, or clears the line.",
    "Ctrl-D on an empty line leaves.",
)


# --- handlers, in the order of the table


def _help(dialogue: Dialogue, _: str) -> None:
    for line in help_lines():
        dialogue.screen.note(line)


def _exit(dialogue: Dialogue, _: str) -> None:
    dialogue.leaving = True


def _clear(dialogue: Dialogue, _: str) -> None:
    dialogue.clear()
    dialogue.screen.note("forgotten; the system text and the settings stay")


def _regen(dialogue: Dialogue, _: str) -> None:
    dialogue.regen()


def _edit(dialogue: Dialogue, _: str) -> None:
    dialogue.edit()


def _system(dialogue: Dialogue, text: str) -> None:
    if text:
        dialogue.conversation.system = None if text == '""' else text
    dialogue.screen.note(f"system text: {dialogue.conversation.system or 'none'}")


def _think(dialogue: Dialogue, text: str) -> None:
    if text in ("on", "off"):
        dialogue.set_think(text == "on")
    elif text:
        dialogue.conversation.set_think_budget(
            None if text == "free" else _whole(text, "on, off, a number of tokens or free")
        )
    conversation = dialogue.conversation
    switch = {True: "on", False: "off", None: "as the template does"}[conversation.think]
    budget = f"{conversation.think_budget:,} tokens at most" if conversation.think_budget else "no limit"
    dialogue.screen.note(f"thinking: {switch}, {budget}")


def _read(dialogue: Dialogue, name: str) -> None:
    path = Path(os_name(name)).expanduser()
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise StrataError(f"{path} can not be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise StrataError(f"{path} is no UTF-8 text") from None
    dialogue.attached.append(text)
    dialogue.screen.note(f"{path}: {len(text):,} characters go before your next message")


def _save(dialogue: Dialogue, name: str) -> None:
    path = dialogue.save(Path(os_name(name)).expanduser() if name else None)
    dialogue.screen.note(f"saved {len(dialogue.conversation.messages):,} messages to {path}")


def _load(dialogue: Dialogue, name: str) -> None:
    path = Path(os_name(name)).expanduser()
    dialogue.load(path)
    conversation = dialogue.conversation
    dialogue.screen.note(f"loaded {len(conversation.messages):,} messages from {path}, seed {conversation.seed}")


def _stats(dialogue: Dialogue, _: str) -> None:
    for line in dialogue.stats():
        dialogue.screen.note(line)


def _draft(dialogue: Dialogue, text: str) -> None:
    if text:
        named = {"auto": None, "off": 0}
        dialogue.set_draft(named[text] if text in named else _whole(text, "a number of drafts, auto or off"))
    spec = dialogue.conversation.params.spec
    dialogue.screen.note(f"drafts: {'auto' if spec is None else spec or 'off'}")


def _set(dialogue: Dialogue, text: str) -> None:
    key, _, value = text.partition(" ")
    conversation = dialogue.conversation
    if value:
        conversation.set(key, value.strip(), dialogue.defaults)
    for each in [key] if key else SETTABLE:
        shown = conversation.get(each)
        dialogue.screen.note(f"{each} = {'none' if shown in (None, ()) else shown}")


def _n(dialogue: Dialogue, text: str) -> None:
    if text:
        dialogue.set_candidates(_whole(text, "a number of candidates"))
    dialogue.screen.note(f"candidates for each answer: {dialogue.conversation.n}")


def _whole(text: str, allowed: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"{text!r} is not understood", f"allowed: {allowed}") from None


COMMANDS = (
    Command("help", "", "this list", _help),
    Command("exit", "", "leave", _exit, aliases=("quit", "bye")),
    Command("clear", "", "forget what was said; system text and settings stay", _clear),
    Command("regen", "", "another answer to your last message", _regen),
    Command("edit", "", "change your last message in an editor, answer it anew", _edit),
    Command("system", "[TEXT]", 'show or set the system text; "" removes it', _system),
    Command(
        "think",
        "[on|off|N|free]",
        "think or not, at most N tokens or without that limit",
        _think,
        ("on", "off", "free"),
    ),
    Command("read", "FILE", "put a file's text before your next message", _read, PATH),
    Command("save", "[FILE]", "write the conversation with its seed and settings", _save, PATH),
    Command("load", "FILE", "go on with a saved conversation, token for token", _load, PATH),
    Command("stats", "", "speed, acceptance, L, keeps, context, cache so far", _stats),
    Command("draft", "[N|auto|off]", "most drafts in a chain; auto: as the engine likes", _draft, ("auto", "off")),
    Command("set", "[KEY [VALUE]]", "sampling parameters; VALUE may be default", _set, SETTABLE),
    Command("n", "[N]", "candidates for each answer, of which you pick one", _n),
)
_BY_NAME = {name: command for command in COMMANDS for name in (command.name, *command.aliases)}
