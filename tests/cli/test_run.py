"""`strata run`: what goes in, what comes out, and nothing else on stdout."""

import json
import os
import signal

import pytest

from strata_cli.engine.seeds import derive_seed
from strata_cli.errors import StrataError
from tests.cli.fake import EOS, FakeEngine
from tests.conftest import build_byte_tokenizer

CHAT = {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]}


def test_every_shape_of_input_gets_a_record(strata, prompts):
    file = prompts(
        {"prompt": "Once"},
        "",
        {"custom_id": "ids", "prompt": [1, 2, 3], "max_tokens": 5, "ignore_eos": True},
        {"id": "chat", **CHAT},
        {"custom_id": "api", "method": "POST", "url": "/v1/chat/completions", "body": {**CHAT, "max_tokens": 4}},
        {"custom_id": "old", "url": "/v1/completions", "body": {"prompt": "x", "max_tokens": 3, "seed": 7}},
    )
    ran = strata("run", file, "-m", strata.model, "--simple", "--with-tokens")
    assert ran.code == 0
    records = {r["custom_id"]: r for r in ran.records}
    assert set(records) == {"line-1", "ids", "chat", "api", "old"}
    assert records["ids"]["prompt_tokens"] == 3
    assert (records["ids"]["completion_tokens"], records["ids"]["finish_reason"]) == (5, "length")
    assert records["old"]["seed"] == 7
    tokenizer = build_byte_tokenizer()
    for record in ran.records:
        assert list(record) == [
            *("custom_id", "text", "finish_reason", "prompt_tokens", "completion_tokens", "token_ids"),
            *("timings", "seed", "spec", "error"),
        ]
        assert record["text"] == tokenizer.decode(record["token_ids"])
        assert record["error"] is None
        assert len(record["token_ids"]) == record["completion_tokens"]
    assert strata.engines[0].closed


def test_the_chat_template_makes_the_prompt(strata, prompts, byte_tokenizer):
    thinking = {"id": "t", **CHAT, "chat_template_kwargs": {"enable_thinking": True}}
    assert strata("run", prompts(CHAT, thinking), "-m", strata.model).code == 0
    plain, thought = strata.engines[0].submitted
    text = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert byte_tokenizer.decode(plain.prompt, skip_special=False) == text
    assert byte_tokenizer.decode(thought.prompt, skip_special=False) == text + "<think>\n"
    before_the_question = "<|im_start|>system\nBe brief.<|im_end|>\n"
    assert byte_tokenizer.decode(plain.prompt[: plain.turn], skip_special=False).startswith(before_the_question)


def test_openai_records(strata, prompts):
    ran = strata("run", prompts({"id": "c", **CHAT}, {"id": "p", "prompt": "x"}, {"id": "e", "prompt": "!boom"}),
                 "-m", strata.model, "--with-tokens")  # fmt: skip
    assert ran.code == 3
    records = {r["custom_id"]: r for r in ran.records}
    for record in records.values():
        assert set(record) == {"id", "custom_id", "response", "error"}
    chat, plain = (records[i]["response"]["body"] for i in "cp")
    assert records["c"]["response"]["status_code"] == 200
    assert (chat["object"], plain["object"]) == ("chat.completion", "text_completion")
    assert chat["choices"][0]["message"]["role"] == "assistant"
    assert isinstance(chat["choices"][0]["message"]["content"], str)
    assert plain["choices"][0]["finish_reason"] in ("stop", "length")
    usage = plain["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"] == 1 + len(plain["token_ids"])
    assert set(plain["metrics"]) == {"timings", "spec"}
    assert records["e"]["response"] is None
    assert records["e"]["error"] == {"code": "failed", "message": "this request is cursed"}


def test_a_line_is_stronger_than_a_flag_and_a_flag_than_the_checkpoint(strata, prompts):
    lines = {"id": "line", "prompt": "x", "temperature": 0.1, "stop": ["s"]}, {"id": "flag", "prompt": "x"}
    assert strata("run", prompts(*lines), "-m", strata.model, "--temperature", 0.5, "--stop", "t").code == 0
    line, flag = (request.params for request in strata.engines[0].submitted)
    assert (line.temperature, line.stop) == (0.1, ("s",))
    assert (flag.temperature, flag.stop) == (0.5, ("t",))
    assert strata("run", prompts({"id": "own", "prompt": "x"}), "-m", strata.model).code == 0
    assert strata.engines[1].submitted[0].params.temperature == 0.9


def test_a_stop_string_that_is_a_special_token_ends_by_its_id(strata, prompts, byte_tokenizer):
    assert strata("run", prompts({"prompt": "x", "stop": ["<|im_end|>", "ab"]}), "-m", strata.model).code == 0
    params = strata.engines[0].submitted[0].params
    assert params.stop == ("ab",)
    assert params.stop_token_ids == (byte_tokenizer.special_id("<|im_end|>"),)


def test_text_after_a_stop_string_never_leaves(strata, prompts, byte_tokenizer):
    first = strata("run", prompts({"prompt": "abc", "seed": 3, "ignore_eos": True}), "-m", strata.model, "--simple")
    text = first.records[0]["text"]
    stop = text[10:12]
    ran = strata("run", prompts({"prompt": "abc", "seed": 3, "ignore_eos": True, "stop": stop}),
                 "-m", strata.model, "--simple", "--with-tokens")  # fmt: skip
    (record,) = ran.records
    assert record["text"] == text[: text.index(stop)]
    assert record["finish_reason"] == "stop"
    assert record["completion_tokens"] < first.records[0]["completion_tokens"]


def test_seeds_are_drawn_once_and_differ(strata, prompts, tmp_path):
    lines = [{"id": str(i), "prompt": "same"} for i in range(6)]
    out = tmp_path / "out.jsonl"
    assert strata("run", prompts(*lines), "-m", strata.model, "-o", out, "--simple").code == 0
    base = json.loads((tmp_path / "out.jsonl.meta.json").read_text())["seed"]
    seeds = {r["custom_id"]: r["seed"] for r in map(json.loads, out.read_text().splitlines())}
    assert seeds == {str(i): derive_seed(base, str(i)) for i in range(6)}
    assert len(set(seeds.values())) == 6


def test_a_failed_request_fails_alone(strata, prompts, tmp_path):
    out = tmp_path / "out.jsonl"
    lines = [{"id": "a", "prompt": "x"}, {"id": "b", "prompt": "!boom"}, {"id": "c", "prompt": "y"}]
    ran = strata("run", prompts(*lines), "-m", strata.model, "-o", out, "--simple")
    assert ran.code == 3
    assert ran.out == ""
    records = {r["custom_id"]: r for r in map(json.loads, out.read_text().splitlines())}
    assert {i: r["finish_reason"] == "error" for i, r in records.items()} == {"a": False, "b": True, "c": False}
    assert records["b"]["error"] == "this request is cursed"
    assert "failed: 1" in ran.err
    again = strata("run", prompts(*lines), "-m", strata.model, "-o", out, "--simple", "--resume")
    assert again.code == 3
    assert len(strata.engines) == 1, "nothing was left to do"
    retried = strata("run", prompts(*lines), "-m", strata.model, "-o", out, "--simple", "--retry-errors")
    assert retried.code == 3
    assert [r["custom_id"] for r in map(json.loads, out.read_text().splitlines())].count("b") == 1
    assert strata.engines[1].steps == 1


def test_stdin_and_stdout(strata, prompts, monkeypatch, tmp_path):
    import io
    import sys
    import types

    stdin = types.SimpleNamespace(buffer=io.BytesIO(b'{"prompt": "x"}\n'), isatty=lambda: False)
    monkeypatch.setattr(sys, "stdin", stdin)
    ran = strata("run", "-", "-m", strata.model, "--simple", "-q")
    assert ran.code == 0
    assert [r["custom_id"] for r in ran.records] == ["line-1"]
    assert ran.err == ""


def test_summary_and_downgrades_are_on_stderr(strata, prompts):
    ran = strata("run", prompts(*({"prompt": "x"} for _ in range(9))), "-m", strata.model, "-b", 3)
    assert ran.code == 0
    assert len(ran.records) == 9
    assert "\ndowngrade: drafts off: a test says so" in "\n" + ran.err
    assert ran.err.count("downgrade: drafts off") == 2, "when it happens, and in the summary"
    assert "done=9/9 active=0" in ran.err
    assert "9 requests, " in ran.err
    assert "mean acceptance length" in ran.err


def test_step_statistics(strata, prompts, tmp_path):
    path = tmp_path / "steps.jsonl"
    ran = strata("run", prompts({"prompt": "x"}), "-m", strata.model, "--simple", env={"STRATA_STEP_STATS": str(path)})
    header, *windows = map(json.loads, path.read_text().splitlines())
    assert header["schema"] == 2
    assert header["config"]["batch"] == 4
    assert sum(w["keeps"][0] for w in windows) == ran.records[0]["completion_tokens"]


def test_a_full_disk_costs_the_statistics_only(strata, prompts):
    ran = strata("run", prompts({"prompt": "x"}), "-m", strata.model, "--step-stats", "/dev/full")
    assert ran.code == 0
    assert ran.err.count("step statistics") == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_ctrl_c_finishes_the_window_and_says_how_to_go_on(strata, prompts, tmp_path, monkeypatch, number):
    file, out = prompts(*({"prompt": f"p{i}", "seed": i} for i in range(8))), tmp_path / "out.jsonl"
    whole = tmp_path / "whole.jsonl"
    monkeypatch.setattr("sys.argv", ["strata", "run", str(file), "-o", str(out), "--overwrite"])
    monkeypatch.setattr(FakeEngine, "at_step", lambda self, step: os.kill(os.getpid(), number) if step == 12 else None)
    ran = strata("run", file, "-m", strata.model, "-o", out, "--simple")
    assert ran.code == 130
    assert f"strata run {file} -o {out} --resume" in ran.err
    assert strata.engines[0].steps == 12
    done = out.read_text().splitlines()
    assert 0 < len(done) < 8
    monkeypatch.setattr(FakeEngine, "at_step", lambda self, step: None)
    assert strata("run", file, "-m", strata.model, "-o", out, "--simple", "--resume").code == 0
    meta = tmp_path / "out.jsonl.meta.json"
    (tmp_path / "whole.jsonl.meta.json").write_text(meta.read_text())
    assert strata("run", file, "-m", strata.model, "-o", whole, "--simple", "--resume").code == 0
    assert sorted(out.read_text().splitlines()) == sorted(whole.read_text().splitlines())


def test_a_checkpoint_without_a_tokenizer_takes_token_ids(strata, prompts):
    (strata.model / "tokenizer.json").unlink()
    ran = strata("run", prompts({"prompt": [1, 2]}), "-m", strata.model, "--simple", "--with-tokens")
    assert ran.code == 0
    assert ran.records[0]["text"] == ""
    assert ran.records[0]["token_ids"]
    assert "no tokenizer.json" in ran.err
    refused = strata("run", prompts({"prompt": "text"}), "-m", strata.model)
    assert refused.code == 2
    assert "prompts.jsonl:1: " in refused.err


def test_end_of_text_is_no_text(strata, prompts):
    lines = [{"prompt": f"p{i}", "seed": i} for i in range(12)]
    ran = strata("run", prompts(*lines), "-m", strata.model, "--simple", "--with-tokens")
    ended = [r for r in ran.records if r["token_ids"][-1] == EOS]
    assert ended
    assert all("im_end" not in r["text"] and r["finish_reason"] == "stop" for r in ended)


def test_a_run_that_breaks_says_how_to_go_on(strata, prompts, tmp_path, monkeypatch):
    def breaks(self, step):
        if step == 5:
            raise StrataError("the GPU fell off the bus")

    file, out = prompts(*({"prompt": f"p{i}", "seed": i} for i in range(8))), tmp_path / "out.jsonl"
    monkeypatch.setattr("sys.argv", ["strata", "run", str(file), "-o", str(out)])
    monkeypatch.setattr(FakeEngine, "at_step", breaks)
    ran = strata("run", file, "-m", strata.model, "-o", out)
    assert ran.code == 1
    assert "error: the GPU fell off the bus" in ran.err
    assert f"strata run {file} -o {out} --resume" in ran.err
    assert strata.engines[0].closed
