"""Plain floats: one part, `weight` [out, in]."""

from collections.abc import Mapping

from torch import Tensor

from strata_kernels.weight import Weight


class Dense:
    """`f32`, `bf16` or `f16`."""

    def __init__(self, name: str):
        self.name = name

    def unpack(self, parts: Mapping[str, Tensor], shape: tuple[int, int], start: int, stop: int) -> Tensor:
        return parts["weight"][start:stop].float()

    def gather(self, parts: Mapping[str, Tensor], shape: tuple[int, int], ids: Tensor) -> Tensor:
        return parts["weight"][ids].float()

    def label(self, weight: Weight) -> str:
        return self.name
