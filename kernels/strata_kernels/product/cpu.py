"""Products on a CPU, straight from the packed parts: the tensors' side of `compiled.py`."""

import threading
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from strata_kernels.product import compiled
from strata_kernels.product.records import bank_records, weight_records
from strata_kernels.weight import ExpertBank, Weight
from strata_kernels.workspace import bank_bytes, product_bytes


class Scratch(threading.local):
    """Working memory of compiled calls: each thread's own, grown when a call needs more."""

    def __init__(self) -> None:
        self._grow(1 << 16)

    def _grow(self, size: int) -> None:
        self._bytes = np.empty(size + 64, np.uint8)
        self._size, self._address = size, -(-self._bytes.ctypes.data // 64) * 64

    def address(self, size: int) -> int:
        """Of `size` bytes, whole cache lines. What lay there is lost."""
        if size > self._size:
            self._grow(size)
        return self._address


scratch = Scratch()


def product(x: Tensor, weights: Sequence[Weight], count: int) -> Tensor:
    """As the reference's."""
    rows = x.float().contiguous()
    width = sum(weight.shape[0] for weight in weights)
    out = torch.zeros(x.shape[0], width) if count < x.shape[0] else torch.empty(count, width)
    source, stride, to = rows.data_ptr(), rows.shape[1] * 4, out.data_ptr()
    for weight in weights:
        known = weight_records(weight)
        room = scratch.address(product_bytes(known.groups))
        compiled.multiply(source, stride, count, known.address, 0, 0, to, width * 4, room)
        to += weight.shape[0] * 4
    return out.to(x.dtype)


def product_at(x: Tensor, weight: Weight, ids: Tensor, count: int) -> Tensor:
    """As the reference's."""
    rows, ids, known, many = x.float().contiguous(), ids.contiguous(), weight_records(weight), ids.shape[0]
    out = torch.zeros(x.shape[0], many)
    room, stride = scratch.address(product_bytes(known.groups)), rows.shape[1] * 4
    compiled.multiply(
        rows.data_ptr(), stride, count, known.address, ids.data_ptr(), many, out.data_ptr(), many * 4, room
    )
    return out.to(x.dtype)


def lookup(weight: Weight, ids: Tensor) -> Tensor:
    """As the reference's."""
    ids, width = ids.contiguous(), weight.shape[1]
    out = torch.empty(ids.shape[0], width)
    compiled.lookup(weight_records(weight).address, ids.data_ptr(), ids.shape[0], out.data_ptr(), width * 4)
    return out


def expert_products(x: Tensor, chosen: Tensor, shares: Tensor, bank: ExpertBank, count: int) -> Tensor:
    """As the reference's."""
    rows, chosen, shares = x.float().contiguous(), chosen.contiguous(), shares.float().contiguous()
    known, ranks = bank_records(bank), chosen.shape[1]
    out = torch.zeros(x.shape[0], bank.down.shape[1])
    room = scratch.address(bank_bytes(count, ranks, bank.count, bank.down.shape[1], bank.inner, known.groups))
    compiled.experts(
        rows.data_ptr(), chosen.data_ptr(), shares.data_ptr(), count, ranks, known.address, out.data_ptr(), room
    )
    return out.to(x.dtype)
