"""The main model: embedding, hybrid layers, final norm; and the output head it shares with the MTP head."""

import torch
from torch import Tensor

from strata_cli.model.config import ModelConfig
from strata_cli.model.layers import KV, DecoderLayer, Recurrent, Rope, Weights, under
from strata_cli.model.rows import Rows
from strata_kernels.linear import linear
from strata_kernels.norm import rms_norm


class Decoder:
    """One forward over any mix of rows. `forwards` counts them."""

    def __init__(self, weights: Weights, config: ModelConfig, vocab: int):
        """`vocab`: real token ids; the padded rows behind them never win."""
        self.config, self.vocab = config, vocab
        self.embedding = weights["embed_tokens.weight"]
        self.head = weights["lm_head.weight"].t().contiguous()
        self.norm = 1 + weights["norm.weight"].float()
        self.layers = [
            DecoderLayer(under(weights, f"layers.{i}."), config, kind) for i, kind in enumerate(config.layer_types)
        ]
        self.rope = Rope(config, self.embedding.device)
        self.forwards = 0

    def forward(self, rows: Rows, kv: KV, recurrent: Recurrent) -> Tensor:
        """Hidden rows after the final norm, [R, D]."""
        self.forwards += 1
        x = self.embedding[rows.tokens]
        angles = self.rope(rows.positions)
        plan = rows.time_plan(self.config.linear_conv_kernel_dim)
        attended = recurred = 0
        for layer in self.layers:
            if layer.attention is not None:
                x = layer.attend(x, rows, angles, kv, attended)
                attended += 1
            else:
                x = layer.recur(x, rows, plan, recurrent, recurred)
                recurred += 1
        return rms_norm(x, self.norm, self.config.rms_norm_eps)

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [R, D], whole row tiles -> float32 logits [R, V]; rows of the vocabulary's padding are -inf."""
        logits = linear(hidden, self.head).float()
        if self.vocab < logits.shape[1]:
            logits[:, self.vocab :] = -torch.inf
        return logits
