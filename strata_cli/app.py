"""The command line: one table of commands, one place where an error becomes a message and an exit code.

Imports no torch: a command's module is loaded when that command runs, the list of commands is read from the table.
"""

import importlib
import io
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from strata_cli import __version__
from strata_cli.errors import FAILED, INTERRUPTED, OK, USAGE, StrataError
from strata_cli.names import text_of
from strata_cli.ui.console import mute, say

EPILOG = (
    "Results go to stdout, everything else to stderr.\n\n"
    "Exit codes: 0 ok · 1 failed · 2 bad flags or bad input, found before any work · "
    "3 a batch finished with failed records · 130 interrupted.\n\n"
    "Settings: flag > environment STRATA_* > user config > profile > default; see them with --show-config. "
    "A traceback with STRATA_DEBUG=1."
)


@dataclass(frozen=True, slots=True)
class Entry:
    """One command: the function of the same name in `strata_cli.commands.<name>`, listed under a panel of the help."""

    panel: str
    summary: str


COMMANDS = {
    "chat": Entry("Generate", "Talk with the model, or have one question answered."),
    "run": Entry("Generate", "Run a JSONL file of prompts, several at a time, and write a JSONL file of results."),
    "bench": Entry("Measure", "Settings against each other on the same prompts, in alternating order."),
    "parity": Entry("Measure", "Run the same requests in every way the engine has, and say whether one token differs."),
    "inspect": Entry(
        "Measure", "Say from a step-statistics file how fast a run was and what kept it from being faster."
    ),
}


class LazyGroup(TyperGroup):
    """Lists commands from the table; imports a command's module only to run it."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> TyperCommand | None:
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        return TyperCommand(cmd_name, short_help=entry.summary, rich_help_panel=entry.panel)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        self.commands = {name: TyperCommand(name) for name in COMMANDS}  # typer reads the names to suggest one
        name, stub, rest = super().resolve_command(ctx, args)
        return name, load_command(name) if name and stub else stub, rest


def load_command(name: str) -> Any:
    """The real command, its module imported."""
    function = getattr(importlib.import_module(f"strata_cli.commands.{name}"), name)
    single = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich")
    single.command(name, no_args_is_help=False, epilog=EPILOG)(function)
    return typer.main.get_command(single)


app = typer.Typer(cls=LazyGroup, pretty_exceptions_enable=False, rich_markup_mode="rich", epilog=EPILOG)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"strata {__version__}")
        raise typer.Exit


@app.callback()
def strata(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Four requests at once, each with its own chain of MTP drafts, on one GPU.

    Examples:
      strata run --batch 4 examples/prompts.jsonl -o out.jsonl
      strata run prompts.jsonl --model Qwen/Qwen3.6-35B-A3B --profile 24g -o out.jsonl --resume
    """


def report(what: str, hint: str = "") -> None:
    """Print `error: what` and `hint: ...` to stderr."""
    say(f"error: {what}")
    if hint:
        say(f"hint: {hint}")


def run(args: Sequence[str]) -> int:
    """Run one command line and return its exit code; every error becomes a message here."""
    try:
        _check_names(args)
        _speak_utf8()
        code: Any = typer.main.get_command(app).main(
            args=list(args) or ["--help"], prog_name="strata", standalone_mode=False
        )
        sys.stdout.flush()
        return code if isinstance(code, int) else OK
    except StrataError as error:
        _debug()
        report(error.what, error.hint)
        return error.exit_code
    except typer.TyperException as error:  # bad flags and arguments
        _debug()
        context = getattr(error, "ctx", None)  # of the command that they were given to
        report(error.format_message(), f"{context.command_path if context else 'strata'} --help")
        return USAGE
    except (KeyboardInterrupt, typer.Abort):
        _debug()
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of stdout left (`| head`): quietly, and nothing more is written at interpreter exit.
        mute(sys.stdout)
        return FAILED
    except OSError as error:
        _debug()
        report(f"{error.filename}: {error.strerror}" if error.filename else f"{error.strerror or error}")
        mute(sys.stdout)  # what it still buffers cannot be written either
        return FAILED
    except Exception as error:
        _debug()
        report(f"{type(error).__name__}: {error}", "this is a fault of strata; STRATA_DEBUG=1 prints the traceback")
        return FAILED


def _check_names(args: Sequence[str]) -> None:
    """Refuse arguments and settings of the environment that are no text in any way."""
    for name in (*args, *(value for variable, value in os.environ.items() if variable.startswith("STRATA_"))):
        text_of(name)


def _speak_utf8() -> None:
    """Results are UTF-8 whatever the locale says; a terminal gets what it can show, and escapes for the rest."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.encoding.lower() not in ("utf-8", "utf8"):
        if sys.stdout.isatty():
            sys.stdout.reconfigure(errors="backslashreplace")
        else:
            sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")  # a name as it is on disk


def _open_closed_streams() -> None:
    """A stream that the caller closed (`<&-`) gets its number back, so that no file of ours takes it: an empty stdin, a
    stdout that says it cannot be written, a stderr that nobody reads.
    """
    if sys.stdin is None:
        sys.stdin = open(os.open(os.devnull, os.O_RDONLY), encoding="utf-8")  # noqa: SIM115
    if sys.stdout is None:
        sys.stdout = open(os.open(os.devnull, os.O_RDONLY), "w", encoding="utf-8")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8")  # noqa: SIM115


def _debug() -> None:
    """Re-raise the exception that is being handled when STRATA_DEBUG=1 asks for its traceback."""
    if os.environ.get("STRATA_DEBUG") == "1":
        raise  # the exception of the except block that called


def main() -> None:
    """Entry point of the console script."""
    _open_closed_streams()
    code = run(sys.argv[1:])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # all is said and done: a late Ctrl-C changes nothing
    sys.exit(code)


if __name__ == "__main__":
    main()
