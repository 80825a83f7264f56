"""A window as the step statistics write it. No torch."""

from collections.abc import Mapping

from strata_cli.engine.record import PHASES, StepRecord
from strata_cli.engine.window import WindowVerdict


def step_record(done: WindowVerdict, ms: Mapping[str, float], t: float, step_ms: float) -> StepRecord:
    """The record of a committed window. ms: of its phases; t: seconds since the engine began."""
    shares, verdicts = done.plan.shares, done.verdicts
    phases = {name: ms[name] for name in PHASES if name != "host"}
    phases["host"] = max(0.0, step_ms - sum(phases.values()))
    judged, held = [v.judged for v in verdicts], [v.held for v in verdicts]
    return StepRecord(
        kind=done.plan.kind,
        t=t,
        group=done.plan.group,
        slots=len(shares),
        rows=sum(s.rows for s in shares),
        drafts=sum(s.drafts for s in shares),
        verified=sum(judged),
        accepted=sum(held),
        step_ms=step_ms,
        slot=[s.slot.index for s in shares],
        request=[s.slot.life.request.id for s in shares],
        prompt=[s.read for s in shares],
        L=[s.L for s in shares],
        keeps=[len(v.tokens) for v in verdicts],
        ctx=[s.slot.length for s in shares],
        reason=[s.reason for s in shares],
        ms=phases,
        bucket=done.bucket,
        experts=done.experts,
        drafted_by=judged,
        accepted_by=held,
    )
