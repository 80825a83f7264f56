"""How the parts of a packed matrix become numbers. A format is one class here and one line in `FORMATS`.

A format names its parts; `unpack` gives a tile of a matrix's rows and `gather` any of its rows, both float32 and exact,
so no dense copy of a packed matrix is ever needed.
"""

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor

from strata_kernels.formats.dense import Dense
from strata_kernels.formats.integers import PackedIntegers
from strata_kernels.weight import Weight

Parts = Mapping[str, Tensor]


class Format(Protocol):
    """One way to store a matrix [out, in]."""

    def unpack(self, parts: Parts, shape: tuple[int, int], start: int, stop: int) -> Tensor:
        """Rows start..stop of the matrix, float32 [stop - start, in], on the parts' device."""
        ...

    def gather(self, parts: Parts, shape: tuple[int, int], ids: Tensor) -> Tensor:
        """The rows that ids (int64 [n]) name, float32 [n, in]."""
        ...

    def label(self, weight: Weight) -> str:
        """What a person calls it: `bf16`, `int4 g32`."""
        ...


FORMATS: dict[str, Format] = {
    "f32": Dense("f32"),
    "bf16": Dense("bf16"),
    "f16": Dense("f16"),
    "int4": PackedIntegers(4),
    "int8": PackedIntegers(8),
}


def label(weight: Weight) -> str:
    """What a person calls the weight's format."""
    return FORMATS[weight.format].label(weight)


def unpack(weight: Weight, start: int, stop: int) -> Tensor:
    """Rows start..stop of a weight, float32 [stop - start, in]."""
    return FORMATS[weight.format].unpack(weight.parts, weight.shape, start, stop)


__all__ = ["FORMATS", "Format", "Parts", "label", "unpack"]
