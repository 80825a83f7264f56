"""A family of one's own, as a program outside the package would bring it: everything of it is in this file.

It differs from the package's in what a family may decide: norms are plain weights, attention has neither gate nor
norms of its own, the first layer is a dense MLP, the router is a sigmoid with a bias that only chooses, the routed sum
is scaled, the shared expert has no gate, and there are no recurrent layers. `make_toy` writes a random checkpoint, and
`Reference` reads it in plain torch without any code of the package.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

from strata_cli.model.config import Fields
from strata_cli.model.families import Bank, Block, Matrix, ModelConfig, Mtp, Vector, register
from strata_kernels.params import AttentionParams, ExpertsParams, HeadParams, MtpInputParams

NAME = "toy"
MODEL_TYPES = ("strata_toy",)
HEAD = "nextn."  # of the MTP head's own tensors

SIZES: dict[str, Any] = {
    "model_type": "strata_toy",
    "vocab_size": 131,
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rotary_dim": 8,
    "rope_theta": 1e4,
    "rms_norm_eps": 1e-5,
    "intermediate_size": 64,  # of the dense layer
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "shared_intermediate_size": 40,
    "routed_scaling_factor": 2.5,
    "max_position_embeddings": 2048,
    "eos_token_id": None,
}


def rename(name: str) -> str | None:
    """See `strata_cli.model.families.Family`."""
    return name.removeprefix("model.")


def parse(top: dict[str, Any], stop_ids: Any, source: str) -> ModelConfig:
    """See `strata_cli.model.families.Family`."""
    fields = Fields(top, source)
    d, vocab, eps = fields.size("hidden_size"), fields.size("vocab_size"), fields.number("rms_norm_eps")
    attention = AttentionParams(
        hidden=d,
        heads=fields.size("num_attention_heads"),
        kv_heads=fields.size("num_key_value_heads"),
        head_dim=fields.size("head_dim"),
        rotary_dim=fields.size("rotary_dim"),
        rope_theta=fields.number("rope_theta"),
        eps=eps,
    )
    dense = ExpertsParams(d, experts=0, top_k=0, inner=0, shared_inner=fields.size("intermediate_size"), eps=eps)
    experts = ExpertsParams(
        hidden=d,
        experts=fields.size("n_routed_experts"),
        top_k=fields.size("num_experts_per_tok"),
        inner=fields.size("moe_intermediate_size"),
        shared_inner=fields.size("shared_intermediate_size"),
        eps=eps,
        router="sigmoid",
        scale=fields.number("routed_scaling_factor"),
    )
    head = HeadParams(d, vocab, vocab, eps)
    layers = [
        _layer(f"layers.{i}.", attention, experts if i else dense) for i in range(fields.size("num_hidden_layers"))
    ]
    out = Matrix("lm_head.weight", (vocab, d))
    joining = {
        "embedding_norm": Vector(HEAD + "enorm.weight", (d,)),
        "hidden_norm": Vector(HEAD + "hnorm.weight", (d,)),
        "join": Matrix(HEAD + "eh_proj.weight", (d, 2 * d)),
    }
    mtp = Mtp(
        HEAD,
        Block("mtp_input", MtpInputParams(d, eps), joining),
        _layer(HEAD, replace(attention, first_key=1), experts),
        Block("head", head, {"norm": Vector(HEAD + "norm.weight", (d,)), "out": out}),
    )
    return ModelConfig(
        family=NAME,
        hidden_size=d,
        vocab_size=vocab,
        max_position_embeddings=fields.size("max_position_embeddings"),
        tie_word_embeddings=False,
        eos_token_ids=fields.token_ids("eos_token_id", top.get("eos_token_id"), vocab),
        embedding=Matrix("embed_tokens.weight", (vocab, d)),
        blocks=tuple(block for layer in layers for block in layer),
        head=Block("head", head, {"norm": Vector("norm.weight", (d,)), "out": out}),
        mtp=mtp,
    )


def _layer(p: str, a: AttentionParams, e: ExpertsParams) -> tuple[Block, Block]:
    d, queries, keys = a.hidden, a.heads * a.head_dim, a.kv_heads * a.head_dim
    attention: dict[str, Matrix | Vector | Bank] = {
        "norm": Vector(p + "input_layernorm.weight", (d,)),
        "q": Matrix(p + "self_attn.q_proj.weight", (queries, d)),
        "k": Matrix(p + "self_attn.k_proj.weight", (keys, d)),
        "v": Matrix(p + "self_attn.v_proj.weight", (keys, d)),
        "out": Matrix(p + "self_attn.o_proj.weight", (d, queries)),
    }
    own = p + ("mlp.shared_experts." if e.experts else "mlp.")
    mlp: dict[str, Matrix | Vector | Bank] = {
        "norm": Vector(p + "post_attention_layernorm.weight", (d,)),
        "gate": Matrix(own + "gate_proj.weight", (e.shared_inner, d)),
        "up": Matrix(own + "up_proj.weight", (e.shared_inner, d)),
        "down": Matrix(own + "down_proj.weight", (d, e.shared_inner)),
    }
    if e.experts:
        mlp["router"] = Matrix(p + "mlp.gate.weight", (e.experts, d))
        mlp["router_bias"] = Vector(p + "mlp.gate.e_score_correction_bias", (e.experts,))
        mlp["bank"] = Bank(p + "mlp.experts", e.experts, e.inner, d)
    return Block("attention", a, attention), Block("experts", e, mlp)


register(NAME, __name__)

# The projections into the residual stream: quieter, so that the last token's embedding is still heard at the end and a
# head can guess what follows it.
QUIET = ("o_proj.weight", "down_proj.weight")


def make_toy(directory: Path, seed: int = 0, *, agree: float = 0.8, dtype: str = "float32", **overrides: Any) -> Path:
    """Write a random checkpoint of the family and return its directory.

    agree: how far the MTP head copies the main model's own habit, as in `tests.support.tiny`. `overrides`: config
    fields that stand over SIZES.
    """
    config = {**SIZES, **overrides}
    generator = torch.Generator().manual_seed(seed)
    d, head = config["hidden_size"], HEAD + "eh_proj.weight"
    tensors = {
        name: _random(name, shape, generator).to(getattr(torch, dtype)) for name, shape in _shapes(config).items()
    }
    tensors[head] *= 1 - agree
    tensors[head][:, :d] += agree * torch.eye(d, dtype=tensors[head].dtype)
    tensors[HEAD + "norm.weight"].lerp_(tensors["model.norm.weight"], agree)
    for name in tensors:
        if name.startswith(HEAD) and name.endswith(QUIET):
            tensors[name] *= 1 - agree / 2
    directory.mkdir(parents=True, exist_ok=True)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def _shapes(c: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Name on disk -> shape."""
    d, vocab, dim = c["hidden_size"], c["vocab_size"], c["head_dim"]
    queries, keys, inner = c["num_attention_heads"] * dim, c["num_key_value_heads"] * dim, c["moe_intermediate_size"]
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, d), "lm_head.weight": (vocab, d)}

    def mlp(p: str, width: int) -> None:
        shapes.update({p + "gate_proj.weight": (width, d), p + "up_proj.weight": (width, d)})
        shapes[p + "down_proj.weight"] = (d, width)

    for p in [*(f"model.layers.{i}." for i in range(c["num_hidden_layers"])), HEAD]:
        shapes |= {p + "input_layernorm.weight": (d,), p + "post_attention_layernorm.weight": (d,)}
        shapes |= {p + "self_attn.q_proj.weight": (queries, d), p + "self_attn.o_proj.weight": (d, queries)}
        shapes |= {p + "self_attn.k_proj.weight": (keys, d), p + "self_attn.v_proj.weight": (keys, d)}
        if p == "model.layers.0.":
            mlp(p + "mlp.", c["intermediate_size"])
            continue
        mlp(p + "mlp.shared_experts.", c["shared_intermediate_size"])
        for e in range(c["n_routed_experts"]):
            mlp(f"{p}mlp.experts.{e}.", inner)
        shapes[p + "mlp.gate.weight"] = (c["n_routed_experts"], d)
        shapes[p + "mlp.gate.e_score_correction_bias"] = (c["n_routed_experts"],)
    norms = ("model.norm.weight", *(HEAD + name for name in ("enorm.weight", "hnorm.weight", "norm.weight")))
    return {**shapes, **dict.fromkeys(norms, (d,)), HEAD + "eh_proj.weight": (d, 2 * d)}


def _random(name: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Values whose sizes make every part of the model matter and the logits neither flat nor certain."""
    noise = torch.randn(shape, generator=generator)
    if name.endswith("bias"):
        return 0.3 * noise  # about as far apart as the scores: it changes who is chosen
    if len(shape) == 1:
        return 1 + 0.2 * noise
    if name.endswith("embed_tokens.weight"):
        return noise
    quiet = 0.2 if name.endswith(QUIET) else 1.0
    loud = 2.0 if name == "lm_head.weight" or name.endswith("mlp.gate.weight") else 1.0
    return quiet * loud * noise / shape[-1] ** 0.5


class Reference:
    """The model of a checkpoint that `make_toy` wrote, in plain torch, float32, one sequence at a time."""

    def __init__(self, directory: Path):
        self.c = json.loads((directory / "config.json").read_text())
        self.w = {name: tensor.float() for name, tensor in load_file(directory / "model.safetensors").items()}

    def forward(self, tokens: list[int]) -> tuple[Tensor, Tensor]:
        """Hidden rows after the final norm [T, D], and logits [T, V]: row i for what follows token i."""
        x = self.w["model.embed_tokens.weight"][tokens]
        for i in range(self.c["num_hidden_layers"]):
            x = self._layer(f"model.layers.{i}.", x, torch.arange(len(tokens)))
        hidden = self._norm(x, "model.norm.weight")
        return hidden, hidden @ self.w["lm_head.weight"].t()

    def drafts(self, tokens: list[int], count: int) -> list[int]:
        """The greedy chain of the MTP head behind `tokens`, of which the main model has read all but the last."""
        hidden, _ = self.forward(tokens[:-1])
        chain: list[int] = []
        inputs = hidden  # row i: what token i + 1 is paired with
        for _ in range(count):
            following = torch.tensor([*tokens[1:], *chain])
            embedded = self._norm(self.w["model.embed_tokens.weight"][following], HEAD + "enorm.weight")
            joined = torch.cat((embedded, self._norm(inputs, HEAD + "hnorm.weight")), -1)
            x = joined @ self.w[HEAD + "eh_proj.weight"].t()
            x = self._layer(HEAD, x, torch.arange(1, len(following) + 1))
            out = self._norm(x, HEAD + "norm.weight")
            chain.append(int((out[-1] @ self.w["lm_head.weight"].t()).argmax()))
            inputs = torch.cat((inputs, out[-1:]))
        return chain

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], self.w[name], self.c["rms_norm_eps"])

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return x @ self.w[name].t()

    def _layer(self, p: str, x: Tensor, positions: Tensor) -> Tensor:
        normed = self._norm(x, p + "input_layernorm.weight")
        dim, heads, groups = self.c["head_dim"], self.c["num_attention_heads"], self.c["num_key_value_heads"]
        q = self._rope(self._linear(normed, p + "self_attn.q_proj.weight").unflatten(-1, (heads, dim)), positions)
        k = self._rope(self._linear(normed, p + "self_attn.k_proj.weight").unflatten(-1, (groups, dim)), positions)
        v = self._linear(normed, p + "self_attn.v_proj.weight").unflatten(-1, (groups, dim))
        k, v = (t.repeat_interleave(heads // groups, 1) for t in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q, k) / dim**0.5
        scores = scores.masked_fill(torch.ones(scores.shape[1:]).triu(1).bool(), -torch.inf)
        read = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).flatten(1)
        x = x + self._linear(read, p + "self_attn.o_proj.weight")
        return x + self._mlp(p + "mlp.", self._norm(x, p + "post_attention_layernorm.weight"))

    def _rope(self, x: Tensor, positions: Tensor) -> Tensor:
        n = self.c["rotary_dim"]
        rates = self.c["rope_theta"] ** -(torch.arange(0, n, 2) / n)
        angles = (positions[:, None] * rates)[:, None]
        a, b, rest = x[..., : n // 2], x[..., n // 2 : n], x[..., n:]
        turned = (a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin())
        return torch.cat((*turned, rest), -1)

    def _mlp(self, p: str, x: Tensor) -> Tensor:
        if p + "gate.weight" not in self.w:
            return self._glu(p, x)
        scores = torch.sigmoid(self._linear(x, p + "gate.weight"))
        chosen = (scores + self.w[p + "gate.e_score_correction_bias"]).topk(self.c["num_experts_per_tok"], -1).indices
        shares = scores.gather(1, chosen)
        shares = shares / shares.sum(-1, keepdim=True) * self.c["routed_scaling_factor"]
        routed = [
            sum(share * self._glu(f"{p}experts.{e}.", row) for e, share in zip(which.tolist(), part))
            for row, which, part in zip(x, chosen, shares)
        ]
        return torch.stack(routed) + self._glu(p + "shared_experts.", x)  # type: ignore[arg-type]

    def _glu(self, p: str, x: Tensor) -> Tensor:
        hidden = F.silu(self._linear(x, p + "gate_proj.weight")) * self._linear(x, p + "up_proj.weight")
        return self._linear(hidden, p + "down_proj.weight")
