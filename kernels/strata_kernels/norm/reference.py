"""Norms over the last dimension, and elementwise functions, whose bits do not depend on the number of rows."""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

LANES = 32  # floats that are computed as vectors; the rest of a tensor goes through scalar code and rounds otherwise


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [..., D] * rsqrt(mean(x^2) + eps) * weight [D]; float32 inside, the dtype of x outside."""
    return F.rms_norm(x.float(), weight.shape, weight, eps).to(x.dtype)


def l2_norm(x: Tensor, scale: Tensor) -> Tensor:
    """x [..., D] * scale / sqrt(sum(x^2) + 1e-6), float32; scale broadcasts to [..., 1]."""
    h = x.float()
    return h * h.square().sum(-1, keepdim=True).add_(1e-6).rsqrt_().mul_(scale)


def in_lanes(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """function(x), elementwise, of x [R, W] with R a multiple of 8, each number as part of a whole vector."""
    if x.numel() % LANES == 0:
        return function(x.contiguous())
    width = x.shape[1]
    return function(F.pad(x, (0, -width % LANES)))[:, :width]
