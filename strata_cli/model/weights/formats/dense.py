"""Weights stored as plain numbers: one tensor of the weight's own shape."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from strata_cli.errors import UsageError
from strata_cli.model.families import Shape
from strata_cli.model.weights.stored import Stored, StoredWeight

if TYPE_CHECKING:
    from torch import Tensor

NAMES = {"BF16": "bf16", "F16": "f16", "F32": "f32"}
FORMATS = tuple(NAMES.values())
REQUIRED = ("",)
OPTIONAL = ()


def from_headers(parts: Mapping[str, Stored], shape: Shape) -> StoredWeight:
    """See `formats.Layout`."""
    stored = parts[""]
    if stored.dtype not in NAMES:
        raise UsageError(f"{stored.name}: {stored.dtype} is not supported", f"supported: {', '.join(NAMES)}")
    if stored.shape != shape:
        raise UsageError(f"{stored.name}: expected shape {list(shape)}, found {list(stored.shape)}")
    name = NAMES[stored.dtype]
    return StoredWeight(stored.name, name, name, shape, {"weight": stored})


def check(weight: StoredWeight, read: Callable[[Stored], Tensor]) -> None:
    """Any number may stand in any place."""


def filled(weight: StoredWeight, role: str) -> Tensor:
    """There are no optional parts."""
    raise KeyError(role)
