"""Plans windows and runs them: drafts, the forward, its judgement. One that fails for memory is undone and done again
without drafts.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from strata_cli.config import EngineConfig
from strata_cli.engine.drafters import Chained, Drafter
from strata_cli.engine.fuse import Fuse, is_out_of_memory
from strata_cli.engine.life import Slot
from strata_cli.engine.planning import Planner, SlotView
from strata_cli.engine.runner import LaidWindow, Outcomes, Runner
from strata_cli.engine.seating import Seating
from strata_cli.engine.window import Share, WindowPlan


@dataclass(frozen=True, slots=True)
class Ran:
    """A window that was verified: how it lay, what the host read of it, what its chains came to."""

    layout: LaidWindow
    outcomes: Outcomes
    chained: Chained


class Windows:
    """timed: the context in which a phase's milliseconds are counted. drafters: by name, those there are."""

    def __init__(
        self,
        config: EngineConfig,
        runner: Runner,
        planner: Planner,
        drafters: dict[str, Drafter],
        seating: Seating,
        fuse: Fuse,
        timed: Callable[[str], AbstractContextManager[None]],
    ):
        self.config, self.runner, self.planner, self.drafters = config, runner, planner, drafters
        self.seating, self.fuse, self.timed = seating, fuse, timed

    def drafting(self) -> Mapping[str, Drafter]:
        """The drafters that are still on."""
        return self.drafters if self.fuse.why is None else {}

    def plan(self) -> WindowPlan:
        """Who reads how much of its prompt and who gets how many decode rows, as far as pages reach."""
        scheduler = self.seating.scheduler
        with self.timed("plan"):
            turn = scheduler.next_group([s.index for s in self.seating.taken()])
            seated = {i: s for i in turn if (s := self.seating.seats[i]) is not None}
            reads = scheduler.prompt_rows(lambda index: index in seated)
            waiting = {r.slot for r in scheduler.reading}
            decoding = [s for s in seated.values() if s.index not in waiting]
            shares = {i: Share(slot, read=reads.get(i, 0)) for i, slot in seated.items()}
            if scheduler.excludes_decoding(list(reads.values())):
                shares |= {s.index: Share(s, reason="sitout") for s in decoding}
            else:
                shares |= self._choose(decoding)
            reserved = self.seating.reserve(shares)
            asks = self.planner.asks and any(s.depth for s in reserved)
            plan = WindowPlan(scheduler.group, reserved, asks)
            for share in plan.shares:
                if share.slot in decoding:
                    share.slot.missed = 0 if share.L else share.slot.missed + 1
            return plan

    def _choose(self, decoding: Sequence[Slot]) -> dict[int, Share]:
        """The planner's choice for the slots that decode."""
        choices = zip(decoding, self.planner.choose([self._view(s) for s in decoding])) if decoding else ()
        return {
            s.index: Share(s, 0, c.L, c.reason, c.depth, c.stop, self._drafter(s) if c.depth else None)
            for s, c in choices
        }

    def _drafter(self, slot: Slot) -> str | None:
        """The drafter of a slot, by name; None when it drafts no more."""
        name = slot.life.request.params.drafter or self.config.drafter
        return name if name in self.drafters and self.fuse.why is None else None

    def _view(self, slot: Slot) -> SlotView:
        """What the planner may know of a slot."""
        life = slot.life
        spec = self.config.spec if life.request.params.spec is None else life.request.params.spec
        limit, why = min(spec + 1, life.left), "user" if life.left > spec else "fits"
        if self._drafter(slot) is None:
            limit, why = 1, "nodraft" if self.fuse.why is None else "fuse"
        return SlotView(slot.index, life.request.id, slot.length, limit, why, slot.missed)

    def run(self, plan: WindowPlan) -> Ran:
        """Draft, lay, verify."""
        while True:
            try:
                with self.timed("draft"):
                    layout, chained = self._draft(plan)
                with self.timed("verify"):
                    x = self.runner.forward(layout)
                with self.timed("sample"):
                    return Ran(layout, self.runner.judge(layout, x), chained)
            except (RuntimeError, MemoryError) as error:
                plan = self._undo(plan, error)

    def _draft(self, plan: WindowPlan) -> tuple[LaidWindow, Chained]:
        """One batched chain per drafter for all slots that draft, and the window as it is verified. Everything is laid
        first; how many rows each slot gets is settled before the chains run, or after them where the plan asks.
        """
        drafters, asks = self.drafting(), plan.asks
        proposals = [d.lay(*plan.by_drafter(name, self._drafter)) for name, d in drafters.items()]
        tokens = {slot: t for p in proposals for slot, t in p.tokens.items()}
        made = {slot: m for p in proposals for slot, m in p.made.items()}
        ran: list[Chained] = []
        if asks:
            self.runner.buffers.upload()
            ran = [d.run(asks) for d in drafters.values()]
            made |= {slot: m for chained in ran for slot, m in chained.made.items()}
        if made:
            plan = plan.settled(self.planner.settle(made))
        layout = self.runner.lay(plan, tokens)
        reading = [(s, start) for s, start in zip(plan.ordered, layout.starts) if s.read]
        for d in drafters.values():
            d.lay_prompts(reading)
        self.runner.buffers.upload()
        if not asks:
            ran = [d.run(asks) for d in drafters.values()]
        return layout, Chained(made, max((c.steps for c in ran), default=0), sum(c.drafts for c in ran))

    def _undo(self, plan: WindowPlan, error: Exception) -> WindowPlan:
        """Blow the fuse; the plan of the same window without drafts. Prompts that were being read start over.

        The recurrent state of decode rows is repeatable and keys and values are overwritten, so nothing else is to be
        undone.
        """
        if not is_out_of_memory(error):
            raise error
        if not plan.drafting or self.fuse.why is not None:
            raise self.fuse.no_memory("in a window without drafts", error) from error
        self.fuse.blow(error)
        for share in plan.shares:
            if share.read:
                self.seating.undo(share)
        return plan.undrafted()

    def read_prompts(self) -> None:
        """Drafters see the prompt rows that were read; where memory runs out in it, the fuse blows."""
        try:
            for drafter in self.drafting().values():
                drafter.read_prompts()
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            self.fuse.blow(error)
