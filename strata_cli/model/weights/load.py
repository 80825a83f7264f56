"""Weights from what the headers found: views of mapped files on a CPU, tensors on any other device.

No tensor is converted but the small ones that blocks read as float32; a packed matrix is never unpacked.
"""

from __future__ import annotations

import mmap
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
import torch
from torch import Tensor

from strata_cli.errors import StrataError
from strata_cli.model.families import AS_STORED, CONV, NEGATIVE_EXP, PLUS_ONE, Vector
from strata_cli.model.weights import ModelWeights, MtpWeights
from strata_cli.model.weights.formats import layout_of
from strata_cli.model.weights.safetensors import stamp_of
from strata_cli.model.weights.stored import Stored, StoredBank, StoredBlock, StoredModel, StoredStack, StoredWeight
from strata_cli.model.weights.values import untrained
from strata_kernels.params import AttentionWeights, ExpertsWeights, GatedDeltaWeights, HeadWeights, MtpInputWeights
from strata_kernels.weight import ExpertBank, Stack, Weight

DTYPES = {
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "I64": torch.int64,
    "I32": torch.int32,
}
BLOCK_WEIGHTS: dict[str, Any] = {
    "attention": AttentionWeights,
    "gated_delta": GatedDeltaWeights,
    "experts": ExpertsWeights,
    "head": HeadWeights,
    "mtp_input": MtpInputWeights,
}
CHUNK_BYTES = 64 * 2**20  # on its way to a device


def load_model(stored: StoredModel, device: torch.device | str) -> ModelWeights:
    """The weights of a model on `device`.

    Raises UsageError for values that contradict each other; StrataError: a file that cannot be read, or changed since
    its header was.
    """
    device = torch.device(device)
    with ExitStack() as stack:
        mapped = Mapped(stack)
        loader = _Loader(mapped, mapped if device.type == "cpu" else Copied(stack, device), device)
        embedding = loader.weight(stored.embedding)
        blocks, head = tuple(map(loader.block, stored.blocks)), loader.block(stored.head)
        mtp, notes = None, []
        if (found := stored.mtp) is not None:
            mtp = MtpWeights(
                loader.block(found.input), tuple(map(loader.block, found.blocks)), loader.block(found.head)
            )
            notes = untrained(mtp, found.source)
    return ModelWeights(embedding, blocks, head, mtp, stored, tuple(notes))


class Place(Protocol):
    """Where the bytes of a weight lie at run time."""

    def tensor(self, stored: Stored) -> Tensor: ...

    def stack(self, stored: Sequence[Stored | Tensor]) -> Tensor | tuple[Tensor, ...]:
        """Tensors of one shape, one an expert; those that are in no file are given as they are."""
        ...


class Mapped:
    """Views of the files, mapped to be read: nothing is copied, and what is not used is not even read.

    A view keeps its file's mapping. A tensor that does not lie at a multiple of its numbers' size is copied.
    """

    def __init__(self, stack: ExitStack):
        self._stack = stack
        self._maps: dict[Path, mmap.mmap] = {}
        self._all: dict[tuple[Path, str], Tensor] = {}  # a whole file as numbers of one dtype

    def tensor(self, stored: Stored) -> Tensor:
        if not stored.aligned:
            raw = np.frombuffer(self._map(stored), np.uint8, stored.size_bytes, stored.offset).copy()
            return torch.from_numpy(raw).view(DTYPES[stored.dtype]).view(stored.shape)
        key = (stored.file, stored.dtype)
        if key not in self._all:
            self._all[key] = self._numbers(stored)
        numbers, width = self._all[key], DTYPES[stored.dtype].itemsize
        strides, step = [], 1
        for n in reversed(stored.shape):
            strides.append(step)
            step *= n
        return numbers.as_strided(stored.shape, strides[::-1], stored.offset // width)

    def stack(self, stored: Sequence[Stored | Tensor]) -> tuple[Tensor, ...]:
        return tuple(self.tensor(one) if isinstance(one, Stored) else one for one in stored)

    def _numbers(self, stored: Stored) -> Tensor:
        whole, dtype = self._map(stored), DTYPES[stored.dtype]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The given buffer is not writable")  # nobody writes into weights
            return torch.frombuffer(whole, dtype=dtype, count=len(whole) // dtype.itemsize)

    def _map(self, stored: Stored) -> mmap.mmap:
        if stored.file not in self._maps:
            stream = open_unchanged(stored, self._stack)
            try:
                self._maps[stored.file] = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
            except (OSError, ValueError) as fault:
                raise StrataError(f"cannot map {stored.file}: {fault}") from fault
        return self._maps[stored.file]


class Copied:
    """Tensors of another device, filled as they are read; of the host's memory only one chunk is used."""

    def __init__(self, stack: ExitStack, device: torch.device):
        self.device = device
        self._stack = stack
        self._streams: dict[Path, BinaryIO] = {}
        self._chunk = torch.empty(CHUNK_BYTES, dtype=torch.uint8)

    def tensor(self, stored: Stored) -> Tensor:
        made = torch.empty(stored.shape, dtype=DTYPES[stored.dtype], device=self.device)
        self._fill(made, stored)
        return made

    def stack(self, stored: Sequence[Stored | Tensor]) -> Tensor:
        first = next(one for one in stored if isinstance(one, Stored))
        shape = (len(stored), *first.shape)
        made = torch.empty(shape, dtype=DTYPES[first.dtype], device=self.device)
        for place, one in zip(made, stored):
            if isinstance(one, Stored):
                self._fill(place, one)
            else:
                place.copy_(one)
        return made

    def _fill(self, made: Tensor, stored: Stored) -> None:
        if stored.file not in self._streams:
            self._streams[stored.file] = open_unchanged(stored, self._stack)
        stream, target = self._streams[stored.file], made.flatten().view(torch.uint8)
        stream.seek(stored.offset)
        done, view = 0, self._chunk.numpy().data
        while done < stored.size_bytes:
            try:
                count = stream.readinto(view[: min(CHUNK_BYTES, stored.size_bytes - done)])  # type: ignore[attr-defined]
            except OSError as fault:
                raise StrataError(f"cannot read {stored.file}: {fault.strerror}") from fault
            if not count:
                raise StrataError(f"{stored.file} ended while {stored.name} was read", "did it change meanwhile?")
            target[done : done + count] = self._chunk[:count]
            done += count


def open_unchanged(stored: Stored, stack: ExitStack) -> BinaryIO:
    """The file of a tensor, open until `stack` ends. Raises StrataError: it is gone, or not the one whose header was
    read.
    """
    try:
        stream = stack.enter_context(stored.file.open("rb", buffering=0))
    except OSError as fault:
        raise StrataError(f"cannot read {stored.file}: {fault.strerror}") from fault
    if stamp_of(stream) != stored.stamp:
        raise StrataError(f"{stored.file} changed while the model was loaded", "load it again when it is whole")
    return stream


@dataclass(slots=True)
class _Loader:
    """`host` reads what is compared or converted, `place` holds what is multiplied with."""

    host: Mapped
    place: Place
    device: torch.device
    made: dict[int, Weight] = field(default_factory=dict)  # by id of what is stored: a weight that serves twice is one

    def block(self, stored: StoredBlock) -> Any:
        """The weights of a block, of the class that its kind has in `strata_kernels.params`."""
        fields: dict[str, Tensor | Weight | ExpertBank] = {}
        for role, found in stored.weights.items():
            wanted = stored.block.tensors[role]
            if isinstance(found, StoredBank):
                fields[role] = self._bank(found)
            elif isinstance(wanted, Vector):
                fields[role] = self._vector(found, wanted.transform)
            else:
                fields[role] = self.weight(found)
        return BLOCK_WEIGHTS[stored.block.kind](**fields)

    def weight(self, stored: StoredWeight) -> Weight:
        if id(stored) not in self.made:
            layout_of(stored).check(stored, self.host.tensor)
            parts = {role: self.place.tensor(part) for role, part in stored.parts.items()}
            self.made[id(stored)] = Weight(stored.format, parts, (stored.shape[0], stored.shape[1]))
        return self.made[id(stored)]

    def _vector(self, stored: StoredWeight, transform: str) -> Tensor:
        values = self.host.tensor(stored.parts["weight"]).to(torch.float32, copy=True)
        if transform == PLUS_ONE:
            values = 1 + values
        elif transform == NEGATIVE_EXP:
            values = -values.exp()
        elif transform == CONV:
            values = values.squeeze(1).t().contiguous()
        else:
            assert transform == AS_STORED, transform
        return values.to(self.device)

    def _bank(self, stored: StoredBank) -> ExpertBank:
        return ExpertBank(tuple(map(self._stack, stored.gate_up)), self._stack(stored.down))

    def _stack(self, stored: StoredStack) -> Stack:
        if stored.whole is not None:
            parts = {role: self.place.tensor(part) for role, part in stored.whole.parts.items()}
            return Stack(stored.whole.format, parts, stored.shape)
        first, layout = stored.apart[0], layout_of(stored.apart[0])
        for weight in stored.apart:
            layout.check(weight, self.host.tensor)
        made: dict[str, Tensor | tuple[Tensor, ...]] = {}
        roles = {role: part for weight in stored.apart for role, part in weight.parts.items()}
        for role, like in roles.items():
            lacking = any(role not in weight.parts for weight in stored.apart)
            filled = layout.filled(first, role).to(DTYPES[like.dtype]) if lacking else torch.empty(0)
            made[role] = self.place.stack([weight.parts.get(role, filled) for weight in stored.apart])
        return Stack(first.format, made, stored.shape)
