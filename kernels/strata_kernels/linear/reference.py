"""y = x W, in row tiles of one fixed shape."""

import torch
from torch import Tensor

# A product's bits depend on its number of rows (measured: 4 and 8 rows differ from 16 on one CPU, 1, 2, 3 and 5 from 4
# on
# another), so every product has this many; equal shapes give equal bits on any machine.
ROW_TILE = 8


def padded_rows(rows: int) -> int:
    """`rows` rounded up to whole row tiles."""
    return -(-rows // ROW_TILE) * ROW_TILE


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """x [R, D] with R a multiple of ROW_TILE, weight [D, N] (transposed against the checkpoint) -> [R, N]."""
    if x.shape[0] == ROW_TILE:
        return torch.mm(x, weight)
    out = x.new_empty(x.shape[0], weight.shape[1])
    for tile, y in zip(x.split(ROW_TILE), out.split(ROW_TILE)):
        torch.mm(tile, weight, out=y)
    return out
