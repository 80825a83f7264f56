"""`strata parity`: the text never depends on the speed, shown on this machine with this model."""

import json
from typing import Annotated

import typer

from strata_cli.bench.cases import Case, make_cases, own_records, read_file
from strata_cli.errors import FAILED, OK
from strata_cli.options import EngineFlags, MeasureFlags, ModelFlags, SamplingFlags, shared_options
from strata_cli.parity import matrix
from strata_cli.parity.check import check
from strata_cli.parity.text import as_json, as_text
from strata_cli.session import load_model, open_checkpoint
from strata_cli.settings import Settings
from strata_cli.ui.console import Console

MAX_TOKENS = 48  # of a request, where neither flag nor line says otherwise
OWN = (
    "Tell me a story about a girl named Anna and a lost drum.",
    "Count from 3 to 12.",
    # Longer than the 64 tokens at which an entry of the prefix cache can end.
    "Here is a story. Tom had a red kite. One windy day the kite flew over the old wall and into the garden of a tall "
    "man. Tom was a little afraid, but his friend Lily took his hand, and they knocked on the door together. The man "
    "smiled, gave the kite back and showed them his pond with seven green frogs. How did Tom feel at the door?",
    "Write a function that adds two numbers.",
)


@shared_options(ModelFlags, EngineFlags, SamplingFlags, MeasureFlags)
def parity(
    settings: Settings,
    prompts: Annotated[
        str | None,
        typer.Argument(metavar="[PROMPTS.jsonl]", help="Lines as `strata run` takes them; default: four of its own."),
    ] = None,
    as_json_: Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")] = False,
) -> int:
    """Run the same requests in every way the engine has, and say whether one token differs.

    The base is one slot without drafts and without prefix cache. Against it: more slots, drafts of fixed and of
    adaptive length, groups, n-grams, late joiners, a cancelled neighbour, copies, a prefix-cache hit, small prefill
    chunks; at temperatures 0, 0.7 and 1 (or --temperature), without and with penalties (those of the flags or its
    own), which stand over what a line sets. Exit code 1 on a difference.

    Examples:
      strata parity
      strata parity prompts.jsonl --model Qwen/Qwen3.6-35B-A3B --max-tokens 64
      strata parity --temperature 0.7 --json
    """
    console = Console(settings.quiet)
    ways = matrix.ways(settings.engine)
    checkpoint = open_checkpoint(settings)
    records = read_file(prompts) if prompts is not None else own_records(checkpoint, OWN)
    cases = make_cases(records, checkpoint, settings.sampling, MAX_TOKENS, prompts or "the built-in prompts")
    if len(cases) == 1:  # a neighbour for the ways that need one
        cases.append(Case(f"{cases[0].id}+", cases[0].prompt, cases[0].params))
    model = load_model(checkpoint, settings.engine)
    manners = matrix.manners(settings.sampling)
    report = check(model, cases, matrix.base(settings.engine), ways, manners, console.note)
    about = (checkpoint.name, model.device.name, len(cases))
    if as_json_:
        print(json.dumps(as_json(report, *about), ensure_ascii=False))
    else:
        tokenizer = checkpoint.tokenizer

        def spell(token: int) -> str:
            return repr(tokenizer.decode([token], skip_special=False)) if tokenizer is not None else ""

        print(as_text(report, *about, spell))
    return OK if report.equal else FAILED
