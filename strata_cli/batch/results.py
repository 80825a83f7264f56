"""The lines of a results file: a request's Result as one record, simple or in the OpenAI batch shape. No torch."""

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import msgspec

from strata_cli.batch.records import PromptRecord
from strata_cli.engine.types import Request, Result, SpecStats, Timings, TokenLogprob
from strata_cli.text.thinking import split_thinking

# Legal inside a JSON string, but line breaks to many readers of lines (str.splitlines for one).
LINE_BREAKS = ((b"\xc2\x85", b"\\u0085"), (b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"))


class TokenDecoder(Protocol):
    """Token ids to text (`strata_cli.text.tokenizer.Tokenizer`)."""

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str: ...


@dataclass(frozen=True, slots=True)
class RecordWriter:
    """Turns results into lines.

    Args:
        model: name of the model that answered.
        simple: the flat shape; else the OpenAI batch response shape.
        with_tokens: add `token_ids`.
        decoder: spells single tokens for log probabilities; None: ids only.
    """

    model: str
    simple: bool
    with_tokens: bool
    decoder: TokenDecoder | None = None

    def line(
        self, asked: PromptRecord, result: Result, text: str, created: int, thinking_opened: bool = False
    ) -> bytes:
        """One record with its newline.

        Args:
            asked: the input record.
            result: what became of it.
            text: the completion's text.
            created: seconds since the epoch.
            thinking_opened: the prompt ended inside a thinking block.
        """
        if self.simple:
            record = self._simple(asked, result, text)
        else:
            record = self._openai(asked, result, text, created, thinking_opened)
        encoded = msgspec.json.encode(record)
        for raw, escape in LINE_BREAKS:
            encoded = encoded.replace(raw, escape)
        return encoded + b"\n"

    def _simple(self, asked: PromptRecord, result: Result, text: str) -> dict[str, Any]:
        record: dict[str, Any] = {
            "custom_id": asked.id,
            "text": text,
            "finish_reason": result.finish_reason,
            "prompt_tokens": result.prompt_tokens,
            "completion_tokens": len(result.token_ids),
        }
        if self.with_tokens:
            record["token_ids"] = result.token_ids
        if result.logprobs:
            record["logprobs"] = [self._spelled(entry, "top") for entry in result.logprobs]
        timings, spec = measurements(result)
        return {**record, "timings": timings, "seed": result.seed, "spec": spec, "error": result.error}

    def _openai(
        self, asked: PromptRecord, result: Result, text: str, created: int, thinking_opened: bool
    ) -> dict[str, Any]:
        key = hashlib.sha256(f"{asked.id}/{result.seed}".encode()).hexdigest()[:24]
        record: dict[str, Any] = {"id": f"batch_req_{key}", "custom_id": asked.id, "response": None, "error": None}
        if result.finish_reason == "error":
            return {**record, "error": {"code": "failed", "message": result.error}}
        choice: dict[str, Any] = {"index": 0, "finish_reason": result.finish_reason, "logprobs": None}
        if asked.is_chat:
            reasoning, answer = split_thinking(text, thinking_opened)
            choice["message"] = {"role": "assistant", "content": answer}
            if reasoning:
                choice["message"]["reasoning_content"] = reasoning
        else:
            choice["text"] = text
        if result.logprobs:
            choice["logprobs"] = {"content": [self._spelled(entry, "top_logprobs") for entry in result.logprobs]}
        timings, spec = measurements(result)
        body: dict[str, Any] = {
            "id": f"{'chatcmpl' if asked.is_chat else 'cmpl'}-{key}",
            "object": "chat.completion" if asked.is_chat else "text_completion",
            "created": created,
            "model": self.model,
            "choices": [choice],
            "usage": {
                "prompt_tokens": result.prompt_tokens,
                "completion_tokens": len(result.token_ids),
                "total_tokens": result.prompt_tokens + len(result.token_ids),
                "prompt_tokens_details": {"cached_tokens": result.cached_tokens},
            },
            "seed": result.seed,
            "metrics": {"timings": timings, "spec": spec},
        }
        if self.with_tokens:
            body["token_ids"] = result.token_ids
        return {**record, "response": {"status_code": 200, "request_id": f"req_{key}", "body": body}}

    def _spelled(self, entry: TokenLogprob, top_key: str) -> dict[str, Any]:
        """A token's log probability and, under `top_key`, those of the most probable ones."""
        return {
            **self._token(entry.token, entry.logprob),
            top_key: [self._token(token, logprob) for token, logprob in entry.top],
        }

    def _token(self, token: int, logprob: float) -> dict[str, Any]:
        spelled = {"token": self.decoder.decode([token], skip_special=False)} if self.decoder else {}
        return {**spelled, "token_id": token, "logprob": logprob}


def measurements(result: Result) -> tuple[dict[str, Any], dict[str, Any]]:
    """The `timings` and `spec` of a record."""
    timings = {name: value if value is None else round(value, 3) for name, value in asdict(result.timings).items()}
    return timings, spec_fields(result.spec)


def spec_fields(spec: SpecStats) -> dict[str, Any]:
    """Drafting of one request, as records name it."""

    def rounded(value: float | None) -> float | None:
        return None if value is None else round(value, 4)

    return {
        "windows": spec.windows,
        "drafted": spec.drafted,
        "verified": spec.verified,
        "accepted": spec.accepted,
        "acceptance_rate": rounded(spec.acceptance_rate),
        "mean_acceptance_length": rounded(spec.mean_acceptance_length),
        "per_position": [rounded(rate) for rate in spec.per_position()],
        "conditional": [rounded(rate) for rate in spec.conditional()],
    }


def failed_result(request: Request, error: str) -> Result:
    """The result of a request that never ran."""
    seed = request.params.seed or 0
    return Result(request.id, [], "error", len(request.prompt), 0, seed, Timings(), SpecStats(), error=error)
