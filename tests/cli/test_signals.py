"""Signals: what a parent ignores stays ignored, and no test depends on what its own parent ignores or blocks."""

import os
import signal
import subprocess
import sys
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
