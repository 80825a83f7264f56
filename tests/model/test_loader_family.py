"""A family that the package does not know is loaded, planned and checked by the registry alone."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from strata_cli.config import EngineConfig
from strata_cli.errors import UsageError
from strata_cli.model.config import load_config
from strata_cli.model.memory import plan_memory
from strata_cli.model.weights.checkpoint import CheckpointFormat, open_checkpoint
from strata_kernels.params import ExpertsWeights
from tests.support.toy_family import HEAD, Reference, make_toy
from tests.support.unpacked import unpacked


def test_values_are_those_of_the_file(tmp_path: Path) -> None:
    """Plain norms, the router's bias and all: nothing is shifted, nothing left out."""
    config = load_config(make_toy(tmp_path, 1))
    weights = open_checkpoint(tmp_path).load(config, "cpu")
    main, head = unpacked(weights, config)
    assert head is not None
    found = {**{n.removeprefix("model."): t for n, t in main.items()}, **{HEAD + n: t for n, t in head.items()}}
    expected = {
        name.removeprefix("model."): tensor for name, tensor in load_file(tmp_path / "model.safetensors").items()
    }
    for stem in ("layers.1.mlp.experts", "layers.2.mlp.experts", HEAD + "mlp.experts"):
        parts = {p: [expected.pop(f"{stem}.{e}.{p}_proj.weight") for e in range(6)] for p in ("gate", "up", "down")}
        expected[f"{stem}.gate_up_proj"] = torch.cat((torch.stack(parts["gate"]), torch.stack(parts["up"])), 1)
        expected[f"{stem}.down_proj"] = torch.stack(parts["down"])
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_what_a_block_does_without_is_none(tmp_path: Path) -> None:
    config = load_config(make_toy(tmp_path))
    weights = open_checkpoint(tmp_path).load(config, "cpu")
    dense, experts = weights.blocks[1], weights.blocks[3]
    assert isinstance(dense, ExpertsWeights) and isinstance(experts, ExpertsWeights)
    assert dense.bank is None and dense.router is None and dense.router_bias is None
    assert experts.bank is not None and experts.router_bias is not None and experts.shared_gate is None
    assert config.recurrence is None and config.count("gated_delta") == 0


def test_checks_and_plan(tmp_path: Path) -> None:
    config = load_config(make_toy(tmp_path, dtype="bfloat16"))
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.check(config) == CheckpointFormat("bf16", True)
    plan = plan_memory(checkpoint.find(config), config, EngineConfig(), device="cpu", tile=8)
    matrices = sum(t.nbytes for t in load_file(tmp_path / "model.safetensors").values() if t.ndim > 1)
    assert plan.mapped_bytes == matrices
    assert (
        plan.headed and sum(array.nbytes for array in plan.recurrent.values()) == plan.recurrent["pending"].nbytes == 0
    )


def test_faults_are_told_in_the_familys_names(tmp_path: Path) -> None:
    make_toy(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["model.layers.2.mlp.gate.e_score_correction_bias"], tensors[HEAD + "hnorm.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(UsageError, match=r"missing layers\.2\.mlp\.gate\.e_score_correction_bias$"):
        open_checkpoint(tmp_path).check(load_config(tmp_path))
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "n_routed_experts": "six"}))
    with pytest.raises(UsageError, match='n_routed_experts = "six": must be a whole number above 0'):
        load_config(tmp_path)


def test_the_reference_guesses_with_its_head(tmp_path: Path) -> None:
    """The chain of the written checkpoint is worth comparing: its drafts often are what the model says itself."""
    reference = Reference(make_toy(tmp_path, 2))
    tokens, hits = [5, 17, 33], 0
    for _ in range(24):
        tokens.append(int(reference.forward(tokens)[1][-1].argmax()))
    for n in range(4, 24):
        hits += reference.drafts(tokens[:n], 1)[0] == tokens[n]
    assert 4 <= hits < 20
