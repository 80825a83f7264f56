"""The sequential recurrence of Gated DeltaNet (Yang et al., 2024), the same for one row and for many."""

from collections.abc import Sequence

import torch
from torch import Tensor


def gated_delta(
    state: Tensor, k: Tensor, v: Tensor, beta: Tensor, decay: Tensor, active: Sequence[int], q: Tensor | None = None
) -> Tensor:
    """Advance the states of several slots by ragged numbers of steps, in place.

    Per step and head: S *= decay; d = beta (v - k^T S); S += k d^T; o = q^T S.

    Args:
        state: [n, H, K, V] float32, advanced in place. Slots are ordered so that step t concerns the first active[t].
        k, q: [T, n, H, K]; without q the states advance and nothing is read.
        v: [T, n, H, V]; beta, decay: [T, n, H], decay = exp(g).
        active: slots that take step t, never rising.

    Returns o [T, n, H, V], undefined where a slot takes no step and without q.
    """
    steps, n, heads, _ = k.shape
    states = state.view(n * heads, *state.shape[2:])
    columns = k.reshape(steps, n * heads, -1, 1)
    rows = columns.transpose(-1, -2)
    values = v.reshape(steps, n * heads, 1, -1)
    betas, decays = beta.reshape(steps, -1, 1, 1), decay.reshape(steps, -1, 1, 1)
    queries = None if q is None else q.reshape(steps, n * heads, 1, -1)
    out = torch.empty_like(values)
    for t, slots in enumerate(active):
        m = slots * heads
        s = states[:m]
        s.mul_(decays[t, :m])
        delta = (values[t, :m] - torch.bmm(rows[t, :m], s)).mul_(betas[t, :m])
        s.addcmul_(columns[t, :m], delta)
        if queries is not None:
            torch.bmm(queries[t, :m], s, out=out[t, :m])
    return out.view(steps, n, heads, -1)
