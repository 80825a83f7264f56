"""Blocks ask nothing of the host between their first call and their last, and need few calls."""

from collections.abc import Sequence

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from strata_kernels.attention import attention
from strata_kernels.experts import experts
from strata_kernels.gated_delta import gated_delta
from strata_kernels.mtp_input import mtp_input
from strata_kernels.params import (
    AttentionParams,
    ExpertsParams,
    GatedDeltaParams,
    MtpInputParams,
    MtpInputWeights,
)
from strata_kernels.window import Segment
from tests.support.blocks import (
    Seats,
    attention_weights,
    dense,
    experts_weights,
    gated_delta_weights,
    near_one,
    new_kv,
    new_recurrent,
    randn,
    segment,
    spread,
)

# What reads a number on the host, makes a shape of numbers, or brings numbers from it.
FORBIDDEN = (
    "_local_scalar_dense nonzero unique_dim _unique _unique2 unique_consecutive masked_select equal is_nonzero "
    "bincount lift_fresh"
).split()


class Watch(TorchDispatchMode):
    """Counts operations, refuses the forbidden ones and tensors that change their device."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.count += 1
        name = func._schema.name.removeprefix("aten::")
        assert name not in FORBIDDEN, f"{name} inside a block"
        if name == "index":
            assert all(i is None or i.dtype != torch.bool for i in args[1]), "a mask as an index has a shape of its own"
        out = func(*args, **(kwargs or {}))
        if name in ("_to_copy", "copy_"):
            assert out.device == args[-1].device, "a copy between devices inside a block"
        return out


P_ATTENTION = AttentionParams(48, 4, 2, 64, 16, 10_000.0, 1e-6, gated=True, qk_norm=True)
P_DELTA = GatedDeltaParams(48, 2, 4, 32, 32, 4, 1e-6)
P_EXPERTS = ExpertsParams(48, 8, 2, 32, 64, 1e-6, shared_gated=True)
P_INPUT = MtpInputParams(48, 1e-6)

DRAFTS = [segment(0, 30, 5), segment(1, 61, 4), segment(2, 7, 2), segment(3, 250, 5)]
MIXED = [segment(0, 300, 3), segment(2, 63, 1), segment(1, 0, 20, True, [(16, 1)])]


def blocks():
    """name -> call(x, rows, layer) over pools of two layers."""
    kv, recurrent = new_kv(P_ATTENTION, Seats(4, 400)), new_recurrent(P_DELTA, 4)
    touched, embedding = torch.zeros(2, 8, dtype=torch.int64), dense(50, 48, 4)
    w_attention, w_delta, w_experts = (
        attention_weights(P_ATTENTION),
        gated_delta_weights(P_DELTA),
        experts_weights(P_EXPERTS),
    )
    w_input = MtpInputWeights(near_one(48, 1), near_one(48, 2), dense(48, 96, 3))
    recurrent.pending[:] = torch.tensor([3, 0, 2, 1])
    return {
        "attention": lambda x, rows, layer: attention(x, rows, kv, layer, w_attention, P_ATTENTION),
        "gated_delta": lambda x, rows, layer: gated_delta(x, rows, recurrent, layer, w_delta, P_DELTA),
        "experts": lambda x, rows, layer: experts(x, rows, touched, layer, w_experts, P_EXPERTS),
        "mtp_input": lambda x, rows, layer: mtp_input(x, rows, embedding, layer, w_input, P_INPUT),
    }


def window(name: str, segments: Sequence[Segment], replay: int = 0) -> list[int]:
    """Operations of the block's two layers in a window; the second of its kind, as the first makes what stays."""
    call, seats, made = blocks()[name], Seats(4, 400), None
    section = seats.section(64)
    for _ in range(2):
        rows = section.lay(segments, 32, replay)
        x = spread([randn(s.rows, 48) for s in segments], rows)
        made = []
        for layer in range(2):
            with Watch() as watch:
                call(x, rows, layer)
            made.append(watch.count)
    assert made is not None
    return made


# Most operations of a layer, and how many more its window's first layer may need for tables.
BOUNDS = {"attention": (45, 30), "gated_delta": (70 + 5 * 5, 60), "experts": (26, 3), "mtp_input": (12, 0)}


@pytest.mark.parametrize("name", BOUNDS)
def test_a_layer_asks_nothing_of_the_host_and_needs_few_calls(name: str) -> None:
    layer, tables = BOUNDS[name]
    first, other = window(name, DRAFTS)
    assert other <= layer and first - other <= tables


@pytest.mark.parametrize("name", BOUNDS)
def test_replay_prompts_and_snapshots_ask_nothing_of_the_host(name: str) -> None:
    _, other = window(name, DRAFTS, 3)
    if name == "gated_delta":
        assert other <= sum(BOUNDS[name]) and other > window(name, DRAFTS)[1]
    window(name, MIXED)
    window(name, MIXED, 3)


def test_what_is_forbidden_is_noticed() -> None:
    x = torch.arange(3.0)
    for ask in (
        lambda: x[0].item(),
        lambda: x.nonzero(),
        lambda: x.unique(),
        lambda: x[x > 1],
        lambda: torch.tensor([1]),
    ):
        with pytest.raises(AssertionError, match=r"inside a block|a mask as an index"), Watch():
            ask()
