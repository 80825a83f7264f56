"""`strata inspect`: what a step-statistics file says. Imports no torch."""

import json
import re
import sys
from inspect import cleandoc
from pathlib import Path
from typing import IO, Annotated, Any

import typer
from rich.console import Console

from strata_cli.engine.record import StatsHeader, StepRecord, describe
from strata_cli.errors import OK, UsageError
from strata_cli.inspect.analysis import analyse, report
from strata_cli.inspect.page import page
from strata_cli.inspect.text import compare, settings_that_differ, show
from strata_cli.inspect.verdict import verdict

SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600}


def inspect(
    files: Annotated[
        list[str], typer.Argument(metavar="STEP-STATS.jsonl [OTHER]", help="One file, or two to compare; - is stdin.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of tables.")] = False,
    slot: Annotated[int | None, typer.Option(min=0, help="Count this slot's share only.", show_default=False)] = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="Leave out windows before this: 90, 90s, 1.5m, 2h.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="OUT", help="Also write one self-contained page with the plots.")
    ] = None,
    ascii: Annotated[bool, typer.Option("--ascii", help="No characters beyond ASCII.")] = False,
) -> int:
    """Say how fast a run was, what kept it from being faster, and what to try.

    Reads the file that --step-stats wrote, also while it grows. Definitions:

      acceptance rate: accepted / verified drafts; those behind the end of a request are left out.
      cumulative, of position j: accepted at j / windows that had a row for j.
      conditional: accepted at j / windows in which j - 1 was accepted; the one to compare, as L adapts.
      mean acceptance length: tokens a slot keeps per window, the golden (certain) one included.
      "about 20%": an estimate of the part of the run that a cause took.

    Examples:
      strata inspect steps.jsonl
      strata inspect before.jsonl after.jsonl --html compared.html
      tail -n 1000 steps.jsonl | strata inspect - --json
    """
    if len(files) > 2:
        raise UsageError(f"{len(files)} files given", "one file, or two to compare")
    if files.count("-") > 1:
        raise UsageError("stdin can be read once only", "name a file beside -")
    seconds = _seconds(since)
    reports = [_read(name, slot, seconds) for name in files]
    if html is not None:
        _write(html, page(reports))
    if as_json:
        print(json.dumps(_json(reports), ensure_ascii=False))
    elif len(reports) == 2:
        compare(reports[0], reports[1], Console())
    else:
        show(reports[0], Console(), ascii=ascii or not sys.stdout.encoding.lower().startswith("utf"))
    return OK


def _fields(struct: type[StatsHeader] | type[StepRecord]) -> str:
    return "\n".join(f"  {name}: {meaning}" for name, meaning in describe(struct).items())


inspect.__doc__ = f"""{cleandoc(inspect.__doc__ or "")}

The first line of the file is a run's header:

{_fields(StatsHeader)}

Each line after it is a window. Arrays by slot run over the slots that hold a request, in their order:

{_fields(StepRecord)}"""


def _read(name: str, slot: int | None, since: float | None) -> dict[str, Any]:
    if name == "-":
        return _report(sys.stdin.buffer, "stdin", slot, since)
    try:
        with open(name, "rb") as stream:
            return _report(stream, name, slot, since)
    except OSError as e:
        raise UsageError(f"{name}: {e.strerror}", "a file that --step-stats wrote, or - for stdin") from None


def _report(stream: IO[bytes], name: str, slot: int | None, since: float | None) -> dict[str, Any]:
    found = analyse(stream, name, slot=slot, since=since)
    if found.reader.bad_lines and not found.reader.windows and not found.reader.headers:
        raise UsageError(
            f"{name}: none of its {found.reader.bad_lines:,} lines is a window's (`step_ms` is missing)",
            "a file that --step-stats wrote",
        )
    r = report(found)
    if found.reader.windows and not r["windows"]:
        asked = " and ".join(
            text for text in (slot is not None and f"--slot {slot}", since is not None and f"--since {since:g}") if text
        )
        raise UsageError(f"{name}: none of its {found.reader.windows:,} windows is left with {asked}")
    return r


def _seconds(text: str | None) -> float | None:
    if text is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text.strip())
    if match is None:
        raise UsageError(f"--since {text} is not a time", "seconds from the start of the run: 90, 90s, 1.5m, 2h")
    return float(match[1]) * SECONDS[match[2]]


def _json(reports: list[dict[str, Any]]) -> dict[str, Any]:
    whole = [{"verdict": verdict(r), **r} for r in reports]
    if len(whole) == 1:
        return whole[0]
    a, b = whole
    return {"a": a, "b": b, "settings_that_differ": settings_that_differ(a, b)}


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as e:
        raise UsageError(f"cannot write the page to {path}: {e.strerror}", "--html OUT") from None
