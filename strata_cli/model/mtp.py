"""The MTP head: (hidden row, next token) -> hidden row, from which the token after the next one is drawn."""

from collections.abc import Sequence

from torch import Tensor

from strata_cli.model.decoder import Binder, Bound
from strata_kernels.head.pool import Drawn, Draws, SamplerPool
from strata_kernels.params import HeadParams, HeadWeights
from strata_kernels.window import Rows


class MtpHead:
    """Its blocks over join(norm(embedding), norm(hidden)); shares the main model's embedding and output head.

    Row i pairs the main model's hidden row i with token i + 1 and stands at position i + 1, so key 0 does not exist:
    a prefix of p tokens owns exactly the entries 1 .. p - 1 of its own pages. `forwards` counts forwards.
    """

    def __init__(self, input: Bound, blocks: Sequence[Bound], weights: HeadWeights, params: HeadParams, binder: Binder):
        self.input, self.blocks, self.weights, self.params = input, list(blocks), weights, params
        self._head = binder.function("head", weights)
        self.forwards = 0

    def forward(self, rows: Rows, hidden: Tensor, draws: Draws | None, pool: SamplerPool) -> Drawn | None:
        """hidden [R, D]: of the token before each row (main model, after its final norm, or this head's own output).

        What it draws holds the rows after the head's norm, for the next step of the chain; None without draws.
        """
        self.forwards += 1
        x = self.input(hidden, rows)
        for bound in self.blocks:
            x = bound(x, rows)
        if draws is None:
            return None
        drawn: Drawn = self._head(x, draws, pool, self.weights, self.params)
        return drawn
