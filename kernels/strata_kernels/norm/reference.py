"""Norms over the last dimension, and elementwise functions, whose bits do not depend on the number of rows."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

LANES = 32  # floats that are computed as vectors; the rest of a tensor goes through scalar code and rounds otherwise
GRAIN = 1 << 15  # what one thread does of an elementwise function; torch cuts more than that by the number of threads


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [..., D] * rsqrt(mean(x^2) + eps) * weight [D]; float32 inside, the dtype of x outside."""
    return F.rms_norm(x.float(), weight.shape, weight, eps).to(x.dtype)


def l2_norm(x: Tensor, scale: Tensor) -> Tensor:
    """x [..., D] * scale / sqrt(sum(x^2) + 1e-6), float32; scale broadcasts to [..., 1]."""
    h = x.float()
    return h * h.square().sum(-1, keepdim=True).add_(1e-6).rsqrt_().mul_(scale)


def in_lanes(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """function(x), elementwise, of x [R, W] with R a multiple of 8, each number as part of a whole vector."""
    width = x.shape[1]
    if x.numel() % LANES:
        return in_lanes(function, F.pad(x, (0, -width % LANES)))[:, :width]
    flat = x.contiguous()
    if _whole(flat):
        return function(flat)
    return torch.cat([function(piece) for piece in flat.view(-1).split(GRAIN)]).view(-1, width)


def in_rows(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """function(x), elementwise, of some columns of a wider tensor, x [R, ...]: every row in the same vectors and tails.

    The bits of a column depend on its number alone.
    """
    if _whole(x):
        return function(x)
    return torch.cat([function(piece) for piece in x.split(max(1, GRAIN // x[0].numel()))])


def _whole(x: Tensor) -> bool:
    """Nobody cuts it in the middle of a vector."""
    return x.numel() <= GRAIN or x.device.type != "cpu"
