"""Runs planned windows: drafts, the forward, its judgement. One that fails for memory is undone and done again without
drafts.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

from strata_cli.engine.drafters import Chained, Drafter
from strata_cli.engine.fuse import Fuse, is_out_of_memory
from strata_cli.engine.life import Slot
from strata_cli.engine.planning import Planner
from strata_cli.engine.runner import Layout, Outcomes, Runner
from strata_cli.engine.seating import Seating
from strata_cli.engine.window import WindowPlan


@dataclass(frozen=True, slots=True)
class Ran:
    """A window that was verified: how it lay, what the host read of it, what its chains came to."""

    layout: Layout
    outcomes: Outcomes
    chained: Chained


class Windows:
    """timed: the context in which a phase's milliseconds are counted. drafters: by name, those there are."""

    def __init__(
        self,
        runner: Runner,
        planner: Planner,
        drafters: dict[str, Drafter],
        seating: Seating,
        fuse: Fuse,
        timed: Callable[[str], AbstractContextManager[None]],
    ):
        self.runner, self.planner, self.drafters = runner, planner, drafters
        self.seating, self.fuse, self.timed = seating, fuse, timed

    def drafting(self) -> Mapping[str, Drafter]:
        """The drafters that are still on."""
        return self.drafters if self.fuse.why is None else {}

    def run(self, plan: WindowPlan, drafter: Callable[[Slot], str | None]) -> Ran:
        """Draft, lay, verify. drafter: the one that a slot may use, by name."""
        while True:
            try:
                with self.timed("draft"):
                    layout, chained = self._draft(plan, drafter)
                with self.timed("verify"):
                    x = self.runner.forward(layout)
                with self.timed("sample"):
                    return Ran(layout, self.runner.judge(layout, x), chained)
            except (RuntimeError, MemoryError) as error:
                plan = self._undo(plan, error)

    def _draft(self, plan: WindowPlan, drafter: Callable[[Slot], str | None]) -> tuple[Layout, Chained]:
        """One batched chain per drafter for all slots that draft, and the window as it is verified. Everything is laid
        first; how many rows each slot gets is settled before the chains run, or after them where the plan asks.
        """
        drafters, asks = self.drafting(), plan.asks
        proposals = [d.lay(*plan.by_drafter(name, drafter)) for name, d in drafters.items()]
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
