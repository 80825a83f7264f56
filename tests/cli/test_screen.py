"""The screen in a real pseudo-terminal, with a scripted engine."""

import json
import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import run

import pexpect
import pyte
import pytest

ROOT = Path(__file__).parents[2]


class Terminal:
    """A terminal of `columns` x `lines` in which a scripted run goes on; stdout may go to a file."""

    def __init__(self, asked: dict, columns: int, lines: int, stdout: Path | None, env: dict[str, str]):
        self.screen = pyte.Screen(columns, lines)
        self.stream = pyte.ByteStream(self.screen)
        self.raw = b""
        command = f"exec {sys.executable} -m tests.scripted_run '{json.dumps(asked)}'"
        command += f" > {stdout}" if stdout else ""
        plain = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES")}
        self.child = pexpect.spawn(
            "/bin/sh",
            ["-c", command],
            cwd=str(ROOT),
            dimensions=(lines, columns),
            env={**plain, "TERM": "xterm-256color", "PYTHONPATH": ".:kernels", "PYTHONIOENCODING": "utf-8", **env},
            timeout=30,
        )

    def feed(self) -> bool:
        """Take what came; False at the end."""
        try:
            data = self.child.read_nonblocking(65536, timeout=0.2)
        except pexpect.TIMEOUT:
            return True
        except pexpect.EOF:
            return False
        self.raw += data
        self.stream.feed(data)
        return True

    def until(self, pattern: str) -> str:
        """The text of the screen once it shows `pattern`."""
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            going = self.feed()
            if re.search(pattern, self.text):
                return self.text
            assert going, f"ended without {pattern!r}:\n{self.text}"
        raise AssertionError(f"never showed {pattern!r}:\n{self.text}")

    def end(self) -> int:
        while self.feed():
            pass
        self.child.close()
        return self.child.exitstatus

    @property
    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self.screen.display)

    def resize(self, columns: int, lines: int) -> None:
        self.screen.resize(lines, columns)
        self.child.setwinsize(lines, columns)


@contextmanager
def terminal(
    asked: dict, columns: int = 120, lines: int = 30, stdout: Path | None = None, **env: str
) -> Iterator[Terminal]:
    t = Terminal(asked, columns, lines, stdout, env)
    try:
        yield t
    finally:
        t.child.close(force=True)


def test_records_in_a_file_beside_the_live_screen_are_all_there_and_nothing_else(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    with terminal({"requests": 30, "pause_s": 0.002}, stdout=out) as t:
        assert t.end() == 0
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert sorted(r["custom_id"] for r in records) == [f"line-{n:06d}" for n in range(1, 31)]
    assert b"\x1b[?1049h" in t.raw and b"\x1b[?1049l" in t.raw  # it was live, and the shell's page came back
    assert b"\x1b[?25h" in t.raw  # so did the cursor


def test_four_slots_and_the_slow_one_with_its_reason(tmp_path: Path) -> None:
    with terminal({"requests": 40, "slow": 2, "max_tokens": [400, 500]}, stdout=tmp_path / "out") as t:
        text = t.until(r"slot 2 is slow")
        rows = [line for line in text.splitlines() if re.match(r"[! ] +\d ", line)]
        assert [row[:3] for row in rows] == ["  0", "  1", "! 2", "  3"]
        assert "of its drafts accepted" in text and "acceptance" in rows[2]
        assert "graphs: not captured on this card" in text
        assert "a warning from python" in text  # shown while it runs ...
        t.child.send("q")
        t.until("stopping: 4 running requests finish first")
        assert t.end() == 0
    assert "a line for stderr" in t.text and "a warning from python" in t.text  # ... and left on the shell's page


def test_the_layout_follows_the_width(tmp_path: Path) -> None:
    with terminal({"requests": 40, "max_tokens": [800, 900]}, 130, 30, stdout=tmp_path / "out") as t:
        assert "keeps, last 32" in t.until(r"decode .*fits")
        t.resize(90, 30)
        text = t.until(r"tokens +L why +keeps +acc +tok/s")
        assert all(len(line) <= 90 for line in text.splitlines())
        t.resize(46, 16)
        t.until(r"state +tokens +L why +acc +tok/s")
        t.resize(130, 30)
        t.until("keeps, last 32")


def test_keys(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    with terminal({"requests": 60, "max_tokens": [200, 300]}, stdout=out) as t:
        t.until("decode")
        t.child.send("l")
        t.until(r"slot 0: line-")
        t.child.send("l")
        t.until(r"slot 1: line-")
        t.child.send("p")
        t.until("PAUSED")
        t.until("0 active")  # what ran came to its end, nothing new began
        paused_at = len(out.read_text().splitlines())
        t.child.send("p")
        t.until("[1-4] active")
        t.child.send("q")
        assert t.end() == 0
    done = len(out.read_text().splitlines())
    assert paused_at <= done < 60
    assert "stopped" in t.text


def test_ctrl_c_gives_the_terminal_back(tmp_path: Path) -> None:
    with terminal({"requests": 60}, stdout=tmp_path / "out") as t:
        t.until("decode")
        t.child.sendintr()
        assert t.end() == 130
    assert b"\x1b[?1049l" in t.raw and "interrupted" in t.text


def test_ascii_and_no_colour(tmp_path: Path) -> None:
    asked = {"requests": 12, "slow": 1, "screen": {"ascii": True}}
    with terminal(asked, stdout=tmp_path / "out", NO_COLOR="1") as t:
        t.until("slot 1 is slow")
        assert t.end() == 0
    assert t.raw.isascii()
    colours = re.findall(rb"\x1b\[([0-9;]*)m", t.raw)
    assert not any(30 <= int(code) <= 48 for c in colours for code in c.split(b";") if code)


@pytest.mark.parametrize(
    "asked, env",
    [
        ({"screen": {"tui": False}}, {}),
        ({"screen": {"records_to_terminal": True}}, {}),
        ({}, {"TERM": "dumb"}),
        ({}, {"TTY_INTERACTIVE": "0"}),
    ],
)
def test_plain_lines_where_a_live_screen_is_not_wanted(asked: dict, env: dict[str, str]) -> None:
    with terminal({"requests": 5, "pause_s": 0.0, **asked}, **env) as t:
        assert t.end() == 0
    assert b"\x1b" not in t.raw
    assert re.search(r"t=\d+s done=5/5 active=0 tok/s=\d+ accept=0\.\d\d L=\d\.\d", t.text)
    assert "downgrade: graphs: not captured on this card" in t.text
    assert t.text.count("custom_id") == 5  # stdout goes to the terminal here


@pytest.mark.parametrize("env", [{}, {"FORCE_COLOR": "1"}, {"TTY_COMPATIBLE": "1"}])
def test_without_a_terminal_there_are_no_escape_codes(env: dict[str, str]) -> None:
    ran = run(
        [sys.executable, "-m", "tests.scripted_run", '{"requests": 5, "pause_s": 0}'],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": ".:kernels", **env},
        capture_output=True,
        check=True,
    )
    assert len(ran.stdout.splitlines()) == 5 and b"\x1b" not in ran.stdout + ran.stderr
    assert b"done=5/5" in ran.stderr


def test_quiet_says_nothing() -> None:
    asked = '{"requests": 5, "pause_s": 0, "screen": {"quiet": true}}'
    ran = run([sys.executable, "-m", "tests.scripted_run", asked], cwd=ROOT, capture_output=True, check=True)
    assert b"done=" not in ran.stderr and b"downgrade" not in ran.stderr
