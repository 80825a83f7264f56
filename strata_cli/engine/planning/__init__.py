"""How many rows each slot gets in a window: what drafts are worth, what windows cost, the choice. No torch."""

from .acceptance import AcceptanceTracker as AcceptanceTracker
from .planner import Choice as Choice
from .planner import Made as Made
from .planner import Outcome as Outcome
from .planner import Planner as Planner
from .planner import SlotView as SlotView
from .rows import plan_fixed as plan_fixed
from .rows import plan_rows as plan_rows
from .rows import plan_uniform as plan_uniform
from .steptime import StepTimeEstimator as StepTimeEstimator
from .steptime import WindowCost as WindowCost
from .tuning import Tuning as Tuning
