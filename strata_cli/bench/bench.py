"""The benchmark: every kind of prompts through every arm, in alternating order."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strata_cli.batch.records import PromptRecord
from strata_cli.bench.arms import Arm
from strata_cli.bench.cases import Case, make_cases
from strata_cli.bench.figures import ArmFigures, RunFigures, order, ratios, same_tokens
from strata_cli.bench.measure import figures, run_elsewhere, run_here
from strata_cli.bench.trace import Arrival, fit, trace_cases
from strata_cli.errors import UsageError
from strata_cli.session import Checkpoint, LoadedModel, load_model, open_checkpoint
from strata_cli.settings import Settings

if TYPE_CHECKING:
    from strata_cli.engine.engine import Engine


@dataclass(frozen=True, slots=True)
class Kind:
    """Prompts that are measured and reported together: a file."""

    name: str
    records: Sequence[PromptRecord]


@dataclass(frozen=True, slots=True)
class Comparison:
    """What to measure. `replay`: acceptance of replayed drafts, None: the real ones."""

    arms: Sequence[Arm]
    kinds: Sequence[Kind]
    rounds: int
    max_tokens: int
    trace: Sequence[Arrival] | None = None
    replay: float | None = None


@dataclass(slots=True)
class _ReadyArm:
    """An arm, ready to run: its cases, and its engine (None: another installation)."""

    arm: Arm
    cases: list[Case]
    arrivals: list[float] | None
    checkpoint: Checkpoint
    engine: "Engine | None"

    def run(self) -> RunFigures:
        if self.engine is None:
            return run_elsewhere(self.arm, str(self.checkpoint.path), self.cases)
        found = run_here(self.engine, self.checkpoint, self.cases, self.arrivals, self.arm.static)
        return figures(found, self.engine.downgrades)


class Bench:
    """A plan with its models: weights are loaded once for all arms that share them."""

    def __init__(self, plan: Comparison, base: Settings, note: Callable[[str], None]):
        self.plan, self.base, self.note = plan, base, note
        self._loaded: dict[tuple[Any, ...], LoadedModel] = {}
        self._recorded: dict[tuple[Any, ...], list[list[int]]] = {}
        self.notes: list[str] = []
        self._check()

    def _check(self) -> None:
        """Read every model and all input before a weight is loaded."""
        for arm in self.plan.arms:
            if arm.report is not None:
                read_saved(arm, [k.name for k in self.plan.kinds])
            elif arm.command and (self.plan.trace is not None or self.plan.replay is not None):
                what = f"arm {arm.name!r}: another installation can neither replay a trace nor drafts"
                raise UsageError(what, "without --trace and --replay-acceptance")
            else:
                settings = arm.settings or self.base
                if self.plan.replay is not None and settings.engine.accept == "rejection":
                    what = f"arm {arm.name!r}: --replay-acceptance needs a text that is known before it is drafted"
                    raise UsageError(what, "--accept coupled")
                for kind in self.plan.kinds:
                    self._cases(arm, open_checkpoint(settings), kind)

    def run(self) -> list[dict[str, Any]]:
        """Each kind's figures, as the JSON report has them."""
        return [self._kind(kind) for kind in self.plan.kinds]

    def _kind(self, kind: Kind) -> dict[str, Any]:
        measured = [arm for arm in self.plan.arms if arm.report is None]
        seats = [self._seat(arm, kind) for arm in measured]
        for seat in seats:
            if seat.engine is not None:
                self.note(f"{kind.name}: {seat.arm.name}: warm-up")
                seat.run()
        found = [ArmFigures(arm.name, arm.flags) for arm in measured]
        for number, turn in enumerate(order(len(seats), self.plan.rounds), start=1):
            for i in turn:
                found[i].runs.append(run := seats[i].run())
                self.note(f"{kind.name}: round {number}: {seats[i].arm.name}: {run.tok_s:.1f} tok/s")
        for seat in seats:
            if seat.engine is not None:
                seat.engine.close()
        fresh = {arm.name: arm.as_json() for arm in found}
        names = [k.name for k in self.plan.kinds]
        arms = [fresh.get(arm.name) or read_saved(arm, names)[kind.name] for arm in self.plan.arms]
        return {
            "kind": kind.name,
            "requests": len(seats[0].cases),
            "arms": arms,
            "ratios": ratios(arms),
            "same_tokens": same_tokens(arms),
        }

    def _seat(self, arm: Arm, kind: Kind) -> _ReadyArm:
        settings = arm.settings or self.base
        checkpoint = open_checkpoint(settings)
        cases, arrivals = self._cases(arm, checkpoint, kind)
        if arm.command:
            self._remark(f"{arm.name}: a process of its own in each round, without a warm-up")
            return _ReadyArm(arm, cases, None, checkpoint, None)
        config = settings.engine
        key = (checkpoint.path, config.device, config.dtype, config.mtp)
        if key not in self._loaded:
            self._loaded[key] = load_model(checkpoint, config)
        engine = self._loaded[key].engine(config)
        if self.plan.replay is not None:
            self._replay(self._loaded[key], engine, checkpoint, cases)
        return _ReadyArm(arm, cases, arrivals, checkpoint, engine)

    def _cases(self, arm: Arm, checkpoint: Checkpoint, kind: Kind) -> tuple[list[Case], list[float] | None]:
        """The arm's cases of a kind, and when they come."""
        sampling = (arm.settings or self.base).sampling
        cases = make_cases(kind.records, checkpoint, sampling, self.plan.max_tokens, kind.name)
        if self.plan.trace is None:
            return cases, None
        arrivals, clipped = fit(self.plan.trace, checkpoint.context)
        if clipped:
            many = f"{clipped} of {len(arrivals)} requests of the trace"
            self._remark(f"{many} clipped to the context of {checkpoint.context} tokens")
        return trace_cases(arrivals, cases), [a.at_s for a in arrivals]

    def _replay(self, loaded: LoadedModel, engine: "Engine", checkpoint: Checkpoint, cases: Sequence[Case]) -> None:
        """Put the replay drafter in front of the engine's own, with the undrafted output recorded first."""
        from strata_cli.engine.drafters.replay import ReplayDrafter

        config, rate = engine.config, self.plan.replay
        assert rate is not None
        if config.drafter not in engine.drafters:
            return
        key = (id(loaded), config.kv_dtype, config.ctx, *((c.id, tuple(c.prompt.ids), c.params) for c in cases))
        if key not in self._recorded:
            self.note("recording the undrafted output")
            plain = loaded.engine(replace(config, spec=0, rows=None, batch_mtp=None, draft_vocab=None))
            texts = run_here(plain, checkpoint, cases, None, static=False)
            self._recorded[key] = [[*c.prompt.ids, *texts[c.id][1].token_ids] for c in cases]
        inner = engine.drafters[config.drafter]
        engine.drafters[config.drafter] = ReplayDrafter(
            inner, self._recorded[key], rate, checkpoint.vocab, config.batch
        )
        self._remark(f"drafts are replayed at an acceptance of {rate:g}; the real drafter runs for its cost alone")

    def _remark(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


def read_saved(arm: Arm, kinds: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The arm of a saved report, by kind: the one of the same name, or the only one.

    Raises UsageError: no such file, no report, no such kind or arm in it.
    """
    assert arm.report is not None
    place = f"arm {arm.name!r}: {arm.report}"
    try:
        saved: Mapping[str, Any] = json.loads(Path(arm.report).read_text(encoding="utf-8"))
        by_kind = {k["kind"]: {a["name"]: a for a in k["arms"]} for k in saved["kinds"]}
    except OSError as fault:
        raise UsageError(f"{place}: {fault.strerror}", "a file that strata bench --json wrote") from None
    except (ValueError, KeyError, TypeError):
        raise UsageError(f"{place} is no report", "a file that strata bench --json wrote") from None
    found = {}
    for kind in kinds:
        if kind not in by_kind:
            raise UsageError(f"{place} has no prompts {kind!r}", f"it has {', '.join(by_kind)}")
        arms = by_kind[kind]
        only = next(iter(arms)) if len(arms) == 1 else arm.name
        if only not in arms:
            raise UsageError(f"{place} has no arm {arm.name!r}", f"call yours one of {', '.join(arms)}")
        found[kind] = {**arms[only], "name": arm.name, "saved": str(arm.report)}
    return found
