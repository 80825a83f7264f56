"""Packing and rounding of 4- and 8-bit integers against compressed-tensors' own functions."""

import pytest
import torch
from compressed_tensors.compressors.pack_quantized import pack_to_int32, unpack_from_int32
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle.forward import dequantize as ct_dequantize
from compressed_tensors.quantization.lifecycle.forward import quantize as ct_quantize
from compressed_tensors.quantization.utils.helpers import calculate_qparams
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from strata_cli.errors import StrataError
from strata_cli.model.weights.formats.int4 import pack, quantize
from strata_kernels.formats import FORMATS

bits = st.sampled_from((4, 8))


def dequantize(
    packed: Tensor,
    scale: Tensor,
    shape: tuple[int, int],
    num_bits: int,
    zero: Tensor | None,
    g_idx: Tensor | None = None,
) -> Tensor:
    """The value of stored parts, by the kernels' format of that name."""
    parts = {"packed": packed, "scale": scale, "zero": zero, "g_idx": g_idx}
    present = {role: part for role, part in parts.items() if part is not None}
    return FORMATS[f"int{num_bits}"].unpack(present, shape, 0, shape[0])


def unpack(packed: Tensor, num_bits: int, columns: int) -> Tensor:
    """The codes of packed words: their value where every scale is one."""
    ones = torch.ones(packed.shape[0], 1)
    return dequantize(packed, ones, (packed.shape[0], columns), num_bits, None).to(torch.int8)


def codes(seed: int, num_bits: int, *shape: int) -> Tensor:
    half = 1 << num_bits - 1
    return torch.randint(-half, half, shape, dtype=torch.int8, generator=torch.Generator().manual_seed(seed))


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 999), num_bits=bits, rows=st.integers(1, 9), columns=st.integers(1, 70))
def test_pack_and_unpack_are_the_librarys(seed: int, num_bits: int, rows: int, columns: int) -> None:
    values = codes(seed, num_bits, rows, columns)
    packed = pack(values, num_bits)
    assert torch.equal(packed, pack_to_int32(values, num_bits))
    assert torch.equal(unpack(packed, num_bits, columns), values)
    assert torch.equal(unpack_from_int32(packed, num_bits, values.shape), values)
    along_rows = pack(values.t(), num_bits).t()
    assert torch.equal(along_rows, pack_to_int32(values, num_bits, packed_dim=0))


def test_every_byte_survives() -> None:
    for num_bits in (4, 8):
        half = 1 << num_bits - 1
        values = torch.arange(-half, half, dtype=torch.int8)
        assert torch.equal(unpack(pack(values[None], num_bits), num_bits, 2 * half), values[None])


def library(
    weight: Tensor, num_bits: int, group: int | None, symmetric: bool, scale_dtype: torch.dtype
) -> dict[str, Tensor]:
    """What compressed-tensors makes of a weight: its codes, scales and zero points, and the value they stand for."""
    strategy = "group" if group else "channel"
    args = QuantizationArgs(num_bits=num_bits, symmetric=symmetric, strategy=strategy, group_size=group)
    runs = weight.unflatten(1, (-1, group or weight.shape[1]))
    scale, librarys_zero = calculate_qparams(runs.amin(-1), runs.amax(-1), args)
    scale = scale.to(scale_dtype).float()
    # the zero point belongs to the scale as it is stored
    low = runs.amin(-1).clamp(max=0)
    lowest = -(1 << num_bits - 1)
    zero = torch.zeros_like(low) if symmetric else (lowest - low / scale).round().clamp(lowest, -lowest - 1)
    assert scale_dtype != torch.float32 or torch.equal(zero, librarys_zero.float())
    whole = ct_quantize(weight, scale, zero, args, dtype=torch.int8)
    return {"codes": whole, "scale": scale, "zero": zero, "value": ct_dequantize(whole, scale, zero, args)}


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 999),
    num_bits=bits,
    rows=st.integers(1, 11),
    groups=st.integers(1, 3),
    group=st.sampled_from((None, 2, 5, 32, 128)),
    symmetric=st.booleans(),
    scale_dtype=st.sampled_from((torch.float32, torch.bfloat16, torch.float16)),
)
def test_quantize_and_dequantize_are_the_librarys(
    seed: int, num_bits: int, rows: int, groups: int, group: int | None, symmetric: bool, scale_dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(rows, groups * (group or 7), generator=generator) + torch.rand(rows, 1, generator=generator)
    expected = library(weight, num_bits, group, symmetric, scale_dtype)
    stored = quantize(weight, num_bits, group, symmetric, scale_dtype)
    assert stored["weight_scale"].dtype == scale_dtype
    assert torch.equal(stored["weight_scale"].float(), expected["scale"])
    assert torch.equal(unpack(stored["weight_packed"], num_bits, weight.shape[1]), expected["codes"])
    assert stored["weight_shape"].tolist() == list(weight.shape)
    assert ("weight_zero_point" in stored) != symmetric
    value = dequantize(
        stored["weight_packed"],
        stored["weight_scale"],
        (rows, weight.shape[1]),
        num_bits,
        stored.get("weight_zero_point"),
    )
    assert torch.equal(value, expected["value"])


@pytest.mark.parametrize("num_bits, symmetric", [(4, True), (4, False), (8, True), (8, False)])
def test_values_move_by_half_a_step_at_most(num_bits: int, symmetric: bool) -> None:
    weight = torch.randn(6, 96, generator=torch.Generator().manual_seed(1))
    stored = quantize(weight, num_bits, 32, symmetric, torch.float32)
    value = dequantize(
        stored["weight_packed"], stored["weight_scale"], (6, 96), num_bits, stored.get("weight_zero_point")
    )
    step = stored["weight_scale"].repeat_interleave(32, 1)
    # with a zero point the largest value may fall between the last code and the one behind it
    assert bool(((value - weight).abs() <= step * (0.5 if symmetric else 1.0) * 1.001).all())


def test_a_group_of_zeros_stays_zero() -> None:
    weight = torch.zeros(2, 64)
    weight[0, 0] = 1
    for symmetric in (True, False):
        stored = quantize(weight, 4, 32, symmetric)
        value = dequantize(stored["weight_packed"], stored["weight_scale"], (2, 64), 4, stored.get("weight_zero_point"))
        assert value[:, 32:].abs().max() == 0 and value[1].abs().max() == 0


def test_reordered_columns() -> None:
    """Columns quantized in another order come back in their own, by the group that each names."""
    weight = torch.randn(5, 96, generator=torch.Generator().manual_seed(2))
    order = torch.randperm(96, generator=torch.Generator().manual_seed(3))
    for symmetric in (True, False):
        sorted_ = quantize(weight[:, order], 4, 32, symmetric, torch.float32)
        zero = sorted_.get("weight_zero_point")
        expected = torch.empty_like(weight)
        expected[:, order] = dequantize(sorted_["weight_packed"], sorted_["weight_scale"], (5, 96), 4, zero)
        own_order = torch.empty(5, 96, dtype=torch.int8)
        own_order[:, order] = unpack(sorted_["weight_packed"], 4, 96)
        group_of = torch.empty(96, dtype=torch.int32)
        group_of[order] = torch.arange(96, dtype=torch.int32) // 32
        value = dequantize(pack(own_order, 4), sorted_["weight_scale"], (5, 96), 4, zero, group_of)
        assert torch.equal(value, expected)


def test_refusals() -> None:
    with pytest.raises(StrataError, match="cannot quantize to 3 bits"):
        quantize(torch.zeros(4, 32), 3, 32)
    with pytest.raises(StrataError, match="cannot quantize 48 columns in groups of 32"):
        quantize(torch.zeros(4, 48), 4, 32)
