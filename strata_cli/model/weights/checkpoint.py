"""Checkpoints: headers first, without torch; then, when everything is found to be right, the weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from strata_cli.errors import UsageError
from strata_cli.model.families import Bank, Block, ModelConfig, Shape, family
from strata_cli.model.weights.formats import recognise, split_name
from strata_cli.model.weights.safetensors import read_header, some, weight_files
from strata_cli.model.weights.stored import (
    Stored,
    StoredBank,
    StoredBlock,
    StoredModel,
    StoredMtp,
    StoredStack,
    StoredWeight,
)

if TYPE_CHECKING:
    import torch

    from strata_cli.model.weights import ModelWeights

Parts = dict[str, Stored]  # tensors of one weight


@dataclass(frozen=True, slots=True)
class CheckpointFormat:
    """What a checkpoint's headers say. `text`: the formats that hold its main weights, the largest share first."""

    text: str
    has_mtp: bool


def open_checkpoint(path: Path) -> WeightFiles:
    """Read the headers of a directory's safetensors files, or of one file.

    Raises UsageError: nothing there, a file that is missing, truncated or corrupt.
    """
    return WeightFiles(path, [tensor for file in weight_files(path) for tensor in read_header(file)])


class WeightFiles:
    """The tensors of a checkpoint, known by their headers."""

    def __init__(self, path: Path, tensors: list[Stored]):
        self.path, self.tensors = path, tensors
        self._named: dict[str, dict[str, Parts]] = {}

    def named(self, config: ModelConfig) -> Mapping[str, Parts]:
        """Canonical name of a weight -> its tensors by part, for the family of `config`.

        Raises UsageError: a tensor that lies in two files, or in one under two names.
        """
        if config.family not in self._named:
            rename = family(config.family).rename
            found: dict[str, Stored] = {}
            weights: dict[str, Parts] = {}
            for tensor in self.tensors:
                name = rename(tensor.name)
                if name is None:
                    continue
                if name in found:
                    other = found[name].file.name
                    raise UsageError(f"{self.path}: {tensor.name} is there twice, in {other} and {tensor.file.name}")
                found[name] = tensor
                weight, part = split_name(name)
                weights.setdefault(weight, {})[part] = tensor
            self._named[config.family] = weights
        return self._named[config.family]

    def has_mtp(self, config: ModelConfig) -> bool:
        """Are there tensors of an MTP head, whole or not?"""
        return config.mtp is not None and any(name.startswith(config.mtp.prefix) for name in self.named(config))

    def check(self, config: ModelConfig, graft: WeightFiles | None = None) -> CheckpointFormat:
        """`find`, and what a person may want to know of it."""
        found = self.find(config, graft)
        sizes: Counter[str] = Counter()
        for weight in each_once((found.embedding, *(w for b in (*found.blocks, found.head) for _, w in b.each()))):
            sizes[weight.label] += weight.size
        shares = [label for label, size in sizes.most_common() if size >= 0.05 * sizes.total()]
        return CheckpointFormat(" + ".join(shares), found.mtp is not None)

    def find(self, config: ModelConfig, graft: WeightFiles | None = None) -> StoredModel:
        """Where each weight that `config` needs lies; nothing but headers is read.

        `graft`: another checkpoint whose MTP head stands in for this one's.
        Raises UsageError naming tensors that are missing, unexpected, misshapen or in a format that is not supported.
        """
        mtp = config.mtp
        main = _Match({name: p for name, p in self.named(config).items() if not mtp or not name.startswith(mtp.prefix)})
        embedding, out = config.embedding, config.head.tensors["out"]
        main.take(embedding.name, embedding.shape)
        if config.tie_word_embeddings and out.name not in main.left and embedding.name in main.found:
            main.found[out.name] = main.found[embedding.name]
        for block in (*config.blocks, config.head):
            main.take_block(block)
        main.settle(self.path)
        blocks, head = tuple(map(main.block, config.blocks)), main.block(config.head)
        source = graft or self
        if mtp is None or not source.has_mtp(config) or (graft is None and not mtp.own):
            if graft:
                named = f"its tensors would be named {mtp.prefix}*" if mtp else f"the family {config.family} has none"
                raise UsageError(f"{graft.path} has no MTP head", named)
            return StoredModel(main.found[embedding.name], blocks, head)
        own = {name: parts for name, parts in source.named(config).items() if name.startswith(mtp.prefix)}
        match = _Match(own, found=dict(main.found))  # the output head is the main model's
        for block in (mtp.input, *mtp.blocks, mtp.head):
            match.take_block(block)
        match.settle(source.path)
        stored = StoredMtp(
            source.path, match.block(mtp.input), tuple(map(match.block, mtp.blocks)), match.block(mtp.head)
        )
        return StoredModel(main.found[embedding.name], blocks, head, stored)

    def load(self, config: ModelConfig, device: torch.device | str, graft: WeightFiles | None = None) -> ModelWeights:
        """All weights as they are stored, after the checks of `find`: on a CPU as views of the mapped files, else on
        the device.

        Raises UsageError as `find` does and for values that contradict each other; StrataError: a file that cannot be
        read, or changed since its header was.
        """
        from strata_cli.model.weights.load import load_model

        return load_model(self.find(config, graft), device)


def each_once(weights: Iterable[StoredWeight]) -> Iterator[StoredWeight]:
    """Those weights, one that serves twice only once."""
    return iter({id(weight): weight for weight in weights}.values())


@dataclass(slots=True)
class _Match:
    """Weights on disk beside those that are wanted. `left`: not yet asked for; `found`: by canonical name."""

    left: dict[str, Parts]
    found: dict[str, StoredWeight] = field(default_factory=dict)
    banks: dict[str, StoredBank] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def take(self, name: str, shape: Shape) -> StoredWeight | None:
        """Look for one weight; what is not right is remembered."""
        if name in self.found:
            return self.found[name]
        parts = self.left.pop(name, None)
        if parts is None:
            self.missing.append(name)
            return None
        try:
            self.found[name] = recognise(parts, shape)
        except UsageError as fault:
            self.wrong.append(str(fault))
            return None
        return self.found[name]

    def take_block(self, block: Block) -> None:
        for tensor in block.tensors.values():
            if not isinstance(tensor, Bank):
                self.take(tensor.name, tensor.shape)
                continue
            e, inner, hidden = tensor.experts, tensor.inner, tensor.hidden
            gate_up = self._apart(tensor, ("gate_proj", "up_proj"), (inner, hidden))
            if not gate_up:
                gate_up = self._whole(f"{tensor.name}.gate_up_proj", (e, 2 * inner, hidden))
            down = self._apart(tensor, ("down_proj",), (hidden, inner))
            if not down:
                down = self._whole(f"{tensor.name}.down_proj", (e, hidden, inner))
            self.banks[tensor.name] = StoredBank(gate_up, down[0])

    def _whole(self, name: str, shape: tuple[int, int, int]) -> tuple[StoredStack, ...]:
        return (StoredStack(name, shape, whole=self.take(name, shape)),)

    def _apart(self, bank: Bank, projections: tuple[str, ...], shape: tuple[int, int]) -> tuple[StoredStack, ...]:
        """A stack for each projection if any of its matrices is on disk, else none."""
        names = [[f"{bank.name}.{e}.{p}.weight" for e in range(bank.experts)] for p in projections]
        if not any(name in self.left for stack in names for name in stack):
            return ()
        stacks = []
        for projection, members in zip(projections, names):
            weights = tuple(weight for name in members if (weight := self.take(name, shape)) is not None)
            self._compare(weights)
            stacks.append(StoredStack(f"{bank.name}.{projection}", (bank.experts, *shape), apart=weights))
        return tuple(stacks)

    def _compare(self, weights: tuple[StoredWeight, ...]) -> None:
        """Experts' weights make a stack if their parts are of one kind; what one of them lacks can be filled in."""
        parts: dict[str, Stored] = {}
        for weight in weights:
            for role, part in weight.parts.items():
                first = parts.setdefault(role, part)
                if weight.format != weights[0].format or (part.dtype, part.shape) != (first.dtype, first.shape):
                    what = f"{part.dtype} {list(part.shape)}, but {first.name} {first.dtype} {list(first.shape)}"
                    self.wrong.append(f"{part.name} is {what}: experts of a layer must be stored alike")
                    break

    def settle(self, path: Path) -> None:
        """Raise UsageError with what does not match, if anything."""
        unexpected = [stored.name for parts in self.left.values() for stored in parts.values()]
        named = (("missing", self.missing), ("unexpected", unexpected))
        faults = [f"{what} {some(names)}" for what, names in named if names]
        if faults or self.wrong:
            raise UsageError(f"{path}: " + "; ".join(faults + ([some(self.wrong)] if self.wrong else [])))

    def block(self, block: Block) -> StoredBlock:
        """A block whose weights were all found."""
        tensors = block.tensors.items()
        return StoredBlock(block, {role: self.banks.get(t.name) or self.found[t.name] for role, t in tensors})
