"""The rows of one forward: any mix of prompt, decode and draft rows of all slots, laid out for every kind of layer."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from strata_kernels.attention import KV_SPLIT_PAGES, QUERY_TILE
from strata_kernels.linear import padded_rows


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive rows of one slot: `tokens[i]` stands at position `position + i`.

    Recurrent state moves past `certain` rows (prompts) at once; the others wait for the verdict of the window.
    `capture`: numbers of rows after which the recurrent state is copied for the prefix cache, rising.
    """

    slot: int
    position: int
    tokens: Sequence[int]
    certain: bool = False
    capture: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class TimePlan:
    """Rows ordered for the recurrence: step t of the s-th longest segment. Index tensors are int64.

    `row_at` [T, n] row of step t, segment s; `time_of` [R] its inverse, flat; `taps` [R, kernel] where the causal
    convolution finds its columns in (context of all segments, then rows); `held_*`: decode rows that wait for commit;
    `lengths` by segment; `captures`: (step, segment) pairs after which the state is copied, in order of steps.
    """

    slots: list[int]
    lengths: list[int]
    certain: list[bool]
    active: list[int]
    captures: list[tuple[int, int]]
    slot_ids: Tensor
    row_at: Tensor
    time_of: Tensor
    taps: Tensor
    held_rows: Tensor
    held_slots: Tensor
    held_offsets: Tensor


@dataclass(slots=True)
class Rows:
    """Tensors of one forward over `count` real rows, padded to whole row tiles.

    tokens, positions [R]; write_at [count] flat KV places; tile_rows [T, QUERY_TILE] row of each query (0 for none);
    tile_of [R] its inverse, flat; tables [T, pages] and limits [T, QUERY_TILE] as `paged_attention` takes them.
    """

    segments: list[Segment]
    starts: list[int]
    count: int
    padded: int
    tokens: Tensor
    positions: Tensor
    write_at: Tensor
    tile_rows: Tensor
    tile_of: Tensor
    tables: Tensor
    limits: Tensor
    splits: int

    @classmethod
    def build(cls, segments: Sequence[Segment], tables: np.ndarray, page_size: int, device: torch.device) -> "Rows":
        """Lay out segments (at least one, none empty). tables [slots, pages] int64 hold every page the rows write or
        read.
        """
        lengths = [len(s.tokens) for s in segments]
        count = sum(lengths)
        padded = padded_rows(count)
        starts = [0, *np.cumsum(lengths[:-1]).tolist()]
        tokens, positions = np.zeros(padded, np.int64), np.zeros(padded, np.int64)
        tiles = [-(-n // QUERY_TILE) for n in lengths]
        tile_rows, limits = (
            np.zeros((sum(tiles), QUERY_TILE), np.int64),
            np.full((sum(tiles), QUERY_TILE), -1, np.int64),
        )
        tile_of = np.zeros(padded, np.int64)
        first = 0
        for segment, n, start, many in zip(segments, lengths, starts, tiles):
            place = np.arange(n)
            tokens[start : start + n] = segment.tokens
            positions[start : start + n] = segment.position + place
            flat = first * QUERY_TILE
            tile_rows.reshape(-1)[flat : flat + n] = start + place
            limits.reshape(-1)[flat : flat + n] = segment.position + place
            tile_of[start : start + n] = flat + place
            first += many
        slot_of = np.repeat([s.slot for s in segments], lengths)
        real = positions[:count]
        write_at = tables[slot_of, real // page_size] * page_size + real % page_size
        splits = -(-(int(real.max()) + 1) // (page_size * KV_SPLIT_PAGES))
        tile_tables = tables[np.repeat([s.slot for s in segments], tiles), : splits * KV_SPLIT_PAGES]

        def put(array: np.ndarray) -> Tensor:
            return torch.from_numpy(array).to(device)

        return cls(
            list(segments), starts, count, padded, put(tokens), put(positions), put(write_at), put(tile_rows),
            put(tile_of), put(tile_tables), put(limits), splits,
        )  # fmt: skip

    def time_plan(self, kernel: int) -> TimePlan:
        """Order the segments for the recurrence, longest first; `kernel` = taps of the causal convolution."""
        order = sorted(range(len(self.segments)), key=lambda i: -len(self.segments[i].tokens))
        segments = [self.segments[i] for i in order]
        lengths = [len(s.tokens) for s in segments]
        steps, many, context = lengths[0], len(segments), kernel - 1
        row_at, time_of = np.zeros((steps, many), np.int64), np.zeros(self.padded, np.int64)
        taps = np.zeros((self.padded, kernel), np.int64)
        held: list[tuple[np.ndarray, int, np.ndarray]] = []
        for s, i in enumerate(order):
            start, place = self.starts[i], np.arange(lengths[s])
            row_at[: lengths[s], s] = start + place
            time_of[start : start + lengths[s]] = place * many + s
            column = place[:, None] + np.arange(kernel)  # counted from the first context column
            taps[start : start + lengths[s]] = np.where(
                column < context, s * context + column, many * context + start + column - context
            )
            if not segments[s].certain:
                held.append((start + place, segments[s].slot, place))
        device = self.tokens.device

        def put(parts: Sequence[np.ndarray]) -> Tensor:
            return torch.from_numpy(np.concatenate(parts) if parts else np.zeros(0, np.int64)).to(device)

        slots = [s.slot for s in segments]
        return TimePlan(
            slots=slots,
            lengths=lengths,
            certain=[s.certain for s in segments],
            active=[sum(n > t for n in lengths) for t in range(steps)],
            captures=sorted((after, s) for s, segment in enumerate(segments) for after in segment.capture),
            slot_ids=torch.tensor(slots, device=device),
            row_at=torch.from_numpy(row_at).to(device),
            time_of=torch.from_numpy(time_of).to(device),
            taps=torch.from_numpy(taps).to(device),
            held_rows=put([rows for rows, _, _ in held]),
            held_slots=put([np.full(len(rows), slot) for rows, slot, _ in held]),
            held_offsets=put([place for _, _, place in held]),
        )
