"""RMS and L2 norms in float32, one row at a time."""

import torch
import torch.nn.functional as F
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [..., D] * rsqrt(mean(x^2) + eps) * weight [D]; float32 inside, the dtype of x outside."""
    return F.rms_norm(x.float(), weight.shape, weight, eps).to(x.dtype)


def l2_norm(x: Tensor, scale: float = 1.0) -> Tensor:
    """x [..., D] * scale / sqrt(sum(x^2) + 1e-6), float32."""
    h = x.float()
    return h * (torch.rsqrt(h.square().sum(-1, keepdim=True) + 1e-6) * scale)
