"""One forward for any mix of rows: the only place where the engine meets the model."""

from collections.abc import Sequence

import torch
from torch import Tensor

from strata_cli.engine.cache import SlotCache
from strata_cli.engine.cache.pages import PAGE_TOKENS
from strata_cli.model.decoder import Decoder
from strata_cli.model.mtp import MtpHead
from strata_cli.model.rows import Rows, Segment
from strata_kernels.linear import padded_rows


class Runner:
    """The model, its MTP head (None: drafts come from elsewhere or not at all) and the slots' cache."""

    def __init__(self, model: Decoder, head: MtpHead | None, cache: SlotCache, device: torch.device):
        self.model, self.head, self.cache, self.device = model, head, cache, device

    def _rows(self, segments: Sequence[Segment]) -> Rows:
        return Rows.build(segments, self.cache.kv.tables, PAGE_TOKENS, self.device)

    def forward(self, segments: Sequence[Segment]) -> tuple[Rows, Tensor]:
        """The main model over all segments: their layout and the hidden rows [R, D] after the final norm."""
        rows = self._rows(segments)
        return rows, self.model.forward(rows, self.cache.kv, self.cache.recurrent)

    def head_forward(self, segments: Sequence[Segment], hidden: Tensor) -> tuple[Rows, Tensor]:
        """The MTP head over all segments; hidden [rows, D] of the token before each row. Returns layout and its rows
        [R, D].
        """
        assert self.head is not None
        rows = self._rows(segments)
        padded = hidden.new_zeros(rows.padded, hidden.shape[1])
        padded[: rows.count] = hidden
        return rows, self.head.forward(rows, padded, self.cache.kv)

    def logits(self, hidden: Tensor, wanted: Sequence[int]) -> Tensor:
        """Float32 logits [len(wanted), V] of the wanted rows of hidden [R, D]."""
        index = list(wanted) + [0] * (padded_rows(len(wanted)) - len(wanted))
        return self.model.logits(hidden[torch.tensor(index, device=self.device)])[: len(wanted)]
