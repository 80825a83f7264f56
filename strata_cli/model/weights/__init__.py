"""From files to weights: `checkpoint` finds and checks what is on disk by headers, `formats` recognises how it is
stored, `load` makes views or device tensors of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from strata_cli.model.weights.stored import StoredModel

if TYPE_CHECKING:
    from strata_kernels.params import BlockWeights, HeadWeights, MtpInputWeights
    from strata_kernels.weight import Weight


@dataclass(frozen=True, slots=True, eq=False)
class MtpWeights:
    """The weights of an MTP head. Its output head is the main model's."""

    input: MtpInputWeights
    blocks: tuple[BlockWeights, ...]
    head: HeadWeights


@dataclass(frozen=True, slots=True, eq=False)
class ModelWeights:
    """All weights of a model, as they are stored, in the order of its config's blocks.

    `mtp` None: no head. `stored`: where each of them comes from. `warnings`: what a person should know of the values.
    """

    embedding: Weight
    blocks: tuple[BlockWeights, ...]
    head: HeadWeights
    mtp: MtpWeights | None
    stored: StoredModel
    warnings: tuple[str, ...] = ()
