"""`strata run`: a file of prompts in, a file of results out."""

import hashlib
import os
import shlex
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from strata_cli.batch.journal import Journal, Mode, draft_path, meta_path, refuse_existing
from strata_cli.batch.records import Faults, PromptRecord, parse
from strata_cli.batch.results import RecordWriter
from strata_cli.batch.runner import Job, StepStats, run_batch
from strata_cli.engine.seeds import derive_seed, fresh_seed
from strata_cli.engine.stats import RunSummary, StepStatsWriter, Totals
from strata_cli.errors import INTERRUPTED, OK, RECORDS_FAILED, UsageError
from strata_cli.interrupt import Interrupt
from strata_cli.names import readable, text_of
from strata_cli.options import EngineFlags, ModelFlags, OutputFlags, SamplingFlags, shared_options
from strata_cli.session import Checkpoint, Prompt, Session, load_session, open_checkpoint
from strata_cli.settings import ENGINE_FIELDS, Settings
from strata_cli.ui.console import Console, summary
from strata_cli.ui.live import RunScreen, open_screen
from strata_cli.ui.snapshot import Header, Limit

RECORDS = "Records"
FINISHING = "finishing this window; Ctrl-C again ends at once"
# Settings that the text of a request depends on, with coupled sampling and with rejection sampling.
TEXT_SETTINGS = ("accept", "device", "dtype", "kv_dtype")
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
REJECTION_SETTINGS = ("spec", "spec_min_p", "drafter", "draft_vocab", "mtp")


@shared_options(ModelFlags, EngineFlags, SamplingFlags, OutputFlags)
def run(
    settings: Settings,
    prompts: Annotated[str, typer.Argument(metavar="PROMPTS.jsonl", help="One JSON object a line; - is stdin.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Append records here; default: stdout.", rich_help_panel=RECORDS),
    ] = None,
    simple: Annotated[
        bool, typer.Option("--simple", help="Flat records instead of OpenAI's shape.", rich_help_panel=RECORDS)
    ] = False,
    with_tokens: Annotated[
        bool, typer.Option("--with-tokens", help="Add token_ids to each record.", rich_help_panel=RECORDS)
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with --output: skip what is done.", rich_help_panel=RECORDS)
    ] = False,
    retry_errors: Annotated[
        bool, typer.Option("--retry-errors", help="Resume, and run failed ones again.", rich_help_panel=RECORDS)
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Start --output anew.", rich_help_panel=RECORDS)
    ] = False,
) -> int:
    """Run a file of prompts, several at a time, and write one record for each as soon as it is done.

    A line is {"prompt": "text" or token ids}, {"messages": [...]} or an OpenAI batch line; it may set any sampling
    parameter for itself. The whole file is checked before a weight is loaded.

    Examples:
      strata run examples/prompts.jsonl --simple
      strata run prompts.jsonl -o out.jsonl --batch 4 --spec 4 --step-stats steps.jsonl
      strata run prompts.jsonl -o out.jsonl --resume
    """
    console = Console(settings.quiet)
    mode = Mode(resume, retry_errors, overwrite)
    _check_distinct(prompts, output, settings.step_stats)
    _check_output(output, mode)
    name = "stdin" if prompts == "-" else text_of(prompts)
    data = _read(prompts, console)
    records = parse(data, name)
    checkpoint = open_checkpoint(settings)
    ready = _prompts(records, checkpoint, settings, name)
    _mention_models(records, checkpoint, console)
    if checkpoint.tokenizer is None:
        console.warn(f"{checkpoint.name} has no tokenizer.json: records have no text, see --with-tokens")
    writer = RecordWriter(checkpoint.name, simple, with_tokens, checkpoint.tokenizer)
    with ExitStack() as stack:
        journal = None
        if output is not None:
            depends_on = _depends_on(checkpoint, settings, data, writer)
            journal = stack.enter_context(Journal.open(output, depends_on, {r.id for r in records}, mode))
        done = journal.done if journal else {}
        seed = journal.seed if journal else fresh_seed()
        jobs = [_job(r, p, checkpoint, settings, seed) for r, p in zip(records, ready) if r.id not in done]
        if not jobs:
            console.note(f"{output}: all {len(records)} requests are done")
            return RECORDS_FAILED if any(done.values()) else OK
        observers: list[RunSummary | StepStats] = [totals := RunSummary()]
        stats = _step_stats(stack, settings, mode, console)
        session = stack.enter_context(load_session(checkpoint, settings.engine))
        if stats is not None:
            observers.append(StepStats(stats, settings, session.engine.memory))
        interrupt = stack.enter_context(Interrupt(lambda: console.warn(FINISHING), ENDING))
        if journal:
            journal.begin()
        write = journal.append if journal else _write_stdout
        began = time.perf_counter()
        try:
            with _screen(session, settings, jobs, len(records), len(done), output is None) as screen:
                outcome = run_batch(session.engine, jobs, writer, write, screen, observers, lambda: interrupt.wanted)
        except BaseException:
            if output is not None:
                console.warn(_resume_command(output))
            raise
        _report(console, totals.totals(time.perf_counter() - began))
        if outcome.left or interrupt.wanted:
            console.warn(f"interrupted, {outcome.left} requests left; {_resume_command(output)}")
            return INTERRUPTED
    return RECORDS_FAILED if outcome.failed or any(done.values()) else OK


def _check_output(output: Path | None, mode: Mode) -> None:
    """Refuse what can be refused before anything is read."""
    if output is None:
        if mode != Mode():
            raise UsageError("--resume, --retry-errors and --overwrite need a file", "add --output FILE")
        return
    refuse_existing(output, mode)


def _check_distinct(prompts: str, output: Path | None, step_stats: Path | None) -> None:
    """Refuse to write over the input, or two things into one file."""
    taken: dict[str, str] = {} if prompts == "-" else {os.path.realpath(prompts): "the input"}
    writes = [(step_stats, "--step-stats")]
    if output is not None:
        sidecar = meta_path(output)
        drafts = [(draft_path(path), "a draft of --output") for path in (output, sidecar)]
        writes = [(output, "--output"), (sidecar, "the sidecar of --output"), *drafts, *writes]
    for path, name in writes:
        if path is None:
            continue
        place = os.path.realpath(path)
        if place in taken:
            raise UsageError(f"{path} is {taken[place]} and {name}", "another --output or --step-stats")
        taken[place] = name


def _read(prompts: str, console: Console) -> bytes:
    if prompts == "-":
        if sys.stdin.isatty():
            console.note("reading prompts from the terminal; end with Ctrl-D")
        return sys.stdin.buffer.read()
    try:
        return Path(prompts).read_bytes()
    except FileNotFoundError:
        raise UsageError(f"no such file: {prompts}", "a JSONL file, or - for stdin") from None
    except OSError as fault:
        raise UsageError(f"{prompts} cannot be read: {fault.strerror}", "a JSONL file, or - for stdin") from None


def _prompts(records: Sequence[PromptRecord], checkpoint: Checkpoint, settings: Settings, name: str) -> list[Prompt]:
    """Each record's token ids; what this model cannot take is a fault of its line."""
    faults = Faults(name)
    ready = []
    for record in records:
        try:
            spec = record.params.get("spec")
            if spec is not None and spec > settings.engine.spec:
                raise UsageError(f"spec = {spec} is above the engine's {settings.engine.spec}", "raise --spec")
            prompt = checkpoint.prompt(record.prompt, record.template_kwargs)
            checkpoint.request(record.id, prompt, checkpoint.params(settings.sampling, record.params))
            ready.append(prompt)
        except UsageError as fault:
            faults.add(record.line, str(fault))
    faults.check()
    return ready


def _job(record: PromptRecord, prompt: Prompt, checkpoint: Checkpoint, settings: Settings, seed: int) -> Job:
    """The request of a record. Its own seed, else --seed, else one derived from the run's and its id."""
    derived = {"seed": derive_seed(seed, record.id)}
    params = checkpoint.params(derived, settings.sampling, record.params)
    return Job(record, checkpoint.request(record.id, prompt, params), prompt.thinking)


def _mention_models(records: Sequence[PromptRecord], checkpoint: Checkpoint, console: Console) -> None:
    others = sorted({r.model for r in records if r.model is not None and r.model != checkpoint.name})
    if others:
        console.warn(f"lines name the model {', '.join(others[:3])}; {checkpoint.name} answers")


def _depends_on(checkpoint: Checkpoint, settings: Settings, data: bytes, writer: RecordWriter) -> dict[str, Any]:
    """What the records of a run depend on, for its sidecar."""
    names = TEXT_SETTINGS + (REJECTION_SETTINGS if settings.engine.accept == "rejection" else ())
    return {
        "model": f"{text_of(checkpoint.path.resolve().name)} {checkpoint.fingerprint()}",
        "input_sha256": hashlib.sha256(data).hexdigest(),
        "sampling": dict(settings.sampling),
        "ctx": checkpoint.context,
        **{name: getattr(settings.engine, name) for name in names},
        "records": {"simple": writer.simple, "with_tokens": writer.with_tokens},
    }


def _step_stats(stack: ExitStack, settings: Settings, mode: Mode, console: Console) -> StepStatsWriter | None:
    """Where windows are recorded, if they are: a path that cannot be written is found before weights are loaded."""
    if settings.step_stats is None:
        return None
    writer = StepStatsWriter(settings.step_stats, append=mode.resumes, warn=console.warn)
    stack.callback(writer.close)
    return writer


def _screen(
    session: Session, settings: Settings, jobs: Sequence[Job], total: int, done: int, to_stdout: bool
) -> RunScreen:
    """What the user sees while it runs."""
    engine = settings.engine
    given = {name: settings.sources[name].value for name in ENGINE_FIELDS if name in settings.sources}
    chosen = tuple(f"{name.replace('_', '-')} {readable(str(value))}" for name, value in given.items())
    header = Header(
        model=session.checkpoint.name,
        format=session.checkpoint.format,
        device=session.device.name,
        batch=engine.batch,
        spec=engine.spec,
        settings=chosen,
        gpu=session.device.gpu,
        planned_bytes=session.planned_bytes,
    )
    limits = {j.request.id: Limit(len(j.request.prompt), j.request.params.max_tokens) for j in jobs}
    return open_screen(
        header,
        total,
        limits,
        done=done,
        tui=settings.tui,
        quiet=settings.quiet,
        ascii=settings.ascii,
        records_to_terminal=to_stdout and sys.stdout.isatty(),
    )


def _report(console: Console, totals: Totals) -> None:
    """The summary; downgrades are said even with --quiet."""
    console.note(summary(totals))
    if console.quiet:
        for text in totals.downgrades:
            console.warn(text)


def _write_stdout(record: bytes) -> None:
    sys.stdout.buffer.write(record)
    sys.stdout.buffer.flush()


def _resume_command(output: Path | None) -> str:
    if output is None:
        return "records went to stdout; with --output a run can be resumed"
    arguments = [a for a in sys.argv[1:] if a not in ("--overwrite", "--resume")]
    return f"go on with: {text_of(shlex.join(['strata', *arguments, '--resume']))}"
