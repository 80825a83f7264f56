"""What a conversation tells about its speed: the line after an answer, /stats, the --json record. No torch."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from strata_cli.batch.results import measurements
from strata_cli.chat.turn import Answer, added
from strata_cli.engine.types import SpecStats


def status_line(answer: Answer, limit: int) -> str:
    """One line: tokens and speed, acceptance, mean L and keeps, context used of `limit` tokens, prefix-cache hit."""
    result = answer.result
    assert result is not None
    parts = [
        f"{len(result.token_ids):,} tok",
        f"{_number(result.timings.decode_tok_s)} tok/s",
        f"accepted {_percent(result.spec.acceptance_rate)}",
        f"L {_number(_mean(answer.rows, answer.windows))}",
        f"keeps {_number(_mean(answer.keeps, answer.windows))}",
        f"ctx {answer.context_tokens:,}/{limit:,}",
        f"cache {result.cached_tokens:,}",
    ]
    if result.finish_reason == "length":
        parts.append("cut at the limit")
    return " · ".join(parts)


@dataclass
class AnswerTotals:
    """Sums over all answers of a conversation, candidates that were not picked included."""

    answers: int = 0
    tokens: int = 0
    decoded: int = 0  # tokens that count for the decode rate
    decode_ms: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    windows: int = 0
    rows: int = 0
    keeps: int = 0
    spec: SpecStats = field(default_factory=SpecStats)

    def add(self, answer: Answer) -> None:
        result = answer.result
        if result is None:
            return
        self.answers += 1
        self.tokens += len(result.token_ids)
        if result.timings.decode_tok_s is not None:
            self.decoded += round(result.timings.decode_tok_s * result.timings.decode_ms / 1000)
            self.decode_ms += result.timings.decode_ms
        self.prompt_tokens += result.prompt_tokens
        self.cached_tokens += result.cached_tokens
        self.windows += answer.windows
        self.rows += answer.rows
        self.keeps += answer.keeps
        self.spec = added(self.spec, result.spec)

    def lines(self) -> list[str]:
        """The table /stats shows."""
        if not self.answers:
            return ["no answer yet"]
        spec = self.spec
        rate = 1000 * self.decoded / self.decode_ms if self.decode_ms else None
        return [
            f"answers      {self.answers:,}, {self.tokens:,} tokens, {_number(rate)} tok/s while decoding",
            f"prompts      {self.prompt_tokens:,} tokens, {self.cached_tokens:,} of them from the prefix cache",
            f"windows      {self.windows:,}, L {_number(_mean(self.rows, self.windows))} rows and "
            f"keeps {_number(_mean(self.keeps, self.windows))} tokens in each (the bonus token included)",
            f"drafts       {spec.drafted:,} made, {spec.verified:,} verified, {spec.accepted:,} accepted: "
            f"{_percent(spec.acceptance_rate)} (accepted / verified)",
            f"by position  {_percents(spec.conditional())} (of windows in which the draft before was accepted)",
        ]


def answer_record(answer: Answer) -> dict[str, Any]:
    """The --json object of one answer; `timings`, `spec` and `logprobs` as a record of `strata run` has them.

    `reasoning_tokens` are part of `completion_tokens`, `cached_tokens` of `prompt_tokens`; `thinking_cut`: the thinking
    was closed at its budget.
    """
    result = answer.result
    assert result is not None
    timings, spec = measurements(result)
    record: dict[str, Any] = {
        "text": answer.text,
        "reasoning": answer.reasoning,
        "finish_reason": result.finish_reason,
        "thinking_cut": answer.forced_close,
        "usage": {
            "prompt_tokens": result.prompt_tokens,
            "completion_tokens": len(result.token_ids),
            "reasoning_tokens": answer.splitter.thinking_tokens,
            "cached_tokens": result.cached_tokens,
        },
        "timings": timings,
        "spec": spec,
        "seed": result.seed,
    }
    if result.logprobs:
        record["logprobs"] = [
            {
                "token_id": entry.token,
                "logprob": entry.logprob,
                "top": [{"token_id": token, "logprob": logprob} for token, logprob in entry.top],
            }
            for entry in result.logprobs
        ]
    return record


def _mean(total: int, n: int) -> float | None:
    return total / n if n else None


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.1f}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.0f} %"


def _percents(values: Sequence[float | None]) -> str:
    return ", ".join(map(_percent, values)) or "–"
