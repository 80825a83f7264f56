"""The MTP head: (hidden row, next token) -> hidden row, whose logits guess the token after the next one."""

import torch
from torch import Tensor

from strata_cli.model.config import ModelConfig
from strata_cli.model.layers import KV, DecoderLayer, Rope, Weights, under
from strata_cli.model.rows import Rows
from strata_kernels.linear import linear
from strata_kernels.norm import rms_norm


class MtpHead:
    """One full-attention layer over concat(norm(embedding), norm(hidden)); shares the main model's embedding and
    output head.

    Row i pairs the main model's hidden row i with token i + 1 and stands at position i + 1, so key 0 does not exist:
    a prefix of p tokens owns exactly the entries 1 .. p - 1 of its own pages. `forwards` counts forwards.
    """

    def __init__(self, weights: Weights, config: ModelConfig, embedding: Tensor):
        self.config, self.embedding = config, embedding
        self.fc = weights["fc.weight"].t().contiguous()
        self.norm_embedding = 1 + weights["pre_fc_norm_embedding.weight"].float()
        self.norm_hidden = 1 + weights["pre_fc_norm_hidden.weight"].float()
        self.norm = 1 + weights["norm.weight"].float()
        self.layer = DecoderLayer(under(weights, "layers.0."), config, "full_attention")
        self.rope = Rope(config, embedding.device)
        self.kv_layer = config.layer_types.count("full_attention")  # behind the main model's own
        self.forwards = 0

    def forward(self, rows: Rows, hidden: Tensor, kv: KV) -> Tensor:
        """hidden [R, D]: of the token before each row (main model, after its final norm, or this head's own output).

        Returns the rows after the head's norm, [R, D]: for the logits and for the next step of the chain.
        """
        self.forwards += 1
        eps = self.config.rms_norm_eps
        embedded = rms_norm(self.embedding[rows.tokens], self.norm_embedding, eps)
        joined = torch.cat((embedded, rms_norm(hidden, self.norm_hidden, eps)), -1)
        x = self.layer.attend(linear(joined, self.fc), rows, self.rope(rows.positions), kv, self.kv_layer, first_key=1)
        return rms_norm(x, self.norm, eps)
