"""What the head reads of the slots' sampling, and which rows it draws."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(slots=True)
class SamplerPool:
    """Sampling parameters of every slot, [S] each, and its counts, [S, V]; written at admission and at commit.

    `min_p` holds the logarithm (-inf: off), `seeds` int64 the bits of the 64-bit seed. counts int32: times a token was
    generated; seen bool: it is in the prompt; bias float32. Both are kept only for slots with penalties.
    """

    temperature: Tensor
    top_p: Tensor
    min_p: Tensor
    repetition: Tensor
    frequency: Tensor
    presence: Tensor
    seeds: Tensor
    counts: Tensor
    seen: Tensor
    bias: Tensor


@dataclass(frozen=True, slots=True)
class Manner:
    """How some rows are drawn alike. `index`: which of the draws, int64 on the device; None: all of them.

    `greedy`: the argmax; else noise is added to what top_k (0: off), top_p and min_p (whether any row uses them) leave.
    """

    index: Tensor | None
    greedy: bool
    top_k: int = 0
    top_p: bool = False
    min_p: bool = False


@dataclass(slots=True)
class Draws:
    """Rows to be drawn, W of them with padding, `count` real. Tensors int64 on the device.

        rows [W]    which hidden rows;  slots [W]  whose parameters
        positions [W]   absolute position of the token drawn
        earlier [W]     drafts of the slot that stand before it in this window
        drafts [S, T]   the slots' drafts, for penalties that count the earlier ones

    `manners` covers every real draw once. `penalties`: a slot among them has penalties or a bias. `purpose`: of the
    noise. `ids`: the draft vocabulary, ascending; None: all. `probabilities`: whether the drawn tokens' are wanted.
    `distributions`: whether the whole processed distributions are.
    """

    rows: Tensor
    slots: Tensor
    positions: Tensor
    earlier: Tensor
    drafts: Tensor
    count: int = 0
    manners: tuple[Manner, ...] = ()
    penalties: bool = False
    purpose: str = "coupled"
    ids: Tensor | None = None
    probabilities: bool = False
    distributions: bool = False


@dataclass(frozen=True, slots=True)
class Drawn:
    """What the head gives back: `hidden` [R, D] after the norm, tokens [W], `best` [W] the largest processed score (not
    a number where the row is not), `probability` [W] where asked (not a number where the row is not), unprocessed
    scores [W, V] float32, and where asked the processed distributions [W, V].
    """

    hidden: Tensor
    tokens: Tensor
    best: Tensor
    scores: Tensor
    probability: Tensor | None = None
    distributions: Tensor | None = None
