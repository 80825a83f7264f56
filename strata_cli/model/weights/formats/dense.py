"""Weights stored as plain numbers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from strata_cli.errors import UsageError
from strata_cli.model.weights import Stored

LABELS = {"BF16": "bf16", "F16": "f16", "F32": "f32"}


@dataclass(frozen=True, slots=True)
class Dense:
    """One tensor of the weight's own shape."""

    REQUIRED: ClassVar[tuple[str, ...]] = ("",)
    OPTIONAL: ClassVar[tuple[str, ...]] = ()

    label: str

    @classmethod
    def from_headers(cls, parts: Mapping[str, Stored], shape: tuple[int, ...]) -> Self:
        stored = parts[""]
        if stored.dtype not in LABELS:
            raise UsageError(f"{stored.name}: {stored.dtype} is not supported", f"supported: {', '.join(LABELS)}")
        if stored.shape != shape:
            raise UsageError(f"{stored.name}: expected shape {list(shape)}, found {list(stored.shape)}")
        return cls(LABELS[stored.dtype])

    def decode(self, parts: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
        return parts[""].to(dtype)
