"""How many rows each slot gets in a window: what drafts are worth, what windows cost, the choice. No torch."""

from strata_cli.engine.planning.planner import Choice, Made, Outcome, Planner, SlotView
from strata_cli.engine.planning.rows import plan_rows
from strata_cli.engine.planning.steptime import WindowCost
from strata_cli.engine.planning.tuning import Tuning

__all__ = ["Choice", "Made", "Outcome", "Planner", "SlotView", "Tuning", "WindowCost", "plan_rows"]
