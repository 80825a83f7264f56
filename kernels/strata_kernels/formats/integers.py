"""Integers of 4 or 8 bits in 32-bit words, as compressed-tensors' `pack-quantized` files have them.

A matrix [N, K] in groups of g columns is stored as

    packed   int32 [N, ceil(K * bits / 32)]         codes along K, lowest bits first, each as code + 2^(bits - 1)
    scale    bf16, f16 or f32 [N, K / g]
    zero     int32 [ceil(N * bits / 32), K / g]     packed along N with the same offset; only where asymmetric
    g_idx    int32 or int64 [K]                     group of each column; only where columns were reordered

and its value is scale * (code - zero).
Source: github.com/vllm-project/compressed-tensors, `compressors/pack_quantized`.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from strata_kernels.weight import Weight

USUAL_GROUPS = (16, 32, 64, 128)  # a row as wide as one of them is a group, no channel


class PackedIntegers:
    """`int4` or `int8`."""

    def __init__(self, bits: int):
        self.bits, self.per_word, self.offset = bits, 32 // bits, 1 << bits - 1

    def unpack(self, parts: Mapping[str, Tensor], shape: tuple[int, int], start: int, stop: int) -> Tensor:
        ids = torch.arange(start, stop, device=parts["packed"].device) if "zero" in parts else None
        return self._values(parts, shape, parts["packed"][start:stop], parts["scale"][start:stop], ids)

    def gather(self, parts: Mapping[str, Tensor], shape: tuple[int, int], ids: Tensor) -> Tensor:
        return self._values(parts, shape, parts["packed"][ids], parts["scale"][ids], ids)

    def label(self, weight: Weight) -> str:
        groups = weight.parts["scale"].shape[1]
        group = weight.shape[1] // groups
        return f"int{self.bits} " + ("per channel" if groups == 1 and group not in USUAL_GROUPS else f"g{group}")

    def _values(
        self, parts: Mapping[str, Tensor], shape: tuple[int, int], packed: Tensor, scale: Tensor, ids: Tensor | None
    ) -> Tensor:
        """float32 [n, K] of n rows, whose packed words and scales these are and whose numbers are `ids`."""
        bits, mask = self.bits, (1 << self.bits) - 1
        shifts = torch.arange(0, 32, bits, dtype=torch.int32, device=packed.device)
        codes = ((packed[:, :, None] >> shifts) & mask).flatten(1)[:, : shape[1]].float()
        scale = scale.float()
        zero = float(self.offset) * torch.ones_like(scale)
        if "zero" in parts:
            assert ids is not None
            words = parts["zero"][ids // self.per_word]
            zero = ((words >> (ids % self.per_word * bits).to(torch.int32)[:, None]) & mask).float()
        if "g_idx" in parts:
            group_of = parts["g_idx"].long()
            return (codes - zero[:, group_of]) * scale[:, group_of]
        runs = codes.unflatten(1, (scale.shape[1], -1))
        return ((runs - zero[..., None]) * scale[..., None]).flatten(1)
