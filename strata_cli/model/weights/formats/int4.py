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

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from strata_cli.errors import StrataError, UsageError
from strata_cli.model.families import Shape
from strata_cli.model.weights.stored import Stored, StoredWeight

if TYPE_CHECKING:  # headers are read without torch
    import torch
    from torch import Tensor

BITS = (4, 8)
FORMATS = ("int4", "int8")
REQUIRED = ("_packed", "_scale", "_shape")
OPTIONAL = ("_zero_point", "_g_idx")
ROLES = {"_packed": "packed", "_scale": "scale", "_zero_point": "zero", "_g_idx": "g_idx"}
USUAL_GROUPS = (16, 32, 64, 128)  # a row as wide as one of them is a group, no channel
FLOATS = ("BF16", "F16", "F32")


def from_headers(parts: Mapping[str, Stored], shape: Shape) -> StoredWeight:
    """See `formats.Layout`; bits and group size follow from the shapes of the parts."""
    packed, scale = parts["_packed"], parts["_scale"]

    def need(part: str, dtypes: tuple[str, ...], *allowed: Shape) -> None:
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
    spread = "per channel" if groups == 1 and k not in USUAL_GROUPS else f"g{k // groups}"
    return StoredWeight(
        packed.name.removesuffix("_packed"),
        f"int{bits}",
        f"int{bits} {spread} (compressed-tensors)",
        shape,
        {role: parts[part] for part, role in ROLES.items() if part in parts},
        {"shape": parts["_shape"]},
    )


def check(weight: StoredWeight, read: Callable[[Stored], Tensor]) -> None:
    """See `formats.Layout`."""
    found = read(weight.facts["shape"]).tolist()
    if tuple(found) != weight.shape:
        raise UsageError(f"{weight.name}_shape: expected {list(weight.shape)}, found {found}")
    if "g_idx" in weight.parts:
        groups, group_of = weight.parts["scale"].shape[1], read(weight.parts["g_idx"])
        if not bool(((group_of >= 0) & (group_of < groups)).all()):
            raise UsageError(f"{weight.name}_g_idx: names groups outside 0..{groups - 1}")


def filled(weight: StoredWeight, role: str) -> Tensor:
    """See `formats.Layout`: zero points of zero, columns in their own order."""
    import torch

    (n, k), groups, bits = weight.shape, weight.parts["scale"].shape[1], int(weight.format.removeprefix("int"))
    if role == "zero":
        return pack(torch.zeros(groups, n, dtype=torch.int8), bits).t().contiguous()
    assert role == "g_idx", role
    return torch.arange(k, dtype=torch.int32) // (k // groups)


def pack(codes: Tensor, num_bits: int) -> Tensor:
    """Signed codes int8 [..., n] -> int32 [..., ceil(n * num_bits / 32)]; the bits behind the last code are zero."""
    import torch
    from torch.nn.functional import pad

    unsigned = (codes.to(torch.int16) + (1 << num_bits - 1)).to(torch.uint8)
    unsigned = pad(unsigned, (0, -codes.shape[-1] % (32 // num_bits)))
    if num_bits == 4:
        low, high = unsigned.unflatten(-1, (-1, 2)).unbind(-1)
        unsigned = low | high << 4
    # flat: a dimension of one keeps any stride through contiguous(), and view() to another width refuses it
    return unsigned.flatten().view(torch.int32).view(*codes.shape[:-1], -1)


def quantize(
    weight: Tensor,
    num_bits: int,
    group_size: int | None,
    symmetric: bool = True,
    scale_dtype: torch.dtype | None = None,
) -> dict[str, Tensor]:
    """Round a weight [N, K] to the nearest codes, scales from the extremes of each group.

    Args:
        weight: float [N, K].
        num_bits: 4 or 8.
        group_size: columns that share a scale, a divisor of K; None: the whole row.
        symmetric: no zero point; codes spread evenly around 0.
        scale_dtype: of the stored scales, None: bfloat16; codes are chosen for the scales as stored.

    Returns:
        The tensors to store, by suffix: `weight_packed`, `weight_scale`, `weight_shape` (and `weight_zero_point`).
    """
    import torch

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
    scale = scale.to(scale_dtype or torch.bfloat16)
    scale = scale.masked_fill(scale == 0, torch.finfo(scale.dtype).eps)  # a group of zeros
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
