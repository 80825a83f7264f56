"""Signals: what a parent ignores stays ignored, and no test depends on what its own parent ignores or blocks."""

import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from strata_cli.commands.run import ENDING
from strata_cli.interrupt import Interrupt

ROOT = Path(__file__).parents[2]
# One of each kind: a signal to oneself, a child that gets one, a child behind a terminal.
SIGNALLED = (
    "tests/cli/test_run.py::test_the_first_ctrl_c_finishes_the_window_and_says_how_to_go_on",
    "tests/cli/test_resume.py::test_two_interrupts_end_at_once",
    "tests/cli/test_chat_piped.py::test_ctrl_c_keeps_what_came_and_is_130",
    "tests/cli/test_chat_terminal.py::test_ctrl_c_stops_the_answer_and_keeps_what_came",
    "tests/unit/test_conversation_turns.py",
)


@pytest.mark.parametrize("parent", ["ignores", "blocks"])
def test_no_test_depends_on_inherited_signals(parent):
    """As under `nohup`, in the background of a script, or below a supervisor; and without a terminal."""

    def prepare() -> None:
        for number in ENDING:
            if parent == "ignores":
                signal.signal(number, signal.SIG_IGN)
        if parent == "blocks":
            signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)

    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *SIGNALLED]
    ran = subprocess.run(
        command,
        cwd=ROOT,
        preexec_fn=prepare,
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-2000:]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_what_the_parent_ignores_stays_ignored(number):
    before = signal.signal(number, signal.SIG_IGN)
    try:
        with Interrupt(signals=ENDING) as interrupt:
            os.kill(os.getpid(), number)
            assert not interrupt.wanted
            os.kill(os.getpid(), signal.SIGINT)
            assert interrupt.wanted
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize(
    ("module", "code"),
    [("strata_cli.app", -2), ("typer", -2), ("strata_cli.commands.chat", 130), ("torch", 130), ("numpy", 130)],
)
def test_ctrl_c_while_python_imports_is_quiet(module, code):
    """Sent at the very moment at which a module is looked for: before there is a command line, and when there is."""
    program = f"""
import os, signal, sys

class CtrlC:
    def find_spec(self, name, path=None, target=None):
        if name.startswith({module!r}):
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, CtrlC())
sys.argv = ["strata", "chat", "hello"]
from strata_cli.__main__ import main
main()
"""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'kernels'}"}
    command = [sys.executable, "-c", program]
    ran = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout, ran.stderr) == (code, "", "")


def test_the_command_is_the_quiet_entry_point():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["scripts"] == {"strata": "strata_cli.__main__:main"}
