"""Bad input: one clear line, the right exit code, nothing loaded, nothing lost."""

import json

import pytest

GOOD = {"prompt": "x"}
CHAT = {"messages": [{"role": "user", "content": "x"}]}


def refuse(strata, *args, env=None, loads=0):
    """Run it; it must be refused before a model is loaded, with nothing on stdout. Returns stderr."""
    ran = strata(*args, env=env)
    assert ran.code == 2
    assert ran.out == ""
    assert len(strata.engines) == loads
    assert ran.err.startswith("error: ")
    assert "Traceback" not in ran.err
    return ran.err


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ('{"prompt": "x"', "not valid JSON"),
        ("{'prompt': 'x'}", "not valid JSON"),
        (b'{"prompt": "\xff"}', "not valid JSON"),
        ('{"prompt": "\\ud800"}', "not valid JSON"),
        ('{"prompt": ' + "[" * 9999 + "]" * 9999 + "}", "not valid JSON"),
        ("[1, 2]", "not a JSON object but a list"),
        ({}, "no prompt, messages or body"),
        ({"prompt": "x", "messages": []}, "both prompt and messages"),
        ({"prompt": ""}, "empty prompt"),
        ({"prompt": []}, "empty prompt"),
        ({"messages": []}, "empty prompt"),
        ({"prompt": 7}, "prompt: expected"),
        ({"prompt": [1, "2"]}, "prompt: expected `int`"),
        ({"prompt": [1, -2]}, "token id -2 is negative"),
        ({"prompt": [1, 279]}, "token id 279 is outside the vocabulary of 265 ids"),
        ({"prompt": [1] * 128}, "prompt of 128 tokens, and the context of 128"),
        ({"prompt": "y" * 128}, "prompt of 128 tokens"),
        ({"messages": [{"role": "user", "content": "y" * 120}]}, "and the context of 128"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role = 'robot'"),
        ({"messages": [{"role": "user"}]}, "messages[0].content: expected text, got null"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "only text is supported"),
        ({"messages": [{"role": "user", "contents": "x"}]}, 'unknown key "contents" (did you mean content?)'),
        ({**GOOD, "tempature": 1}, 'unknown key "tempature" (did you mean temperature?)'),
        ({**GOOD, "custom_id": ""}, "custom_id is empty"),
        ({**GOOD, "custom_id": ["a"]}, "custom_id: expected"),
        ({**GOOD, "temperature": -1}, "temperature = -1.0 is out of range (allowed: 0 to 100)"),
        ({**GOOD, "temperature": "hot"}, "temperature: expected `float`, got `str`"),
        ({**GOOD, "temperature": 1e-320}, "is out of range (allowed: 0, or 1e-6 to 100)"),
        ({**GOOD, "repetition_penalty": 1e-300}, "repetition_penalty = 1e-300 is out of range"),
        ({**GOOD, "stop_token_ids": [-1]}, "stop_token_ids: token id -1 is outside the vocabulary of 265 ids"),
        ({**GOOD, "stop_token_ids": [3, 265]}, "stop_token_ids: token id 265 is outside the vocabulary"),
        ({**GOOD, "logit_bias": {"265": 1}}, "logit_bias: token id 265 is outside the vocabulary of 265 ids"),
        ({**GOOD, "logit_bias": {"9" * 30: 1}}, "is outside the vocabulary"),
        ({**GOOD, "chat_template_kwargs": {"x": 1}}, "chat_template_kwargs without messages"),
        ({**CHAT, "chat_template_kwargs": []}, "chat_template_kwargs: expected"),
        ({**CHAT, "chat_template_kwargs": {"messages": []}}, "chat_template_kwargs: messages cannot be set"),
        ({**CHAT, "chat_template_kwargs": {"add_generation_prompt": 5}}, "add_generation_prompt cannot be set"),
        ({**CHAT, "chat_template_kwargs": {"self": 5}}, "chat_template_kwargs: self cannot be set"),
        ({"messages": [{**CHAT["messages"][0], "thinking": 5}]}, "messages[0].thinking: expected"),
        ({"url": ["a"], "body": GOOD}, "unknown url ['a']"),
        ({**GOOD, "top_p": 0}, "top_p = 0.0 is out of range"),
        ({**GOOD, "top_k": -1}, "top_k = -1 is out of range"),
        ({**GOOD, "min_p": 1.5}, "min_p = 1.5 is out of range"),
        ({**GOOD, "max_tokens": 0}, "max_tokens = 0 is out of range"),
        ({**GOOD, "max_tokens": 1.5}, "max_tokens: expected"),
        ({**GOOD, "max_tokens": 3, "max_completion_tokens": 4}, "differ"),
        ({**GOOD, "repetition_penalty": 0}, "repetition_penalty = 0.0 is out of range"),
        ({**GOOD, "presence_penalty": 3}, "presence_penalty = 3.0 is out of range"),
        ({**GOOD, "frequency_penalty": -3}, "frequency_penalty = -3.0 is out of range"),
        ({**GOOD, "logit_bias": {"x": 1}}, "'x' is not a token id"),
        ({**GOOD, "logit_bias": {"5": 101}}, "logit_bias = (5, 101.0) is out of range"),
        ({**GOOD, "seed": -1}, "seed = -1 is out of range"),
        ({**GOOD, "stop": ""}, "stop = ('',) is out of range"),
        ({**GOOD, "stop": [1]}, "stop: expected `str`, got `int`"),
        ({**GOOD, "logprobs": 21}, "logprobs = 21 is out of range"),
        ({**GOOD, "top_logprobs": 2}, "top_logprobs needs logprobs = true"),
        ({**GOOD, "ignore_eos": 1}, "ignore_eos: expected `bool`"),
        ({**GOOD, "spec": 17}, "spec = 17 is out of range"),
        ({**GOOD, "spec": 5}, "spec = 5 is above the engine's 4"),
        ({**GOOD, "drafter": "magic"}, "drafter = 'magic' is out of range"),
        ({**GOOD, "n": 2}, "n = 2 is not supported"),
        ({**GOOD, "stream": True}, "stream = true is not supported"),
        ({**GOOD, "tools": [{"type": "function"}]}, "tools = "),
        ({**GOOD, "response_format": {"type": "json_object"}}, "response_format = "),
        ({"body": {}}, "no prompt, messages or body"),
        ({"body": "x"}, "body is not a JSON object but text"),
        ({"body": GOOD, "prompt": "x"}, 'unknown key "prompt"'),
        ({"body": GOOD, "method": "GET"}, "unknown method 'GET'"),
        ({"body": GOOD, "url": "/v1/embeddings"}, "unknown url '/v1/embeddings'"),
        ({"body": GOOD, "url": "/v1/chat/completions"}, "/v1/chat/completions needs messages"),
    ],
)
def test_a_bad_line_is_named(strata, prompts, line, what):
    err = refuse(strata, "run", prompts(GOOD, "", line), "-m", strata.model)
    first = err.splitlines()[0]
    assert "prompts.jsonl:3: " in first
    assert what in first


@pytest.mark.parametrize("extra", [{"n": 1}, {"stream": False}, {"tools": []}, {"user": "u"}, {"temperature": None}])
def test_what_asks_for_nothing_is_accepted(strata, prompts, extra):
    assert strata("run", prompts({**GOOD, **extra}), "-m", strata.model).code == 0


def test_all_faults_are_shown_up_to_twenty(strata, prompts):
    err = refuse(strata, "run", prompts(*({"prompt": ""} for _ in range(25))), "-m", strata.model)
    lines = err.splitlines()
    assert [line.split(":")[-2] for line in lines[:20]] == [str(n) for n in range(1, 21)]
    assert lines[20] == "... and 5 more faults"


def test_duplicate_ids(strata, prompts):
    lines = [{**GOOD, "id": "a"}, GOOD, {"custom_id": "a", "body": GOOD}, {**GOOD, "id": "line-2"}]
    err = refuse(strata, "run", prompts(*lines), "-m", strata.model)
    assert 'prompts.jsonl:3: duplicate id "a", first in line 1' in err
    assert 'prompts.jsonl:4: duplicate id "line-2", first in line 2' in err


def test_nothing_to_do(strata, prompts):
    assert "no prompts" in refuse(strata, "run", prompts("", " "), "-m", strata.model)


def test_files_that_are_not_there(strata, prompts, tmp_path):
    assert "no such file: " in refuse(strata, "run", tmp_path / "none.jsonl", "-m", strata.model)
    assert "no directory" in refuse(strata, "run", prompts(GOOD), "-m", strata.model, "-o", tmp_path / "no" / "x")
    assert "cannot be read" in refuse(strata, "run", tmp_path, "-m", strata.model)


def test_models_that_are_none(strata, prompts, tmp_path):
    file = prompts(GOOD)
    err = refuse(strata, "run", file, "-m", tmp_path / "no-model")
    assert "no such model" in err
    assert "demo" in err
    (tmp_path / "empty").mkdir()
    assert "has no config.json" in refuse(strata, "run", file, "-m", tmp_path / "empty")
    config = json.loads((strata.model / "config.json").read_text())
    (strata.model / "config.json").write_text(json.dumps({**config, "model_type": "llama"}))
    err = refuse(strata, "run", file, "-m", strata.model)
    assert "llama is not supported" in err
    assert "qwen3_5_moe" in err
    (strata.model / "config.json").write_text("{")
    assert "config.json" in refuse(strata, "run", file, "-m", strata.model)


def test_broken_small_files_of_a_checkpoint(strata, prompts):
    (strata.model / "generation_config.json").write_text('{"temperature": -3}')
    assert "generation_config.json: temperature = -3" in refuse(strata, "run", prompts(GOOD), "-m", strata.model)
    (strata.model / "generation_config.json").unlink()
    (strata.model / "chat_template.jinja").write_text("{% if %}")
    assert "chat_template.jinja" in refuse(strata, "run", prompts(GOOD), "-m", strata.model)


def test_messages_need_a_template(strata, prompts):
    (strata.model / "chat_template.jinja").unlink()
    chat = {"messages": [{"role": "user", "content": "x"}]}
    assert "no chat template" in refuse(strata, "run", prompts(chat), "-m", strata.model)


def test_an_output_that_exists(strata, prompts, tmp_path):
    out = tmp_path / "out.jsonl"
    out.write_text("precious\n")
    file = prompts(GOOD)
    assert "exists" in refuse(strata, "run", file, "-m", strata.model, "-o", out)
    assert "meta.json is missing" in refuse(strata, "run", file, "-m", strata.model, "-o", out, "--resume")
    assert out.read_text() == "precious\n"
    assert strata("run", file, "-m", strata.model, "-o", out, "--overwrite").code == 0
    assert "precious" not in out.read_text()


def test_an_output_survives_a_model_that_does_not_load(strata, prompts, tmp_path, monkeypatch):
    from strata_cli.errors import StrataError

    def broken(checkpoint, config, note):
        raise StrataError("model.safetensors is cut short")

    monkeypatch.setattr("strata_cli.commands.run.load_session", broken)
    out = tmp_path / "out.jsonl"
    out.write_text("precious\n")
    ran = strata("run", prompts(GOOD), "-m", strata.model, "-o", out, "--overwrite")
    assert (ran.code, ran.err) == (1, "error: model.safetensors is cut short\n")
    assert out.read_text() == "precious\n"
    assert strata("run", prompts(GOOD), "-m", strata.model, "-o", tmp_path / "new.jsonl").code == 1
    assert not (tmp_path / "new.jsonl").exists(), "the next try is not refused"


def test_an_empty_output_exists_too(strata, prompts, tmp_path):
    (tmp_path / "out.jsonl").touch()
    assert "exists" in refuse(strata, "run", prompts(GOOD), "-m", strata.model, "-o", tmp_path / "out.jsonl")


def test_output_flags_that_contradict(strata, prompts, tmp_path):
    file = prompts(GOOD)
    assert "is the input" in refuse(strata, "run", file, "-m", strata.model, "-o", file, "--overwrite")
    assert "need a file" in refuse(strata, "run", file, "-m", strata.model, "--resume")
    both = ("-o", tmp_path / "o", "--resume", "--overwrite")
    assert "contradict" in refuse(strata, "run", file, "-m", strata.model, *both)
    assert file.read_text() == '{"prompt": "x"}\n'


@pytest.mark.parametrize(
    ("args", "what"),
    [
        (("--batch", 0), "--batch: batch = 0 is out of range\nhint: allowed: 1 to 64 slots"),
        (("--spec", 17), "--spec: spec = 17 is out of range"),
        (("--top-p", 2), "--top-p: top_p = 2.0 is out of range"),
        (("--ctx", 129), "ctx = 129 is out of range\nhint: allowed: up to the model's 128 positions"),
        (("--batch-groups", 2, "--batch", 1), "batch_groups = 2 is out of range"),
        (("--profile", "strata-c"), 'unknown profile "strata-c" (did you mean strata-'),
        (("--plan", "rows2"), "rows2"),
        (("--spec", "four"), "Invalid value for '--spec'"),
        (("--bacth", 2), "No such option: --bacth"),
        (("--step-stats", "/nowhere/x"), "step statistics cannot be written to /nowhere/x"),
    ],
)
def test_bad_flags(strata, prompts, args, what):
    assert what in refuse(strata, "run", prompts(GOOD), "-m", strata.model, *args)


def test_bad_environment(strata, prompts):
    err = refuse(strata, "run", prompts(GOOD), "-m", strata.model, env={"STRATA_SPEC": "many"})
    assert "STRATA_SPEC" in err
    err = refuse(strata, "run", prompts(GOOD), "-m", strata.model, env={"STRATA_BACH": "2"})
    assert "did you mean STRATA_BATCH?" in err


def test_another_models_name_is_said_aloud(strata, prompts):
    ran = strata("run", prompts({"body": {**GOOD, "model": "gpt-big"}}), "-m", strata.model)
    assert ran.code == 0
    assert "gpt-big" in ran.err
    assert ran.records[0]["response"]["body"]["model"] == str(strata.model)


@pytest.mark.parametrize(
    ("input_name", "output_name", "stats_name"),
    [
        ("in.jsonl", "in.jsonl", None),
        ("in.jsonl", "out.jsonl", "in.jsonl"),
        ("in.jsonl", None, "in.jsonl"),
        ("in.jsonl", "out.jsonl", "./out.jsonl"),
        ("in.jsonl", "out.jsonl", "out.jsonl.meta.json"),
        ("out.jsonl.meta.json", "out.jsonl", None),
        ("in.jsonl", "out.jsonl", "link.jsonl"),
    ],
)
def test_no_file_is_written_over_another(strata, prompts, tmp_path, monkeypatch, input_name, output_name, stats_name):
    monkeypatch.chdir(tmp_path)
    before = prompts(GOOD, name=input_name).read_bytes()
    (tmp_path / "link.jsonl").symlink_to(input_name)
    flags = ["-o", output_name, "--overwrite"] if output_name else []
    flags += ["--step-stats", stats_name] if stats_name else []
    assert "another --output or --step-stats" in refuse(strata, "run", input_name, "-m", strata.model, *flags)
    assert (tmp_path / input_name).read_bytes() == before


def test_a_foreign_results_file_is_not_resumed(strata, prompts, tmp_path):
    file, out = prompts(GOOD), tmp_path / "out.jsonl"
    args = ["run", file, "-m", strata.model, "-o", out]
    assert strata(*args).code == 0
    out.write_text('{"custom_id": ["a"]}\n' + out.read_text())
    assert "is not in the input" in refuse(strata, *args, "--resume", loads=1)


def test_a_head_from_nowhere_is_refused_before_anything_is_loaded(strata, prompts):
    assert "--mtp: no directory" in refuse(strata, "run", prompts(GOOD), "-m", strata.model, "--mtp", "nowhere")
