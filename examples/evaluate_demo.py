"""Ask the demo model what it was trained for, and measure its drafts.

    python examples/evaluate_demo.py                                      the model that strata brings along
    python examples/evaluate_demo.py --model build/demo/model --show 5    another one, with some of its answers
    python examples/evaluate_demo.py --blocks 24 --card                   as released; figures go into its model card

Everything is greedy, through strata's own engine: four slots, four drafts, fixed L. Losses are those of the weights on
disk, on text of the training text's generator with another seed.
"""

import argparse
import math
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from demo_text.documents import KINDS
from demo_training import data, export, tasks, training
from tokenizers import Tokenizer

from strata_cli.batch.records import parse
from strata_cli.config import EngineConfig
from strata_cli.demo import model_path
from strata_cli.engine.tally import merge_spec
from strata_cli.engine.types import Event, Finished, Result, SpecStats
from strata_cli.session import Session, drive, load_session, read_checkpoint

PROMPTS = Path(__file__).parent / "prompts.jsonl"
MEASURED = "\n## Measured\n"
SPEC = 4


class Ended:
    """The results of requests, by id, as they end."""

    def __init__(self) -> None:
        self.results: dict[str, Result] = {}

    def events(self, events: Sequence[Event]) -> None:
        self.results |= {e.request_id: e.result for e in events if isinstance(e, Finished)}


def run(session: Session, prompts: Mapping[str, tuple[object, dict]]) -> dict[str, Result]:
    """The results of prompts with their sampling parameters, by id; temperature 0 for all."""
    for name, (prompt, given) in prompts.items():
        params = session.checkpoint.params(given, {"temperature": 0.0})
        session.engine.submit(session.request(name, prompt, params))
    drive(session.engine, [ended := Ended()])
    return ended.results


def row(name: str, *cells: object) -> str:
    """A line of a table in Markdown."""
    return "| " + " | ".join([name, *map(str, cells)]) + " |"


def head(*cells: str) -> list[str]:
    """The first two lines of a table."""
    return [row(*cells), "|" + " --- |" * len(cells)]


def spec_cells(spec: SpecStats) -> list[str]:
    """Acceptance as the tables show it."""
    cumulative = " ".join(f"{p:.2f}" for p in spec.per_position())
    conditional = " ".join("-" if p is None else f"{p:.2f}" for p in spec.conditional())
    return [f"{spec.acceptance_rate or 0:.3f}", cumulative, conditional, f"{spec.mean_acceptance_length or 0:.2f}"]


def total(specs: Iterable[SpecStats]) -> SpecStats:
    """One sum of many."""
    out = SpecStats()
    for spec in specs:
        merge_spec(out, spec)
    return out


def answers(session: Session, asked: list[tasks.Task], show: int) -> list[str]:
    """The table of tasks: how many answers are right, and how the drafts did."""
    prompts = {str(i): ([{"role": "user", "content": t.question}], {"max_tokens": 320}) for i, t in enumerate(asked)}
    results = run(session, prompts)
    right, topic, count = Counter(), Counter(), Counter()
    specs, shown = defaultdict(list), Counter()
    for i, task in enumerate(asked):
        result = results[str(i)]
        text = session.tokenizer.decode(result.token_ids)
        good = task.right(text) and result.finish_reason == "stop"
        count[task.group] += 1
        right[task.group] += good
        topic[task.group] += bool(task.topic and task.topic(text))
        specs[task.group].append(result.spec)
        if not good and shown[task.group] < show:
            shown[task.group] += 1
            print(f"not right: {task.question!r} -> {text!r}")
    lines = head("task", "right", "acceptance rate", "by position, cumulative", "conditional", "tokens/window")
    for group, n in count.items():
        name = "story: the asked hero throughout" if group == "story" else group
        lines.append(row(name, f"{right[group]} of {n}", *spec_cells(total(specs[group]))))
        if group == "story":
            lines.append(row("story: the asked thing, place or friend", f"{topic[group]} of {n}", "", "", "", ""))
    return lines


def acceptance(session: Session) -> list[str]:
    """The table of examples/prompts.jsonl, by the first word of a prompt's id."""
    records = parse(PROMPTS.read_bytes(), PROMPTS.name)
    results = run(session, {record.id: (record.prompt, dict(record.params)) for record in records})
    groups = defaultdict(list)
    for record in records:
        groups[record.id.split("-")[0]].append(results[record.id].spec)
    lines = head("prompts", "number", "acceptance rate", "by position, cumulative", "conditional", "tokens/window")
    for name, specs in [*groups.items(), ("all", [r.spec for r in results.values()])]:
        lines.append(row(name, len(specs), *spec_cells(total(specs))))
    return lines


def losses(directory: Path, count: int) -> list[str]:
    """The table of held-out loss, of the weights as they are on disk."""
    model = export.read(directory)
    packer = data.Packer(Tokenizer.from_file(str(directory / "tokenizer.json")), 384)
    lines = head("held-out text", "nats per token", "nats per repeated name", "repeated names right")
    for kind in KINDS:
        found = training.validate(model, packer, (kind,), count)
        named = ["-", "-"] if math.isnan(found["name"]) else [f"{found[key]:.3f}" for key in ("name", "name_right")]
        lines.append(row(kind, f"{found[kind]:.4f}", *named))
    return lines


def main() -> None:
    """Measure, print, and write the card if it is wanted."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", default=str(model_path()), help="a directory that train_demo.py export has written")
    p.add_argument("--seed", default="evaluation", help="of the questions")
    p.add_argument("--blocks", type=int, default=0, help="make sure that no story was asked for in so many of training")
    p.add_argument("--held-out", type=int, default=40, help="documents of every kind")
    p.add_argument("--show", type=int, default=0, help="answers of every kind to show that are not right")
    p.add_argument("--card", action="store_true", help="write the figures into the model's README.md")
    args = p.parse_args()
    directory, start = Path(args.model), time.time()
    asked = tasks.all_tasks(args.seed)
    questions = tasks.training_questions(args.blocks)
    known = [t.question for t in asked if t.group == "story" and t.question in questions]
    assert not known, f"asked in training: {known}; try another --seed"
    config = EngineConfig(spec=SPEC, mtp_varlen=False)
    with load_session(read_checkpoint(args.model, config), config) as session:
        tables = [acceptance(session), answers(session, asked, args.show)]
    tables.append(losses(directory, args.held_out))
    text = "\n\n".join("\n".join(lines) for lines in tables)
    print(f"{text}\n\n{time.time() - start:.0f} s")
    if args.card:
        card = directory / "README.md"
        before = re.split(re.escape(MEASURED), card.read_text(encoding="utf-8"))[0]
        card.write_text(before + MEASURED + INTRODUCTION.format(blocks=args.blocks) + text + "\n", encoding="utf-8")


INTRODUCTION = """
Greedy, four slots, four drafts, fixed L, by `python examples/evaluate_demo.py --blocks {blocks} --card`. Acceptance of
a position is cumulative (of the windows with a row for it) and conditional (of those in which the drafts before it
held). No story is asked for in words that {blocks} blocks of the training text, drawn again, contain; a story counts if
the asked hero is named first, at least twice and still in the second half, with no name beside but one friend's.
Counting, facts and recall count if every word is right; sums if the number is; code if it compiles. Losses are of other
text from the same generator.

"""


if __name__ == "__main__":
    main()
