"""`strata bench`: arms of settings over the same prompts."""

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from strata_cli import __version__
from strata_cli.bench.arms import DEFAULT_ARMS, parse_arms
from strata_cli.bench.bench import Bench, Comparison, Kind
from strata_cli.bench.cases import own_records, read_file
from strata_cli.bench.report import markdown, text
from strata_cli.bench.trace import read_trace
from strata_cli.errors import OK, UsageError
from strata_cli.names import text_of
from strata_cli.options import EngineFlags, MeasureFlags, ModelFlags, SamplingFlags, flag, shared_options
from strata_cli.session import open_checkpoint
from strata_cli.settings import Settings
from strata_cli.ui.console import Console

ARMS, LOAD, REPORT = "Arms", "Load", "Report"
MAX_TOKENS = 128  # of a request, where neither flag nor line says otherwise
OWN = (
    "Tell me a story about a girl named Anna and a lost drum.",
    "Write a short story about a fox who is afraid of the dark.",
    "Count from 5 to 25.",
    "Name five animals.",
    "Write a function that adds two numbers.",
    "What is 8 + 6?",
    "Please write a letter to Emma from Jack.",
    "Tell me a story about a bear and a red kite.",
)


@shared_options(ModelFlags, EngineFlags, SamplingFlags, MeasureFlags)
def bench(
    settings: Settings,
    prompts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PROMPTS.jsonl ...]", help="Lines as `strata run` takes them; each file is a kind of its own."
        ),
    ] = None,
    arm: Annotated[
        list[str] | None,
        flag(
            ARMS,
            '"name: FLAGS" of strata run; "name: @report.json", an arm of a saved report; "name: !/path/to/strata '
            f'FLAGS", another installation. May be repeated. Default: {"; ".join(DEFAULT_ARMS)}.',
            metavar="ARM",
        ),
    ] = None,
    sweep_batch: Annotated[str | None, flag(ARMS, "Each arm with each number of slots.", metavar="1,2,4,8")] = None,
    rounds: Annotated[int, flag(ARMS, "Runs of each arm that count, after one that warms it up.")] = 4,
    replay_acceptance: Annotated[
        float | None,
        flag(ARMS, "Replay the known text as drafts with this share right; the drafter runs for its cost alone."),
    ] = None,
    trace: Annotated[
        Path | None,
        flag(LOAD, "Arrivals and lengths: TIMESTAMP,ContextTokens,GeneratedTokens.", metavar="FILE.csv"),
    ] = None,
    trace_requests: Annotated[int, flag(LOAD, "The first N requests of the trace.", metavar="N")] = 64,
    time_scale: Annotated[float, flag(LOAD, "0.5: the trace's arrivals in half their time; 0: all at once.")] = 1.0,
    static: Annotated[
        bool, flag(LOAD, "Nobody joins until all running requests are done; an arm may say it too.", "--static")
    ] = False,
    as_json: Annotated[
        bool, flag(REPORT, "One JSON object instead of tables; a later --arm can read it.", "--json")
    ] = False,
    report: Annotated[Path | None, flag(REPORT, "Also write Markdown.", metavar="FILE.md")] = None,
) -> int:
    """Measure settings against each other: the same prompts, alternating order, ratios of runs of the same round.

    Times are by the clock at which tokens leave the engine; loading is not counted. The prefix cache is emptied before
    each run. Trust ratios, not absolute figures of a busy machine.

    Examples:
      strata bench
      strata bench stories.jsonl code.jsonl --report speed.md
      strata bench --arm "none: --spec 0" --arm "two: --spec 2 --no-mtp-varlen"
      strata bench --arm "new: --spec 4" --arm "old: !/opt/bin/strata --spec 4"
      strata bench --trace t.csv --arm "joining:" --arm "static: --static"
    """
    console = Console(settings.quiet)
    if rounds < 1 or trace_requests < 1 or time_scale < 0:
        raise UsageError("--rounds and --trace-requests are 1 or more, --time-scale 0 or more")
    if replay_acceptance is not None and not 0 <= replay_acceptance <= 1:
        raise UsageError(f"--replay-acceptance {replay_acceptance:g} is no share", "0 to 1")
    arms = parse_arms(arm or DEFAULT_ARMS, settings, static, _batches(sweep_batch))
    arrivals = read_trace(trace, trace_requests, time_scale) if trace is not None else None
    if prompts:
        kinds = [Kind(text_of(Path(name).stem) if name != "-" else "stdin", read_file(name)) for name in prompts]
    else:
        kinds = [Kind("built-in prompts", own_records(open_checkpoint(settings), OWN))]
    names = [kind.name for kind in kinds]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UsageError(f"two prompt files are called {twice!r}", "a file is a kind: give them names of their own")
    _check_writable(report)
    job = Bench(Comparison(arms, kinds, rounds, MAX_TOKENS, arrivals, replay_acceptance), settings, console.note)
    found: dict[str, Any] = {
        "schema": 1,
        "version": __version__,
        "command": text_of(shlex.join(["strata", *sys.argv[1:]])),
        "model": settings.model,
        "rounds": rounds,
        "kinds": job.run(),
        "notes": job.notes,
    }
    if report is not None:
        report.write_text(markdown(found), encoding="utf-8")
    print(json.dumps(found, ensure_ascii=False) if as_json else text(found))
    return OK


def _batches(given: str | None) -> list[int]:
    try:
        return [int(part) for part in given.split(",")] if given is not None else []
    except ValueError:
        raise UsageError(f"--sweep-batch {given} is no list of numbers", "--sweep-batch 1,2,4,8") from None


def _check_writable(report: Path | None) -> None:
    """Refuse a report that cannot be written before the time is spent."""
    if report is not None and (report.is_dir() or not report.absolute().parent.is_dir()):
        raise UsageError(f"--report {report} cannot be written", "a file in a directory that exists")
