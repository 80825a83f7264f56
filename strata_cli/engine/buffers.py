"""The window buffers: allocated once for the largest window, one copy in, one copy out.

The host writes a window's integers into `staging`; `upload` copies what is used of them to the device (on a CPU both
are the same memory and nothing is copied). `download` brings back what the window decided.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from strata_kernels.head.pool import Draws, Manner
from strata_kernels.layout import DRAW_FIELDS, Array, Arrays, WindowSizes, section_size
from strata_kernels.window import Rows, Section, Segment, torch_dtype


def allocate(arrays: Arrays, device: torch.device) -> dict[str, Any]:
    """Zeroed tensors of these shapes, by name. On a CPU numpy asks the system for them: pages that nobody wrote to
    take no memory.
    """

    def tensor(array: Array) -> Tensor:
        kind = torch_dtype(array.dtype)
        if device.type != "cpu" or not array.nbytes:
            return torch.zeros(array.shape, dtype=kind, device=device)
        return torch.from_numpy(np.zeros(array.nbytes, np.uint8)).view(kind).view(array.shape)

    return {name: tensor(array) for name, array in arrays.items()}


class Region:
    """A part of the block that is not a forward's rows: the device's view and the host's."""

    def __init__(self, block: Tensor, staging: np.ndarray, start: int, *shape: int):
        self.start, self.end = start, start + int(np.prod(shape))
        self.device = block[start : self.end].view(shape)
        self.host = staging[start : self.end].reshape(shape)
        self._heads: dict[int, Tensor] = {}

    def head(self, n: int) -> Tensor:
        """The first `n` of the device's view, made once."""
        if n not in self._heads:
            self._heads[n] = self.device[..., :n]
        return self._heads[n]


class DrawRegion:
    """The draws of one forward in the block: which rows, whose, where."""

    def __init__(self, region: Region, drafts: Tensor, nothing: Tensor):
        self.region, self.drafts, self.nothing = region, drafts, nothing
        self._draws: dict[int, Draws] = {}
        self._order: dict[tuple[int, int], Tensor] = {}

    def lay(
        self,
        draws: Sequence[tuple[int, int, int, int]],
        padded: int,
        manners: Sequence[tuple[Manner, Sequence[int]]],
        penalties: bool,
        after_drafts: bool,
    ) -> Draws:
        """Write draws (row, slot, position, earlier drafts); the device's view of them. manners: each with the numbers
        of its draws.
        """
        host, count = self.region.host, len(draws)
        host[:, :padded] = 0
        if draws:
            host[:4, :count] = np.asarray(draws, np.int64).T
        found, at = [], 0
        for manner, chosen in manners:
            if len(manners) == 1:
                found.append(manner)
                break
            host[4, at : at + len(chosen)] = chosen
            index = self._order.setdefault((at, len(chosen)), self.region.device[4, at : at + len(chosen)])
            found.append(Manner(index, manner.greedy, manner.top_k, manner.top_p, manner.min_p))
            at += len(chosen)
        if padded not in self._draws:
            rows, slots, positions, earlier, _ = self.region.device[:, :padded].unbind(0)
            self._draws[padded] = Draws(rows, slots, positions, earlier, self.drafts)
        laid = self._draws[padded]
        laid.count, laid.manners, laid.penalties = count, tuple(found), penalties
        laid.drafts = self.drafts if after_drafts else self.nothing
        return laid


class WindowBuffers:
    """All of it, by the names of `layout.WindowSizes.sections`.

    hidden [rows + S * ring + S + places + 1, D]: a window's hidden rows after the final norm, then the rings of rows
    that the MTP head has not seen, then the chain's own rows, those of prefix-cache entries, and one for nobody.
    touched [expert layers, E]; probabilities [T, S]: of each step's drafts; out: what the host reads.
    """

    def __init__(self, sizes: WindowSizes, planned: Arrays, device: torch.device):
        """planned: `layout.window_buffers` of these sizes."""
        self.sizes, self.device = sizes, device
        arrays = allocate(planned, device)
        self.block, self.hidden, self.touched = arrays["block"], arrays["hidden"], arrays["touched"]
        self.probabilities, self.out = arrays["probabilities"], arrays["out"]
        on_host = device.type == "cpu"
        self._pinned = None if on_host else torch.zeros(self.block.shape, dtype=torch.int64, pin_memory=True)
        self.staging: np.ndarray = (self.block if self._pinned is None else self._pinned).numpy()
        starts, at = {}, 0
        for name, size in sizes.sections().items():
            starts[name], at = at, at + size
        slots, small = sizes.slots, sizes.padded(sizes.slots)

        def region(name: str, *shape: int) -> Region:
            return Region(self.block, self.staging, starts[name], *shape)

        self.tables = region("tables", slots, sizes.pages)
        self.drafts = region("drafts", slots * sizes.chain + 1)  # the last for nobody
        self.chosen = self.drafts.head(slots * sizes.chain).view(slots, sizes.chain)
        self.accept = region("accept", 3, slots)  # of each slot: L, its first draw, whether it yields tokens
        self.judged = region("judged", slots * sizes.chain)  # the rows of its drafts
        self.keep = region("keep", 2, sizes.rows + sizes.places)  # hidden rows that stay, from and to
        self.last = region("last", small)  # rows of the catch-up that draft first
        nothing = self.block.new_zeros(slots, 0)
        self.draws = DrawRegion(region("draws", len(DRAW_FIELDS), sizes.draws), self.chosen, nothing)
        self.chain_draws = [
            DrawRegion(region(f"draws {step}", len(DRAW_FIELDS), small), self.chosen, nothing)
            for step in range(1, sizes.chain + 1)
        ]
        self.put = [region(f"put {step}", small) for step in range(1, sizes.chain + 1)]

        def section(name: str, rows: int) -> Section:
            tables = self.tables.device, self.tables.host
            return Section(self.block, self.staging, starts[name], rows, tables, starts["drafts"], sizes.chain)

        self.chain = [section(f"chain {step}", small) for step in range(2, sizes.chain + 1)]
        self.verify = section("verify", sizes.rows)
        self.catch_up = section("catch-up", sizes.catch_up) if sizes.ring else None
        self.prompt = section("prompt", sizes.padded(sizes.prompt)) if sizes.ring else None
        self.ring_at = sizes.rows
        self.chain_at = self.ring_at + slots * sizes.ring
        self.places_at = self.chain_at + small
        self.nobody = sizes.hidden_rows - 1
        self._used = 0
        self._views: dict[tuple[int, int], Tensor] = {}

    def ring(self, slot: int, position: int) -> int:
        """Where in the hidden buffer a slot's row of this position waits."""
        return self.ring_at + slot * self.sizes.ring + position % self.sizes.ring

    def rows(self, start: int, n: int) -> Tensor:
        """Rows of the hidden buffer, the view made once."""
        if (start, n) not in self._views:
            self._views[start, n] = self.hidden[start : start + n]
        return self._views[start, n]

    def steps(self, step: int, n: int) -> Tensor:
        """Probabilities of the first `n` drafts of a step of the chain, the view made once."""
        if (-step - 1, n) not in self._views:
            self._views[-step - 1, n] = self.probabilities[step, :n]
        return self._views[-step - 1, n]

    def lay(self, section: Section, segments: Sequence[Segment], replay: int = 0) -> Rows:
        """Segments of one forward, padded to the window's tile."""
        padded = self.sizes.padded(sum(s.rows for s in segments))
        self._used = max(self._used, section.start + section_size(padded, self.sizes.slots))
        return section.lay(segments, padded, replay)

    def upload(self) -> None:
        """The copy in: what was written since the last one."""
        if self._pinned is not None:
            n = max(self._used, self.verify.start)
            self.block[:n].copy_(self._pinned[:n], non_blocking=True)
        self._used = 0

    def download(self) -> np.ndarray:
        """The copy out: targets [S, T + 1], held [S], one flag for each draw, experts touched; flat."""
        return self.out.cpu().numpy()

    def read_probabilities(self) -> np.ndarray:
        """Probabilities [T, S] of the chain's drafts, by step and order of drafting: the read between draft and
        verify.
        """
        return self.probabilities.cpu().numpy()
