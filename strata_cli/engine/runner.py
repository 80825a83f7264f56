"""One forward for any mix of rows: the only place where the engine meets the model."""

from collections.abc import Sequence

import torch
from torch import Tensor

from strata_cli.engine.cache.pages import PAGE_TOKENS
from strata_cli.engine.cache.slots import SlotCache
from strata_cli.model.decoder import Decoder
from strata_cli.model.mtp import MtpHead
from strata_cli.model.rows import Rows, Segment
from strata_kernels.linear import linear, padded_rows


class Runner:
    """The model, its MTP head (None: drafts come from elsewhere or not at all) and the slots' cache."""

    def __init__(self, model: Decoder, head: MtpHead | None, cache: SlotCache, device: torch.device):
        self.model, self.head, self.cache, self.device = model, head, cache, device
        self.draft_head: tuple[Tensor, Tensor] | None = None  # ids and their columns of the output head; None: all

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

    def restrict_drafts(self, ids: Sequence[int]) -> None:
        """From now on `draft_logits` scores these ids alone."""
        index = torch.tensor(ids, device=self.device)
        self.draft_head = index, self.model.head[:, index].contiguous()

    def draft_logits(self, hidden: Tensor, wanted: Sequence[int]) -> Tensor:
        """As `logits`, with -inf for every id outside the draft vocabulary."""
        if self.draft_head is None:
            return self.logits(hidden, wanted)
        ids, head = self.draft_head
        scored = linear(self._pick(hidden, wanted), head)[: len(wanted)].float()
        logits = scored.new_full((len(wanted), self.model.head.shape[1]), -torch.inf)
        return logits.index_copy_(1, ids, scored)

    def _pick(self, hidden: Tensor, wanted: Sequence[int]) -> Tensor:
        """The wanted rows, padded to whole row tiles."""
        index = list(wanted) + [0] * (padded_rows(len(wanted)) - len(wanted))
        return hidden[torch.tensor(index, device=self.device)]

    def logits(self, hidden: Tensor, wanted: Sequence[int]) -> Tensor:
        """Float32 logits [len(wanted), V] of the wanted rows of hidden [R, D]."""
        return self.model.logits(self._pick(hidden, wanted))[: len(wanted)]
