"""The matrix: the base run, the ways it must agree with, and the manners of sampling. No torch."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from strata_cli.config import EngineConfig
from strata_cli.errors import UsageError

TEMPERATURES = (0.0, 0.7, 1.0)
PENALTIES = {"repetition_penalty": 1.1, "presence_penalty": 0.2, "frequency_penalty": 0.1}
NO_PENALTIES = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
SMALL_CHUNK = 64  # tokens, the smallest there is


@dataclass(frozen=True, slots=True)
class Way:
    """One way to run the requests.

    schedule: "together"; "late": the others join a running first one; "cancel": the first is cancelled on its way;
    "copies": the first alone, once a slot; "twice": all of them again on the warm engine, the second time counts.
    drafts: its drafts must be those of "one slot, fixed drafts" too.
    """

    name: str
    config: EngineConfig
    schedule: str = "together"
    drafts: bool = False


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters that every request of a run has."""

    name: str
    params: Mapping[str, Any]


def base(config: EngineConfig) -> EngineConfig:
    """One slot, no drafts, no prefix cache."""
    return replace(config, batch=1, batch_groups=1, spec=0, rows=None, prefix_cache=False, batch_mtp=None)


def alone(config: EngineConfig) -> Way:
    """One slot with a fixed number of drafts: what is drafted and accepted beside others must be what it is here."""
    settings = replace(_fixed(config), batch=1, batch_groups=1, prefix_cache=False)
    return Way("one slot, fixed drafts", settings)


def ways(config: EngineConfig) -> list[Way]:
    """The ways of design section 5, each with the user's settings but for what it is about.

    Raises UsageError for settings under which there is nothing to compare.
    """
    if config.batch < 2:
        raise UsageError(f"--batch {config.batch}: parity compares one slot with several", "--batch 2 or more")
    if config.spec < 1 or config.drafter == "off" or config.batch_mtp is False:
        raise UsageError("parity compares drafts with none, and drafts are off", "--spec 1 or more, --drafter mtp")
    if config.accept == "rejection":
        what = "--accept rejection is exact in distribution only: its text does depend on the drafts"
        raise UsageError(what, "--accept coupled")
    fixed = replace(_fixed(config), prefix_cache=False)
    counted = config.draft_vocab is None  # a draft vocabulary follows what ran before, so drafts may differ
    slots = f"{config.batch} slots"
    return [
        alone(config),
        Way(f"{slots}, fixed drafts", fixed, drafts=counted),
        Way(f"{slots}, adaptive", replace(config, mtp_varlen=True)),
        Way(f"{slots}, one length for all", replace(config, mtp_varlen=True, plan="uniform")),
        Way("two groups", replace(fixed, batch_groups=2), drafts=counted),
        Way("n-gram drafts", replace(fixed, drafter="ngram")),
        Way("late joiners", fixed, "late", counted),
        Way("beside a cancelled one", fixed, "cancel", counted),
        Way(f"{config.batch} copies", fixed, "copies", counted),
        Way("prefix-cache hit", replace(fixed, prefix_cache=True), "twice", counted),
        Way(
            "small prefill chunks",
            replace(fixed, prefill_chunk=SMALL_CHUNK, max_batched_tokens=2 * SMALL_CHUNK),
            drafts=counted,
        ),
    ]


def manners(sampling: Mapping[str, Any]) -> list[Sampling]:
    """Temperatures (the user's where set, else 0, 0.7, 1.0), without penalties and with (the user's where set)."""
    given = sampling.get("temperature")
    found = []
    for temperature in TEMPERATURES if given is None else (given,):
        own = {name: sampling.get(name, value) for name, value in PENALTIES.items()}
        found.append(Sampling(f"temperature {temperature:g}", {"temperature": temperature, **NO_PENALTIES}))
        found.append(Sampling(f"temperature {temperature:g}, penalties", {"temperature": temperature, **own}))
    return found


def _fixed(config: EngineConfig) -> EngineConfig:
    """Always --spec drafts: no row budget may cut them."""
    return replace(config, mtp_varlen=False, rows=None)
