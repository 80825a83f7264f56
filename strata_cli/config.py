"""Settings: frozen, computed once, never mutated. `SamplingParams` per request, `EngineConfig` per process.

Knows nothing of flags, files or torch; `strata_cli.settings` resolves flag > env > user config > profile > default.
"""

import difflib
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from strata_cli.errors import UsageError


def require(ok: bool, name: str, value: Any, allowed: str) -> None:
    """Raise UsageError naming the parameter, its value and what is allowed, unless `ok`."""
    if not ok:
        raise UsageError(f"{name} = {value!r} is out of range", f"allowed: {allowed}")


def unknown_name(kind: str, name: str, known: Iterable[str]) -> str:
    """`unknown KIND "NAME" (did you mean X?)`, where a known name is near enough."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f'unknown {kind} "{name}"' + (f" (did you mean {near[0]}?)" if near else "")


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one request turns logits into tokens, and when it ends.

    `temperature` 0 is the plain argmax (ties to the lowest token id). `top_k` 0, `top_p` 1 and `min_p` 0 are off.
    `seed` None: the engine draws one and the result records it. `max_tokens` None: as far as the context goes.
    `logprobs` N: each committed token's log probability and the N most probable ones, of the unprocessed distribution.
    `spec` and `drafter` None: the engine's own.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    logprobs: int | None = None
    ignore_eos: bool = False
    spec: int | None = None
    drafter: str | None = None

    def __post_init__(self) -> None:
        def real(name: str, low: float, high: float, allowed: str) -> None:
            value = getattr(self, name)
            require(math.isfinite(value) and low <= value <= high, name, value, allowed)

        real("temperature", 0, 100, "0 to 100")
        # Smaller ones are no float32, and logits divided by them no finite numbers.
        require(self.temperature == 0 or self.temperature >= 1e-6, "temperature", self.temperature, "0, or 1e-6 to 100")
        require(math.isfinite(self.top_p) and 0 < self.top_p <= 1, "top_p", self.top_p, "above 0, up to 1")
        require(self.top_k >= 0, "top_k", self.top_k, "0 (off) or more")
        real("min_p", 0, 1, "0 to 1")
        real("repetition_penalty", 0.01, 100, "0.01 to 100")
        real("presence_penalty", -2, 2, "-2 to 2")
        real("frequency_penalty", -2, 2, "-2 to 2")
        for token, bias in self.logit_bias:
            require(
                token >= 0 and -100 <= bias <= 100, "logit_bias", (token, bias), "token id to a bias of -100 to 100"
            )
        require(self.seed is None or 0 <= self.seed < 2**64, "seed", self.seed, "0 to 2^64 - 1")
        require(self.max_tokens is None or self.max_tokens >= 1, "max_tokens", self.max_tokens, "1 or more")
        require(all(self.stop), "stop", self.stop, "non-empty strings")
        require(self.logprobs is None or 0 <= self.logprobs <= 20, "logprobs", self.logprobs, "0 to 20")
        require(self.spec is None or 0 <= self.spec <= MAX_SPEC, "spec", self.spec, f"0 to {MAX_SPEC}")
        require(self.drafter in (None, *DRAFTERS), "drafter", self.drafter, ", ".join(DRAFTERS))

    @property
    def has_penalties(self) -> bool:
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0


MAX_SPEC = 16
DEFAULT_CTX = 8192  # tokens of one slot, where neither --ctx nor the model asks for less
DRAFTERS = ("mtp", "ngram", "off")


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Every setting of the engine, as design section 7 names its flag. Sizes in tokens, rows, MiB or ms as named."""

    batch: int = 4
    batch_groups: int = 1
    batch_mtp: bool | None = None  # None: drafts where the checkpoint has a head; True: refuse a checkpoint without one
    spec: int = 4
    spec_min_p: float = 0.0
    mtp_varlen: bool = True  # False: fixed L
    plan: str = "rows"
    rows: int | None = None  # None: batch x (spec + 1)
    fair: str = "total"
    drafter: str = "mtp"
    draft_vocab: int | None = None  # None: all token ids
    mtp: str | None = None  # a checkpoint to take the MTP head from
    accept: str = "coupled"
    ctx: int | None = None  # None: what the model allows, up to a default
    prefill_chunk: int = 512
    max_batched_tokens: int = 1024
    prefill_policy: str = "mixed"
    gather_ms: float = 50.0
    prefix_cache: bool = True
    prefix_cache_mib: int = 256
    device: str = "auto"
    dtype: str = "auto"
    kv_dtype: str = "auto"
    vram_reserve_mib: int = 512

    def __post_init__(self) -> None:
        def one_of(name: str, *values: str) -> None:
            require(getattr(self, name) in values, name, getattr(self, name), ", ".join(values))

        require(self.mtp != "", "mtp", self.mtp, "the path of a checkpoint")
        require(1 <= self.batch <= 64, "batch", self.batch, "1 to 64 slots")
        require(self.batch_groups in (1, 2), "batch_groups", self.batch_groups, "1 or 2")
        require(self.batch_groups <= self.batch, "batch_groups", self.batch_groups, "no more than batch")
        require(0 <= self.spec <= MAX_SPEC, "spec", self.spec, f"0 to {MAX_SPEC}")
        require(0 <= self.spec_min_p <= 1, "spec_min_p", self.spec_min_p, "0 to 1")
        require(self.rows is None or self.rows >= 1, "rows", self.rows, "1 or more")
        require(self.draft_vocab is None or self.draft_vocab >= 1, "draft_vocab", self.draft_vocab, "1 or more")
        require(self.ctx is None or self.ctx >= 2, "ctx", self.ctx, "2 or more tokens")
        require(self.prefill_chunk >= 64, "prefill_chunk", self.prefill_chunk, "64 or more tokens")
        require(self.max_batched_tokens >= 64, "max_batched_tokens", self.max_batched_tokens, "64 or more tokens")
        require(0 <= self.gather_ms <= 60_000, "gather_ms", self.gather_ms, "0 to 60000 ms")
        require(self.prefix_cache_mib >= 0, "prefix_cache_mib", self.prefix_cache_mib, "0 or more MiB")
        require(self.vram_reserve_mib >= 0, "vram_reserve_mib", self.vram_reserve_mib, "0 or more MiB")
        one_of("plan", "rows", "uniform")
        one_of("fair", "total", "slots")
        one_of("drafter", *DRAFTERS)
        one_of("accept", "coupled", "rejection")
        one_of("prefill_policy", "mixed", "immediate", "gather")
        one_of("device", "auto", "cpu", "cuda")
        one_of("dtype", "auto", "float32", "bfloat16", "float16")
        one_of("kv_dtype", "auto", "float32", "bfloat16", "float16")

    def context(self, model_max: int) -> int:
        """Most tokens of one request, prompt and completion, for a model with `model_max` positions."""
        if self.ctx is None:
            return min(DEFAULT_CTX, model_max)
        require(self.ctx <= model_max, "ctx", self.ctx, f"up to the model's {model_max} positions")
        return self.ctx

    @property
    def row_budget(self) -> int:
        """Decode and draft rows of one window over all slots."""
        return self.rows if self.rows is not None else self.batch * (self.spec + 1)


@dataclass(frozen=True, slots=True)
class Sourced:
    """A setting's value and where it came from: flag, env, user config, profile or default."""

    value: Any
    source: str = field(default="default")
