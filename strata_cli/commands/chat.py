"""`strata chat`: a conversation, or one question answered."""

import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Literal

import typer

from strata_cli.batch.runner import StepStats
from strata_cli.chat.conversation import Conversation
from strata_cli.chat.dialogue import Dialogue, require_switch
from strata_cli.chat.status import answer_record
from strata_cli.engine.seeds import fresh_seed
from strata_cli.engine.stats import StepStatsWriter
from strata_cli.errors import INTERRUPTED, OK, UsageError
from strata_cli.options import (
    EngineFlags,
    ModelFlags,
    OutputFlags,
    SamplingFlags,
    flag,
    shared_options,
)
from strata_cli.session import load_session, open_checkpoint
from strata_cli.settings import Settings
from strata_cli.ui.repl import Repl, open_history
from strata_cli.ui.screen import Screen
from strata_cli.ui.stream import Channels

CONVERSATION = "Conversation"


@shared_options(ModelFlags, EngineFlags, SamplingFlags, OutputFlags)
def chat(
    settings: Settings,
    question: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[QUESTION]", help="Answer this and leave; piped input goes before it; - reads stdin alone."
        ),
    ] = None,
    system: Annotated[str | None, flag(CONVERSATION, "The system text.", "--system", "-s", metavar="TEXT")] = None,
    system_file: Annotated[Path | None, flag(CONVERSATION, "A file with the system text.", metavar="FILE")] = None,
    think: Annotated[
        Literal["on", "off"] | None, flag(CONVERSATION, "Think before the answer. Default: as the template does.")
    ] = None,
    think_budget: Annotated[
        int | None, flag(CONVERSATION, "Most thinking tokens; the thinking is closed there.", metavar="N")
    ] = None,
    n: Annotated[
        int, flag(CONVERSATION, "Candidates for each answer, side by side in the slots; pick one.", metavar="N")
    ] = 1,
    json_output: Annotated[
        bool, flag(CONVERSATION, "Print one JSON object: text, reasoning, usage, timings, spec, seed.", "--json")
    ] = False,
    history: Annotated[
        bool, flag(CONVERSATION, "Keep no history file (also $STRATA_NO_HISTORY).", " /--no-history")
    ] = True,
) -> int:
    """Talk with the model, or have one question answered.

    Examples:
      strata chat
      strata chat --think off "Name three rivers."
      git diff | strata chat "Write a commit message."
      strata chat --n 4 --temperature 1.0
    """
    text = read_question(question or [])
    if json_output and text is None:
        raise UsageError("--json belongs to a single question", 'strata chat --json "question"')
    if settings.sampling.get("logprobs") is not None and not json_output:
        raise UsageError("--logprobs shows only in --json", 'strata chat --json --logprobs 5 "question"')
    if not 1 <= n <= settings.engine.batch:
        raise UsageError(f"--n {n}: there are {settings.engine.batch} slots", "--batch N for more")
    if think == "off" and think_budget is not None:
        raise UsageError("--think-budget with --think off: nothing to limit", "leave one of them away")
    if text is None and not (sys.stdin.isatty() and (sys.stderr.isatty() or sys.stdout.isatty())):
        raise UsageError("a conversation needs a terminal", 'strata chat "question"')
    checkpoint = open_checkpoint(settings)
    params = checkpoint.params(settings.sampling)
    conversation = Conversation(
        params,
        seed=fresh_seed() if params.seed is None else params.seed,
        system=_system(system, system_file),
        think=None if think is None else think == "on",
        think_budget=think_budget,
        n=n,
    )
    if think is not None and checkpoint.template is not None:
        require_switch(checkpoint.template)
    checkpoint.prompt([*conversation.for_template(), {"role": "user", "content": text or "?"}])  # before weights load
    channels = Channels(quiet=settings.quiet)
    attended = text is None or (sys.stdin.isatty() and channels.err_is_terminal and not json_output)
    with ExitStack() as stack:
        stats = _step_stats(stack, settings, channels)
        session = stack.enter_context(load_session(checkpoint, settings.engine))
        observers = [] if stats is None else [StepStats(stats, settings, session.engine.memory)]
        screen = Screen(channels, session.engine.ctx, live=settings.tui, attended=attended, silent=json_output)
        dialogue = Dialogue(session, conversation, screen, observers)
        if text is not None:
            return answer_once(dialogue, text, json_output, attended)
        if not settings.quiet:
            channels.note(banner(dialogue))
        return Repl(channels, open_history(history, channels)).run(dialogue)


def banner(dialogue: Dialogue) -> str:
    """The first line of a conversation."""
    name, engine, seed = dialogue.session.checkpoint.name, dialogue.session.engine, dialogue.conversation.seed
    return f"{name} · {engine.config.batch} slots · context {engine.ctx:,} · seed {seed} · /help, Ctrl-D leaves"


def read_question(words: Sequence[str]) -> str | None:
    """The one question: piped input, a blank line, the words; None opens a conversation.

    Raises:
        UsageError: what was given is empty.
    """
    dash = list(words[:1]) == ["-"]
    parts = [" ".join(words[dash:])]
    if dash or not sys.stdin.isatty():
        if sys.stdin.isatty():
            print("reading the question from the terminal; Ctrl-D ends it", file=sys.stderr)
        try:
            parts.insert(0, sys.stdin.buffer.read().decode("utf-8").rstrip("\n"))
        except UnicodeDecodeError as error:
            raise UsageError(f"stdin is no UTF-8 text (byte {error.start:,})") from None
    elif not words:
        return None
    text = "\n\n".join(part for part in parts if part.strip())
    if not text:
        raise UsageError("the question is empty", 'strata chat "question", or pipe a text into it')
    return text


def _step_stats(stack: ExitStack, settings: Settings, channels: Channels) -> StepStatsWriter | None:
    """Where windows are recorded, if they are."""
    if settings.step_stats is None:
        return None
    writer = StepStatsWriter(settings.step_stats, warn=channels.note)
    stack.callback(writer.close)
    return writer


def _system(text: str | None, file: Path | None) -> str | None:
    if file is None:
        return text
    if text is not None:
        raise UsageError("--system and --system-file are given", "leave one of them away")
    try:
        return file.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise UsageError(f"{file} can not be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{file} is no UTF-8 text") from None


def answer_once(dialogue: Dialogue, text: str, as_json: bool, pick: bool) -> int:
    """One question: its answer is on stdout then, as text or as a JSON object. Gives the exit code.

    Without a person to `pick`, all candidates are.
    """
    dialogue.conversation.say(text)
    answers = dialogue.ask()
    if pick and len(answers) > 1 and dialogue.screen.pick(answers) is None:
        return INTERRUPTED
    if as_json:
        records = [answer_record(answer) for answer in answers]
        print(json.dumps(records[0] if len(records) == 1 else {"candidates": records}, ensure_ascii=False))
    return INTERRUPTED if any(answer.interrupted for answer in answers) else OK
