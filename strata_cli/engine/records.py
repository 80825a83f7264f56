"""A window as the step statistics write it. No torch."""

from collections.abc import Sequence

from strata_cli.engine.parts import Window
from strata_cli.engine.record import StepRecord

PHASES = ("plan", "draft", "verify", "sample", "commit")


def step_record(window: Window, lengths: Sequence[int], t: float, step_ms: float) -> StepRecord:
    """The record of a committed window. lengths: tokens in the cache by slot index; t: seconds since the engine
    began.
    """
    parts = window.parts
    ms = {name: window.ms[name] for name in PHASES}
    ms["host"] = max(0.0, step_ms - sum(ms.values()))
    judged, held = [p.judged for p in parts], [p.held for p in parts]
    return StepRecord(
        kind=window.kind,
        t=t,
        group=window.group,
        slots=len(parts),
        rows=sum(p.rows for p in parts),
        drafts=sum(max(p.L - 1, 0) for p in parts),
        verified=sum(judged),
        accepted=sum(held),
        step_ms=step_ms,
        slot=[p.slot.index for p in parts],
        request=[p.slot.request.id for p in parts],
        prompt=[p.read for p in parts],
        L=[p.L for p in parts],
        keeps=[len(p.kept) for p in parts],
        ctx=[lengths[p.slot.index] for p in parts],
        reason=[p.reason for p in parts],
        ms=ms,
        bucket=window.bucket,
        experts=None,
        prefix_hit_tokens=0,
        chain_off=None,
        downgrades=[],
        drafted_by=judged,
        accepted_by=held,
    )
