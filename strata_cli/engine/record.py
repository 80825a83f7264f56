"""The step-statistics file, defined once: its header line, its line a window, and what every field means. No torch.

What writes the file (`engine.stats`), counts it (`engine.tally`), reads it back (`strata_cli.inspect`) and explains it
(`strata inspect --help`) takes names, order, defaults and meanings from here.
"""

from typing import Annotated, Any, get_type_hints

import msgspec

SCHEMA = 2  # 1 had no `memory` in its header and null in every `experts`
PHASES = ("plan", "draft", "verify", "sample", "commit", "host")  # keys of a line's `ms`, in the order of a step


def _doc(text: str, *, by_slot: bool = False) -> msgspec.Meta:
    return msgspec.Meta(description=text, extra={"by_slot": by_slot})


class StatsHeader(msgspec.Struct, kw_only=True):
    """The first line of a run; a resumed run writes another one. Fields in the order of the file."""

    schema: Annotated[int, _doc("version of this format; a window has no such field")]
    model: Annotated[Any, _doc("name of the checkpoint")] = None
    profile: Annotated[Any, _doc("the profile that was asked for, or null")] = None
    config: Annotated[dict[str, Any], _doc("the engine's settings in force, by name")] = {}
    version: Annotated[Any, _doc("version of strata")] = None
    memory: Annotated[dict[str, Any] | None, _doc("the memory plan: bytes by part; null where none was made")] = None


class StepRecord(msgspec.Struct, kw_only=True, gc=False):
    """One window: a line of the file, fields in its order. Arrays run in slot order over the slots that hold a request,
    those that sat out included.

    A line without `step_ms` is no window. The other defaults stand for what an older file leaves out: `t` and
    `verified` are -1 there, arrays empty, and the reader works them out.
    """

    kind: Annotated[str, _doc("chain (drafts verified), batch (no drafts), prefill (prompt rows), mixed")] = "unknown"
    t: Annotated[float, _doc("seconds from the engine's start to the end of the window")] = -1.0
    group: Annotated[int, _doc("the group of slots whose window it was, from 0")] = 0
    slots: Annotated[int, _doc("slots that hold a request")] = 0
    rows: Annotated[int, _doc("rows of the window: the sum of L and prompt")] = 0
    drafts: Annotated[int, _doc("drafts that got a row: the sum of L - 1 where L is at least 1")] = 0
    verified: Annotated[int, _doc("of them, those with a verdict: behind the end of a request there is none")] = -1
    accepted: Annotated[int, _doc("of those, the ones that were kept")] = 0
    step_ms: Annotated[float, _doc("milliseconds of the whole step")]
    slot: Annotated[list[int], _doc("index of the slot", by_slot=True)] = []
    request: Annotated[list[str], _doc("id of the request it holds", by_slot=True)] = []
    prompt: Annotated[list[int], _doc("prompt rows it read", by_slot=True)] = []
    L: Annotated[list[int], _doc("its decode rows, the golden one included; 0: it sat out or read", by_slot=True)] = []
    keeps: Annotated[list[int], _doc("tokens it committed; 1 with L = 0: the first one", by_slot=True)] = []
    ctx: Annotated[list[int], _doc("tokens in its cache after the window", by_slot=True)] = []
    reason: Annotated[list[str], _doc("why that L", by_slot=True)] = []
    ms: Annotated[dict[str, float], _doc(f"milliseconds by phase: {', '.join(PHASES)}")] = {}
    bucket: Annotated[int, _doc("rows after padding")] = 0
    experts: Annotated[int | None, _doc("distinct experts touched, the most over layers; null without experts")] = None
    prefix_hit_tokens: Annotated[int, _doc("prompt tokens of newly admitted requests found in the prefix cache")] = 0
    chain_off: Annotated[str | None, _doc("why drafts are off for good, or null")] = None
    downgrades: Annotated[list[str], _doc("what was asked for and is off")] = []
    drafted_by: Annotated[list[int], _doc("its drafts with a verdict; they add up to verified", by_slot=True)] = []
    accepted_by: Annotated[list[int], _doc("its accepted drafts; they add up to accepted", by_slot=True)] = []
    prefix_hits: Annotated[int, _doc("newly admitted requests that found a part of their prompt")] = 0
    prefix_misses: Annotated[int, _doc("newly admitted requests that found nothing")] = 0


def _meta(struct: type[msgspec.Struct]) -> dict[str, msgspec.Meta]:
    hints = get_type_hints(struct, include_extras=True)
    return {name: hints[name].__metadata__[0] for name in struct.__struct_fields__}


BY_SLOT = tuple(name for name, meta in _meta(StepRecord).items() if (meta.extra or {})["by_slot"])


def describe(struct: type[msgspec.Struct]) -> dict[str, str]:
    """Field -> what it means, in the order of the file; for StatsHeader or StepRecord."""
    by_slot = "by slot: "
    return {
        name: f"{by_slot if (meta.extra or {})['by_slot'] else ''}{meta.description}"
        for name, meta in _meta(struct).items()
    }
