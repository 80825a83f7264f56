"""What a benchmark keeps: a run's figures, an arm's medians, ratios between arms, and the order of runs. No torch."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from strata_cli.batch.results import spec_fields
from strata_cli.engine.tally import merge_spec
from strata_cli.engine.types import SpecStats


@dataclass(slots=True)
class RunFigures:
    """One run of all requests by one arm. `wall_s`: from the first arrival to the last token that left the engine."""

    wall_s: float
    tokens: int
    ttft_ms: list[float]  # of each request, from its arrival
    decode_tok_s: list[float]  # of each request: (tokens - 1) / decode time
    spec: SpecStats
    texts: dict[str, str]  # request id -> digest of its token ids
    downgrades: list[str] = field(default_factory=list)

    @property
    def tok_s(self) -> float:
        return self.tokens / self.wall_s if self.wall_s > 0 else 0.0


@dataclass(slots=True)
class ArmFigures:
    """An arm's runs on one kind of prompts, in the order of the rounds."""

    name: str
    flags: str
    runs: list[RunFigures] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        spec = SpecStats()
        for run in self.runs:
            merge_spec(spec, run.spec)
        texts = self.runs[0].texts
        return {
            "name": self.name,
            "flags": self.flags,
            "tok_s": [round(r.tok_s, 3) for r in self.runs],
            "median_tok_s": round(median(r.tok_s for r in self.runs), 3),
            "median_ttft_ms": _median([median(r.ttft_ms) for r in self.runs if r.ttft_ms]),
            "median_decode_tok_s": _median([median(r.decode_tok_s) for r in self.runs if r.decode_tok_s]),
            "tokens": self.runs[0].tokens,
            "spec": spec_fields(spec),
            "texts": texts,
            "steady": all(r.texts == texts for r in self.runs),
            "downgrades": sorted({line for r in self.runs for line in r.downgrades}),
        }


def _median(values: Sequence[float]) -> float | None:
    return round(median(values), 3) if values else None


def digest(token_ids: Sequence[int]) -> str:
    """Token ids as 16 digits."""
    return hashlib.sha256(",".join(map(str, token_ids)).encode()).hexdigest()[:16]


def order(arms: int, rounds: int) -> list[list[int]]:
    """The arms' order in each round: A B, B A, A B, ... so that a drift of the machine hits all alike."""
    forward = list(range(arms))
    return [forward if r % 2 == 0 else forward[::-1] for r in range(rounds)]


def ratios(arms: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Tokens per second of each arm over each earlier one.

    Pairs are of the same round; `low` and `high` are the extremes over the rounds. Arms with different numbers of
    rounds (a saved report) are not pairs: their medians are divided, and there is no spread.
    """
    found = []
    for i, over in enumerate(arms):
        for arm in arms[i + 1 :]:
            a, b = over["tok_s"], arm["tok_s"]
            pair: dict[str, Any] = {"arm": arm["name"], "over": over["name"], "low": None, "high": None}
            if "saved" in arm or "saved" in over:
                base = over["median_tok_s"]
                pair["median"] = round(arm["median_tok_s"] / base, 4) if base else None
            else:
                each = [y / x for x, y in zip(a, b) if x > 0]
                if each:
                    pair["low"], pair["high"] = round(min(each), 4), round(max(each), 4)
                pair["median"] = round(median(each), 4) if each else None
            found.append(pair)
    return found


def same_tokens(arms: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """For each arm after the first: requests whose tokens are not the first arm's (or that the first lacks)."""
    first = arms[0]["texts"]
    found = []
    for arm in arms[1:]:
        other = [id for id, text in arm["texts"].items() if first.get(id) != text]
        found.append({"arm": arm["name"], "requests": len(arm["texts"]), "different": other})
    return found
