"""GatedDeltaNet state per slot: the committed state, and the inputs of the last window until its verdict is in.

No copy per row: a window's decode rows leave their inputs; the first `keeps` of them advance the state at the start of
the next window, by the number that the verdict left in `pool.pending`, on the device. This room knows of it only how
many steps the longest replay takes.
"""

import torch

from strata_cli.engine.buffers import allocate
from strata_cli.engine.life import Slot
from strata_kernels.layout import Arrays
from strata_kernels.window import RecurrentPool


class RecurrentCache:
    """A resource of the engine: states of all slots and layers, and the pool of copies for the prefix cache."""

    def __init__(self, arrays: Arrays, device: torch.device):
        self.pool = RecurrentPool(**allocate(arrays, device))
        self.pending = [0] * arrays["state"].shape[1]  # what pool.pending holds, of slots that were not read since

    @property
    def bytes_per_place(self) -> int:
        """Of a copy in the pool of the prefix cache."""
        copies = (self.pool.snap_state, self.pool.snap_conv)
        return sum(c.nbytes for c in copies) // max(1, self.pool.snap_state.shape[0])

    @property
    def replay(self) -> int:
        """Steps of the longest replay that the next window may begin with."""
        return max(self.pending)

    def commit(self, slot: int, keeps: int) -> None:
        """The first `keeps` rows of the slot's last window were kept (prompt rows: 0, they moved the state at once)."""
        self.pending[slot] = keeps

    def restore(self, slot: int, place: int) -> None:
        """Begin the slot with a copy, bit for bit."""
        self.pool.state[:, slot] = self.pool.snap_state[place]
        self.pool.conv[:, slot] = self.pool.snap_conv[place]

    def admit(self, slot: Slot) -> None:
        """Its state is empty, or was restored before it was let in."""

    def release(self, slot: int) -> None:
        """Zero state, nothing pending."""
        self.pool.state[:, slot] = 0
        self.pool.conv[:, slot] = 0
        self.pool.pending[:, slot] = 0
        self.pending[slot] = 0

    def undo(self, slot: Slot) -> None:
        self.release(slot.index)
