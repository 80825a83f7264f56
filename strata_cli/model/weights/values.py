"""What only the values of weights tell: numbers that are none, and a head that was never trained."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from strata_cli.model.weights.stored import StoredBlock, StoredWeight
from strata_kernels.formats import unpack
from strata_kernels.weight import ExpertBank, Stack, Weight

if TYPE_CHECKING:
    from strata_cli.model.weights import ModelWeights, MtpWeights

TILE_NUMBERS = 1 << 22  # looked at at once

# A head as initialised and never trained: normal numbers of this spread in every matrix. Trained ones have .008 to .014
# and a kurtosis of 5 to 15.
INITIAL_STD = 0.02
ENOUGH_NUMBERS = 1_000_000  # in all matrices; below, tiny models: their spread and tails say little
SAMPLE, LEAST_SAMPLE = 1 << 16, 1 << 14  # numbers of one matrix; the kurtosis of fewer is too uncertain


def first_bad_tensor(weights: ModelWeights) -> str | None:
    """The name on disk of the first tensor that holds something else than finite numbers, or None.

    Scales and small tensors first: they are read in no time. Matrices of plain numbers only where all of those are
    well, which takes as long as reading the files. For when the model's output is no number.
    """
    for small in (True, False):
        for name, tensor in _floats(weights, small):
            rows = tensor.reshape(tensor.shape[0], -1)
            if not all(bool(torch.isfinite(tile).all()) for tile in rows.split(max(1, TILE_NUMBERS // rows.shape[1]))):
                return name
    return None


def _floats(weights: ModelWeights, small: bool) -> Iterator[tuple[str, Tensor]]:
    """Stored name and values of the tensors that are floats: vectors and scales, or (not `small`) dense matrices."""
    stored = weights.stored
    pairs: list[tuple[StoredBlock, Any]] = [*zip(stored.blocks, weights.blocks), (stored.head, weights.head)]
    if stored.mtp is not None and weights.mtp is not None:
        mtp = weights.mtp
        pairs += zip(stored.mtp.all(), (mtp.input, *mtp.blocks, mtp.head))
    found: Iterator[tuple[StoredWeight, Tensor | Weight]] = (
        pair for block, made in pairs for pair in _parts(block, made)
    )
    for source, value in ((stored.embedding, weights.embedding), *found):
        if isinstance(value, Tensor):
            if small:
                yield source.parts["weight"].name, value
            continue
        for role, part in value.parts.items():
            if part.is_floating_point() and small == (role != "weight"):
                yield source.parts[role].name, part


def _parts(stored: StoredBlock, made: Any) -> Iterator[tuple[StoredWeight, Tensor | Weight]]:
    for role, source in stored.weights.items():
        value = getattr(made, role)
        if isinstance(source, StoredWeight):
            yield source, value
            continue
        for stack, packed in zip(source.stacks, (*value.gate_up, value.down)):
            for expert in range(packed.shape[0]):
                yield stack.whole or stack.apart[expert], packed[expert]


def untrained(head: MtpWeights, source: Path) -> list[str]:
    """A warning if the MTP head, which came from `source`, looks as it was initialised."""
    matrices = list(_matrices(head))
    if sum(many * weight.shape[0] * weight.shape[1] for weight, many in matrices) < ENOUGH_NUMBERS:
        return []
    for weight, _ in matrices:
        rows = min(weight.shape[0], -(-SAMPLE // weight.shape[1]))
        if rows * weight.shape[1] < LEAST_SAMPLE:
            continue
        start = (weight.shape[0] - rows) // 2
        tile = unpack(weight, start, start + rows)
        std = tile.std()
        kurtosis = ((tile - tile.mean()) / std).pow(4).mean()
        if abs(std / INITIAL_STD - 1) > 0.05 or abs(kurtosis - 3) > 0.2:
            return []
    return [f"the MTP head of {source} looks untrained (std {INITIAL_STD} throughout, normal): few drafts will hold"]


def _matrices(head: MtpWeights) -> Iterator[tuple[Weight, int]]:
    """The head's own matrices, each with how many it speaks for: of a layer's experts one is enough."""
    for block in (head.input, *head.blocks):
        for name in block.__slots__:
            value = getattr(block, name)
            if isinstance(value, Weight):
                yield value, 1
            elif isinstance(value, ExpertBank):
                for stack in (*value.gate_up, value.down):
                    yield _middle(stack), value.count


def _middle(stack: Stack) -> Weight:
    return stack[stack.shape[0] // 2]
