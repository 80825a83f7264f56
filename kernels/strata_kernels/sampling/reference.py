"""Noise that is a function of (seed, position, token id, purpose) alone: Philox4x32-10 (Salmon et al., 2011)."""

import torch
from torch import Tensor

PURPOSES = {"coupled": 0, "draft": 1, "accept": 2, "residual": 3}
MASK = 0xFFFFFFFF
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)


def philox(seeds: Tensor, ids: Tensor, positions: Tensor, purpose: int | Tensor) -> Tensor:
    """First output word of Philox4x32-10 with key = seed and counter (id, position, purpose, 0).

    seeds, ids, positions (and purpose, where it differs by row): int64, broadcastable; seeds hold 64 bits, the others
    32. Returns int64 in [0, 2^32).
    """
    key0, key1 = seeds & MASK, (seeds >> 32) & MASK
    c0, c1, c2, c3 = ids & MASK, positions & MASK, torch.zeros_like(positions) + purpose, torch.zeros_like(positions)
    for _ in range(10):
        # Signed 64-bit products wrap, but their bits are those of the unsigned ones.
        p0, p1 = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        c0, c1, c2, c3 = ((p1 >> 32) & MASK) ^ c1 ^ key0, p1 & MASK, ((p0 >> 32) & MASK) ^ c3 ^ key1, p0 & MASK
        key0, key1 = (key0 + WEYL[0]) & MASK, (key1 + WEYL[1]) & MASK
    return c0


def uniform(seeds: Tensor, ids: Tensor, positions: Tensor, purpose: int | Tensor) -> Tensor:
    """Uniform float32 in (0, 1), clamped to at most 1 - 2^-24."""
    words = philox(seeds, ids, positions, purpose)
    return ((words.double() + 0.5) * 2.0**-32).clamp_max_(1 - 2.0**-24).float()


def gumbel(seeds: Tensor, ids: Tensor, positions: Tensor, purpose: int | Tensor) -> Tensor:
    """Standard Gumbel noise, float32: -log(-log1p(-v)), finite for every word."""
    return -torch.log(-torch.log1p(-uniform(seeds, ids, positions, purpose)))
