"""A locale that is not UTF-8: arguments and file names are still what was written, and what is no text is named."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from strata_cli import names
from strata_cli.demo import model_path
from strata_cli.errors import UsageError
from tests.cli.fake import make_model

ROOT = Path(__file__).parents[2]
SAID = "Héllo 🦊"
ALL = ("app chat", "app run", "app bench", "app parity", "app inspect")


def strata(module: str, *args: object, utf8: bool = False, **env: str) -> subprocess.CompletedProcess[str]:
    """A command line in the C locale; `module` is "app" or one of the stand-ins, and the command."""
    program, *command = module.split()
    where = {
        "PYTHONPATH": f"{ROOT}:{ROOT / 'kernels'}",
        "HOME": "/nonexistent",
        "STRATA_KERNEL_CACHE": os.environ["STRATA_KERNEL_CACHE"],
        "PATH": "/usr/bin:/bin",
        "COLUMNS": "200",
    }
    name = {"app": "strata_cli.app", "chat": "tests.chat_fake", "run": "tests.cli.fake"}[program]
    ran = subprocess.run(
        [sys.executable, "-m", name, *command, *(os.fsencode(a) if isinstance(a, Path) else a for a in args)],
        cwd=ROOT,
        env={**where, "LC_ALL": "C.utf8" if utf8 else "C", "PYTHONUTF8": "0", **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=120,
    )
    return subprocess.CompletedProcess(ran.args, ran.returncode, ran.stdout.decode(), ran.stderr.decode())


def test_a_question_and_a_system_text(tmp_path):
    chat = {text: strata("chat", "--json", "--seed", "1", "-s", "süß", SAID, utf8=text) for text in (False, True)}
    assert chat[False].returncode == 0, chat[False].stderr
    assert json.loads(chat[False].stdout)["text"].startswith(f"you said {SAID!r}")
    assert json.loads(chat[False].stdout)["text"] == json.loads(chat[True].stdout)["text"]
    plain = strata("chat", "--seed", "1", "-s", "süß", SAID)
    assert plain.stdout.rstrip("\n") == json.loads(chat[True].stdout)["text"], "the answer in a pipe is UTF-8"


def test_a_stop_string():
    ran = strata("chat", "--json", "--stop", "🦊", SAID)
    assert json.loads(ran.stdout)["text"].endswith("Héllo ")


def test_names_of_all_files_of_a_run(tmp_path):
    folder = tmp_path / "söme 🦊"
    model = make_model(folder / "mödel")
    prompts, out, steps = folder / "präm.jsonl", folder / "öut.jsonl", folder / "stäts.jsonl"
    prompts.write_text(json.dumps({"id": "é", "prompt": SAID, "max_tokens": 3}) + "\n")
    ran = strata("run run", prompts, "-m", model, "-o", out, "--step-stats", steps)
    assert ran.returncode == 0, ran.stderr
    (record,) = map(json.loads, out.read_text(encoding="utf-8").splitlines())
    assert (record["custom_id"], record["response"]["body"]["model"]) == ("é", str(model))
    assert "mödel" in Path(f"{out}.meta.json").read_text(encoding="utf-8")
    assert json.loads(steps.read_text(encoding="utf-8").splitlines()[0])["model"] == str(model)
    again = strata("run run", prompts, "-m", model, "-o", out, "--resume")
    assert (again.returncode, len(out.read_text().splitlines())) == (0, 1), again.stderr
    assert strata("run run", prompts, "-m", model, "-o", out, "--resume", utf8=True).returncode == 0
    by_name = strata("run run", prompts, "-q", STRATA_MODEL=str(model))
    assert json.loads(by_name.stdout)["response"]["body"]["model"] == str(model)
    looked = strata("app inspect", "--json", steps)
    assert looked.returncode == 0, looked.stderr


def test_names_for_bench_and_parity(tmp_path):
    """With real weights: the loader opens the files of a directory by such a name, too."""
    model, prompts = tmp_path / "mödel", tmp_path / "präm.jsonl"
    shutil.copytree(model_path(), model)
    prompts.write_text(json.dumps({"prompt": SAID, "max_tokens": 2}) + "\n")
    report = tmp_path / "repört.md"
    flags = ("-m", model, "--batch", "2", "--spec", "1", "--rounds", "1", "--json", "--report", report)
    bench = strata("app bench", prompts, *flags, "--arm", f"ärm: --mtp '{model}'")
    assert bench.returncode == 0, bench.stderr
    found = json.loads(bench.stdout)
    assert (found["model"], found["kinds"][0]["kind"]) == (str(model), "präm")
    assert found["kinds"][0]["arms"][0]["name"] == "ärm" and report.exists()
    parity = strata("app parity", prompts, "-m", model, "--batch", "2", "--spec", "1", "--temperature", "0", "--json")
    assert parity.returncode == 0, parity.stderr
    assert json.loads(parity.stdout)["model"] == str(model)


@pytest.mark.parametrize("command", ALL)
def test_what_is_missing_is_named_on_a_line(command):
    ran = strata(command, *(["-m", "/nön.jsonl", "x"] if command == "app chat" else ["/nön.jsonl"]))
    assert ran.returncode == 2 and "/n\\xf6n.jsonl" in ran.stderr.splitlines()[0]


@pytest.mark.parametrize("command", ALL)
@pytest.mark.parametrize("utf8", [False, True])
def test_what_is_no_text_is_refused_by_name(command, utf8):
    ran = strata(command, b"/a\xffb", utf8=utf8)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.splitlines()[0] == "error: '/a\\xffb' is no text in UTF-8"
    assert len(ran.stderr.splitlines()) == 2


def test_a_setting_of_the_environment_that_is_no_text_is_refused():
    ran = strata("app run", "x.jsonl", STRATA_MODEL=os.fsdecode(b"\xff"))
    assert ran.returncode == 2 and "\\xff" in ran.stderr.splitlines()[0]


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
@pytest.mark.parametrize("text", ["plain", "Héllo", "🦊", "ÿ", ""])
def test_a_name_there_and_back(monkeypatch, encoding, text):
    """Whatever the locale's encoding, a name in UTF-8 is its text, and the text gives the name back."""
    monkeypatch.setattr(os, "fsencode", lambda name: name.encode(encoding, "surrogateescape"))
    monkeypatch.setattr(os, "fsdecode", lambda name: name.decode(encoding, "surrogateescape"))
    given = text.encode("utf-8").decode(encoding, "surrogateescape")  # as Python gives an argument
    assert names.text_of(given) == text
    assert names.os_name(names.text_of(given)) == given
    assert names.text_of(text) == text


def test_a_name_of_another_locale_is_read_by_it(monkeypatch):
    monkeypatch.setattr(os, "fsencode", lambda name: name.encode("latin-1", "surrogateescape"))
    assert names.text_of(b"H\xe9llo".decode("latin-1")) == "Héllo"
    monkeypatch.setattr(os, "fsencode", lambda name: name.encode("utf-8", "surrogateescape"))
    with pytest.raises(UsageError, match=r"H.xe9llo"):
        names.text_of(b"H\xe9llo".decode("utf-8", "surrogateescape"))
