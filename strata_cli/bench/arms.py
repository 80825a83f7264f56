"""Arms of a benchmark: a name and flags, a saved report, or another installation. No torch."""

import os
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from strata_cli.errors import UsageError
from strata_cli.names import os_name
from strata_cli.options import EngineFlags, ModelFlags, SamplingFlags, shared_options
from strata_cli.settings import Settings, resolve

DEFAULT_ARMS = ("no drafts: --spec 0", "fixed: --no-mtp-varlen", "adaptive: --mtp-varlen")


@dataclass(frozen=True, slots=True)
class Arm:
    """One thing to measure. Exactly one of `settings` (an engine here), `report` (a file that --json
    wrote) and `command` (another installation's strata, with flags) is set.

    static: nobody joins until all running requests are done. flags: as they were written.
    """

    name: str
    flags: str
    settings: Settings | None = None
    static: bool = False
    report: Path | None = None
    command: tuple[str, ...] = ()


def parse_arms(texts: Sequence[str], base: Settings, static: bool, batches: Sequence[int]) -> list[Arm]:
    """The arms of `--arm "name: --flags"`, each once for every batch of a sweep.

    Raises UsageError: no name, a name given twice, a flag that `strata run` would refuse too.
    """
    arms: list[Arm] = []
    for text in texts:
        name, colon, flags = (part.strip() for part in text.partition(":"))
        if not colon or not name:
            raise UsageError(f"--arm {text!r} has no name", '--arm "name: --spec 0"')
        if flags.startswith("@"):
            arms.append(Arm(name, flags, report=Path(os_name(flags[1:]))))
        elif flags.startswith("!"):
            command = tuple(_split(name, flags[1:]))
            if not command or shutil.which(command[0]) is None:
                what = f"{command[0]} cannot be run" if command else "no path after !"
                raise UsageError(f"arm {name!r}: {what}", '--arm "old: !/path/to/strata --spec 4"')
            arms.append(Arm(name, flags, command=command))
        else:
            arms += [_engine_arm(name, flags, base, static, batch) for batch in batches or (None,)]
    names = [arm.name for arm in arms]
    if twice := next((n for n in names if names.count(n) > 1), None):
        raise UsageError(f"two arms are called {twice!r}", "another name")
    if all(arm.report for arm in arms):
        raise UsageError("every arm is a saved report: nothing to measure", "strata inspect compares statistics files")
    return arms


def _engine_arm(name: str, flags: str, base: Settings, static: bool, batch: int | None) -> Arm:
    if batch is not None:
        name, flags = f"{name} x{batch}", f"{flags} --batch {batch}".strip()
    given, own_static = _parse(name, _split(name, flags))
    try:
        settings = resolve({**given_flags(base), **given, "download": base.download}, os.environ)
    except UsageError as fault:
        raise UsageError(f"arm {name!r}: {fault.what}", fault.hint) from None
    return Arm(name, flags, settings, static if own_static is None else own_static)


def given_flags(settings: Settings) -> dict[str, Any]:
    """The settings that came from the command line."""
    return {name: s.value for name, s in settings.sources.items() if s.source == "--" + name.replace("_", "-")}


def _split(name: str, flags: str) -> list[str]:
    try:
        return [os_name(part) for part in shlex.split(flags)]
    except ValueError as fault:
        raise UsageError(f"arm {name!r}: {flags!r}: {fault}") from None


def _parse(name: str, arguments: list[str]) -> tuple[Mapping[str, Any], bool | None]:
    """Flags by the option table that `strata run` has, and `--static`."""
    found: list[tuple[Mapping[str, Any], bool | None]] = []

    @shared_options(ModelFlags, EngineFlags, SamplingFlags)
    def arm(settings: Settings, static: Annotated[bool | None, typer.Option("--static/--no-static")] = None) -> int:
        found.append((given_flags(settings), static))
        return 0

    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command("arm")(arm)
    try:
        typer.main.get_command(app).main(args=arguments, prog_name="arm", standalone_mode=False)
    except typer.TyperException as fault:
        raise UsageError(f"arm {name!r}: {fault.format_message()}", "the flags of strata run") from None
    except UsageError as fault:
        raise UsageError(f"arm {name!r}: {fault.what}", fault.hint) from None
    if not found:  # --help was printed
        raise UsageError(f"arm {name!r}: --help is no setting", "strata run --help")
    return found[0]
