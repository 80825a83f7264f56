"""Bad checkpoints get one clear line that names the file and the tensor, before any weight is read."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from strata_cli.errors import UsageError
from strata_cli.model.config import load_config
from strata_cli.model.weights.checkpoint import open_checkpoint
from tests.support.tiny import make_tiny

MODEL = "model.safetensors"
INDEX = "model.safetensors.index.json"
Q = "model.layers.3.self_attn.q_proj.weight"
PACKED = "model.layers.0.mlp.experts.2.gate_proj.weight"


def fault(directory: Path) -> str:
    """The one line that checking a checkpoint ends with."""
    with pytest.raises(UsageError) as raised:
        open_checkpoint(directory).check(load_config(directory))
    line = str(raised.value)
    assert "\n" not in line and line.startswith(str(directory)) and raised.value.exit_code == 2
    return line.removeprefix(str(directory)).lstrip(": /")


def edit(directory: Path, change: Callable[[dict[str, Tensor]], object]) -> Path:
    tensors = load_file(directory / MODEL)
    change(tensors)
    save_file(tensors, directory / MODEL)
    return directory


def drop(*names: str) -> Callable[[dict[str, Tensor]], object]:
    return lambda tensors: [tensors.pop(name) for name in names]


def put(name: str, tensor: Tensor) -> Callable[[dict[str, Tensor]], object]:
    return lambda tensors: tensors.update({name: tensor})


def test_missing_tensors(tmp_path: Path) -> None:
    make_tiny(tmp_path)
    assert fault(edit(tmp_path, drop(Q))) == "missing layers.3.self_attn.q_proj.weight"
    edit(tmp_path, drop("model.norm.weight", "model.layers.0.linear_attn.A_log", "model.layers.1.mlp.gate.weight"))
    line = fault(edit(tmp_path, drop("lm_head.weight")))
    named = "layers.0.linear_attn.A_log, layers.1.mlp.gate.weight, layers.3.self_attn.q_proj.weight"
    assert line == f"missing {named} and 2 more"


@pytest.mark.parametrize("layout", ("stacked", "split"))
def test_missing_expert(tmp_path: Path, layout: str) -> None:
    make_tiny(tmp_path, layout=layout)
    if layout == "stacked":
        edit(tmp_path, drop("model.layers.1.mlp.experts.down_proj"))
        assert fault(tmp_path) == "missing layers.1.mlp.experts.down_proj"
    else:
        edit(tmp_path, drop("model.layers.1.mlp.experts.5.up_proj.weight"))
        assert fault(tmp_path) == "missing layers.1.mlp.experts.5.up_proj.weight"


def test_unexpected_tensors(tmp_path: Path) -> None:
    make_tiny(tmp_path)
    edit(tmp_path, put("model.layers.3.self_attn.q_proj.bias", torch.zeros(4)))
    edit(tmp_path, put("model.layers.4.input_layernorm.weight", torch.zeros(64)))
    line = fault(tmp_path)
    assert line == "unexpected model.layers.3.self_attn.q_proj.bias, model.layers.4.input_layernorm.weight"


def test_renamed_tensor_is_missing_and_unexpected(tmp_path: Path) -> None:
    make_tiny(tmp_path)
    edit(tmp_path, lambda tensors: tensors.update({"model.layers.3.attn.q.weight": tensors.pop(Q)}))
    assert fault(tmp_path) == ("missing layers.3.self_attn.q_proj.weight; unexpected model.layers.3.attn.q.weight")


def test_misshapen_tensor(tmp_path: Path) -> None:
    make_tiny(tmp_path)
    edit(tmp_path, put(Q, torch.zeros(128, 64)))
    assert fault(tmp_path) == f"{Q}: expected shape [256, 64], found [128, 64]"


def test_config_of_another_model(tmp_path: Path) -> None:
    make_tiny(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "hidden_size": 96}))
    line = fault(tmp_path)
    assert "model.embed_tokens.weight: expected shape [320, 96], found [320, 64], " in line and " more" in line


def test_partial_mtp_head(tmp_path: Path) -> None:
    make_tiny(tmp_path)
    edit(tmp_path, drop("mtp.fc.weight", "mtp.layers.0.mlp.experts.3.down_proj.weight"))
    assert fault(tmp_path) == "missing mtp.fc.weight, mtp.layers.0.mlp.experts.3.down_proj.weight"


def test_mtp_head_of_two_layers(tmp_path: Path) -> None:
    make_tiny(tmp_path)
    edit(tmp_path, put("mtp.layers.1.input_layernorm.weight", torch.zeros(64)))
    assert fault(tmp_path) == "unexpected mtp.layers.1.input_layernorm.weight"


@pytest.mark.parametrize("keep", (0, 5, 8, 500, -1000, -1))
def test_truncated_file(tmp_path: Path, keep: int) -> None:
    make_tiny(tmp_path)
    data = (tmp_path / MODEL).read_bytes()
    (tmp_path / MODEL).write_bytes(data[:keep])
    line = fault(tmp_path)
    assert line.startswith(f"{MODEL} is truncated: {len(data[:keep])} bytes") and "fetch it again" in line
    if keep < 0:
        assert f" of {len(data)}" in line


def test_one_truncated_shard(tmp_path: Path) -> None:
    make_tiny(tmp_path, shards=3)
    shard = tmp_path / "model-00002-of-00003.safetensors"
    shard.write_bytes(shard.read_bytes()[:-7])
    assert fault(tmp_path).startswith("model-00002-of-00003.safetensors is truncated")


def test_corrupt_files(tmp_path: Path) -> None:
    make_tiny(tmp_path)
    file, data = tmp_path / MODEL, (tmp_path / MODEL).read_bytes()
    file.write_bytes(data[:8] + b"x" + data[9:])
    assert fault(tmp_path).startswith(f"{MODEL} header:1: not valid JSON: ")
    file.write_bytes(data.replace(b'"shape":[320,64]', b'"shape":[321,64]', 1))
    assert f"{MODEL} has a corrupt header: " in fault(tmp_path) and "of F32 [321, 64] has 81920 bytes" in fault(
        tmp_path
    )
    file.write_bytes(data.replace(b'"data_offsets"', b'"data_onsets!"', 1))
    assert re.match(rf"{MODEL} has a corrupt header: [\w.]+ is .*data_onsets!", fault(tmp_path))
    file.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    assert fault(tmp_path) == f"{MODEL} is not a safetensors file (a Git LFS pointer would need `git lfs pull`)"


@pytest.mark.parametrize(
    "header, what",
    [
        ("[" * 100_000, " header: nested too deeply"),
        ('{"a":' * 100_000, " header: nested too deeply"),
        (f'{{"a": {"9" * 5000}}}', " header: a number has too many digits"),
        ("[]", " header: must be a JSON object, found list"),
        ("\udcff", " header: not UTF-8 at byte 0"),
    ],
)
def test_headers_that_are_no_json(tmp_path: Path, header: str, what: str) -> None:
    make_tiny(tmp_path)
    data = header.encode(errors="surrogateescape")
    (tmp_path / MODEL).write_bytes(len(data).to_bytes(8, "little") + data)
    assert fault(tmp_path) == f"{MODEL}{what} (fetch it again)"


@pytest.mark.parametrize(
    "change",
    [
        {"data_offsets": [float("inf"), 1]},
        {"data_offsets": [float("nan"), 1]},
        {"data_offsets": [0]},
        {"data_offsets": [4, 0]},
        {"data_offsets": [-4, 0]},
        {"data_offsets": 5},
        {"shape": [-1]},
        {"shape": [1.5]},
        {"shape": "ab"},
        {"shape": None},
        {"dtype": 5},
    ],
)
def test_entries_of_a_header(tmp_path: Path, change: dict[str, object]) -> None:
    make_tiny(tmp_path)
    data = json.dumps({"x.weight": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4], **change}}).encode()
    (tmp_path / MODEL).write_bytes(len(data).to_bytes(8, "little") + data + bytes(4))
    assert fault(tmp_path).startswith(f"{MODEL} has a corrupt header: x.weight is {{")


def test_head_that_the_config_disowns(tmp_path: Path) -> None:
    """`mtp_num_hidden_layers: 0`: no head, whatever tensors there are; another checkpoint's may stand in."""
    make_tiny(tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**fields, "mtp_num_hidden_layers": 0}))
    config, checkpoint = load_config(tmp_path), open_checkpoint(tmp_path)
    assert checkpoint.has_mtp(config) and not checkpoint.check(config).has_mtp
    assert checkpoint.check(config, open_checkpoint(tmp_path)).has_mtp


def test_no_files(tmp_path: Path) -> None:
    make_tiny(tmp_path)
    (tmp_path / MODEL).unlink()
    assert fault(tmp_path) == "has no *.safetensors files"
    with pytest.raises(UsageError, match=r"no such checkpoint: .*elsewhere"):
        open_checkpoint(tmp_path / "elsewhere")


def test_missing_shard(tmp_path: Path) -> None:
    make_tiny(tmp_path, shards=4)
    (tmp_path / "model-00002-of-00004.safetensors").unlink()
    assert fault(tmp_path) == "1 of 4 files are missing: model-00002-of-00004.safetensors (fetch them)"


def test_broken_index(tmp_path: Path) -> None:
    make_tiny(tmp_path, shards=2)
    for text in ("{", "[]", "[" * 100_000):
        (tmp_path / INDEX).write_text(text)
        assert re.match(rf"{INDEX}(:1: not valid JSON|: must be|: nested too deeply)", fault(tmp_path))
    for names in (None, [], 5, {"a": 5}, {"a": ["x"]}, {"a": None}):
        (tmp_path / INDEX).write_text(json.dumps({"weight_map": names}))
        assert fault(tmp_path) == f"{INDEX}: weight_map must be an object of file names (fetch it again)"
    (tmp_path / INDEX).unlink()
    (tmp_path / INDEX).mkdir()
    assert fault(tmp_path).startswith(f"{INDEX} is not a file")


def test_tensor_in_two_files(tmp_path: Path) -> None:
    make_tiny(tmp_path)
    save_file({Q: torch.zeros(256, 64)}, tmp_path / "extra.safetensors")
    assert fault(tmp_path) == f"{Q} is there twice, in extra.safetensors and {MODEL}"


def test_prefixes_that_collide(tmp_path: Path) -> None:
    make_tiny(tmp_path)
    edit(tmp_path, put("model.language_model.norm.weight", torch.zeros(64)))
    assert "is there twice" in fault(tmp_path)


@pytest.mark.parametrize(
    "name, tensor, what",
    [
        (PACKED.replace(".weight", ".qweight"), torch.zeros(8, 32, dtype=torch.int32), "GPTQ or AWQ is not supported"),
        (PACKED + "_scale_inv", torch.zeros(1, 1), "FP8 in blocks is not supported"),
        (PACKED + "_scale_2", torch.zeros(1), "NVFP4 (modelopt) is not supported"),
        (PACKED + "_global_scale", torch.zeros(1), "NVFP4 (compressed-tensors) is not supported"),
        (PACKED.replace(".weight", ".trellis"), torch.zeros(4, 2, 64, dtype=torch.int16), "EXL3 is not supported"),
        (PACKED + "_scale", torch.zeros(32, 1), f"unexpected beside {PACKED}"),
        (PACKED, torch.zeros(32, 64, dtype=torch.float8_e4m3fn), "F8_E4M3 is not supported"),
        (PACKED, torch.zeros(32, 64, dtype=torch.int8), "I8 is not supported"),
        (PACKED, torch.zeros(32, 64, dtype=torch.float64), "F64 is not supported"),
    ],
)
def test_formats_that_are_not_supported(tmp_path: Path, name: str, tensor: Tensor, what: str) -> None:
    make_tiny(tmp_path)
    line = fault(edit(tmp_path, put(name, tensor)))
    assert line.startswith(f"{name}: {what}") and "supported: " in line


@pytest.mark.parametrize(
    "part, tensor, what",
    [
        (
            "_packed",
            torch.zeros(32, 9, dtype=torch.int32),
            "_packed: expected shape [32, 8] or [32, 16], found [32, 9]",
        ),
        ("_packed", torch.zeros(32, 32, dtype=torch.uint8), "_packed: U8 is not supported"),
        ("_scale", torch.zeros(31, 2), "_scale: expected shape [32, 2], found [31, 2]"),
        ("_scale", torch.zeros(32, 3), "_scale: expected shape [32, 1], found [32, 3]"),
        ("_scale", torch.zeros(32, 2, dtype=torch.int32), "_scale: I32 is not supported"),
        ("_zero_point", torch.zeros(32, 2, dtype=torch.int32), "_zero_point: expected shape [4, 2], found [32, 2]"),
        ("_zero_point", torch.zeros(32, 2, dtype=torch.int8), "_zero_point: I8 is not supported"),
        ("_g_idx", torch.zeros(32, dtype=torch.int32), "_g_idx: expected shape [64], found [32]"),
        ("_shape", torch.zeros(3, dtype=torch.int64), "_shape: expected shape [2], found [3]"),
        ("", torch.zeros(32, 64), f": unexpected beside {PACKED}_packed"),
        ("_tail", torch.zeros(1), f"_tail: unexpected beside {PACKED}_packed"),
    ],
)
def test_faults_of_packed_weights(tmp_path: Path, part: str, tensor: Tensor, what: str) -> None:
    make_tiny(tmp_path, quant="int4-g32")
    assert fault(edit(tmp_path, put(PACKED + part, tensor))).startswith(PACKED + what)


def test_packed_weight_without_scale(tmp_path: Path) -> None:
    make_tiny(tmp_path, quant="int4-g32")
    assert f"{PACKED}_packed: without _scale beside it" in fault(edit(tmp_path, drop(PACKED + "_scale")))


@pytest.mark.parametrize(
    "part, tensor, what",
    [
        ("_shape", torch.tensor([32, 63]), r"_shape: expected \[32, 64\], found \[32, 63\]"),
        ("_g_idx", torch.full((64,), 2, dtype=torch.int32), r"_g_idx: names groups outside 0\.\.1"),
        ("_g_idx", torch.full((64,), -1, dtype=torch.int32), r"_g_idx: names groups outside 0\.\.1"),
    ],
)
def test_faults_of_values(tmp_path: Path, part: str, tensor: Tensor, what: str) -> None:
    """What only the numbers show is found when they are read."""
    make_tiny(tmp_path, quant="int4-g32")
    edit(tmp_path, put(PACKED + part, tensor))
    with pytest.raises(UsageError, match=PACKED + what):
        open_checkpoint(tmp_path).load(load_config(tmp_path), "cpu")


def test_only_headers_are_read(tmp_path: Path) -> None:
    """A checkpoint of 35B-A3B's true sizes, 71 GB by its header and a hole on disk, is checked."""
    config = {
        "text_config": {
            "model_type": "qwen3_5_moe_text",
            "hidden_size": 2048,
            "num_hidden_layers": 40,
            "full_attention_interval": 4,
            "num_attention_heads": 16,
            "num_key_value_heads": 2,
            "head_dim": 256,
            "linear_num_key_heads": 16,
            "linear_num_value_heads": 32,
            "linear_key_head_dim": 128,
            "linear_value_head_dim": 128,
            "linear_conv_kernel_dim": 4,
            "num_experts": 256,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 512,
            "shared_expert_intermediate_size": 512,
            "rms_norm_eps": 1e-6,
            "vocab_size": 248320,
            "max_position_embeddings": 262144,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "mrope_section": [11, 11, 10]},
        }
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    p, a, g, m = "model.language_model.layers.", "self_attn.", "linear_attn.", "mlp."
    every = {
        "input_layernorm.weight": [2048],
        "post_attention_layernorm.weight": [2048],
        f"{m}gate.weight": [256, 2048],
        f"{m}experts.gate_up_proj": [256, 1024, 2048],
        f"{m}experts.down_proj": [256, 2048, 512],
        f"{m}shared_expert.gate_proj.weight": [512, 2048],
        f"{m}shared_expert.up_proj.weight": [512, 2048],
        f"{m}shared_expert.down_proj.weight": [2048, 512],
        f"{m}shared_expert_gate.weight": [1, 2048],
    }
    attention = {
        f"{a}q_proj.weight": [8192, 2048],
        f"{a}k_proj.weight": [512, 2048],
        f"{a}v_proj.weight": [512, 2048],
        f"{a}o_proj.weight": [2048, 4096],
        f"{a}q_norm.weight": [256],
        f"{a}k_norm.weight": [256],
    }
    linear = {
        f"{g}in_proj_qkv.weight": [8192, 2048],
        f"{g}in_proj_z.weight": [4096, 2048],
        f"{g}in_proj_b.weight": [32, 2048],
        f"{g}in_proj_a.weight": [32, 2048],
        f"{g}conv1d.weight": [8192, 1, 4],
        f"{g}A_log": [32],
        f"{g}dt_bias": [32],
        f"{g}norm.weight": [128],
        f"{g}out_proj.weight": [2048, 4096],
    }
    shapes = {
        "model.language_model.embed_tokens.weight": [248320, 2048],
        "model.language_model.norm.weight": [2048],
        "lm_head.weight": [248320, 2048],
        "mtp.fc.weight": [2048, 4096],
        "mtp.norm.weight": [2048],
        "mtp.pre_fc_norm_embedding.weight": [2048],
        "mtp.pre_fc_norm_hidden.weight": [2048],
        "model.visual.pos_embed.weight": [2304, 1152],
    }
    for i in range(40):
        layer = every | (attention if i % 4 == 3 else linear)
        shapes |= {f"{p}{i}.{name}": shape for name, shape in layer.items()}
    shapes |= {f"mtp.layers.0.{name}": shape for name, shape in (every | attention).items()}
    assert len(shapes) == 712 + 1
    header, end = {}, 0
    for name, shape in shapes.items():
        size = 2 * int(torch.tensor(shape).prod())
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    with (tmp_path / MODEL).open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
    checkpoint, known = open_checkpoint(tmp_path), load_config(tmp_path)
    found = checkpoint.check(known)
    assert (found.text, found.has_mtp) == ("bf16", True)
    main = [
        stored.shape
        for name, parts in checkpoint.named(known).items()
        for stored in parts.values()
        if name[:4] != "mtp."
    ]
    assert sum(int(torch.tensor(shape).prod()) for shape in main) == 34_660_610_688
