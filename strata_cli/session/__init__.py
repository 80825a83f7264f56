"""How a command gets a model and runs requests through it. No torch until weights are loaded.

`open_checkpoint` reads what needs no torch, so that all input can be checked first; `load_session` adds the engine;
`drive` is the loop around it.
"""

from strata_cli.session.checkpoint import (
    Checkpoint,
    Messages,
    Prompt,
    open_checkpoint,
    read_checkpoint,
    read_defaults,
)
from strata_cli.session.drive import AnyEngine, Later, Observer, Orders, drive
from strata_cli.session.open import Device, LoadedModel, Session, load_model, load_session

__all__ = [
    "AnyEngine",
    "Checkpoint",
    "Device",
    "Later",
    "LoadedModel",
    "Messages",
    "Observer",
    "Orders",
    "Prompt",
    "Session",
    "drive",
    "load_model",
    "load_session",
    "open_checkpoint",
    "read_checkpoint",
    "read_defaults",
]
