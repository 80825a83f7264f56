"""The options that commands share, each declared once.

An attribute of `EngineFlags` is a field of `EngineConfig`, one of `SamplingFlags` a field of `SamplingParams`; a flag
that is not given is None, so that environment, user config and profile get their turn (`strata_cli.settings`).

    @shared_options(ModelFlags, EngineFlags, SamplingFlags, OutputFlags)
    def run(settings: Settings, prompts: Annotated[str, typer.Argument()]) -> int: ...
"""

import functools
import inspect
import os
from collections.abc import Callable
from copy import copy
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import typer

from strata_cli.config import EngineConfig
from strata_cli.names import text_of
from strata_cli.settings import DEFAULT_MODEL, resolve


def flag(panel: str, help: str, *names: str, metavar: str | None = None) -> Any:
    """An option of a help panel."""
    return typer.Option(*names, help=help, rich_help_panel=panel, metavar=metavar, show_default=False)


MODEL = "Model"
SLOTS = "Slots and memory"
DRAFTS = "Drafts"
PROMPTS = "Prompts and prefix cache"
SAMPLING = "Sampling (default: the checkpoint's generation_config)"
OUTPUT = "Screen and statistics"


class ModelFlags:
    """Which checkpoint, with which named settings."""

    model: Annotated[
        str | None,
        flag(
            MODEL,
            f"A directory, an alias of the user config, org/repo or org/repo@revision of the Hugging Face cache, "
            f"or {DEFAULT_MODEL} (built in). Default: $STRATA_MODEL, the user config, {DEFAULT_MODEL}.",
            "--model",
            "-m",
            metavar="MODEL",
        ),
    ]
    profile: Annotated[
        str | None,
        flag(MODEL, "A named set of settings: strata-a, strata-b, 24g, 16g, cpu, or a .toml file.", metavar="NAME"),
    ]
    download: Annotated[bool, flag(MODEL, "Fetch a model that is not in the cache without asking.", "--download")]


class EngineFlags:
    """The fields of EngineConfig."""

    device: Annotated[Literal["auto", "cuda", "cpu"] | None, flag(MODEL, "Where the model runs.")]
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"] | None,
        flag(MODEL, "Arithmetic and cache: auto is float32 on the CPU, bfloat16 on a GPU."),
    ]
    kv_dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"] | None, flag(MODEL, "Stored keys and values: auto is dtype.")
    ]
    batch: Annotated[int | None, flag(SLOTS, "Slots: requests that run side by side.", "--batch", "-b")]
    batch_groups: Annotated[
        int | None, flag(SLOTS, "2: windows alternate between two groups of slots, each with the whole row budget.")
    ]
    ctx: Annotated[int | None, flag(SLOTS, "Tokens of one slot, prompt and completion.")]
    vram_reserve_mib: Annotated[int | None, flag(SLOTS, "GPU memory left free.")]
    batch_mtp: Annotated[
        bool | None,
        flag(
            DRAFTS,
            "Draft with the checkpoint's MTP head. Not given: where it has one; --batch-mtp refuses one without.",
            "--batch-mtp/--no-batch-mtp",
        ),
    ]
    spec: Annotated[int | None, flag(DRAFTS, "Most drafts in one chain; 0: no drafts.")]
    spec_min_p: Annotated[float | None, flag(DRAFTS, "A chain ends at the first draft less probable than this.")]
    mtp_varlen: Annotated[
        bool | None,
        flag(
            DRAFTS,
            "Draft lengths follow measured acceptance and cost; off: always --spec.",
            "--mtp-varlen/--no-mtp-varlen",
        ),
    ]
    plan: Annotated[Literal["rows", "uniform"] | None, flag(DRAFTS, "Each slot its own length, or one length for all.")]
    rows: Annotated[int | None, flag(DRAFTS, "Most decode and draft rows of a window. Default: batch x (spec + 1).")]
    fair: Annotated[
        Literal["total", "slots"] | None, flag(DRAFTS, "Most tokens in all, or balanced between the slots.")
    ]
    drafter: Annotated[Literal["mtp", "ngram", "off"] | None, flag(DRAFTS, "Who makes the drafts.")]
    draft_vocab: Annotated[
        int | None, flag(DRAFTS, "The drafter scores only the N most frequent token ids. Default: all.", metavar="N")
    ]
    mtp: Annotated[str | None, flag(DRAFTS, "Take the MTP head from another checkpoint.", metavar="PATH")]
    accept: Annotated[
        Literal["coupled", "rejection"] | None,
        flag(DRAFTS, "coupled: the text depends on the seed alone. rejection: exact in distribution."),
    ]
    prefill_chunk: Annotated[int | None, flag(PROMPTS, "Most prompt rows of one slot in a window.")]
    max_batched_tokens: Annotated[int | None, flag(PROMPTS, "Most prompt rows of one window over all slots.")]
    prefill_policy: Annotated[
        Literal["mixed", "immediate", "gather"] | None,
        flag(PROMPTS, "Beside decoding, before decoding, or several prompts together."),
    ]
    gather_ms: Annotated[float | None, flag(PROMPTS, "How long `gather` waits for requests to fill the slots.")]
    prefix_cache: Annotated[
        bool | None, flag(PROMPTS, "Reuse what prompts share with earlier ones.", "--prefix-cache/--no-prefix-cache")
    ]
    prefix_cache_mib: Annotated[int | None, flag(PROMPTS, "Memory of the prefix cache.")]


class SamplingFlags:
    """The fields of SamplingParams that hold for every request which does not set them itself."""

    temperature: Annotated[float | None, flag(SAMPLING, "0: always the most probable token.")]
    top_p: Annotated[float | None, flag(SAMPLING, "Keep the most probable tokens up to this much probability.")]
    top_k: Annotated[int | None, flag(SAMPLING, "Keep the K most probable tokens; 0: all.")]
    min_p: Annotated[float | None, flag(SAMPLING, "Keep tokens at least this fraction as probable as the best.")]
    repetition_penalty: Annotated[
        float | None, flag(SAMPLING, "Divides the logits of tokens seen in prompt and completion; 1: off.")
    ]
    presence_penalty: Annotated[float | None, flag(SAMPLING, "Taken from tokens seen in the completion.")]
    frequency_penalty: Annotated[float | None, flag(SAMPLING, "Taken for each time a token came in the completion.")]
    seed: Annotated[int | None, flag(SAMPLING, "The seed of every request. Default: each draws its own.")]
    max_tokens: Annotated[int | None, flag(SAMPLING, "Most completion tokens. Default: as far as the context goes.")]
    stop: Annotated[list[str] | None, flag(SAMPLING, "End before this text; may be given more than once.")]
    logprobs: Annotated[
        int | None, flag(SAMPLING, "Log probability of each token and of the N most probable ones.", metavar="N")
    ]
    ignore_eos: Annotated[
        bool | None, flag(SAMPLING, "Go on after the end-of-text token.", "--ignore-eos/--no-ignore-eos")
    ]


class OutputFlags:
    """Screen and statistics of the process."""

    step_stats: Annotated[
        Path | None, flag(OUTPUT, "Write one JSON line a window (also $STRATA_STEP_STATS).", metavar="PATH")
    ]
    tui: Annotated[bool, flag(OUTPUT, "Plain progress lines instead of the live screen.", " /--no-tui")]
    ascii: Annotated[bool, flag(OUTPUT, "Draw the screen with ASCII characters only.", "--ascii")]
    quiet: Annotated[bool, flag(OUTPUT, "Only errors and warnings on stderr.", "--quiet", "-q")]
    show_config: Annotated[bool, flag(OUTPUT, "Print every setting with its source, and exit.", "--show-config")]


class MeasureFlags:
    """What a measuring command needs of the output flags."""

    __annotations__ = {name: OutputFlags.__annotations__[name] for name in ("quiet", "show_config")}


TEXTS = ("question", "system", "arm")  # arguments of single commands that are text, not the name of a file
_DEFAULTS = {"tui": True, "ascii": False, "quiet": False, "download": False, "show_config": False}


def shared_options(*groups: type) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Give a command the flags of these groups, resolved into its first argument, `settings`."""
    shared = {name: _with_default(name, hint) for group in groups for name, hint in group.__annotations__.items()}

    def decorate(command: Callable[..., int]) -> Callable[..., int]:
        own = list(inspect.signature(command, eval_str=True).parameters.values())
        assert own[0].name == "settings"

        @functools.wraps(command)
        def wrapper(**given: Any) -> int:
            flags = {name: given.pop(name) for name in shared}
            settings = resolve(flags, os.environ)
            if flags.get("show_config"):
                print(settings.describe())
                return 0
            return command(settings, **{name: _text(v) if name in TEXTS else v for name, v in given.items()})

        keyword = inspect.Parameter.KEYWORD_ONLY
        parameters = [p.replace(kind=keyword) for p in own[1:]] + [
            inspect.Parameter(name, keyword, default=_DEFAULTS.get(name), annotation=hint)
            for name, hint in shared.items()
        ]
        wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # what typer reads
        wrapper.__annotations__ = {p.name: p.annotation for p in parameters}
        return wrapper

    return decorate


def _text(given: Any) -> Any:
    return [text_of(each) for each in given] if isinstance(given, list) else given and text_of(given)


def _with_default(name: str, hint: Any) -> Any:
    """The annotation with the engine's own default in its help."""
    assert get_origin(hint) is Annotated
    kind, option = get_args(hint)
    default = getattr(EngineConfig(), name, None)
    if default is not None:
        option = copy(option)
        shown = {True: "on", False: "off"}[default] if isinstance(default, bool) else default
        option.help = f"{option.help} Default: {shown}."
    return Annotated[kind, option]
