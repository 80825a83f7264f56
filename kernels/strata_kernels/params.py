"""The frozen parameters and the weights of each block, given by a model's family. No constant of a family lives here.

Shape letters: R rows, S slots, D hidden size, H / G query / kv heads, E / K experts / experts per token, V vocabulary,
N pages. A norm's weight is what the normed row is multiplied with: a family whose files store it less one has the
loader add one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a family states its blocks without torch
    from torch import Tensor

    from strata_kernels.weight import ExpertBank, Weight


@dataclass(frozen=True, slots=True)
class AttentionParams:
    """x += out(gate(attention(rope(norm(q)), rope(norm(k)), v))), with norm(x) before it.

    `gated`: `q` has 2 * head_dim rows a head, query then gate, and sigmoid(gate) scales what the head read.
    `first_key`: keys before this position do not exist (an MTP head that stands one position behind has none at 0).
    """

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    rotary_dim: int  # leading dimensions of a head that RoPE turns, half-split pairs
    rope_theta: float
    eps: float
    gated: bool = False
    qk_norm: bool = False
    first_key: int = 0


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class AttentionWeights:
    """norm [D]; q [H * head_dim (x 2 where gated), D], k, v [G * head_dim, D], out [D, H * head_dim]; q_norm, k_norm
    [head_dim] or None.
    """

    norm: Tensor
    q: Weight
    k: Weight
    v: Weight
    out: Weight
    q_norm: Tensor | None = None
    k_norm: Tensor | None = None


@dataclass(frozen=True, slots=True)
class GatedDeltaParams:
    """x += out(gated norm(delta rule(conv(qkv)))), with norm(x) before it."""

    hidden: int
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel: int  # taps of the causal convolution
    eps: float

    @property
    def channels(self) -> int:
        """C, of the convolution: q, k, v."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class GatedDeltaWeights:
    """norm [D]; qkv [C, D], z [value_heads * value_dim, D], b, a [value_heads, D], out [D, value_heads * value_dim];
    conv [kernel, C] float32, the newest tap last; rate [value_heads] = -exp(A_log), dt_bias [value_heads]; out_norm
    [value_dim].
    """

    norm: Tensor
    qkv: Weight
    z: Weight
    b: Weight
    a: Weight
    out: Weight
    conv: Tensor
    rate: Tensor
    dt_bias: Tensor
    out_norm: Tensor


@dataclass(frozen=True, slots=True)
class ExpertsParams:
    """x += scale * sum of the chosen experts' outputs + shared expert, with norm(x) before it.

    `experts` 0: a dense MLP, which is the shared expert alone. `router`: "softmax" over all, or "sigmoid" each; the K
    of largest score (plus the router's bias, where it has one, which only chooses) are taken, their scores divided by
    their sum where `normalize`. `shared_gated`: the shared expert is scaled by sigmoid of a row of its own.
    """

    hidden: int
    experts: int
    top_k: int
    inner: int
    shared_inner: int  # 0: no shared expert
    eps: float
    router: str = "softmax"
    normalize: bool = True
    scale: float = 1.0
    shared_gated: bool = False


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class ExpertsWeights:
    """norm [D]; router [E, D], router_bias [E] float32; bank; shared gate, up [Fs, D], down [D, Fs], shared_gate
    [1, D]. What the parameters leave out is None.
    """

    norm: Tensor
    router: Weight | None = None
    router_bias: Tensor | None = None
    bank: ExpertBank | None = None
    gate: Weight | None = None
    up: Weight | None = None
    down: Weight | None = None
    shared_gate: Weight | None = None


@dataclass(frozen=True, slots=True)
class HeadParams:
    """Final norm, output head, sampling. `vocab`: rows of the output head; `real`: token ids there are, the rows behind
    them never win.
    """

    hidden: int
    vocab: int
    real: int
    eps: float


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class HeadWeights:
    """norm [D]; out [V, D]."""

    norm: Tensor
    out: Weight


@dataclass(frozen=True, slots=True)
class MtpInputParams:
    """join(norm(embedding), norm(hidden)): what the MTP head's layer starts from."""

    hidden: int
    eps: float


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class MtpInputWeights:
    """embedding_norm, hidden_norm [D]; join [D, 2 D], embedding first."""

    embedding_norm: Tensor
    hidden_norm: Tensor
    join: Weight


BlockParams = AttentionParams | GatedDeltaParams | ExpertsParams | HeadParams | MtpInputParams
BlockWeights = AttentionWeights | GatedDeltaWeights | ExpertsWeights | HeadWeights | MtpInputWeights
