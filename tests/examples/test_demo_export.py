"""What the demo model's trainer writes, read by others: transformers, compressed-tensors, strata, a resumed run."""

import argparse
import dataclasses
import json
import random
import sys
from pathlib import Path

import pytest
import torch
from compressed_tensors.compressors.pack_quantized import unpack_from_int32
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import AutoTokenizer, Qwen3_5MoeForCausalLM
from transformers.cache_utils import MtpCache

from strata_cli.config import EngineConfig
from strata_cli.demo import model_path
from strata_cli.engine.types import Finished
from strata_cli.session import load_session, read_checkpoint
from tests.support.tiny import reference_mtp

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
sys.path.insert(0, str(EXAMPLES))

import train_demo  # noqa: E402
from demo_text import documents  # noqa: E402
from demo_training import data, export, layers, tasks, training  # noqa: E402
from demo_training.model import DemoModel  # noqa: E402

TINY = layers.ModelConfig(
    vocab_size=2048,
    hidden_size=64,
    num_layers=2,
    num_heads=2,
    num_kv_heads=1,
    head_dim=32,
    rotary_dim=8,
    linear_key_heads=1,
    linear_value_heads=2,
    chunk=16,
    num_experts=4,
    expert_size=32,
    shared_size=32,
)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(model_path() / "tokenizer.json"))


@pytest.fixture(scope="module")
def model() -> DemoModel:
    """Random weights that move every part: no norm at its first value, no small output."""
    torch.manual_seed(5)
    model = DemoModel(TINY)
    for name, p in model.named_parameters():
        if name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight", "experts.down_proj")):
            p.data.mul_(5)
        elif "norm" in name:
            p.data.add_(torch.randn_like(p) * 0.1)
    return model.eval().requires_grad_(False)


def test_every_kind_of_document_is_made_and_encodes_back(tokenizer: Tokenizer) -> None:
    r = random.Random(3)
    for kind, (make, *_) in documents.KINDS.items():
        text = make(r)
        assert text.strip(), kind
        assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_rows_keep_documents_apart_and_mark_repeated_names(tokenizer: Tokenizer) -> None:
    packer = data.Packer(tokenizer, 32)
    assert len(data.word_groups(tokenizer, data.NAMES, 0)) == 2 * len(data.NAMES)  # one token each, blank or not
    rows = packer.rows(["Mia saw Tom. Mia ran.\n"] * 20)
    assert rows.ids.shape == rows.weight.shape == rows.repeat.shape and rows.ids.shape[1] == 33
    first = rows.document[0].tolist().index(1)
    marked = [tokenizer.decode([i]).strip() for i in rows.ids[0, :first][rows.repeat[0, :first]].tolist()]
    assert marked == ["Mia"]
    mask = rows.mask()[0, 0]
    assert (mask[first, :first] < -1e29).all() and mask[first, first] == 0


def test_the_exported_head_drafts_as_in_transformers(model: DemoModel, tokenizer: Tokenizer, tmp_path: Path) -> None:
    """A chain of three over a whole prompt: the first pass at every position, the deeper ones from the last."""
    export.write(model, tokenizer, tmp_path, dense=True)
    main = Qwen3_5MoeForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    head = reference_mtp(main)
    ids = torch.randint(0, TINY.vocab_size, (1, 24), generator=torch.Generator().manual_seed(8))
    n = 20  # base positions; the chain from the last of them is told tokens n, n + 1 and n + 2
    memory = MtpCache(config=main.config.get_mtp_config())
    cache: list = []
    ours = their = model.trunk(ids)[:, :n]
    for depth in range(1, 4):
        ours = model.draft(ours, ids[:, depth : depth + n], depth, cache)
        tokens = ids[:, 1 : n + 1] if depth == 1 else ids[:, n + depth - 1 : n + depth]
        places = torch.arange(n)[None] if depth == 1 else torch.tensor([[n + depth - 2]])
        with torch.no_grad():
            their = head.forward_layer(0, their, places, memory, input_ids=tokens)
        torch.testing.assert_close(ours if depth == 1 else ours[:, -1:], their, rtol=1e-3, atol=1e-4)
        their = their[:, -1:]


def test_a_dense_export_answers_in_strata_as_in_transformers(
    model: DemoModel, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    export.write(model, tokenizer, tmp_path, dense=True)
    prompt = tokenizer.encode(data.prompt("Tell me a story about Mia.")).ids
    theirs = Qwen3_5MoeForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    assert theirs.generation_config.eos_token_id == [data.END_TURN, data.END]
    whole = theirs.generate(torch.tensor([prompt]), max_new_tokens=24, do_sample=False, eos_token_id=[])[0].tolist()
    config = EngineConfig(batch=1, prefix_cache=False)
    with load_session(read_checkpoint(str(tmp_path), config), config) as session:
        params = session.checkpoint.params({"temperature": 0.0, "max_tokens": 24, "ignore_eos": True})
        session.engine.submit(session.request("r", prompt, params))
        events = [event for _ in range(60) if session.engine.has_work for event in session.engine.step()]
    (result,) = (event.result for event in events if isinstance(event, Finished))
    assert [*prompt, *result.token_ids] == whole


def test_packed_weights_are_what_compressed_tensors_reads(
    model: DemoModel, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    export.write(model, tokenizer, tmp_path, four=("mlp.experts",))
    stored = load_file(tmp_path / "model.safetensors")
    read = export.read(tmp_path).state_dict()
    given = model.state_dict()
    for module, bits in (("model.layers.0.linear_attn.in_proj_qkv", 8), ("mtp.fc", 8)):
        weight = theirs(stored, module, bits)
        torch.testing.assert_close(read[f"{module}.weight"], weight, rtol=0, atol=0)
    experts = [theirs(stored, f"model.layers.1.mlp.experts.{e}.down_proj", 4) for e in range(TINY.num_experts)]
    torch.testing.assert_close(read["model.layers.1.mlp.experts.down_proj"], torch.stack(experts), rtol=0, atol=0)
    for name, weight in given.items():  # within a step of the widest group: half of it, and the scale's own rounding
        steps = 15 if "mlp.experts" in name else 255
        assert (read[name] - weight).abs().max() <= 2 * weight.abs().max() / steps, name
    groups = json.loads((tmp_path / "config.json").read_text())["quantization_config"]["config_groups"]
    widths = {g["weights"]["num_bits"]: g["targets"] for g in groups.values()}
    assert "mtp.layers.0.mlp.experts.3.up_proj" in widths[4] and "mtp.fc" in widths[8]
    packed = {name.removesuffix(".weight_packed") for name in stored if name.endswith("_packed")}
    assert packed == {name for names in widths.values() for name in names}


def theirs(stored: dict[str, torch.Tensor], module: str, bits: int) -> torch.Tensor:
    """A packed weight by compressed-tensors' own unpacking."""
    shape = torch.Size(stored[f"{module}.weight_shape"].tolist())
    codes = unpack_from_int32(stored[f"{module}.weight_packed"], bits, shape).float()
    return codes * stored[f"{module}.weight_scale"].float().repeat_interleave(export.GROUP, 1)


def test_the_template_writes_what_training_read(model: DemoModel, tokenizer: Tokenizer, tmp_path: Path) -> None:
    export.write(model, tokenizer, tmp_path)
    turns = [("Hi.", "Hello!"), ("Who are you?", "A model.")]
    messages = [{"role": role, "content": text} for turn in turns for role, text in zip(("user", "assistant"), turn)]
    r = random.Random(0)
    text = next(t for t in (documents.chat(r, turns) for _ in range(50)) if "system" not in t)
    reader = AutoTokenizer.from_pretrained(tmp_path)
    assert reader.apply_chat_template(messages, tokenize=False) == text
    asked = reader.apply_chat_template(messages[:1], tokenize=False, add_generation_prompt=True)
    assert asked == data.prompt("Hi.")
    assert reader(asked)["input_ids"] == tokenizer.encode(asked).ids


def test_training_goes_on_where_it_stopped(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resumed run starts from the same weights, optimizer state and progress; nothing is pickled."""
    make = data.block
    monkeypatch.setattr(data, "block", lambda *args: make(*args, documents=40))
    monkeypatch.setattr(data, "train_tokenizer", lambda size: tokenizer)
    monkeypatch.setattr(training, "validate", lambda *args: {})
    threads, last = torch.get_num_threads(), tmp_path / "last.safetensors"
    try:
        training.train(arguments(tmp_path, 2, resume=False))
        first, (_, _, progress) = load_file(last), training.load(last)
        training.train(arguments(tmp_path, 2, resume=True))
        again = load_file(last)
        training.train(arguments(tmp_path, 4, resume=True))
        after, (_, _, end) = load_file(last), training.load(last)
    finally:
        torch.set_num_threads(threads)
    assert {f.name for f in tmp_path.iterdir()} == {"last.safetensors", "tokenizer.json"}
    assert (progress["step"], progress["tokens"]) == (2, 2 * 2 * 64) and (end["step"], end["tokens"]) == (4, 4 * 2 * 64)
    assert first.keys() == again.keys() and all(torch.equal(first[k], again[k]) for k in first)
    assert after["optimizer.adam.step.model.norm.weight"].item() == 4
    moved = {k for k in first if k.startswith("model.") and not torch.equal(first[k], after[k])}
    assert moved == {k for k in first if k.startswith("model.")}


def arguments(folder: Path, steps: int, resume: bool) -> argparse.Namespace:
    """What the command line gives, for a small model, one worker and few tokens."""
    line = f"train --folder {folder} --steps {steps} --workers 1 --batch 2 --length 64 --no-bf16 --no-compile"
    args = train_demo.parser().parse_args(line.split() + ["--resume"] * resume)
    vars(args).update(dataclasses.asdict(TINY))
    return args


def test_questions_follow_their_seed_and_answers_are_judged() -> None:
    asked = tasks.all_tasks("a", 5, 3)
    assert [t.question for t in asked] == [t.question for t in tasks.all_tasks("a", 5, 3)]
    assert [t.question for t in asked] != [t.question for t in tasks.all_tasks("b", 5, 3)]
    hero = tasks.holds_hero("Mia")
    assert hero("Mia was kind. Tom came by. Tom sat by Mia.")
    assert not hero("Mia was kind. Tom came by. Lily sat by Mia.")  # two beside the hero
    assert not hero("Tom was kind. Mia came by. Mia and Tom ran.")  # another's story
    assert not hero("Mia met Mia. Tom ran and ran and ran and ran.")  # forgotten
    assert tasks.last_number(12)("7 + 5 = 12.") and not tasks.last_number(12)("7 + 5 = 13.")
    assert tasks.is_list(2, ["hat", "coat"])("1. hat\n2. coat") and not tasks.is_list(2, ["hat", "coat"])("hat, hat.")
    assert tasks.compiles("Here:\n```python\ndef f(a):\n    return a\n```") and not tasks.compiles("def f(a): return a")
