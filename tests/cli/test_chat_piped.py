"""`strata chat` without a terminal: one question, pipes, JSON, exit codes; stdout holds the answer and nothing else."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.chat_fake import EOS, KEEPS, scripted

ROOT = Path(__file__).parents[2]


def prompt(*messages: tuple[str, str], think: bool = False) -> str:
    opening = "<think>\n" if think else "<think>\n\n</think>\n\n"
    return "".join(f"[{role}] {text}\n" for role, text in messages) + "[assistant] " + opening


def chat(*args: str, stdin: str | bytes = "", tmp_path: Path = Path("/nonexistent"), **env: str):
    given = stdin if isinstance(stdin, bytes) else stdin.encode()
    command = [sys.executable, "-m", "tests.chat_fake", *args]
    everything = {"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{ROOT}:{ROOT / 'kernels'}", "HOME": "/nonexistent", **env}
    return subprocess.run(command, input=given, cwd=ROOT, env=everything, capture_output=True, timeout=60)


def test_a_question_is_answered_on_stdout_alone():
    done = chat("--seed", "7", "hello", "there")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode() == scripted(prompt(("user", "hello there")), 7) + "\n"


@pytest.mark.parametrize(
    ("args", "stdin", "asked"),
    [
        (["summarise"], "a text\n", "a text\n\nsummarise"),
        ([], "a text\n", "a text"),
        (["-"], "a text", "a text"),
        (["-", "summarise", "it"], "zwei\nZeilen ü\n\n", "zwei\nZeilen ü\n\nsummarise it"),
        (["alone"], "", "alone"),
        (["alone"], "\n \n", "alone"),
        (["//text"], "", "//text"),
    ],
)
def test_stdin_comes_first_then_a_blank_line_then_the_words(args, stdin, asked):
    done = chat("--seed", "7", *args, stdin=stdin)
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode() == scripted(prompt(("user", asked)), 7) + "\n"


def test_system_text_from_a_flag_or_a_file(tmp_path):
    (tmp_path / "system.txt").write_text("be brief\n")
    expected = scripted(prompt(("system", "be brief"), ("user", "x")), 7) + "\n"
    for flags in (["-s", "be brief"], ["--system-file", str(tmp_path / "system.txt")]):
        assert chat("--seed", "7", *flags, "x").stdout.decode() == expected
    both = chat("-s", "a", "--system-file", str(tmp_path / "system.txt"), "x")
    assert both.returncode == 2 and b"--system-file" in both.stderr


def test_json_is_one_object_with_every_figure():
    done = chat("--seed", "7", "--json", "--think", "on", "x")
    record = json.loads(done.stdout)
    whole = scripted(prompt(("user", "x"), think=True), 7)
    reasoning, text = whole.split("\n</think>\n\n")
    assert (done.returncode, done.stderr) == (0, b"")
    assert (record["text"], record["reasoning"], record["seed"]) == (text, reasoning, 7)
    assert (record["finish_reason"], record["thinking_cut"]) == ("stop", False)
    assert record["usage"] == {
        "prompt_tokens": len(prompt(("user", "x"), think=True)),
        "completion_tokens": len(whole) + 1,  # the end token too
        "reasoning_tokens": whole.index("</think>") + len("</think>") - 1,
        "cached_tokens": 0,
    }
    assert set(record["timings"]) == {"queue_ms", "prefill_ms", "ttft_ms", "decode_ms", "total_ms", "decode_tok_s"}
    assert set(record["spec"]) >= {"windows", "verified", "accepted", "acceptance_rate", "per_position", "conditional"}


def test_thinking_never_reaches_a_pipe():
    done = chat("--seed", "7", "--think", "on", "x")
    assert b"pondering" not in done.stdout + done.stderr and done.stdout.startswith(b"you said")


def test_a_cut_thinking_is_said():
    done = chat("--think", "on", "--think-budget", "5", "x")
    assert b"budget of 5 tokens" in done.stderr and done.stdout.startswith(b"you said")


def test_all_candidates_when_nobody_picks():
    done = chat("--seed", "7", "--n", "3", "x")
    assert [line for line in done.stdout.decode().splitlines() if line.startswith("---")] == [
        f"--- candidate {i} ---" for i in (1, 2, 3)
    ]
    answers = json.loads(chat("--seed", "7", "--n", "3", "--json", "x").stdout)["candidates"]
    assert len({answer["seed"] for answer in answers}) == 3
    assert [a["text"] for a in answers] == [scripted(prompt(("user", "x")), a["seed"]) for a in answers]
    assert [line for line in done.stdout.decode().splitlines() if not line.startswith("---")] == [
        answer["text"] for answer in answers
    ]


@pytest.mark.parametrize(
    ("args", "stdin", "says"),
    [
        ([], "", "empty"),
        ([""], "", "empty"),
        (["--n", "5", "x"], "", "4 slots"),
        (["--n", "0", "x"], "", "4 slots"),
        (["--think", "off", "--think-budget", "3", "x"], "", "nothing to limit"),
        (["--think-budget", "0", "x"], "", "1 or more"),
        (["--think", "maybe", "x"], "", "maybe"),
        (["--logprobs", "2", "x"], "", "--json"),
        (["--system-file", "/no/such", "x"], "", "No such file"),
        (["--temperature", "-1", "x"], "", "temperature"),
        (["-"], b"\xff\xfe", "UTF-8"),
        (["x" * 100_000], "", "context of 100000"),
    ],
)
def test_bad_usage_is_one_message_and_2(args, stdin, says):
    done = chat(*args, stdin=stdin)
    assert (done.returncode, done.stdout) == (2, b"")
    assert says in done.stderr.decode() and "Traceback" not in done.stderr.decode()


def test_step_statistics_add_up_to_the_tokens(tmp_path):
    done = chat("--json", "--step-stats", str(tmp_path / "steps.jsonl"), "x")
    header, *windows = map(json.loads, (tmp_path / "steps.jsonl").read_text().splitlines())
    assert header["schema"] == 2
    assert sum(sum(w["keeps"]) for w in windows) == json.loads(done.stdout)["usage"]["completion_tokens"]


def start(*args: str, **env: str) -> subprocess.Popen:
    everything = {"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{ROOT}:{ROOT / 'kernels'}", "HOME": "/nonexistent", **env}
    command = [sys.executable, "-m", "tests.chat_fake", *args]
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, cwd=ROOT, env=everything, **pipes)


def test_ctrl_c_keeps_what_came_and_is_130():
    process = start("long", FAKE_DELAY_S="0.02")
    first = process.stdout.read(KEEPS)
    process.send_signal(signal.SIGINT)
    rest, err = process.communicate(timeout=30)
    whole = scripted(prompt(("user", "long")), 0)
    assert process.returncode == 130
    assert (first + rest).decode().rstrip("\n") and whole.startswith((first + rest).decode().rstrip("\n"))
    assert len(rest) < len(whole) - 100 and b"(interrupted)" in err


def test_ctrl_c_in_json_is_a_whole_object(tmp_path):
    windows = tmp_path / "steps.jsonl"
    process = start("--json", "--step-stats", str(windows), "long", FAKE_DELAY_S="0.02")
    began = time.monotonic()
    while (
        not windows.exists() or windows.read_text().count("\n") < 3
    ):  # the answer shows nothing that could be waited for
        assert time.monotonic() - began < 60
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 130
    assert json.loads(out)["finish_reason"] == "cancelled"


def test_a_reader_that_leaves_ends_it_quietly():
    process = start("long", FAKE_DELAY_S="0.005")
    process.stdout.read(10)
    process.stdout.close()
    err = process.stderr.read()
    assert process.wait(timeout=30) == 1 and err == b""


def test_the_end_token_is_no_text():
    assert chr(EOS).encode() not in chat("x").stdout
