"""Prompts of a measurement: read once, made into fresh requests for every run. No torch."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from strata_cli.batch.records import Faults, PromptRecord, parse
from strata_cli.config import SamplingParams
from strata_cli.engine.seeds import derive_seed
from strata_cli.engine.types import Request
from strata_cli.errors import UsageError
from strata_cli.names import text_of
from strata_cli.session import Checkpoint, Prompt

SEED = 1  # of requests that bring none: two measurements are of the same texts


@dataclass(frozen=True, slots=True)
class Case:
    """A prompt with its sampling parameters, seed included."""

    id: str
    prompt: Prompt
    params: SamplingParams

    def request(self, checkpoint: Checkpoint, **changes: Any) -> Request:
        """A request of its own; a request's text watch can be used once only."""
        return checkpoint.request(self.id, self.prompt, replace(self.params, **changes))


def read_file(file: str) -> list[PromptRecord]:
    """The records of a prompts file in run's input shapes; - is stdin."""
    if file == "-":
        return parse(sys.stdin.buffer.read(), "stdin")
    try:
        return parse(Path(file).read_bytes(), text_of(file))
    except OSError as fault:
        raise UsageError(f"{file} cannot be read: {fault.strerror}", "a JSONL file, or - for stdin") from None


def own_records(checkpoint: Checkpoint, texts: Sequence[str]) -> list[PromptRecord]:
    """Texts as records: as a user's message where there is a chat template, as ids where there is no tokenizer."""

    def given(i: int, text: str) -> Any:
        if checkpoint.template is not None:
            return [{"role": "user", "content": text}]
        if checkpoint.tokenizer is not None:
            return text
        return [(31 * (i + 1) * (j + 1)) % checkpoint.vocab for j in range(len(text) // 2)]

    return [PromptRecord(f"own-{i + 1}", i + 1, given(i, text)) for i, text in enumerate(texts)]


def make_cases(
    records: Sequence[PromptRecord],
    checkpoint: Checkpoint,
    sampling: Mapping[str, Any],
    max_tokens: int,
    name: str = "the built-in prompts",
) -> list[Case]:
    """Records as cases: a line's own parameters over `sampling` over `max_tokens` over the checkpoint's defaults.

    Raises UsageError with each line that this model cannot take.
    """
    faults, cases = Faults(name), []
    for record in records:
        seed = {"seed": derive_seed(SEED, record.id)}
        params = checkpoint.params(seed, {"max_tokens": max_tokens}, sampling, record.params)
        try:
            case = Case(record.id, checkpoint.prompt(record.prompt, record.template_kwargs), params)
            case.request(checkpoint)
            cases.append(case)
        except UsageError as fault:
            faults.add(record.line, str(fault))
    faults.check()
    return cases
