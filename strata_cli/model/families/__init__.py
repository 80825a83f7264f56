"""Families of models: what one is made of, said in nouns that loader, memory plan and engine read. No torch.

A family is one module that turns a config.json into a `ModelConfig`: the blocks in order of application, the parameters
of each, and the names and shapes of its tensors. Nothing else in the package knows a family by name. To add one, write
the module and register it here.

Names of tensors are canonical: what `Family.rename` makes of a name on disk.
"""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, cast

from strata_kernels.params import AttentionParams, BlockParams, GatedDeltaParams

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix [out, in] in any format that a `Weight` may have."""

    name: str
    shape: tuple[int, int]


# How the float32 values that a block reads follow from those on disk
AS_STORED = ""
PLUS_ONE = "plus_one"  # 1 + w: norms stored less one
NEGATIVE_EXP = "negative_exp"  # -exp(w): decay rates stored as logarithms
CONV = "conv"  # taps [C, 1, kernel] as [kernel, C], the newest tap last


@dataclass(frozen=True, slots=True)
class Vector:
    """A small tensor of plain numbers: norms, biases, rates, the taps of a convolution. `shape`: on disk."""

    name: str
    shape: Shape
    transform: str = AS_STORED


@dataclass(frozen=True, slots=True)
class Bank:
    """The routed experts of a layer, stacked or apart, whichever is on disk:

    `STEM.gate_up_proj` [E, 2F, D] (rows 0..F-1 gate, F..2F-1 up) or `STEM.{e}.gate_proj.weight`,
    `STEM.{e}.up_proj.weight` [F, D]; `STEM.down_proj` [E, D, F] or `STEM.{e}.down_proj.weight` [D, F].
    """

    name: str  # STEM
    experts: int
    inner: int
    hidden: int


@dataclass(frozen=True, slots=True)
class Block:
    """One block of a model. `kind`: its folder in `strata_kernels`; `tensors` by field of that block's weights."""

    kind: str
    params: BlockParams
    tensors: Mapping[str, Matrix | Vector | Bank]


@dataclass(frozen=True, slots=True)
class Mtp:
    """A multi-token-prediction head: `input` joins hidden row and next token, `blocks` follow, `head` scores.

    `prefix` of the names of its own tensors; a name without it (the output head's) is the main model's. `own`: the
    checkpoint's own head, where it has one, is to be used.
    """

    prefix: str
    input: Block
    blocks: tuple[Block, ...]
    head: Block
    own: bool = True


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """What determines a model's tensors and arithmetic.

    `blocks`: the main model's in order of application, without its `head`. `vocab_size`: rows of the embedding; the
    tokenizer may know fewer ids. `mtp`: what a head would be made of, whether or not a checkpoint has it; None: the
    family has none. `eos_token_ids`: generation_config.json's where it names any, else config.json's.
    """

    family: str
    hidden_size: int
    vocab_size: int
    max_position_embeddings: int
    tie_word_embeddings: bool
    eos_token_ids: tuple[int, ...]
    embedding: Matrix
    blocks: tuple[Block, ...]
    head: Block
    mtp: Mtp | None = None

    def count(self, kind: str) -> int:
        """Blocks of a kind in the main model."""
        return sum(block.kind == kind for block in self.blocks)

    @property
    def attention(self) -> AttentionParams | None:
        """Parameters of the attention blocks, whose keys and values share one pool."""
        return next((block.params for block in self.blocks if isinstance(block.params, AttentionParams)), None)

    @property
    def recurrence(self) -> GatedDeltaParams | None:
        """Parameters of the GatedDeltaNet blocks, whose states share one pool."""
        return next((block.params for block in self.blocks if isinstance(block.params, GatedDeltaParams)), None)


class Family(Protocol):
    """What a family's module has."""

    NAME: str
    MODEL_TYPES: tuple[str, ...]  # of config.json, its own and its text_config's

    def parse(self, top: dict[str, Any], stop_ids: Any, source: str) -> ModelConfig:
        """The ModelConfig of a config.json.

        Args:
            top: the whole file; its `text_config` is read where there is one, else the top level.
            stop_ids: `eos_token_id` of generation_config.json, or None.
            source: what error messages call the file.

        Raises UsageError: a field that is missing or nonsensical, a feature that is not implemented.
        """
        ...

    def rename(self, name: str) -> str | None:
        """The canonical name of a tensor on disk, or None for one that is not used."""
        ...


# name -> module
FAMILIES = {
    "qwen3_5_moe": "strata_cli.model.families.qwen3_5_moe",
}


def register(name: str, module: str) -> None:
    """Add a family of one's own: `module` is imported when a checkpoint asks for a family."""
    FAMILIES[name] = module


def family(name: str) -> Family:
    """The family of this name."""
    return cast(Family, importlib.import_module(FAMILIES[name]))


def family_of(model_type: str | None) -> Family | None:
    """The family that claims a config.json's `model_type`."""
    return next((found for found in map(family, FAMILIES) if model_type in found.MODEL_TYPES), None)
