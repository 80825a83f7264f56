"""`strata run` with real weights: random checkpoints, compared with transformers token by token."""

import json
import random
from pathlib import Path

import pytest
import torch

import strata_cli.session
from strata_cli import app
from strata_cli.config import EngineConfig
from tests.support.tiny import make_tiny, make_tokenizer, reference_model

LENGTHS = (1, 2, 3, 7, 64, 65, 130)
NEW_TOKENS = 24


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tokenizer(make_tiny(tmp_path_factory.mktemp("tiny") / "model", seed=11))


@pytest.fixture(scope="module")
def expected(model: Path) -> dict[str, tuple[list[int], list[int]]]:
    """id -> (prompt, greedy completion by transformers)."""
    vocab = json.loads((model / "config.json").read_text())["vocab_size"]
    draw, reference = random.Random(5), reference_model(model)
    answers = {}
    for length in LENGTHS:
        prompt = [draw.randrange(3, vocab) for _ in range(length)]
        out = reference.generate(
            torch.tensor([prompt]), max_new_tokens=NEW_TOKENS, do_sample=False, eos_token_id=None, pad_token_id=0
        )
        answers[f"p{length}"] = (prompt, out[0, length:].tolist())
    return answers


def run(*args: object, capfd: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = app.run([str(a) for a in args])
    return code, *capfd.readouterr()


@pytest.mark.parametrize(("spec", "batch"), [(0, 1), (4, 1), (0, 4), (4, 4)])
def test_temperature_0_is_transformers(model, expected, tmp_path, capfd, spec, batch):
    (model / "tokenizer.json").unlink(missing_ok=True)  # all ids of the model may be drawn then, as transformers does
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps({"id": name, "prompt": p}) + "\n" for name, (p, _) in expected.items()))
    code, out, err = run(
        *("run", file, "-m", model, "--temperature", 0, "--max-tokens", NEW_TOKENS, "--ignore-eos"),
        *("--simple", "--with-tokens", "--spec", spec, "--batch", batch, "--prefill-chunk", 64),
        capfd=capfd,
    )
    assert code == 0, err
    records = {r["custom_id"]: r for r in map(json.loads, out.splitlines())}
    assert {name: r["token_ids"] for name, r in records.items()} == {n: ids for n, (_, ids) in expected.items()}
    assert any(r["spec"]["accepted"] for r in records.values()) == (spec > 0)


def test_a_checkpoint_without_an_mtp_head(tmp_path, capfd):
    plain = make_tokenizer(make_tiny(tmp_path / "plain", mtp=False))
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "Once", "max_tokens": 4}\n')
    code, out, err = run("run", file, "-m", plain, "--simple", capfd=capfd)
    assert code == 0
    assert json.loads(out)["spec"]["drafted"] == 0
    assert "MTP" in err
    code, out, err = run("run", file, "-m", plain, "--simple", "--batch-mtp", capfd=capfd)
    assert (code, out) == (2, "")
    assert "--batch-mtp" in err


def test_truncated_weights_are_named_and_cost_no_results(model, tmp_path, capfd):
    cut = make_tokenizer(make_tiny(tmp_path / "cut"))
    weights = cut / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    file, out_file = tmp_path / "prompts.jsonl", tmp_path / "out.jsonl"
    file.write_text('{"prompt": "Once", "max_tokens": 4}\n')
    out_file.write_text("precious\n")
    code, out, err = run("run", file, "-m", cut, "-o", out_file, "--overwrite", capfd=capfd)
    assert code in (1, 2)
    assert out == ""
    assert "model.safetensors" in err.splitlines()[0]
    assert "Traceback" not in err
    assert out_file.read_text() == "precious\n"


def test_the_context_that_is_checked_is_the_engines(model):
    checkpoint = strata_cli.session.read_checkpoint(str(model), EngineConfig(ctx=99))
    with strata_cli.session.load_session(checkpoint, EngineConfig(ctx=99)) as session:
        assert session.engine.ctx == checkpoint.context == 99


def test_a_cut_file_is_resumed_to_the_same_records(model, tmp_path, capfd):
    file, out = tmp_path / "prompts.jsonl", tmp_path / "out.jsonl"
    lines = [{"id": str(i), "prompt": [5 + i, 9, 30], "max_tokens": 8 + 3 * i, "temperature": 0.8} for i in range(7)]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    args = ("run", file, "-m", model, "-o", out, "--simple", "--with-tokens", "-q")
    assert run(*args, capfd=capfd)[0] == 0

    def records() -> dict[str, object]:
        found = {r["custom_id"]: r for r in map(json.loads, out.read_text().splitlines())}
        return {name: (r["token_ids"], r["text"], r["seed"], r["finish_reason"]) for name, r in found.items()}

    whole = records()
    out.write_bytes(out.read_bytes()[: out.stat().st_size // 2])
    assert run(*args, "--resume", "--batch", 2, "--spec", 0, capfd=capfd)[0] == 0
    assert records() == whole
    assert len(whole) == 7
