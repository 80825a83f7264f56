"""config.json: what is read from it, and what is refused by name."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from strata_cli.errors import UsageError
from strata_cli.model.config import load_config, parse_config
from strata_cli.model.families import FAMILIES, ModelConfig
from strata_kernels.params import AttentionParams, ExpertsParams, GatedDeltaParams
from tests.support.tiny import SHAPES, make_tiny, make_tokenizer

TEXT: dict[str, Any] = {
    "model_type": "qwen3_5_moe_text",
    "hidden_size": 48,
    "num_hidden_layers": 6,
    "full_attention_interval": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 24,
    "linear_conv_kernel_dim": 3,
    "num_experts": 5,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 40,
    "rms_norm_eps": 1e-6,
    "vocab_size": 131,
    "max_position_embeddings": 512,
    "rope_parameters": {"rope_type": "default", "rope_theta": 5e5, "partial_rotary_factor": 0.5},
    "eos_token_id": 7,
}
SIZES = [name for name, value in TEXT.items() if type(value) is int and name != "eos_token_id"]


def refused(changes: dict[str, Any]) -> str:
    """The line that a config with `changes` ends with; a change to None takes the field away."""
    fields = {name: value for name, value in {**TEXT, **changes}.items() if value is not None}
    with pytest.raises(UsageError) as raised:
        parse_config(fields)
    assert str(raised.value).startswith("config.json: ")
    return str(raised.value).removeprefix("config.json: ")


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("prefix", ("model.", "model.language_model."))
def test_fields_are_those_transformers_reads(tmp_path: Path, shape: str, prefix: str) -> None:
    config = load_config(make_tiny(tmp_path, shape=shape, prefix=prefix))
    theirs = AutoConfig.from_pretrained(tmp_path).get_text_config()
    for name in ("hidden_size", "vocab_size", "max_position_embeddings", "tie_word_embeddings"):
        assert getattr(config, name) == getattr(theirs, name), name
    assert kinds(config) == theirs.layer_types
    for block in config.blocks:
        p = block.params
        if isinstance(p, AttentionParams):
            assert (p.heads, p.kv_heads) == (theirs.num_attention_heads, theirs.num_key_value_heads)
            assert (p.head_dim, p.rope_theta) == (theirs.head_dim, theirs.rope_parameters["rope_theta"])
            assert p.rotary_dim == int(theirs.head_dim * theirs.rope_parameters["partial_rotary_factor"])
            assert p.gated and p.qk_norm and p.first_key == 0
        elif isinstance(p, GatedDeltaParams):
            assert (p.key_heads, p.value_heads) == (theirs.linear_num_key_heads, theirs.linear_num_value_heads)
            assert (p.key_dim, p.value_dim) == (theirs.linear_key_head_dim, theirs.linear_value_head_dim)
            assert p.kernel == theirs.linear_conv_kernel_dim
        else:
            assert isinstance(p, ExpertsParams)
            assert (p.experts, p.top_k) == (theirs.num_experts, theirs.num_experts_per_tok)
            assert (p.inner, p.shared_inner) == (theirs.moe_intermediate_size, theirs.shared_expert_intermediate_size)
            assert (p.router, p.normalize, p.scale, p.shared_gated) == ("softmax", True, 1.0, True)
        assert p.eps == theirs.rms_norm_eps and p.hidden == theirs.hidden_size
    assert config.mtp is not None and [b.kind for b in config.mtp.blocks] == ["attention", "experts"]
    assert config.mtp.blocks[0].params == replace(config.attention, first_key=1)  # type: ignore[type-var]
    assert config.eos_token_ids == (1,)
    assert config.family == "qwen3_5_moe"


def kinds(config: ModelConfig) -> list[str]:
    """Layer types in transformers' words; every mixer is followed by experts."""
    mixers, others = config.blocks[::2], config.blocks[1::2]
    assert all(block.kind == "experts" for block in others) and len(mixers) == len(others)
    return [{"attention": "full_attention", "gated_delta": "linear_attention"}[block.kind] for block in mixers]


def test_layers_follow_the_interval() -> None:
    assert kinds(parse_config(TEXT)) == ["linear_attention", "linear_attention", "full_attention"] * 2


def test_nested_and_flat_are_the_same() -> None:
    nested = {"model_type": "qwen3_5_moe", "text_config": TEXT, "vision_config": {"hidden_size": 7}}
    assert parse_config(nested) == parse_config(TEXT)


def test_rope_fields_of_older_files() -> None:
    older = {name: value for name, value in TEXT.items() if name != "rope_parameters"}
    config = parse_config({**older, "rope_theta": 1e6, "partial_rotary_factor": 0.5, "rope_scaling": {"type": "mrope"}})
    assert config.attention is not None
    assert (config.attention.rope_theta, config.attention.rotary_dim) == (1e6, 8)
    quarter = parse_config({**older, "rope_theta": 1e6}).attention
    assert quarter is not None and quarter.rotary_dim == 4  # as all of the family


def test_stop_ids(tmp_path: Path) -> None:
    make_tiny(tmp_path, eos_token_id=[5, 6])
    assert load_config(tmp_path).eos_token_ids == (5, 6)
    make_tokenizer(tmp_path)
    assert load_config(tmp_path).eos_token_ids == (2, 0)
    assert parse_config({**TEXT, "eos_token_id": None}).eos_token_ids == ()


def test_not_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no such model: .*absent"):
        load_config(tmp_path / "absent")
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="file is not a directory"):
        load_config(tmp_path / "file")
    with pytest.raises(UsageError, match=r"has no config\.json"):
        load_config(tmp_path)


@pytest.mark.parametrize(
    "text, what",
    [
        ('{\n"hidden_size": 3,\n}', r"config\.json:3: not valid JSON: "),
        ("", r"config\.json:1: not valid JSON: "),
        ("[1]", r"config\.json: must be a JSON object, found list"),
        ("\udcff", r"cannot read .*config\.json: not UTF-8 at byte 0"),
    ],
)
def test_json_faults(tmp_path: Path, text: str, what: str) -> None:
    (tmp_path / "config.json").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(UsageError, match=what):
        load_config(tmp_path)


@pytest.mark.parametrize("name", ("config.json", "generation_config.json", "tokenizer.json"))
def test_what_is_not_a_file_is_not_taken_as_absent(tmp_path: Path, name: str) -> None:
    make_tiny(tmp_path)
    (tmp_path / name).unlink(missing_ok=True)
    (tmp_path / name).mkdir()
    with pytest.raises(UsageError, match=f"{name} is not a file"):
        load_config(tmp_path)


def test_unsupported_architecture() -> None:
    supported = ", ".join(sorted(FAMILIES))  # tests may have registered some of their own
    assert "qwen3_5_moe" in supported
    assert refused({"model_type": "mixtral"}) == f"architecture mixtral is not supported (supported: {supported})"
    line = refused({"model_type": None, "architectures": ["OtherForCausalLM"]})
    assert line.startswith("architecture OtherForCausalLM is not supported")
    for classes in (None, 5, {"a": 1}, []):
        line = refused({"model_type": None, "architectures": classes})
        assert line.startswith("architecture none named is not supported")
    assert refused({"model_type": "a\nb" * 400}).count("\n") == 0
    for kind in (["x"], {"a": 1}, 5):
        assert refused({"model_type": kind}).endswith(": must be a string")


@pytest.mark.parametrize("name", [*SIZES, "rms_norm_eps"])
def test_missing_fields(name: str) -> None:
    missing = "full_attention_interval" if name == "full_attention_interval" else name
    assert refused({name: None}) == f"{missing} is missing"


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("value", (0, -4, 2.5, "8", True, [8]))
def test_nonsensical_sizes(name: str, value: Any) -> None:
    assert refused({name: value}) == f"{name} = {json.dumps(value)}: must be a whole number above 0"


@pytest.mark.parametrize("name", SIZES)
def test_sizes_beyond_any_model(name: str) -> None:
    limit = 10_000 if name == "num_hidden_layers" else 2**31
    assert refused({name: limit + 1}) == f"{name} = {limit + 1}: must be at most {limit}"


def test_mtp_layers() -> None:
    """What a head would be made of is known even where the config disowns the checkpoint's own."""
    own, disowned = parse_config(TEXT).mtp, parse_config({**TEXT, "mtp_num_hidden_layers": 0}).mtp
    assert own is not None and disowned is not None
    assert (own.own, disowned.own) == (True, False) and own.blocks == disowned.blocks


@pytest.mark.parametrize(
    "changes, what",
    [
        ({"rms_norm_eps": 10**400}, "rms_norm_eps = 1000"),
        ({"rms_norm_eps": float("inf")}, "rms_norm_eps = Infinity: must be at most 1e+30"),
        ({"rope_parameters": {"rope_theta": 10**400}}, "rope_theta = 1000"),
        ({"rope_parameters": {"rope_theta": 1e6, "partial_rotary_factor": 1e308}}, "partial_rotary_factor = 1e+308: "),
        ({"rope_parameters": {"rope_theta": 1e6, "rope_type": ["x"]}}, "rope_parameters.rope_type = ['x']: "),
        ({"num_experts": 2**20}, "num_experts = 1048576: more than 1000000 in all layers"),
        ({"mtp_num_hidden_layers": 2}, "mtp_num_hidden_layers = 2: not supported, only a head of 1 layer"),
        ({"mtp_num_hidden_layers": "x"}, 'mtp_num_hidden_layers = "x": not supported'),
        ({"mtp_num_hidden_layers": True}, "mtp_num_hidden_layers = true: not supported"),
        ({"quantization_config": 5}, "quantization_config = 5: must be an object"),
        ({"quantization_config": "x"}, 'quantization_config = "x": must be an object'),
        ({"quantization_config": []}, "quantization_config = []: must be an object"),
        ({"quantization_config": {"config_groups": 5}}, "config_groups = 5: must be an object"),
        ({"quantization_config": {"config_groups": {"group_0": 5}}}, "group_0 = 5: must be an object"),
        ({"quantization_config": {"config_groups": {"g": {"weights": 5}}}}, "weights = 5: must be an object"),
        ({"text_config": [1]}, "text_config = [1]: must be an object"),
        ({"tie_word_embeddings": "no"}, 'tie_word_embeddings = "no": must be true or false'),
        ({"layer_types": [[]] * 6}, "layer_types = []: not supported"),
        ({"rms_norm_eps": -1e-6}, "rms_norm_eps = -1e-06: must be a number above 0"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps = NaN: must be a number above 0"),
        ({"rope_parameters": {"rope_type": "default"}}, "rope_theta is missing"),
        ({"rope_parameters": [1]}, "rope_parameters = [1]: must be an object"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6}}, 'rope_parameters.rope_type = "yarn"'),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, 'rope_scaling.rope_type = "linear"'),
        ({"rope_parameters": {"rope_theta": 1e6, "partial_rotary_factor": 0.2}}, "partial_rotary_factor = 0.1875"),
        ({"rope_parameters": {"rope_theta": 1e6, "partial_rotary_factor": 2}}, "partial_rotary_factor = 2.0"),
        ({"attention_bias": True}, "attention_bias = true: not supported, only false"),
        ({"hidden_act": "gelu"}, 'hidden_act = "gelu": not supported, only "silu"'),
        ({"attn_output_gate": False}, "attn_output_gate = false: not supported, only true"),
        ({"norm_topk_prob": False}, "norm_topk_prob = false: not supported, only true"),
        ({"num_key_value_heads": 4}, "num_attention_heads = 6: not a multiple of num_key_value_heads = 4"),
        ({"linear_num_key_heads": 4}, "linear_num_value_heads = 6: not a multiple of linear_num_key_heads = 4"),
        ({"num_experts_per_tok": 6}, "num_experts_per_tok = 6: above num_experts = 5"),
        ({"layer_types": ["full_attention"] * 5}, "num_hidden_layers = 6: but layer_types is a list of 5"),
        (
            {"layer_types": ["full_attention"] * 5 + ["sliding_attention"]},
            'layer_types = "sliding_attention": not supported',
        ),
        ({"eos_token_id": 131}, "eos_token_id = 131: outside vocab_size = 131"),
        ({"eos_token_id": "</s>"}, 'eos_token_id = "</s>": must be a token id or a list of them'),
        ({"eos_token_id": [-1]}, "eos_token_id = [-1]: must be a token id or a list of them"),
    ],
)
def test_what_cannot_be_honoured(changes: dict[str, Any], what: str) -> None:
    assert refused(changes).startswith(what)
