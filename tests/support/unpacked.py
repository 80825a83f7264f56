"""Loaded weights as plain float32 tensors under canonical names, for tests that compare values."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from strata_cli.model.families import Bank, Block, ModelConfig
from strata_cli.model.weights import ModelWeights
from strata_kernels.formats import unpack
from strata_kernels.weight import Stack, Weight


def matrix(weight: Weight) -> Tensor:
    """The whole of a weight, float32."""
    return unpack(weight, 0, weight.shape[0])


def experts(*stacks: Stack) -> Tensor:
    """Stacks as one tensor [E, sum out, in]."""
    return torch.stack([torch.cat([matrix(stack[e]) for stack in stacks]) for e in range(stacks[0].shape[0])])


def unpacked(weights: ModelWeights, config: ModelConfig) -> tuple[dict[str, Tensor], dict[str, Tensor] | None]:
    """The main model's and the MTP head's tensors, the head's without their prefix; None: no head."""
    main = {config.embedding.name: matrix(weights.embedding)}
    for block, found in zip((*config.blocks, config.head), (*weights.blocks, weights.head), strict=True):
        main.update(_tensors(block, found))
    if weights.mtp is None:
        return main, None
    mtp = config.mtp
    assert mtp is not None
    blocks, made = (mtp.input, *mtp.blocks, mtp.head), (weights.mtp.input, *weights.mtp.blocks, weights.mtp.head)
    head = {name: value for block, found in zip(blocks, made, strict=True) for name, value in _tensors(block, found)}
    assert torch.equal(head.pop(config.head.tensors["out"].name), matrix(weights.head.out))
    return main, {name.removeprefix(mtp.prefix): value for name, value in head.items()}


def _tensors(block: Block, found: Any) -> Iterator[tuple[str, Tensor]]:
    for role, tensor in block.tensors.items():
        value = getattr(found, role)
        if isinstance(tensor, Bank):
            yield f"{tensor.name}.gate_up_proj", experts(*value.gate_up)
            yield f"{tensor.name}.down_proj", experts(value.down)
        else:
            yield tensor.name, value if isinstance(value, Tensor) else matrix(value)


def storages(weights: ModelWeights) -> dict[int, Tensor]:
    """One tensor of every storage that the weights lie in, by the storage's address."""
    blocks: list[Any] = [*weights.blocks, weights.head]
    if weights.mtp is not None:
        blocks += [weights.mtp.input, *weights.mtp.blocks, weights.mtp.head]
    values = [weights.embedding, *(getattr(block, name) for block in blocks for name in block.__slots__)]
    tensors = (t for v in values if v is not None for t in ([v] if isinstance(v, Tensor) else v.tensors()))
    return {t.untyped_storage().data_ptr(): t for t in tensors}
