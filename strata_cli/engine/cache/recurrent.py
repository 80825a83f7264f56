"""GatedDeltaNet state per slot: the committed state, and the inputs of the last window until its verdict is in.

No copy per row: a window's decode rows leave (k, v, beta, decay, conv column); the `keeps` accepted ones advance the
state at the start of the slot's next window. Replaying is repeatable per layer, so a window that failed half way can
be done again.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from strata_cli.model.config import ModelConfig
from strata_cli.model.rows import TimePlan
from strata_kernels.gated_delta import gated_delta


@dataclass(frozen=True, slots=True)
class RecurrentSnapshot:
    """Committed state of one slot: state [layers, H, K, V], conv [layers, kernel - 1, C]."""

    state: Tensor
    conv: Tensor

    @property
    def nbytes(self) -> int:
        return self.state.nbytes + self.conv.nbytes


class RecurrentCache:
    """States of all slots and GatedDeltaNet layers, float32.

    `rows`: the most decode rows of one slot in a window. `steps` counts recurrence steps taken so far.
    """

    def __init__(self, config: ModelConfig, slots: int, rows: int, device: torch.device):
        layers = config.layer_types.count("linear_attention")
        heads, keys = config.linear_num_value_heads, config.linear_num_key_heads
        k_dim, v_dim = config.linear_key_head_dim, config.linear_value_head_dim
        channels = 2 * keys * k_dim + heads * v_dim

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(layers, slots, *shape, dtype=torch.float32, device=device)

        self.state = zeros(heads, k_dim, v_dim)
        self.conv = zeros(config.linear_conv_kernel_dim - 1, channels)
        self.held = {
            "k": zeros(rows, keys, k_dim),
            "v": zeros(rows, heads, v_dim),
            "beta": zeros(rows, heads),
            "decay": zeros(rows, heads),
            "conv": zeros(rows, channels),
        }
        self.pending = [[0] * slots for _ in range(layers)]
        self.captured: dict[tuple[int, int], list[tuple[Tensor, Tensor]]] = {}
        self.ratio = heads // keys
        self.steps = 0

    @property
    def bytes_per_slot(self) -> int:
        tensors = (self.state, self.conv, *self.held.values())
        return sum(t.nbytes for t in tensors) // max(1, self.state.shape[1])

    def replay(self, layer: int, slots: Sequence[int]) -> None:
        """Advance the committed state of `slots` past the rows their last window accepted."""
        waiting = sorted((s for s in slots if self.pending[layer][s]), key=lambda s: -self.pending[layer][s])
        if not waiting:
            return
        lengths = [self.pending[layer][s] for s in waiting]
        steps, ids = lengths[0], torch.tensor(waiting, device=self.state.device)
        k, v, beta, decay = (
            self.held[name][layer, ids, :steps].transpose(0, 1) for name in ("k", "v", "beta", "decay")
        )
        state = self.state[layer, ids]
        active = [sum(n > t for n in lengths) for t in range(steps)]
        gated_delta(state, k.repeat_interleave(self.ratio, 2), v, beta, decay, active)
        self.state[layer, ids] = state
        columns = torch.cat((self.conv[layer, ids], self.held["conv"][layer, ids, :steps]), 1)
        width = self.conv.shape[2]
        last = torch.tensor(lengths, device=ids.device)[:, None] + torch.arange(width, device=ids.device)
        self.conv[layer, ids] = columns.gather(1, last[..., None].expand(-1, -1, columns.shape[2]))
        self.steps += sum(lengths)
        for slot in waiting:
            self.pending[layer][slot] = 0

    def hold(self, layer: int, plan: TimePlan, **inputs: Tensor) -> None:
        """Keep the inputs of the window's decode rows; each of k, v, beta, decay, conv is [R, ...]."""
        if len(plan.held_rows):
            for name, values in inputs.items():
                self.held[name][layer, plan.held_slots, plan.held_offsets] = values[plan.held_rows].float()

    def capture(self, layer: int, slot: int, after: int, state: Tensor, conv: Tensor) -> None:
        """Copy a layer's state after `after` rows of the slot's segment; layers come in order."""
        copies = self.captured.setdefault((slot, after), [])
        del copies[layer:]  # of a window that failed half way
        copies.append((state.clone(), conv.clone()))

    def taken(self, slot: int, after: int) -> RecurrentSnapshot:
        """The captured state of all layers, handed over."""
        copies = self.captured.pop((slot, after), [])
        if not copies:  # a model without recurrent layers
            return RecurrentSnapshot(self.state[:, slot].clone(), self.conv[:, slot].clone())
        return RecurrentSnapshot(torch.stack([s for s, _ in copies]), torch.stack([c for _, c in copies]))

    def commit(self, slot: int, keeps: int) -> None:
        """Of the slot's held rows the first `keeps` hold; they enter the state when it is read next."""
        for pending in self.pending:
            assert pending[slot] == 0, "the last window's rows were replayed before this one was read"
            pending[slot] = keeps

    def reset(self, slot: int) -> None:
        """Forget the slot: zero state, nothing pending."""
        self.state[:, slot] = 0
        self.conv[:, slot] = 0
        for pending in self.pending:
            pending[slot] = 0

    def snapshot(self, slot: int) -> RecurrentSnapshot:
        """A copy of the slot's state, pending rows replayed first."""
        for layer in range(len(self.pending)):
            self.replay(layer, [slot])
        return RecurrentSnapshot(self.state[:, slot].clone(), self.conv[:, slot].clone())

    def restore(self, slot: int, snapshot: RecurrentSnapshot) -> None:
        """Put a snapshot back, bit for bit."""
        self.state[:, slot] = snapshot.state.to(self.state.device)
        self.conv[:, slot] = snapshot.conv.to(self.conv.device)
        for pending in self.pending:
            pending[slot] = 0
