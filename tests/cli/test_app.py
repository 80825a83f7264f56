"""The command line itself: help, versions, and what it must not import."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from strata_cli import __version__
from strata_cli.app import COMMANDS, load_command

ROOT = Path(__file__).parents[2]


def python(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'kernels'}", "COLUMNS": "120", **env},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("args", [["--help"], [], ["--version"], ["run", "--help"], ["run", "none.jsonl"]])
def test_no_torch_without_work(args):
    ran = python(
        f"import sys; from strata_cli import app; app.run({args}); print('torch' in sys.modules, file=sys.stderr)"
    )
    assert ran.stderr.splitlines()[-1] == "False", ran.stderr


def test_bad_lines_are_found_without_torch(strata, prompts):
    file = prompts({"prompt": [1] * 500})
    args = ["run", str(file), "-m", str(strata.model)]
    ran = python(
        f"import sys; from strata_cli import app; app.run({args!r}); print('torch' in sys.modules, file=sys.stderr)"
    )
    assert "prompt of 500 tokens" in ran.stderr
    assert ran.stderr.splitlines()[-1] == "False"


def test_help_names_commands_exit_codes_and_examples(strata):
    ran = strata("--help")
    assert ran.code == 0
    for word in (*COMMANDS, "Exit codes", "130 interrupted", "strata run --batch 4 examples/prompts.jsonl"):
        assert word in ran.out
    assert strata().out == ran.out


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_of_the_table_loads(name):
    assert load_command(name).name == name


def test_version(strata):
    assert strata("--version").out == f"strata {__version__}\n"


def test_unknown_command(strata):
    ran = strata("rum")
    assert ran.code == 2
    assert "Did you mean 'run'?" in ran.err


def test_show_config_names_sources(strata, prompts):
    ran = strata("run", prompts({"prompt": "x"}), "--profile", "strata-b", "--spec", 2, "--show-config",
                 env={"STRATA_BATCH": "3"})  # fmt: skip
    rows = {line.split()[0]: line.split(maxsplit=2)[1:] for line in ran.out.splitlines()}
    assert ran.code == 0
    assert rows["spec"] == ["2", "--spec"]
    assert rows["batch"] == ["3", "STRATA_BATCH"]
    assert rows["spec_min_p"] == ["0.5", "profile strata-b"]
    assert rows["accept"] == ["coupled", "default"]
    assert rows["model"] == ["demo", "default"]


def test_a_fault_of_strata_is_one_line_and_a_traceback_on_demand(strata, prompts, monkeypatch):
    def broken(settings):
        raise RuntimeError("oh")

    monkeypatch.setattr("strata_cli.commands.run.open_checkpoint", broken)
    file = prompts({"prompt": "x"})
    ran = strata("run", file)
    assert ran.code == 1
    assert ran.err.splitlines()[0] == "error: RuntimeError: oh"
    assert "STRATA_DEBUG=1" in ran.err
    with pytest.raises(RuntimeError, match="oh"):
        strata("run", file, env={"STRATA_DEBUG": "1"})


def test_ctrl_c_before_the_run(strata, prompts, monkeypatch):
    def interrupt(settings):
        raise KeyboardInterrupt

    monkeypatch.setattr("strata_cli.commands.run.open_checkpoint", interrupt)
    ran = strata("run", prompts({"prompt": "x"}))
    assert (ran.code, ran.out, ran.err) == (130, "", "")


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("run - <&-", 2, "error: stdin: no prompts"),
        ("inspect none.jsonl >&-", 2, "error: none.jsonl"),
        ("inspect none.jsonl 2>&-", 2, ""),
        ("run none.jsonl --show-config >&-", 1, "error: Bad file descriptor\n"),
        ("run none.jsonl --show-config >/dev/full", 1, "error: No space left on device\n"),
    ],
)
def test_streams_that_are_closed_or_full(line, code, said):
    ran = subprocess.run(
        f"{sys.executable} -m strata_cli.app {line}",
        shell=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'kernels'}"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (ran.returncode, ran.stdout) == (code, "")
    assert ran.stderr.startswith(said)
    assert len(ran.stderr.splitlines()) == (2 if code == 2 and said else bool(said))


@pytest.mark.parametrize("where", ["/dev/full", "closed pipe"])
def test_a_stderr_that_nobody_can_read_costs_no_record(tmp_path: Path, where: str) -> None:
    """Progress is secondary: the run goes on and its exit code says how it went."""
    prompts = tmp_path / "p.jsonl"
    prompts.write_text("".join(f'{{"prompt": "Once", "max_tokens": 40, "seed": {i}}}\n' for i in range(6)))
    if where == "closed pipe":
        reading, writing = os.pipe()
        os.close(reading)
    else:
        writing = os.open(where, os.O_WRONLY)
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'kernels'}"}

    def strata(*args: str) -> subprocess.CompletedProcess[bytes]:
        command = [sys.executable, "-m", "strata_cli.app", "run", *args]
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": writing}
        return subprocess.run(command, cwd=ROOT, env=environment, timeout=120, **streams)

    ran, refused = strata(str(prompts), "--simple"), strata(str(tmp_path / "none.jsonl"))
    os.close(writing)
    assert ran.returncode == 0
    assert len(ran.stdout.splitlines()) == 6
    assert refused.returncode == 2
