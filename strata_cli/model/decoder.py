"""The main model: embedding, a family's blocks in their order, and the head that draws."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from strata_cli.model.families import Block
from strata_cli.model.weights import ModelWeights
from strata_kernels.head.pool import Drawn, Draws, SamplerPool
from strata_kernels.params import BlockWeights, ExpertsParams, HeadParams
from strata_kernels.product import lookup
from strata_kernels.table import choose, sibling
from strata_kernels.weight import formats
from strata_kernels.window import Rows


@dataclass(frozen=True, slots=True)
class Bound:
    """A block with all it works on: call it with hidden rows and the window's rows."""

    run: Callable[..., Tensor]
    pool: Any
    layer: int
    weights: Any
    params: Any

    def __call__(self, x: Tensor, rows: Rows) -> Tensor:
        return self.run(x, rows, self.pool, self.layer, self.weights, self.params)


class Binder:
    """Binds blocks in order: the n-th block of a kind works on layer n of its kind's pool.

    `chosen`: which sibling runs what, by (block, formats of its weights).
    """

    def __init__(self, pools: Mapping[str, Any], device: str):
        self.pools, self.device = pools, device
        self.layers = dict.fromkeys(pools, 0)
        self.chosen: dict[tuple[str, tuple[str, ...]], str] = {}

    def function(self, kind: str, weights: BlockWeights) -> Callable[..., Any]:
        """What runs a block of this kind for these weights."""
        found = formats(weights)
        for what, read in ((kind, found), *(("product", (name,)) for name in found)):
            self.chosen[what, read] = choose(what, read, self.device)
        run: Callable[..., Any] = getattr(sibling(kind, found, self.device), kind)
        return run

    def bind(self, blocks: Sequence[Block], weights: Sequence[BlockWeights]) -> list[Bound]:
        return [self.one(b, w) for b, w in zip(blocks, weights, strict=True)]

    def one(self, of: Block, weights: BlockWeights) -> Bound:
        layer = self.layers[of.kind]
        self.layers[of.kind] += 1
        return Bound(self.function(of.kind, weights), self.pools[of.kind], layer, weights, of.params)


class Decoder:
    """One forward over any mix of rows. `forwards` counts them; `vocab` counts rows of the output head."""

    def __init__(
        self, blocks: Sequence[Bound], weights: ModelWeights, head: HeadParams, dtype: torch.dtype, binder: Binder
    ):
        self.blocks, self.params, self.dtype = list(blocks), head, dtype
        self.embedding, self.weights = weights.embedding, weights.head
        self.vocab = head.vocab
        self.expert_layers = sum(isinstance(b.params, ExpertsParams) for b in blocks)
        self._head = binder.function("head", weights.head)
        self.forwards = 0

    def forward(self, rows: Rows) -> Tensor:
        """Hidden rows [R, D] before the final norm."""
        self.forwards += 1
        x = lookup(self.embedding, rows.tokens).to(self.dtype)
        for bound in self.blocks:
            x = bound(x, rows)
        return x

    def draw(self, x: Tensor, draws: Draws, pool: SamplerPool) -> Drawn:
        """The final norm of all rows, and the tokens of those that are drawn."""
        drawn: Drawn = self._head(x, draws, pool, self.weights, self.params)
        return drawn
