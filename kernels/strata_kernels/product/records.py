"""What compiled code is told of packed matrices: records of addresses, worked out once for each."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from strata_kernels.weight import ExpertBank, Stack, Weight

F32, BF16, F16, INT4, INT8 = range(5)
KINDS = {"f32": F32, "bf16": BF16, "f16": F16, "int4": INT4, "int8": INT8}
FLOATS = {torch.float32: F32, torch.bfloat16: BF16, torch.float16: F16}

# Places in a record, int64 each. Strides are in bytes, ZERO and ORDER 0 where there is none.
KIND, OUT, IN, WEIGHT, STRIDE, SCALE_KIND, SCALE, SCALE_STRIDE, GROUPS, ZERO, ZERO_STRIDE, ORDER = range(12)
FIELDS = 12
# Places before the records of a bank: experts, hidden, inner, gate and up stacks, most groups of a record.
BANK_FIELDS = 5


@dataclass(frozen=True, slots=True)
class Records:
    """Records of a weight (one) or a bank (its fields, then each expert's). `kept`: tensors that addresses in it point
    to. `groups`: the most of a record. `address`: of the table.
    """

    table: np.ndarray
    kept: tuple[Tensor, ...]
    groups: int
    address: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "address", self.table.ctypes.data)


_weights: WeakKeyDictionary[Weight, Records] = WeakKeyDictionary()
_banks: WeakKeyDictionary[ExpertBank, Records] = WeakKeyDictionary()


def weight_records(weight: Weight) -> Records:
    """The record of a weight."""
    found = _weights.get(weight)
    if found is None:
        stack = Stack(weight.format, {name: (part,) for name, part in weight.parts.items()}, (1, *weight.shape))
        found = _weights[weight] = _stack_records(stack)
    return found


def bank_records(bank: ExpertBank) -> Records:
    """The table of a bank: BANK_FIELDS, then [E, gate_up (or gate, up) and down, FIELDS]."""
    found = _banks.get(bank)
    if found is None:
        stacks = [_stack_records(stack) for stack in (*bank.gate_up, bank.down)]
        groups = max(stack.groups for stack in stacks)
        fields = np.array([bank.count, bank.down.shape[1], bank.inner, len(bank.gate_up), groups], np.int64)
        each = np.stack([stack.table for stack in stacks], 1)
        kept = tuple(tensor for stack in stacks for tensor in stack.kept)
        found = _banks[bank] = Records(np.concatenate((fields, each.reshape(-1))), kept, groups)
    return found


def _stack_records(stack: Stack) -> Records:
    count, outs, ins = stack.shape
    table = np.zeros((count, FIELDS), np.int64)
    table[:, KIND], table[:, OUT], table[:, IN] = KINDS[stack.format], outs, ins
    kept: list[Tensor] = []

    def lay(name: str, at: int, stride_at: int = 0) -> Tensor:
        part = stack.parts[name]
        each = [_rows_in_one_piece(t) for t in (part if isinstance(part, tuple) else part.unbind())]
        kept.extend(each)
        table[:, at] = [t.data_ptr() for t in each]
        if stride_at:
            table[:, stride_at] = [t.stride(0) * t.element_size() for t in each]
        return each[0]

    if stack.format in ("int4", "int8"):
        lay("packed", WEIGHT, STRIDE)
        scale = lay("scale", SCALE, SCALE_STRIDE)
        table[:, SCALE_KIND], table[:, GROUPS] = FLOATS[scale.dtype], scale.shape[1]
        if "zero" in stack.parts:
            lay("zero", ZERO, ZERO_STRIDE)
        if "g_idx" in stack.parts:
            part = stack.parts["g_idx"]
            order = torch.stack(part) if isinstance(part, tuple) else part
            order = order.to(torch.int32).contiguous()
            values = order.numpy()
            if values.size and not (values.min() >= 0 and values.max() < scale.shape[1]):
                raise ValueError(f"g_idx names groups outside 0..{scale.shape[1] - 1}")
            kept.append(order)
            table[:, ORDER] = order.data_ptr() + np.arange(count) * ins * 4
    else:
        lay("weight", WEIGHT, STRIDE)
    return Records(table, tuple(kept), int(table[:, GROUPS].max(initial=0)))


def _rows_in_one_piece(part: Tensor) -> Tensor:
    return part if part.shape[-1] == 1 or part.stride(-1) == 1 else part.contiguous()


@dataclass(frozen=True, slots=True)
class Table:
    """What compiled code is told of a block: int64 fields. `of`: the parameters it was made for. `groups`: the most of
    one of its matrices. `kept`: what the addresses in it need.
    """

    of: object
    groups: int
    kept: tuple[object, ...]
    address: int


def block_table(of: object, fields: Sequence[Weight | ExpertBank | Tensor | int | float | None]) -> Table:
    """A matrix or bank is its records' address, a tensor its data's, a float its float32 bits, None 0."""
    table, groups = np.zeros(len(fields), np.int64), 0
    kept: list[object] = []
    for i, value in enumerate(fields):
        if isinstance(value, (Weight, ExpertBank)):
            known = weight_records(value) if isinstance(value, Weight) else bank_records(value)
            groups, table[i] = max(groups, known.groups), known.address
            kept.append(known)
        elif isinstance(value, Tensor):
            assert value.is_contiguous()
            table[i] = value.data_ptr()
            kept.append(value)
        elif isinstance(value, float):
            table[i] = np.float32(value).view(np.int32)
        elif value is not None:
            table[i] = value
    kept.append(table)
    return Table(of, groups, tuple(kept), table.ctypes.data)
