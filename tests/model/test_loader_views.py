"""Weights are loaded as they are stored: on a CPU they lie in the mapped files, and nothing of them is copied or
unpacked.
"""

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from strata_cli.errors import StrataError, UsageError
from strata_cli.model.config import load_config
from strata_cli.model.weights import ModelWeights, load
from strata_cli.model.weights.checkpoint import open_checkpoint
from strata_cli.model.weights.load import Copied, Mapped
from strata_cli.model.weights.stored import Stored, StoredModel
from strata_cli.model.weights.values import first_bad_tensor
from tests.support.tiny import compress, make_tiny
from tests.support.unpacked import experts, matrix, storages

MODEL = "model.safetensors"
EXPERT = "model.layers.0.mlp.experts.2.gate_proj.weight"
KINDS = [{"quant": "int4-g32-asym", "quant_mtp": True}, {"dtype": "bfloat16", "layout": "stacked", "shards": 3}]


def opened(directory: Path) -> tuple[StoredModel, ModelWeights]:
    checkpoint, config = open_checkpoint(directory), load_config(directory)
    return checkpoint.find(config), checkpoint.load(config, "cpu")


def ranges(directory: Path) -> list[tuple[int, int]]:
    """Addresses at which files of the directory are mapped into this process."""
    lines = [line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text().splitlines()]
    found = [line[0].split("-") for line in lines if len(line) == 6 and line[5].startswith(str(directory.resolve()))]
    return [(int(start, 16), int(stop, 16)) for start, stop in found]


def all_stored(model: StoredModel) -> Iterator[Stored]:
    """Every tensor on disk that weights are made of."""
    blocks = (*model.blocks, model.head, *(model.mtp.all() if model.mtp else ()))
    for weight in (model.embedding, *(weight for block in blocks for _, weight in block.each())):
        yield from weight.parts.values()


@pytest.mark.parametrize("kind", KINDS, ids=["packed", "dense"])
def test_matrices_lie_in_the_mapped_files(tmp_path: Path, kind: dict[str, Any]) -> None:
    make_tiny(tmp_path, shape="wide", **kind)
    stored, weights = opened(tmp_path)
    places = ranges(tmp_path)
    vectors = 4 * sum(
        weight.size
        for block in (*stored.blocks, stored.head, *(stored.mtp.all() if stored.mtp else ()))
        for role, weight in block.each()
        if role in ("norm", "q_norm", "k_norm", "conv", "rate", "dt_bias", "out_norm", "embedding_norm", "hidden_norm")
    )
    beside = 0
    for address, tensor in storages(weights).items():
        if not any(start <= address < stop for start, stop in places):
            assert tensor.dtype == torch.float32
            beside += tensor.untyped_storage().nbytes()
    assert beside == vectors, "only what blocks read as float32 is beside the files"
    assert beside < 0.05 * sum(file.stat().st_size for file in tmp_path.glob("*.safetensors"))


def test_a_view_is_at_its_own_offset(tmp_path: Path) -> None:
    make_tiny(tmp_path, shape="wide", quant="int4-g32")
    stored, weights = opened(tmp_path)
    (start, _), *_ = ranges(tmp_path)
    found = stored.blocks[0].weights["qkv"]
    for role, part in weights.blocks[0].qkv.parts.items():  # type: ignore[union-attr]
        assert part.data_ptr() - start == found.parts[role].offset  # type: ignore[union-attr]


def test_a_tied_head_is_the_embeddings_storage(tmp_path: Path) -> None:
    _, weights = opened(make_tiny(tmp_path, shape="one-of-each"))
    assert weights.mtp is not None
    ends = {w.parts["weight"].data_ptr() for w in (weights.embedding, weights.head.out, weights.mtp.head.out)}
    assert len(ends) == 1


class Largest(TorchDispatchMode):
    """The most bytes of a tensor that torch made while it was on, views of the mapped files apart."""

    def __init__(self, directory: Path):
        super().__init__()
        self.directory, self.nbytes = directory, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        places = ranges(self.directory)
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor) and not any(a <= tensor.data_ptr() < b for a, b in places):
                self.nbytes = max(self.nbytes, tensor.untyped_storage().nbytes())
        return out


def test_nothing_is_unpacked_on_the_way(tmp_path: Path) -> None:
    make_tiny(tmp_path, shape="wide", quant="int4-g128", quant_mtp=True, num_hidden_layers=2, full_attention_interval=2)
    checkpoint, config = open_checkpoint(tmp_path), load_config(tmp_path)
    checkpoint.find(config)
    recurrence = config.recurrence
    assert recurrence is not None
    with Largest(tmp_path) as largest:
        checkpoint.load(config, "cpu")
    assert 0 < largest.nbytes <= 4 * recurrence.channels * recurrence.kernel, "the taps are the largest vector"


def shifted(file: Path, at: str) -> None:
    """Move the data from tensor `at` on by one byte, in front of which a tensor of one byte comes to lie."""
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    place = header[at]["data_offsets"][0]
    for entry in header.values():
        if "data_offsets" in entry and entry["data_offsets"][0] >= place:
            entry["data_offsets"] = [n + 1 for n in entry["data_offsets"]]
    header["model.visual.gap"] = {"dtype": "U8", "shape": [1], "data_offsets": [place, place + 1]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write_bytes(len(text).to_bytes(8, "little") + text + body[:place] + b"\0" + body[place:])


def test_unaligned_tensors_are_copied_and_no_others(tmp_path: Path) -> None:
    make_tiny(tmp_path / "a", quant="int4-g32")
    make_tiny(tmp_path / "b", quant="int4-g32")
    shifted(tmp_path / "b" / MODEL, "model.layers.2.mlp.gate.weight")
    (_, plain), (stored, moved) = opened(tmp_path / "a"), opened(tmp_path / "b")
    odd = [part for part in all_stored(stored) if part.offset % 4]
    assert 0 < len(odd) < len(list(all_stored(stored)))
    places = ranges(tmp_path / "b")
    for i in (0, 2, 4):
        for ours, theirs in zip(moved.blocks[i].qkv.tensors(), plain.blocks[i].qkv.tensors(), strict=True):  # type: ignore[union-attr]
            assert torch.equal(ours, theirs)
    by_name = {part.name: part for part in all_stored(stored)}
    for layer in range(3):
        for role, tensor in moved.blocks[2 * layer].out.parts.items():  # type: ignore[union-attr]
            part = by_name[f"model.layers.{layer}.linear_attn.out_proj.weight_{role}"]
            mapped = any(start <= tensor.data_ptr() < stop for start, stop in places)
            assert mapped == part.aligned
    assert torch.equal(matrix(moved.embedding), matrix(plain.embedding))


@pytest.mark.parametrize("change", ["cut", "touched", "replaced", "gone"])
def test_a_file_that_changes_behind_its_header(tmp_path: Path, change: str) -> None:
    make_tiny(tmp_path)
    checkpoint, file = open_checkpoint(tmp_path), tmp_path / MODEL
    data = file.read_bytes()
    if change == "cut":
        file.write_bytes(data[:-100])
    elif change == "touched":
        os.utime(file, ns=(1, 1))
    else:
        file.unlink()
        if change == "replaced":
            file.write_bytes(data + b" ")
    what = "cannot read .*: No such file" if change == "gone" else "changed while the model was loaded"
    with pytest.raises(StrataError, match=what) as raised:
        checkpoint.load(load_config(tmp_path), "cpu")
    assert raised.value.exit_code == 1 and "\n" not in str(raised.value)


def test_copies_for_a_device_are_the_mapped_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a GPU gets, chunk by chunk; here the device is the CPU."""
    monkeypatch.setattr(load, "CHUNK_BYTES", 1000)
    make_tiny(tmp_path, quant="int4-g32-asym", shards=2)
    stored, _ = opened(tmp_path)
    with ExitStack() as files:
        mapped, copied = Mapped(files), Copied(files, torch.device("cpu"))
        for part in all_stored(stored):
            ours = copied.tensor(part)
            assert torch.equal(ours, mapped.tensor(part)) and ours.data_ptr() != mapped.tensor(part).data_ptr()
        bank = stored.blocks[1].weights["bank"]
        members = [weight.parts["packed"] for weight in bank.down.apart]  # type: ignore[union-attr]
        extra = torch.ones(members[0].shape, dtype=torch.int32)
        assert torch.equal(copied.stack([*members, extra]), torch.stack(mapped.stack([*members, extra])))


@pytest.mark.parametrize("lonely", [True, False])
def test_experts_with_and_without_zero_points_make_one_stack(tmp_path: Path, lonely: bool) -> None:
    """What an expert lacks is filled in with what changes no value."""
    make_tiny(tmp_path, 6, quant="int4-g32")
    tensors = load_file(tmp_path / MODEL)
    names = [EXPERT] if lonely else [EXPERT.replace(".2.", f".{e}.") for e in range(8) if e != 2]
    generator, expected = torch.Generator().manual_seed(1), {}
    for name in names:
        parts, expected[name] = compress(torch.randn(32, 64, generator=generator) + 0.3, "int4-g32-asym")
        tensors.update({name.removesuffix("weight") + part: tensor for part, tensor in parts.items()})
    save_file(tensors, tmp_path / MODEL)
    _, weights = opened(tmp_path)
    gate = weights.blocks[1].bank.gate_up[0]  # type: ignore[union-attr]
    values = experts(gate)
    twin = load_file(tmp_path / "reference" / MODEL)["model.layers.0.mlp.experts.gate_up_proj"][:, :32]
    for e in range(8):
        name = EXPERT.replace(".2.", f".{e}.")
        assert torch.equal(values[e], expected.get(name, twin[e])), e


def test_experts_of_a_layer_are_stored_alike(tmp_path: Path) -> None:
    make_tiny(tmp_path, quant="int4-g32")
    tensors = load_file(tmp_path / MODEL)
    tensors[EXPERT + "_scale"] = tensors[EXPERT + "_scale"].to(torch.float16)
    save_file(tensors, tmp_path / MODEL)
    first = EXPERT.replace(".2.", ".0.")
    what = rf"{EXPERT}_scale is F16 \[32, 2\], but {first}_scale F32 \[32, 2\]: experts of a layer must be stored alike"
    with pytest.raises(UsageError, match=what):
        opened(tmp_path)


@pytest.mark.parametrize(
    "name, value",
    [
        (EXPERT + "_scale", float("nan")),
        ("mtp.layers.0.self_attn.o_proj.weight", float("inf")),
        ("model.layers.3.self_attn.k_norm.weight", float("-inf")),
        ("model.layers.0.linear_attn.A_log", float("nan")),
        ("model.embed_tokens.weight", float("nan")),
    ],
)
def test_the_tensor_that_is_not_a_number_is_named(tmp_path: Path, name: str, value: float) -> None:
    make_tiny(tmp_path, quant="int4-g32")
    assert first_bad_tensor(opened(tmp_path)[1]) is None
    tensors = load_file(tmp_path / MODEL)
    tensors[name].view(-1)[-1] = value
    save_file(tensors, tmp_path / MODEL)
    assert first_bad_tensor(opened(tmp_path)[1]) == name
