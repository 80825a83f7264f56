"""How many rows each slot gets in a window: what drafts are worth, what windows cost, the choice. No torch."""

from strata_cli.engine.planning.acceptance import AcceptanceTracker
from strata_cli.engine.planning.planner import Choice, Made, Outcome, Planner, SlotView
from strata_cli.engine.planning.rows import plan_fixed, plan_rows, plan_uniform
from strata_cli.engine.planning.steptime import StepTimeEstimator, WindowCost
from strata_cli.engine.planning.tuning import Tuning

__all__ = ["AcceptanceTracker", "Choice", "Made", "Outcome", "Planner", "SlotView", "StepTimeEstimator", "Tuning"]
__all__ += ["WindowCost", "plan_fixed", "plan_rows", "plan_uniform"]
