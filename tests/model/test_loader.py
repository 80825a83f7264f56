"""Every way a checkpoint may be laid out gives the same tensors, those of transformers and of compressed-tensors."""

import itertools
import json
import shutil
from pathlib import Path

import pytest
import torch
from compressed_tensors.compressors.pack_quantized import unpack_from_int32
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from strata_cli.errors import UsageError
from strata_cli.model.config import load_config
from strata_cli.model.weights import ModelWeights
from strata_cli.model.weights.checkpoint import CheckpointFormat, open_checkpoint
from tests.support.tiny import make_tiny, reference_model, reference_mtp
from tests.support.unpacked import matrix, unpacked

PREFIXES = ("model.", "model.language_model.", "language_model.model.", "")
LAYOUTS = ("stacked", "split")
DTYPES = ("float32", "bfloat16", "float16")


def load(directory: Path) -> ModelWeights:
    return open_checkpoint(directory).load(load_config(directory), "cpu")


def values(directory: Path, graft: Path | None = None) -> tuple[dict[str, Tensor], dict[str, Tensor] | None]:
    """The main model's tensors as they are loaded, float32, and the MTP head's."""
    config = load_config(directory)
    head = open_checkpoint(graft) if graft else None
    return unpacked(open_checkpoint(directory).load(config, "cpu", head), config)


def check(directory: Path) -> CheckpointFormat:
    return open_checkpoint(directory).check(load_config(directory))


def reference_tensors(directory: Path) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The main model's from transformers; the MTP head's from the file, as transformers' class takes them."""
    model = reference_model(directory)
    head = reference_mtp(model)
    main = {name.removeprefix("model."): tensor for name, tensor in model.state_dict().items()}
    file = load_file(directory / "reference" / "model.safetensors")
    mtp = {name.removeprefix("mtp."): tensor for name, tensor in file.items() if name.startswith("mtp.")}
    assert torch.equal(head.layers[0].eh_proj.weight, mtp["fc.weight"])
    assert torch.equal(head.layers[0].mtp_block.mlp.experts.down_proj, mtp["layers.0.mlp.experts.down_proj"])
    return main, mtp


def as_blocks_read(name: str, tensor: Tensor) -> Tensor:
    """The form in which a block reads a tensor that a file has: transformers' formulas applied to the small ones."""
    if name.endswith("norm.weight") or "pre_fc_norm" in name:
        return tensor if name.endswith("linear_attn.norm.weight") else 1 + tensor
    if name.endswith("_layernorm.weight"):
        return 1 + tensor
    if name.endswith("A_log"):
        return -tensor.exp()
    return tensor[:, 0].t() if name.endswith("conv1d.weight") else tensor


def assert_same(found: dict[str, Tensor] | None, expected: dict[str, Tensor]) -> None:
    assert found is not None and found.keys() == expected.keys()
    for name, tensor in found.items():
        wanted = as_blocks_read(name, expected[name].float())
        assert tensor.dtype == torch.float32 and tensor.shape == wanted.shape, name
        assert torch.equal(tensor, wanted), name


@pytest.mark.parametrize("prefix, layout, dtype", list(itertools.product(PREFIXES, LAYOUTS, DTYPES)))
def test_dense_layouts_are_bit_equal(tmp_path: Path, prefix: str, layout: str, dtype: str) -> None:
    shards = 3 if dtype == "bfloat16" else 1
    make_tiny(tmp_path, 1, prefix=prefix, layout=layout, dtype=dtype, shards=shards)
    found, head = values(tmp_path)
    main, mtp = reference_tensors(tmp_path)
    assert_same(found, main)
    assert_same(head, mtp)


@pytest.mark.parametrize("prefix", ("model.", "model.language_model."))
def test_twin_is_what_transformers_reads(tmp_path: Path, prefix: str) -> None:
    """The reference of the other tests is transformers' own reading of the checkpoint where it can read it."""
    make_tiny(tmp_path, 2, prefix=prefix, layout="split", dtype="bfloat16", shards=2)
    direct = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).state_dict()
    twin = reference_model(tmp_path).state_dict()
    assert direct.keys() == twin.keys()
    assert all(torch.equal(tensor, twin[name]) for name, tensor in direct.items())


@pytest.mark.parametrize("shape", ("dense-attention", "one-of-each", "wide"))
def test_shapes(tmp_path: Path, shape: str) -> None:
    make_tiny(tmp_path, 3, shape=shape)
    main, mtp = reference_tensors(tmp_path)
    found, head = values(tmp_path)
    assert_same(found, main)
    assert_same(head, mtp)


def test_tied_head_is_the_embedding_itself(tmp_path: Path) -> None:
    weights = load(make_tiny(tmp_path, shape="one-of-each"))
    assert weights.head.out is weights.embedding
    assert weights.mtp is not None and weights.mtp.head.out is weights.embedding


def test_a_head_on_disk_stands_over_the_config(tmp_path: Path) -> None:
    """A config that ties and a checkpoint with another head: the head is used, in transformers too."""
    make_tiny(tmp_path, shape="one-of-each", layout="stacked")
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["lm_head.weight"] = 2 * tensors["model.embed_tokens.weight"]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).lm_head.weight
    assert torch.equal(theirs, tensors["lm_head.weight"])
    assert torch.equal(matrix(load(tmp_path).head.out), theirs)


def test_vectors_are_float32_and_matrices_as_they_are_stored(tmp_path: Path) -> None:
    make_tiny(tmp_path, dtype="bfloat16")
    weights = load(tmp_path)
    assert weights.mtp is not None
    for block in (*weights.blocks, weights.head, weights.mtp.input, *weights.mtp.blocks, weights.mtp.head):
        for name in block.__slots__:
            value = getattr(block, name)
            if isinstance(value, Tensor):
                assert value.dtype == torch.float32 and value.is_contiguous(), name
            elif value is not None:
                assert all(part.dtype == torch.bfloat16 for part in value.tensors()), name


QUANTS = ("int4-g32", "int4-g128", "int4-g32-asym", "int4-channel", "int4-channel-asym", "int8-g32", "int8-g128-asym")


@pytest.mark.parametrize("quant, dtype", list(itertools.product(QUANTS, ("float32", "bfloat16"))))
def test_packed_integers_equal_compressed_tensors(tmp_path: Path, quant: str, dtype: str) -> None:
    make_tiny(tmp_path, 4, shape="wide", quant=quant, dtype=dtype, quant_mtp=quant != "int4-g32")
    packed = [name for name in load_file(tmp_path / "model.safetensors") if name.endswith("weight_packed")]
    assert len(packed) > 100
    main, mtp = reference_tensors(tmp_path)
    found, head = values(tmp_path)
    assert_same(found, main)
    assert_same(head, mtp)


@pytest.mark.parametrize("prefix", PREFIXES)
def test_packed_and_dense_are_told_apart_tensor_by_tensor(tmp_path: Path, prefix: str) -> None:
    """Matrices 48 wide are no multiple of 32 and stay dense beside packed ones, whatever the config says of them."""
    make_tiny(tmp_path, 5, quant="int8-g32", prefix=prefix, shards=2, moe_intermediate_size=48)
    main, _ = reference_tensors(tmp_path)
    assert_same(values(tmp_path)[0], main)
    parts = open_checkpoint(tmp_path).named(load_config(tmp_path))
    assert "_packed" in parts["layers.0.mlp.experts.3.up_proj.weight"]
    assert "" in parts["layers.0.mlp.experts.3.down_proj.weight"]
    assert "int8 g32" in check(tmp_path).text


def test_format_names_the_large_shares(tmp_path: Path) -> None:
    assert check(make_tiny(tmp_path / "a", dtype="bfloat16")) == CheckpointFormat("bf16", True)
    assert check(make_tiny(tmp_path / "b", dtype="float16", mtp=False)) == CheckpointFormat("f16", False)
    quantized = make_tiny(tmp_path / "c", shape="wide", quant="int4-g32", dtype="bfloat16")
    assert check(quantized).text.startswith("int4 g32 (compressed-tensors)")
    channels = make_tiny(tmp_path / "d", shape="dense-attention", quant="int4-channel")
    assert check(channels).text == "int4 per channel (compressed-tensors) + f32"


def test_columns_in_groups_of_their_own(tmp_path: Path) -> None:
    """`weight_g_idx` (activation order): each column takes the scale of the group it names."""
    make_tiny(tmp_path, 6, quant="int4-g32")
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    stem = "model.layers.0.mlp.experts.2.gate_proj.weight"
    group_of = torch.arange(64)[torch.randperm(64, generator=torch.Generator().manual_seed(0))] // 32
    tensors[f"{stem}_g_idx"] = group_of.to(torch.int32)
    save_file(tensors, file)
    codes = unpack_from_int32(tensors[f"{stem}_packed"], 4, torch.Size((32, 64)))
    expected = codes.float() * tensors[f"{stem}_scale"][:, group_of]
    assert torch.equal(values(tmp_path)[0]["layers.0.mlp.experts.gate_up_proj"][2, :32], expected)


def test_mtp_in_a_file_beside_the_index(tmp_path: Path) -> None:
    make_tiny(tmp_path, 7, shards=2)
    names = json.loads((tmp_path / "model.safetensors.index.json").read_text())["weight_map"]
    tensors = {name: tensor for file in set(names.values()) for name, tensor in load_file(tmp_path / file).items()}
    mtp = {name: tensor for name, tensor in tensors.items() if name.startswith("mtp.")}
    main = {name: tensor for name, tensor in tensors.items() if name not in mtp}
    for file in tmp_path.glob("*.safetensors*"):
        file.unlink()
    save_file(main, tmp_path / "model-00001-of-00001.safetensors")
    index = {"weight_map": dict.fromkeys(main, "model-00001-of-00001.safetensors")}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert not check(tmp_path).has_mtp
    save_file(mtp, tmp_path / "mtp.safetensors")
    assert check(tmp_path).has_mtp
    assert_same(values(tmp_path)[1], reference_tensors(tmp_path)[1])


@pytest.mark.parametrize("as_file", (False, True))
def test_graft_supplies_the_head_alone(tmp_path: Path, as_file: bool) -> None:
    without = make_tiny(tmp_path / "without", 8, mtp=False)
    donor = make_tiny(tmp_path / "donor", 9, quant="int4-g32", quant_mtp=True)
    config = load_config(without)
    graft = open_checkpoint(donor / "model.safetensors" if as_file else donor)
    checkpoint = open_checkpoint(without)
    assert not checkpoint.check(config).has_mtp
    assert checkpoint.check(config, graft).has_mtp
    found, head = unpacked(checkpoint.load(config, "cpu", graft), config)
    twin = load_file(without / "reference" / "model.safetensors")
    assert_same(found, {name.removeprefix("model."): tensor for name, tensor in twin.items()})
    assert_same(head, reference_tensors(donor)[1])


def test_graft_stands_over_the_checkpoints_own_head(tmp_path: Path) -> None:
    own, donor = make_tiny(tmp_path / "own", 10), make_tiny(tmp_path / "donor", 11)
    shutil.copy(donor / "model.safetensors", tmp_path / "head.safetensors")
    assert_same(values(own, donor)[1], reference_tensors(donor)[1])


def test_graft_of_another_size_is_refused(tmp_path: Path) -> None:
    main, donor = make_tiny(tmp_path / "main", mtp=False), make_tiny(tmp_path / "donor", hidden_size=96)
    with pytest.raises(UsageError, match=r"donor: mtp\.fc\.weight: expected shape \[64, 128\], found \[96, 192\]"):
        open_checkpoint(main).check(load_config(main), open_checkpoint(donor))


def test_graft_without_a_head_is_refused(tmp_path: Path) -> None:
    main, donor = make_tiny(tmp_path / "main"), make_tiny(tmp_path / "donor", mtp=False)
    with pytest.raises(UsageError, match="donor has no MTP head"):
        open_checkpoint(main).check(load_config(main), open_checkpoint(donor))


@pytest.mark.parametrize(
    "size, trained, warned",
    [(512, False, True), (512, True, False), (64, False, False)],
    ids=["random", "trained", "tiny"],
)
def test_untrained_head_is_noticed(tmp_path: Path, size: int, trained: bool, warned: bool) -> None:
    small = {"num_hidden_layers": 1, "full_attention_interval": 1, "num_experts": 2, "vocab_size": 40}
    make_tiny(tmp_path, hidden_size=size, num_attention_heads=8, **small)
    tensors = load_file(tmp_path / "model.safetensors")
    generator = torch.Generator().manual_seed(0)
    for name, tensor in tensors.items():
        if name.startswith("mtp.") and tensor.ndim > 1:
            noise = torch.randn(tensor.shape, generator=generator) * 0.02
            tensors[name] = noise * (noise.abs() * 50).sqrt() if trained else noise  # heavier tails
    save_file(tensors, tmp_path / "model.safetensors")
    warnings = load(tmp_path).warnings
    assert len(warnings) == warned
    assert all("looks untrained" in warning for warning in warnings)
