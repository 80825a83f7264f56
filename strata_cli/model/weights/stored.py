"""What the headers of a checkpoint say, before anything else of it is read. No torch."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path

from strata_cli.model.families import Block, Shape

ITEM_BYTES = {"F32": 4, "BF16": 2, "F16": 2, "I64": 8, "I32": 4}  # of those dtypes that the formats read


@dataclass(frozen=True, slots=True)
class Stored:
    """One tensor of a file, as its header describes it.

    `dtype` in the words of safetensors: BF16, F32, I32, ...; its data are `size_bytes` at `offset` of the file.
    `stamp`: size and time of change of the file whose header that was.
    """

    file: Path
    name: str
    dtype: str
    shape: Shape
    offset: int
    size_bytes: int
    stamp: tuple[int, int] = (0, 0)

    @property
    def aligned(self) -> bool:
        """May it be read where it lies, in a mapping of its file?"""
        return self.offset % ITEM_BYTES[self.dtype] == 0


@dataclass(frozen=True, slots=True)
class StoredWeight:
    """A weight on disk, recognised and checked against the shape it must have.

    `format`: a name of `strata_kernels.formats`, whose `parts` these are by role. `facts`: small tensors that only say
    what must be true of the others; they are compared when the weight is read. `label`: the format as people know it.
    """

    name: str
    format: str
    label: str
    shape: Shape
    parts: Mapping[str, Stored]
    facts: Mapping[str, Stored] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        return sum(part.size_bytes for part in self.parts.values())

    @property
    def size(self) -> int:
        """Numbers in it."""
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class StoredStack:
    """One matrix of every expert, [E, out, in]: `apart`, a weight an expert, or `whole`, all of them in one."""

    name: str
    shape: tuple[int, int, int]
    whole: StoredWeight | None = None
    apart: tuple[StoredWeight, ...] = ()

    @property
    def weights(self) -> tuple[StoredWeight, ...]:
        return self.apart if self.whole is None else (self.whole,)


@dataclass(frozen=True, slots=True)
class StoredBank:
    """The experts of a layer: `gate_up` one stack, or two, as an `ExpertBank` has them."""

    gate_up: tuple[StoredStack, ...]
    down: StoredStack

    @property
    def stacks(self) -> tuple[StoredStack, ...]:
        return (*self.gate_up, self.down)


@dataclass(frozen=True, slots=True)
class StoredBlock:
    """The weights of a block by field."""

    block: Block
    weights: Mapping[str, StoredWeight | StoredBank]

    def each(self) -> Iterator[tuple[str, StoredWeight]]:
        """Every weight with the field it belongs to, experts' one by one."""
        for role, found in self.weights.items():
            if isinstance(found, StoredWeight):
                yield role, found
            else:
                for stack in found.stacks:
                    yield from ((role, weight) for weight in stack.weights)


@dataclass(frozen=True, slots=True)
class StoredMtp:
    """An MTP head on disk. `source`: the checkpoint it lies in."""

    source: Path
    input: StoredBlock
    blocks: tuple[StoredBlock, ...]
    head: StoredBlock

    def all(self) -> tuple[StoredBlock, ...]:
        return (self.input, *self.blocks, self.head)


@dataclass(frozen=True, slots=True)
class StoredModel:
    """All weights of a model on disk. A weight that serves twice (a tied output head) is one object."""

    embedding: StoredWeight
    blocks: tuple[StoredBlock, ...]
    head: StoredBlock
    mtp: StoredMtp | None = None
