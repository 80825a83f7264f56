"""What weights show in a run: which tensor is no number, and how many experts a window's rows chose."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

from strata_cli.engine.engine import Engine
from strata_kernels.params import ExpertsParams
from strata_kernels.window import Rows
from tests.support.engine import engine, prompt, request, run, tiny
from tests.support.toy_family import make_toy
from tests.support.unpacked import matrix


def damaged(tmp_path: Path, name: str, at: int = 0, **of: Any) -> Path:
    """A copy of a checkpoint, with one number of one tensor that is none."""
    directory = tmp_path / "damaged"
    shutil.copytree(tiny(**of), directory)
    tensors = load_file(directory / "model.safetensors")
    tensors[name].view(-1)[at] = float("nan")
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.1.mlp.shared_expert.down_proj.weight_scale",
        "model.layers.3.self_attn.k_proj.weight_scale",
        "model.layers.2.input_layernorm.weight",
        "model.layers.0.linear_attn.A_log",
        "model.layers.0.mlp.gate.weight",  # plain numbers: a whole matrix is searched
    ],
)
@pytest.mark.parametrize("spec", [0, 4])
def test_a_number_that_is_none_is_found(name: str, spec: int, tmp_path: Path) -> None:
    """Every request ends with an error that names the tensor; the engine goes on."""
    e = engine(damaged(tmp_path, name, quant="int4-g32"), spec=spec, mtp_varlen=False)
    for _ in range(2):
        found = run(e, [request(str(i), prompt(9 + i, seed=i)) for i in range(3)])
        for result in found.results.values():
            assert result.finish_reason == "error" and result.token_ids == []
            assert result.error == f"the model's output is not a number ({name} holds such numbers)"


def test_an_expert_that_is_none_fails_who_comes_to_it(tmp_path: Path) -> None:
    """One expert's scale: texts that never choose it are what they are without the damage."""
    name, of = "model.layers.1.mlp.experts.5.down_proj.weight_scale", {"quant": "int4-g32"}
    asked = [request(str(i), prompt(3, seed=i), max_tokens=3) for i in range(12)]
    found = run(engine(damaged(tmp_path, name, **of), mtp_varlen=False), asked)
    whole = run(engine(tiny(**of), mtp_varlen=False), asked)
    failed = {i for i, r in found.results.items() if r.error}
    assert 0 < len(failed) < 12
    for i, result in found.results.items():
        assert result.token_ids == whole.results[i].token_ids[: len(result.token_ids)]
        assert (result.finish_reason == "length") == (i not in failed)
        assert i not in failed or name in str(result.error)


class Routed:
    """Plain routing beside an engine's own: the distinct experts that each layer's rows choose, window by window."""

    def __init__(self, e: Engine):
        self.layers: list[set[int]] = []
        self.windows: list[int] = []
        blocks = e.runner.model.blocks
        for number, bound in enumerate(blocks):
            if isinstance(bound.params, ExpertsParams) and bound.params.experts:
                blocks[number] = _Noted(bound, self.layers)  # type: ignore[call-overload]

    def end(self, e: Engine, window: int) -> None:
        self.windows.append(max(len(chosen) for chosen in self.layers))
        self.layers.clear()


class _Noted:
    def __init__(self, bound: Any, layers: list[set[int]]):
        self.bound, self.layers, self.params = bound, layers, bound.params

    def __call__(self, x: Tensor, rows: Rows) -> Tensor:
        w, p = self.bound.weights, self.params
        h = F.rms_norm(x[: rows.count], (p.hidden,), w.norm, p.eps)
        scores = h @ matrix(w.router).t()
        scores = scores.softmax(-1) if p.router == "softmax" else scores.sigmoid()
        chosen = scores if w.router_bias is None else scores + w.router_bias
        self.layers.append(set(chosen.topk(p.top_k).indices.flatten().tolist()))
        return self.bound(x, rows)  # type: ignore[no-any-return]


@pytest.mark.parametrize("model", ["plain", "dense-attention", "one-of-each", "toy"])
def test_the_record_counts_experts(model: str, tmp_path: Path) -> None:
    """Of the main model's verify forward, padding and the draft head left out; the most over its layers."""
    e = engine(make_toy(tmp_path / "toy") if model == "toy" else tiny(model), mtp_varlen=False)
    routed = Routed(e)
    found = run(e, [request(str(i), prompt(n, seed=i)) for i, n in enumerate((1, 9, 40, 3, 70))], routed.end)
    assert [r.experts for r in found.records] == routed.windows
    assert len(set(routed.windows)) > 1 or model == "one-of-each"  # there every expert is always taken


def test_rows_of_one_request_alone_touch_few_experts() -> None:
    e = engine(tiny(), batch=1, spec=0)
    found = run(e, [request("0", prompt(5))])
    assert {r.experts for r in found.records if r.L[0] == 1} == {2}  # one row, two experts a token
    assert torch.is_tensor(e.runner.buffers.touched)
