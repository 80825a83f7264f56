"""What is typed while an answer streams is not echoed into it, and the terminal is given back whatever happens."""

import os
import re
import signal
import termios
import time

import pexpect
import pytest

from tests.cli.talk import CTRL_C, UP, Talk


def echoes(chat: Talk) -> bool:
    """Whether the terminal echoes what is typed."""
    return bool(termios.tcgetattr(chat.child.fileno())[3] & termios.ECHO)


def test_nothing_typed_lands_in_a_streaming_answer(talk, tmp_path):
    chat = talk(FAKE_DELAY_S="0.02")
    chat.type("long")
    chat.until("word3")
    assert not echoes(chat)
    chat.type("early" + UP, "")
    chat.until("word9 ")
    chat.type(CTRL_C, "")
    streamed = chat.until(r"\(interrupted\)")
    assert "^" not in streamed and "early" not in streamed
    words = "".join(part for part in chat.seen.partition("word0")[1:]).split("\n")[0].split()
    assert len(words) > 9 and words[:-1] == [f"word{i}" for i in range(len(words) - 1)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_a_killed_chat_gives_the_echo_back(talk, number):
    chat = talk("long", prompt="word3", FAKE_DELAY_S="0.02")
    assert not echoes(chat)
    os.kill(chat.child.pid, number)
    chat.child.expect(pexpect.EOF)
    assert echoes(chat)
    chat.child.close()
    assert chat.child.signalstatus == number


def test_a_chat_that_is_interrupted_twice_gives_the_echo_back(talk):
    chat = talk("long", prompt="word3", FAKE_DELAY_S="1.5")
    for _ in range(2):
        assert not echoes(chat)
        os.kill(chat.child.pid, signal.SIGINT)
        time.sleep(0.2)
    chat.child.expect(pexpect.EOF)
    assert echoes(chat)
    chat.child.close()
    assert chat.child.exitstatus == 130


def test_a_suspended_chat_gives_the_echo_back_and_takes_it_again(talk):
    chat = talk("long", prompt="word3", shell="set -m; {}; stty -a; read go; fg", FAKE_DELAY_S="0.02")
    assert not echoes(chat)
    chat.type("\x1a", "")
    assert re.search(r"(?<!-)\becho\b", chat.until("echoke"))
    chat.type("", "\r")
    before = chat.until(r"word\d+ word\d+ word\d+ ")
    assert "^Z" not in before and not echoes(chat)
    chat.type(CTRL_C, "")
    chat.until(r"\(interrupted\)")
    chat.child.expect(pexpect.EOF)
    assert echoes(chat)


def test_a_chat_in_the_background_leaves_the_terminal_alone(talk):
    chat = talk("hello", prompt="done", shell="set -m; {} & wait; stty -a; echo done")
    assert "you said 'hello'" in chat.seen and echoes(chat)
