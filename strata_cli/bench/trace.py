"""Arrivals and lengths from a trace: who comes when, with how many tokens. No torch."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from strata_cli.bench.cases import Case
from strata_cli.errors import UsageError
from strata_cli.session import Prompt

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request of the trace. `at_s`: seconds after the first one."""

    at_s: float
    prompt_tokens: int
    new_tokens: int


def read_trace(path: Path, limit: int, time_scale: float) -> list[Arrival]:
    """The first `limit` requests; `time_scale` 0.5 brings them in half the time.

    Raises UsageError: no such file, columns missing, a line that is no arrival, none at all.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            reader = csv.DictReader(stream)
            missing = [c for c in COLUMNS if c not in (reader.fieldnames or [])]
            if missing:
                raise UsageError(f"{path}: no column {', '.join(missing)}", f"columns: {','.join(COLUMNS)}")
            rows = [(number, row) for number, row in zip(range(2, limit + 2), reader)]
    except OSError as fault:
        raise UsageError(f"{path} cannot be read: {fault.strerror}") from None
    arrivals: list[Arrival] = []
    first: float | None = None
    for number, row in rows:
        try:
            at = _seconds(row["TIMESTAMP"])
            prompt, new = int(row["ContextTokens"]), int(row["GeneratedTokens"])
        except (ValueError, TypeError):
            raise UsageError(f"{path}:{number}: not an arrival: {','.join(map(str, row.values()))}") from None
        first = at if first is None else first
        arrivals.append(Arrival(max(0.0, at - first) * time_scale, max(1, prompt), max(1, new)))
    if not arrivals:
        raise UsageError(f"{path}: no requests")
    return sorted(arrivals, key=lambda a: a.at_s)


def _seconds(text: str) -> float:
    """A number of seconds, or a date and time (of which digits beyond microseconds are dropped)."""
    try:
        return float(text)
    except ValueError:
        whole, dot, fraction = text.partition(".")
        return datetime.fromisoformat(whole + dot + fraction[:6].ljust(6, "0") if dot else whole).timestamp()


def fit(arrivals: Sequence[Arrival], context: int) -> tuple[list[Arrival], int]:
    """Lengths that fit a context: a completion at most half of it, the prompt what is left. Returns how many were
    clipped.
    """
    fitted = []
    for a in arrivals:
        new = min(a.new_tokens, max(1, context // 2))
        fitted.append(replace(a, prompt_tokens=min(a.prompt_tokens, context - new), new_tokens=new))
    return fitted, sum(a != b for a, b in zip(arrivals, fitted))


def trace_cases(arrivals: Sequence[Arrival], cases: Sequence[Case]) -> list[Case]:
    """A case for each arrival: its lengths exactly, its tokens from the prompts, each starting at another place."""
    text = [token for case in cases for token in case.prompt.ids]
    made = []
    for i, a in enumerate(arrivals):
        start = 37 * i % len(text)
        ids = [text[(start + j) % len(text)] for j in range(a.prompt_tokens)]
        like = cases[i % len(cases)]
        seed = (like.params.seed or 0) + i
        params = replace(like.params, max_tokens=a.new_tokens, ignore_eos=True, stop=(), stop_token_ids=(), seed=seed)
        made.append(Case(f"arrival-{i + 1}", Prompt(ids), params))
    return made
