"""Integers of 4 or 8 bits packed into 32-bit words, as compressed-tensors' `pack-quantized` has them.

A weight [N, K] is stored as

    weight_packed      int32 [N, K * bits / 32]   codes along K, lowest bits first, each stored as code + 2^(bits-1)
    weight_scale       float [N, K / g]           g columns share a scale; one group is "per channel"
    weight_shape       int64 [2]                  N, K
    weight_zero_point  int32 [N * bits / 32, K/g] packed along N, the same offset; only if asymmetric
    weight_g_idx       int32 [K]                  group of each column; only if columns were reordered

and its value is scale * (code - zero_point), codes from -2^(bits-1) to 2^(bits-1) - 1.
Source: github.com/vllm-project/compressed-tensors, `compressors/pack_quantized` and `quantization/utils/helpers`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from strata_cli.errors import StrataError, UsageError
from strata_cli.model.weights import Stored

BITS = (4, 8)
USUAL_GROUPS = (16, 32, 64, 128)  # a row as wide as one of them is a group, no channel
FLOATS = ("BF16", "F16", "F32")


def pack(codes: Tensor, num_bits: int) -> Tensor:
    """Signed codes int8 [..., n] -> int32 [..., ceil(n * num_bits / 32)]; the bits behind the last code are zero."""
    unsigned = (codes.to(torch.int16) + (1 << num_bits - 1)).to(torch.uint8)
    unsigned = F.pad(unsigned, (0, -codes.shape[-1] % (32 // num_bits)))
    if num_bits == 4:
        low, high = unsigned.unflatten(-1, (-1, 2)).unbind(-1)
        unsigned = low | high << 4
    # flat: a dimension of one keeps any stride through contiguous(), and view() to another width refuses it
    return unsigned.flatten().view(torch.int32).view(*codes.shape[:-1], -1)


def unpack(packed: Tensor, num_bits: int, n: int) -> Tensor:
    """int32 [..., words] -> the first n signed codes of each row, int8 [..., n]."""
    unsigned = packed.flatten().view(torch.uint8).view(*packed.shape[:-1], -1)
    if num_bits == 4:
        unsigned = torch.stack((unsigned & 15, unsigned >> 4), -1).flatten(-2)
    return (unsigned[..., :n].to(torch.int16) - (1 << num_bits - 1)).to(torch.int8)


def quantize(
    weight: Tensor,
    num_bits: int,
    group_size: int | None,
    symmetric: bool = True,
    scale_dtype: torch.dtype = torch.bfloat16,
) -> dict[str, Tensor]:
    """Round a weight [N, K] to the nearest codes, scales from the extremes of each group.

    Args:
        weight: float [N, K].
        num_bits: 4 or 8.
        group_size: columns that share a scale, a divisor of K; None: the whole row.
        symmetric: no zero point; codes spread evenly around 0.
        scale_dtype: of the stored scales; codes are chosen for the scales as stored.

    Returns:
        The tensors to store, by suffix: `weight_packed`, `weight_scale`, `weight_shape` (and `weight_zero_point`).
    """
    n, k = weight.shape
    group = group_size or k
    if num_bits not in BITS:
        raise StrataError(f"cannot quantize to {num_bits} bits", f"supported: {BITS}")
    if k % group:
        raise StrataError(f"cannot quantize {k} columns in groups of {group}", "the group must divide the columns")
    lowest, highest = -(1 << num_bits - 1), (1 << num_bits - 1) - 1
    runs = weight.float().unflatten(1, (k // group, group))
    low, high = runs.amin(-1).clamp(max=0), runs.amax(-1).clamp(min=0)
    span = highest - lowest
    scale = torch.maximum(-low, high) / (span / 2) if symmetric else (high - low) / span
    scale = scale.to(scale_dtype)
    scale = scale.masked_fill(scale == 0, torch.finfo(scale_dtype).eps)  # a group of zeros
    zero = torch.zeros_like(low) if symmetric else (lowest - low / scale.float()).round().clamp(lowest, highest)
    codes = (runs / scale.float().unsqueeze(-1) + zero.unsqueeze(-1)).round().clamp(lowest, highest)
    stored = {
        "weight_packed": pack(codes.flatten(1).to(torch.int8), num_bits),
        "weight_scale": scale,
        "weight_shape": torch.tensor([n, k]),
    }
    if not symmetric:
        stored["weight_zero_point"] = pack(zero.to(torch.int8).t(), num_bits).t().contiguous()
    return stored


def dequantize(
    packed: Tensor,
    scale: Tensor,
    shape: tuple[int, int],
    num_bits: int,
    zero_point: Tensor | None = None,
    group_of: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """The value of a stored weight, [N, K] of `dtype`; exact in float32, rounded once.

    Args:
        packed, scale, zero_point: as the module describes them.
        shape: N, K.
        num_bits: 4 or 8.
        group_of: int [K], the group of each column; None: K / g neighbours each.
    """
    n, k = shape
    codes = unpack(packed, num_bits, k).float()
    scale = scale.float()
    zero = unpack(zero_point.t(), num_bits, n).t().float() if zero_point is not None else None
    if group_of is not None:
        group_of = group_of.long()
        return ((codes - zero[:, group_of] if zero is not None else codes) * scale[:, group_of]).to(dtype)
    runs = codes.unflatten(1, (scale.shape[1], -1))
    if zero is not None:
        runs = runs - zero.unsqueeze(-1)
    return (runs * scale.unsqueeze(-1)).flatten(1).to(dtype)


@dataclass(frozen=True, slots=True)
class PackedInt:
    """The tensors of one packed weight [N, K]; bits and group size follow from their shapes."""

    REQUIRED: ClassVar[tuple[str, ...]] = ("_packed", "_scale", "_shape")
    OPTIONAL: ClassVar[tuple[str, ...]] = ("_zero_point", "_g_idx")

    name: str
    shape: tuple[int, int]
    bits: int
    groups: int

    @property
    def label(self) -> str:
        group = self.shape[1] // self.groups
        spread = "per channel" if self.groups == 1 and group not in USUAL_GROUPS else f"g{group}"
        return f"int{self.bits} {spread} (compressed-tensors)"

    @classmethod
    def from_headers(cls, parts: Mapping[str, Stored], shape: tuple[int, ...]) -> Self:
        packed, scale = parts["_packed"], parts["_scale"]

        def need(part: str, dtypes: tuple[str, ...], *allowed: tuple[int, ...]) -> None:
            stored = parts.get(part)
            if stored is None:
                return
            if stored.dtype not in dtypes:
                raise UsageError(f"{stored.name}: {stored.dtype} is not supported", f"supported: {', '.join(dtypes)}")
            if stored.shape not in allowed:
                shapes = " or ".join(str(list(shape)) for shape in allowed)
                raise UsageError(f"{stored.name}: expected shape {shapes}, found {list(stored.shape)}")

        if len(shape) != 2:
            raise UsageError(f"{packed.name}: only matrices are packed, this weight has shape {list(shape)}")
        n, k = shape
        need("_packed", ("I32",), *((n, -(-k * bits // 32)) for bits in BITS))
        bits = next(bits for bits in BITS if packed.shape == (n, -(-k * bits // 32)))
        groups = scale.shape[1] if len(scale.shape) == 2 and 0 < scale.shape[1] <= k and k % scale.shape[1] == 0 else 1
        need("_scale", FLOATS, (n, groups))
        need("_shape", ("I64", "I32"), (2,))
        need("_zero_point", ("I32",), (-(-n * bits // 32), groups))
        need("_g_idx", ("I32", "I64"), (k,))
        return cls(packed.name.removesuffix("_packed"), (n, k), bits, groups)

    def decode(self, parts: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
        if tuple(parts["_shape"].tolist()) != self.shape:
            found = parts["_shape"].tolist()
            raise UsageError(f"{self.name}_shape: expected {list(self.shape)}, found {found}")
        group_of = parts.get("_g_idx")
        if group_of is not None and not bool(((group_of >= 0) & (group_of < self.groups)).all()):
            raise UsageError(f"{self.name}_g_idx: names groups outside 0..{self.groups - 1}")
        zero = parts.get("_zero_point")
        return dequantize(parts["_packed"], parts["_scale"], self.shape, self.bits, zero, group_of, dtype)
