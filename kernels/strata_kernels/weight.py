"""Weights as they are stored: packed, and unpacked a tile at a time by whoever multiplies with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # sizes are planned without torch
    from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Weight:
    """A matrix [out, in] as it is stored.

    `format`: a name of `strata_kernels.formats`, which says what the parts are and how a tile of rows becomes numbers.
    `parts`: the stored tensors by role: views of a mapped file on the CPU, device tensors on a GPU. `shape`: logical.
    """

    format: str
    parts: Mapping[str, Tensor]
    shape: tuple[int, int]

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts.values())

    def tensors(self) -> Iterator[Tensor]:
        return iter(self.parts.values())


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Stack:
    """One matrix of every expert, [E, out, in]: each part one tensor [E, ...], or E views into a file that has them
    apart.
    """

    format: str
    parts: Mapping[str, Tensor | tuple[Tensor, ...]]
    shape: tuple[int, int, int]

    def __getitem__(self, expert: int) -> Weight:
        return Weight(self.format, {name: part[expert] for name, part in self.parts.items()}, self.shape[1:])

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.tensors())

    def tensors(self) -> Iterator[Tensor]:
        for part in self.parts.values():
            yield from part if isinstance(part, tuple) else (part,)


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class ExpertBank:
    """The routed experts of one layer. A block asks for experts by id and does not know where they lie.

    `gate_up`: one stack [E, 2F, D] (rows 0..F-1 gate, F..2F-1 up), or two, gate and up [E, F, D] each, as the file has
    them. `down`: [E, D, F].
    """

    gate_up: tuple[Stack, ...]
    down: Stack

    @property
    def count(self) -> int:
        return self.down.shape[0]

    @property
    def inner(self) -> int:
        return self.down.shape[2]

    @property
    def nbytes(self) -> int:
        return sum(stack.nbytes for stack in (*self.gate_up, self.down))

    def tensors(self) -> Iterator[Tensor]:
        for stack in (*self.gate_up, self.down):
            yield from stack.tensors()


def formats(block_weights: object) -> tuple[str, ...]:
    """The formats of a block's matrices, each once; block_weights: one of the dataclasses of `params`."""
    found: set[str] = set()
    for item in fields(block_weights):  # type: ignore[arg-type]
        value = getattr(block_weights, item.name)
        if isinstance(value, Weight):
            found.add(value.format)
        elif isinstance(value, ExpertBank):
            found.update(stack.format for stack in (*value.gate_up, value.down))
    return tuple(sorted(found))
