"""The synthetic checkpoint and the script that measures what it takes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from compressed_tensors.compressors.pack_quantized import unpack_from_int32
from safetensors.torch import load_file

from strata_cli.model.config import load_config
from strata_cli.model.weights.checkpoint import open_checkpoint

ROOT = Path(__file__).parents[2]


def run(script: str, *args: object) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'kernels'}"}
    command = [sys.executable, str(ROOT / "examples" / script), *map(str, args)]
    return subprocess.run(command, env=env, capture_output=True, text=True, encoding="utf-8")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("made") / "int4"
    sizes = ("--hidden", 256, "--layers", 4, "--experts", 9, "--inner", 64, "--vocab", 300, "--group", 32)
    ran = run("make_shape.py", out, *sizes)
    assert ran.returncode == 0, ran.stderr
    return out


def test_a_synthetic_checkpoint_is_one(model: Path) -> None:
    found = open_checkpoint(model).check(load_config(model))
    assert found.has_mtp and found.text.startswith("int4 g32 (compressed-tensors)")
    index = json.loads((model / "model.safetensors.index.json").read_text())["weight_map"]
    assert {*index.values()} == {file.name for file in model.glob("*.safetensors")}


def test_its_values_are_those_of_a_layer(model: Path) -> None:
    """Every code occurs, and a product with it keeps the size of its input."""
    tensors = load_file(model / "model-00001-of-00001.safetensors")
    stem = "model.layers.0.mlp.experts.8.gate_proj.weight"
    codes = unpack_from_int32(tensors[f"{stem}_packed"], 4, torch.Size((64, 256)))
    assert codes.unique().tolist() == list(range(-8, 8))
    weight = codes.float() * tensors[f"{stem}_scale"].float().repeat_interleave(32, 1)
    assert 0.8 < (weight @ torch.randn(256, 99, generator=torch.Generator().manual_seed(0))).std() < 1.2


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="counts of the Linux kernel")
def test_memory_is_what_was_planned(model: Path) -> None:
    ran = run("memory.py", model, "--tokens", 4, "--batch", 2, "--ctx", 256)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.splitlines()[-1].endswith(": ok")


def test_a_shape_without_a_head_has_the_tokenizer_that_its_vocabulary_holds(tmp_path: Path) -> None:
    out = tmp_path / "shape"
    sizes = ("--hidden", 256, "--layers", 4, "--experts", 2, "--active", 1, "--inner", 128, "--vocab", 2304)
    ran = run("make_shape.py", out, *sizes, "--no-mtp")
    assert ran.returncode == 0, ran.stderr
    found = open_checkpoint(out).check(load_config(out))
    assert not found.has_mtp and found.text.startswith("int4 g128")
    assert (out / "tokenizer.json").exists()


def test_sizes_that_fit_no_group_are_refused_in_a_line(tmp_path: Path) -> None:
    ran = run("make_shape.py", tmp_path / "shape", "--inner", 64)
    assert ran.returncode == 2 and "--inner" in ran.stderr and "Traceback" not in ran.stderr
    assert not (tmp_path / "shape").exists()
