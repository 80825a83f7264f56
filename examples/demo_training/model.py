"""The demo model: trunk, head and the MTP layer that is run along a chain of its own outputs."""

import torch
from torch import nn

from .layers import Attention, GatedDeltaNet, MixtureOfExperts, ModelConfig, RMSNorm, causal_bias, linear


class DecoderLayer(nn.Module):
    """Pre-norm mixer and experts."""

    def __init__(self, c: ModelConfig, kind: str):
        super().__init__()
        self.kind = kind
        self.input_layernorm = RMSNorm(c.hidden_size, c.eps)
        self.post_attention_layernorm = RMSNorm(c.hidden_size, c.eps)
        if kind == "linear_attention":
            self.linear_attn = GatedDeltaNet(c)
        else:
            self.self_attn = Attention(c)
        self.mlp = MixtureOfExperts(c)

    def experts(self, x: torch.Tensor) -> torch.Tensor:
        """The second half of the layer."""
        return x + self.mlp(self.post_attention_layernorm(x))

    def forward(self, x: torch.Tensor, first: torch.Tensor | None, mask: torch.Tensor | None) -> torch.Tensor:
        """x [B, T, D]; `first` and `mask` keep the documents of a row apart."""
        y = self.input_layernorm(x)
        y = self.linear_attn(y, first) if self.kind == "linear_attention" else self.self_attn(y, mask)
        return self.experts(x + y)

    def step(self, x: torch.Tensor, state: dict) -> torch.Tensor:
        """One token."""
        mixer = self.linear_attn if self.kind == "linear_attention" else self.self_attn
        return self.experts(x + mixer.step(self.input_layernorm(x), state))

    def draft(self, x: torch.Tensor, depth: int, mask: torch.Tensor, cache: list) -> torch.Tensor:
        """One pass of the draft chain."""
        return self.experts(x + self.self_attn.draft(self.input_layernorm(x), depth, mask, cache))


class DemoModel(nn.Module):
    """`Qwen3_5MoeForCausalLM` with tied embedding and one MTP layer."""

    def __init__(self, c: ModelConfig):
        super().__init__()
        self.c = c
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(c.vocab_size, c.hidden_size)
        self.model.layers = nn.ModuleList(DecoderLayer(c, kind) for kind in c.layer_types())
        self.model.norm = RMSNorm(c.hidden_size, c.eps)
        self.mtp = nn.Module()
        self.mtp.fc = linear(2 * c.hidden_size, c.hidden_size)
        self.mtp.pre_fc_norm_embedding = RMSNorm(c.hidden_size, c.eps)
        self.mtp.pre_fc_norm_hidden = RMSNorm(c.hidden_size, c.eps)
        self.mtp.norm = RMSNorm(c.hidden_size, c.eps)
        self.mtp.layers = nn.ModuleList([DecoderLayer(c, "full_attention")])
        self.reset()

    def reset(self) -> None:
        """Initial values: outputs of the blocks small, the embedding large enough to stay visible in the residual."""
        for name, p in self.named_parameters():
            if name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight", "experts.down_proj")):
                p.data.mul_(0.1)
            elif name.endswith(("mlp.gate.weight", "shared_expert_gate.weight")):
                nn.init.normal_(p, std=0.02)
        nn.init.normal_(self.model.embed_tokens.weight, std=0.3)
        self.model.norm.weight.data.fill_(-0.9)  # the tied head would answer with its own input otherwise
        self.mtp.norm.weight.data.fill_(-0.9)

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits of post-norm hidden vectors."""
        return nn.functional.linear(hidden, self.model.embed_tokens.weight)

    def trunk(self, ids: torch.Tensor, first: torch.Tensor | None = None, mask: torch.Tensor | None = None):
        """ids [B, T] to post-norm hidden vectors [B, T, D]."""
        x = self.model.embed_tokens(ids)
        for layer in self.model.layers:
            x = layer(x, first, mask)
        return self.model.norm(x)

    def draft(self, hidden: torch.Tensor, ids: torch.Tensor, depth: int, cache: list, mask: torch.Tensor | None = None):
        """One MTP pass: post-norm hidden [B, T, D] and the next tokens [B, T] to the next post-norm hidden."""
        if mask is None:
            mask = causal_bias(ids.shape[1])[None, None]
        mtp = self.mtp
        pair = (mtp.pre_fc_norm_embedding(self.model.embed_tokens(ids)), mtp.pre_fc_norm_hidden(hidden))
        return mtp.norm(mtp.layers[0].draft(mtp.fc(torch.cat(pair, -1)), depth, mask, cache))

    def new_state(self) -> list[dict]:
        """An empty state for `step`."""
        return [{} for _ in self.model.layers]

    def step(self, token: int, state: list[dict]) -> torch.Tensor:
        """One token to its post-norm hidden vector [1, 1, D]."""
        x = self.model.embed_tokens(torch.tensor([[token]]))
        for layer, s in zip(self.model.layers, state, strict=True):
            x = layer.step(x, s)
        return self.model.norm(x)

    def balance(self) -> torch.Tensor:
        """Mean load-balancing loss of the last forward."""
        blocks = [layer.mlp for layer in [*self.model.layers, *self.mtp.layers]]
        return sum(b.balance for b in blocks) / len(blocks)
